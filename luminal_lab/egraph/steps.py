"""The steps of a region: its HLIR nodes, plus the copies that outputs and opaque ops need.

The encoder works on steps. A step iterates over named axes and reads earlier steps through
views; a copy step stores what it reads, over all of its axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from luminal_lab.errors import LuminalError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.graph import Dim, Hlir, Node, Operand
from luminal_lab.hlir.index import GATHERED, Index
from luminal_lab.hlir.ops import OPS, REDUCTIONS
from luminal_lab.hlir.view import REDUCED, View, out_axis


@dataclass(frozen=True)
class Read:
    """One operand of a step: an earlier step, and how it is read from this step's axes."""

    step: int
    view: View


@dataclass(frozen=True)
class Step:
    """One step.

    Arguments:
        op: The HLIR op, or `"Copy"`.
        node: The HLIR node that it stands for, None for a copy.
        reads: What it reads.
        shape: Dims of its result.
        axes: Extents of all axes that it iterates over: `i0…`, and `r` when it reduces. A
            Scatter has `i0…` over its result and `p0…` over the points that it stores; a
            Custom whose dims have names also `q0…` over those that its result lacks.
        dtype: Element type of its result.
        attrs: The HLIR node's attributes.
    """

    op: str
    node: int | None
    reads: tuple[Read, ...]
    shape: tuple[Dim, ...]
    axes: Mapping[str, Dim]
    dtype: DType
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def opaque(self) -> bool:
        """Whether it is no value at each point, but a tensor made as a whole."""
        return self.op in ("Scatter", "Custom")

    @property
    def constant(self) -> bool:
        """Whether it is a value that is never stored for its readers (Constant, Iota)."""
        return self.op in ("Constant", "Iota")

    @property
    def reduces(self) -> bool:
        """Whether it reduces over axis `r`."""
        return self.op in REDUCTIONS


def steps_of(hlir: Hlir) -> tuple[list[Step], list[tuple[str, int]]]:
    """The steps of a program, and `(output name, step)` for each of its outputs."""
    steps: list[Step] = []
    at: dict[int, int] = {}  # HLIR node -> step
    for n, node in enumerate(hlir.nodes):
        reads = [Read(at[o.node], o.view) for o in node.operands]
        shapes = _operand_shapes(hlir, node)
        axes = node.axes()
        if node.op == "Scatter":
            points = _points(hlir, node)
            named = {point_axis(k): n for k, n in enumerate(points)}
            over = {out_axis(k): Index.axis(point_axis(k)) for k in range(len(points))}
            reads[1:] = [Read(r.step, r.view.compose(over, named)) for r in reads[1:]]
            axes.update(named)
        roles = _role_axes(node)
        for k, shape in enumerate(shapes):
            view = View.identity(len(shape))
            if roles is not None:
                view = View(tuple(Index.axis(roles[d]) for d in node.attrs["roles"][k]))
                axes |= {roles[d]: n for d, n in zip(node.attrs["roles"][k], shape)}
            reads[k] = Read(_copy(steps, reads[k], shape, False), view)
        at[n] = len(steps)
        steps.append(
            Step(
                node.op,
                n,
                tuple(reads),
                node.shape,
                axes,
                node.dtype,
                node.attrs,
            )
        )
    outputs = []
    for out in hlir.outputs:
        read = Read(at[out.value.node], out.value.view)
        outputs.append((out.name, _copy(steps, read, out.shape, True)))
    return steps, outputs


def _copy(steps: list[Step], read: Read, shape: tuple[Dim, ...], output: bool) -> int:
    """A step that stores what is read; dropped where the producer's tensor will do."""
    axes = {out_axis(k): n for k, n in enumerate(shape)}
    attrs = {"output": output}
    steps.append(Step("Copy", None, (read,), shape, axes, steps[read.step].dtype, attrs))
    return len(steps) - 1


def _operand_shapes(hlir: Hlir, node: Node) -> list[tuple[Dim, ...]]:
    """The shapes of the leading operands that must be tensors in memory."""
    if node.op == "Scatter":
        return [node.shape]
    if node.op != "Custom":
        return []
    shapes = [hlir.nodes[o.node].shape for o in node.operands]
    return [_view_shape(o, s, node) for o, s in zip(node.operands, shapes)]


def _role_axes(node: Node) -> dict[str, str] | None:
    """The axis of each named dim of a Custom: a dim of its result, or one of its own."""
    dims = node.attrs.get("roles") if node.op == "Custom" else None
    if dims is None:
        return None
    axes = {d: out_axis(k) for k, d in enumerate(dims[-1])}
    for d in (d for each in dims[:-1] for d in each):
        axes.setdefault(d, f"q{len(axes)}")
    return axes


def role_axes(step: Step) -> dict[str, str] | None:
    """Likewise, of a step; roles in the order of their first appearance among operands."""
    if step.op != "Custom" or "roles" not in step.attrs:
        return None
    *operands, result = step.attrs["roles"]
    at = {d: out_axis(k) for k, d in enumerate(result)}
    for dims, read in zip(operands, step.reads):
        at |= {d: i.single for d, i in zip(dims, read.view.index) if i.single is not None}
    return {d: at[d] for dims in operands for d in dims}


def _points(hlir: Hlir, node: Node) -> tuple[Dim, ...]:
    """The extents of the points that a Scatter stores."""
    source = hlir.nodes[node.operands[1].node].shape
    return tuple(node.attrs.get("points", source))


def point_axis(dim: int) -> str:
    """The name of a Scatter's axis over dim `dim` of the points that it stores."""
    return f"p{dim}"


def _view_shape(operand: Operand, shape: tuple[Dim, ...], node: Node) -> tuple[Dim, ...]:
    """The shape that a movement-only view gives a tensor: what each axis `ik` runs over."""
    extents: dict[str, Dim] = {}
    for index, n in zip(operand.view.index, shape):
        if index.single is not None:
            extents[index.single] = n
        elif index.axes:
            raise LuminalError(
                f"an operand of {node.attrs.get('target', node.op)} is read at {operand.view},"
                " which is not a permutation of its dims",
                where=node.source.line or None,
            )
    return tuple(extents.get(out_axis(k), 1) for k in range(len(extents)))


def is_gathered(axis: str) -> bool:
    """Whether an axis of a view is bound to the value of an index operand (`@0`, `@1`, …)."""
    return axis.startswith(GATHERED)


def family(op: str) -> str:
    """The family of a step's op (`"copy"` for a copy)."""
    return "copy" if op == "Copy" else OPS[op].family


__all__ = ["REDUCED", "Read", "Step", "family", "is_gathered", "point_axis", "steps_of"]
