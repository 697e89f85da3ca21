"""Operators of Tensors: arithmetic, comparison and logic, with PyTorch's promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.tensor.base import Base, Operand, _kind
from luminal_lab.tensor.calls import op, shown
from luminal_lab.tensor.promotion import promote


class Arithmetic(Base):
    """The operators of Python, and what PyTorch names beside them."""

    @op
    def add(self, other: Operand) -> Self:
        """`self + other`; on bools: or."""
        return self._binary(lambda a, b: a + b, self, other)

    @op
    def sub(self, other: Operand) -> Self:
        """`self - other`."""
        return self._minus(self, other)

    @op
    def rsub(self, other: Operand) -> Self:
        """`other - self`."""
        return self._minus(other, self)

    @op
    def mul(self, other: Operand) -> Self:
        """`self * other`; on bools: and."""
        return self._binary(lambda a, b: a * b, self, other)

    @op
    def div(self, other: Operand) -> Self:
        """`self / other`; integers give f32."""
        return self._quotient(self, other)

    @op
    def rdiv(self, other: Operand) -> Self:
        """`other / self`."""
        return self._quotient(other, self)

    @op
    def floor_div(self, other: Operand) -> Self:
        """`self // other`, rounded to minus infinity."""
        return self._binary(F.floor_divide, self, other, "//", exact=False)

    @op
    def rfloor_div(self, other: Operand) -> Self:
        """`other // self`."""
        return self._binary(F.floor_divide, other, self, "//", exact=False)

    @op
    def mod(self, other: Operand) -> Self:
        """The remainder with the divisor's sign, as Python's %."""
        return self._binary(lambda a, b: a % b, self, other, "%", exact=False)

    @op
    def rmod(self, other: Operand) -> Self:
        """`other % self`."""
        return self._binary(lambda a, b: a % b, other, self, "%", exact=False)

    @op
    def pow(self, exponent: Operand) -> Self:
        """`self ** exponent`."""
        raw = self._raw(exponent)
        if isinstance(raw, Raw):
            return self._general_power(self, exponent)
        out = promote(_kind(self.raw), type(raw))
        x = self._of(self.raw.cast(out))
        if out.is_float:
            return self._of(F.power(x.raw, float(raw)))
        if out == BOOL:
            raise TensorError("a power of a bool", fix="cast it")
        if raw < 0:
            raise TensorError(
                f"integers to the negative power {raw} are no integers", fix="x.cast('f32')"
            )
        if raw > 64:
            return self._aten(
                "aten.pow.Tensor_Scalar",
                (x, raw),
                [(self.shape, out)],
                f"integers to the power of {raw}",
            )[0]
        return self._of(F.power(x.raw, raw))

    @op
    def rpow(self, base: Operand) -> Self:
        """`base ** self`."""
        number = self._raw(base)
        if not isinstance(number, Raw) and number > 0 and number != 1 and math.isfinite(number):
            out, (_, y) = self._operands(number, self, exact=False)
            if out.is_float:
                return self._of((y * math.log2(number)).unary("Exp2").cast(out))
        return self._general_power(base, self)

    @op
    def neg(self) -> Self:
        """`-self`."""
        if self.dtype == BOOL:
            raise TensorError("the negative of a bool", fix="~x is its negation")
        return self._of(-self.raw)

    @op
    def maximum(self, other: Operand) -> Self:
        """The larger one at each point; NaN where either is."""
        return self._binary(F.maximum, self, other)

    @op
    def minimum(self, other: Operand) -> Self:
        """The smaller one at each point; NaN where either is."""
        return self._binary(F.minimum, self, other)

    @op
    def clamp(self, min: Operand | None = None, max: Operand | None = None) -> Self:
        """Bounded from below, from above, or both."""
        out = self
        if min is not None:
            out = out.maximum(min)
        return out if max is None else out.minimum(max)

    # ------------------------------------------------------------------ comparison and logic
    @op
    def lt(self, other: Operand) -> Self:
        """`self < other`; false where either is NaN."""
        return self._compare(lambda a, b: a < b, other)

    @op
    def gt(self, other: Operand) -> Self:
        """`self > other`; false where either is NaN."""
        return self._compare(lambda a, b: a > b, other)

    @op
    def le(self, other: Operand) -> Self:
        """`self <= other`; false where either is NaN."""
        return self._compare(F.le, other)

    @op
    def ge(self, other: Operand) -> Self:
        """`self >= other`; false where either is NaN."""
        return self._compare(F.ge, other)

    @op
    def eq(self, other: Operand) -> Self:
        """`self == other`; false where either is NaN."""
        return self._compare(F.eq, other)

    @op
    def ne(self, other: Operand) -> Self:
        """`self != other`; true where either is NaN."""
        return self._compare(F.ne, other)

    @op
    def logical_and(self, other: Operand) -> Self:
        """`self & other` of bools."""
        a, b = self._bools(other)
        return self._of(a * b)

    @op
    def logical_or(self, other: Operand) -> Self:
        """`self | other` of bools."""
        a, b = self._bools(other)
        return self._of(a + b)

    @op
    def logical_xor(self, other: Operand) -> Self:
        """`self ^ other` of bools."""
        a, b = self._bools(other)
        return self._of(a.where(F.not_(b), b))

    @op
    def logical_not(self) -> Self:
        """`~self` of bools."""
        return self._of(F.not_(self._bools()[0]))

    @op
    def where(self, a: Operand, b: Operand) -> Self:
        """`a` where this condition holds, `b` elsewhere."""
        (condition,) = self._bools()
        raws = [self._raw(x) for x in (a, b)]
        out = promote(*map(_kind, raws))
        x, y = (
            r.cast(out) if isinstance(r, Raw) else self.graph.builder.constant(r, out)
            for r in raws
        )
        return self._of(condition.where(x, y))

    # ------------------------------------------------------------------ how
    def _binary(
        self, f: Callable[[Raw, Raw], Raw], a: Operand, b: Operand, sign: str = "", **how: bool
    ) -> Self:
        out, (x, y) = self._operands(a, b, **how)
        if sign and out == BOOL:
            raise TensorError(f"{sign} of bools", fix="cast one of them")
        try:
            return self._of(f(x, y).cast(out))
        except TypeError:
            raise TensorError(
                f"{sign or 'an operation'} of {shown(a)} and {shown(b)}"
            ) from None

    def _minus(self, a: Operand, b: Operand) -> Self:
        for x in (a, b):
            if isinstance(x, bool) or (isinstance(x, Base) and x.dtype == BOOL):
                raise TensorError("the difference of bools", fix="^ is where they differ")
        return self._binary(lambda x, y: x - y, a, b)

    def _quotient(self, a: Operand, b: Operand) -> Self:
        number = self._raw(b)
        if isinstance(number, Raw):
            out, (x, y) = self._operands(a, b, exact=False, floats=True)
            return self._of(F.divide(x, y).cast(out))
        out, (x, _) = self._operands(a, b, exact=False, floats=True)
        return self._of(F.divide(x, number).cast(out))

    def _general_power(self, a: Operand, b: Operand) -> Self:
        out, (x, y) = self._operands(a, b, exact=False)
        if out.is_float:
            return self._of(F.power_general(x, y).cast(out))
        if out == BOOL:
            raise TensorError("a power of bools", fix="cast one of them")
        x, y = x.broadcast(y)
        return self._aten(
            "aten.pow.Tensor_Tensor",
            (self._of(x), self._of(y)),
            [(x.shape, out)],
            "integers to the power of a tensor",
        )[0]

    def _compare(self, f: Callable[..., Raw], other: Operand) -> Self:
        raw = self._raw(other)
        dtype = promote(_kind(self.raw), _kind(raw))
        x = self.raw.cast(dtype)
        if isinstance(raw, Raw):
            return self._of(f(x, raw.cast(dtype)))
        return self._of(f(x if F.representable(raw, dtype) else F.wide(x), raw))

    def _bools(self, *others: Operand) -> list[Raw]:
        raws = [self.raw, *map(self._raw, others)]
        out: list[Raw] = []
        for r in raws:
            if isinstance(r, bool):
                r = self.graph.builder.constant(r, BOOL)
            if not isinstance(r, Raw) or r.dtype != BOOL:
                raise TensorError(
                    f"a bool is expected, not {shown(r)}", fix="compare it: x != 0"
                )
            out.append(r)
        return out

    # ------------------------------------------------------------------ Python's operators
    def __add__(self, other: Operand) -> Self:
        return self.add(other)

    def __radd__(self, other: Operand) -> Self:
        return self.add(other)

    def __sub__(self, other: Operand) -> Self:
        return self.sub(other)

    def __rsub__(self, other: Operand) -> Self:
        return self.rsub(other)

    def __mul__(self, other: Operand) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Operand) -> Self:
        return self.mul(other)

    def __truediv__(self, other: Operand) -> Self:
        return self.div(other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self.rdiv(other)

    def __floordiv__(self, other: Operand) -> Self:
        return self.floor_div(other)

    def __rfloordiv__(self, other: Operand) -> Self:
        return self.rfloor_div(other)

    def __mod__(self, other: Operand) -> Self:
        return self.mod(other)

    def __rmod__(self, other: Operand) -> Self:
        return self.rmod(other)

    def __pow__(self, other: Operand) -> Self:
        return self.pow(other)

    def __rpow__(self, other: Operand) -> Self:
        return self.rpow(other)

    def __neg__(self) -> Self:
        return self.neg()

    def __lt__(self, other: Operand) -> Self:
        return self.lt(other)

    def __gt__(self, other: Operand) -> Self:
        return self.gt(other)

    def __le__(self, other: Operand) -> Self:
        return self.le(other)

    def __ge__(self, other: Operand) -> Self:
        return self.ge(other)

    def __eq__(self, other: object) -> Any:
        return self.eq(other)

    def __ne__(self, other: object) -> Any:
        return self.ne(other)

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Self:
        return self.logical_and(other)

    def __rand__(self, other: Operand) -> Self:
        return self.logical_and(other)

    def __or__(self, other: Operand) -> Self:
        return self.logical_or(other)

    def __ror__(self, other: Operand) -> Self:
        return self.logical_or(other)

    def __xor__(self, other: Operand) -> Self:
        return self.logical_xor(other)

    def __rxor__(self, other: Operand) -> Self:
        return self.logical_xor(other)

    def __invert__(self) -> Self:
        return self.logical_not()
