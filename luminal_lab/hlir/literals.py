"""Plain values as text and back: what attributes, dims and templates are printed as.

The text is a subset of Python expressions, read by walking `ast`; nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import DTYPES, DType
from luminal_lab.hlir.graph import ComplexRef, Ref, TorchName
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, Size, largest, smallest

Symbols = Mapping[str, Dim]  # size symbols by name


def show(value: Any) -> str:
    """The text of an attribute's value.

    Raises:
        HlirError: for a value that has no text form.
    """
    match value:
        case None | bool() | int() | str():
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case complex():
            return f"complex({show(value.real)}, {show(value.imag)})"
        case DType():
            return value.name
        case Ref(operand):
            return f"Ref({operand})"
        case ComplexRef(operand):
            return f"ComplexRef({operand})"
        case TorchName(name):
            return f"TorchName({name!r})"
        case Index():
            return f"Index({str(value)!r})"
        case tuple():
            inner = ", ".join(map(show, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case list():
            return f"[{', '.join(map(show, value))}]"
        case dict():
            return "{" + ", ".join(f"{show(k)}: {show(v)}" for k, v in value.items()) + "}"
        case Size():
            return str(value)
        case _:
            raise HlirError(f"a {type(value).__name__} has no text form: {value!r}")


def show_shape(shape: Sequence[Any]) -> str:
    """`[2, s0]`."""
    return f"[{', '.join(map(str, shape))}]"


def read(text: str, symbols: Symbols | None = None) -> Any:
    """The value that `show` printed.

    Arguments:
        text: A Python expression made of literals, dtype names, symbols, `Ref`, `ComplexRef`,
            `TorchName`, `Index`, and arithmetic on symbols.
        symbols: The symbols that dims may mention.

    Raises:
        HlirError: on anything else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise HlirError(f"not a literal: {text!r}") from error
    return _Reader(text, symbols or {}).value(tree.body)


class _Reader:
    def __init__(self, text: str, symbols: Symbols):
        self.text = text
        self.symbols = symbols

    def value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Tuple(elts=items):
                return tuple(map(self.value, items))
            case ast.List(elts=items):
                return list(map(self.value, items))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {self.value(k): self.value(v) for k, v in zip(keys, values) if k}
            case ast.Name(id="inf" | "nan" as name):
                return float(name)
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.Name(id=name) if name in DTYPES:
                return DTYPES[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.number(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self.arithmetic(self.number(left), op, self.number(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, [self.value(a) for a in args])
        raise self.error()

    def number(self, node: ast.AST) -> Any:
        value = self.value(node)
        if isinstance(value, bool | str | tuple | list | dict) or value is None:
            raise self.error()
        return value

    def arithmetic(self, a: Any, op: ast.operator, b: Any) -> Any:
        if not any(isinstance(x, Size) for x in (a, b)):
            raise self.error()
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.FloorDiv():
                return a // b
        raise self.error()

    def call(self, name: str, args: list[Any]) -> Any:
        match name, args:
            case "Ref", [int(operand)]:
                return Ref(operand)
            case "ComplexRef", [int(operand)]:
                return ComplexRef(operand)
            case "complex", [float(real), float(imag)]:
                return complex(real, imag)
            case "TorchName", [str(attribute)]:
                return TorchName(attribute)
            case "Index", [str(text)]:
                return Index.parse(text, None, self.symbols)
            case "max" | "min", [int() | Size() as a, int() | Size() as b]:
                return largest(a, b) if name == "max" else smallest(a, b)
        raise self.error()

    def error(self) -> HlirError:
        return HlirError(f"not a literal: {self.text!r}")
