"""Inverse trigonometric functions, hyperbolic functions and their inverses, lengths."""

from __future__ import annotations

import math

from luminal_lab.hlir.functional.elementary import LN_2, exp, expm1, log, log1p, sqrt
from luminal_lab.hlir.functional.logic import INF, abs_, isinf, isnan, maximum, minimum, not_
from luminal_lab.hlir.functional.precision import in_wide
from luminal_lab.hlir.functional.rounding import divide
from luminal_lab.hlir.tensor import Tensor

# atan(t) = t + t * z * P(z) / Q(z), z = t * t, for |t| <= 0.66 (Cephes, within 2e-16).
_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
      -1.228866684490136173410e2, -6.485021904942025371773e1)  # fmt: skip
_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
      4.853903996359136964868e2, 1.945506571482613964425e2)  # fmt: skip
_FAR = 1e9  # x*x + 1 is x*x from here on, in every precision


def _polynomial(z: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    first, second, *rest = coefficients
    out = (z if first == 1.0 else z * first) + second
    for c in rest:
        out = out * z + c
    return out


def _odd(x: Tensor, of_size: Tensor) -> Tensor:
    """A function of |x| with the sign of x."""
    return (x < 0).where(-of_size, of_size)


@in_wide
def atan(x: Tensor) -> Tensor:
    """The angle whose tangent is x."""
    size = abs_(x)
    large, middle = size > math.tan(3 * math.pi / 8), size > 0.66
    mid = divide(size - 1.0, size + 1.0)
    t = large.where(-size.unary("Recip"), middle.where(mid, size))
    start = large.where(math.pi / 2, middle.where(x.like(math.pi / 4), x.like(0.0)))
    z = t * t
    bent = divide(z * _polynomial(z, _P), _polynomial(z, _Q)) * t + t
    return _odd(x, start + bent)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y), in all quadrants, with C's values at 0 and infinity."""
    a, b = abs_(y), abs_(x)
    quotient = atan(divide(a, b))
    quotient = (isinf(a) * isinf(b)).where(math.pi / 4, quotient)
    nothing = (a < 0.5) * (b < 0.5) * _same(a, b) * _same(a, -b)
    quotient = nothing.where(0.0, quotient)
    turned = _negative(x).where(math.pi - quotient, quotient)
    out = _negative(y).where(-turned, turned)
    return (isnan(x) + isnan(y)).where(math.nan, out)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return not_((a < b) + (a > b))


def _negative(x: Tensor) -> Tensor:
    """Where a number has its sign bit set, -0 too."""
    return (x < 0) + (x.unary("Recip") < 0)


@in_wide
def asin(x: Tensor) -> Tensor:
    """The angle whose sine is x; NaN beyond 1."""
    return atan(divide(x, sqrt((1.0 - x) * (x + 1.0)) + 1.0)) * 2.0


@in_wide
def acos(x: Tensor) -> Tensor:
    """The angle whose cosine is x; NaN beyond 1."""
    return atan(sqrt(divide(1.0 - x, x + 1.0))) * 2.0


@in_wide
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine, precise near 0."""
    size = abs_(x)
    e, half = expm1(size), exp(size * 0.5)
    near = (e + divide(e, e + 1.0)) * 0.5
    return _odd(x, (size > 40.0).where(half * 0.5 * half, near))


@in_wide
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    half = exp(abs_(x) * 0.5)
    e = half * 0.5 * half  # exp(|x|) / 2, without overflow where the result has none
    return e + e.unary("Recip") * 0.25


@in_wide
def asinh(x: Tensor) -> Tensor:
    """The inverse of sinh, precise near 0."""
    size = abs_(x)
    square = size * size
    near = log1p(size + divide(square, sqrt(square + 1.0) + 1.0))
    return _odd(x, (size > _FAR).where(log(size) + LN_2, near))


@in_wide
def acosh(x: Tensor) -> Tensor:
    """The inverse of cosh; NaN below 1."""
    t = x - 1.0
    near = log1p(t + sqrt(t * 2.0 + t * t))
    return (x < 1.0).where(math.nan, (x > _FAR).where(log(x) + LN_2, near))


@in_wide
def atanh(x: Tensor) -> Tensor:
    """The inverse of tanh; infinite at 1, NaN beyond."""
    size = abs_(x)
    return _odd(x, log1p(divide(size * 2.0, 1.0 - size)) * 0.5)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x*x + y*y) without overflow; an infinite side outweighs a NaN."""
    a, b = abs_(x), abs_(y)
    long, short = maximum(a, b), minimum(a, b)
    ratio = divide(short, long)
    out = (long > 0).where(long * sqrt(ratio * ratio + 1.0), long)
    return (isinf(a) + isinf(b)).where(INF, out)
