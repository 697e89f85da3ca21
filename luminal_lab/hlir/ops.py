"""The op table of HLIR: one row per op, and everything else is derived from it.

The fifteen primitives, `Select`, `Erf` and `ArgMaxReduce` (docs/decisions/0002, 0013): arity,
how the dtype follows from the operands' dtypes, and a reference on torch tensors that works in
float64. The reference takes tensors that broadcast together (views were applied before) and
computes in the dtype that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["source", "unary", "binary", "select", "reduce", "cast", "index", "custom"]
DTypeRule = Literal["attr", "same", "bool", "branch", "last"]


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the op table.

    Arguments:
        name: The HLIR spelling; `name.lower()` spells it in values and in `rules/`.
        family: Groups ops that are encoded alike.
        arity: Number of operands, None when it varies.
        dtype: `same` as all operands, `bool`, `branch` (that of operands 1 and 2, operand 0
            being bool), that of the `last` operand, or given by the node (`attr`).
        commutative: Whether operands of a binary op may be swapped.
        identity: The identity of a reduction (as text: `"0"`, `"-inf"`), None for other ops.
        floats_only: Whether only floating-point operands are allowed.
        reference: torch tensors in, torch tensor out; None for sources and index ops, which the
            interpreter evaluates itself.
        law: One sentence that defines the op.
    """

    name: str
    family: Family
    arity: int | None
    dtype: DTypeRule
    law: str
    reference: Callable[..., Any] | None = None
    commutative: bool = False
    identity: str | None = None
    floats_only: bool = False


def _t(name: str) -> Callable[..., Any]:
    """The torch function `name`, looked up at the call: this module does not import torch."""

    def call(*args: Any) -> Any:
        import torch

        return getattr(torch, name)(*args)

    return call


def _add(a: Any, b: Any) -> Any:
    import torch

    return torch.logical_or(a, b) if a.dtype == torch.bool else torch.add(a, b)


def _mul(a: Any, b: Any) -> Any:
    import torch

    return torch.logical_and(a, b) if a.dtype == torch.bool else torch.mul(a, b)


_ROWS = (
    Op("Input", "source", 0, "attr", "a tensor given at the call, or a weight by reference"),
    Op("Constant", "source", 0, "attr", "a scalar known at compile time"),
    Op("Iota", "source", 0, "attr", "an index expression over the output axes"),
    Op("Exp2", "unary", 1, "same", "2**x", _t("exp2"), floats_only=True),
    Op("Log2", "unary", 1, "same", "log2(x)", _t("log2"), floats_only=True),
    Op("Sin", "unary", 1, "same", "sin(x)", _t("sin"), floats_only=True),
    Op("Sqrt", "unary", 1, "same", "sqrt(x)", _t("sqrt"), floats_only=True),
    Op("Recip", "unary", 1, "same", "1/x", _t("reciprocal"), floats_only=True),
    Op("Erf", "unary", 1, "same", "2/sqrt(pi) * integral of exp(-t*t) over [0, x]",
       _t("erf"), floats_only=True),
    Op("Add", "binary", 2, "same", "a + b; or on bool; wraps on integers", _add,
       commutative=True),
    Op("Mul", "binary", 2, "same", "a * b; and on bool; wraps on integers", _mul,
       commutative=True),
    Op("Mod", "binary", 2, "same", "remainder with the divisor's sign, as Python's %",
       _t("remainder")),
    Op("LessThan", "binary", 2, "bool", "a < b; false when either is NaN", _t("lt")),
    Op("Select", "select", 3, "branch", "a where the condition holds, else b", _t("where")),
    Op("Cast", "cast", 1, "attr", "conversion to another dtype, as torch.Tensor.to"),
    Op("SumReduce", "reduce", 1, "same", "sum over axis r; 0 when r is empty", identity="0"),
    Op("MaxReduce", "reduce", 1, "same", "maximum over axis r, NaN wins; -inf when r is empty",
       identity="-inf"),
    Op("ArgMaxReduce", "reduce", 2, "last",
       "the least b over axis r among those where a is greatest, NaN being greater than all"),
    Op("Gather", "index", None, "same",
       "operand 0 read at its view, where axes @0, @1, ... are the values of operands 1, ..."),
    Op("Scatter", "index", None, "same",
       "operand 0 with operand 1 stored (attr mode: set or add) at indices operands 2, 3, ..."),
    Op("Custom", "custom", None, "attr",
       "an ATen operator without a lowering, called at run time"),
)  # fmt: skip
OPS: dict[str, Op] = {op.name: op for op in _ROWS}
UNARY = tuple(op.name for op in _ROWS if op.family == "unary")
BINARY = tuple(op.name for op in _ROWS if op.family == "binary")
REDUCTIONS = {  # HLIR op -> the op of `Red` or `Carry`
    "SumReduce": "add",
    "MaxReduce": "max",
    "ArgMaxReduce": "argmax",
}
