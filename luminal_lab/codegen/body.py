"""A kernel as a list of statements over axes: the form that schedules and the lowering work on.

`statements(kernel)` cuts the values at their reductions. Every reduction, every store, and
every value that is worth computing once becomes a `Stmt`, in an order in which arguments come
first; a statement reads another one's result as a load of the local `%name`. Before that
* loads get one flat index, axes of extent 1 disappear,
* a reduction of a reduction (same op, one user) becomes one reduction over both axes,
* bound axes are renamed onto each other where that makes terms equal, and apart where a product
  would reduce an axis that is also one of its kernel's output axes (`rename.py`),
* axes that always occur together as `a*extent(b) + b` become one axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from luminal_lab.codegen import terms
from luminal_lab.codegen.ranges import by_ranges
from luminal_lab.codegen.rename import alpha_rename
from luminal_lab.codegen.tables import Written, chosen, has_tables, written_out
from luminal_lab.codegen.terms import const, ref, tuned
from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value, postorder
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import DivMod, Index
from luminal_lab.hlir.sizes import Dim, at_least, is_symbolic


@dataclass(frozen=True)
class Stmt:
    """One statement over an iteration space.

    Arguments:
        name: Name of its result, `%…`; for a store the buffer's name.
        kind: `reduce`, `carry`, `online`, `set` or `store`.
        values: The value; for `carry` x and y, for `online` s, c and w; for a store that
            scatters the values of `@0…` in its index too.
        dtype: Of the result.
        axes: The free axes of the result.
        over: The axes that it reduces.
        op: `add` or `max` (`reduce`), `argmax` or `spread` (`carry`).
        index: Where it stores (`store`).
        after: Names of statements that must precede it though it does not read them.
        target: The local that it writes when that is not its own name (carried state).
        layout: Memory layout of its result, when it is not the plain one.
        scatter: `set` or `add` for a store whose points may meet at one place.
        ordered: The axes along which they may, outermost first: loops over these keep their
            order and run on one thread.
        guard: Expressions that must be >= 0 for a store to happen.
    """

    name: str
    kind: str
    values: tuple[Value, ...]
    dtype: DType
    axes: frozenset[str]
    over: tuple[str, ...] = ()
    op: str = ""
    index: Index | None = None
    after: tuple[str, ...] = ()
    target: str = ""
    layout: tuple[tuple[str, int], ...] = ()
    scatter: str = ""
    ordered: tuple[str, ...] = ()
    guard: tuple[Index, ...] = ()

    @property
    def value(self) -> Value:
        """The value; a `carry`'s x, an online reduction's s."""
        return self.values[0]

    @property
    def space(self) -> frozenset[str]:
        """The axes of its iteration space."""
        return self.axes | frozenset(self.over)

    def reads(self) -> tuple[str, ...]:
        """What it reads: buffers and locals."""
        return self._reads

    @cached_property
    def _reads(self) -> tuple[str, ...]:
        out: dict[str, None] = {}
        for v in self.values:
            out.update(dict.fromkeys(terms.reads(v)))
        return tuple(out)

    def deps(self) -> tuple[str, ...]:
        """Names of the statements that must precede it."""
        return (*(n for n in self.reads() if n.startswith("%")), *self.after)

    def map(self, f) -> Stmt:
        """The statement with each of its values mapped."""
        return replace(self, values=tuple(f(v) for v in self.values))


@dataclass(frozen=True)
class Body:
    """A kernel's statements, with the extents of their axes.

    `split` says that long reductions were cut into parts, so that each statement has a grid of
    its own. `symbolic` are the axes whose extents are known at the call only.
    """

    kernel: Kernel
    stmts: tuple[Stmt, ...]
    extents: Mapping[str, Dim]
    buffers: Mapping[str, Buffer]
    split: bool = False
    symbolic: frozenset[str] = frozenset()

    @property
    def tuned(self) -> Body:
        """The same with the hints for the extents that a call decides: what heuristics see.

        An axis that may have several points is never taken for one that has one.
        """
        if not self.symbolic:
            return self
        return replace(self, extents={a: tuned(n) for a, n in self.extents.items()})

    def stores(self) -> tuple[Stmt, ...]:
        """The statements that write buffers."""
        return tuple(s for s in self.stmts if s.kind == "store")


def statements(kernel: Kernel, write_out: bool = True) -> Body:
    """The statements of a kernel, arguments before users.

    Arguments:
        kernel: What to compute.
        write_out: Whether to write out what is made of tables (see `tables.py`), and by ranges
            what chooses by its place (see `ranges.py`).
    """
    extents = dict(kernel.extents)
    values = list(kernel.values())
    parts = by_ranges(kernel, extents) if write_out else None
    if parts is not None:
        values = [w.value for some in parts for w in some]
        values = _simplify(values, kernel.buffers, extents)
        return _statements(kernel, values, extents, parts)
    values = _simplify(values, kernel.buffers, extents)
    if has_tables(values):
        return _with_tables(kernel, values, extents, write_out)
    return _statements(kernel, values, extents, [None] * len(kernel.outputs))


def _with_tables(
    kernel: Kernel, values: list[Value], extents: dict[str, Dim], write_out: bool
) -> Body:
    """The statements of a kernel some of whose values are tables."""
    parts = written_out(kernel.outputs, values, extents) if write_out else None
    if parts is None:
        return _statements(kernel, chosen(values), extents, [None] * len(kernel.outputs))
    return _statements(kernel, [w.value for some in parts for w in some], extents, parts)


def _statements(
    kernel: Kernel,
    values: list[Value],
    extents: dict[str, Dim],
    parts: Sequence[Sequence[Written] | None],
) -> Body:
    """The statements of a kernel's values: of its outputs, or of the parts of these."""
    if all(p is None for p in parts):
        axes = [frozenset(o.axes) for o in kernel.outputs]
    else:
        axes = [w.value.free for some in parts for w in some or ()]
    values = alpha_rename(values, axes, extents)
    stmts = _cut(values)
    unit = {a: Index.num(0) for a, n in extents.items() if n == 1}
    left = iter(stmts[1])
    for out, some in zip(kernel.outputs, parts):
        buffer = kernel.buffers[out.buffer]
        index = terms.flat_index(buffer, out.index).substitute(unit, extents)
        if some is not None:
            for w in some:
                value, at = (
                    next(left),
                    index.substitute(w.by, extents).substitute(unit, extents),
                )
                guard = tuple(g.substitute(unit, extents) for g in w.guard)
                s = Stmt(out.buffer, "store", (value,), value.dtype, at.axes | value.free)
                stmts[0].append(replace(s, index=at, guard=guard))
            continue
        mine = tuple(next(left) for _ in out.values)
        if not buffer.numel or not all(extents[a] for a in out.axes):
            continue
        axes = frozenset(a for a in out.axes if a not in unit)
        mode, ordered = "", ()
        if out.scatter is not None:
            into = kernel.buffers[out.scatter.into]
            if into.shape != buffer.shape or into.element_strides != buffer.element_strides:
                raise ScheduleError(
                    f"a scatter into {into.name} is stored in another layout in {buffer.name}"
                )
            mode = out.scatter.mode
            ordered = tuple(a for a in meeting_axes(out, extents) if a not in unit)
        else:
            axes = index.axes | mine[0].free
        s = Stmt(out.buffer, "store", mine, mine[0].dtype, axes, index=index)
        stmts[0].append(replace(s, scatter=mode, ordered=ordered))
    body = _merge_axes(_only_needed(Body(kernel, tuple(stmts[0]), extents, kernel.buffers)))
    symbolic = frozenset(a for a, n in body.extents.items() if is_symbolic(n))
    return replace(body, symbolic=symbolic)


