"""In which precision a function computes, and what a dtype can hold."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable

from luminal_lab.hlir.dtypes import F16, F32, DType
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar


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

    >>> from luminal_lab.hlir.dtypes import DTYPES
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
