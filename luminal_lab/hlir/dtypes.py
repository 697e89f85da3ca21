"""The dtypes of HLIR: one table, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type.

    Arguments:
        name: The short name that the text forms and the rules use, such as `"bf16"`.
        kind: Its family.
        bits: Its width in memory.
        torch_name: The attribute of `torch` with the same meaning (torch is not imported here).
    """

    name: str
    kind: Kind
    bits: int
    torch_name: str

    @property
    def bytes(self) -> int:
        """Bytes that one element occupies in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type (bool is not)."""
        return self.kind in ("int", "uint")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return (dtype, (self.name,))


_ROWS: tuple[tuple[str, Kind, int, str], ...] = (
    ("f64", "float", 64, "float64"),
    ("f32", "float", 32, "float32"),
    ("f16", "float", 16, "float16"),
    ("bf16", "float", 16, "bfloat16"),
    ("f8e4m3", "float", 8, "float8_e4m3fn"),
    ("f8e5m2", "float", 8, "float8_e5m2"),
    ("i64", "int", 64, "int64"),
    ("i32", "int", 32, "int32"),
    ("i16", "int", 16, "int16"),
    ("i8", "int", 8, "int8"),
    ("u8", "uint", 8, "uint8"),
    ("bool", "bool", 8, "bool"),
)
DTYPES: dict[str, DType] = {row[0]: DType(*row) for row in _ROWS}
BY_TORCH_NAME: dict[str, DType] = {d.torch_name: d for d in DTYPES.values()}

F64, F32, F16, BF16 = DTYPES["f64"], DTYPES["f32"], DTYPES["f16"], DTYPES["bf16"]
I64, I32, I16, I8, U8 = (DTYPES[n] for n in ("i64", "i32", "i16", "i8", "u8"))
BOOL = DTYPES["bool"]


def dtype(spec: object) -> DType:
    """The DType for a short name, a torch name, or a `torch.dtype`.

    Raises:
        KeyError: when there is no such dtype (complex and quantised types have none).
    """
    if isinstance(spec, DType):
        return spec
    text = str(spec).removeprefix("torch.")
    return DTYPES[text] if text in DTYPES else BY_TORCH_NAME[text]
