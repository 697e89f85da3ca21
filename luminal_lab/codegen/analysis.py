"""What schedules and the lowering ask about statements: strides, phases, vector axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Body, Stmt
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.sizes import hint

HEAVY = 24  # instructions for one point from which on a statement is heavy
LINE = 64  # bytes of a cache line


def points(axes: Iterable[str], extents: Mapping[str, Any]) -> Any:
    """Number of points of an iteration space, a Dim."""
    out = 1
    for a in axes:
        out *= extents[a]
    return out


def by_stride(store: Stmt) -> list[str]:
    """The axes of a store, largest stride first."""
    index = store.index
    assert index is not None

    def stride(a: str) -> int:
        return abs(hint(index.coef(a))) or (1 << 30)

    return sorted(store.axes, key=lambda a: (-stride(a), a))


def is_heavy(s: Stmt, along: str | None = None) -> bool:
    """Whether a statement does so much arithmetic that unrolling it far only spills.

    Arguments:
        s: The statement.
        along: Count only what differs between the points of this axis.
    """
    return any(terms.work(v, along) > HEAVY for v in s.values)


def loads(s: Stmt) -> list[Value]:
    """The distinct loads of a statement."""
    return [v for v in postorder(s.values) if v.op == "load"]


def scalar_axes(s: Stmt) -> frozenset[str]:
    """Axes of a store that cannot be vectors.

    Points of a scatter meet there, or go where data say; a guard decides there.
    """
    if not s.scatter:
        return frozenset().union(*(g.axes for g in s.guard))
    return frozenset(s.ordered).union(*(v.free for v in s.values[1:]))


def vector_axis(s: Stmt, body: Body, last: Mapping[str, str] = {}) -> str | None:
    """The axis of a statement's space whose points should become vector lanes, if any.

    Unit stride in what is written counts most, then unit strides of loads; a gather costs.

    Arguments:
        s: The statement.
        body: Its kernel, with hints for the extents that a call decides.
        last: The innermost axis of the memory layout of locals, by name.
    """
    best, best_score = None, 0.0
    for a in sorted(s.space - scalar_axes(s)):
        if body.extents[a] < 2:
            continue
        score = 0.0
        if s.index is not None and a in s.axes:
            c = terms.coefficient(terms.remake(_DUMMY, (), ("", (s.index,))), a)
            score += 3.0 if c == 1 else -1.0
        elif s.kind != "store" and last.get(s.target or s.name) == a:
            score += 2.0 if s.axes == s.space else 0.25
        for v in loads(s):
            if a not in v.free:
                continue
            if any(a in arg.free for arg in v.args):
                score -= 1.0
            elif v.attrs[0].startswith("%"):
                unit = last.get(v.attrs[0]) == a
                score += (1.5 if v.free == s.space else 0.5) if unit else -0.25
            else:
                c = terms.coefficient(v, a)
                weight = 2.0 if points(v.free, body.extents) > 4096 else 1.0
                score += weight if c == 1 else -0.5 * weight
        if score == 0.0 and not loads(s):
            score = 0.5
        if body.extents[a] < 8:
            score -= 1.5
        score += min(body.extents[a], 64) / 1024
        if score > best_score:
            best, best_score = a, score
    return best


def crossed(s: Stmt, vector: str | None, body: Body) -> tuple[str, int] | None:
    """The axis along which a large operand lies, when vectors cross it.

    Every lane of such a vector comes from a line of its own, and the line's other points are
    those along this axis.

    Returns:
        The axis, and its points in a line.
    """
    if vector is None:
        return None
    for v in loads(s):
        if v.args or vector not in v.free or v.attrs[0] not in body.buffers:
            continue
        line, step = LINE // v.dtype.bytes, terms.coefficient(v, vector)
        if step is None or abs(hint(step)) < line or points(v.free, body.extents) <= 4096:
            continue
        for a in sorted(v.free - {vector}):
            if terms.coefficient(v, a) == 1 and body.extents[a] > 1:
                return a, line
    return None


def turns(s: Stmt, vector: str, line: str) -> bool:
    """Whether all that crosses vectors lies along `line`, of a type that is transposed."""
    return all(
        not v.args
        and terms.coefficient(v, line) == 1
        and v.dtype.bytes <= 4
        and v.dtype.kind != "bool"
        for v in loads(s)
        if vector in v.free and terms.coefficient(v, vector) != 1
    )


_DUMMY = Value("load", (), ("", ()), dtype=terms.I64)


def runs(
    stmts: Sequence[Stmt], axis: str, parallel: bool = False
) -> list[tuple[bool, list[Stmt]]]:
    """Statements in execution order around the loops over one axis.

    What does not depend on the axis comes before its first loop or between two of them; the
    *phase* of a statement is the number of loops that must end before it. Each entry says
    whether its statements go into a loop over the axis. A `parallel` loop holds no reduction
    over its own axis.
    """
    time: dict[str, int] = {}
    ends: dict[str, bool] = {}  # statements whose result exists only after their loop
    buckets: dict[int, list[Stmt]] = {}
    for s in stmts:
        looped = axis in s.axes if parallel else axis in s.space
        t = int(looped)
        for d in s.deps():
            if d not in time:
                continue
            if time[d] % 2 == 1 and (not looped or ends[d]):
                t = max(t, time[d] + 1)
            else:
                t = max(t, time[d])
        if t % 2 != int(looped):
            t += 1
        name = s.name
        time[name] = max(t, time.get(name, 0))
        ends[name] = axis in s.over or ends.get(name, False)
        if s.target:
            time[s.target], ends[s.target] = t, ends[name]
        buckets.setdefault(t, []).append(s)
    return [(t % 2 == 1, buckets[t]) for t in sorted(buckets)]


def has_shared_phases(body: Body) -> bool:
    """Whether an expensive value is needed in more than one phase."""
    return bool(shared_values(body.stmts))


def shared_values(stmts: Sequence[Stmt]) -> list[Value]:
    """Maximal expensive terms needed in more than one phase.

    These are used by two statements of
    which one reduces an axis of the term.
    """
    users: dict[Value, list[Stmt]] = {}
    for s in stmts:
        if s.kind == "online":
            continue
        for v in maximal_expensive(s.value):
            users.setdefault(v, []).append(s)
    out = []
    for v, used in users.items():
        if len(used) > 1 and any(set(s.over) & v.free for s in used):
            out.append(v)
    return out


def maximal_expensive(root: Value) -> list[Value]:
    """Terms whose own op is expensive, outermost first, none inside another."""
    out: dict[Value, None] = {}
    stack = [root]
    seen: set[Value] = set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op in terms.EXPENSIVE and v.op != "recip":
            out.setdefault(v)
            continue
        stack.extend(v.args)
    return list(out)


def has_columns(body: Body) -> bool:
    """Whether a reduction runs across the vector axis of its result."""
    for s in body.stmts:
        if s.kind in ("reduce", "carry"):
            v = vector_axis(s, body)
            if v is not None and v in s.axes:
                return True
    return False
