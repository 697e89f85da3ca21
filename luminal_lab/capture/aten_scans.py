"""Lowerings of products, running products, and distances."""

from __future__ import annotations

import math
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, lowers, whole
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.tensor import Tensor


# ---------------------------------------------------------------------- products
@lowers("prod.default", "prod.dim_int")
def _prod(
    call: Call,
    x: Tensor,
    along: int | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    x = F.wide(x.cast(call.dtype))
    if along is None:
        x, along = x.reshape((F.count(x, range(x.rank)),)), 0
    if not x.rank:
        return x.cast(call.dtype)
    n = whole(x.shape[x.dim(along)], "the number of factors")
    return F.product_over(x, along, n, keepdim).cast(call.dtype)


@lowers("cumprod.default")
def _cumprod(call: Call, x: Tensor, along: int, *, dtype: Any = None) -> Tensor:
    x = x.cast(call.dtype)
    if x.dtype.is_float and x.dtype.bits < 32:
        raise NoLowering("a 16-bit running product, which PyTorch rounds at each step")
    if not x.rank:
        return x
    n = whole(x.shape[x.dim(along)], "the number of factors")
    (out,) = F.running((x,), along, n, lambda a, b: (a[0] * b[0],), (1,))
    return out


# ---------------------------------------------------------------------- distances
@lowers("_cdist_forward.default")
def _cdist(call: Call, x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _distance(F.wide(x).unsqueeze(-2) - F.wide(y).unsqueeze(-3), p).cast(call.dtype)


@lowers("dist.default")
def _dist(call: Call, x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    a, b = call.operands(x, y, exact=False)
    gap = a - b
    return _distance(gap.reshape((F.count(gap, range(gap.rank)),)), p).cast(call.dtype)


def _distance(gap: Tensor, p: float) -> Tensor:
    """The p-norm over the last dim."""
    size = F.abs_(gap)
    if p == 0:
        return F.ne(size, 0.0).cast(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return F.sqrt((size * size).sum(-1))
    if p == math.inf:
        return F.maximum(size.max(-1), 0.0)  # no coordinates: no distance
    return F.power(F.power(size, p).sum(-1), 1 / p)
