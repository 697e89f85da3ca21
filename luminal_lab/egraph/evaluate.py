"""The float64 evaluator of values: what every kernel and every rule is checked against.

Each value is a tensor over its free axes, in the order of their names. As in the HLIR
interpreter, floats are held in float64 and only a cast to a type of 16 bits or less rounds. A
load is clamped to its tensor: where it is out of bounds, a Select discards it. `online` is its
definition, the sum over j of exp2(c*(s - max s))*w, not the recurrence that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.steps import is_gathered
from luminal_lab.egraph.values import BINDERS, Value, numbers_of
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import apply
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import OPS
from luminal_lab.polling import poll

if TYPE_CHECKING:
    from torch import Tensor

Order = tuple[str, ...]
_REFERENCE = {name.lower(): op.reference for name, op in OPS.items() if op.reference}
_BLOCK = 1 << 24  # elements of a reduced value that exist at a time
_KEEP = (
    1 << 27
)  # elements that may be remembered before the insides of reductions are forgotten


def evaluate(
    values: Sequence[Value],
    extents: Mapping[str, int],
    buffers: Mapping[str, Tensor],
    axes: Mapping[str, Tensor] | None = None,
    dtype: Any = None,
) -> list[tuple[Tensor, Order]]:
    """Evaluate values.

    Arguments:
        values: What to compute; shared subterms are computed once.
        extents: The extent of every axis, free or bound.
        buffers: A tensor for each buffer that is loaded, of the buffer's shape.
        axes: Index tensors (int64, 1-d) for free axes that are to be evaluated at some points
            only.
        dtype: The torch dtype in which floats are held; float64 when None.

    Returns:
        For each value its tensor, and the axes of the tensor's dims.
    """
    evaluator = Evaluator(extents, buffers, dtype)
    points = Points(extents, axes or {})
    return [(evaluator.value(v, points), tuple(sorted(v.free))) for v in values]


class Points:
    """Where each axis is evaluated: its whole range, or some points of it."""

    def __init__(
        self,
        extents: Mapping[str, int],
        some: Mapping[str, Tensor],
        tokens: Mapping[str, int] | None = None,
    ):
        self.extents, self.some = extents, some
        self.tokens = tokens if tokens is not None else {a: k + 1 for k, a in enumerate(some)}

    def size(self, axis: str) -> int:
        """How many points."""
        return len(self.some[axis]) if axis in self.some else self.extents[axis]

    def along(self, axis: str) -> Tensor:
        """The points of an axis, as an int64 vector."""
        import torch

        return self.some[axis] if axis in self.some else torch.arange(self.extents[axis])

    def key(self, free: frozenset[str]) -> tuple:
        """What tells these points apart, for a value with these free axes."""
        return tuple((a, self.tokens[a]) for a in sorted(free & self.tokens.keys()))

    def bind(self, axis: str, some: Tensor | None = None, token: int = 0) -> Points:
        """The same, with an axis bound to its whole range, or to a block of it."""
        if some is None and axis not in self.some:
            return self
        points = {a: t for a, t in self.some.items() if a != axis}
        tokens = {a: t for a, t in self.tokens.items() if a != axis}
        if some is not None:
            points[axis], tokens[axis] = some, token
        return Points(self.extents, points, tokens)


def align(x: Tensor, order: Sequence[str], to: Sequence[str]) -> Tensor:
    """A tensor over sorted axes, as one that broadcasts over more sorted axes."""
    if len(order) == len(to):
        return x
    sizes = dict(zip(order, x.shape))
    return x.reshape([sizes.get(a, 1) for a in to])


@dataclass
class Evaluator:
    """Evaluates values at points, and remembers them."""

    extents: Mapping[str, int]
    buffers: Mapping[str, Tensor]
    dtype: Any = None
    _memo: dict[tuple, Tensor] = field(default_factory=dict)
    _wide: dict[str, Tensor] = field(default_factory=dict)
    _held: int = 0
    _next: int = 1 << 20

    def value(self, root: Value, points: Points) -> Tensor:
        """A value as a tensor over its free axes, sorted by name."""
        stack = [root]
        while stack:  # iterative: fused values can be deeper than Python's stack
            v = stack[-1]
            if self._known(v, points) is not None:
                stack.pop()
                continue
            inner = () if v.op in BINDERS else v.args
            missing = [a for a in inner if self._known(a, points) is None]
            if missing:
                stack.extend(missing)
                continue
            poll()
            out = self._compute(v, points)
            self._memo[v, points.key(v.free)] = out
            self._held += out.numel()
            stack.pop()
        found = self._known(root, points)
        assert found is not None
        return found

    def _known(self, v: Value, points: Points) -> Tensor | None:
        return self._memo.get((v, points.key(v.free)))

    def _compute(self, v: Value, points: Points) -> Tensor:
        if v.op == "red" and v.attrs[0] == "add":
            return self._sum(v, points)
        if v.op == "red":
            return self._maximum(v.args[0], v.attrs[1], points)
        if v.op in ("carry", "online"):
            return self._carried(v, points)
        order = sorted(v.free)
        args = [self._known(a, points) for a in v.args]
        if v.op == "load":
            aligned = [align(x, sorted(a.free), order) for x, a in zip(args, v.args)]  # type: ignore[arg-type]
            return read(self._buffer(v.attrs[0]), v.attrs[1], order, points, aligned)
        aligned = [align(x, sorted(a.free), order) for x, a in zip(args, v.args)]  # type: ignore[arg-type]
        return pointwise(v.op, v.attrs, aligned, v.dtype, order, points, self.dtype)

    def _buffer(self, name: str) -> Tensor:
        if name not in self._wide:
            self._wide[name] = hold(self.buffers[name], self.dtype)
        return self._wide[name]

    # ------------------------------------------------------------------ reductions

    def _sum(self, v: Value, points: Points) -> Tensor:
        """A nest of sums; over a product it is one contraction."""
        summed = [v.attrs[1]]
        body = v.args[0]
        while body.op == "red" and body.attrs[0] == "add" and body.attrs[1] not in summed:
            summed.append(body.attrs[1])
            body = body.args[0]
        inside = points
        for axis in summed:
            inside = inside.bind(axis)
        if body.op == "mul" and v.dtype.is_float:
            a, b = body.args
            out = contract(
                self.value(a, inside), sorted(a.free), self.value(b, inside), sorted(b.free),
                sorted(body.free - set(summed)),
            )  # fmt: skip
        else:
            out = self._blocks(body, summed, inside)
        for axis in summed:
            if axis not in body.free:
                out = repeated(out, self.extents[axis])
        self._forget()
        return out

    def _blocks(self, body: Value, summed: Sequence[str], points: Points) -> Tensor:
        """A sum, block by block along one axis when the whole would be too large."""
        order = sorted(body.free)
        dims = [order.index(a) for a in summed if a in body.free]
        if not dims:
            return self.value(body, points)
        total = math.prod(points.size(a) for a in order)
        axis = order[dims[0]]
        n = self.extents[axis]
        blocks = min(n, max(1, -(-total // _BLOCK)))
        if blocks <= 1:
            return sum_over(self.value(body, points), dims)
        import torch

        parts = []
        for some in torch.arange(n).tensor_split(blocks):
            self._next += 1
            block = points.bind(axis, some, self._next)
            parts.append(sum_over(self.value(body, block), dims))
            self._drop((axis, self._next))
        return sum_over(torch.stack(parts), [0])

    def _maximum(self, x: Value, axis: str, points: Points) -> Tensor:
        inside = points.bind(axis)
        t = self.value(x, inside)
        self._forget()
        if axis not in x.free:
            return (
                t
                if self.extents[axis]
                else apply.reduce_last("MaxReduce", t[..., None][..., :0])
            )
        return max_over(t, sorted(x.free).index(axis))

    def _carried(self, v: Value, points: Points) -> Tensor:
        axis = v.attrs[-1]
        inside = points.bind(axis)
        args = [(self.value(a, inside), sorted(a.free)) for a in v.args]
        out = carried(v.op, v.attrs, args, self.extents[axis], sorted(v.free))
        self._forget()
        return out

    def _drop(self, token: tuple[str, int]) -> None:
        for key in [k for k in self._memo if token in k[1]]:
            self._held -= self._memo.pop(key).numel()

    def _forget(self) -> None:
        """Forget the largest tensors when they are too many; what is needed is recomputed."""
        if self._held <= _KEEP:
            return
        for key in sorted(self._memo, key=lambda k: -self._memo[k].numel()):
            if self._held <= _KEEP // 2 or self._memo[key].numel() < 1 << 16:
                break
            self._held -= self._memo.pop(key).numel()


# ---------------------------------------------------------------------- single operations


def hold(x: Tensor, dtype: Any = None) -> Tensor:
    """A buffer as it is computed with: floats in float64, everything else as it is."""
    import torch

    x = x.detach()
    return x.to(dtype or torch.float64) if x.dtype.is_floating_point else x


def pointwise(
    op: str,
    attrs: tuple,
    args: Sequence[Tensor],
    dtype: DType,
    order: Sequence[str],
    points: Points,
    wide: Any = None,
) -> Tensor:
    """An op without a binder on aligned tensors; `const` and `iota` have none."""
    import torch

    held = (wide or torch.float64) if dtype.is_float else getattr(torch, dtype.torch_name)
    if op == "const":
        return torch.tensor(attrs[0], dtype=held)
    if op == "iota":
        return index_value(attrs[0], order, points).to(held)
    if op == "cast":
        rounded = args[0].to(held)
        return (
            rounded.to(getattr(torch, dtype.torch_name)).to(held) if _rounds(dtype) else rounded
        )
    if op == "table":
        numbers = torch.tensor(numbers_of(attrs[0]), dtype=held)
        return numbers[args[0].clamp(0, len(numbers) - 1)]
    if op == "select":
        if args[0].dtype != torch.bool:
            raise LuminalError(f"a choice by {args[0].dtype}, which is no condition")
        return torch.where(*args)
    return _REFERENCE[op](*args)


def _rounds(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 16


def index_value(
    index: Index, order: Sequence[str], points: Points, gathered: Sequence[Tensor] = ()
) -> Tensor:
    """An index expression at points, as an int64 tensor that broadcasts over `order`."""
    import torch

    env: dict[str, Tensor] = {}
    for axis in sorted(index.axes):
        if is_gathered(axis):
            env[axis] = gathered[int(axis[1:])].to(torch.int64)
        else:
            env[axis] = align(points.along(axis), [axis], order)
    out = index.evaluate(env)
    if not isinstance(out, torch.Tensor):
        out = torch.full([1] * len(order), out, dtype=torch.int64)
    return out.reshape([1] * (len(order) - out.dim()) + list(out.shape))


def read(
    buffer: Tensor,
    index: Sequence[Index],
    order: Sequence[str],
    points: Points,
    gathered: Sequence[Tensor] = (),
) -> Tensor:
    """A tensor read at an index map, clamped to its bounds."""
    if buffer.numel() == 0:
        return buffer.new_zeros([points.size(a) for a in order])
    at = []
    for i, n in zip(index, buffer.shape):
        at.append(index_value(i, order, points, gathered).clamp(0, n - 1))
    return buffer[tuple(at)] if at else buffer.reshape([1] * len(order))


def contract(
    a: Tensor, a_order: Sequence[str], b: Tensor, b_order: Sequence[str], out: Sequence[str]
) -> Tensor:
    """The sum of a*b over the axes that are not in `out`."""
    import torch

    number = {axis: k for k, axis in enumerate(sorted({*a_order, *b_order}))}
    return torch.einsum(
        a,
        [number[x] for x in a_order],
        b,
        [number[x] for x in b_order],
        [number[x] for x in out],
    )


def sum_over(x: Tensor, dims: Sequence[int]) -> Tensor:
    """A sum; `or` on bool, and wrapping on integers."""
    import torch

    if x.dtype == torch.bool:
        for d in sorted(dims, reverse=True):
            x = x.any(dim=d)
        return x
    return x.sum(dim=list(dims), dtype=x.dtype)


def max_over(x: Tensor, dim: int) -> Tensor:
    """A maximum over one dim: NaN wins, and the empty maximum is the identity."""
    return apply.reduce_last("MaxReduce", x.movedim(dim, -1))


def repeated(x: Tensor, n: int) -> Tensor:
    """The sum of n equal terms."""
    import torch

    if x.dtype == torch.bool:
        return x & (n > 0)
    return x * n if n else torch.zeros_like(x)


def carried(
    op: str,
    attrs: tuple,
    args: Sequence[tuple[Tensor, Sequence[str]]],
    extent: int,
    out: Sequence[str],
) -> Tensor:
    """A `carry` or an `online` of arguments with their axes, over the axes `out`."""
    if op == "online":
        return online(args, attrs[-1], extent, out)
    *_, axis = attrs
    axis = attrs[-1]
    order = sorted({*out, axis})
    at = order.index(axis)
    x, y = (align(value, own, order).movedim(at, -1) for value, own in args)
    x, y = (t.expand([*t.shape[:-1], extent]) for t in (x, y))
    return apply.place_last(x, y) if attrs[0] == "argmax" else spread_last(x, y)


def spread_last(x: Tensor, w: Tensor) -> Tensor:
    """The sum over the last dim of w*(x - m)**2, where m is the mean of x with weights w."""
    mean = (w * x).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return (w * (x - mean) ** 2).sum(-1)


def online(
    args: Sequence[tuple[Tensor, Sequence[str]]], axis: str, extent: int, out: Sequence[str]
) -> Tensor:
    """The sum over `axis` of exp2(c*(s - max s)) * w, for s, c, w with their axes."""
    (s, s_order), (c, c_order), (w, w_order) = args
    if axis in s_order:
        m = max_over(s, list(s_order).index(axis)).unsqueeze(list(s_order).index(axis))
    else:
        m = s
    order = sorted({*s_order, *c_order})
    p = (align(c, c_order, order) * align(s - m, s_order, order)).exp2()
    total = contract(p, order, w, w_order, out)
    return total if axis in order or axis in w_order else repeated(total, extent)
