"""Lowerings of products: matrices, attention, convolution, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from luminal_lab.capture.table import Call, NoLowering, int_range, lowers, whole
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import Shape
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar, out_axis


@lowers(
    "mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default"
)
def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return F.matmul(a, b)


@lowers("linear.default")
def _linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias).cast(call.dtype)


@lowers("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(
    call: Call, c: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    if b.rank == 1:
        out = F.product(a, b.unsqueeze(1)).squeeze(-1)
    else:
        out = F.product(a, b)
    if alpha != 1:
        out = out * alpha
    if beta != 0:  # beta = 0 ignores what is in c, NaN too
        c = F.wide(c)
        out = out + (c if beta == 1 else c * beta)
    return out.cast(call.dtype)


@lowers("addbmm.default")
def _addbmm(
    call: Call, c: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    out = F.product(a, b).sum(0)
    if alpha != 1:
        out = out * alpha
    if beta != 0:
        out = out + (F.wide(c) if beta == 1 else F.wide(c) * beta)
    return out.cast(call.dtype)


@lowers("_trilinear.default")
def _trilinear(
    call: Call,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    over: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    factors = []
    for x, dims in ((a, expand1), (b, expand2), (c, expand3)):
        x = F.wide(x)
        for d in sorted(dims):
            x = x.unsqueeze(d)
        factors.append(x)
    x, y, z = factors
    return (x * y * z).sum(*over).cast(call.dtype)


# ---------------------------------------------------------------------- attention
@lowers("scaled_dot_product_attention.default")
def _attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise NoLowering("random numbers")
    if enable_gqa:
        k, v = F.grouped(k, q), F.grouped(v, q)
    return F.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)[0]


@lowers("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash_for_cpu(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    if dropout_p:
        raise NoLowering("random numbers")
    if k.shape[-3] != q.shape[-3]:
        k, v = F.grouped(k, q), F.grouped(v, q)
    out, lse = F.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)
    return out, lse


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _flash_for_cpu_backward(
    call: Call,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    if dropout_p or attn_mask is not None or k.shape[-3] != q.shape[-3]:
        raise NoLowering("the gradient of masked, grouped or random attention")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wq, wk, wv, dout = F.wide(q), F.wide(k), F.wide(v), F.wide(grad)
    scores = F.product(wq, wk.transpose(-1, -2)) * scale  # (…, l, s)
    if is_causal:
        scores = F.below(scores, 0).where(scores, -math.inf)
    weights = F.exp(scores - lse.unsqueeze(-1))
    dweights = F.product(dout, wv.transpose(-1, -2))
    drift = (dout * F.wide(out)).sum(-1, keepdim=True)
    dscores = weights * (dweights - drift) * scale
    dq = F.product(dscores, wk)
    dk = F.product(dscores.transpose(-1, -2), wq)
    dv = F.product(weights.transpose(-1, -2), dout)
    return dq.cast(q.dtype), dk.cast(k.dtype), dv.cast(v.dtype)


# ---------------------------------------------------------------------- convolution
@lowers("convolution.default")
def _convolution(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    out = F.convolution(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return out.cast(call.dtype)


# ---------------------------------------------------------------------- pooling
def _pool_windows(
    x: Tensor,
    fill: Scalar,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Windows of the last dims, (…, *sizes, *kernel), with as much padding as `sizes` needs."""
    space, base = len(kernel), x.rank - len(kernel)
    pads = [(0, 0)] * x.rank
    for d in range(space):
        reach = (sizes[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1
        pads[base + d] = (padding[d], reach - padding[d] - x.shape[base + d])
    x = x.pad(pads, fill)
    for d in range(space):
        x = x.windows(base + d, kernel[d], stride[d], dilation[d])
    return x


def _each(value: Sequence[int] | int, space: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * space if len(value) == 1 else value


_NOWHERE = (1 << 31) - 1  # the place of padding: the last one, where all values are equal


@lowers("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(
    call: Call,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    space = 2 if "2d" in call.target else 3
    kernel = _each(kernel, space)
    stride = _each(stride, space) if stride else kernel
    padding, dilation = _each(padding, space), _each(dilation, space)
    lowest = -math.inf if x.dtype.is_float else int_range(x.dtype)[0]
    geometry = (call.shape[-space:], kernel, stride, padding, dilation)
    windows = _pool_windows(x, lowest, *geometry)
    flat = Index()
    base = x.rank - space
    for d in range(space):
        flat = flat * x.shape[base + d] + Index.axis(out_axis(base + d))
    place = _pool_windows(x.graph.iota(flat, x.shape), _NOWHERE, *geometry)
    return _first_of(windows, place, space)


@lowers("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(
    call: Call,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    space = int(call.target[len("avg_pool")])
    kernel = _each(kernel, space)
    stride = _each(stride, space) if stride else kernel
    padding = _each(padding, space)
    w = F.wide(x)
    sizes, ones = call.shape[-space:], [1] * space
    total = _pool_windows(w, 0.0, sizes, kernel, stride, padding, ones).sum(*range(-space, 0))
    exact = all(
        (sizes[d] - 1) * stride[d] + kernel[d] <= x.shape[x.rank - space + d] + 2 * padding[d]
        for d in range(space)
    )
    if divisor_override or (exact and (count_include_pad or not any(padding))):
        return (total * (1.0 / (divisor_override or math.prod(kernel)))).cast(call.dtype)
    counted = w.graph.full(x.shape, 1.0, w.dtype)
    if count_include_pad:  # what ceil_mode adds beyond the padding does not count
        counted = w.graph.full(
            (
                *x.shape[: x.rank - space],
                *(n + 2 * p for n, p in zip(x.shape[-space:], padding)),
            ),
            1.0,
            w.dtype,
        )
        padding = [0] * space
    number = _pool_windows(counted, 0.0, sizes, kernel, stride, padding, ones)
    return F.divide(total, number.sum(*range(-space, 0))).cast(call.dtype)


@lowers(
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
    "adaptive_avg_pool1d.default",
)
def _adaptive_avg_pool(call: Call, x: Tensor, sizes: Sequence[int]) -> Tensor:
    space = len(sizes)
    ns = x.shape[-space:]
    if any(n % s for n, s in zip(ns, call.shape[-space:])):
        windows, inside = _adaptive_windows(F.wide(x), 0.0, call.shape, space)
        number = inside.cast(windows.dtype).sum(*range(-space, 0))
        return F.divide(windows.sum(*range(-space, 0)), number).cast(call.dtype)
    kernel = [n // s for n, s in zip(ns, call.shape[-space:])]
    w = F.wide(x)
    windows = _pool_windows(
        w, 0.0, call.shape[-space:], kernel, kernel, [0] * space, [1] * space
    )
    return F.mean(windows, range(windows.rank - space, windows.rank)).cast(call.dtype)


def _adaptive_windows(x: Tensor, fill: Scalar, out: Shape, space: int) -> tuple[Tensor, Tensor]:
    """Windows of unequal sizes, (…, *sizes, *widest), and where they are within one.

    Window i of s over n elements is floor(i n / s) <= k < ceil((i + 1) n / s).
    """
    base = x.rank - space
    pairs = [(whole(x.shape[base + d], "a size"), whole(out[base + d], "a size"))
             for d in range(space)]  # fmt: skip
    widest = [
        max((-(-(i + 1) * n // s) - i * n // s for i in range(s)), default=0) for n, s in pairs
    ]
    shape = (*out, *widest)
    extents = x.graph.extents(shape)
    axes = [Index() if n == 1 else Index.axis(out_axis(k)) for k, n in enumerate(shape)]
    at, guard = axes[:base], []
    for d, (n, s) in enumerate(pairs):
        place = (axes[base + d] * n).floordiv(s, extents) + axes[len(out) + d]
        end = ((axes[base + d] + 1) * n + (s - 1)).floordiv(s, extents)
        at.append(place)
        guard.append(end - 1 - place)
    windows = x.guarded(shape, at, guard, fill)
    inside = F.true(x).expand(x.shape).copy().guarded(shape, at, guard, False)
    return windows, inside


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max_pool(call: Call, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    space = len(sizes)
    lowest = -math.inf if x.dtype.is_float else int_range(x.dtype)[0]
    windows, _ = _adaptive_windows(x, lowest, call.shape, space)
    flat, base = Index(), x.rank - space
    for d in range(space):
        flat = flat * x.shape[base + d] + Index.axis(out_axis(base + d))
    place = x.graph.iota(flat, x.shape).copy()
    places, _ = _adaptive_windows(place, _NOWHERE, call.shape, space)
    return _first_of(windows, places, space)


def _first_of(windows: Tensor, place: Tensor, space: int) -> tuple[Tensor, Tensor]:
    """The maximum over the last dims, and the least place of it."""
    dims = range(-space, 0)
    return windows.max(*dims), windows.arg_max(place, *dims)


@lowers(
    "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
)  # fmt: skip
def _upsample_nearest(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = x
    for d in range(2, x.rank):
        times, rest = divmod(call.shape[d], x.shape[d])
        if rest:
            raise NoLowering("nearest upsampling by a factor that is not whole")
        wide = out.unsqueeze(d + 1)
        wide = wide.expand((*wide.shape[: d + 1], times, *wide.shape[d + 2 :]))
        out = wide.reshape((*out.shape[:d], call.shape[d], *out.shape[d + 1 :]))
    return out
