"""Do all members of each e-class agree? One linear pass over a saturated region.

Every e-class gets the value of one of its e-nodes; every other e-node is then evaluated from
the values of its children and compared. A wrong equation shows at the class that it spoiled,
whatever extraction would have chosen.

A load below a Select may be out of bounds where the Select discards it, so values carry the
points at which they are defined; only those are compared. What is stored is defined or not for
all members of a class alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.egraph import EClass, ENode, Part
from luminal_lab.egraph.evaluate import (
    Points,
    align,
    carried,
    hold,
    index_value,
    max_over,
    pointwise,
    read,
    repeated,
    sum_over,
)
from luminal_lab.egraph.gemm import GemmForm, activate
from luminal_lab.egraph.library import reference
from luminal_lab.egraph.steps import is_gathered
from luminal_lab.egraph.values import BINDERS
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import apply
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.index import Index

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Disagreement:
    """An e-node that differs from its class.

    Arguments:
        eclass: The class's id.
        node: The e-node.
        against: The e-node that gave the class its value.
        error: The largest difference, relative to the larger magnitude (at least 1).
    """

    eclass: int
    node: ENode
    against: ENode
    error: float

    @property
    def rule(self) -> str:
        """The rule that is to blame: the one that made either of the two last."""
        return max((self.node, self.against), key=lambda n: n.iteration).rule


@dataclass(frozen=True)
class Defined:
    """A value, and where it is defined.

    Arguments:
        tensor: V: over the axes of `order`. T: what is stored.
        order: The axes of the tensor's dims, sorted.
        valid: Where it is defined, of the tensor's dims; None for everywhere.
    """

    tensor: Tensor
    order: tuple[str, ...] = ()
    valid: Tensor | None = None


def audit(
    part: Part, buffers: Mapping[str, Tensor], tolerance: float = 1e-9
) -> list[Disagreement]:
    """Compare all members of all classes of a region.

    Arguments:
        part: A saturated region; keep its extents small.
        buffers: A tensor for each input.
        tolerance: Largest relative difference that is taken for rounding.

    Returns:
        What disagrees, in the order of classes.
    """
    return audit_classes(part.classes, part.extents, buffers, part.hlir, tolerance)


def audit_classes(
    classes: Sequence[EClass],
    extents: Mapping[str, int],
    buffers: Mapping[str, Tensor],
    hlir: Hlir | None = None,
    tolerance: float = 1e-9,
) -> list[Disagreement]:
    """`audit`, for classes that stand alone."""
    auditor = _Auditor(classes, extents, buffers, hlir)
    auditor.represent()
    out = []
    for c in classes:
        for node in c.nodes:
            if c.id not in auditor.values or node is auditor.chosen[c.id]:
                continue
            value = auditor.node(node, c)
            error = difference(auditor.values[c.id], value)
            if c.sort == "T" and _undefined(value, auditor.values[c.id]):
                error = float("inf")
            if error > tolerance:
                out.append(Disagreement(c.id, node, auditor.chosen[c.id], error))
    return out


def _undefined(a: Defined, b: Defined) -> bool:
    """Whether two ways to store one tensor differ in which elements they define."""
    return any(
        x.valid is not None and bool((~x.valid & (True if y.valid is None else y.valid)).any())
        for x, y in ((a, b), (b, a))
    )


def difference(a: Defined, b: Defined) -> float:
    """The largest relative difference where both are defined; inf for unlike NaN or inf."""
    import torch

    order = sorted({*a.order, *b.order})
    x, y = _aligned(a, order), _aligned(b, order)
    p, q = torch.broadcast_tensors(x.tensor, y.tensor)
    p, q = p.to(torch.float64), q.to(torch.float64)
    same = (p == q) | (p.isnan() & q.isnan())
    for valid in (x.valid, y.valid):
        if valid is not None:
            same = same | ~valid.expand(same.shape)
    scale = torch.maximum(p.abs(), q.abs()).clamp(min=1.0)
    error = torch.where(same, 0.0, (p - q).abs() / scale)
    error = torch.where(error.isnan(), float("inf"), error)
    return float(error.max()) if error.numel() else 0.0


def _aligned(value: Defined, order: Sequence[str]) -> Defined:
    """A V value over more axes, to broadcast (a T value has no axes and stays as it is)."""
    if not order or (not value.order and value.tensor.dim()):
        return value
    valid = None if value.valid is None else align(value.valid, value.order, order)
    return Defined(align(value.tensor, value.order, order), tuple(order), valid)


@dataclass
class _Auditor:
    classes: Sequence[EClass]
    extents: Mapping[str, int]
    buffers: Mapping[str, Tensor]
    hlir: Hlir | None
    values: dict[int, Defined] = field(default_factory=dict)
    chosen: dict[int, ENode] = field(default_factory=dict)

    def represent(self) -> None:
        """Give every class the value of its first e-node whose children have one."""
        changed = True
        while changed:
            changed = False
            for c in self.classes:
                if c.id in self.values:
                    continue
                for node in c.nodes:
                    if all(x in self.values for x in node.children):
                        self.values[c.id] = self.node(node, c)
                        self.chosen[c.id] = node
                        changed = True
                        break

    def node(self, node: ENode, c: EClass) -> Defined:
        """The value of an e-node, from those of its children, over the axes that it reads."""
        if c.sort == "T":
            return self._tensor(node, c)
        order = self._order(node)
        out, valid = self._value(node, c, order)
        shape = [self.extents[a] for a in order]
        return Defined(
            out.expand(shape),
            tuple(order),
            None if valid is None else valid.expand(shape).contiguous(),
        )

    # ------------------------------------------------------------------ values

    def _order(self, node: ENode) -> list[str]:
        axes = {a for x in node.children for a in self.values[x].order}
        if node.op in BINDERS:
            axes.discard(node.attrs[-1])
        elif node.op == "iota":
            axes |= node.attrs[0].axes
        elif node.op == "load":
            for i in node.attrs[0]:
                axes |= {a for a in i.axes if not is_gathered(a)}
        return sorted(axes)

    def _value(self, node: ENode, c: EClass, order: list[str]) -> tuple[Tensor, Tensor | None]:
        points = Points(self.extents, {})
        if node.op == "red":
            return self._reduction(node, order)
        if node.op in ("carry", "online"):
            args = [(self.values[x].tensor, self.values[x].order) for x in node.children]
            axis = node.attrs[-1]
            out = carried(node.op, node.attrs, args, self.extents[axis], order)
            return out, self._all_valid(node, axis, order)
        if node.op == "load":
            return self._load(node, order, points)
        args = [_aligned(self.values[x], order) for x in node.children]
        tensors = [a.tensor for a in args]
        out = pointwise(node.op, node.attrs, tensors, c.dtype, order, points)
        if node.op == "select":
            condition, a, b = args
            return out, _both(_where(condition.tensor, a.valid, b.valid), condition.valid)
        return out, _all([a.valid for a in args])

    def _load(
        self, node: ENode, order: Sequence[str], points: Points
    ) -> tuple[Tensor, Tensor | None]:
        source, *indices = node.children
        at = [_aligned(self.values[x], order) for x in indices]
        (index,) = node.attrs
        tensors = [a.tensor for a in at]
        buffer = self.values[source]
        out = read(buffer.tensor, index, order, points, tensors)
        valid = _all([a.valid for a in at])
        for i, n in zip(index, buffer.tensor.shape):
            where = index_value(i, order, points, tensors)
            inside = (where >= 0) & (where < n)
            if not bool(inside.all()):
                valid = _both(valid, inside)
        if buffer.valid is not None:
            valid = _both(valid, read(buffer.valid, index, order, points, tensors))
        return out, valid

    def _reduction(self, node: ENode, order: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        op, axis = node.attrs
        x = self.values[node.children[0]]
        n = self.extents[axis]
        if axis not in x.order:
            if op == "add":
                out = repeated(x.tensor, n)
            else:
                out = x.tensor if n else max_over(x.tensor[..., None][..., :0], -1)
        elif op == "add":
            out = sum_over(x.tensor, [x.order.index(axis)])
        else:
            out = max_over(x.tensor, x.order.index(axis))
        return out, self._all_valid(node, axis, order)

    def _all_valid(self, node: ENode, axis: str, order: Sequence[str]) -> Tensor | None:
        """Where every term of a reduction is defined."""
        valid = None
        for x in node.children:
            mask, own = self.values[x].valid, list(self.values[x].order)
            if mask is None:
                continue
            if axis in own:
                mask = mask.all(dim=own.index(axis))
                own.remove(axis)
            valid = _both(valid, align(mask, own, order))
        return valid

    # ------------------------------------------------------------------ tensors

    def _tensor(self, node: ENode, c: EClass) -> Defined:
        if node.op == "input":
            return Defined(hold(self.buffers[node.attrs[0]]))
        if node.op in ("kernel", "planes"):
            return self._kernel(node, c)
        if node.op == "gemm":
            tensors = [self.values[x].tensor for x in node.children]
            out = gemm(node.attrs[0], tensors, c.shape)
            return Defined(apply.cast(out, c.dtype, "float64"))
        if node.op == "library":
            tensors = [self.values[x].tensor for x in node.children]
            out = reference(node.attrs[0], tensors, c.shape)
            return Defined(apply.cast(out, c.dtype, "float64"))
        if node.op == "scatter":
            return self._scatter(node)
        assert self.hlir is not None
        spec = self.hlir.nodes[node.attrs[0]]
        args = [self.values[x].tensor for x in node.children]
        native = [
            a.to(apply.torch_dtype(self.classes[x].dtype)) for a, x in zip(args, node.children)
        ]
        results = apply.call_aten(spec, native)
        return Defined(hold(results[spec.attrs.get("result") or 0]))

    def _scatter(self, node: ENode) -> Defined:
        mode, axes, index = node.attrs
        order = [a for i in axes for a in sorted(i.axes)]
        ordered = sorted(order)
        into, *children = node.children
        values = [_aligned(self.values[c], ordered).tensor for c in children]
        out = scattered(
            self.values[into].tensor, values[0], values[1:], index, order, self.extents, mode
        )
        return Defined(out, (), self.values[into].valid)

    def _kernel(self, node: ENode, c: EClass) -> Defined:
        index = node.attrs[0]
        order = sorted(frozenset().union(*(i.axes for i in index))) if index else []
        value = self.values[node.children[0]]
        if not set(value.order) <= set(order):
            raise LuminalError(f"a kernel stores {index} of a value over {value.order}")
        value = _aligned(value, order)
        tensor = store(value.tensor, index, order, c.shape, self.extents)
        valid = value.valid
        if valid is not None:
            valid = store(valid, index, order, c.shape, self.extents)
        return Defined(tensor, (), valid)


def store(
    value: Tensor,
    index: Sequence[Index],
    order: Sequence[str],
    shape: Sequence[int],
    extents: Mapping[str, int],
) -> Tensor:
    """What a kernel leaves in memory: a value over `order`, stored at an index map."""
    import torch

    points = Points(extents, {})
    full = value.expand([extents[a] for a in order])
    if not index:
        return full.reshape(())
    turned = _turned(index, order, shape, extents)
    if turned is not None:  # places need not be computed: they may take more than the value
        return full.permute(turned).reshape(tuple(shape))
    out = torch.zeros(tuple(shape), dtype=value.dtype)
    at = tuple(index_value(i, order, points).expand(full.shape).reshape(-1) for i in index)
    out[at] = full.reshape(-1)
    return out


def _turned(
    index: Sequence[Index],
    order: Sequence[str],
    shape: Sequence[int],
    extents: Mapping[str, int],
) -> list[int] | None:
    """Where the axes of a stored tensor are in `order`, if it is those axes in some order.

    Dims of size 1 at a constant place do not count. None when the places need to be computed.
    """
    out: list[int] = []
    for i, n in zip(index, shape):
        axis = i.single
        if axis is not None and extents[axis] == n:
            out.append(order.index(axis))
        elif n != 1 or i.axes:
            return None
    return out if sorted(out) == list(range(len(order))) else None


def scattered(
    into: Tensor,
    value: Tensor,
    at: Sequence[Tensor],
    index: Sequence[Index],
    order: Sequence[str],
    extents: Mapping[str, int],
    mode: str,
) -> Tensor:
    """What a scatter leaves in memory.

    Arguments:
        into: What it starts from.
        value: What is stored, over the sorted axes of the points.
        at: The values of `@0…`, likewise.
        index: Where it is stored.
        order: The axes of the points, outermost first.
        extents: Their extents, among others.
        mode: `"set"` or `"add"`.
    """
    ordered = sorted(order)
    points = Points(extents, {})
    shape = [extents[a] for a in ordered]
    turn = [ordered.index(a) for a in order]

    def spread(x: Tensor) -> Tensor:
        return x.expand(shape).permute(turn) if shape else x.reshape(())

    places = [spread(index_value(i, ordered, points, at)) for i in index]
    return apply.scatter(into, spread(value), places, mode)


def gemm(form: GemmForm, tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A library product, by its strides."""
    import torch

    flat = [t.contiguous().reshape(-1) for t in tensors]
    extents = [b[0] for b in form.batch]
    a = flat[0].as_strided([*extents, form.m, form.k], [*(b[1] for b in form.batch), *form.a])
    b = flat[1].as_strided([*extents, form.k, form.n], [*(b[2] for b in form.batch), *form.b])
    out = a @ b
    out = out * form.alpha
    if form.plus is not None:
        out = out + form.beta * flat[2].as_strided([*extents, form.m, form.n], form.plus)
    out = activate(form.act, out)
    result = torch.zeros(tuple(shape), dtype=out.dtype)
    place = [*(x[3] for x in form.batch), *form.c]
    result.view(-1).as_strided([*extents, form.m, form.n], place).copy_(out)
    return result


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _all(masks: Sequence[Tensor | None]) -> Tensor | None:
    valid = None
    for mask in masks:
        valid = _both(valid, mask)
    return valid


def _where(condition: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None and b is None:
        return None
    import torch

    yes = torch.ones((), dtype=torch.bool)
    return torch.where(condition, yes if a is None else a, yes if b is None else b)


def inputs_for(
    hlir: Hlir, seed: int = 0, weights: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Random tensors for a region's inputs: small, finite, non-zero; indices are 0 or 1."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    out = {}
    for spec in hlir.inputs:
        node = hlir.nodes[spec.node]
        given = (weights or {}).get(spec.name)
        out[spec.name] = (
            given if given is not None else _random(node.shape, node.dtype, generator)
        )
    return out


def _random(shape: Sequence[int], dtype: Any, generator: Any) -> Tensor:
    import torch

    if dtype.is_float:
        x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
        return (x.sign() + x / 4).to(getattr(torch, dtype.torch_name))
    x = torch.randint(0, 2, tuple(shape), generator=generator)
    return x.to(getattr(torch, dtype.torch_name))
