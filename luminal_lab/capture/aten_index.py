"""Lowerings of data-dependent indexing: Gather and Scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, lowers, whole
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, I64
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import axes_of
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar, out_axis


@lowers("embedding.default")
def _embedding(
    call: Call, weight: Tensor, indices: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    return F.embedding(weight, indices)


@lowers("embedding_bag.padding_idx", "_embedding_bag_forward_only.default")
def _embedding_bag(
    call: Call,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, ...]:
    """Bags of one size, as a matrix of indices makes them; all others go to ATen."""
    if mode not in (0, 1):
        raise NoLowering("the maximum of each bag")
    if padding_idx is not None and padding_idx >= 0:
        raise NoLowering("bags with a padding index")
    bags = whole(offsets.shape[0], "the number of bags") - int(include_last_offset)
    n = whole(indices.shape[0], "the number of indices")
    size = n // bags if bags else 0
    if not size or size * bags != n or offsets.known != Index.axis(out_axis(0)) * size:
        if bags != 1 or not size:
            raise NoLowering("bags whose sizes depend on data")
    at = [Index.axis("@0"), Index.axis(out_axis(2))]
    rows = weight.gather(
        (bags, size, weight.shape[1]), at, [F.trailing(indices.reshape((bags, size)), 1)]
    )
    rows = F.wide(rows)
    if per_sample_weights is not None:
        rows = rows * F.wide(F.trailing(per_sample_weights.reshape((bags, size)), 1))
    out = (F.mean if mode else F.sum_)(rows, [1]).cast(weight.dtype)
    bag = weight.graph.iota(Index.axis(out_axis(0)), (bags, size), I64).reshape((n,))
    sizes = weight.graph.full((bags,), size, I64)
    made = [out, bag.cast(indices.dtype), *(sizes.cast(indices.dtype),) * 2]
    for k, said in enumerate(call.value):  # PyTorch leaves out what only gradients need
        if made[k].shape != tuple(said.shape):
            if 0 not in said.shape:
                raise NoLowering("a result of another shape")
            made[k] = weight.graph.full(tuple(said.shape), 0, made[k].dtype)
    return tuple(made)


@lowers("index_select.default")
def _index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return F.index_select(x, dim, index)


@lowers("gather.default")
def _gather(
    call: Call, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> Tensor:
    return F.gather_along(x, dim, index)


@lowers("take.default")
def _take(call: Call, x: Tensor, index: Tensor) -> Tensor:
    return F.take(x, index)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    at, reads = F.advanced(x, indices, call.shape)
    return x.gather(call.shape, at, reads) if reads else x


# ---------------------------------------------------------------------- scatter
@lowers("scatter.src", "scatter.value", "scatter_add.default")
def _scatter(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor | Scalar) -> Tensor:
    mode = "add" if call.target.startswith("scatter_add") else "set"
    return F.scatter_along(x, dim, index, _sized(call, src, index), mode)


def _sized(call: Call, src: Tensor | Scalar, index: Tensor) -> Tensor:
    return src if isinstance(src, Tensor) else call.tensor(src).expand(index.shape)


@lowers("index_add.default", "index_copy.default")
def _index_add(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, *, alpha: Scalar = 1
) -> Tensor:
    if not x.rank:
        x, dim = x.reshape((1,)), 0
        src = src.reshape((1,)) if not src.rank else src
    dim = x.dim(dim)
    src = src if alpha == 1 else src * alpha
    index = index.reshape((index.shape[0] if index.rank else 1,))
    at = [
        F.trailing(index, x.rank - 1 - d) if d == dim else x.graph.iota(i, src.shape)
        for d, i in enumerate(axes_of(src.shape))
    ]
    mode = "add" if call.target.startswith("index_add") else "set"
    return x.scatter(src.cast(x.dtype), at, mode).reshape(call.shape)


@lowers("put.default")
def _put(
    call: Call, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    n = F.count(x, range(x.rank))
    points = (F.count(index, range(index.rank)),)
    at = F.in_bounds(index, n).reshape(points)
    flat = x.reshape((n,)).scatter(source.reshape(points), [at], "add" if accumulate else "set")
    return flat.reshape(call.shape)


@lowers("index_put.default", "_unsafe_index_put.default")
def _index_put(
    call: Call,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    values = values.cast(x.dtype)
    masks = [i for i in indices if i is not None and i.dtype == BOOL]
    if masks:
        return _masked_put(x, indices, masks, values, accumulate)
    given = [d for d, i in enumerate(indices) if i is not None]
    if not given:
        return x + values if accumulate else values.expand(x.shape)
    points = F.indexed_shape(x, indices)
    at, reads = F.advanced(x, indices, points)
    whose = iter(reads)
    spelled = [
        next(whose).expand(points) if any(a.startswith("@") for a in i.axes)
        else x.graph.iota(i, points)
        for i in at
    ]  # fmt: skip
    return x.scatter(values.expand(points), spelled, "add" if accumulate else "set")


def _masked_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    masks: Sequence[Tensor],
    values: Tensor,
    accumulate: bool,
) -> Tensor:
    """`x[mask] = number`: a Select, as long as no value depends on how many are selected."""
    if len(masks) != 1 or any(i is not None and i.dtype != BOOL for i in indices):
        raise NoLowering("a bool index among others")
    place = next(d for d, i in enumerate(indices) if i is not None)
    mask = F.trailing(masks[0], x.rank - place - masks[0].rank)
    kept = x.rank - place - masks[0].rank
    if values.rank > kept or (place and values.rank):
        if F.count(values, range(values.rank)) != 1:
            raise NoLowering("values whose number depends on data")
        values = values.reshape(())
    return mask.where(x + values if accumulate else values, x).expand(x.shape)
