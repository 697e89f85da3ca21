"""Lowerings of reductions, scans, softmax and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, dim, lowers
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, I64
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar

CUMULATIVE_LIMIT = 4096  # a scan as a masked sum is quadratic; beyond it, ATen's own is called

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
    return F.sum_(F.wide(x) if call.dtype.is_float and x.dtype.is_float else x.cast(call.dtype),
                  _over(x, over), keepdim).cast(call.dtype)  # fmt: skip


@lowers("mean.dim", "mean.default")
def _mean(
    call: Call, x: Tensor, over: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    x = F.wide(x) if x.dtype.is_float else x.cast(call.dtype)
    return F.mean(x, _over(x, over), keepdim).cast(call.dtype)


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
    var, mean = F.moments(F.wide(x), dims, correction)
    n = F.count(x, dims)
    if isinstance(n, int) and n <= correction:
        var = var * 0.0 * math.inf  # 0/0: NaN
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
    dims = _over(x, over)
    if ord == 2:
        out = F.sqrt((x * x).sum(*dims, keepdim=keepdim))
    elif ord == 1:
        out = F.abs_(x).sum(*dims, keepdim=keepdim)
    elif ord in (math.inf, -math.inf):
        out = (F.amax if ord > 0 else F.amin)(F.abs_(x), dims, keepdim)
    elif ord == 0:
        out = F.ne(x, 0).cast(x.dtype).sum(*dims, keepdim=keepdim)
    else:
        out = F.power(F.power(F.abs_(x), ord).sum(*dims, keepdim=keepdim), 1 / ord)
    return out.cast(call.dtype)


@lowers("count_nonzero.dim_IntList", "count_nonzero.default")
def _count_nonzero(call: Call, x: Tensor, over: Dims = None) -> Tensor:
    return x.cast(BOOL).cast(I64).sum(*_over(x, over))


@lowers("cumsum.default")
def _cumsum(call: Call, x: Tensor, along: int, *, dtype: Any = None) -> Tensor:
    n = x.shape[x.dim(along)] if x.rank else 1
    if not isinstance(n, int) or n > CUMULATIVE_LIMIT:
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


def _placed(x: Tensor) -> None:
    """Refuse to look for the place of an extreme among floats that are computed.

    The place is where a value equals the extreme. A kernel that computes the values again may
    round otherwise than the one that found the extreme, and then none is equal.

    Raises:
        NoLowering: unless the values are stored: an input's, or an operator's that ATen runs.
    """
    node = x.graph.nodes[x.operand.node]
    while node.op == "Cast" and node.dtype.is_float:
        node = x.graph.nodes[node.operands[0].node]
    if x.dtype.is_float and node.op not in ("Input", "Custom", "Constant"):
        raise NoLowering("the place of an extreme among values that kernels may round anew")


@lowers("max.dim", "min.dim")
def _extreme_along(
    call: Call, x: Tensor, along: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    _placed(x)
    if call.target.startswith("max"):
        return F.amax(x, _over(x, along), keepdim), F.argmax(x, along, keepdim)
    return F.amin(x, _over(x, along), keepdim), F.argmin(x, along, keepdim)


@lowers("argmax.default", "argmin.default")
def _argument(call: Call, x: Tensor, along: int | None = None, keepdim: bool = False) -> Tensor:
    _placed(x)
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
    dims = range(x.rank - len(normalized), x.rank)
    var, mean = F.moments(F.wide(x), dims, 0)
    rstd = F.rsqrt(var + eps)
    out = _affine((F.wide(x) - mean) * rstd, weight, bias)
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
    dims = range(x.rank - len(normalized), x.rank)
    var, mean = F.moments(F.wide(x), dims, 0)
    out = (F.wide(x) - mean) * F.rsqrt(var + eps)
    return _affine(out, weight, bias).cast(x.dtype)


@lowers("rms_norm.default", "_fused_rms_norm.default")
def _rms_norm(
    call: Call,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if eps is None:
        epsilons = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
        eps = epsilons[F.wide(x).dtype.name]
    dims = range(x.rank - len(normalized), x.rank)
    w = F.wide(x)
    rstd = F.rsqrt(F.mean(w * w, dims, keepdim=True) + eps)
    out = _affine(w * rstd, weight, None).cast(call.dtype)
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
    n, c, hw = dim(n), dim(c), dim(hw)
    w = F.wide(x).reshape((n, groups, c // groups, *x.shape[2:]))
    var, mean = F.moments(w, range(2, w.rank), 0)
    rstd = F.rsqrt(var + eps)
    out = _affine(((w - mean) * rstd).reshape(x.shape), weight, bias, channel=1)
    flat = (n, groups)
    return (
        out.cast(x.dtype),
        mean.reshape(flat).cast(_stat(call, 1)),
        rstd.reshape(flat).cast(_stat(call, 2)),
    )


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
    m, v = _channel(F.wide(mean), w), _channel(F.wide(var), w)
    out = _affine((w - m) * F.rsqrt(v + eps), weight, bias, channel=1)
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
    out = _affine((w - mean) * rstd, weight, bias, channel=1)
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


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, channel: int | None = None
) -> Tensor:
    """Scaled and shifted, per channel when `channel` says which dim that is."""
    for op, parameter in (("Mul", weight), ("Add", bias)):
        if parameter is not None:
            p = F.wide(parameter)
            x = x.binary(op, p if channel is None else _channel(p, x))
    return x


def _channel(p: Tensor, x: Tensor) -> Tensor:
    """A vector over the channels (dim 1) of `x`."""
    return p.reshape((p.shape[0], *(1,) * (x.rank - 2)))


def _stat(call: Call, k: int) -> Any:
    """Dtype of result `k`."""
    return Call(call.graph, call.target, call.value[k]).dtype
