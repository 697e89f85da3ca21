"""Reductions, scans and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BOOL, I64
from luminal_lab.hlir.functional.elementary import LOG2_E, log, power, sqrt
from luminal_lab.hlir.functional.logic import INF, abs_, isinf, ne, not_
from luminal_lab.hlir.functional.precision import in_wide, wide
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Size, largest
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import out_axis

CUMULATIVE_LIMIT = 256  # a scan as a masked sum is quadratic; beyond it, ATen's own is called


def sum_(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Sum with a float32 accumulator for 16-bit floats; bool must be cast before."""
    return wide(x).sum(*dims, keepdim=keepdim).cast(x.dtype)


def amax(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Maximum over dims, NaN wins."""
    return x.max(*dims, keepdim=keepdim)


def amin(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Minimum over dims as the maximum of a value that falls as x grows."""
    if x.dtype == BOOL:
        return not_(amax(not_(x), dims, keepdim))
    if x.dtype.is_float:
        return -amax(-x, dims, keepdim)
    return -amax(-x - 1, dims, keepdim) - 1  # -x - 1 does not overflow


def count(x: Tensor, dims: Sequence[int]) -> Any:
    """Number of elements under a reduction over `dims`, an int or a symbolic size."""
    return math.prod(x.shape[x.dim(d)] for d in dims) if x.rank else 1


@in_wide
def mean(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Arithmetic mean."""
    n = count(x, dims)
    if isinstance(n, Size):
        return x.sum(*dims, keepdim=keepdim) * x.graph.constant(n, x.dtype).unary("Recip")
    return x.sum(*dims, keepdim=keepdim) * (1.0 / n if n else math.nan)


def moments(x: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """Variance and mean over dims, dims kept; `x` is wide."""
    n = count(x, dims)
    m = mean(x, dims, keepdim=True)
    d = x - m
    if isinstance(n, Size):
        over = largest(n - whole_number(correction), 0)
        scale = x.graph.constant(over, x.dtype).unary("Recip")
        return (d * d).sum(*dims, keepdim=True) * scale, m
    over = max(n - correction, 0)
    return (d * d).sum(*dims, keepdim=True) * (1.0 / over if over else INF), m


def variance(x: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """As `moments`, but NaN where fewer elements than degrees of freedom are left (0/0)."""
    var, m = moments(x, dims, correction)
    n = count(x, dims)
    if isinstance(n, int) and n <= correction:
        var = var * 0.0 * INF
    return var, m


def vector_norm(x: Tensor, order: float, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """The p-norm over dims of a wide tensor."""
    if order == 2:
        return sqrt((x * x).sum(*dims, keepdim=keepdim))
    if order == 1:
        return abs_(x).sum(*dims, keepdim=keepdim)
    if order in (INF, -INF):
        return (amax if order > 0 else amin)(abs_(x), dims, keepdim)
    if order == 0:
        return ne(x, 0).cast(x.dtype).sum(*dims, keepdim=keepdim)
    return power(power(abs_(x), order).sum(*dims, keepdim=keepdim), 1 / order)


def whole_number(x: float) -> int:
    """A number that must be whole next to a symbolic size.

    Raises:
        HlirError: when it is not.
    """
    if x != int(x):
        raise HlirError(f"{x} is subtracted from a symbolic size")
    return int(x)


def argmax(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Index of the first maximum over a dim; the first NaN where there is one."""
    if not x.rank:
        return x.graph.iota(Index(), ())
    place = x.graph.iota(Index.axis(out_axis(dim := x.dim(dim))), x.shape)
    return x.arg_max(place, dim, keepdim=keepdim)


def argmin(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Index of the first minimum over a dim; the first NaN where there is one."""
    if x.dtype == BOOL:
        return argmax(not_(x), dim, keepdim)
    return argmax(-x if x.dtype.is_float else -x - 1, dim, keepdim)


def cumulative_sum(x: Tensor, dim: int) -> Tensor:
    """Sums of all elements up to each one, as a masked sum (quadratic in the extent)."""
    if not x.rank:
        return x
    dim, n = x.dim(dim), x.shape[x.dim(dim)]
    w = wide(x)
    axes = [Index.axis(out_axis(k)) for k in range(x.rank)]
    shape = (*x.shape, n)  # (…, n, …, j)
    if n == 1:
        return x
    at = list(axes)
    at[dim] = Index.axis(out_axis(x.rank))
    at = [Index() if shape[k] == 1 else i for k, i in enumerate(at)]
    spread = w.viewed(shape, at)
    j = x.graph.iota(Index.axis(out_axis(x.rank)), shape, I64)
    i = x.graph.iota(axes[dim] + 1, shape, I64)
    return (j < i).where(spread, 0).sum(-1).cast(x.dtype)


# ---------------------------------------------------------------------- softmax
def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x - max) / sum exp(x - max) over a dim."""
    e, s, _ = softmax_parts(wide(x), dim)
    return (e * s.unary("Recip")).cast(x.dtype)


def softmax_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """exp(x - max), its sum, and the maximum, over a dim that is kept; `x` is wide."""
    m = x.max(dim, keepdim=True)
    e = ((x - m) * LOG2_E).unary("Exp2")
    return e, e.sum(dim, keepdim=True), m


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """X - max - log(sum exp(x - max)) over a dim."""
    w = wide(x)
    _, s, m = softmax_parts(w, dim)
    return (w - m - log(s)).cast(x.dtype)


def logsumexp(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """log(sum(exp x)); an infinite maximum is not subtracted, as in PyTorch."""
    w = wide(x)
    m = w.max(*dims, keepdim=True)
    m = isinf(m).where(0.0, m)
    s = ((w - m) * LOG2_E).unary("Exp2").sum(*dims, keepdim=True)
    out = log(s) + m
    return (out if keepdim else out.squeeze(*dims)).cast(x.dtype)
