"""PyTorch's type promotion, without PyTorch.

Operands come in three ranks: tensors with dims, 0-d tensors, and Python numbers. A lower rank
changes the dtype of a higher one only when its kind (bool, integer, float) is higher.

    >>> from luminal_lab.hlir.dtypes import BF16, I64
    >>> promote((BF16, 1), float), promote((I64, 2), (BF16, 0)), promote((I64, 1), float)
    (bf16, bf16, f32)
"""

from __future__ import annotations

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BOOL, DTYPES, F32, I64, DType

Kind = tuple[DType, int] | type
"""The dtype and the rank of a tensor, or the type of a Python number."""

_LEVEL = {"bool": 0, "int": 1, "uint": 1, "float": 2}
_NUMBERS: dict[type, DType] = {bool: BOOL, int: I64, float: F32}


def promote(*operands: Kind) -> DType:
    """The dtype in which an elementwise op of these operands computes.

    Raises:
        HlirError: where PyTorch has no answer (8-bit floats and anything else).
    """
    ranks: list[DType | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, tuple):
            dtype, rank = operand[0], int(operand[1] == 0)
        else:
            dtype, rank = _NUMBERS[operand], 2
        known = ranks[rank]
        ranks[rank] = dtype if known is None else common(known, dtype)
    out: DType | None = None
    for lower in reversed(ranks):
        out = _combine(lower, out)
    assert out is not None, "an op has operands"
    return out


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if _LEVEL[lower.kind] > _LEVEL[higher.kind]:
        return common(higher, lower)
    return higher


def common(a: DType, b: DType) -> DType:
    """The least dtype that holds both kinds of values, as `torch.promote_types`."""
    if a == b:
        return a
    for x, y in ((a, b), (b, a)):
        if y.is_float and y.bits == 8:
            raise HlirError(
                f"PyTorch promotes {a} and {b} to nothing", fix="cast one of them to the other"
            )
        if x == BOOL or (x.is_int and y.is_float):
            return y
    if a.is_float:
        return F32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    signed = [d for d in (a, b) if d.kind == "int"]
    if len(signed) == 2:
        return max(a, b, key=lambda d: d.bits)
    return DTYPES[f"i{max(signed[0].bits, 16)}"]  # with u8
