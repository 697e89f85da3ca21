"""Loop bounds from predicates: blocks of an axis that cannot contribute are not visited.

A term `select(p, x, identity)` contributes nothing where `p` is false. When `p` is a
conjunction of affine inequalities over axes (causal masks, windows, padding), the blocks of the
loop's axis where it can be true form an interval, whose ends are affine in the outer blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from luminal_lab.codegen.body import Stmt, identity
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.index import Index


def loop_bounds(
    axis: str, group: Iterable[Stmt], extents: Mapping[str, int], bound: Mapping[str, int]
) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    """The `lo` and `hi` of a loop over `axis` that the statements of `group` share.

    Arguments:
        axis: The axis of the loop.
        group: Statements that get their contributions from it.
        extents: The extent of every axis.
        bound: Points in the block of each axis that has a loop outside of this one.

    Returns:
        Forms over the first points of the outer axes' blocks: the loop begins at the maximum of
        `lo` (at the block that contains it) and ends before the minimum of `hi`.
    """
    common: dict[Index, None] | None = None
    for s in group:
        mine = dict.fromkeys(c for c in _needed(s) if abs(c.coef(axis)) == 1)
        common = mine if common is None else {c: None for c in common if c in mine}
    lo: list[Index] = []
    hi: list[Index] = []
    for c in common or ():
        rest = c - Index.axis(axis) * c.coef(axis)
        if not rest.is_affine or axis in rest.axes:
            continue
        if c.coef(axis) > 0:  # axis <= -rest
            hi.append(_extreme(-rest, extents, bound, largest=True) + 1)
        else:  # axis >= rest
            lo.append(_extreme(rest, extents, bound, largest=False))
    return tuple(lo), tuple(hi)


def _extreme(
    index: Index, extents: Mapping[str, int], bound: Mapping[str, int], *, largest: bool
) -> Index:
    """The extreme over the points of the blocks, as a form over their first points."""
    for a in sorted(index.axes):
        at_end = (index.coef(a) > 0) == largest
        last = bound.get(a, extents[a]) - 1 if at_end else 0
        first = Index.axis(a) if a in bound else Index.num(0)
        index = index.substitute({a: first + last}, extents)
    return index


def _needed(s: Stmt) -> list[Index]:
    """Forms that are <= 0 wherever a statement gets a contribution."""
    if s.kind == "online":
        return _where(s.values[0], float("-inf"))
    if s.kind == "reduce":
        return _where(s.value, identity(s.op, s.dtype))
    return []


def _where(v: Value, nothing: object) -> list[Index]:
    if v.op != "select":
        return []
    condition, yes, no = v.args
    if _is(no, nothing):
        return [*(conjunction(condition) or []), *_where(yes, nothing)]
    if _is(yes, nothing):
        return [*(conjunction(condition, negated=True) or []), *_where(no, nothing)]
    return []


def _is(v: Value, number: object) -> bool:
    return v.op == "const" and v.attrs[0] == number and not isinstance(v.attrs[0], bool)


def conjunction(v: Value, *, negated: bool = False) -> list[Index] | None:
    """Forms that are all <= 0 where a condition holds (not always all such), or None."""
    if v.op == "lessthan" and all(a.op in ("iota", "const") for a in v.args):
        a, b = (_affine(x) for x in v.args)
        if a is None or b is None:
            return None
        return [b - a] if negated else [a - b + 1]
    if v.op == "mul" and not negated and v.dtype.kind == "bool":  # and
        found = [conjunction(a) for a in v.args]
        return [c for f in found if f for c in f] or None
    if v.op == "add" and negated and v.dtype.kind == "bool":  # not (a or b)
        found = [conjunction(a, negated=True) for a in v.args]
        return [c for f in found if f for c in f] or None
    if v.op == "select" and v.dtype.kind == "bool":
        condition, yes, no = v.args
        if yes.op == no.op == "const" and bool(yes.attrs[0]) != bool(no.attrs[0]):
            return conjunction(condition, negated=negated != (not yes.attrs[0]))
    return None


def _affine(v: Value) -> Index | None:
    if v.op == "const":
        return Index.num(v.attrs[0]) if isinstance(v.attrs[0], int) else None
    return v.attrs[0]
