"""Why did a rule not fire at a node? The first premise that fails, and the nearest term.

The premises are put to the tables that egglog left, one after the other from the node on. What
matches is followed as far as it goes; the branch that satisfies most premises is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.evidence import Evidence, evidence
from luminal_lab.egraph.names import Place, place
from luminal_lab.egraph.primitives import UnknownPrimitive
from luminal_lab.egraph.queries import AtomOf, Row, Test, Var, literal, variables
from luminal_lab.egraph.replay import Compiled
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.egraph.sexpr import Atom, Expr, List
from luminal_lab.egraph.tables import Env, ready
from luminal_lab.egraph.why_given import given_by, judged_as
from luminal_lab.egraph.why_words import Words, spelled
from luminal_lab.egraph.witness import programme_of
from luminal_lab.errors import LuminalError, RuleError

if TYPE_CHECKING:
    import pandas as pd

    from luminal_lab.egraph.egraph import EGraph

_STEPS = 200_000  # rows that are looked at
_KEPT = 64  # branches that are compared
_DEEP = 3  # rules behind rules that are asked, too


@dataclass(frozen=True)
class Premise:
    """One premise of a rule.

    Arguments:
        text: As the rule writes it.
        state: `"holds"`, `"fails"`, or `"open"` when it was not reached.
        said: What was found there.
    """

    text: str
    state: str
    said: str


@dataclass(frozen=True)
class WhyNot:
    """What became of a rule at a node.

    Arguments:
        rule: The rule.
        node: The node.
        status: `"fails"`: a premise does not hold. `"fired"`: it made a member of the node's
            class. `"known"`: it matches, and what it gives had been there before. `"held
            back"`: it matches and was not applied.
        said: The answer in words.
        premises: Each premise, for the nearest term.
        bindings: What the variables stand for in it.
        nearest: The pattern as far as it matches.
        iteration: Of a firing, when.
        tried: How many ways to match were looked at.
        because: When the premise is a fact that rules derive: what became of the best one.
        atoms: The premises in the form in which they are asked, in order.
        satisfied: How many of these the nearest term satisfies.
        root: The variable that stands for the node's class, and this class.
    """

    rule: RuleInfo
    node: str
    status: str
    said: str
    premises: tuple[Premise, ...]
    bindings: tuple[tuple[str, str], ...] = ()
    nearest: str = ""
    iteration: int | None = None
    tried: int = 0
    because: WhyNot | None = None
    atoms: tuple[str, ...] = field(default=(), repr=False)
    satisfied: int = 0
    root: tuple[str, int] | None = field(default=None, repr=False)  # variable and e-class

    @property
    def fired(self) -> bool:
        """Whether all premises hold."""
        return self.status != "fails"

    @property
    def failing(self) -> Premise | None:
        """The first premise that does not hold."""
        return next((p for p in self.premises if p.state == "fails"), None)

    def table(self) -> pd.DataFrame:
        """One row per premise: text, state, what was found."""
        import pandas as pd

        rows = [(p.text, p.state, p.said) for p in self.premises]
        return pd.DataFrame(rows, columns=["premise", "state", "found"])

    def text(self) -> str:
        """The answer, premise by premise."""
        return import_module("luminal_lab.views.why_not").to_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.why_not")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


def why_not(egraph: EGraph, rule: str, node: Any, region: int | None = None) -> WhyNot:
    """See `EGraph.why_not`."""
    info = _info(egraph, rule)
    at = place(egraph, node, region)
    found = evidence(egraph, at.region)
    halves = _halves(egraph, info.name)
    answers = [
        _ask(egraph, found, info, half, c, at, _DEEP)
        for half in halves
        for c in _classes(egraph, half, at)
    ]
    if not answers:
        sort = _root_sort(halves[0])
        what = {"V": "values", "T": "tensors"}.get(sort, sort)
        raise LuminalError(
            f"the rule {info.name!r} is about {what}, and {at.label} is none",
            where=f"{info.file}:{info.line}",
            fix="ask about an HLIR node, or about a class of the other sort",
        )
    return max(answers, key=lambda a: (a.status != "fails", a.satisfied))


def _info(egraph: EGraph, rule: str) -> RuleInfo:
    names = [r.name for r in egraph.rules]
    if rule in names:
        return egraph.rule(rule)
    close = get_close_matches(rule, names, 3, 0.5)
    raise RuleError(
        f"there is no rule {rule!r} in this e-graph",
        fix=f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else "egraph.table() lists the rules",
    )


def _halves(egraph: EGraph, name: str) -> list[Compiled]:
    """A rule as it is run: two of them for a birewrite."""
    labels = (name, f"{name}=>", f"{name}<=")
    sets = programme_of(egraph).rulesets
    return [r for s in sets for r in s.rules if r.name in labels]


def root_of(rule: Compiled) -> str | None:
    """The variable that stands for what a rule is about: what it unites, or states facts of."""
    for action in rule.actions:
        if not isinstance(action, List):
            continue
        operands: Sequence[Expr] = action.items[1:]
        if action.head == "set" and isinstance(action.items[1], List):
            operands = action.items[1].items[1:]
        for item in operands:
            if isinstance(item, Atom) and literal(item) is None:
                if rule.sorts.get(item.text) in ("V", "T"):
                    return item.text
    return None


def _root_sort(rule: Compiled) -> str:
    root = root_of(rule)
    return rule.sorts.get(root, "") if root is not None else ""


def _classes(egraph: EGraph, rule: Compiled, at: Place) -> list[int]:
    """The classes of a node that a rule may be about."""
    part = egraph.parts[at.region]
    own = part.classes[at.eclass]
    if at.member is None and own.sort == "T":
        several = [own] + [part.classes[n.children[0]] for n in own.nodes if n.op == "kernel"]
    else:
        several = [own] + [
            c for c in part.classes if c.sort == "T" and own.sort == "V"
            and any(n.op == "kernel" and n.children[0] == own.id for n in c.nodes)
        ]  # fmt: skip
    sort = _root_sort(rule)
    return list(dict.fromkeys(c.id for c in several if not sort or c.sort == sort))


# ---------------------------------------------------------------------------------- asking


@dataclass
class _Branch:
    """How far one way to match went: the atom that failed, and what was bound there."""

    env: Env
    depth: int


class _Asker:
    """Follows the premises of a rule from one class on."""

    def __init__(self, found: Evidence, rule: Compiled, env: Env):
        self.found, self.rule, self.start = found, rule, env
        self.atoms = reading_order(rule.query.atoms, env)
        self.steps = 0
        self.tried = 0
        self.deepest: list[_Branch] = []
        self.whole: list[Env] = []

    def run(self) -> None:
        """Look at all ways to match."""
        self._follow(0, self.start)

    def _follow(self, k: int, env: Env) -> None:
        if k == len(self.atoms):
            self.tried += 1
            if len(self.whole) < _KEPT:
                self.whole.append(env)
            return
        went = False
        for more in self.found.store.extend(self.atoms[k], env):
            went = True
            self.steps += 1
            if self.steps > _STEPS:
                return
            self._follow(k + 1, more)
        if not went:
            self.tried += 1
            depth = self.deepest[0].depth if self.deepest else -1
            if k > depth:
                self.deepest = []
            if k >= depth and len(self.deepest) < _KEPT:
                self.deepest.append(_Branch(env, k))

    def nearest(self) -> _Branch:
        """The branch that satisfies most premises, those after the failing one included."""
        return max(self.deepest, key=lambda b: self._later(b))

    def _later(self, branch: _Branch) -> int:
        env, count = branch.env, 0
        for atom in self.atoms[branch.depth + 1 :]:
            unbound = [v for v in variables(atom) if v not in env]
            if isinstance(atom, Test) and not ready(atom, env):
                continue
            more = next(self.found.store.extend(atom, env), None)
            if more is not None:
                count += 1
                env = more if len(unbound) <= 1 else env
        return count


def reading_order(atoms: Sequence[AtomOf], bound: Mapping[str, Any]) -> list[AtomOf]:
    """Atoms in the order of the text, each after something that it shares a variable with."""
    have = dict.fromkeys(bound)
    left = list(atoms)
    out: list[AtomOf] = []

    def reached(atom: AtomOf) -> bool:
        if isinstance(atom, Test):
            return ready(atom, have)
        return any(v in have for v in variables(atom)) or not any(variables(atom))

    while left:
        position = next((k for k, a in enumerate(left) if reached(a)), None)
        if position is None:
            rows = [k for k, a in enumerate(left) if isinstance(a, Row)]
            position = rows[0] if rows else 0
        atom = left.pop(position)
        out.append(atom)
        have.update(dict.fromkeys(variables(atom)))
    return out


def _ask(
    egraph: EGraph,
    found: Evidence,
    info: RuleInfo,
    rule: Compiled,
    c: int,
    at: Place,
    deep: int,
) -> WhyNot:
    root = root_of(rule)
    env: Env = {} if root is None else {root: found.numbers[c]}
    asker = _Asker(found, rule, env)
    try:
        asker.run()
    except UnknownPrimitive as unknown:
        raise LuminalError(
            f"the rule {info.name!r} uses the primitive {unknown.args[0]!r}, which only egglog"
            " can compute",
            where=f"{info.file}:{info.line}",
        ) from None
    atoms = tuple(map(str, asker.atoms))
    rooted = None if root is None else (root, c)
    if asker.whole:
        return _matched(egraph, found, info, rule, asker, c, at.label, atoms, rooted)
    branch = asker.nearest()
    atom = asker.atoms[branch.depth]
    words = Words(found, rule, branch.env, asker.atoms[: branch.depth])
    premises = _premises(words, asker, branch)
    because = None
    if deep and isinstance(atom, Row) and _lemmas(egraph, found, atom.table):
        because = _behind(egraph, found, atom, branch.env, at, deep - 1)
    return WhyNot(
        info,
        at.label,
        "fails",
        f"{words.failure(atom)}.",
        premises,
        words.bindings(),
        words.pattern(),
        None,
        asker.tried,
        because,
        atoms,
        branch.depth,
        rooted,
    )


def _premises(words: Words, asker: _Asker, branch: _Branch) -> tuple[Premise, ...]:
    failing = asker.atoms[branch.depth]
    env = branch.env
    reached = {a.premise for a in asker.atoms[: branch.depth]}
    left = {a.premise for a in asker.atoms[branch.depth :]}
    out = []
    for k, premise in enumerate(asker.rule.query.premises):
        text = spelled(premise)
        if k == failing.premise:
            out.append(Premise(text, "fails", words.failure(failing)))
        elif k in reached and k not in left:
            out.append(Premise(text, "holds", words.held(k)))
        else:
            premise_, env = _later(words, asker, branch, env, k, text)
            out.append(premise_)
    return tuple(out)


def _later(
    words: Words, asker: _Asker, branch: _Branch, env: Env, k: int, text: str
) -> tuple[Premise, Env]:
    """A premise after the failing one: tested by itself when all that it needs is known."""
    before = asker.atoms[: branch.depth]
    start = env
    for atom in [a for a in asker.atoms[branch.depth :] if a.premise == k]:
        if not any(v in env for v in variables(atom)):
            return Premise(text, "open", ""), start
        if isinstance(atom, Test) and not ready(atom, env):
            return Premise(text, "open", ""), start
        more = next(words.found.store.extend(atom, env), None)
        if more is None:
            told = Words(words.found, asker.rule, env, before)
            return Premise(text, "also fails", told.failure(atom)), start
        env = more
    told = Words(words.found, asker.rule, env, before)
    return Premise(text, "holds", told.held(k)), env


def _lemmas(egraph: EGraph, found: Evidence, table: str) -> list[Compiled]:
    """The rules that derive a relation."""
    if found.schema.tables[table].kind != "relation":
        return []
    return [
        r
        for s in programme_of(egraph).rulesets
        for r in s.rules
        if any(isinstance(a, List) and a.head == table for a in r.actions)
    ]


def _behind(
    egraph: EGraph, found: Evidence, atom: Row, env: Env, at: Place, deep: int
) -> WhyNot | None:
    """What became of the best rule that derives a fact, at what the fact is about."""
    best: WhyNot | None = None
    for lemma in _lemmas(egraph, found, atom.table):
        root = root_of(lemma)
        action = next(a for a in lemma.actions if isinstance(a, List) and a.head == atom.table)
        names = [str(x) for x in action.items[1:]]
        if root is None or root not in names:
            continue
        about = atom.args[names.index(root)]
        c = env.get(about.name) if isinstance(about, Var) else None
        if c is None or c not in found.found.number:
            continue
        name = lemma.name.removesuffix("=>").removesuffix("<=")
        where = Place(at.region, found.found.number[c], None, None, found.name(c))
        one = _ask(egraph, found, egraph.rule(name), lemma, where.eclass, where, deep)
        if best is None or (one.fired, one.satisfied) > (best.fired, best.satisfied):
            best = one
    return best


# --------------------------------------------------------------------------------- matches


def _matched(
    egraph: EGraph,
    found: Evidence,
    info: RuleInfo,
    rule: Compiled,
    asker: _Asker,
    c: int,
    label: str,
    atoms: tuple[str, ...],
    root: tuple[str, int] | None,
) -> WhyNot:
    """The answer when all premises hold: what the rule gave, or why it was not applied."""
    results = [(env, *given_by(found, rule, env)) for env in asker.whole]
    order = {"fired": 0, "known": 1, "held back": 2}
    judged = [
        (judged_as(egraph, found, info, c, given), env, given) for env, _, given in results
    ]
    (status, said, iteration), env, _ = min(judged, key=lambda j: order[j[0][0]])
    words = Words(found, rule, env, asker.atoms)
    premises = tuple(
        Premise(spelled(p), "holds", words.held(k)) for k, p in enumerate(rule.query.premises)
    )
    more = f" ({asker.tried} matches here)" if asker.tried > 1 else ""
    return WhyNot(
        info, label, status, said + more + ".", premises, words.bindings(), words.pattern(),
        iteration, asker.tried, None, atoms, len(atoms), root,
    )  # fmt: skip


__all__ = ["Premise", "WhyNot", "why_not"]
