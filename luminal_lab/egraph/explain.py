"""Why are two terms equal? A chain of rule applications from the one to the other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.names import Place, place, tensor_names
from luminal_lab.egraph.replay import CONGRUENCE, COPY, Edge, Fact
from luminal_lab.egraph.terms import Computer, Term, rebuilt, subterms
from luminal_lab.egraph.witness import Witness, witness
from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    import pandas as pd

    from luminal_lab.egraph.egraph import EGraph

_LONGEST = 4000  # links of a chain
COPY_LAW = (
    "reading what a kernel stores at other indices is computing it there (a renamed copy, made"
    " by the encoder)"
)


@dataclass(frozen=True)
class Given:
    """A fact that a rule used.

    Arguments:
        relation: Its relation.
        args: Terms and literals.
        rule: The rule that derived it.
    """

    relation: str
    args: tuple[Any, ...]
    rule: str


@dataclass(frozen=True)
class Link:
    """One application of a rule.

    Arguments:
        rule: Its name; `"copy"` for the renamed copies of the encoder.
        law: What it states.
        tolerance: Its class: `exact`, `reassociates`, `approximate`.
        at: `file:line` of its text, `""` for a copy.
        forward: Whether it is read from left to right.
        iteration: When saturation found it; 0 for the encoder.
        before, after: The part that changes, and what it becomes. With `forward`, `before` is
            an instance of the rule's left side and `after` of its right side.
        whole: The whole term afterwards.
        facts: What the rule used beside its pattern: facts that other rules derived.
    """

    rule: str
    law: str
    tolerance: str
    at: str
    forward: bool
    iteration: int
    before: Term
    after: Term
    whole: Term
    facts: tuple[Given, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why two terms are equal.

    Arguments:
        left, right: The terms.
        links: The chain: each link rewrites a part of the term that the one before it left.
        names: What the tensors in these terms are called.
        extents: The extent of every axis.
        rules: The text of each rule of the chain.
        title: What was asked.
    """

    left: Term
    right: Term
    links: tuple[Link, ...]
    names: Mapping[Term, str]
    extents: Mapping[str, int]
    rules: Mapping[str, str] = field(repr=False)
    title: str = ""
    _hlir: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.links)

    @property
    def tolerance(self) -> str:
        """The loosest class of the rules of the chain."""
        order = ("exact", "reassociates", "approximate")
        return max((x.tolerance for x in self.links), key=order.index, default="exact")

    def table(self) -> pd.DataFrame:
        """One row per link: rule, law, direction, class, iteration, before, after."""
        import pandas as pd

        view = import_module("luminal_lab.views.explain")
        rows = [
            {
                "rule": x.rule,
                "direction": "→" if x.forward else "←",
                "before": view.mathematics(self, x.before),
                "after": view.mathematics(self, x.after),
                "law": x.law,
                "class": x.tolerance,
                "iteration": x.iteration,
                "at": x.at,
            }
            for x in self.links
        ]
        names = ["rule", "direction", "before", "after", "law", "class", "iteration", "at"]
        return pd.DataFrame(rows, columns=names)

    def verify(self, buffers: Mapping[str, Any] | None = None, seed: int = 0) -> list[float]:
        """Compute both sides of every link in float64.

        Arguments:
            buffers: A tensor for each input of the region; small random ones when None.
            seed: For these.

        Returns:
            The largest relative difference of each link.
        """
        from luminal_lab.egraph.audit import Defined, difference, inputs_for

        held = inputs_for(self._hlir, seed) if buffers is None else buffers
        computer = Computer(self.extents, held, self._hlir)
        out = []
        for link in self.links:
            sides = []
            for term in (link.before, link.after):
                if term.sort == "T":
                    sides.append(Defined(computer.tensor(term)))
                else:
                    sides.append(Defined(*computer.value(term)))
            out.append(difference(*sides))
        return out

    def text(self) -> str:
        """The chain, link by link."""
        return import_module("luminal_lab.views.explain").to_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.explain")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


