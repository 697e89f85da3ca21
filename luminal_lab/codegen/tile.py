"""The tile program: what one kernel does, block by block, before a renderer spells it.

A `TileProgram` is target-neutral. It is a tree of `Loop`s whose leaves are *statements on
blocks*:

* A `Loop` binds an axis to the block `[v, v + step)`, where `v` runs from `lo` to `hi` in
  steps.
  Loops over the same axis nest (a tile in a tile); the innermost one says what the block is. An
  axis that no enclosing loop binds is *whole*: its block is `[0, extent)`.
* A statement acts on **every point of the current blocks of its axes**, clipped to the extents:
  nothing beyond an extent is read, written or counted. A renderer honours the clipping as its
  target likes: C prints a full body and a tail body of static size, Triton prints masks.
* A statement's *axes* are the free axes of its value (plus those of what it writes). There is
  no other order between the points of one statement; statements are executed in the order
  given.

Values are ordinary `luminal_lab.egraph.values.Value`s in a lowered form:

* a `load` of a buffer has exactly one index: the flat element offset, affine over axes and over
  `@0…` for data-dependent indices. A third attribute `"clamp"` says that the offset may leave
  the buffer where the result is not used (below a select): the renderer must clamp or mask it;
* a `load` whose buffer name starts with `%` reads a `Local` at its own axes, in the order of
  `Local.axes`;
* there is no `red` and no `online`: reductions are `Init` / `Accumulate` / `Fold` statements,
  and an online reduction has become several statements with carried locals.

Statements:

| statement | meaning |
|---|---|
| `Init(local, number)` | every element of the local's block becomes `number` |
| `Assign(local, value)` | `local[axes] = value` |
| `Accumulate(local, op, value)` | `local[axes] op= op-reduction of value over its other axes` |
| `Fold(local, op, source)` | `local[axes] = op-reduction of the source's lanes` |
| `Store(buffer, index, value)` | `buffer[index] = value` |

`Store(stream=True)` marks lines of memory that are written whole and not read again by the
kernel: C sends them past the caches where it can. It changes no result.

`Accumulate(dot=True)` marks a product of two factors of which each has an axis that the other
lacks: Triton prints `tl.dot`, Metal simdgroup matrices, C a register tile. It is a property of
the free axes, computed by the lowering.

Loop kinds: `grid` loops are independent and parallel (a program id, a task of a thread pool);
statements before an inner grid loop inside an outer one depend on the outer block alone and may
be computed once per outer block or again in every program. `serial` loops carry state from
block to block. `inner` loops are the loops of one nest: they order the points of a block and
only a `simd` program has them. In a `simd` program the statement's `vector` axis is the one
whose points become vector lanes; the points of its other axes are unrolled.

Locals live where `space` says: `register` (one value per point of the block, never indexed by a
loop inside its scope), `thread` (scratch memory of one thread), `shared` (scratch memory of the
whole kernel, written by one top-level statement and read by later ones), `build` (a pack buffer
that is filled when the executable is built).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from luminal_lab.egraph.values import Buffer, Kernel, Value
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Symbol, ceildiv

LoopKind = Literal["grid", "serial", "inner"]
Space = Literal["register", "thread", "shared", "build"]


@dataclass(frozen=True)
class Dim:
    """The block of one axis that a local holds.

    Arguments:
        axis: Its name.
        size: Number of points, a Dim.
        origin: The variable of the loop whose block it is; empty when the axis is whole.
    """

    axis: str
    size: Any
    origin: str = ""


@dataclass(frozen=True)
class Local:
    """A value kept by the kernel itself: an accumulator, a carried state, a piece of scratch.

    Arguments:
        name: Starts with `%`.
        dtype: Element type.
        axes: The axes that index it, in the order in which loads name them.
        dims: Its extent along each of `axes`, in the same order.
        space: Where it lives.
        layout: How memory is laid out, outermost first: pairs (axis, granularity). The pair
            `(j, 32)` counts panels of 32 points of `j`, a later `(j, 1)` the points in a panel.
        lanes: Axes that are being reduced and still kept: pairs (axis, block). `Accumulate`
        keeps
            the points of such a block apart and `Fold` reduces them.
        pad: Elements added to the size of the last layout dim, against cache-set conflicts.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    dims: tuple[Dim, ...]
    space: Space
    layout: tuple[tuple[str, int], ...]
    lanes: tuple[tuple[str, int], ...] = ()
    pad: Any = 0

    def sizes(self) -> list[Any]:
        """The extents of the layout's dims (Dims), in elements of that dim."""
        left = {d.axis: d.size for d in self.dims}
        whole = dict(left)
        out = []
        for k, (axis, step) in enumerate(self.layout):
            out.append(ceildiv(left[axis], step))
            left[axis] = step
            if k == len(self.layout) - 1 and whole[axis] != 0:
                out[-1] += self.pad
        return out

    @property
    def numel(self) -> Any:
        """Elements that it occupies (a Dim), padding included."""
        out = 1
        for n in self.sizes():
            out *= n
        return out


