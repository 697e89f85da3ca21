"""What the printers of block programs share: blocks, names, and where a value is computed.

A value is printed at the level of the innermost loop that binds one of its axes (or carries a
local that it reads), and once per level: what an outer level computes goes before the loop.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_schedule import pow2
from luminal_lab.codegen.tile import (
    Fold,
    Init,
    Loop,
    Node,
    Store,
    TileProgram,
    is_local,
    value_of,
    walk,
)
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import F32, DType


def compute_dtype(dtype: DType) -> DType:
    """The type that arithmetic uses: float32 for the narrow floats, else the type itself."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def negated(v: Value) -> Value | None:
    """What a term of the form -1 * x negates: a sum with it prints as a difference."""
    if v.op == "mul" and v.dtype.is_float:
        for k in (0, 1):
            if v.args[k].op == "const" and v.args[k].attrs[0] == -1.0:
                return v.args[1 - k]
    return None


class Names:
    """Identifiers, each given out once."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def new(self, hint: str) -> str:
        """An identifier like `hint`."""
        base = re.sub(r"\W", "_", hint) or "v"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name, k = base, 1
        while name in self.taken:
            name, k = f"{base}_{k}", k + 1
        self.taken.add(name)
        return name


@dataclass
class Scope:
    """The body of a loop (the whole program for the outermost one) while it is printed."""

    axis: str | None
    writes: frozenset[str]
    indent: str
    lines: list[str] = field(default_factory=list)
    memo: dict[Value, Any] = field(default_factory=dict)


class BlockView:
    """A block program, as printers ask about it.

    Raises:
        ScheduleError: the program is not of style `block`.
    """

    def __init__(self, program: TileProgram):
        if program.style != "block":
            raise ScheduleError(
                f"a program of style {program.style!r} cannot be printed for a GPU",
                fix='lower it with a schedule of style "block"',
            )
        self.program = program
        self.extents = program.extents
        self.grid = _grid(program.body)
        self.steps = {n.axis: n.step for n, _ in walk(program.body) if isinstance(n, Loop)}

    @property
    def inner(self) -> tuple[Node, ...]:
        """The nodes inside of the grid loops."""
        nodes = self.program.body
        for _ in self.grid:
            (loop,) = nodes
            nodes = loop.body  # type: ignore[union-attr]
        return nodes

    def block(self, axis: str) -> int:
        """Points of an axis' block, as a power of two."""
        return pow2(self.steps[axis] if axis in self.steps else self.extents[axis])

    def wide(self, axis: str) -> bool:
        """Whether blocks have a dimension for this axis."""
        return self.block(axis) > 1

    def ragged(self, axis: str) -> bool:
        """Whether a block of this axis may reach beyond its extent."""
        return self.extents[axis] % self.block(axis) != 0

    def sort(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The wide ones of some axes, in the one order that all blocks use."""
        place = self.order
        return tuple(sorted((a for a in set(axes) if self.wide(a)), key=lambda a: place[a]))

    @cached_property
    def order(self) -> dict[str, int]:
        """Where an axis stands in a block: those of the stores by stride, then the others."""
        out: dict[str, None] = {}
        for node, _ in walk(self.program.body):
            if isinstance(node, Store):
                index = node.index
                axes = sorted(
                    index.axes | node.value.free,
                    key=lambda a: (-(abs(index.coef(a)) or 1 << 62), a),
                )
                out.update(dict.fromkeys(axes))
        for node, path in walk(self.program.body):
            out.update(dict.fromkeys(loop.axis for loop in path))
            value = value_of(node)
            if value is not None:
                out.update(dict.fromkeys(sorted(terms.axes_in(value))))
        for local in self.program.locals.values():
            out.update(dict.fromkeys((*local.axes, *(a for a, _ in local.lanes))))
        return {a: k for k, a in enumerate(out)}

    @cached_property
    def uses(self) -> Counter[Value]:
        """How many different terms and statements use a term."""
        roots = [v for node, _ in walk(self.program.body) if (v := value_of(node)) is not None]
        out: Counter[Value] = Counter(roots)
        for v in postorder(roots):
            args = (negated(a) or a if v.op == "add" else a for a in v.args)
            out.update(dict.fromkeys(args, 1))
        return out

    def local_axes(self, name: str) -> tuple[str, ...]:
        """The wide axes of a local's block, lanes included."""
        local = self.program.locals[name]
        return self.sort((*local.axes, *(a for a, _ in local.lanes)))

    def points(self, axes: Iterable[str]) -> int:
        """Points of a block over these axes."""
        out = 1
        for a in axes:
            out *= self.block(a)
        return out


class Scopes:
    """The open loops, outermost first."""

    def __init__(self, indent: str):
        self.stack = [Scope(None, frozenset(), indent)]
        self._reads: dict[Value, frozenset[str]] = {}

    def push(self, axis: str, body: tuple[Node, ...], indent: str) -> Scope:
        """Open a loop's body."""
        writes = frozenset(n.local for n, _ in walk(body) if not isinstance(n, Loop | Store))
        scope = Scope(axis, writes, indent)
        self.stack.append(scope)
        return scope

    def pop(self) -> Scope:
        """Close the innermost body."""
        return self.stack.pop()

    def reads(self, v: Value) -> frozenset[str]:
        """The locals that a term reads."""
        if v not in self._reads:
            self._reads[v] = frozenset(n for n in terms.reads(v) if is_local(n))
        return self._reads[v]

    def home(self, v: Value) -> Scope:
        """The outermost scope in which a term can be computed."""
        for scope in reversed(self.stack):
            if scope.axis in v.free or scope.writes & self.reads(v):
                return scope
        return self.stack[0]

    def of_axis(self, axis: str) -> Scope:
        """The scope whose loop binds an axis; the outermost for grid and whole axes."""
        for scope in reversed(self.stack):
            if scope.axis == axis:
                return scope
        return self.stack[0]

    def forget(self, local: str) -> None:
        """A local changes: terms that read it have to be computed again."""
        for scope in self.stack:
            for v in [v for v in scope.memo if local in self.reads(v)]:
                del scope.memo[v]


def _grid(nodes: tuple[Node, ...]) -> list[Loop]:
    out = []
    while len(nodes) == 1 and isinstance(nodes[0], Loop) and nodes[0].kind == "grid":
        out.append(nodes[0])
        nodes = nodes[0].body
    return out


def opens_with(nodes: tuple[Node, ...], at: int) -> bool:
    """Whether the local that is initialised at `at` is accumulated before anything else."""
    init = nodes[at]
    assert isinstance(init, Init)
    for node in nodes[at + 1 :]:
        if isinstance(node, Loop):
            return False
        if not isinstance(node, Store) and node.local == init.local:
            return not isinstance(node, Fold | Init)
        value = value_of(node)
        if value is not None and init.local in terms.reads(value):
            return False
    return False
