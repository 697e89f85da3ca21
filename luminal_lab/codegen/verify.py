"""Checks on a tile program: what would otherwise be wrong results or silent memory corruption.

`verify` proves, statement by statement, that
* every store and every unclamped load stays inside its buffer;
* every local is written before it is read, and every accumulator starts from its identity;
* carried state is overwritten only after everybody in the loop's body has read the old value;
* what parallel tasks share is written by one task per element;
* a local's block covers every access to it, and its points lie along one vector axis at most;
* a statement's vector axis is one of its own axes.
"""

from __future__ import annotations

from collections.abc import Iterator

from luminal_lab.codegen.terms import span
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Fold,
    Init,
    Loop,
    Node,
    Statement,
    Store,
    TileProgram,
    is_local,
    value_of,
    values_of,
)
from luminal_lab.egraph.values import BINDERS, postorder
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import at_least, smallest

Path = tuple[Loop, ...]


def verify(program: TileProgram) -> None:
    """Check a tile program.

    Raises:
        ScheduleError: naming the statement that breaks an invariant.
    """
    checker = _Checker(program)
    checker.block(program.build, ())
    checker.written = {n for n in checker.written if program.locals[n].space == "build"}
    checker.block(program.body, ())
    missing = [w for w in program.writes if w not in checker.stored and _numel(program, w)]
    if missing:
        raise ScheduleError(
            f"the program never stores {', '.join(missing)}", where=str(program)
        )


def _numel(program: TileProgram, name: str) -> int:
    return program.buffers[name].numel


