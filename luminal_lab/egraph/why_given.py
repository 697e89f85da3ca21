"""What a rule's action gives where its premises hold, and whether the e-graph has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.evidence import Evidence
from luminal_lab.egraph.language import datum
from luminal_lab.egraph.primitives import call as primitive
from luminal_lab.egraph.queries import literal
from luminal_lab.egraph.replay import Compiled
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.egraph.sexpr import Atom, Expr, List
from luminal_lab.egraph.tables import Env
from luminal_lab.egraph.witness import witness

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph

_REPLAYED = 4000  # e-nodes of a region up to which the iteration of a firing is looked up


@dataclass(frozen=True)
class Given:
    """What a rule's action gives under a substitution.

    Arguments:
        text: In words.
        eclass: egglog's class of it, None when it is not in the e-graph.
        row: Its row, when it is built.
        united: Whether it is where the rule wants it.
        fact: Whether it is a fact and no term.
    """

    text: str
    eclass: int | None
    row: tuple[str, tuple] | None
    united: bool
    fact: bool = False


def given_by(found: Evidence, rule: Compiled, env: Env) -> tuple[bool, Given]:
    """What a rule gives under a substitution, and whether the e-graph has it there."""
    for action in rule.actions:
        if not isinstance(action, List):
            continue
        if action.head == "union":
            left, _ = _lookup(found, env, action.items[1])
            right, row = _lookup(found, env, action.items[2])
            text = found.row(*row, 1) if row is not None else None
            if text is None:
                text = found.name(right) if right is not None else str(action.items[2])
            united = right is not None and left == right
            return united, Given(text, right, row, united)
        if action.head in found.schema.tables:
            key = tuple(_lookup(found, env, x)[0] for x in action.items[1:])
            known = None not in key and key in found.store.tables[action.head].values
            text = found.row(action.head, key) if None not in key else str(action)
            return known, Given(text, None, None, known, True)
    return True, Given(str(rule.actions[0]) if rule.actions else "nothing", None, None, True)


def _lookup(found: Evidence, env: Env, e: Expr) -> tuple[Any, tuple[str, tuple] | None]:
    """The value of an expression of an action, and the row when it is a term that is there."""
    if isinstance(e, Atom):
        value = literal(e)
        return (env.get(e.text) if value is None else value), None
    args = tuple(_lookup(found, env, x)[0] for x in e.items[1:])
    if any(a is None for a in args):
        return None, None
    table = found.schema.tables.get(e.head)
    if table is None:
        return primitive(e.head, args), None
    value = found.store.tables[e.head].values.get(args)
    return value, (e.head, args) if value is not None else None


def judged_as(
    egraph: EGraph, found: Evidence, info: RuleInfo, c: int, given: Given
) -> tuple[str, str, int | None]:
    """What became of a match in class `c`: a status of `WhyNot`, in words, the iteration."""
    part = found.part
    if given.fact and given.united:
        return "fired", f"it fired: {given.text} is known", None
    if not given.united:
        return "held back", _held_back(egraph, found, info), None
    k = found.found.number.get(given.eclass) if given.eclass is not None else None
    if given.row is not None and k is not None:
        for node, source in zip(found.found.classes[k].nodes, found.found.sources[k]):
            if source[0] == given.row[0] and _same_row(found, source, given.row):
                if node.rule == info.name:
                    said = f"it fired in iteration {node.iteration}, giving {given.text}"
                    return "fired", said, node.iteration
                maker = f"{node.rule} in iteration {node.iteration}"
                by = "the program itself" if node.rule == "encode" else f"rule {maker}"
                when = _iteration(egraph, part, info.name, c)
                told = f" in iteration {when}" if when is not None else ""
                return "known", f"it fires{told}; {given.text} is made by {by}", when
    when = _iteration(egraph, part, info.name, c)
    told = f" in iteration {when}" if when is not None else ""
    return "fired", f"it fired{told}, giving {given.text}", when


def _same_row(found: Evidence, source: tuple[str, tuple], row: tuple[str, tuple]) -> bool:
    sorts = found.schema.tables[row[0]].args
    left = [datum(s, a) for s, a in zip(sorts, source[1])]
    return list(row[1]) == left


def _iteration(egraph: EGraph, part: Any, rule: str, c: int) -> int | None:
    """When a rule united something with a class first, by the replay."""
    if part.size > _REPLAYED:
        return None
    replayed = witness(egraph, part.region)
    names = (rule, f"{rule}=>", f"{rule}<=")
    found: Iterator[int] = (
        e.iteration
        for edges in replayed.replay.edges
        for e in edges
        if e.rule in names and replayed.class_of(e.left) == c
    )
    return min(found, default=None)


def _held_back(egraph: EGraph, found: Evidence, info: RuleInfo) -> str:
    report = found.part.report
    if info.cap is not None:
        return (
            f"all premises hold, but the rule is capped: in an iteration with more than"
            f" {info.cap} matches it is skipped, and saturation ended with"
            f" {report.stopped!r}"
        )
    return (
        f"all premises hold, but saturation stopped before it was applied:"
        f" {report.stopped} after {report.iterations[-1].number} iterations"
    )
