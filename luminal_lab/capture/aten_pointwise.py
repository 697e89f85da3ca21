"""Lowerings of pointwise operators, casts and creation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from luminal_lab.capture.table import (
    Call,
    NoLowering,
    common_dtype,
    dim,
    int_range,
    lowers,
    whole,
)
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, F64, I64
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar

Arg = Tensor | Scalar


# ---------------------------------------------------------------------- arithmetic
@lowers("add.Tensor", "add.Scalar")
def _add(call: Call, x: Arg, y: Arg, alpha: Scalar = 1) -> Tensor:
    a, b, c = call.operands(x, y, alpha)
    return (a + (b if alpha == 1 else b * c)).cast(call.dtype)


@lowers("sub.Tensor", "sub.Scalar")
def _sub(call: Call, x: Arg, y: Arg, alpha: Scalar = 1) -> Tensor:
    if not isinstance(y, Tensor):
        return _add(call, x, -y * alpha)
    a, b, c = call.operands(x, y, alpha)
    return (a - (b if alpha == 1 else b * c)).cast(call.dtype)


@lowers("rsub.Tensor", "rsub.Scalar")
def _rsub(call: Call, x: Arg, y: Arg, alpha: Scalar = 1) -> Tensor:
    a, b, c = call.operands(x, y, alpha)
    return (b - (a if alpha == 1 else a * c)).cast(call.dtype)


@lowers("mul.Tensor", "mul.Scalar")
def _mul(call: Call, x: Arg, y: Arg) -> Tensor:
    a, b = call.operands(x, y)
    return (a * b).cast(call.dtype)


@lowers("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(call: Call, x: Arg, y: Arg) -> Tensor:
    if not isinstance(y, Tensor):
        (a,) = call.operands(x, exact=False)
        return F.divide(a, y).cast(call.dtype)
    a, b = call.operands(x, y, exact=False)
    return F.divide(a, b).cast(call.dtype)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(call: Call, x: Arg, y: Arg, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return _div(call, x, y)
    a, b = call.operands(x, y, exact=False)
    f = F.floor_divide if rounding_mode == "floor" else F.trunc_divide
    return f(a, b).cast(call.dtype)


@lowers("floor_divide.default", "floor_divide.Scalar")
def _floor_divide(call: Call, x: Arg, y: Arg) -> Tensor:
    return _div_mode(call, x, y, "floor")


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(call: Call, x: Arg, y: Arg) -> Tensor:
    a, b = call.operands(x, y, exact=False)
    return (a % b).cast(call.dtype)


@lowers("fmod.Tensor", "fmod.Scalar")
def _fmod(call: Call, x: Arg, y: Arg) -> Tensor:
    a, b = call.operands(x, y, exact=False)
    return F.fmod(a, b).cast(call.dtype)


@lowers("addcmul.default")
def _addcmul(call: Call, x: Tensor, a: Tensor, b: Tensor, value: Scalar = 1) -> Tensor:
    x, a, b, v = call.operands(x, a, b, value, exact=False)
    return (x + (a * b if value == 1 else a * v * b)).cast(call.dtype)


@lowers("addcdiv.default")
def _addcdiv(call: Call, x: Tensor, a: Tensor, b: Tensor, value: Scalar = 1) -> Tensor:
    x, a, b, v = call.operands(x, a, b, value, exact=False)
    return (x + F.divide(a if value == 1 else a * v, b)).cast(call.dtype)


@lowers("lerp.Scalar", "lerp.Tensor")
def _lerp(call: Call, x: Tensor, y: Tensor, weight: Arg) -> Tensor:
    a, b, w = call.operands(x, y, weight, exact=False)
    near = a + w * (b - a)
    far = b - (b - a) * (1.0 - w)
    return (F.abs_(w) < 0.5).where(near, far).cast(call.dtype)


@lowers("pow.Tensor_Scalar")
def _pow(call: Call, x: Tensor, exponent: Scalar) -> Tensor:
    x = call.tensor(x)
    if x.dtype.is_float:
        return F.power(x, float(exponent))
    if exponent < 0 or exponent > 64:
        raise NoLowering(f"integers to the power of {exponent}")
    return F.power(x, exponent)


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def _pow_tensor(call: Call, x: Arg, y: Arg) -> Tensor:
    if not call.dtype.is_float:
        raise NoLowering("integers to the power of a tensor")
    a, b = call.operands(x, y, exact=False)
    if not isinstance(x, Tensor) and x > 0 and x != 1 and math.isfinite(x):
        return (b * math.log2(x)).unary("Exp2").cast(call.dtype)
    return F.power_general(a, b).cast(call.dtype)


@lowers("maximum.default", "minimum.default")
def _extreme(call: Call, x: Tensor, y: Tensor) -> Tensor:
    f = F.maximum if call.target.startswith("max") else F.minimum
    return f(call.tensor(x), call.tensor(y))


@lowers("fmax.default", "fmin.default")
def _extreme_number(call: Call, x: Tensor, y: Tensor) -> Tensor:
    a, b = call.tensor(x), call.tensor(y)
    wins = a < b if call.target.startswith("fmax") else a > b
    if call.dtype.is_float:
        wins = wins + F.isnan(a)
    return wins.where(b, a)


@lowers("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_min.Tensor")
def _clamp(call: Call, x: Tensor, min: Arg | None = None, max: Arg | None = None) -> Tensor:
    d = call.dtype
    out = call.tensor(x)
    if not all(
        isinstance(b, Tensor) or F.representable(b, d) for b in (min, max) if b is not None
    ):
        out = F.wide(out)

    def bound(b: Arg) -> Arg:
        return b.cast(out.dtype) if isinstance(b, Tensor) else b

    if min is not None:
        out = F.maximum(out, bound(min))
    if max is not None:
        out = F.minimum(out, bound(max))
    return out.cast(d)


@lowers("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(call: Call, x: Tensor, max: Arg) -> Tensor:
    return _clamp(call, x, None, max)


@lowers("hardtanh.default")
def _hardtanh(call: Call, x: Tensor, min_val: Scalar = -1, max_val: Scalar = 1) -> Tensor:
    return _clamp(call, x, min_val, max_val)


# ---------------------------------------------------------------------- comparison and logic
_COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "eq": F.eq,
    "ne": F.ne,
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "le": F.le,
    "ge": F.ge,
}


def _comparison(compare: Callable[..., Tensor]):
    def lower(call: Call, x: Arg, y: Arg) -> Tensor:
        d = common_dtype(x, y)
        x = call.tensor(x, d)
        if isinstance(y, Tensor):
            return compare(x, y.cast(d))
        return compare(x if F.representable(y, d) else F.wide(x), y)

    return lower


for _name, _compare in _COMPARISONS.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_compare))


@lowers("logical_and.default", "bitwise_and.Tensor", "bitwise_and.Scalar")
def _and(call: Call, x: Arg, y: Arg) -> Tensor:
    if isinstance(x, Tensor) and type(y) is int and call.dtype.is_int and y & (y + 1) == 0:
        a, below = call.tensor(x), y + 1  # the low bits: a remainder, whatever the sign
        if y > 0 and int_range(call.dtype)[1] >= below:
            return a % below
    return _bools(call, x) * _bools(call, y)


@lowers("logical_or.default", "bitwise_or.Tensor", "bitwise_or.Scalar")
def _or(call: Call, x: Arg, y: Arg) -> Tensor:
    return _bools(call, x) + _bools(call, y)


@lowers("logical_xor.default", "bitwise_xor.Tensor", "bitwise_xor.Scalar")
def _xor(call: Call, x: Arg, y: Arg) -> Tensor:
    a, b = _bools(call, x), _bools(call, y)
    return a.where(F.not_(b), b)


@lowers("logical_not.default")
def _logical_not(call: Call, x: Tensor) -> Tensor:
    return F.not_(_bools(call, x))


@lowers("bitwise_not.default")
def _bitwise_not(call: Call, x: Tensor) -> Tensor:
    return F.not_(x) if x.dtype == BOOL else -x - 1


def _bools(call: Call, x: Arg) -> Tensor:
    if call.dtype != BOOL:
        raise NoLowering("bitwise operations on integers")
    return call.tensor(x, BOOL)


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: Call, condition: Tensor, x: Arg, y: Arg) -> Tensor:
    return call.tensor(condition, BOOL).where(call.tensor(x), call.tensor(y))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(call: Call, x: Tensor, mask: Tensor, value: Arg) -> Tensor:
    return mask.where(call.tensor(value), x).expand(call.shape)


@lowers("isnan.default")
def _isnan(call: Call, x: Tensor) -> Tensor:
    return F.isnan(x)


@lowers("isinf.default")
def _isinf(call: Call, x: Tensor) -> Tensor:
    return F.isinf(x)


@lowers("signbit.default")
def _signbit(call: Call, x: Tensor) -> Tensor:
    if x.dtype.is_float:
        raise NoLowering("the sign of zero and NaN")
    return x < 0 if x.dtype != BOOL else F.false(x).expand(x.shape)


# ---------------------------------------------------------------------- functions of one tensor
def _function(f: Callable[[Tensor], Tensor]):
    return lambda call, x: f(call.tensor(x))


for _name, _f in (F.FLOAT_FUNCTIONS | F.SAME_FUNCTIONS).items():
    lowers(f"{_name}.default")(_function(_f))


@lowers("atan2.default", "hypot.default")
def _pair(call: Call, x: Tensor, y: Tensor) -> Tensor:
    f = F.atan2 if call.target.startswith("atan2") else F.hypot
    return f(*call.operands(x, y, exact=False)).cast(call.dtype)


@lowers("angle.default")
def _angle(call: Call, x: Tensor) -> Tensor:
    x = call.tensor(x)  # 0 or π, and NaN stays
    return (x < 0).where(math.pi, F.isnan(x).where(x, x.like(0.0)))


@lowers("ldexp.Tensor")
def _ldexp(call: Call, x: Tensor, exponent: Tensor) -> Tensor:
    a, e = call.operands(x, exponent, exact=False)
    return (a * e.unary("Exp2")).cast(call.dtype)


@lowers("round.decimals")
def _round_decimals(call: Call, x: Tensor, *, decimals: int = 0) -> Tensor:
    if not decimals:
        return F.round_(x)
    if not x.dtype.is_float:
        raise NoLowering("integers rounded to decimals")
    w, ten = F.wide(x), 10.0 ** abs(decimals)
    if decimals > 0:
        return F.divide(F.round_(w * ten), w.like(ten)).cast(x.dtype)
    return (F.round_(F.divide(w, w.like(ten))) * ten).cast(x.dtype)


@lowers("frac.default")
def _frac(call: Call, x: Tensor) -> Tensor:
    return x - F.trunc(x)


@lowers("gelu.default")
def _gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate)


@lowers("softplus.default")
def _softplus(call: Call, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return F.softplus(x, beta, threshold)


@lowers("leaky_relu.default")
def _leaky_relu(call: Call, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    w = F.wide(x)
    return (w > 0).where(w, w * negative_slope).cast(x.dtype)


@lowers("elu.default")
def _elu(
    call: Call, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Tensor:
    w = F.wide(x)
    bent = F.expm1(w * input_scale if input_scale != 1 else w) * (alpha * scale)
    return (w > 0).where(w * scale if scale != 1 else w, bent).cast(x.dtype)


@lowers("threshold.default")
def _threshold(call: Call, x: Tensor, threshold: Scalar, value: Scalar) -> Tensor:
    w = F.wide(x)  # NaN is kept: it is not <= the threshold
    return F.le(w, threshold).where(value, w).cast(x.dtype)


@lowers("logaddexp.default")
def _logaddexp(call: Call, x: Tensor, y: Tensor) -> Tensor:
    a, b = call.operands(x, y, exact=False)
    top, gap = F.maximum(a, b), F.abs_(a - b)
    equal = F.isinf(a) * F.eq(a, b)
    return equal.where(a, top + F.log1p(F.exp(-gap))).cast(call.dtype)


# ---------------------------------------------------------------------- casts and copies
@lowers(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other",
    "clone.default", "contiguous.default", "alias.default", "detach.default",
    "lift_fresh_copy.default", "lift_fresh.default", "lift.default", "type_as.default",
    "view_as.default", "alias_copy.default", "detach_copy.default",
)  # fmt: skip
def _convert(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.cast(call.dtype).reshape(call.shape)


@lowers("convert_element_type.default")
def _convert_element_type(call: Call, x: Tensor, dtype: Any) -> Tensor:
    return x.cast(call.dtype)


@lowers("copy.default")
def _copy(call: Call, x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.cast(call.dtype).expand(call.shape)


@lowers("native_dropout.default")
def _native_dropout(
    call: Call, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    if train is not False and p != 0:
        raise NoLowering("random numbers")
    return x, F.true(x).expand(x.shape)


@lowers("dropout.default")
def _dropout(call: Call, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p != 0:
        raise NoLowering("random numbers")
    return x


# ---------------------------------------------------------------------- creation
_FILLS: dict[str, Scalar] = {
    "zeros.default": 0, "zeros_like.default": 0, "new_zeros.default": 0, "zero.default": 0,
    "ones.default": 1, "ones_like.default": 1, "new_ones.default": 1,
    # memory that PyTorch leaves as it finds it
    "empty.memory_format": 0, "empty_like.default": 0, "new_empty.default": 0,
    "empty_strided.default": 0, "new_empty_strided.default": 0, "empty_permuted.default": 0,
}  # fmt: skip


def _fill(value: Scalar):
    return lambda call, *args, **kwargs: call.graph.full(call.shape, value, call.dtype)


for _name, _value in _FILLS.items():
    lowers(_name)(_fill(_value))


@lowers("full.default", "full_like.default", "new_full.default", "fill.Scalar", "fill.Tensor")
def _full(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    position = 2 if call.target == "new_full.default" else 1
    value: Any = (
        args[position]
        if len(args) > position
        else kwargs.get("fill_value", kwargs.get("value"))
    )
    return call.tensor(value).expand(call.shape)


@lowers("scalar_tensor.default")
def _scalar_tensor(call: Call, value: Scalar, **kwargs: Any) -> Tensor:
    return call.tensor(value)


@lowers("arange.default", "arange.start", "arange.start_step")
def _arange(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    i = call.graph.iota(Index.axis("i0"), call.shape, I64)
    if not call.dtype.is_float:  # PyTorch truncates both first
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    if isinstance(start, float) or isinstance(step, float):
        # computed in double precision, then rounded
        return (i.cast(F64) * float(step) + float(start)).cast(call.dtype)
    index = Index.axis("i0") * whole(step, "the step") + dim(start)
    return call.graph.iota(index, call.shape, I64).cast(call.dtype)


@lowers("iota.default")
def _iota(call: Call, length: int, *, start: int, step: int, **kwargs: Any) -> Tensor:
    index = Index.axis("i0") * whole(step, "step") + dim(start)
    return call.graph.iota(index, call.shape, I64).cast(call.dtype)


@lowers("linspace.default")
def _linspace(call: Call, start: Scalar, end: Scalar, steps: int, **kwargs: Any) -> Tensor:
    steps = whole(steps, "steps")
    if not call.dtype.is_float or steps < 2:
        raise NoLowering("integer or single-step linspace")
    step = (end - start) / (steps - 1)
    i = call.graph.iota(Index.axis("i0"), (steps,), I64)
    x = i.cast(F64)
    rising, falling = x * step + float(start), (x - float(steps - 1)) * step + float(end)
    return (i < steps // 2).where(rising, falling).cast(call.dtype)


@lowers("eye.default", "eye.m")
def _eye(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    row = call.graph.iota(Index.axis("i0"), call.shape)
    col = call.graph.iota(Index.axis("i1"), call.shape)
    return F.eq(row, col).cast(call.dtype)


@lowers("tril.default", "triu.default")
def _triangle(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    lower = call.target.startswith("tril")
    inside = F.below(x, diagonal if lower else diagonal - 1)  # triu: not below the diagonal
    zero = x.like(0)
    return inside.where(x, zero) if lower else inside.where(zero, x)