@dataclass(frozen=True)
class Loop:
    """Blocks of an axis.

    Arguments:
        axis: The axis.
        var: The name of its variable, unique along a path of nested loops.
        step: Points in a block; the last block may be shorter, and a block never reaches beyond
            the enclosing block of its axis.
        kind: See the module's text.
        body: Statements and loops.
        lo: The first block begins at the maximum of these (over variables of outer loops, named
        by
            their axes), rounded down to a multiple of `step`; 0 when empty.
        hi: No block begins at or after the minimum of these; the outer block's end (or the
        extent)
            always bounds it too.
        outer: The variable of the enclosing loop over the same axis, if there is one.
        ahead: Places, as pairs (buffer, flat offset), whose lines each step asks for because a
            later block reads them: a hint, see `prefetch.py`. They may leave the buffer.
    """

    axis: str
    var: str
    step: int
    kind: LoopKind
    body: tuple[Node, ...]
    lo: tuple[Index, ...] = ()
    hi: tuple[Index, ...] = ()
    outer: str = ""
    ahead: tuple[tuple[str, Index], ...] = ()


@dataclass(frozen=True)
class Init:
    """Every element of a local (lanes included) becomes a number."""

    local: str
    number: float | int | bool
    vector: str | None = None


@dataclass(frozen=True)
class Assign:
    """`local[axes] = value`."""

    local: str
    value: Value
    vector: str | None = None


@dataclass(frozen=True)
class Accumulate:
    """`local[axes] op= op-reduction of value over the axes that the local lacks`."""

    local: str
    op: Literal["add", "max"]
    value: Value
    vector: str | None = None
    dot: bool = False


@dataclass(frozen=True)
class Fold:
    """`local[axes] = op-reduction over the lanes of source`."""

    local: str
    op: Literal["add", "max"]
    source: str
    vector: str | None = None


@dataclass(frozen=True)
class Store:
    """`buffer[index] = value`; the index is a flat element offset.

    A `scatter` (`set` or `add`) stores at an index with the values `at` for `@0…`, and does
    nothing where that is outside of the buffer. `stream` is a hint: see the module's text. It
    happens where all of `guard` is >= 0; the vector axis is none of the guard's.
    """

    buffer: str
    index: Index
    value: Value
    vector: str | None = None
    scatter: str = ""
    at: tuple[Value, ...] = ()
    stream: bool = False
    guard: tuple[Index, ...] = ()


Statement = Init | Assign | Accumulate | Fold | Store
Node = Loop | Init | Assign | Accumulate | Fold | Store