def explain(egraph: EGraph, a: Any, b: Any, region: int | None = None) -> Explanation:
    """See `EGraph.explain`."""
    where = [_place(egraph, x, region) for x in (a, b)]
    if where[0].region != where[1].region:
        raise LuminalError(
            f"{where[0].label} is in region {where[0].region} and {where[1].label} in region"
            f" {where[1].region}: regions are saturated one by one",
            fix="explain two things of one region",
        )
    found = witness(egraph, where[0].region)
    left, right = (_root(found, x, w) for x, w in zip((a, b), where))
    left, right = _same_sort(found, left, right)
    title = f"{where[0].label} = {where[1].label}"
    if found.replay.find(left) != found.replay.find(right):
        classes = [_class_name(found, x) for x in (left, right)]
        raise LuminalError(
            f"no rule makes {where[0].label} and {where[1].label} equal: their classes are"
            f" {classes[0]} and {classes[1]}",
            fix="egraph.alternatives(...) shows what a class holds, egraph.why_not(rule, node)"
            " why a rule did not fire",
        )
    chain = _Chain(found)
    links = tuple(_links(egraph, found, chain, left, right))
    first, last = found.term(left), found.term(right)
    terms = [first, last, *(t for x in links for t in (x.before, x.after, x.whole))]
    terms += [a for x in links for f in x.facts for a in f.args if isinstance(a, Term)]
    names = _names(egraph, found, terms, chain.tensors)
    used = {x.rule for x in links}
    return Explanation(
        first,
        last,
        links,
        names,
        found.part.extents,
        {r.name: r.text for r in egraph.rules if r.name in used},
        title,
        found.part.hlir,
    )


def _place(egraph: EGraph, what: Any, region: int | None) -> Place:
    origin = getattr(what, "origin", None)
    if origin is not None:
        part = egraph.parts[origin.region] if origin.region < len(egraph.parts) else None
        if part is None or origin.tensor >= len(part.classes):
            raise LuminalError(
                "this kernel was extracted from another e-graph",
                fix="pass a kernel of a candidate of this e-graph",
            )
        return Place(origin.region, origin.tensor, None, None, "the kernel")
    if hasattr(what, "outputs") and hasattr(what, "buffers"):
        raise LuminalError(
            "this kernel does not know the e-graph that it was extracted from",
            fix="pass a kernel of a candidate that ll.search or ll.sample returned (one that"
            " was read from a file has lost its choices)",
        )
    return place(egraph, what, region)


def _root(found: Witness, what: Any, at: Place) -> int:
    origin = getattr(what, "origin", None)
    if origin is not None:
        return _body(found, origin)
    if at.node is not None:
        return found.written(at.node)
    if at.member is None and found.part.classes[at.eclass].sort == "T":
        return found.tensor(at.eclass)
    return found.member(at.eclass, at.member or 0)


def _body(found: Witness, origin: Any) -> int:
    """The term of a kernel, by the choices that made it."""
    terms: dict[int, int] = {}
    classes = found.part.classes
    try:
        for c, k in origin.picks:
            node = classes[c].nodes[k]
            below = {x: terms[x] for x in node.children if x in terms}
            if node.op == "load":
                below[node.children[0]] = found.tensor(node.children[0])
            terms[c] = found.assembled(c, k, below)
        made = classes[origin.tensor].nodes[origin.producer]
        below = {x: terms.get(x, -1) for x in made.children}
        below = {x: t if t >= 0 else found.tensor(x) for x, t in below.items()}
        return found.assembled(origin.tensor, origin.producer, below)
    except (IndexError, KeyError):
        raise LuminalError(
            "this kernel was extracted from another e-graph",
            fix="pass a kernel of a candidate of this e-graph",
        ) from None


def _same_sort(found: Witness, a: int, b: int) -> tuple[int, int]:
    """Two tensors, or two values: of a tensor and a value, the kernel's value is meant."""
    terms = found.replay.terms
    sorts = [found.schema.tables[terms[x][0]].sort for x in (a, b)]
    if sorts[0] == sorts[1]:
        return a, b

    def inside(x: int) -> int:
        op, args = terms[x]
        return args[0] if op == "Kernel" else x

    return (inside(a), b) if sorts[0] == "T" else (a, inside(b))


