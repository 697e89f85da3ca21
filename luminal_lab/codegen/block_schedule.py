"""Which axes are cut into blocks, and how large the blocks are, for block programs.

Every axis gets one role, from what the statements do with it and never from what the kernel is:

* a *grid* axis is an output axis that nothing reduces; a program computes one block of it;
* a *serial* axis is looped over inside a program, block by block or point by point;
* every other axis is *whole*: its block is its extent.

A block is wider than one point along few axes: the rows, columns and depth of a product, the
axis of a reduction, and the axis along which memory is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Body, Stmt
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.search.machine import Machine

LIMIT = 1 << 14  # points of one statement's block
WHOLE = 1 << 13  # longest reduced axis that is kept whole
POINTS = 1 << 10  # points of a block without reductions


def pow2(n: int) -> int:
    """The smallest power of two that is not below `n`."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class Sides:
    """A sum of products: `rows` are axes of the left factors only, `cols` of the right."""

    left: tuple[Value, ...]
    right: tuple[Value, ...]
    rows: frozenset[str]
    cols: frozenset[str]


def sides(
    value: Value, over: Iterable[str], seen: frozenset[str] | None = None
) -> Sides | None:
    """The two sides of a product that is summed over `over`, or None when it has not two.

    Factors are divided so that each side has an axis that the other lacks, and both have an
    axis that is summed. Only axes in `seen` count (None: all); a factor with no axis that only
    one side has goes to the left.
    """
    factors = terms.factors(value)
    summed = frozenset(over) if seen is None else frozenset(over) & seen
    free = [f.free if seen is None else f.free & seen for f in factors]
    if len(factors) < 2 or not summed:
        return None
    best: tuple[int, int] | None = None
    for i in range(len(factors)):
        for j in range(i + 1, len(factors)):
            both = free[i] & free[j] & summed
            if both and free[i] - free[j] - summed and free[j] - free[i] - summed:
                best = best or (i, j)
    if best is None:
        return None
    left, right = [best[0]], [best[1]]
    lf, rf = free[best[0]], free[best[1]]
    for k in range(len(factors)):
        if k in best:
            continue
        if free[k] <= lf:
            left.append(k)
        elif free[k] <= rf:
            right.append(k)
        else:
            return None
    pick = [tuple(factors[k] for k in sorted(side)) for side in (left, right)]
    return Sides(pick[0], pick[1], lf - rf - summed, rf - lf - summed)


def stmt_sides(s: Stmt) -> Sides | None:
    """The sides of a reduction's product; an online one multiplies its weights with its w."""
    if s.kind == "reduce" and s.op == "add" and s.dtype.kind != "bool":
        return sides(s.value, s.over)
    if s.kind == "online":
        score, c, w = s.values
        weights = frozenset(score.free | c.free)
        rows, cols = weights - w.free - {s.over[0]}, w.free - weights
        if s.over[0] in w.free and rows and cols:
            return Sides((score,), (w,), rows, cols)
    return None


@dataclass
class _Roles:
    """Axes that get blocks wider than a point."""

    row_col: dict[str, None]
    depth: dict[str, None]
    reduced: dict[str, None]
    lanes: dict[str, None]


def block_schedule(body: Body, machine: Machine | None = None):
    """The default schedule of a block program.

    Arguments:
        body: The kernel's statements.
        machine: Not read: blocks follow from the body; what a device adds (warps, stages) is
            chosen by the renderer.

    Returns:
        A `Schedule` of style `block`: its `grid` and `serial` name the axes that are cut; all
        others are whole.
    """
    from luminal_lab.codegen.schedule import Schedule

    roles = _roles(body)
    size = _sizes(body, roles)
    reduced = _reduced(body)
    stored = frozenset().union(*(s.axes for s in body.stores()))
    order = _axis_order(body)
    grid = []
    serial = []
    for axis in order:
        n = body.extents[axis]
        if axis in stored and axis not in reduced:
            if size[axis] < n:
                grid.append((axis, size[axis]))
        elif size[axis] < n:
            serial.append((axis, size[axis]))
    return Schedule("block", tuple(grid), tuple(serial))


def _reduced(body: Body) -> frozenset[str]:
    return frozenset(a for s in body.stmts for a in s.over)


def _axis_order(body: Body) -> list[str]:
    """All axes: those of the largest store by stride, then the others as they appear."""
    out: dict[str, None] = {}
    for s in body.stores():
        stride = {a: abs(s.index.coef(a)) if s.index is not None else 0 for a in s.axes}
        ordered = sorted(s.axes, key=lambda a: (-(stride[a] or 1 << 62), a))
        out.update(dict.fromkeys(ordered))
    for s in body.stmts:
        out.update(dict.fromkeys(sorted(s.axes)))
        out.update(dict.fromkeys(s.over))
    return list(out)


def _stride(s: Stmt, axis: str) -> int:
    """The least stride of an axis in what a statement touches; 0 when it is absent."""
    found = []
    if s.index is not None and s.index.coef(axis):
        found.append(abs(s.index.coef(axis)))
    for v in postorder(s.values):
        if v.op == "load" and not v.attrs[0].startswith("%"):
            c = abs(v.attrs[1][0].coef(axis))
            if c:
                found.append(c)
    return min(found, default=0)


def _pick(axes: Iterable[str], s: Stmt, body: Body) -> str | None:
    """The axis to cut into wide blocks: long, and contiguous rather than strided."""
    axes = [a for a in sorted(axes) if body.extents[a] > 1]

    def rank(a: str) -> tuple:
        n, stride = body.extents[a], _stride(s, a)
        return (min(n, 32), stride == 1, n, a)

    return max(axes, key=rank, default=None)


