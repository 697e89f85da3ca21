"""What is computed once and where products find their operands: statements before any loop.

`hoist` and `keep_values` give expensive terms statements of their own, `stage_products` puts
the operands of products into scratch of the layout that their nests want, and `keep_results`
lets a product write its result once, at the end of its tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from luminal_lab.codegen import analysis, chains, nests, terms
from luminal_lab.codegen.body import Stmt
from luminal_lab.codegen.dots import Product, is_constant, products
from luminal_lab.codegen.terms import ref
from luminal_lab.codegen.windows import window_store, windows
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.sizes import hint

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering


# ------------------------------------------------------------------------ values computed once


def hoist(stmts: list[Stmt], low: Lowering) -> list[Stmt]:
    """Give expensive terms that lack an axis of their statement a statement of their own."""
    out: list[Stmt] = []
    made: dict[Value, Value] = {}
    for s in stmts:
        by: dict[Value, Value] = {}
        for root in s.values:
            for v in _invariant(root, s, low):
                if v not in made:
                    name = low.fresh("t")
                    out.append(Stmt(name, "set", (v,), v.dtype, v.free))
                    made[v] = ref(name, sorted(v.free), v.dtype)
                by[v] = made[v]
        out.append(s.map(lambda v, by=by: terms.replace_terms(v, by)))
    return out


def _invariant(root: Value, s: Stmt, low: Lowering) -> list[Value]:
    """Maximal expensive terms whose value is the same for at least four points of the space."""
    found: dict[Value, None] = {}
    stack, seen = [root], set()
    while stack:
        v = stack.pop()
        if v in seen or not v.args:
            continue
        seen.add(v)
        missing = analysis.points(s.space - v.free, low.hints)
        if missing >= 4 and terms.is_expensive(v) and v.dtype.kind != "bool":
            found.setdefault(v)
        else:
            stack.extend(reversed(v.args))
    return list(found)


def keep_values(stmts: list[Stmt], low: Lowering) -> list[Stmt]:
    """Keep expensive terms that two phases need, in scratch or in the output's own memory."""
    mode = low.schedule.keep
    if mode == "recompute":
        return stmts
    for v in analysis.shared_values(stmts):
        users = [k for k, s in enumerate(stmts) if s.kind != "online" and _contains(s.value, v)]
        if not users:  # a kept term holds it, or it held one
            continue
        first = users[0]
        home = _output_home(v, stmts, low) if mode == "output" else None
        if home is not None:
            keeper = Stmt(home.name, "store", (v,), v.dtype, v.free, index=home.index)
            assert home.index is not None
            again = Value("load", (), (home.name, (home.index,)), dtype=v.dtype)
            marker = low.kept[home.name] = low.fresh("kept")
            keeper = replace(keeper, target=marker)
            new = []
            for k, s in enumerate(stmts):
                if k == first:
                    new.append(keeper)
                if k in users:
                    s = s.map(lambda x: terms.replace_terms(x, {v: again}))  # noqa: B023
                    s = replace(s, after=(*s.after, marker))
                new.append(s)
            stmts = new
            continue
        name = low.fresh("e")
        again = ref(name, sorted(v.free), v.dtype)
        new = [s.map(lambda x: terms.replace_terms(x, {v: again})) for s in stmts]  # noqa: B023
        new.insert(first, Stmt(name, "set", (v,), v.dtype, v.free))
        stmts = new
    return stmts


def after_kept(stmts: Sequence[Stmt], low: Lowering) -> list[Stmt]:
    """Statements that were made of others, after what is kept in the outputs that they read."""
    return [
        replace(s, after=tuple(dict.fromkeys((*s.after, *markers))))
        if (markers := [low.kept[n] for n in s.reads() if n in low.kept])
        else s
        for s in stmts
    ]


def _contains(root: Value, v: Value) -> bool:
    return any(t == v for t in postorder([root]))


def _output_home(v: Value, stmts: Sequence[Stmt], low: Lowering) -> Stmt | None:
    """A store whose elements can hold the term until the store itself happens."""
    read = {n for s in stmts for n in s.reads()}
    for s in stmts:
        fits = (
            s.kind == "store"
            and not s.scatter
            and s.axes == v.free
            and s.dtype is v.dtype
            and v.dtype is F32
        )
        if fits and s.name not in read and _contains(s.value, v):
            return s
    return None


# --------------------------------------------------------------------------- products


