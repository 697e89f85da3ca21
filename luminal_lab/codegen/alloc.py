"""Where locals live: their blocks, their space, and the layout of their memory.

A local's scope is the innermost loop body that holds every statement that touches it. The block
of an axis there is what the local holds of that axis. When no loop between the scope and any of
the statements splits an axis of it, its points are known in the text and it lives in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from luminal_lab.codegen.terms import reads
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Dim,
    Fold,
    Init,
    Local,
    Loop,
    Node,
    Space,
    TileProgram,
    is_local,
    values_of,
    walk,
)
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.sizes import bounds, ceildiv, divides, is_symbolic

MAX_REGISTERS = 64  # vectors (or scalars) that one local may spread over


@dataclass(frozen=True)
class Shape:
    """What the lowering knows about a local before its scope is known."""

    dtype: DType
    axes: tuple[str, ...]
    layout: tuple[tuple[str, int], ...]
    lanes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class _Touch:
    path: tuple[Loop, ...]
    vector: str | None
    kind: str
    top: int
    order: tuple[int, ...]


def allocate(
    program: TileProgram, shapes: Mapping[str, Shape], build: set[str] | frozenset[str]
) -> TileProgram:
    """The program with its locals."""
    touches: dict[str, list[_Touch]] = {}
    for nodes in (program.build, program.body):
        _collect(nodes, (), (), touches)
    locals_ = {}
    for name, seen in touches.items():
        locals_[name] = _local(name, shapes[name], seen, program, name in build)
    spilled = {n for n, x in locals_.items() if x.lanes and x.space != "register"}
    if spilled:
        totals = {
            node.source: node.local
            for nodes in (program.build, program.body)
            for node, _ in walk(nodes)
            if isinstance(node, Fold) and node.source in spilled
        }
        body, built = (_whole(nodes, totals) for nodes in (program.body, program.build))
        return allocate(replace(program, body=body, build=built), shapes, build)
    return replace(program, locals=locals_)


def _whole(nodes: tuple[Node, ...], totals: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes without partial sums per lane: what is in memory is summed point by point.

    Arguments:
        nodes: Of a program.
        totals: For each local that has lanes and no registers, what it is folded into.
    """
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            node = replace(node, body=_whole(node.body, totals))
        elif isinstance(node, Fold) and node.source in totals:
            continue
        elif isinstance(node, Init | Accumulate) and node.local in totals:
            node = replace(node, local=totals[node.local], vector=None)
        out.append(node)
    return tuple(out)


def _collect(nodes, path, order, touches) -> None:
    for k, node in enumerate(nodes):
        here = (*order, k)
        if isinstance(node, Loop):
            _collect(node.body, (*path, node), here, touches)
            continue
        names: dict[str, str] = {}
        if isinstance(node, Init | Assign | Accumulate | Fold):
            names[node.local] = "write"
        if isinstance(node, Fold):
            names.setdefault(node.source, "fold")
        for value in values_of(node):
            for n in reads(value):
                if is_local(n):
                    names.setdefault(n, "read")
        for n, kind in names.items():
            touch = _Touch(path, node.vector, kind, here[0], here)
            touches.setdefault(n, []).append(touch)


def _local(
    name: str, shape: Shape, seen: list[_Touch], program: TileProgram, build: bool
) -> Local:
    common = list(seen[0].path)
    for t in seen[1:]:
        keep = 0
        while keep < min(len(common), len(t.path)) and common[keep] is t.path[keep]:
            keep += 1
        del common[keep:]
    if build:
        common = []
    dims = []
    for a in shape.axes:
        loop = next((lp for lp in reversed(common) if lp.axis == a), None)
        size = program.extents[a]
        if loop:
            size = min(loop.step, bounds(size)[1])
        dims.append(Dim(a, size, loop.var if loop else ""))
    space = _space(shape, dims, common, seen, program, build)
    layout = _fit_layout(shape, dims)
    pad = 0
    if space != "register" and layout:
        last = layout[-1][0]
        size = next(d.size for d in dims if d.axis == last)
        panels = any(a == last and g > 1 for a, g in layout)
        if not panels and len(layout) > 1:
            row = ceildiv(size, program.lanes) * program.lanes
            if divides(1024, row * shape.dtype.bytes):
                row += program.lanes
            pad = row - size
    return Local(name, shape.dtype, shape.axes, tuple(dims), space, layout, shape.lanes, pad)


def _fit_layout(shape: Shape, dims: list[Dim]) -> tuple[tuple[str, int], ...]:
    """The layout, with panels no wider than the block."""
    return shape.layout or tuple((d.axis, 1) for d in dims)


def _space(shape, dims, common, seen, program: TileProgram, build: bool) -> Space:
    if build:
        return "build"
    if not any(loop.kind == "grid" for loop in common):
        if any(loop.kind == "grid" for t in seen for loop in t.path):
            return "shared"
        if len({t.top for t in seen}) > 1 and not _registers(
            shape, dims, common, seen, program
        ):
            return "shared"
    if _in_prefix(common, seen):
        return "thread"
    return "register" if _registers(shape, dims, common, seen, program) else "thread"


def _in_prefix(common, seen) -> bool:
    """Whether it is written in an outer grid loop and read in an inner one."""
    depth = len(common)
    return any(loop.kind == "grid" for t in seen for loop in t.path[depth:])


def _registers(shape, dims, common, seen, program: TileProgram) -> bool:
    """Whether every point is known in the text of each statement that touches it."""
    if program.style == "block":
        return True
    size = 1
    axes = {d.axis: d.size for d in dims} | dict(shape.lanes)
    if any(is_symbolic(n) for n in axes.values()):
        return False
    vectors = {t.vector for t in seen if t.kind != "fold"} & set(axes)
    if len(vectors) > 1:
        return False
    vector = next(iter(vectors), None)
    for t in seen:
        if t.kind == "fold":
            continue
        if vector is not None and t.vector != vector and axes[vector] > 1:
            return False
    lane_axes = {a for a, _ in shape.lanes}
    for a, n in axes.items():
        size *= -(-n // program.lanes) if a == vector else n
        if a in lane_axes:
            continue
        for t in seen:
            if any(loop.axis == a for loop in t.path[len(common) :]):
                return False
    return size <= MAX_REGISTERS
