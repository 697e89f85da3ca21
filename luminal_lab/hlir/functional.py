"""Mathematics on Tensors, each function spelled in primitive ops.

Functions that eager PyTorch computes in float32 for 16-bit floats (everything but moving,
selecting, adding and multiplying) do so here, with one cast at the end.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence

from luminal_lab.hlir.dtypes import BOOL, F16, F32, F64, I64, DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.tensor import Shape, Tensor, broadcast_shapes
from luminal_lab.hlir.view import Scalar, out_axis

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
INF = math.inf


# ---------------------------------------------------------------------- precision
def wide(x: Tensor) -> Tensor:
    """A float of 16 or 8 bits as float32; anything else as it is."""
    return x.cast(F32) if x.dtype.is_float and x.dtype.bits < 32 else x


def in_wide(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute `f` in float32 for 16-bit floats, with one cast of the result."""

    @functools.wraps(f)
    def call(x: Tensor, *args, **kwargs) -> Tensor:
        return f(wide(x), *args, **kwargs).cast(x.dtype)

    return call


def representable(value: Scalar, dtype: DType) -> bool:
    """Whether a number survives a trip through `dtype`.

    >>> representable(0.5, DTYPES["bf16"]), representable(0.1, DTYPES["bf16"])
    (True, False)
    """
    if not dtype.is_float or dtype.bits >= 32 or math.isnan(value) or math.isinf(value):
        return True
    if dtype == F16:
        return abs(value) <= 65504 and struct.unpack("e", struct.pack("e", value))[0] == value
    if dtype.name == "bf16":
        if abs(value) > 3.3895313892515355e38:
            return False
        bits = struct.pack("<f", value)
        return bits[:2] == b"\0\0" and struct.unpack("<f", bits)[0] == value
    return value in (-1, 0, 1)


def finfo_min(dtype: DType) -> float:
    """The lowest finite number of a float dtype."""
    limits = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38, "f16": 65504.0}
    return -limits.get(dtype.name, 3.3895313892515355e38)


# ---------------------------------------------------------------------- logic and comparison
def false(x: Tensor) -> Tensor:
    """The constant False, in the graph of `x`."""
    return x.graph.constant(False, BOOL)


def true(x: Tensor) -> Tensor:
    """The constant True, in the graph of `x`."""
    return x.graph.constant(True, BOOL)


def not_(p: Tensor) -> Tensor:
    """Negation of a bool."""
    return p.where(false(p), true(p))


def ordered(x: Tensor | Scalar) -> Tensor | bool:
    """Where `x` is not NaN; True when its dtype has no NaN, or for a number that is not."""
    if not isinstance(x, Tensor):
        return not math.isnan(x)
    if not x.dtype.is_float:
        return True
    return (x < INF) + (x > -INF)


def isnan(x: Tensor) -> Tensor:
    """Where `x` is NaN."""
    ok = ordered(x)
    return not_(ok) if isinstance(ok, Tensor) else false(x).expand(x.shape)


def isinf(x: Tensor) -> Tensor:
    """Where `x` is +inf or -inf."""
    if not x.dtype.is_float:
        return false(x).expand(x.shape)
    top = -finfo_min(x.dtype)
    return (x > top) + (x < -top)


def both(*conditions: Tensor | bool) -> Tensor | bool:
    """Conjunction; Python's True disappears and False wins."""
    kept = [c for c in conditions if c is not True]
    if any(c is False for c in kept):
        return False
    out: Tensor | bool = True
    for c in kept:
        out = c if out is True else out * c
    return out


def settle(x: Tensor, condition: Tensor | bool, shape: Shape) -> Tensor:
    """A condition that may be a Python bool, as a Tensor of `shape`."""
    if isinstance(condition, Tensor):
        return condition.expand(shape)
    return x.graph.full(shape, condition, BOOL)


def _shape(x: Tensor, y: Tensor | Scalar) -> Shape:
    return broadcast_shapes(x.shape, y.shape) if isinstance(y, Tensor) else x.shape


