"""Lowering to block programs: statements and a schedule become loops over whole blocks.

One recursion. At each level, statements whose axes are all bound (or whole) are emitted; then
one loop is opened for the next cut axis, with every reduction and store that can share it. What
a loop's body needs and that depends on its axis is computed inside it (again in each later loop
over that axis); what does not is left outside. A reduction that is not finished by the loop of
its first axis stays open in the loops below.

An online reduction becomes ordinary statements around carried state, keyed by (axis, s, c): the
running maximum `m`, and one accumulator per weight `w`, rescaled by `exp2(c*(m_old - m_new))`.
While m = −∞ both the rescaling factor and the weights are 0. A row that is still at −∞ in the
end is NaN, as the sum of `exp2(c*(−∞ − −∞))*w` is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from luminal_lab.codegen import places, spreads
from luminal_lab.codegen.block_bounds import loop_bounds
from luminal_lab.codegen.block_schedule import LIMIT, Sides, sides
from luminal_lab.codegen.body import Body, Stmt, identity
from luminal_lab.codegen.terms import const, op, ref
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Dim,
    Fold,
    Init,
    Local,
    Loop,
    Node,
    Store,
    TileProgram,
)
from luminal_lab.egraph.values import Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import BOOL, DType

_LOWEST = -3.4028234663852886e38  # nothing finite is below it in float32


def lower_blocks(body: Body, schedule) -> TileProgram:
    """The block program of a kernel.

    Arguments:
        body: Its statements.
        schedule: A `Schedule` of style `block`.

    Raises:
        ScheduleError: the schedule cuts an axis that does not exist, puts a reduced axis into
            the grid, or asks for a block that is not a power of two.
    """
    if any(s.scatter for s in body.stmts):
        raise ScheduleError(
            "a kernel that scatters has no form in blocks: its points may meet at one place",
            fix="use target 'cpu'",
        )
    grid, serial = dict(schedule.grid), dict(schedule.serial)
    reduced = frozenset(a for s in body.stmts for a in s.over)
    for axis, step in {**grid, **serial}.items():
        if axis not in body.extents:
            raise ScheduleError(f"the schedule cuts the axis {axis!r}, which the kernel lacks")
        if step < 1 or step & (step - 1):
            raise ScheduleError(f"the block of axis {axis!r} is {step}, not a power of two")
        if axis in grid and axis in reduced:
            raise ScheduleError(f"the grid contains {axis!r}, which the kernel reduces")
    body = replace(body, stmts=tuple(_counted(s, body) for s in body.stmts))
    lower = _Lower(body, {**grid, **serial}, frozenset(grid))
    inner = lower.scope(list(body.stores()), frozenset(grid), frozenset())
    for axis, step in reversed(grid.items()):
        inner = (Loop(axis, axis, step, "grid", inner),)
    return TileProgram(
        kernel=body.kernel,
        extents=body.extents,
        buffers=body.buffers,
        reads=body.kernel.reads(),
        writes=body.kernel.writes(),
        locals=lower.locals,
        body=inner,
        style="block",
        schedule=schedule,
        nodes=body.kernel.nodes,
    )


def _counted(s: Stmt, body: Body) -> Stmt:
    """A reduction over axes that its value does not depend on becomes a multiple of it."""
    if s.kind == "online":
        score, c, w = s.values
        if s.over[0] in score.free:
            return s
        gap = op("add", score, op("mul", score, const(-1.0, score.dtype)))
        value = op("mul", op("exp2", op("mul", c, gap)), w)
        s = replace(s, kind="reduce", op="add", values=(value,))
    if s.kind != "reduce":
        return s
    over = tuple(a for a in s.over if a in s.value.free)
    times = 1
    for a in s.over:
        times *= 1 if a in over else body.extents[a]
    value = s.value
    if s.op == "add" and times > 1 and s.dtype.kind != "bool":
        value = op("mul", value, const(times if s.dtype.is_int else float(times), s.dtype))
    kind = "reduce" if over else "set"
    return replace(s, kind=kind, over=over, values=(value,))


@dataclass
class _Online:
    """The carried state of the online reductions with one key (axis, s, c)."""

    m: str
    accs: dict[str, str] = field(default_factory=dict)  # statement -> accumulator


class _Lower:
    """What the recursion shares."""

    def __init__(self, body: Body, cut: dict[str, int], grid: frozenset[str]):
        self.body, self.cut, self.grid = body, cut, grid
        self.locals: dict[str, Local] = {}
        self.by_name = {s.name: s for s in body.stmts if s.kind != "store"}
        self.order = {id(s): k for k, s in enumerate(body.stmts)}
        self.loops = list(cut)
        self.open: dict[str, str] = {}  # a started reduction -> its accumulator
        self.states: dict[tuple, _Online] = {}
        self.tops: dict[str, str] = {}  # a started search for a place -> its maximum so far
        self.means: dict[str, tuple[str, str]] = {}  # started deviations -> mean and weight

    # ------------------------------------------------------------------------ the recursion
    def scope(
        self, targets: list[Stmt], bound: frozenset[str], have: frozenset[str]
    ) -> tuple[Node, ...]:
        """Nodes that complete `targets` where the axes in `bound` have a current block.

        Arguments:
            targets: Stores, reductions to be started, and reductions that are open already.
            bound: Cut axes with a loop around this scope.
            have: Names of results that are available.
        """
        nodes: list[Node] = []
        done = set(have)
        left = self._closure(targets, bound, done)
        while left:
            ready = [
                s for s in left if not self._pending(s, bound) and self._missing(s, done) == []
            ]
            if ready:
                nodes.extend(self._leaf(ready[0]))
                self._finish(ready[0], done)
                left.remove(ready[0])
                continue
            axis = self._next_axis(left, bound, done)
            group = [
                s
                for s in left
                if self._first(s, bound) == axis and self._fits(s, axis, bound, done)
            ]
            nodes.extend(self._loop(axis, group, bound, frozenset(done)))
            for s in group:
                self._finish(s, done)
                left.remove(s)
        return tuple(nodes)

    def _finish(self, s: Stmt, done: set[str]) -> None:
        if s.kind != "store" and s.name not in self.open:
            done.add(s.name)

    def _pending(self, s: Stmt, bound: frozenset[str]) -> list[str]:
        """Cut axes of a statement that no loop binds yet, those of its result first."""
        todo = [a for a in self.loops if a in s.space and a not in bound]
        return sorted(todo, key=lambda a: a in s.over)

    def _first(self, s: Stmt, bound: frozenset[str]) -> str | None:
        return next(iter(self._pending(s, bound)), None)

    def _missing(self, s: Stmt, done: Iterable[str]) -> list[Stmt]:
        return [self.by_name[d] for d in s.deps() if d not in done]

    def _closure(
        self, targets: list[Stmt], bound: frozenset[str], done: set[str]
    ) -> list[Stmt]:
        """Targets and what they need, as far as its result exists at this level."""
        out: dict[str, Stmt] = {}
        seen: set[int] = set()
        stack = list(targets)
        while stack:
            s = stack.pop()
            if id(s) in seen:
                continue
            seen.add(id(s))
            inside = any(a in s.axes for a in self._pending(s, bound))
            if s.kind == "store" or not inside:
                out[str(self.order[id(s)])] = s
            stack.extend(self._missing(s, done))
        return sorted(out.values(), key=lambda s: self.order[id(s)])

    def _fits(self, s: Stmt, axis: str, bound: frozenset[str], done: Iterable[str]) -> bool:
        """Whether what a statement still needs can be computed inside a loop over `axis`.

        It can where it depends on the axis, and where loops further inside compute it anyway.
        """
        return all(
            axis not in d.over
            and (axis in d.axes or any(a in d.axes for a in self._pending(d, bound)))
            and self._fits(d, axis, bound, done)
            for d in self._missing(s, done)
        )

    def _next_axis(self, left: list[Stmt], bound: frozenset[str], done: set[str]) -> str:
        for s in left:
            axis = self._first(s, bound)
            if axis is not None and self._fits(s, axis, bound, done):
                return axis
        raise ScheduleError(
            f"no loop over one of {self.loops} can compute {left[0].name}: its operands need "
            "another order of loops",
            fix="leave one of these axes whole",
        )

    def _loop(
        self, axis: str, group: list[Stmt], bound: frozenset[str], have: frozenset[str]
    ) -> list[Node]:
        started = [s for s in group if s.kind != "store" and s.name not in self.open]
        before = [n for s in started for n in self._start(s, bound)]
        sizes = {a: self.cut[a] for a in self.loops if a in bound}
        lo, hi = loop_bounds(axis, group, self.body.extents, sizes)
        inner = self.scope(group, bound | {axis}, have)
        loop = Loop(axis, axis, self.cut[axis], "serial", inner, lo, hi)
        after = [n for s in started for n in self._end(s)]
        return [*before, loop, *after]

    # ------------------------------------------------------------------------------- leaves
    def _leaf(self, s: Stmt) -> list[Node]:
        """A statement all of whose axes have a block here."""
        if s.kind == "store":
            assert s.index is not None
            return [Store(s.name, s.index, s.value)]
        if s.name in self.open:
            return self._step(s)
        if s.kind == "set":
            self._local(s.name, s.axes, s.dtype)
            return [Assign(s.name, s.value)]
        return [*self._start(s), *self._step(s), *self._end(s)]

    def _start(self, s: Stmt, bound: frozenset[str] | None = None) -> list[Node]:
        """Open the accumulators of a reduction; `bound` is given where a loop follows."""
        if s.kind == "online":
            return self._start_online(s)
        if s.kind == "carry":
            return self._start_place(s) if places.is_place(s) else self._start_spread(s)
        lanes = ()
        if bound is not None and self._matrix(s.value, s) is None:
            lanes = self._lanes(s)
        name = f"{s.name}.l" if lanes else s.name
        self._local(name, s.axes, s.dtype, lanes)
        self.open[s.name] = name
        return [Init(name, identity(s.op, s.dtype))]

    def _step(self, s: Stmt) -> list[Node]:
        if s.kind == "online":
            return self._step_online(s)
        if s.kind == "carry":
            return self._step_place(s) if places.is_place(s) else self._step_spread(s)
        dot = self._matrix(s.value, s) is not None
        return [Accumulate(self.open[s.name], _kind(s), s.value, dot=dot)]

    def _end(self, s: Stmt) -> list[Node]:
        """Close a reduction."""
        acc = self.open.pop(s.name)
        if s.kind == "online":
            return self._end_online(s, acc)
        if spreads.is_spread(s):
            self._local(s.name, s.axes, s.dtype)
            weight = self.means[s.name][1]
            return [
                Assign(s.name, spreads.result(self._ref(acc), s.values[1], self._ref(weight)))
            ]
        if places.is_place(s):
            self._local(s.name, s.axes, s.dtype)
            return [Assign(s.name, places.positive(self._ref(acc), s.dtype))]
        if acc == s.name:
            return []
        self._local(s.name, s.axes, s.dtype)
        return [Fold(s.name, _kind(s), acc)]

    def _lanes(self, s: Stmt) -> tuple[tuple[str, int], ...]:
        """Axes whose points are kept apart until the loop ends: one fold instead of many."""
        lanes = tuple((a, self._size(a)) for a in s.over if self._size(a) > 1)
        points = 1
        for a in (*s.axes, *(a for a, _ in lanes)):
            points *= self._size(a)
        return lanes if points <= LIMIT else ()

    # ------------------------------------------------------------------------------- online
    def _key(self, s: Stmt) -> tuple:
        return (s.over, s.values[0], s.values[1])

    def _start_online(self, s: Stmt) -> list[Node]:
        score, c, _ = s.values
        out: list[Node] = []
        state = self.states.get(self._key(s))
        if state is None or not state.accs:
            m = self._fresh("%m", (score.free | c.free) - set(s.over), score.dtype)
            state = self.states[self._key(s)] = _Online(m)
            out.append(Init(m, float("-inf")))
        acc = self._fresh("%a", s.axes, s.dtype)
        state.accs[s.name] = acc
        self.open[s.name] = acc
        return [*out, Init(acc, 0.0)]

    def _step_online(self, s: Stmt) -> list[Node]:
        """One block of all reductions with this key: emitted once, with the last of them."""
        state = self.states[self._key(s)]
        if s.name != list(state.accs)[-1]:
            return []
        score, c, _ = s.values
        row = (score.free | c.free) - set(s.over)
        top = self._fresh("%b", row, score.dtype)
        new = self._fresh("%n", row, score.dtype)
        scale = self._fresh("%f", row, score.dtype)
        p = self._fresh("%p", score.free | c.free, score.dtype)
        m_ref, new_ref = self._ref(state.m), self._ref(new)
        low = const(_LOWEST, score.dtype)
        minus = const(-1.0, score.dtype)
        safe = op("select", _less(new_ref, low), const(0.0, score.dtype), new_ref)
        gap = op("mul", safe, minus)
        out: list[Node] = []
        if not (score.op == "load" and score.attrs[0] in self.locals):
            name = self._fresh("%s", score.free, score.dtype)
            out.append(Assign(name, score))
            score = self._ref(name)
        out += [
            Init(top, float("-inf")),
            Accumulate(top, "max", score),
            Assign(new, op("maximum", m_ref, self._ref(top))),
            Assign(scale, op("exp2", op("mul", c, op("add", m_ref, gap)))),
            Assign(p, op("exp2", op("mul", c, op("add", score, gap)))),
        ]
        for name, acc in state.accs.items():
            w = self.by_name[name].values[2]
            one = w.op == "const" and w.attrs[0] == 1
            value = self._ref(p) if one else op("mul", self._ref(p), w)
            dot = self._matrix(value, self.by_name[name]) is not None
            out.append(Assign(acc, op("mul", self._ref(acc), self._ref(scale))))
            out.append(Accumulate(acc, "add", value, dot=dot))
        out.append(Assign(state.m, new_ref))
        return out

    def _end_online(self, s: Stmt, acc: str) -> list[Node]:
        state = self.states[self._key(s)]
        del state.accs[s.name]
        self._local(s.name, s.axes, s.dtype)
        m = self._ref(state.m)
        bad = _less(m, const(_LOWEST, m.dtype))
        value = Value(
            "select", (bad, const(float("nan"), s.dtype), self._ref(acc)), dtype=s.dtype
        )
        return [Assign(s.name, value)]

    # ------------------------------------------------------------------------------- places
    def _start_place(self, s: Stmt) -> list[Node]:
        """Open the state of a place: the greatest x, and the least p there, negated."""
        x, p = s.value, places.negative(s.values[1], self.body.extents)
        top = self._fresh("%m", x.free - set(s.over), x.dtype)
        self.open[s.name] = self._fresh("%q", s.axes, p.dtype)
        self.tops[s.name] = top
        return [
            Init(top, identity("max", x.dtype)),
            Init(self.open[s.name], identity("max", p.dtype)),
        ]

    def _step_place(self, s: Stmt) -> list[Node]:
        """One block: its greatest x and the place of it, then the better of two."""
        x, p = s.value, places.negative(s.values[1], self.body.extents)
        out: list[Node] = []
        if not (x.op == "load" and x.attrs[0] in self.locals):
            name = self._fresh("%x", x.free, x.dtype)
            out.append(Assign(name, x))
            x = self._ref(name)
        row = x.free - set(s.over)
        top, new = (self._fresh(stem, row, x.dtype) for stem in ("%b", "%n"))
        m, block, best = (self._ref(n) for n in (self.tops[s.name], top, new))
        value = places.only(p, x, block)
        found = self._fresh("%f", value.free - set(s.over), p.dtype)
        acc = self.open[s.name]
        old, here = self._ref(acc), self._ref(found)
        update = op("maximum", places.only(old, m, best), places.only(here, block, best))
        return [
            *out,
            Init(top, identity("max", x.dtype)),
            Accumulate(top, "max", x),
            Init(found, identity("max", p.dtype)),
            Accumulate(found, "max", value),
            Assign(new, op("maximum", m, block)),
            Assign(acc, update),
            Assign(m.attrs[0], best),
        ]

    # ------------------------------------------------------------------------------- spreads
    def _start_spread(self, s: Stmt) -> list[Node]:
        """Open the state of squared deviations: their sum, the mean, and the weight so far."""
        x, w = s.values
        row, over = (x.free | w.free) - set(s.over), set(s.over)
        self.open[s.name] = self._fresh("%v", row, s.dtype)
        names = self._fresh("%e", row, s.dtype), self._fresh("%k", w.free - over, s.dtype)
        self.means[s.name] = names
        return [Init(name, 0.0) for name in (self.open[s.name], *names)]

    def _step_spread(self, s: Stmt) -> list[Node]:
        """One block: its mean and its deviations from that, merged into the state."""
        (x, w), axis = s.values, s.over[0]
        mean, count = (self._ref(n) for n in self.means[s.name])
        spread = self._ref(self.open[s.name])
        out: list[Node] = []
        if not (x.op == "load" and x.attrs[0] in self.locals):
            name = self._fresh("%x", x.free, x.dtype)
            out.append(Assign(name, x))
            x = self._ref(name)
        row, alone = (x.free | w.free) - {axis}, w.free - {axis}
        every = w if axis in w.free else spreads.everywhere(w, axis, self.body.extents)

        def let(stem: str, value: Value, axes: frozenset[str]) -> Value:
            name = self._fresh(stem, axes, s.dtype)
            out.append(Assign(name, value))
            return self._ref(name)

        def total(stem: str, value: Value, axes: frozenset[str]) -> Value:
            name = self._fresh(stem, axes, s.dtype)
            out.extend((Init(name, 0.0), Accumulate(name, "add", value)))
            return self._ref(name)

        bw = total("%w", every, alone)
        bm = let("%b", spreads.ratio(total("%t", spreads.weighted(x, w), row), bw), row)
        bv = total("%u", spreads.deviation(x, w, spreads.negated(bm)), row)
        part = let("%g", spreads.ratio(bw, op("add", count, bw)), alone)
        by = let("%y", spreads.minus(bm, mean), row)
        merged = spreads.merged(spread, bv, by, part, count)
        out += [
            Assign(spread.attrs[0], merged),
            Assign(mean.attrs[0], op("add", mean, op("mul", by, part))),
            Assign(count.attrs[0], op("add", count, bw)),
        ]
        return out

    # ------------------------------------------------------------------------------- locals
    def _size(self, axis: str) -> int:
        return self.cut[axis] if axis in self.cut else self.body.extents[axis]

    def _matrix(self, value: Value, s: Stmt) -> Sides | None:
        return matrix_sides(value, s.axes, s.over, self._size)

    def _fresh(self, prefix: str, axes: Iterable[str], dtype: DType) -> str:
        k = sum(n.startswith(prefix) for n in self.locals)
        return self._local(f"{prefix}{k}", axes, dtype)

    def _local(
        self,
        name: str,
        axes: Iterable[str],
        dtype: DType,
        lanes: tuple[tuple[str, int], ...] = (),
    ) -> str:
        order = tuple(sorted(axes))
        dims = tuple(Dim(a, self._size(a), a if a in self.cut else "") for a in order)
        layout = tuple((a, 1) for a in order)
        self.locals[name] = Local(name, dtype, order, dims, "register", layout, lanes)
        return name

    def _ref(self, name: str) -> Value:
        local = self.locals[name]
        return ref(name, local.axes, local.dtype)


def _kind(s: Stmt) -> Literal["add", "max"]:
    return "add" if s.op == "add" else "max"


def _less(a: Value, b: Value) -> Value:
    return Value("lessthan", (a, b), dtype=BOOL)


def matrix_sides(value: Value, axes: Iterable[str], over: Iterable[str], size) -> Sides | None:
    """The sides of a sum of products that is a product of two matrices as far as blocks go.

    Arguments:
        value: What is summed.
        axes: The axes of the sum.
        over: The axes that it sums over.
        size: Points of an axis' block.
    """
    if not value.dtype.is_float:
        return None
    wide = frozenset(a for a in (*axes, *over) if size(a) > 1)
    found = sides(value, over, wide)
    if found is None or len(wide & frozenset(over)) != 1:
        return None
    if len(found.rows) != 1 or len(found.cols) != 1:
        return None
    extra = (wide & frozenset(axes)) - found.rows - found.cols
    return None if extra else found