def _roles(body: Body) -> _Roles:
    roles = _Roles({}, {}, {}, {})
    for s in body.stmts:
        found = stmt_sides(s)
        if found is not None:
            for group, role in (
                (found.rows, roles.row_col),
                (found.cols, roles.row_col),
                (frozenset(s.over), roles.depth),
            ):
                if axis := _pick(group, s, body):
                    role.setdefault(axis)
        elif s.over and (axis := _pick(s.over, s, body)):
            roles.reduced.setdefault(axis)
    wide = {*roles.row_col, *roles.depth, *roles.reduced}
    kept = frozenset().union(*(s.axes for s in body.stmts if s.over))
    most = max((_extent(s, body) for s in body.stmts if s.over), default=0)
    for s in body.stmts:
        if s.kind == "store" and 8 * _extent(s, body) <= most and s.axes <= kept:
            continue  # what is written is small beside what is read
        lane = [a for a in sorted(s.space) if body.extents[a] > 1 and _stride(s, a) == 1]
        if s.kind == "store" and not lane:
            lane = [a for a in (_pick(s.axes, s, body),) if a]
        if not (frozenset(lane) & wide) and (s.kind == "store" or s.over):
            best = max(lane, key=lambda a: (body.extents[a], a), default=None)
            if best is not None and best in s.axes:
                roles.lanes.setdefault(best)
        if s.kind == "store" and not wide:
            for a in lane:
                roles.lanes.setdefault(a)
    return roles


def _extent(s: Stmt, body: Body) -> int:
    out = 1
    for a in s.space:
        out *= body.extents[a]
    return out


def _sizes(body: Body, roles: _Roles) -> dict[str, int]:
    extents, reduced = body.extents, _reduced(body)
    size = dict.fromkeys(_axis_order(body), 1)
    low = all(b.dtype.bits <= 16 for b in body.buffers.values() if b.dtype.is_float)
    for axis in roles.lanes:
        step = POINTS if len(roles.lanes) == 1 and not reduced else 128 if reduced else 64
        size[axis] = min(pow2(extents[axis]), step)
    for axis in roles.reduced:
        n = pow2(extents[axis])
        size[axis] = max(size[axis], n if n <= WHOLE else WHOLE // 4)
    for axis in roles.depth:
        n = max(16, pow2(extents[axis]))
        size[axis] = n if n <= 128 else 64 if low else 32
    for axis in roles.row_col:
        n = max(16, pow2(extents[axis]))
        if axis not in reduced and _repeats(axis, body):
            size[axis] = max(size[axis], min(n, 256))
        else:
            size[axis] = max(size[axis] if axis not in roles.reduced else 1, min(n, 64))
    for axis in _product_rows(body, roles):
        # Cut, the product would be computed again in each of the row's loops.
        size[axis] = pow2(extents[axis])
        for other in roles.row_col:
            if other != axis:
                size[other] = min(size[other], max(16, LIMIT // 2 // size[axis]))
        for other in roles.depth:
            size[other] = min(size[other], 16 if size[axis] > 256 else 32)
    _few_points(body, roles, size)
    _fit(body, roles, size)
    return size


def _repeats(axis: str, body: Body) -> bool:
    """Whether cutting an output axis would repeat a reduction that does not depend on it."""
    return any(axis not in s.axes and stmt_sides(s) is not None for s in body.stmts)


def _product_rows(body: Body, roles: _Roles) -> list[str]:
    """Axes of a product's result that are both reduced and stored, if they are short."""
    stored = frozenset(a for s in body.stores() for a in s.axes)
    rows = stored & _reduced(body) & frozenset(roles.row_col)
    found = [a for a in sorted(rows) if pow2(body.extents[a]) <= WHOLE // 8]
    return [
        a for a in found if any(a in s.axes and stmt_sides(s) is not None for s in body.stmts)
    ]


def _few_points(body: Body, roles: _Roles, size: dict[str, int]) -> None:
    """Short rows: several rows to a program."""
    if roles.row_col or not body.stores():
        return
    store = max(body.stores(), key=lambda s: len(s.axes))
    points = max((_points(s, size) for s in body.stmts), default=1)
    free = [a for a in _axis_order(body) if a in store.axes and a not in _reduced(body)]
    for axis in reversed(free):
        if points * 2 > POINTS // 2:
            return
        if size[axis] == 1:
            size[axis] = min(pow2(body.extents[axis]), POINTS // 2 // points)
            points *= size[axis]


def _points(s: Stmt, size: dict[str, int]) -> int:
    out = 1
    for a in s.space:
        out *= size[a]
    return out


def _fit(body: Body, roles: _Roles, size: dict[str, int]) -> None:
    """Shrink blocks until no statement holds more than `LIMIT` points at once."""
    for s in body.stmts:
        space = dict.fromkeys(sorted(s.space))
        found = stmt_sides(s)
        while True:
            points = 1
            for a in space:
                points *= size[a]
            if found is not None:  # a product never exists as a block of all its axes
                depth = max((size[a] for a in s.over), default=1)
                if _is_matrix(found, s, size):
                    points //= depth
            if points <= LIMIT:
                break
            widest = max(space, key=lambda a: (size[a], a))
            if size[widest] <= 1:
                break
            size[widest] //= 2


def _is_matrix(found: Sides, s: Stmt, size: dict[str, int]) -> bool:
    """Whether a product is two-dimensional in the axes that have blocks."""
    wide = [frozenset(a for a in g if size[a] > 1) for g in (found.rows, found.cols, s.over)]
    rest = frozenset(a for a in s.axes if size[a] > 1) - wide[0] - wide[1]
    return all(len(g) == 1 for g in wide) and not rest
