"""Exponentials, activations, trigonometry, powers."""

from __future__ import annotations

import math

from luminal_lab.hlir.functional.logic import INF, abs_, is_zero, isinf, isnan, not_, ordered
from luminal_lab.hlir.functional.precision import in_wide
from luminal_lab.hlir.tensor import Tensor

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


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
def tan(x: Tensor) -> Tensor:
    """Tan x = sin 2x / (2 cos(x)**2), or 2 sin(x)**2 / sin 2x, whichever cancels nothing."""
    square = x.unary("Sin")
    square = square * square
    double = (x * 2.0).unary("Sin")
    pole = square * 2.0 * double.unary("Recip")
    return (square > 0.5).where(pole, double * ((1.0 - square) * 2.0).unary("Recip"))


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
    out = isnan(x).where(math.nan, out)
    return (is_zero(y) * ordered(y)).where(1.0, out)
