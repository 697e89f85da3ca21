"""Nests: which statements share loops below the shared ones, and in which order of loops.

A *nest* is the loop order of one product, or of one group of everything else. Statements are
dealt to groups in order; each group has at most one vector axis per statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from luminal_lab.codegen import analysis, terms
from luminal_lab.codegen.body import Stmt
from luminal_lab.codegen.dots import Product
from luminal_lab.hlir.sizes import hint

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Entry, Lowering, Scope


BUSY = 64  # instructions for one point from which on its loop is not unrolled for a transpose


@dataclass
class Group:
    """Statements of one nest, and the order of its loops."""

    stmts: list[Stmt] = field(default_factory=list)
    product: Product | None = None
    vectors: set[str] = field(default_factory=set)
    order: list[Entry] = field(default_factory=list)


def groups(stmts: Sequence[Stmt], scope: Scope, low: Lowering) -> list[Group]:
    """Deal statements to nests, in order."""
    out: list[Group] = []
    where: dict[str, int] = {}
    for s in _products_late(stmts, low):
        first = max((where[d] for d in s.deps() if d in where), default=0)
        p = low.products.get(s.name) if s.kind == "reduce" else None
        vector = None if p else _vector(s, scope, low)
        at = next(
            (k for k in range(first, len(out)) if _joins(s, p, vector, out[k], scope, low)),
            None,
        )
        if at is None:
            at = len(out)
            out.append(Group(product=p))
        g = out[at]
        g.stmts.append(s)
        if vector and not g.product:
            g.vectors.add(vector)
        lanes = g.product.col if g.product else vector
        if lanes and s.kind in ("set", "reduce"):
            low.prefer_last(s.target or s.name, lanes)
        for name in (s.name, s.target):
            if name:
                where[name] = max(at, where.get(name, 0))
    for g in out:
        g.order = _product_order(g, low) if g.product else _plain_order(g, scope, low)
    return out


def _products_late(stmts: Sequence[Stmt], low: Lowering) -> list[Stmt]:
    """An order in which everything that does not need a product comes before it.

    What a product's epilogue reads is then known when its nest begins.
    """
    left, out = list(stmts), []
    waiting = {name for s in stmts for name in (s.name, s.target) if name}
    position = {id(s): k for k, s in enumerate(stmts)}
    writers: dict[str, list[Stmt]] = {}
    for s in stmts:
        for name in {s.name, s.target} - {""}:
            writers.setdefault(name, []).append(s)

    def ready(s: Stmt) -> bool:
        return not any(
            id(w) in waits and position[id(w)] < position[id(s)]
            for d in s.deps()
            if d in waiting
            for w in writers[d]
        )

    waits = set(position)
    while left:
        able = [s for s in left if ready(s)]
        plain = [s for s in able if s.kind == "set" or s.name not in low.products]
        plain = [s for s in plain if s.kind != "store"] or plain
        chosen = (plain or able)[0]
        out.append(chosen)
        left = [s for s in left if s is not chosen]
        waits.discard(id(chosen))
    return out


def _vector(s: Stmt, scope: Scope, low: Lowering) -> str | None:
    block = {a: min(low.hints[a], scope.step(a, low.hints)) for a in s.space}
    body = replace(low.body, extents={**low.hints, **block})
    name = s.target or s.name
    last = {n: a for n, a in low.last.items() if n != name or n in low.fixed}
    return analysis.vector_axis(s, body, last)


def _joins(
    s: Stmt, p: Product | None, vector: str | None, g: Group, scope: Scope, low: Lowering
):
    if (p is not None or g.product is not None) and any(t.scatter for t in (s, *g.stmts)):
        return False  # its order of loops is its own
    if p is not None:
        q = g.product
        if q is None:
            return False
        if any(s.target == t.name for t in g.stmts):
            return True  # it goes on from that one
        if not fits(q, p):
            return False
        joint = sum(1 for t in g.stmts if t.kind == "reduce" and not t.target) + 1
        room = {32: 28, 16: 13}.get(low.machine.registers, low.machine.registers - 4)
        return joint * q.rows_tile * (q.cols_tile // low.lanes) <= room
    if g.product is not None:
        inside = {t.name for t in g.stmts}
        tile_axes = g.stmts[0].axes
        return (
            s.kind != "reduce" and s.space == tile_axes and any(d in inside for d in s.deps())
        )
    wide = g.vectors | ({vector} if vector else set())
    loops = _loops(s, scope, low)
    if any(wide & analysis.scalar_axes(t) for t in (*g.stmts, s)):
        return False
    if any(len(wide & _loops(t, scope, low)) > 1 for t in (*g.stmts, s)):
        return False
    shared = any(loops & _loops(t, scope, low) for t in g.stmts)
    return bool(shared) or not loops


def fits(p: Product, q: Product) -> bool:
    """Whether two products have the same loops, so that one nest can hold both."""
    return (p.row, p.col, p.stmt.space, p.stmt.over) == (
        q.row,
        q.col,
        q.stmt.space,
        q.stmt.over,
    )


def _loops(s: Stmt, scope: Scope, low: Lowering) -> set[str]:
    return {a for a in s.space if scope.step(a, low.hints) > 1 and low.hints[a] > 1}


def _product_order(g: Group, low: Lowering) -> list[Entry]:
    from luminal_lab.codegen.lower import Entry

    p = g.product
    assert p is not None
    first = g.stmts[0]
    rows = p.left.free - p.right.free  # they share the panels of a column block
    order = [Entry(a, 1, "inner") for a in sorted(first.axes - rows - {p.row, p.col})]
    order.append(Entry(p.col, p.cols_tile, "inner", True))
    order += [Entry(a, 1, "inner") for a in row_axes(p, first.axes)]
    order.append(Entry(p.row, p.rows_tile, "inner"))
    over = dict.fromkeys(a for s in g.stmts if s.kind == "reduce" for a in s.over)
    order += [Entry(a, 1, "inner") for a in over]
    return order


def row_axes(p: Product, axes: frozenset[str]) -> list[str]:
    """The row axes of a product beside the tile's own."""
    return sorted((p.left.free - p.right.free) & axes - {p.row, p.col})