def stage_products(stmts: list[Stmt], low: Lowering) -> list[Stmt]:
    """Put the operands of products where their nests want them."""
    body = replace(low.body, stmts=tuple(stmts))
    found = {p.stmt.name: p for p in products(body, low.machine)}
    tiles = dict(zip(found, low.schedule.tiles))
    pairs = _chains(found, stmts, low)
    on = chains.begun_by(pairs)
    made: dict[tuple, Value] = {}
    out: list[Stmt] = []
    for s in stmts:
        p = found.get(s.name)
        if p is None:
            out.append(s)
            continue
        first = on.get(s.name, s.name)  # whose tile it has
        rows, cols = tiles.get(first, (found[first].rows_tile, found[first].cols_tile))
        p = replace(p, rows_tile=rows, cols_tile=cols)
        low.products[s.name] = p
        if s.kind == "online":
            right = _stage_right(p, s, out, made, low)
            out.append(replace(s, values=(*s.values[:2], right)))
            continue
        left, s = _image(p.left, s, out, made, low) or (_stage_left(p, s, out, made, low), s)
        s = replace(s, over=_far_first(left, s.over))
        right, s = _image(p.right, s, out, made, low, p.col) or (
            _stage_right(p, s, out, made, low),
            s,
        )
        out.append(replace(s, values=(terms.op("mul", left, right),)))
    for first, second in pairs:
        out = chains.link(out, first, second)
    return out


def _chains(
    found: Mapping[str, Product], stmts: Sequence[Stmt], low: Lowering
) -> list[tuple[str, str]]:
    """The products that go on from others; none that a shared loop goes through."""
    serial = {a for a, _ in low.schedule.serial}
    free = [p for p in found.values() if not serial & p.stmt.space]
    return chains.links(free, stmts)


def _far_first(v: Value, over: tuple[str, ...]) -> tuple[str, ...]:
    """The reduced axes in the order in which an operand lies in memory."""
    if v.op != "load" or v.args or v.attrs[0].startswith("%"):
        return over
    return tuple(sorted(over, key=lambda a: -abs(hint(terms.coefficient(v, a) or 0))))


def _image(
    v: Value, s: Stmt, out: list[Stmt], made: dict, low: Lowering, col: str = ""
) -> tuple[Value, Stmt] | None:
    """An operand that is seen through windows, laid out once; None when it is not one.

    Arguments:
        v: The operand.
        s: The product; it must come after what lays the operand out.
        out: Receives that statement.
        made: What is in scratch already.
        low: The lowering.
        col: The axis of the columns, when the operand has them: it is read along them.
    """
    if is_constant(v, low.body) or (v.op == "load" and len(v.attrs) == 2 and not col):
        return None  # a plain load is read where it is
    if (v, "image") not in made:
        inner = [a for a in s.over if a in v.free and not _windowed(a, v, low)]
        if col:
            if any(col in w.axes and dict(zip(w.axes, w.steps))[col] > 1
                   for w in windows(v, low.extents)):  # fmt: skip
                return None
            inner = [col]
        laid = window_store(v, inner, "b" if col else "a", low)
        if laid is None:
            return None
        out.append(laid[0])
        made[v, "image"] = laid[1], laid[0].target
    read, marker = made[v, "image"]
    return read, replace(s, after=(*s.after, marker))


def _windowed(axis: str, v: Value, low: Lowering) -> bool:
    return any(axis in w.axes for w in windows(v, low.extents))


def _stage(v: Value, layout, stem: str, out: list[Stmt], made: dict, low: Lowering) -> Value:
    key = (v, layout)
    if key not in made:
        name = low.fresh(stem)
        s = Stmt(name, "set", (v,), v.dtype, v.free, layout=layout)
        if is_constant(v, low.body):
            low.build_stmts.append(s)
            low.build_names.add(name)
        else:
            out.append(s)
        low.declare(s)
        made[key] = ref(name, sorted(v.free), v.dtype)
    return made[key]


def _stage_right(p: Product, s: Stmt, out: list[Stmt], made: dict, low: Lowering) -> Value:
    """Columns: panels as wide as the register tile, one row of a panel per point reduced."""
    v = p.right
    rows = analysis.points(p.left.free - v.free, low.hints)
    plain = (
        v.op == "load" and not v.attrs[0].startswith("%") and len(v.attrs) == 2 and not v.args
    )
    if plain and v.dtype is F32 and not is_constant(v, low.body):
        if terms.coefficient(v, p.col) == 1 and rows <= 4 * p.rows_tile:
            return v
    over = [a for a in s.over if a in v.free]
    outer = sorted(v.free - {p.col} - set(over), key=lambda a: (a not in p.outer, a))
    layout = (
        *((a, 1) for a in outer),
        (p.col, p.cols_tile),
        *((a, 1) for a in over),
        (p.col, 1),
    )
    return _stage(v, layout, "b", out, made, low)