def meeting_axes(out: KernelOutput, extents: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which points of a scatter may meet at one place, in their order.

    Two points are apart where a dim's index is made of some axes alone, each step of one larger
    than all that the smaller ones can do, and these axes differ.
    """
    apart: set[str] = set()
    for i in out.index:
        span = 1
        for atom, coef in reversed(i.terms):  # smallest coefficient first
            if not isinstance(atom, str) or atom.startswith("@"):
                break
            if not at_least(abs(coef) - span, 0):
                break
            span = abs(coef) * extents[atom]
        else:
            apart |= i.axes
    return tuple(a for a in out.axes if a not in apart)


def _only_needed(body: Body) -> Body:
    needed: set[str] = set()
    kept: list[Stmt] = []
    for s in reversed(body.stmts):
        if s.kind == "store" or s.name in needed:
            kept.append(s)
            needed.update(s.deps())
    return replace(body, stmts=tuple(reversed(kept)))


def _identity(op: str, dtype: DType):
    if op == "add":
        return False if dtype.kind == "bool" else (0 if dtype.is_int else 0.0)
    if dtype.is_float:
        return float("-inf")
    if dtype.kind == "bool":
        return False
    return 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))


identity = _identity


def _simplify(values, buffers, extents) -> list[Value]:
    """Flat loads; no axis of extent 1; reductions of empty axes are constants."""
    unit = {a: Index.num(0) for a, n in extents.items() if n == 1}

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "load":
            flat = terms.flatten_loads(v, args, buffers, extents)
            if flat.op != "load":
                return flat
            index = (flat.attrs[1][0].substitute(unit, extents),)
            return terms.remake(flat, args, (flat.attrs[0], index, *flat.attrs[2:]))
        if v.op == "iota":
            index = v.attrs[0].substitute(unit, extents)
            if index.terms or is_symbolic(index.const):
                return terms.remake(v, args, (index,))
            return const(index.const, v.dtype)
        if v.op == "red":
            n = extents[v.attrs[1]]
            if n == 1:
                return args[0]
            if n == 0:
                return const(_identity(v.attrs[0], v.dtype), v.dtype)
            if v.attrs[1] not in args[0].free:
                return _repeated(v.attrs[0], args[0], n)
        if v.op == "carry":
            return _simple_carry(v, args, extents[v.attrs[1]])
        if v.op == "online":
            n = extents[v.attrs[0]]
            if n == 0:
                return const(0.0, v.dtype)
            if n == 1:  # exp2(c*(s - s)) * w: not w, s may be infinite
                s, c, w = args
                return terms.op("mul", _level(s, c), w)
            if v.attrs[0] not in args[0].free | args[1].free:  # every weight is the same
                s, c, w = args
                free = v.attrs[0] not in w.free
                attrs = ("add", v.attrs[0])
                total = (
                    _repeated("add", w, n) if free else Value("red", (w,), attrs, dtype=w.dtype)
                )
                return terms.op("mul", _level(s, c), total)
        return terms.remake(v, args)

    return terms.rewrite(values, step)


def _simple_carry(v: Value, args: tuple[Value, ...], n: Dim) -> Value:
    """A `carry` over a short axis, or of an x that does not depend on it."""
    (kind, axis), (x, p) = v.attrs, args
    if kind == "spread":
        return _simple_spread(v, args, n)
    if n == 0:
        return const((1 << (p.dtype.bits - 1)) - 1, p.dtype)
    if n == 1 or (axis not in x.free and axis not in p.free):
        return p
    if axis not in x.free:  # the least p
        minus = const(-1, p.dtype)
        most = Value("red", (terms.op("mul", minus, p),), ("max", axis), dtype=p.dtype)
        return terms.op("mul", minus, most)
    return terms.remake(v, args)


def _simple_spread(v: Value, args: tuple[Value, ...], n: Dim) -> Value:
    """Squared deviations over a short axis, or of an x that does not depend on it."""
    (_, axis), (x, w) = v.attrs, args
    if n == 0:
        return const(0.0, v.dtype)
    if axis in x.free and n != 1:
        return terms.remake(v, args)
    d = terms.op("add", x, terms.op("mul", const(-1.0, x.dtype), x))  # NaN where x is infinite
    value = terms.op("mul", terms.op("mul", d, d), w)
    if n == 1 or axis not in value.free:
        return value
    return Value("red", (value,), ("add", axis), dtype=v.dtype)


def _level(s: Value, c: Value) -> Value:
    """exp2(c * (s - s)): 1, or NaN where s is infinite or NaN."""
    gap = terms.op("add", s, terms.op("mul", s, const(-1.0, s.dtype)))
    return terms.op("exp2", terms.op("mul", c, gap))


def _repeated(op: str, v: Value, n: Dim) -> Value:
    """The reduction of n equal terms."""
    if op == "max" or v.dtype.kind == "bool":
        return v
    if is_symbolic(n):
        times = Value("cast", (terms.iota(Index.num(n)),), (), dtype=v.dtype)
        return terms.op("mul", times, v)
    return terms.op("mul", const(float(n) if v.dtype.is_float else n, v.dtype), v)


def _cut(values: list[Value]) -> tuple[list[Stmt], list[Value]]:
    """Statements for all reductions; the values with references to them."""
    users: Counter[Value] = Counter()
    for v in postorder(values):
        users.update(v.args)
    users.update(values)
    out: dict[str, Stmt] = {}
    by_value: dict[Value, Stmt] = {}

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "red":
            op, axis = v.attrs
            over, value = (axis,), args[0]
            inner = by_value.get(v.args[0])
            if inner and inner.op == op and users[v.args[0]] == 1 and axis not in inner.over:
                over, value = (axis, *inner.over), inner.value
                del out[inner.name]
            axes = value.free - set(over)
            s = Stmt(f"%r{len(by_value)}", "reduce", (value,), v.dtype, axes, over, op)
        elif v.op == "carry":
            axes = frozenset().union(*(a.free for a in args)) - {v.attrs[1]}
            name = f"%c{len(by_value)}"
            s = Stmt(name, "carry", args, v.dtype, axes, (v.attrs[1],), v.attrs[0])
        elif v.op == "online":
            axes = frozenset().union(*(a.free for a in args)) - {v.attrs[0]}
            s = Stmt(f"%o{len(by_value)}", "online", args, v.dtype, axes, (v.attrs[0],))
        else:
            return terms.remake(v, args)
        by_value[v] = s
        out[s.name] = s
        return ref(s.name, sorted(s.axes), v.dtype)

    new = terms.rewrite(values, step)
    return list(out.values()), new


def _merge_axes(body: Body) -> Body:
    """Fuse pairs of axes that always occur as `a*extent(b) + b`, to a fixpoint."""
    while True:
        pair = _mergeable(body)
        if pair is None:
            return body
        body = _merge(body, *pair)


def _indices(body: Body):
    for s in body.stmts:
        if s.index is not None:
            yield s.index
        yield from s.guard
        for v in postorder(s.values):
            if v.op == "iota":
                yield v.attrs[0]
            elif v.op == "load" and not v.attrs[0].startswith("%"):
                yield v.attrs[1][0]


def _mergeable(body: Body) -> tuple[str, str] | None:
    spaces = dict.fromkeys((s.axes, frozenset(s.over)) for s in body.stmts)
    reds = dict.fromkeys(
        frozenset(i.single for i in v.attrs[1])
        for s in body.stmts
        for v in postorder(s.values)
        if v.op == "load" and v.attrs[0].startswith("%")
    )
    indices = list(dict.fromkeys(_indices(body)))
    locked: set[str] = set()  # axes inside // and %
    pairs: dict[tuple[str, str], None] = {}
    for index in indices:
        bare = [(a, c) for a, c in index.terms if isinstance(a, str)]
        for atom, _ in index.terms:
            if isinstance(atom, DivMod):
                locked |= atom.inner.axes
        for a, ca in bare:
            for b, cb in bare:
                if a != b and ca == cb * body.extents.get(b, 0) and not a.startswith("@"):
                    pairs.setdefault((a, b))
    for s in body.stmts:
        locked |= set(s.ordered)
        if s.kind == "online":
            locked |= set(s.over)
    for a, b in pairs:
        if a in locked or b in locked:
            continue
        together = all((a in x) == (b in x) for axes, over in spaces for x in (axes, over))
        together = together and all((a in r) == (b in r) for r in reds)
        if together and all(i.coef(a) == i.coef(b) * body.extents[b] for i in indices):
            return a, b
    return None


def _merge(body: Body, a: str, b: str) -> Body:
    new = f"{a}_{b}"
    while new in body.extents:
        new += "_"
    extents = {**body.extents, new: body.extents[a] * body.extents[b]}
    by = {a: Index.num(0), b: Index.axis(new)}

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "load" and v.attrs[0].startswith("%"):
            names = [i.single for i in v.attrs[1]]
            kept = sorted({new if n in (a, b) else n for n in names})
            return ref(v.attrs[0], kept, v.dtype)
        if v.op == "load":
            index = (v.attrs[1][0].substitute(by, extents),)
            return terms.remake(v, args, (v.attrs[0], index, *v.attrs[2:]))
        if v.op == "iota":
            return terms.remake(v, args, (v.attrs[0].substitute(by, extents),))
        return terms.remake(v, args)

    def fused(names):
        return [new if n == b else n for n in names if n != a]

    stmts = []
    for s in body.stmts:
        stmts.append(
            replace(
                s,
                values=tuple(terms.rewrite(s.values, step)),
                axes=frozenset(fused(s.axes)),
                over=tuple(fused(s.over)),
                index=s.index and s.index.substitute(by, extents),
                guard=tuple(g.substitute(by, extents) for g in s.guard),
            )
        )
    return replace(body, stmts=tuple(stmts), extents=extents)