@dataclass(frozen=True)
class TileProgram:
    """One kernel, lowered.

    Arguments:
        kernel: What it computes.
        extents: The extent (a Dim) of every axis that occurs, merged and renamed ones too.
        buffers: Buffers read and written, by name.
        reads, writes: Their names, in the order of the kernel's parameters.
        locals: Every local, by name.
        body: The program: grid loops run in parallel; what is outside of them runs once.
        build: Statements that fill the `build` locals, run when the executable is built.
        style: `simd` (C: nests, vector axes, packing) or `block` (Triton, Metal: whole blocks).
        lanes: Lanes of a float32 vector (`simd`).
        parallel: Whether it is worth more than one thread; its work, where a call decides.
        schedule: The `Schedule` that it was lowered with.
        scratch: Names of those `buffers` that are the kernel's own: shared scratch that is
            addressed by a flat index, written by one statement and read by later ones.
        nodes: The HLIR nodes that it covers.
    """

    kernel: Kernel
    extents: Mapping[str, Any]
    buffers: Mapping[str, Buffer]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    locals: Mapping[str, Local]
    body: tuple[Node, ...]
    build: tuple[Node, ...] = ()
    style: Literal["simd", "block"] = "simd"
    lanes: int = 16
    parallel: Any = True
    schedule: Any = None
    scratch: tuple[str, ...] = ()
    nodes: tuple[int, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The program as indented text."""
        lines = [
            f"tile program ({self.style}) {' '.join(self.writes)} <- {' '.join(self.reads)}"
        ]
        for local in self.locals.values():
            dims = ", ".join(f"{d.axis}:{d.size}" for d in local.dims)
            lanes = "".join(f" lanes {a}:{n}" for a, n in local.lanes)
            lines.append(f"  {local.space} {local.name}: {local.dtype}[{dims}]{lanes}")
        if self.build:
            lines.append("build")
            lines.extend(_lines(self.build, 1))
        lines.extend(_lines(self.body, 0))
        return "\n".join(lines)


@dataclass(frozen=True)
class Pack:
    """A buffer that a kernel fills when the executable is built.

    Arguments:
        name: The local that it holds.
        nbytes: Its size.
        reads: The constant buffers that it is computed from.
    """

    name: str
    nbytes: int
    reads: tuple[str, ...]


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel.

    Arguments:
        text: The source; for C without the prelude.
        entry: Name of its entry function; a kernel with packs also has `{entry}_pack`.
        params: Buffer names in the order of the pointers: reads, then writes.
        packs: One more pointer each, after the params.
        sizes: The size symbols that it takes: one pointer to their values, as `long`s, comes
            after those of the packs. None when all sizes are fixed.
        workspace_bytes: Size (a Dim) of the scratch behind the last pointer; 0 when there is
            none.
        language: `c`, `triton` or `metal`.
        launch: What a launcher needs beside the text (grid, constants), as plain data.
    """

    text: str
    entry: str
    params: tuple[str, ...]
    packs: tuple[Pack, ...] = ()
    workspace_bytes: Any = 0
    language: str = "c"
    launch: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[Symbol, ...] = ()


def walk(nodes: tuple[Node, ...], path: tuple[Loop, ...] = ()) -> Iterator[tuple[Node, tuple]]:
    """Each node in execution order, with the loops around it, outermost first."""
    for node in nodes:
        yield node, path
        if isinstance(node, Loop):
            yield from walk(node.body, (*path, node))


def value_of(node: Node) -> Value | None:
    """The value that a statement computes, if it computes one."""
    return node.value if isinstance(node, Assign | Accumulate | Store) else None


def values_of(node: Node) -> tuple[Value, ...]:
    """All values that a statement computes: a scatter computes where it stores as well."""
    value = value_of(node)
    if value is None:
        return ()
    return (value, *node.at) if isinstance(node, Store) else (value,)


def is_local(name: str) -> bool:
    """Whether a name that a load reads is that of a local."""
    return name.startswith("%")


def _lines(nodes: tuple[Node, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for n in nodes:
        vector = "" if isinstance(n, Loop) or n.vector is None else f"  /{n.vector}"
        if isinstance(n, Loop):
            bounds = "".join(f" from {e}" for e in n.lo) + "".join(f" to {e}" for e in n.hi)
            ahead = "".join(f"  ask {name}[{index}]" for name, index in n.ahead)
            yield f"{pad}{n.kind} {n.var} step {n.step}{bounds}:{ahead}"
            yield from _lines(n.body, depth + 1)
        elif isinstance(n, Init):
            yield f"{pad}{n.local} = {n.number}{vector}"
        elif isinstance(n, Assign):
            yield f"{pad}{n.local} = {show(n.value)}{vector}"
        elif isinstance(n, Accumulate):
            mark = "dot " if n.dot else ""
            yield f"{pad}{n.local} {n.op}= {mark}{show(n.value)}{vector}"
        elif isinstance(n, Fold):
            yield f"{pad}{n.local} = fold {n.op} {n.source}{vector}"
        else:
            at = "".join(f"; @{k}={show(v)}" for k, v in enumerate(n.at))
            sign = "+=" if n.scatter == "add" else "="
            past = "  stream" if n.stream else ""
            yield f"{pad}{n.buffer}[{n.index}{at}] {sign} {show(n.value)}{vector}{past}"


_INFIX = {"add": "+", "mul": "*", "lessthan": "<", "mod": "%"}


def show(v: Value) -> str:
    """A value as one line of text."""
    if v.op == "const":
        return str(v.attrs[0])
    if v.op == "iota":
        return f"iota({v.attrs[0]})"
    if v.op == "load":
        index = ", ".join(map(str, v.attrs[1]))
        args = "".join(f"; @{k}={show(a)}" for k, a in enumerate(v.args))
        return f"{v.attrs[0]}[{index}{args}]" if index or args else v.attrs[0]
    if v.op in _INFIX:
        return f"({show(v.args[0])} {_INFIX[v.op]} {show(v.args[1])})"
    name = str(v.dtype) if v.op == "cast" else v.op
    return f"{name}({', '.join(map(show, v.args))})"
