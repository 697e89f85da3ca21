"""Products: which reductions get a register-tiled nest of their own, and which way round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal_lab.codegen import chains, terms
from luminal_lab.codegen.body import Body, Stmt
from luminal_lab.codegen.rename import dot_sides
from luminal_lab.codegen.windows import windows
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.machine import Machine


@dataclass(frozen=True)
class Product:
    """A sum of products with a nest of its own.

    Arguments:
        stmt: The reduction.
        left, right: Its operands: `left` has the row axes, `right` the column axes.
        row, col: The axes of the register tile.
        rows_tile, cols_tile: Its size.
        outer: Other row, column and batch axes, looped point by point around the tile.
    """

    stmt: Stmt
    left: Value
    right: Value
    row: str
    col: str
    rows_tile: int
    cols_tile: int
    outer: tuple[str, ...]


def products(body: Body, machine: Machine) -> tuple[Product, ...]:
    """The products of a kernel, in statement order."""
    body = body.tuned
    lanes = machine.vector_bytes // 4
    found = [p for s in body.stmts if (p := _product(s, body, lanes, machine))]
    on = chains.begun_by(chains.links(found, body.stmts))
    out = []
    for p in found:
        joint = {
            on.get(q.stmt.name, q.stmt.name)
            for q in found
            if q.stmt.space == p.stmt.space and q.stmt.over == p.stmt.over
        }
        out.append(_fit(p, len(joint), body, lanes, machine))
    return tuple(out)


def _sides(s: Stmt) -> tuple[Value, Value] | None:
    """The operands of a product; an online reduction's are its weights p and its w."""
    if s.kind == "online":
        x, c, w = s.values
        p = terms.op("exp2", terms.op("mul", c, x))
        over = frozenset(s.over)
        both = p.free & w.free
        return (p, w) if over <= both and p.free - w.free and w.free - p.free else None
    if s.kind != "reduce" or s.op != "add":
        return None
    sides = dot_sides(s.value, s.over)
    return sides and (terms.product(sides[0]), terms.product(sides[1]))


def _product(s: Stmt, body: Body, lanes: int, machine: Machine) -> Product | None:
    sides = _sides(s) if s.dtype is F32 else None
    if sides is None:
        return None
    left, right = sides
    only_left = left.free - right.free
    only_right = right.free - left.free
    col = _column(s, body, only_left, only_right, left, right)
    if s.kind == "online":
        if col in only_left:
            col = max(sorted(only_right), key=lambda a: body.extents[a])
    elif col in only_left:
        left, right, only_left, only_right = right, left, only_right, only_left
    row = max(
        sorted(only_left), key=lambda a: (min(body.extents[a], 64), -_stride(a, body, left))
    )
    rows = 1
    for a in only_left:
        rows *= body.extents[a]
    depth = 1
    for a in s.over:
        depth *= body.extents[a]
    constant = is_constant(right, body)
    if rows < 5 and not constant and (rows < 4 or not windows(right, body.extents)):
        return None
    if rows * depth < 64 or body.extents[col] < 4:
        return None
    outer = tuple(sorted(s.axes - {row, col}))
    return Product(s, left, right, row, col, 12, 32, outer)


def is_constant(v: Value, body: Body) -> bool:
    """Whether a term depends on constant buffers alone, and on no size of a call."""
    names = terms.reads(v)
    if v.free & body.symbolic or v.sized:
        return False
    return bool(names) and all(
        not n.startswith("%") and body.buffers[n].constant for n in names
    )


def _column(s: Stmt, body: Body, only_left, only_right, left: Value, right: Value) -> str:
    """The axis whose points become vector lanes of the accumulators."""
    candidates = sorted(only_left | only_right)
    for store in body.stores():
        for a in candidates:
            if store.index is not None and store.index.coef(a) == 1:
                return a
    for other in body.stmts:
        for a in candidates:
            if a in other.over and s.name in other.deps():
                return a
    for other in body.stmts:
        for a in candidates:
            if a in other.over:
                return a
    for a in candidates:
        side = left if a in only_left else right
        if any(terms.coefficient(v, a) == 1 for v in side_loads(side) if a in v.free):
            return a
    return max(candidates, key=lambda a: body.extents[a])


def _stride(axis: str, body: Body, side: Value) -> int:
    """How far apart the points of a row axis lie in what is stored, or else in its operand."""
    for store in body.stores():
        if store.index is not None and axis in store.axes:
            return abs(hint(store.index.coef(axis)))
    strides = [
        abs(hint(terms.coefficient(v, axis) or 0)) for v in side_loads(side) if axis in v.free
    ]
    return max(strides, default=0)


def side_loads(v: Value) -> list[Value]:
    """The loads of buffers in an operand."""
    from luminal_lab.egraph.values import postorder

    return [t for t in postorder([v]) if t.op == "load" and not t.attrs[0].startswith("%")]


def _fit(p: Product, joint: int, body: Body, lanes: int, machine: Machine) -> Product:
    """Choose the register tile: as many accumulators as the register file holds."""
    room = {32: 26, 16: 12}.get(machine.registers, max(4, machine.registers - 6)) // joint
    n, m = body.extents[p.col], body.extents[p.row]
    cols = 2 * lanes
    if n <= lanes:
        cols = lanes
    elif n % (2 * lanes) and n % (3 * lanes) == 0:
        cols = 3 * lanes
    elif n == 4 * lanes and m <= 8:
        cols = 4 * lanes
    if m <= 4:
        cols = min(max(cols, 4 * lanes), -(-n // lanes) * lanes)
    rows = max(1, min(room // (cols // lanes), 24 if cols == lanes else 12))
    most = max(1, (room + 2) // (cols // lanes))
    if m < rows:
        rows = m
    elif m % rows and m % most == 0:
        rows = most
    elif m % rows and m <= 96:  # few rows: a tail would cost much, a smaller tile little
        even = max((r for r in range(1, rows + 1) if m % r == 0), default=1)
        if even * 2 >= rows:
            rows = even
    return replace(p, rows_tile=rows, cols_tile=cols)
