"""The replay of a region, and how its terms are found by what the e-graph calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.language import SIGNATURES, datum
from luminal_lab.egraph.library import kernels_of
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.readout import Source, read_rows
from luminal_lab.egraph.replay import Programme, Replay, programme
from luminal_lab.egraph.rulebook import Rulebook, load_rules, rulebook
from luminal_lab.egraph.terms import Term
from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, ENode


def book_of(egraph: EGraph) -> Rulebook:
    """The rules that an e-graph was saturated with."""
    if egraph.sources:
        return rulebook(egraph.sources, egraph.limits.tolerance)
    book = load_rules(None, egraph.limits.tolerance, egraph.target)
    if [(r.name, r.text) for r in book.rules] != [(r.name, r.text) for r in egraph.rules]:
        raise LuminalError(
            "this e-graph was saved without the text of its rule files, and they have changed",
            fix="saturate the program again",
        )
    return book


def programme_of(egraph: EGraph) -> Programme:
    """The rules of an e-graph, compiled once."""
    kept = egraph.__dict__
    if "_programme" not in kept:
        kept["_programme"] = programme(book_of(egraph))
    return kept["_programme"]


def witness(egraph: EGraph, region: int) -> Witness:
    """The replay of a region; made once."""
    kept = egraph.__dict__.setdefault("_witnesses", {})
    if region not in kept:
        kept[region] = Witness(egraph, region)
    return kept[region]


class Witness:
    """See the module's text.

    Arguments:
        egraph: A saturated e-graph.
        region: One of its regions.

    Raises:
        SaturationError: when the region is too large to be replayed.
        LuminalError: when the replay does not come to the same e-graph.
    """

    def __init__(self, egraph: EGraph, region: int):
        self.part = part = egraph.parts[region]
        rules = programme_of(egraph)
        self.encoding = encode(part.hlir, egraph.limits.copies, "tiles" in rules.wanted)
        self.replay = Replay(rules, commands(self.encoding, rules.wanted))
        for _ in range(part.report.iterations[-1].number):
            if not self.replay.step():
                break
        self.schema = rules.schema
        infos = tuple(rules.infos.values())
        found = read_rows(self._tables(), self.encoding, infos, kernels_of(part.classes))
        self.number = found.number
        self._sources: dict[tuple, Source] = {}
        for c, sources in zip(found.classes, found.sources):
            for node, source in zip(c.nodes, sources):
                self._sources[c.id, _key(node)] = source
        missing = [
            (c.id, n) for c in part.classes for n in c.nodes
            if (c.id, _key(n)) not in self._sources
        ]  # fmt: skip
        if missing:
            c, node = missing[0]
            raise LuminalError(
                f"the replay of region {region} did not find {node.op} of class {c}"
                f" (and {len(missing) - 1} more e-nodes)",
                where=f"saturation stopped with: {part.report.stopped}",
                fix="saturate with limits that are not reached",
            )
        self._terms: dict[int, Term] = {}

    def _tables(self) -> dict[str, list[list[Any]]]:
        """The tables, as the saturation child sends them."""
        out: dict[str, list[list[Any]]] = {}
        for name, rows in self.replay.store.tables.items():
            out[name] = [
                [_plain(x) for x in (*key, value)] for key, value in rows.values.items()
            ]
        return out

    def key_of(self, op: str, args: Sequence[Any]) -> tuple[Any, ...]:
        """The columns of a row as the replay keeps them."""
        return tuple(datum(sort, a) for sort, a in zip(SIGNATURES[op].args, args))

    # ------------------------------------------------------------------------------- terms

    def written(self, node: int) -> int:
        """The term that the encoder wrote for an HLIR node of the region."""
        return self.replay.loaded["tid", (self.encoding.node_tensor[node],)]

    def tensor(self, c: int) -> int:
        """The term of a T-class: the encoder's first, else the first that a rule made."""
        for (table, _), term in self.replay.loaded.items():
            if table == "tid" and self.number[self.replay.find(term)] == c:
                return term
        return self.member(c, 0)

    def member(self, c: int, k: int) -> int:
        """The first term that became e-node `k` of class `c`."""
        op, args = self._sources[c, _key(self.part.classes[c].nodes[k])]
        return self.replay.node(op, self.key_of(op, args))

    def assembled(self, c: int, k: int, below: Mapping[int, int]) -> int:
        """E-node `k` of class `c` over given terms of the classes below it."""
        op, args = self._sources[c, _key(self.part.classes[c].nodes[k])]
        schema = self.schema
        made = []
        for sort, a in zip(SIGNATURES[op].args, self.key_of(op, args)):
            if sort in ("V", "T"):
                a = below.get(self.number[self.replay.find(a)], a)
            elif schema.vector_of_terms(sort):
                a = tuple(below.get(self.number[self.replay.find(x)], x) for x in a)
            made.append(a)
        return self.replay.add(op, tuple(made))

    def class_of(self, term: int) -> int:
        """The e-class of a term."""
        return self.number[self.replay.find(term)]

    def term(self, root: int) -> Term:
        """A term written out."""
        replay = self.replay
        stack = [root]
        while stack:
            t = stack[-1]
            if t in self._terms:
                stack.pop()
                continue
            op, args = replay.terms[t]
            sorts = self.schema.tables[op].args
            below = [
                x
                for s, a in zip(sorts, args)
                for x in (
                    (a,)
                    if self.schema.is_term(s)
                    else a
                    if self.schema.vector_of_terms(s)
                    else ()
                )
            ]
            missing = [x for x in below if x not in self._terms]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            made = tuple(
                self._terms[a] if self.schema.is_term(s)
                else tuple(self._terms[x] for x in a)
                if self.schema.vector_of_terms(s) else a
                for s, a in zip(sorts, args)
            )  # fmt: skip
            self._terms[t] = Term(op, made, *self._type(t, op))
        return self._terms[root]

    def _type(self, t: int, op: str) -> tuple[str, tuple[int, ...]]:
        root = self.replay.find(t)
        sort = SIGNATURES[op].sort
        if sort == "V":
            return self.replay.store.tables["dtype"].values[(root,)], ()
        if sort == "T":
            dtype = self.replay.store.tables["stores"].values[(root,)]
            return dtype, self.part.classes[self.number[root]].shape
        return "", ()


def _key(node: ENode) -> tuple:
    return (node.op, node.children, repr(node.attrs))


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return list(map(_plain, value)) if isinstance(value, tuple) else value
