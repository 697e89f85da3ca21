"""The lowering: statements and a schedule become a tile program.

One recursion over loops does it. For the next loop axis `a` of the order, statements fall into
*phases* (`analysis.runs`): what does not depend on `a` comes before its first loop; each loop
over `a` holds the statements of one phase; a reduction over `a` is a plain value after its
loop. The same recursion emits the shared loops (grid and serial), and then, for each nest, its
inner loops down to the block of points that a statement handles at once.

Products get operands in scratch (`_stage_products`), online reductions become ordinary
statements with carried state at their loop (`online.py`), and what every loop may skip follows
from the predicates of selects (`predicates.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from luminal_lab.codegen import (
    alloc,
    analysis,
    nests,
    online,
    places,
    predicates,
    prefetch,
    spreads,
    staging,
    terms,
)
from luminal_lab.codegen.body import Body, Stmt, identity
from luminal_lab.codegen.dots import Product
from luminal_lab.codegen.schedule import Schedule, body_of, check, simd_body
from luminal_lab.codegen.streaming import streamable, whole_lines
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Fold,
    Init,
    Loop,
    LoopKind,
    Node,
    Store,
    TileProgram,
)
from luminal_lab.egraph.values import Buffer, Kernel, Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.sizes import Dim, Size, at_least
from luminal_lab.search.machine import Machine


@dataclass(frozen=True)
class Entry:
    """One loop of an order: an axis in blocks of `step` points."""

    axis: str
    step: int
    kind: LoopKind
    vector: bool = False


@dataclass(frozen=True)
class Scope:
    """Where the recursion is.

    Arguments:
        path: The enclosing loops: (axis, variable, step).
        opened: Reductions whose accumulator exists already.
        nest: The whole order of the current nest; empty in shared loops.
        shared: Whether a grid loop has been entered.
    """

    path: tuple[tuple[str, str, int], ...] = ()
    opened: frozenset[str] = frozenset()
    nest: tuple[Entry, ...] = ()
    shared: bool = False

    def step(self, axis: str, extents) -> int:
        """The block of an axis: the step of its innermost loop."""
        for a, _, step in reversed(self.path):
            if a == axis:
                return step
        return extents[axis]


def lower(
    kernel: Kernel, schedule: Schedule | None = None, machine: Machine | None = None
) -> TileProgram:
    """Turn a kernel into a tile program.

    Arguments:
        kernel: What to compute.
        schedule: How; the default schedule when None.
        machine: For which machine; the default one when None.

    Raises:
        ScheduleError: when the schedule does not fit the kernel.
    """
    from luminal_lab.codegen.schedule import default_schedule

    machine = machine or Machine()
    schedule = schedule or default_schedule(kernel, machine)
    if schedule.style == "block":
        refuse_sizes(kernel)
        from luminal_lab.codegen.blocks import lower_blocks

        return lower_blocks(body_of(kernel), schedule)
    body = simd_body(kernel, machine)
    check(schedule, body, machine)
    return Lowering(body, schedule, machine).run()


def refuse_sizes(kernel: Kernel) -> None:
    """Refuse to make blocks of a kernel that takes sizes.

    Raises:
        ScheduleError: naming the sizes.
    """
    if kernel.symbols:
        names = ", ".join(s.name for s in kernel.symbols)
        raise ScheduleError(
            f"the kernel takes the sizes {names}; such kernels are printed as C only",
            fix="capture with fixed sizes",
        )


class Lowering:
    """One kernel's lowering; `run` once."""

    def __init__(self, body: Body, schedule: Schedule, machine: Machine):
        self.body, self.schedule, self.machine = body, schedule, machine
        self.extents = dict(body.extents)
        self.hints = dict(body.tuned.extents)  # what heuristics see
        self.lanes = machine.vector_bytes // 4
        self.counts: Counter[str] = Counter()
        self.taken = {s.name for s in body.stmts}
        self.shapes: dict[str, alloc.Shape] = {}
        self.last: dict[str, str] = {}  # innermost layout axis of locals
        self.fixed: set[str] = set()  # locals whose layout is decided
        self.products: dict[str, Product] = {}
        self.build_names: set[str] = set()
        self.everything: list[Stmt] = []
        self.build_stmts: list[Stmt] = []
        self.images: list[str] = []  # buffers of the kernel's own
        self.kept: dict[str, str] = {}  # by the output that holds a value: what puts it there
        self.streamed: frozenset[str] = frozenset()  # results that go past the caches

    def run(self) -> TileProgram:
        """The tile program."""
        stmts = staging.hoist(list(self.body.stmts), self)
        stmts = staging.keep_values(stmts, self)
        stmts = staging.keep_results(staging.stage_products(stmts, self), self)
        stmts = staging.pack_constants(stmts, self)
        self.everything = stmts
        if self.schedule.stream:
            self.streamed = streamable(stmts, self.body, self.machine)
        order = tuple(Entry(a, n, "grid") for a, n in self.schedule.grid)
        order += tuple(Entry(a, n, "serial") for a, n in self.schedule.serial)
        body = self.top(stmts, order)
        if self.schedule.ahead:
            body = prefetch.ask(body, self.body.buffers, self.machine)
        build = self.top(self.build_stmts, ()) if self.build_stmts else ()
        kernel = self.body.kernel
        program = TileProgram(
            kernel=kernel,
            extents=self.extents,
            buffers=self.body.buffers,
            scratch=tuple(self.images),
            reads=kernel.reads(),
            writes=kernel.writes(),
            locals={},
            body=tuple(body),
            build=tuple(build),
            style=self.schedule.style,
            lanes=self.lanes,
            parallel=self._worth_threads(stmts),
            schedule=self.schedule,
            nodes=kernel.nodes,
        )
        return alloc.allocate(program, self.shapes, self.build_names)

    def _worth_threads(self, stmts: Sequence[Stmt]) -> bool | Size:
        """More than about 20 microseconds of work on one thread; the work if a call decides."""
        total: Dim = 0
        for s in stmts:
            each = sum(terms.work(v) for v in s.values) + 1
            total = total + analysis.points(s.space, self.extents) * each
        return total if isinstance(total, Size) else total > terms.WORK

    # ------------------------------------------------------------------ names

    def fresh(self, stem: str) -> str:
        """A new local name."""
        while True:
            self.counts[stem] += 1
            count = self.counts[stem]
            name = f"%{stem}" if count == 1 else f"%{stem}{count}"
            if name not in self.taken:
                self.taken.add(name)
                return name

    def scratch(self, buffer: Buffer) -> None:
        """Add a buffer of the kernel's own."""
        self.images.append(buffer.name)
        self.body = replace(self.body, buffers={**self.body.buffers, buffer.name: buffer})

    def prefer_last(self, name: str, axis: str) -> None:
        """The nest that writes a local has this vector axis: make it innermost in memory."""
        shape = self.shapes.get(name)
        if shape is None or name in self.fixed or axis not in shape.axes:
            return
        layout = tuple(x for x in shape.layout if x[0] != axis) + ((axis, 1),)
        self.shapes[name] = replace(shape, layout=layout)
        self.last[name] = axis
        self.fixed.add(name)

    def inherit(self, name: str, other: str) -> None:
        """`name` is a part of the product `other`: it has the same nest."""
        if other in self.products:
            self.products[name] = self.products[other]

    def hold(self, name: str, axes: frozenset[str], dtype: DType) -> None:
        """A local that a loop carries."""
        named = tuple(sorted(axes))
        layout = tuple((a, 1) for a in self._layout(named))
        self.shapes[name] = alloc.Shape(dtype, named, layout)

    def declare(self, s: Stmt, lanes: tuple[tuple[str, int], ...] = ()) -> None:
        """Note the shape of the local that a statement writes."""
        name = s.target or s.name
        if name in self.shapes and not lanes:
            return
        axes = tuple(sorted(s.axes))
        layout = s.layout or tuple((a, 1) for a in self._layout(axes))
        self.shapes[name] = alloc.Shape(s.dtype, axes, layout, lanes)
        if layout:
            self.last[name] = layout[-1][0]
        if s.layout:
            self.fixed.add(name)

    def _layout(self, axes: tuple[str, ...]) -> list[str]:
        """Plain layouts put the axis that consumers reduce, or the longest one, last."""
        reduced = [a for t in self.body.stmts for a in t.over]
        return sorted(axes, key=lambda a: (a in reduced, self.hints[a], a))

    # ------------------------------------------------------------------ the recursion

    def top(self, stmts: Sequence[Stmt], order: tuple[Entry, ...]) -> list[Node]:
        """Statements outside of every grid loop."""
        if not stmts:
            return []
        order = tuple(e for e in order if any(e.axis in s.space for s in stmts))
        if not order or order[0].kind != "grid":
            own = self._own_grid(stmts)
            if not own:
                return self.emit(stmts, order, Scope())
            order = own + order
        entry, rest = order[0], order[1:]
        out: list[Node] = []
        for looped, part in analysis.runs(stmts, entry.axis, parallel=True):
            if looped:
                out += self.loop(entry, part, rest, Scope())
            else:
                out += self.top(part, tuple(e for e in order if e.kind != "grid"))
        return out

    def _own_grid(self, stmts: Sequence[Stmt]) -> tuple[Entry, ...]:
        """A grid for what the kernel's own grid does not cover: for all of it, or for some."""
        enough = 2 * self.machine.threads
        together = self._grid_of(stmts)
        if self._tasks(together) >= enough or len(stmts) == 1:
            return together
        for s in stmts:
            alone = max(self._grid_of([s]), key=lambda e: self._tasks((e,)), default=None)
            if alone and self._tasks((alone,)) >= max(enough, self._tasks(together)):
                return (alone,)
        return together

    def _tasks(self, grid: tuple[Entry, ...]) -> int:
        out = 1
        for e in grid:
            out *= -(-self.hints[e.axis] // e.step)
        return out

    def _grid_of(self, stmts: Sequence[Stmt]) -> tuple[Entry, ...]:
        """Axes that all of the statements have and none reduces, in blocks that make tasks."""
        reduced = {a for s in stmts for a in (*s.over, *s.ordered)}
        common = frozenset.intersection(*(s.axes for s in stmts)) - reduced
        if not common or max(analysis.points(s.space, self.hints) for s in stmts) < 4096:
            return ()
        out, tasks = [], 1
        first = stmts[0]
        order = [a for a, _ in first.layout]
        if not order and first.index is not None:
            order = analysis.by_stride(first)
        order = order or sorted(common)
        for a in dict.fromkeys(order):
            if a not in common or tasks >= 8 * self.machine.threads or self.hints[a] < 2:
                continue
            granule = math.lcm(*(g for s in stmts for b, g in s.layout if b == a))
            n = self.hints[a]
            each = analysis.points(first.space, self.hints) // n
            block = granule
            if granule == 1:
                block = max(1, -(-n // 16))
                if a == order[-1] and each < 4096:  # the vector axis: whole vectors in a task
                    block = max(64, -(-block // 64) * 64)
            out.append(Entry(a, min(block, n), "grid"))
            tasks *= -(-n // block)
        return tuple(out)

    def emit(self, stmts: Sequence[Stmt], order: tuple[Entry, ...], scope: Scope) -> list[Node]:
        """Statements under the loops of `scope`, with the loops of `order` still to come."""
        if not stmts:
            return []
        while order and self._idle(order[0], stmts, scope):
            order = order[1:]
        if not order:
            return self.leaf(stmts, scope) if scope.nest else self.finish(stmts, scope)
        entry, rest = order[0], order[1:]
        out: list[Node] = []
        for looped, part in analysis.runs(stmts, entry.axis):
            out += (
                self.loop(entry, part, rest, scope) if looped else self.emit(part, rest, scope)
            )
        return out

    def _idle(self, entry: Entry, stmts: Sequence[Stmt], scope: Scope) -> bool:
        """Whether a loop would do nothing: no statement has its axis, or it has one block."""
        if not any(entry.axis in s.space for s in stmts):
            return True
        whole = scope.step(entry.axis, self.extents)
        return entry.kind == "serial" and at_least(entry.step - whole, 0)

    def loop(
        self, entry: Entry, part: Sequence[Stmt], rest: tuple[Entry, ...], scope: Scope
    ) -> list[Node]:
        """One loop over an axis, with accumulators around it."""
        axis, kind = entry.axis, entry.kind
        reducing = any(axis in s.over for s in part)
        if kind == "grid" and reducing:
            kind = "serial"
        before: list[Node] = []
        after: list[Stmt] = []
        inner = list(part)
        opened = scope.opened
        folds: list[Node] = []
        if scope.nest:
            for s in part:
                if axis in s.over and s.name not in opened:
                    before += self._open(s, scope)
                    opened |= {s.name}
                    folds += self._fold(s, scope)
        elif reducing:
            inner, inits, after = online.carry(part, axis, self)
            inner = staging.after_kept(inner, self)
            before += inits
        depth = sum(1 for a, _, _ in scope.path if a == axis)
        var = axis + "'" * depth
        outer = next((v for a, v, _ in reversed(scope.path) if a == axis), "")
        child = replace(
            scope,
            path=(*scope.path, (axis, var, entry.step)),
            opened=opened,
            shared=scope.shared or kind == "grid",
        )
        bodies: list[predicates.Segment] = [((), (), inner)]
        if not scope.nest and kind == "serial" and self._private(part, axis):
            dead = self._skippable(part, axis)
            bodies = predicates.segments(inner, axis, entry.step, child, self, dead)
            bodies = [
                (lo, hi, self._copy(x) if k else x) for k, (lo, hi, x) in enumerate(bodies)
            ]
        if scope.nest and kind == "inner" and entry.step == 1 and reducing:
            bodies = [predicates.window(inner, axis, scope, self)]
        out = before
        for lo, hi, stmts in bodies:
            nodes = tuple(self.emit(stmts, rest, child))
            out.append(Loop(axis, var, entry.step, kind, nodes, lo, hi, outer))
        out += folds
        out += (
            self.emit(after, tuple(e for e in rest if e.kind == "inner"), scope)
            if after
            else []
        )
        return out

    def _skippable(self, part: Sequence[Stmt], axis: str) -> list[Value]:
        """What must be -inf in a block for it to be skipped; nothing when none may be."""
        scores = dict.fromkeys(s.values[0] for s in part if s.kind == "online")
        for s in part:
            top = s.kind == "reduce" and s.op == "max" and s.value in scores
            if s.kind == "store" or (axis in s.over and s.kind != "online" and not top):
                return []
        return list(scores)

    def _private(self, part: Sequence[Stmt], axis: str) -> bool:
        """Whether nothing outside of the loop reads what its blocks compute point by point."""
        names = {s.name: s.axes for s in part}
        return not any(
            d in names and axis in names[d]
            for s in self.everything
            if s.name not in names
            for d in s.deps()
        )

    def _copy(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """The statements with locals of their own (state that is carried stays shared)."""
        own = {
            s.name: self.fresh(s.name[1:]) for s in stmts if s.kind != "store" and not s.target
        }

        def renamed(v: Value, args: tuple[Value, ...]) -> Value:
            if v.op == "load" and v.attrs[0] in own:
                return terms.remake(v, args, (own[v.attrs[0]], *v.attrs[1:]))
            return terms.remake(v, args)

        out = []
        for s in stmts:
            for old, new in own.items():
                if s.name == old:
                    self.inherit(new, old)
            out.append(
                replace(
                    s,
                    name=own.get(s.name, s.name),
                    values=tuple(terms.rewrite(s.values, renamed)),
                    after=tuple(own.get(a, a) for a in s.after),
                )
            )
        return out

    # ------------------------------------------------------------------ reductions in a nest

    def _lanes_of(self, s: Stmt, scope: Scope) -> tuple[tuple[str, int], ...]:
        """The block of the vector axis, when a statement reduces it."""
        vector = [e for e in scope.nest if e.vector and e.axis in s.space]
        if vector and vector[-1].axis in s.over:
            return ((vector[-1].axis, vector[-1].step),)
        return ()

    def _vector(self, s: Stmt, scope: Scope) -> str | None:
        vector = [e for e in scope.nest if e.vector and e.axis in s.space]
        return vector[-1].axis if vector else None

    def _open(self, s: Stmt, scope: Scope) -> list[Node]:
        """What a reduction starts with; one that goes on from another starts with that."""
        if s.target:
            return []
        lanes = self._lanes_of(s, scope)
        if not lanes:
            self.declare(s)
            return [Init(s.name, identity(s.op, s.dtype), self._vector(s, scope))]
        self.declare(s)
        wide = s.name + ".lanes"
        self.shapes[wide] = alloc.Shape(s.dtype, tuple(sorted(s.axes)), (), lanes)
        return [Init(wide, identity(s.op, s.dtype), lanes[0][0])]

    def _fold(self, s: Stmt, scope: Scope) -> list[Node]:
        lanes = self._lanes_of(s, scope)
        return [Fold(s.name, s.op, s.name + ".lanes", None)] if lanes else []  # type: ignore[arg-type]

    # ------------------------------------------------------------------ leaves

    def finish(self, stmts: Sequence[Stmt], scope: Scope) -> list[Node]:
        """The shared loops are done: make nests, or whole-block statements."""
        if any(s.kind == "online" for s in stmts):
            stmts = online.whole(stmts, self)
        if any(places.is_place(s) for s in stmts):
            stmts = places.whole(stmts, self)
        if any(spreads.is_spread(s) for s in stmts):
            stmts = spreads.whole(stmts, self)
        stmts = staging.after_kept(stmts, self)
        out: list[Node] = []
        for s in stmts:
            if s.kind in ("set", "reduce"):
                self.declare(s)
        for group in nests.groups(stmts, scope, self):
            order = tuple(group.order)
            sub = replace(scope, nest=order or (Entry("", 1, "inner"),))
            out += self.emit(group.stmts, order, sub)
        return out

    def leaf(self, stmts: Sequence[Stmt], scope: Scope) -> list[Node]:
        """Statements on the current blocks."""
        out: list[Node] = []
        for s in stmts:
            vector = self._vector(s, scope) if scope.nest else None
            if s.kind == "store":
                out.append(self._store(s, vector, scope))
                continue
            if s.kind == "reduce":
                lanes = self._lanes_of(s, scope) if scope.nest else ()
                name = s.name + ".lanes" if lanes else s.target or s.name
                dot = s.name in self.products
                out.append(Accumulate(name, s.op, s.value, vector, dot))  # type: ignore[arg-type]
                continue
            self.declare(s)
            out.append(Assign(s.target or s.name, s.value, vector))
        return out

    def _store(self, s: Stmt, vector: str | None, scope: Scope) -> Store:
        assert s.index is not None
        step = scope.step(vector, self.extents) if vector else 1
        innermost = scope.path[-1][0] if scope.path else ""
        stream = s.name in self.streamed and whole_lines(s, vector, step, innermost)
        return Store(s.name, s.index, s.value, vector, s.scatter, s.values[1:], stream, s.guard)