def eq(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """`x == y`; false where either is NaN."""
    same = not_((x < y) + (x > y))
    return settle(x, both(same, ordered(x), ordered(y)), _shape(x, y))


def ne(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """`x != y`; true where either is NaN."""
    differ = (x < y) + (x > y)
    fine = both(ordered(x), ordered(y))
    if fine is True:
        return differ
    return differ + not_(settle(x, fine, differ.shape))


def le(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """`x <= y`; false where either is NaN."""
    return settle(x, both(not_(x > y), ordered(x), ordered(y)), _shape(x, y))


def ge(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """`x >= y`; false where either is NaN."""
    return settle(x, both(not_(x < y), ordered(x), ordered(y)), _shape(x, y))


def is_zero(x: Tensor) -> Tensor:
    """Where a number is 0, for operands that are not NaN."""
    return not_((x < 0) + (x > 0))


# ---------------------------------------------------------------------- selecting
def maximum(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The larger one; NaN where either is."""
    pick_y = x < y
    if isinstance(y, Tensor) and y.dtype.is_float:
        pick_y = pick_y + isnan(y)
    elif not isinstance(y, Tensor) and math.isnan(y):
        return x.graph.full(x.shape, y, x.dtype)
    return pick_y.where(x.like(y), x)


def minimum(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The smaller one; NaN where either is."""
    pick_y = x > y
    if isinstance(y, Tensor) and y.dtype.is_float:
        pick_y = pick_y + isnan(y)
    elif not isinstance(y, Tensor) and math.isnan(y):
        return x.graph.full(x.shape, y, x.dtype)
    return pick_y.where(x.like(y), x)


def abs_(x: Tensor) -> Tensor:
    """|x|, without a sign at zero."""
    if x.dtype.kind in ("uint", "bool"):
        return x
    return (x < 0).where(-x, x + 0 if x.dtype.is_float else x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN, as PyTorch."""
    if x.dtype == BOOL:
        return x
    return (x > 0).where(1, (x < 0).where(x.like(-1), x.like(0)))


def relu(x: Tensor) -> Tensor:
    """max(x, 0), NaN kept."""
    return (x < 0).where(0, x)


# ---------------------------------------------------------------------- rounding and division
def floor(x: Tensor) -> Tensor:
    """The largest whole number not above x (x itself where x % 1 is 0 or NaN)."""
    if not x.dtype.is_float:
        return x
    part = x % 1.0
    return (part > 0).where(x - part, x)


def ceil(x: Tensor) -> Tensor:
    """The smallest whole number not below x."""
    return -floor(-x) if x.dtype.is_float else x


def trunc(x: Tensor) -> Tensor:
    """Rounded towards zero."""
    return (x < 0).where(ceil(x), floor(x)) if x.dtype.is_float else x


@in_wide
def round_(x: Tensor) -> Tensor:
    """Rounded to the nearest whole number, halves to even."""
    if not x.dtype.is_float:
        return x
    part = x % 1.0
    low = x - part
    high = low + 1.0
    even = low + low % 2.0
    near = (part < 0.5).where(low, (part > 0.5).where(high, even))
    return (part > 0).where(near, x)


def divide(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """X / y of floats, as a product with the reciprocal (within 1 ulp or so)."""
    if isinstance(y, Tensor):
        return x * y.unary("Recip")
    if y == 0 or math.isnan(y):
        return x * x.graph.constant(y, x.dtype).unary("Recip")
    return x * (1.0 / y)


def floor_divide(x: Tensor, y: Tensor) -> Tensor:
    """Quotient x // y, rounded to minus infinity; exact.

    x - x % y is a multiple of y, so a rounded float quotient of the two is the answer. Integers
    of 64 bits do not fit float64: what a first quotient leaves over is divided once more.
    """
    if x.dtype.is_float:
        return floor(divide(x - x % y, y) + 0.5)
    over = y.cast(F64).unary("Recip")
    if x.dtype.bits < 64:
        wide_x = x.cast(F64)
        return floor((wide_x - wide_x % y.cast(F64)) * over + 0.5).cast(x.dtype)
    top = 2.0**63 - 1024  # the largest float64 that fits int64
    guess = minimum(maximum(floor(x.cast(F64) * over + 0.5), -top), top).cast(x.dtype)
    rest = x - guess * y
    more = floor(rest.cast(F64) * over + 0.5).cast(x.dtype)
    rest = rest - more * y  # now at most half of |y|
    return guess + more - _signs_differ(rest, y).cast(x.dtype)


def _signs_differ(rest: Tensor, y: Tensor) -> Tensor:
    """Where a remainder is not 0 and has another sign than the divisor."""
    return (rest < 0) * (y > 0) + (rest > 0) * (y < 0)


def trunc_divide(x: Tensor, y: Tensor) -> Tensor:
    """Quotient x / y, rounded towards zero."""
    if x.dtype.is_float:
        exact = floor(divide(x - fmod(x, y), y) + 0.5)
        return isinf(x).where(divide(x, y), exact)
    if x.dtype.kind == "uint":
        return floor_divide(x, y)
    negative = (x < 0) * (y > 0) + (x > 0) * (y < 0)
    return floor_divide(x, y) + (negative * ne(x % y, 0)).cast(x.dtype)


def fmod(x: Tensor, y: Tensor) -> Tensor:
    """Remainder with the sign of the dividend, as C's."""
    if x.dtype.is_float:
        rest = abs_(x) % abs_(y)
        return (x < 0).where(-rest, rest)
    rest = x % y
    return rest if x.dtype.kind == "uint" else _signs_differ(rest, x).where(rest - y, rest)


# ---------------------------------------------------------------------- exponentials
@in_wide
def exp(x: Tensor) -> Tensor:
    """e**x."""
    return (x * LOG2_E).unary("Exp2")


@in_wide
def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return x.unary("Log2") * LN_2


@in_wide
def log10(x: Tensor) -> Tensor:
    """The decimal logarithm."""
    return x.unary("Log2") * 0.30102999566398120


@in_wide
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), precise near 0 (Kahan): the error of u = 1 + x cancels in x / (u - 1)."""
    u = x + 1.0
    plain = log(u)
    fixed = plain * (x * (u - 1.0).unary("Recip"))
    tiny = is_zero(u - 1.0)
    return tiny.where(x, (x < INF).where(fixed, plain))


@in_wide
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, precise near 0 (Kahan)."""
    u = exp(x)
    d = u - 1.0
    fixed = d * (x * log(u).unary("Recip"))
    plain = (abs_(x) < 0.5).where(fixed, d)
    return is_zero(d).where(x, plain)


@in_wide
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return ((x * -LOG2_E).unary("Exp2") + 1.0).unary("Recip")


@in_wide
def tanh(x: Tensor) -> Tensor:
    """1 - 2 / (exp(2x) + 1)."""
    return ((x * (2 * LOG2_E)).unary("Exp2") + 1.0).unary("Recip") * -2.0 + 1.0


@in_wide
def silu(x: Tensor) -> Tensor:
    """X * sigmoid(x)."""
    return x * sigmoid(x)


@in_wide
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """X times the normal distribution function of x, exactly or by tanh."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (tanh(inner) + 1.0)
    return x * 0.5 * ((x * math.sqrt(0.5)).unary("Erf") + 1.0)


@in_wide
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x where beta x is above the threshold."""
    scaled = x * beta
    return (scaled > threshold).where(x, log1p(exp(scaled)) * (1.0 / beta))


# ---------------------------------------------------------------------- trigonometry, powers
@in_wide
def sin(x: Tensor) -> Tensor:
    """Sin x."""
    return x.unary("Sin")


@in_wide
def cos(x: Tensor) -> Tensor:
    """Cos x = 1 - 2 sin(x/2)**2: halving is exact, a shift by pi/2 loses bits of large x."""
    half = (x * 0.5).unary("Sin")
    return half * half * -2.0 + 1.0


@in_wide
def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return x.unary("Sqrt")


@in_wide
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return x.unary("Sqrt").unary("Recip")


@in_wide
def recip(x: Tensor) -> Tensor:
    """1 / x."""
    return x.unary("Recip")


@in_wide
def power(x: Tensor, exponent: float) -> Tensor:
    """x**exponent for a number: products, roots, or exp2 of a multiple of log2."""
    if exponent == 0:
        return x.graph.full(x.shape, 1, x.dtype)
    if exponent == int(exponent) and abs(exponent) <= 64:
        return _whole_power(x, int(exponent))
    if exponent == 0.5:  # pow(-inf, 0.5) is inf, sqrt(-inf) is NaN
        return x.unary("Sqrt") if x.dtype.is_float else x
    if exponent == -0.5:
        return x.unary("Sqrt").unary("Recip")
    return power_general(x, x.like(exponent))


def _whole_power(x: Tensor, n: int) -> Tensor:
    if n < 0:
        return _whole_power(x, -n).unary("Recip")
    out, square = None, x
    while True:
        if n & 1:
            out = square if out is None else out * square
        n >>= 1
        if not n:
            assert out is not None
            return out
        square = square * square


def power_general(x: Tensor, y: Tensor) -> Tensor:
    """x**y of floats with PyTorch's special cases (C's pow)."""
    size = abs_(x)
    value = (y * size.unary("Log2")).unary("Exp2")
    # log2 of 1 is 0, which an infinite y turns into NaN
    value = is_zero(size - 1.0).where(1.0, value)
    whole = is_zero(y % 1.0) * ordered(y) + isinf(y)
    odd = (abs_(y) % 2.0 > 0.5) * whole
    negative = (x < 0) + is_zero(x) * (x.unary("Recip") < 0) if x.dtype.is_float else x < 0
    signed = (negative * odd).where(-value, value)
    finite = (x < 0) * (x > -INF)
    out = (finite * not_(whole)).where(math.nan, signed)
    out = (ordered(x) if isinstance(ordered(x), Tensor) else true(x)).where(out, math.nan)
    return (is_zero(y) * ordered(y)).where(1.0, out)


# ---------------------------------------------------------------------- reductions
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


def count(x: Tensor, dims: Sequence[int]) -> int:
    """Number of elements under a reduction over `dims`.

    Raises:
        TypeError: when one of the dims is symbolic.
    """
    return math.prod(int(x.shape[x.dim(d)]) for d in dims) if x.rank else 1


@in_wide
def mean(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """Arithmetic mean."""
    n = count(x, dims)
    return x.sum(*dims, keepdim=keepdim) * (1.0 / n if n else math.nan)


def moments(x: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """Variance and mean over dims, dims kept; `x` is wide."""
    n = count(x, dims)
    m = mean(x, dims, keepdim=True)
    d = x - m
    over = max(n - correction, 0)
    return (d * d).sum(*dims, keepdim=True) * (1.0 / over if over else INF), m


def argmax(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Index of the first maximum over a dim; the first NaN where there is one."""
    best = x.max(dim, keepdim=True)
    hit = not_(x < best)
    if x.dtype.is_float:
        hit = hit * (isnan(x) + ordered(best))
    dim = x.dim(dim)
    n = x.shape[dim] if x.rank else 1
    last = Index.num(n - 1)
    place = x.graph.iota(last - Index.axis(out_axis(dim)) if x.rank else Index(), x.shape)
    return hit.where(place, -1).max(dim, keepdim=keepdim) * -1 + (n - 1)


def argmin(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Index of the first minimum over a dim; the first NaN where there is one."""
    if x.dtype == BOOL:
        return argmax(not_(x), dim, keepdim)
    return argmax(-x if x.dtype.is_float else -x - 1, dim, keepdim)


# ---------------------------------------------------------------------- softmax and products
def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x - max) / sum exp(x - max) over a dim."""
    e, s, _ = _softmax_parts(wide(x), dim)
    return (e * s.unary("Recip")).cast(x.dtype)


def _softmax_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    m = x.max(dim, keepdim=True)
    e = ((x - m) * LOG2_E).unary("Exp2")
    return e, e.sum(dim, keepdim=True), m


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """X - max - log(sum exp(x - max)) over a dim."""
    w = wide(x)
    _, s, m = _softmax_parts(w, dim)
    return (w - m - log(s)).cast(x.dtype)


def logsumexp(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """log(sum(exp x)); an infinite maximum is not subtracted, as in PyTorch."""
    w = wide(x)
    m = w.max(*dims, keepdim=True)
    m = isinf(m).where(0.0, m)
    s = ((w - m) * LOG2_E).unary("Exp2").sum(*dims, keepdim=True)
    out = log(s) + m
    return (out if keepdim else out.squeeze(*dims)).cast(x.dtype)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product over the last two dims, batch dims broadcast, in a float32 accumulator.

    Arguments:
        a: (…, m, k)
        b: (…, k, n), of the same dtype.

    Returns:
        (…, m, n); float32 for 16-bit floats, to be cast by the caller.
    """
    a, b = wide(a), wide(b)
    return (a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3)).sum(-1)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul`: vectors, matrices, and batches of them."""
    x = a.unsqueeze(0) if a.rank == 1 else a
    y = b.unsqueeze(1) if b.rank == 1 else b
    out = product(x, y)
    if b.rank == 1:
        out = out.squeeze(-1)
    if a.rank == 1:
        out = out.squeeze(-1 if b.rank == 1 else -2)
    return out.cast(a.dtype)


def below(x: Tensor, offset: int) -> Tensor:
    """Where column <= row + offset, over the last two dims of `x`."""
    rows, cols = x.shape[-2:]
    row = x.graph.iota(Index.axis("i0") + (offset + 1), (rows, cols))
    col = x.graph.iota(Index.axis("i1"), (rows, cols))
    return col < row


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ scale + mask) v, in float32, with one cast at the end.

    Arguments:
        q: (…, l, d)
        k: (…, s, d)
        v: (…, s, e)
        mask: Broadcasts to (…, l, s): a bool (True takes part) or what is added to the scores.
        causal: Query i sees keys 0…i.
        scale: 1/sqrt(d) when None.

    Returns:
        (…, l, e), and the log of the sum of exponentials (…, l), float32. A row whose keys are
        all masked gives 0, as PyTorch does.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = product(q, k.transpose(-1, -2)) * scale  # (…, l, s)
    if causal:
        scores = below(scores, 0).where(scores, -INF)
    if mask is not None and mask.dtype == BOOL:
        scores = mask.where(scores, -INF)
    elif mask is not None:
        scores = scores + mask.cast(scores.dtype)
    e, s, m = _softmax_parts(scores, -1)
    out = product(e * s.unary("Recip"), wide(v))
    if mask is not None:
        out = (m < finfo_min(m.dtype)).where(0.0, out)  # only -inf is below the lowest number
    return out.cast(q.dtype), (log(s) + m).squeeze(-1)


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


def cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Joined along a dim: a Select over where each part ends.

    Parts of equal size n are all read at `i % n`, which needs no guard; others are padded.
    """
    first = parts[0]
    dim = first.dim(dim)
    sizes = [p.shape[dim] for p in parts]
    shape = (*first.shape[:dim], sum(sizes), *first.shape[dim + 1 :])
    if len(parts) == 1:
        return first
    axis, extents = Index.axis(out_axis(dim)), first.graph.extents(shape)
    reads: list[Tensor] = []
    ends: list[tuple[Index, int]] = []
    if len(set(sizes)) == 1 and sizes[0]:
        n = sizes[0]
        for k, part in enumerate(parts):
            at = [Index() if m == 1 else Index.axis(out_axis(d)) for d, m in enumerate(shape)]
            at[dim] = axis.mod(n, extents)
            reads.append(part.viewed(shape, at))
            ends.append((axis.floordiv(n, extents), k + 1))
    else:
        start = 0
        for part, n in zip(parts, sizes):
            pads = [(0, 0)] * part.rank
            pads[dim] = (start, shape[dim] - start - n)
            start += n
            if n:
                reads.append(part.pad(pads, 0))
                ends.append((axis, start))
        if not reads:
            return first.expand(shape)
    out = reads[-1]
    for read, (index, end) in reversed(list(zip(reads[:-1], ends))):
        out = (first.graph.iota(index, shape) < end).where(read, out)
    return out
