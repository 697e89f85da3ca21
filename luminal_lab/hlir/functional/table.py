"""Functions of one tensor by their ATen names."""

from __future__ import annotations

import math
from collections.abc import Callable

from luminal_lab.hlir.functional.elementary import (
    cos,
    exp,
    expm1,
    log,
    log1p,
    log10,
    recip,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    tan,
    tanh,
)
from luminal_lab.hlir.functional.inverse import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cosh,
    sinh,
)
from luminal_lab.hlir.functional.logic import abs_, maximum, minimum, relu, sign
from luminal_lab.hlir.functional.precision import in_wide
from luminal_lab.hlir.functional.rounding import ceil, floor, round_, trunc
from luminal_lab.hlir.tensor import Tensor


def _hard_gate(x: Tensor) -> Tensor:
    return minimum(maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6)


# Integers and bools become float32 first.
FLOAT_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": exp,
    "exp2": in_wide(lambda x: x.unary("Exp2")),
    "expm1": expm1,
    "log": log,
    "log2": in_wide(lambda x: x.unary("Log2")),
    "log10": log10,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "reciprocal": recip,
    "erf": in_wide(lambda x: x.unary("Erf")),
    "tanh": tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "mish": in_wide(lambda x: x * tanh(softplus(x))),
    "hardsigmoid": in_wide(lambda x: _hard_gate(x)),
    "hardswish": in_wide(lambda x: x * _hard_gate(x)),
    "deg2rad": in_wide(lambda x: x * (math.pi / 180)),
    "rad2deg": in_wide(lambda x: x * (180 / math.pi)),
}
# The dtype stays.
SAME_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": lambda x: -x,
    "abs": abs_,
    "sign": sign,
    "relu": relu,
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "round": round_,
    "square": lambda x: x * x,
}