def _plain_order(g: Group, scope: Scope, low: Lowering) -> list[Entry]:
    """Row axes, reduced axes, then vector axes; wide accumulators for reductions of columns."""
    from luminal_lab.codegen.lower import Entry

    space = sorted(set().union(*(s.space for s in g.stmts)))
    reduced = {a for s in g.stmts for a in s.over}
    vectors = [a for a in space if a in g.vectors]
    vectors.sort(key=lambda a: (a not in reduced, a))
    rows = [a for a in space if a not in reduced and a not in vectors]
    ordered = list(dict.fromkeys(a for s in g.stmts for a in s.ordered))
    rows.sort(key=lambda a: (a in ordered and ordered.index(a) + 1, -_reach(a, g), a))
    inner = [a for a in space if a in reduced and a not in vectors]
    inner.sort(key=lambda a: (-_reach(a, g), a))
    lanes = low.lanes
    if (crossing := _crossing(g, rows, vectors, low)) is not None:
        (v,), (u, line) = vectors, crossing
        order = [Entry(a, 1, "inner") for a in rows if a != u]
        if scope.step(u, low.hints) > line:
            order.append(Entry(u, line, "inner"))
        # a block of as many points as a vector has lanes is transposed in registers
        work = sum(terms.work(x, v) for s in g.stmts for x in s.values)
        turns = work <= BUSY and all(analysis.turns(s, v, u) for s in g.stmts)
        order.append(Entry(v, min(lanes, _granule(v, g) or lanes), "inner", True))
        return [*order, Entry(u, lanes if turns else 1, "inner")]
    order = [Entry(a, 1, "inner") for a in rows]
    unroll = low.schedule.unroll
    if any(analysis.is_heavy(s) for s in g.stmts):
        unroll = min(unroll, 2)
    block, steps = low.schedule.column_block
    columns = [v for v in vectors if any(s.over and v in s.axes for s in g.stmts)]
    for v in columns:
        if scope.step(v, low.hints) > block:
            order.append(Entry(v, block, "inner", True))
    only = len(g.stmts) <= 2 and len(inner) == 1 and columns
    for a in inner:
        order.append(Entry(a, min(steps, low.hints[a]) if only else 1, "inner"))
    for v in vectors:
        size = scope.step(v, low.hints)
        wide = max(1, min(unroll, -(-size // lanes)))
        granule = _granule(v, g)
        step = lanes * wide
        if granule and step > granule:
            step = granule
        order.append(Entry(v, step, "inner", True))
    return order


def _crossing(
    g: Group, rows: Sequence[str], vectors: Sequence[str], low: Lowering
) -> tuple[str, int] | None:
    """The axis along which operands of a plain group lie, when its vectors cross them.

    Every lane of such a vector comes from a line of its own. The other points of these lines
    are used next, before the lines are gone: the axis is innermost, in blocks of a line.

    Returns:
        The axis and its points in a line.
    """
    if len(vectors) != 1 or any(s.over or s.ordered or s.scatter for s in g.stmts):
        return None
    body = replace(low.body, extents=low.hints)
    for s in g.stmts:
        found = analysis.crossed(s, vectors[0], body)
        if found is not None and found[0] in rows:
            return found
    return None


def _granule(axis: str, g: Group) -> int:
    """The panel width of an axis in the layouts that the group writes."""
    out = 0
    for s in g.stmts:
        for a, step in s.layout:
            if a == axis and step > 1:
                out = step
    return out


def _reach(axis: str, g: Group) -> int:
    """The largest stride of an axis, to put far jumps outside."""
    out = 0
    for s in g.stmts:
        if s.index is not None:
            out = max(out, abs(hint(s.index.coef(axis))))
        for v in analysis.loads(s):
            if not v.attrs[0].startswith("%") and axis in v.free:
                out = max(out, abs(hint(terms.coefficient(v, axis) or 0)))
    return out