def _class_name(found: Witness, x: int) -> str:
    c = found.class_of(x)
    return f"{found.part.classes[c].sort.lower()}{c}"


def _names(
    egraph: EGraph, found: Witness, terms: list[Term], instead: Mapping[Term, Term]
) -> dict[Term, str]:
    """A name for each tensor term; a kernel that was rewritten has its old name and a dash."""
    known = tensor_names(egraph, found.part.region)
    named: dict[Term, str] = {}
    for (table, _), term in found.replay.loaded.items():
        if table == "tid":
            named.setdefault(found.term(term), known[found.class_of(term)])
    count: dict[str, int] = {}
    for t in subterms(terms):
        if t.sort != "T" or t in named:
            continue
        old = t
        while old in instead and old not in named:
            old = instead[old]
        base = named.get(old, "t").rstrip("'")
        count[base] = count.get(base, 0) + 1
        named[t] = (
            base + "'" * min(count[base], 3) + (str(count[base]) if count[base] > 3 else "")
        )
    return named


# ------------------------------------------------------------------------------------- chains


def _links(egraph: EGraph, found: Witness, chain: _Chain, a: int, b: int) -> Iterator[Link]:
    """The links between two equal terms, as short as the recorded equalities allow."""
    steps = chain.everywhere(a, b)
    if steps is None:
        steps = chain.one_by_one(a, b)
    infos = {r.name: r for r in egraph.rules}
    for edge, forward, before, after, whole in _without_loops(found.term(a), steps):
        name = edge.rule.removesuffix("=>").removesuffix("<=")
        info = infos.get(name)
        yield Link(
            name,
            info.law if info else COPY_LAW,
            info.tolerance if info else "exact",
            f"{info.file}:{info.line}" if info else "",
            forward,
            edge.iteration,
            before,
            after,
            whole,
            tuple(_given(found, f) for f in edge.facts if f.rule),
        )


def _given(found: Witness, fact: Fact) -> Given:
    sorts = found.schema.tables[fact.table].args
    args = tuple(
        found.term(a) if found.schema.is_term(s) else a for s, a in zip(sorts, fact.args)
    )
    return Given(fact.table, args, fact.rule)


Stepped = tuple[Edge, bool, Term, Term, Term]  # edge, forward, before, after, whole afterwards


def _without_loops(first: Term, steps: list[Stepped]) -> list[Stepped]:
    """Steps that come back to a term that was there before are left out."""
    seen: dict[Term, int] = {first: 0}
    kept: list[Stepped] = []
    for step in steps:
        whole = step[4]
        if whole in seen:
            for gone in kept[seen[whole] :]:
                seen.pop(gone[4], None)
            kept = kept[: seen[whole]]
            seen[whole] = len(kept)
        else:
            kept.append(step)
            seen[whole] = len(kept)
    return kept


