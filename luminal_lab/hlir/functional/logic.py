"""Conditions, comparisons with PyTorch's treatment of NaN, and what they select."""

from __future__ import annotations

import math

from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.functional.precision import finfo_min
from luminal_lab.hlir.shapes import Shape, broadcast_shapes
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar

INF = math.inf


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
        out = out * c if isinstance(out, Tensor) and isinstance(c, Tensor) else c
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