class _Checker:
    def __init__(self, program: TileProgram):
        self.program = program
        self.written: set[str] = set()
        self.started: dict[
            str, Path
        ] = {}  # accumulators and carried state, and where they began
        self.stored: set[str] = set()
        self.vectors: dict[str, str] = {}

    def fail(self, node: Node, what: str) -> None:
        """Report a statement."""
        raise ScheduleError(f"{what}: {node!r}"[:600], where=f"kernel of {self.program.writes}")

    def block(self, nodes: tuple[Node, ...], path: Path) -> None:
        """Nodes in execution order."""
        overwritten: set[str] = set()
        for node in nodes:
            for name in _reads(node):
                if name in overwritten:
                    self.fail(node, f"{name} is read after the loop's body has replaced it")
            if isinstance(node, Loop):
                self.loop(node, path)
            else:
                self.statement(node, path)
            for name in _carried(node):
                start = self.started.get(name)
                if start is not None and len(start) < len(path) and path[: len(start)] == start:
                    overwritten.add(name)

    def loop(self, loop: Loop, path: Path) -> None:
        """A loop's own form."""
        outer = [lp for lp in path if lp.axis == loop.axis]
        if loop.step < 1:
            self.fail(loop, "a loop without steps")
        if (outer[-1].var if outer else "") != loop.outer:
            self.fail(loop, f"the loop says that it is inside {loop.outer!r}")
        if any(lp.var == loop.var for lp in path):
            self.fail(loop, f"the variable {loop.var} is bound twice")
        if loop.kind == "grid" and any(lp.kind != "grid" for lp in path):
            self.fail(loop, "a grid loop inside a sequential one")
        self.block(loop.body, (*path, loop))

    # ------------------------------------------------------------------ statements

    def statement(self, node: Statement, path: Path) -> None:
        """One statement at its place."""
        value = value_of(node)
        for v in postorder(values_of(node)):
            if v.op in BINDERS:
                self.fail(node, "a reduction was not lowered")
            if v.op == "load":
                self.load(node, v, path)
        if isinstance(node, Store):
            self.stored.add(node.buffer)
            if not node.scatter:
                self.inside(node, node.buffer, node.index, node.guard)
                if any(node.vector in g.axes for g in node.guard):
                    self.fail(node, "a guard differs between the lanes of a vector")
            axes = node.index.axes | node.value.free
        else:
            axes = self.local(node, path) | (value.free if value is not None else frozenset())
        if node.vector is not None and node.vector not in axes and value is not None:
            self.fail(node, f"the vector axis {node.vector} is not among its axes")

    def load(self, node: Statement, v, path: Path) -> None:
        """One load: written before, and inside."""
        name, index = v.attrs[0], v.attrs[1]
        if not is_local(name):
            gathered = any(a.startswith("@") for a in index[0].axes)
            if len(v.attrs) == 2 and not gathered:
                self.inside(node, name, index[0])
            elif len(v.attrs) == 2 and self.program.style == "simd":
                self.fail(node, f"a data-dependent load of {name} is not clamped")
            return
        if name not in self.program.locals:
            self.fail(node, f"{name} has no local")
        if tuple(i.single for i in index) != self.program.locals[name].axes:
            self.fail(node, f"{name} is not read at its own axes")
        if name not in self.written:
            self.fail(node, f"{name} is read before it is written")
        self.covered(node, name, path)

    def inside(
        self, node: Statement, name: str, index: Index, guard: tuple[Index, ...] = ()
    ) -> None:
        """An offset within its buffer, where all of `guard` is >= 0."""
        n = span(self.program.buffers[name])
        extents = {a: self.program.extents[a] for a in index.axes}
        for g in guard:
            axis, coef = g.terms[0] if len(g.terms) == 1 else ("", 0)
            if isinstance(axis, str) and axis in extents and isinstance(coef, int) and coef < 0:
                extents[axis] = smallest(extents[axis], g.const // -coef + 1)
        if any(e == 0 for e in extents.values()):
            return
        lo, hi = index.bounds(extents)
        if not at_least(lo, 0) or not at_least(n - hi, 1):
            self.fail(node, f"{name}[{index}] reaches {lo}…{hi} of {n} elements")

    def local(self, node: Init | Assign | Accumulate | Fold, path: Path) -> frozenset[str]:
        """What a statement writes; returns the axes of the local."""
        name = node.local
        local = self.program.locals.get(name)
        if local is None:
            self.fail(node, f"{name} has no local")
        assert local is not None
        if isinstance(node, Init):
            self.started[name] = path
        elif isinstance(node, Accumulate):
            start = self.started.get(name)
            if start is None or path[: len(start)] != start:
                self.fail(node, f"{name} accumulates without a start")
            inner = path[len(start or ()) :]
            if any(lp.kind == "grid" and lp.axis not in local.axes for lp in inner):
                self.fail(node, f"parallel tasks accumulate into {name}")
        elif isinstance(node, Fold):
            source = self.program.locals[node.source]
            if not source.lanes or node.source not in self.written:
                self.fail(node, f"{node.source} has no lanes to fold")
        self.covered(node, name, path)
        self.shared(node, name, path)
        self.written.add(name)
        lanes = frozenset(a for a, _ in local.lanes)
        axes = frozenset(local.axes) | lanes
        if local.space == "register" and node.vector in axes and self.program.style == "simd":
            if self.vectors.setdefault(name, node.vector) != node.vector:
                self.fail(node, f"{name} lies along two vector axes")
        return axes

    def covered(self, node: Statement, name: str, path: Path) -> None:
        """The block of every axis lies within what the local holds."""
        if self.program.style != "simd":
            return
        for dim in self.program.locals[name].dims:
            extent = self.program.extents[dim.axis]
            around = [lp for lp in path if lp.axis == dim.axis]
            names = [lp.var for lp in around]
            scope = names.index(dim.origin) + 1 if dim.origin in names else 0
            if dim.origin and not scope:
                self.fail(
                    node, f"{name} holds a block of {dim.origin}, which is not bound here"
                )
            size = smallest(extent, *(lp.step for lp in around[:scope]))
            if not at_least(dim.size - size, 0):
                self.fail(node, f"{name} holds {dim.size} points of {dim.axis}, not {size}")

    def shared(self, node: Statement, name: str, path: Path) -> None:
        """Scratch of the whole kernel is divided among tasks."""
        local = self.program.locals[name]
        if local.space not in ("shared", "build"):
            return
        for lp in path:
            if (
                lp.kind == "grid"
                and lp.axis not in local.axes
                and not at_least(lp.step - self.program.extents[lp.axis], 0)
            ):
                self.fail(node, f"tasks over {lp.axis} all write {name}")


def _reads(node: Node) -> Iterator[str]:
    """Locals that a node reads, loops included."""
    if isinstance(node, Loop):
        for inner in node.body:
            yield from _reads(inner)
        return
    for v in postorder(values_of(node)):
        if v.op == "load" and is_local(v.attrs[0]):
            yield v.attrs[0]
    if isinstance(node, Fold):
        yield node.source


def _carried(node: Node) -> Iterator[str]:
    """Locals that a node assigns (and does not start itself), loops included."""
    if isinstance(node, Loop):
        started = {n.local for n in node.body if isinstance(n, Init)}
        for inner in node.body:
            yield from (n for n in _carried(inner) if n not in started)
    elif isinstance(node, Assign):
        yield node.local
