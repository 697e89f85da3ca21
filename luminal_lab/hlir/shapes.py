"""Shapes whose dims are ints or symbolic expressions, and the axes over them.

The axis of a dim of size 1 is always the index 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BOOL, DType
from luminal_lab.hlir.graph import Dim
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.view import Scalar, View, out_axis

Shape = tuple[Dim, ...]


def scalar_of(value: Scalar, dtype: DType) -> Scalar:
    """A Python number as the kind that `dtype` has; integers wrap as they do in memory.

    Raises:
        HlirError: for a fractional number where an integer is needed.
    """
    if not isinstance(value, (bool, int, float)):
        raise HlirError(f"the number {value} is known at the call only")
    if dtype == BOOL:
        return bool(value)
    if dtype.is_float:
        return float(value)
    if int(value) != value:
        raise HlirError(f"{value!r} is not a value of {dtype}")
    low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
    return (int(value) - low) % (1 << dtype.bits) + low


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape, dims aligned at the end.

    Raises:
        HlirError: when two sizes differ and neither is 1.
    """
    out: list[Dim] = [1] * max((len(s) for s in shapes), default=0)
    for shape in shapes:
        lead = len(out) - len(shape)
        for k, n in enumerate(shape, lead):
            if is_one(out[k]):
                out[k] = n
            elif not is_one(n) and n != out[k]:
                raise HlirError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(out)


def is_one(dim: Dim) -> bool:
    """Whether a dim is the number 1."""
    return isinstance(dim, int) and dim == 1


def axes_of(shape: Sequence[Dim]) -> tuple[Index, ...]:
    """The axis of each dim; the axis of a dim of size 1 is 0."""
    return tuple(Index() if is_one(n) else Index.axis(out_axis(k)) for k, n in enumerate(shape))


def identity_of(shape: Sequence[Dim]) -> View:
    """The view that reads each dim at its own axis."""
    return View(axes_of(shape))