def _stage_left(p: Product, s: Stmt, out: list[Stmt], made: dict, low: Lowering) -> Value:
    """Rows: plain rows, read by broadcasts; a plain load is read where it is."""
    v = p.left
    over = [a for a in _far_first(v, s.over) if a in v.free]
    if v.op == "load" and not v.args and v.dtype is F32 and len(v.attrs) == 2:
        if v.attrs[0].startswith("%"):
            return v
        stride = terms.coefficient(v, p.row)
        inner = terms.coefficient(v, over[-1])
        few = low.hints[p.row] <= p.rows_tile
        if (
            (inner == 1 and stride is not None and (hint(stride) * 4) % 1024)
            or stride == 1
            or few
        ):
            return v
    rows = sorted(v.free - set(over) - {p.row})
    layout = (*((a, 1) for a in rows), (p.row, 1), *((a, 1) for a in over))
    return _stage(v, layout, "a", out, made, low)


def pack_constants(stmts: list[Stmt], low: Lowering) -> list[Stmt]:
    """Lay out the constants of what is no product so that its vector axis is innermost.

    A depthwise filter `w[c, ky, kx]` that is used along `c` would else be gathered.
    """
    out: list[Stmt] = []
    made: dict[tuple, Value] = {}
    for s in stmts:
        body = replace(low.body, stmts=tuple(stmts), extents=low.hints)
        axis = None if s.name in low.products else analysis.vector_axis(s, body, low.last)
        by: dict[Value, Value] = {}
        for v in analysis.loads(s) if axis and s.name not in low.build_names else ():
            if v.args or len(v.attrs) > 2 or not is_constant(v, low.body) or v.dtype is not F32:
                continue
            few = analysis.points(v.free, low.hints) * 4 <= analysis.points(s.space, low.hints)
            if few and axis in v.free and (terms.coefficient(v, axis) or 0) > 1:
                order = sorted(v.free - {axis}, key=lambda a: -(terms.coefficient(v, a) or 0))
                layout = (*((a, 1) for a in order), (axis, 1))
                by[v] = _stage(v, layout, "w", out, made, low)
        out.append(s.map(lambda v, by=by: terms.replace_terms(v, by)))
    return out


def keep_results(stmts: list[Stmt], low: Lowering) -> list[Stmt]:
    """Write a product to memory once, at the end of its tile, with what all its readers add.

    Without this a product whose readers cannot join its nest would accumulate in memory. What
    is written is the largest elementwise term through which all readers see the product.
    """
    for name in [s.name for s in stmts if s.name in low.products and s.kind == "reduce"]:
        product = next(s for s in stmts if s.name == name)
        at = max(k for k, s in enumerate(stmts) if name in (s.name, s.target))
        readers = [s for s in stmts if name in s.reads()]
        if all(
            s.kind in ("set", "store") and s.space == product.axes and _beside(product, s, low)
            for s in readers
        ):
            continue
        if (
            all(s.kind == "online" for s in readers)
            and len({s.values[0] for s in readers}) == 1
        ):
            continue  # its s is kept by the loop that carries it
        term = _cover(ref(name, sorted(product.axes), product.dtype), readers, product.axes)
        kept = low.fresh(name[1:] + ".kept")
        by = {term: ref(kept, sorted(product.axes), term.dtype)}
        stmts = [s.map(lambda v, by=by: terms.replace_terms(v, by)) for s in stmts]
        first = min(k for k, s in enumerate(stmts) if kept in s.reads())
        where = max([at] + [k for k, s in enumerate(stmts) if s.name in terms.reads(term)])
        assert where < first
        keeper = Stmt(kept, "set", (term,), term.dtype, term.free)
        stmts = [*stmts[: where + 1], keeper, *stmts[where + 1 :]]
    return stmts


def _beside(product: Stmt, reader: Stmt, low: Lowering) -> bool:
    """Whether all products that a statement reads can be in one nest with this one."""
    others = [n for n in reader.reads() if n in low.products and n != product.name]
    return all(nests.fits(low.products[product.name], low.products[n]) for n in others)


def _cover(v: Value, readers: Sequence[Stmt], axes: frozenset[str]) -> Value:
    """The largest term over the same axes that contains every use of `v`."""
    roots = [r for s in readers for r in s.values]
    early = {d for s in readers for d in s.reads() if d.startswith("%")} - {v.attrs[0]}
    while v not in roots:
        parents = {t for t in postorder(roots) if v in t.args}
        if len(parents) != 1:
            break
        up = parents.pop()
        if up.free != axes or up.dtype is not v.dtype or early & set(terms.reads(up)):
            break
        v = up
    return v