class _Chain:
    def __init__(self, found: Witness):
        self.found, self.replay = found, found.replay
        self.paths: dict[tuple[int, int, float], list[tuple[Edge, bool]]] = {}
        self.tensors: dict[Term, Term] = {}  # a new tensor -> the one in whose place it stands
        self.whole: Term | None = None
        self.steps: list[Stepped] = []

    # Congruent terms first made from different terms: their arguments are equal, pair by pair.

    def pairs(self, edge: Edge, forward: bool) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """The arguments that differ between two congruent terms, with their positions."""
        x, y = (edge.left, edge.right) if forward else (edge.right, edge.left)
        (op, a), (_, b) = self.replay.terms[x], self.replay.terms[y]
        for k, (sort, p, q) in enumerate(zip(self.found.schema.tables[op].args, a, b)):
            if self.found.schema.is_term(sort) and p != q:
                yield p, q, (k, -1)
            elif self.found.schema.vector_of_terms(sort):
                for n, (u, v) in enumerate(zip(p, q)):
                    if u != v:
                        yield u, v, (k, n)

    def path(self, a: int, b: int, before: float) -> list[tuple[Edge, bool]]:
        """The cheapest path between two terms over edges older than a time."""
        key = (a, b, before)
        if key in self.paths:
            return self.paths[key]
        best = {a: 0.0}
        came: dict[int, tuple[int, Edge, bool]] = {}
        heap = [(0.0, a)]
        while heap:
            cost, x = heapq.heappop(heap)
            if x == b:
                break
            if cost > best[x]:
                continue
            for edge in self.replay.edges[x]:
                if edge.time >= before:
                    continue
                forward = edge.left == x
                y = edge.right if forward else edge.left
                weight = 1.0
                if edge.rule == CONGRUENCE:
                    weight = 0.1 + 2.0 * sum(1 for _ in self.pairs(edge, True))
                if cost + weight < best.get(y, float("inf")):
                    best[y] = cost + weight
                    came[y] = (x, edge, forward)
                    heapq.heappush(heap, (cost + weight, y))
        out: list[tuple[Edge, bool]] = []
        at = b
        while at != a:
            at, edge, forward = came[at]
            out.append((edge, forward))
        out.reverse()
        self.paths[key] = out
        return out

    def _ends(self, edge: Edge, forward: bool) -> tuple[Term, Term]:
        x, y = (edge.left, edge.right) if forward else (edge.right, edge.left)
        return self.found.term(x), self.found.term(y)

    # A part that occurs several times is rewritten everywhere at once. That is shorter, and it
    # is what a reader expects; where it does not lead to the goal, positions are told apart.

    def everywhere(self, a: int, b: int) -> list[Stepped] | None:
        """The steps when each rewrites all occurrences of its part; None when that fails."""
        self.whole, self.steps = self.found.term(a), []
        done: dict[tuple[int, int], None] = {}
        if not self._everywhere(a, b, float("inf"), done):
            return None
        return self.steps if self.whole == self.found.term(b) else None

    def _everywhere(self, a: int, b: int, before: float, done: dict) -> bool:
        for edge, forward in self.path(a, b, before):
            if edge.rule == CONGRUENCE:
                for p, q, _ in self.pairs(edge, forward):
                    if (p, q) in done and not self._occurs(self.found.term(p)):
                        continue
                    done[p, q] = None
                    if not self._everywhere(p, q, edge.time, done):
                        return False
                continue
            old, new = self._ends(edge, forward)
            assert self.whole is not None
            if not self._occurs(old):
                return False
            self.whole = rebuilt(self.whole, {old: new}, self.tensors)
            self.steps.append((edge, forward, old, new, self.whole))
            if len(self.steps) > _LONGEST:
                return False
        return True

    def _occurs(self, term: Term) -> bool:
        assert self.whole is not None
        return term in set(subterms([self.whole]))

    def one_by_one(self, a: int, b: int) -> list[Stepped]:
        """The steps when each rewrites one occurrence."""
        out: list[Stepped] = []
        for step in self._one_by_one(a, b, float("inf")):
            out.append(step)
            if len(out) > _LONGEST:
                raise LuminalError(
                    f"the chain has more than {_LONGEST} links",
                    fix="explain two terms that are nearer to each other",
                )
        return out

    def _one_by_one(self, a: int, b: int, before: float) -> Iterator[Stepped]:
        for edge, forward in self.path(a, b, before):
            old, new = self._ends(edge, forward)
            if edge.rule != CONGRUENCE:
                yield edge, forward, old, new, new
                continue
            now = old
            for p, q, where in self.pairs(edge, forward):
                for e, f, x, y, inner in self._one_by_one(p, q, edge.time):
                    now = self._put(now, where, inner)
                    yield e, f, x, y, now

    def _put(self, term: Term, where: tuple[int, int], inner: Term) -> Term:
        """A term with one argument exchanged."""
        k, n = where
        given: Any = inner
        if n >= 0:
            given = (*term.args[k][:n], inner, *term.args[k][n + 1 :])
        args = (*term.args[:k], given, *term.args[k + 1 :])
        new = Term(term.op, args, term.dtype, term.shape)
        if new.sort == "T" and new != term:
            self.tensors.setdefault(new, term)
        return new


__all__ = ["COPY", "Explanation", "Link", "explain"]
