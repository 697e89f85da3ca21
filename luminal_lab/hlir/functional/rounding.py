"""Rounding, and division in its kinds."""

from __future__ import annotations

import math

from luminal_lab.hlir.dtypes import F64
from luminal_lab.hlir.functional.logic import abs_, eq, isinf, maximum, minimum, ne
from luminal_lab.hlir.functional.precision import in_wide
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar


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
    """Quotient x // y, rounded to minus infinity; exact (floats by 0: x / 0).

    x less its remainder is a multiple of y, so a rounded float quotient of the two is the
    answer. The remainder of floats has the sign of x, as C's has (of an infinite y it is x);
    the answer is one less where the signs differ. Integers of 64 bits do not fit float64: what
    a first quotient leaves over is divided once more.
    """
    if x.dtype.is_float:
        rest = fmod(x, y)
        whole = floor(divide(x - rest, y) + 0.5) - _signs_differ(rest, y).cast(x.dtype)
        return eq(y, 0).where(divide(x, y), whole)
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
        return (isinf(x) + eq(y, 0)).where(divide(x, y), exact)
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
