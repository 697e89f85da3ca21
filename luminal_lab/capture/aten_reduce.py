"""Lowerings of reductions, scans, softmax and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, lowers
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, I64
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar

Dims = Sequence[int] | int | None


def _over(x: Tensor, over: Dims) -> list[int]:
    """The dims of a reduction, counted from the front; None and the empty list mean all."""
    if isinstance(over, int):
        over = [over]
    return [x.dim(d) for d in over] if over and x.rank else list(range(x.rank))


# ---------------------------------------------------------------------- sums
@lowers("sum.dim_IntList", "sum.default")
def _sum(
    call: Call, x: Tensor, over: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return F.sum_(_summed(call, x), _over(x, over), keepdim).cast(call.dtype)


@lowers("mean.dim", "mean.default")
def _mean(
    call: Call, x: Tensor, over: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return F.mean(_summed(call, x), _over(x, over), keepdim).cast(call.dtype)


def _summed(call: Call, x: Tensor) -> Tensor:
    """In the dtype in which PyTorch adds: the result's, float32 between 16-bit ones."""
    wide = call.dtype.is_float and call.dtype.bits <= 32 and x.dtype.is_float
    return F.wide(x) if wide else x.cast(call.dtype)


@lowers("var.correction", "var.dim", "var.default")
def _var(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _moments(call, x, *args, **kwargs)[0].cast(x.dtype)


@lowers("std.correction", "std.dim", "std.default")
def _std(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return F.sqrt(_moments(call, x, *args, **kwargs)[0]).cast(x.dtype)


@lowers("var_mean.correction", "var_mean.dim", "var_mean.default")
def _var_mean(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    var, mean = _moments(call, x, *args, **kwargs)
    return var.cast(x.dtype), mean.cast(x.dtype)


@lowers("std_mean.correction")
def _std_mean(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    var, mean = _moments(call, x, *args, **kwargs)
    return F.sqrt(var).cast(x.dtype), mean.cast(x.dtype)


def _moments(
    call: Call,
    x: Tensor,
    over: Dims | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
) -> tuple[Tensor, Tensor]:
    """Variance and mean in wide precision."""
    if isinstance(over, bool):
        over, unbiased = None, over
    if correction is None:
        correction = 1 if unbiased else 0
    dims = _over(x, over)
    var, mean = F.variance(F.wide(x), dims, correction)
    return (var, mean) if keepdim else (var.squeeze(*dims), mean.squeeze(*dims))


@lowers("linalg_vector_norm.default")
def _vector_norm(
    call: Call,
    x: Tensor,
    ord: Scalar = 2,
    over: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    x = F.wide(x.cast(call.dtype) if dtype is not None else x)
    return F.vector_norm(x, ord, _over(x, over), keepdim).cast(call.dtype)


@lowers("count_nonzero.dim_IntList", "count_nonzero.default")
def _count_nonzero(call: Call, x: Tensor, over: Dims = None) -> Tensor:
    return x.cast(BOOL).cast(I64).sum(*_over(x, over))


@lowers("cumsum.default")
def _cumsum(call: Call, x: Tensor, along: int, *, dtype: Any = None) -> Tensor:
    n = x.shape[x.dim(along)] if x.rank else 1
    if not isinstance(n, int) or n > F.CUMULATIVE_LIMIT:
        raise NoLowering(f"a cumulative sum over {n} elements")
    if call.dtype.is_float and call.dtype.bits < 32:
        raise NoLowering("a 16-bit cumulative sum, which PyTorch rounds at each step")
    return F.cumulative_sum(x.cast(call.dtype), along)


# ---------------------------------------------------------------------- extremes
@lowers("amax.default")
def _amax(call: Call, x: Tensor, over: Dims = None, keepdim: bool = False) -> Tensor:
    return F.amax(x, _over(x, over), keepdim)


@lowers("amin.default")
def _amin(call: Call, x: Tensor, over: Dims = None, keepdim: bool = False) -> Tensor:
    return F.amin(x, _over(x, over), keepdim)


@lowers("max.default", "min.default")
def _extreme(call: Call, x: Tensor) -> Tensor:
    return (F.amax if call.target.startswith("max") else F.amin)(x, _over(x, None))


@lowers("max.dim", "min.dim")
def _extreme_along(
    call: Call, x: Tensor, along: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if call.target.startswith("max"):
        return F.amax(x, _over(x, along), keepdim), F.argmax(x, along, keepdim)
    return F.amin(x, _over(x, along), keepdim), F.argmin(x, along, keepdim)


@lowers("argmax.default", "argmin.default")
def _argument(call: Call, x: Tensor, along: int | None = None, keepdim: bool = False) -> Tensor:
    find = F.argmax if call.target.startswith("argmax") else F.argmin
    if along is None:
        return find(x.reshape((F.count(x, range(x.rank)),)), 0).reshape(call.shape)
    return find(x, along, keepdim)


@lowers("any.default", "any.dim", "any.dims")
def _any(call: Call, x: Tensor, over: Dims = None, keepdim: bool = False) -> Tensor:
    return x.cast(BOOL).max(*_over(x, over), keepdim=keepdim).cast(call.dtype)


@lowers("all.default", "all.dim", "all.dims")
def _all(call: Call, x: Tensor, over: Dims = None, keepdim: bool = False) -> Tensor:
    return F.amin(x.cast(BOOL), _over(x, over), keepdim).cast(call.dtype)


# ---------------------------------------------------------------------- softmax
@lowers("_softmax.default", "softmax.int", "_safe_softmax.default")
def _softmax(call: Call, x: Tensor, along: int, *args: Any, **kwargs: Any) -> Tensor:
    x = F.wide(x) if x.dtype.is_float else x.cast(call.dtype)
    out = F.softmax(x, along)
    if call.target == "_safe_softmax.default":  # rows that are -inf everywhere give 0
        dead = x.max(along, keepdim=True) < F.finfo_min(x.dtype)
        out = dead.where(0.0, out)
    return out.cast(call.dtype)


@lowers("_log_softmax.default", "log_softmax.int")
def _log_softmax(call: Call, x: Tensor, along: int, *args: Any, **kwargs: Any) -> Tensor:
    x = F.wide(x) if x.dtype.is_float else x.cast(call.dtype)
    return F.log_softmax(x, along).cast(call.dtype)


@lowers("logsumexp.default")
def _logsumexp(call: Call, x: Tensor, over: Dims, keepdim: bool = False) -> Tensor:
    return F.logsumexp(x.cast(call.dtype), _over(x, over), keepdim)


# ---------------------------------------------------------------------- normalisation
@lowers("native_layer_norm.default")
def _native_layer_norm(
    call: Call,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd = F.layer_norm(x, len(normalized), weight, bias, eps)
    return out.cast(x.dtype), mean.cast(_stat(call, 1)), rstd.cast(_stat(call, 2))


@lowers("layer_norm.default")
def _layer_norm(
    call: Call,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return F.layer_norm(x, len(normalized), weight, bias, eps)[0].cast(x.dtype)


@lowers("rms_norm.default", "_fused_rms_norm.default")
def _rms_norm(
    call: Call,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    out, rstd = F.rms_norm(x, len(normalized), weight, eps)
    out = out.cast(call.dtype)
    return out if call.target == "rms_norm.default" else (out, rstd.cast(_stat(call, 1)))


@lowers("native_group_norm.default")
def _native_group_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd = F.group_norm(x, groups, weight, bias, eps)
    return out.cast(x.dtype), mean.cast(_stat(call, 1)), rstd.cast(_stat(call, 2))


@lowers("_native_batch_norm_legit_no_training.default")
def _batch_norm_inference(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    w = F.wide(x)
    m, v = F.per_channel(F.wide(mean), w), F.per_channel(F.wide(var), w)
    out = F.affine((w - m) * F.rsqrt(v + eps), weight, bias, channel=1)
    empty = call.graph.full((0,), 0, w.dtype)
    return out.cast(x.dtype), empty.cast(_stat(call, 1)), empty.cast(_stat(call, 2))


@lowers("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats")
def _batch_norm_training(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, *args: Any
) -> tuple[Tensor, ...]:
    stats, (training, momentum, eps) = args[:-3], args[-3:]
    if not training:
        out, *rest = _batch_norm_inference(call, x, weight, bias, *stats, momentum, eps)
        return (out, *rest, *stats)
    w = F.wide(x)
    over = [d for d in range(w.rank) if d != 1]
    var, mean = F.moments(w, over, 0)
    rstd = F.rsqrt(var + eps)
    out = F.affine((w - mean) * rstd, weight, bias, channel=1)
    flat = (x.shape[1],)
    saved = (mean.reshape(flat).cast(_stat(call, 1)), rstd.reshape(flat).cast(_stat(call, 2)))
    if not stats:
        return (out.cast(x.dtype), *saved)
    n = F.count(x, over)
    unbiased = var.reshape(flat) * (n / max(n - 1, 1))
    running = [
        (F.wide(old) * (1.0 - momentum) + new * momentum).cast(old.dtype)
        for old, new in zip(stats, (mean.reshape(flat), unbiased))
    ]
    return (out.cast(x.dtype), *saved, *running)


def _stat(call: Call, k: int) -> Any:
    """Dtype of result `k`."""
    return Call(call.graph, call.target, call.value[k]).dtype
