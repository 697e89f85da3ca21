"""Normalisation, computed in float32 for 16-bit floats, with one cast by the caller."""

from __future__ import annotations

from luminal_lab.hlir.functional.elementary import rsqrt
from luminal_lab.hlir.functional.precision import wide
from luminal_lab.hlir.functional.reductions import mean, moments
from luminal_lab.hlir.graph import Dim
from luminal_lab.hlir.tensor import Tensor

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def layer_norm(
    x: Tensor, rank: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Over the last `rank` dims: the result, the mean and 1/sqrt(variance + eps), all wide."""
    dims = range(x.rank - rank, x.rank)
    var, mean = moments(wide(x), dims, 0)
    rstd = rsqrt(var + eps)
    return affine((wide(x) - mean) * rstd, weight, bias), mean, rstd


def rms_norm(
    x: Tensor, rank: int, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Over the last `rank` dims: the result and 1/sqrt(mean of squares + eps), both wide."""
    w = wide(x)
    dims = range(x.rank - rank, x.rank)
    eps = EPSILON[w.dtype.name] if eps is None else eps
    rstd = rsqrt(mean(w * w, dims, keepdim=True) + eps)
    return affine(w * rstd, weight, None), rstd


def group_norm(
    x: Tensor,
    groups: Dim,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Over groups of channels of (n, c, …): the result, means and 1/deviations (n, groups)."""
    n, c = x.shape[:2]
    w = wide(x).reshape((n, groups, c // groups, *x.shape[2:]))
    var, mean = moments(w, range(2, w.rank), 0)
    rstd = rsqrt(var + eps)
    out = affine(((w - mean) * rstd).reshape(x.shape), weight, bias, channel=1)
    return out, mean.reshape((n, groups)), rstd.reshape((n, groups))


def affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, channel: int | None = None
) -> Tensor:
    """Scaled and shifted, per channel when `channel` says which dim that is."""
    for op, parameter in (("Mul", weight), ("Add", bias)):
        if parameter is not None:
            p = wide(parameter)
            x = x.binary(op, p if channel is None else per_channel(p, x))
    return x


def per_channel(p: Tensor, x: Tensor) -> Tensor:
    """A vector over the channels (dim 1) of `x`."""
    return p.reshape((p.shape[0], *(1,) * (x.rank - 2)))
