"""Lowerings of movement: views, joining, splitting, padding. Nothing but cat adds a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, dims, lowers, whole
from luminal_lab.capture.table import dim as as_dim
from luminal_lab.errors import CaptureError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import at_least, largest, smallest
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar, out_axis


@lowers(
    "view.default", "_unsafe_view.default", "reshape.default", "view_copy.default",
    "_reshape_alias.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
    "unsqueeze_copy.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "squeeze_copy.dims",
)  # fmt: skip
def _reshape(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.reshape(call.shape)


@lowers("expand.default", "expand_copy.default", "expand_as.default", "broadcast_to.default")
def _expand(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.expand(call.shape)


@lowers("permute.default", "permute_copy.default")
def _permute(call: Call, x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(*order)


@lowers("t.default", "numpy_T.default", "mT.default")
def _t(call: Call, x: Tensor) -> Tensor:
    return x if x.rank < 2 else x.transpose(-2, -1)


@lowers("transpose.int")
def _transpose(call: Call, x: Tensor, a: int, b: int) -> Tensor:
    return x.transpose(a, b)


@lowers("narrow_copy.default")
def _narrow_copy(call: Call, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return _slice(call, x, dim, start)


@lowers("slice.Tensor", "slice_copy.Tensor", "narrow.default")
def _slice(
    call: Call,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    if call.target == "narrow.default":
        raise NoLowering("narrow with a tensor start")
    first, _ = _bounds(x, dim, start, end)
    dim = x.dim(dim)
    if call.shape[dim] == x.shape[dim]:
        return x
    return x.slice(dim, first, first + call.shape[dim] * step, step)


def _bounds(x: Tensor, dim: int, start: Any, end: Any) -> tuple[Any, Any]:
    """Start and end of a slice as PyTorch clamps them; the end is None for "to the end"."""
    start = 0 if start is None else as_dim(start)
    n = x.shape[x.dim(dim)]
    end = end if end is None else as_dim(end)
    if any(not isinstance(x, int) for x in (n, start, 0 if end is None else end)):
        # PyTorch clamps a start to the dim; the length, which it announces, is clamped there
        return smallest(largest(start + n if at_least(-start, 1) else start, 0), n), None
    start = min(max(start + n if start < 0 else start, 0), n)
    end = n if end is None else end
    return start, max(min(max(end + n if end < 0 else end, 0), n), start)


@lowers("select.int", "select_copy.int")
def _select(call: Call, x: Tensor, dim: int, index: int) -> Tensor:
    index = as_dim(index)
    return x.pick(dim, index + x.shape[x.dim(dim)] if at_least(-index, 1) else index)


@lowers("split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default",
        "split_copy.Tensor", "split_with_sizes_copy.default", "tensor_split.sections",
        "unsafe_split.Tensor")  # fmt: skip
def _split(call: Call, x: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    dim, start, parts = x.dim(dim), 0, []
    for part in call.value:
        size = dims(part.shape)[dim]
        parts.append(x.slice(dim, start, start + size))
        start += size
    return tuple(parts)


@lowers("unbind.int", "unbind_copy.int")
def _unbind(call: Call, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(x.pick(dim, k) for k in range(len(call.value)))


@lowers("cat.default", "concat.default")
def _cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    rank = len(call.shape)
    parts = [t.cast(call.dtype) for t in tensors if t.rank == rank or t.shape != (0,)]
    if not parts:
        return tensors[0].cast(call.dtype)
    return F.cat(parts, dim)


@lowers("stack.default")
def _stack(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim = dim % len(call.shape)
    return F.cat([t.cast(call.dtype).unsqueeze(dim) for t in tensors], dim)


@lowers("flip.default")
def _flip(call: Call, x: Tensor, over: Sequence[int]) -> Tensor:
    return x.flip(*over) if x.rank else x  # a scalar may be flipped along dim 0


@lowers("roll.default")
def _roll(call: Call, x: Tensor, shifts: Sequence[int], over: Sequence[int] = ()) -> Tensor:
    if not over:
        flat = x.reshape((F.count(x, range(x.rank)),))
        return _roll(call, flat, shifts, (0,)).reshape(x.shape)
    if 0 in x.shape:
        return x
    extents = x.graph.extents(x.shape)
    at = [Index() if n == 1 else Index.axis(out_axis(k)) for k, n in enumerate(x.shape)]
    for dim, shift in zip(over, shifts):
        n = x.shape[x.dim(dim)]
        if n != 1:
            at[x.dim(dim)] = (at[x.dim(dim)] - shift).mod(n, extents)
    return x.viewed(x.shape, at)


@lowers("repeat.default", "tile.default")
def _repeat(call: Call, x: Tensor, times: Sequence[int]) -> Tensor:
    times = [1] * (x.rank - len(times)) + [as_dim(t) for t in times]
    return x.repeat(times)


@lowers("repeat_interleave.self_int")
def _repeat_interleave(
    call: Call, x: Tensor, times: int, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    if dim is None:
        x, dim = x.reshape((F.count(x, range(x.rank)),)), 0
    dim = x.dim(dim)
    wide = x.unsqueeze(dim + 1)
    shape = (*wide.shape[: dim + 1], as_dim(times), *wide.shape[dim + 2 :])
    return wide.expand(shape).reshape(call.shape)


@lowers("constant_pad_nd.default")
def _pad(call: Call, x: Tensor, pads: Sequence[int], value: Scalar = 0) -> Tensor:
    each = [(0, 0)] * x.rank
    for k in range(len(pads) // 2):
        each[x.rank - 1 - k] = (
            as_dim(pads[2 * k]),
            as_dim(pads[2 * k + 1]),
        )
    return x.pad(each, value)


@lowers("unfold.default")
def _unfold(call: Call, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.rank:
        return x.expand(call.shape)
    return x.windows(dim, size, step)


@lowers("diagonal.default", "diagonal_copy.default")
def _diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = x.dim(dim1), x.dim(dim2)
    shape = call.shape
    along = Index() if shape[-1] == 1 else Index.axis(out_axis(len(shape) - 1))
    rest = iter(range(len(shape) - 1))
    at = []
    for d in range(x.rank):
        if d == a:
            at.append(along + max(-offset, 0))
        elif d == b:
            at.append(along + max(offset, 0))
        else:
            k = next(rest)
            at.append(Index() if shape[k] == 1 else Index.axis(out_axis(k)))
    return x.viewed(shape, at)


@lowers("diag_embed.default")
def _diag_embed(
    call: Call, x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Tensor:
    rank, n = len(call.shape), call.shape[dim1]
    a, b = dim1 % rank, dim2 % rank
    row = x.graph.iota(Index.axis("i0") + offset, (n, n))
    col = x.graph.iota(Index.axis("i1"), (n, n))
    pads = [(0, 0)] * (x.rank - 1) + [(max(-offset, 0), max(offset, 0))]
    lead = x.pad(pads) if offset < 0 else x.pad([*pads[:-1], (0, offset)])
    square = F.eq(row, col).where(lead.unsqueeze(-1), 0)
    order = [d for d in range(rank) if d not in (a, b)]
    place = {d: k for k, d in enumerate([*order, a, b])}
    return square.permute(*(place[d] for d in range(rank)))


@lowers("slice_scatter.default")
def _slice_scatter(
    call: Call,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    dim = x.dim(dim)
    n = whole(x.shape[dim], "the dim of the slice")
    first = _bounds(x, dim, start, end)[0]
    size = whole(src.shape[dim], "the slice")
    if size == n:
        return src.cast(x.dtype)
    if not size:
        return x
    i = x.graph.iota(Index.axis(out_axis(dim)), x.shape)
    inside = i < first + (size - 1) * step + 1
    if first:
        inside = (i > first - 1) * inside
    spread = src.cast(x.dtype)
    if step > 1:
        rest = x.graph.iota(Index.axis(out_axis(dim)) - first, x.shape)
        inside = inside * F.is_zero(rest % step)
        wide = spread.unsqueeze(dim + 1).pad(
            [(0, step - 1 if d == dim + 1 else 0) for d in range(x.rank + 1)]
        )
        spread = wide.reshape((*src.shape[:dim], size * step, *src.shape[dim + 1 :]))
    after = n - first - spread.shape[dim]
    spread = spread.pad([(first, after) if d == dim else (0, 0) for d in range(x.rank)])
    return inside.where(spread, x)


@lowers("diagonal_scatter.default")
def _diagonal_scatter(
    call: Call, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    a, b = x.dim(dim1), x.dim(dim2)
    if not src.shape[-1]:
        return x
    axes = [Index() if n == 1 else Index.axis(out_axis(k)) for k, n in enumerate(x.shape)]
    along = axes[a] - max(-offset, 0)
    at = [i for d, i in enumerate(axes) if d not in (a, b)] + [along]
    inside = [along, Index.num(src.shape[-1] - 1) - along]
    spread = src.cast(x.dtype).guarded(x.shape, at, inside, False if x.dtype == BOOL else 0)
    row, col = x.graph.iota(axes[a] + offset, x.shape), x.graph.iota(axes[b], x.shape)
    return F.eq(row, col).where(spread, x)


@lowers("select_scatter.default")
def _select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    dim = x.dim(dim)
    index = as_dim(index)
    index = index + x.shape[dim] if at_least(-index, 1) else index
    place = x.graph.iota(Index.axis(out_axis(dim)), x.shape)
    return F.eq(place, index).where(src.cast(x.dtype).unsqueeze(dim), x)


@lowers("as_strided.default", "as_strided_copy.default")
def _as_strided(
    call: Call,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """Strides over the memory of `x`, whose own layout PyTorch tells."""
    fake = call.fake(0)
    shape = [whole(n, "a dim") for n in x.shape]
    own = list(fake.stride()) if fake is not None else _row_major(shape)
    start = 0 if fake is None else whole(fake.storage_offset(), "the offset")
    offset = start if storage_offset is None else whole(storage_offset, "the offset")
    steps = [whole(step, "a stride") for step in stride]
    sizes = [whole(n, "a dim") for n in call.shape]
    order = sorted(range(x.rank), key=lambda d: (-whole(own[d], "a stride"), d))
    dense = [shape[d] for d in order]
    fits = all(own[d] == n or shape[d] == 1 for d, n in zip(order, _row_major(dense)))
    reach = offset - start + sum((n - 1) * step for n, step in zip(sizes, steps))
    if 0 in sizes:
        return x.graph.full(call.shape, False if x.dtype == BOOL else 0, x.dtype)
    if not fits or offset < start or reach >= math.prod(shape):
        raise CaptureError(
            f"{call.target} reads memory around the tensor that it was given",
            where=x.graph.source.line,
            fix="make the tensor contiguous first, or index it",
        )
    flat = Index.num(offset - start)
    for k, (n, step) in enumerate(zip(sizes, steps)):
        if n != 1:
            flat = flat + Index.axis(out_axis(k)) * step
    extents = x.graph.extents(call.shape)
    at, below = [], 1
    for n in reversed(dense):
        at.append(flat.floordiv(below, extents).mod(n, extents))
        below *= n
    return x.permute(*order).viewed(call.shape, at[::-1])


def _row_major(shape: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor."""
    out, below = [], 1
    for n in reversed(shape):
        out.append(below)
        below *= n
    return out[::-1]
