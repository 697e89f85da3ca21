"""Functions of Tensors, element by element: exponentials, activations, rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.tensor.base import Base, Operand
from luminal_lab.tensor.calls import known_dtype, op


class Math(Base):
    """Named as in PyTorch. Functions of real numbers take integers and bools as f32."""

    def _float(self, f: str | Callable[[Raw], Raw]) -> Self:
        return self._of((F.FLOAT_FUNCTIONS[f] if isinstance(f, str) else f)(self._floats()))

    def _same(self, f: str) -> Self:
        return self._of(F.SAME_FUNCTIONS[f](self.raw))

    @op
    def cast(self, dtype: Any) -> Self:
        """Converted to another dtype: a short name, a torch name or a `torch.dtype`."""
        return self._of(self.raw.cast(known_dtype(dtype)))

    to = cast

    # ------------------------------------------------------------------ of real numbers
    @op
    def exp(self) -> Self:
        """e**x."""
        return self._float("exp")

    @op
    def exp2(self) -> Self:
        """2**x."""
        return self._float("exp2")

    @op
    def expm1(self) -> Self:
        """e**x - 1, precise near 0."""
        return self._float("expm1")

    @op
    def log(self) -> Self:
        """The natural logarithm."""
        return self._float("log")

    @op
    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self._float("log2")

    @op
    def log10(self) -> Self:
        """The decimal logarithm."""
        return self._float("log10")

    @op
    def log1p(self) -> Self:
        """log(1 + x), precise near 0."""
        return self._float("log1p")

    @op
    def sin(self) -> Self:
        """The sine."""
        return self._float("sin")

    @op
    def cos(self) -> Self:
        """The cosine."""
        return self._float("cos")

    @op
    def tan(self) -> Self:
        """The tangent."""
        return self._float("tan")

    @op
    def asin(self) -> Self:
        """The inverse sine."""
        return self._float("asin")

    @op
    def acos(self) -> Self:
        """The inverse cosine."""
        return self._float("acos")

    @op
    def atan(self) -> Self:
        """The inverse tangent."""
        return self._float("atan")

    @op
    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return self._float("sinh")

    @op
    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return self._float("cosh")

    @op
    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._float("tanh")

    @op
    def sqrt(self) -> Self:
        """The square root."""
        return self._float("sqrt")

    @op
    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self._float("rsqrt")

    @op
    def reciprocal(self) -> Self:
        """1 / x."""
        return self._float("reciprocal")

    @op
    def erf(self) -> Self:
        """The error function."""
        return self._float("erf")

    @op
    def sigmoid(self) -> Self:
        """1 / (1 + e**-x)."""
        return self._float("sigmoid")

    # ------------------------------------------------------------------ activations
    @op
    def relu(self) -> Self:
        """max(x, 0), NaN kept."""
        if self.dtype == BOOL:
            raise TensorError("relu of bools")
        return self._same("relu")

    @op
    def gelu(self, approximate: str = "none") -> Self:
        """X times the normal distribution function of x, exactly or by `"tanh"`."""
        if approximate not in ("none", "tanh"):
            raise TensorError(f"no approximation {approximate!r}", fix="'none' or 'tanh'")
        return self._float(lambda x: F.gelu(x, approximate))

    @op
    def silu(self) -> Self:
        """X * sigmoid(x)."""
        return self._float("silu")

    @op
    def mish(self) -> Self:
        """X * tanh(softplus(x))."""
        return self._float("mish")

    @op
    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """log(1 + e**(beta x)) / beta; x where beta x is above the threshold."""
        return self._float(lambda x: F.softplus(x, beta, threshold))

    @op
    def leaky_relu(self, negative_slope: float = 0.01) -> Self:
        """X, or negative_slope * x where x is not positive."""
        w = F.wide(self._floats())
        return self._of((w > 0).where(w, w * negative_slope).cast(self._floats().dtype))

    # ------------------------------------------------------------------ the dtype stays
    @op
    def abs(self) -> Self:
        """|x|."""
        return self._same("abs")

    @op
    def sign(self) -> Self:
        """-1, 0 or 1; 0 for NaN."""
        return self._same("sign")

    @op
    def square(self) -> Self:
        """X * x."""
        if self.dtype == BOOL:
            return self._of(F.power(self.raw.cast(known_dtype("i64")), 2))
        return self._same("square")

    @op
    def floor(self) -> Self:
        """The largest whole number not above x."""
        return self._same("floor")

    @op
    def ceil(self) -> Self:
        """The smallest whole number not below x."""
        return self._same("ceil")

    @op
    def trunc(self) -> Self:
        """Rounded towards zero."""
        return self._same("trunc")

    @op
    def round(self) -> Self:
        """Rounded to the nearest whole number, halves to even."""
        return self._same("round")

    @op
    def isnan(self) -> Self:
        """Where it is NaN."""
        return self._of(F.isnan(self.raw))

    @op
    def isinf(self) -> Self:
        """Where it is inf or -inf."""
        return self._of(F.isinf(self.raw))

    @op
    def masked_fill(self, mask: Operand, value: Operand) -> Self:
        """`value` where `mask` holds; the dtype stays, and the mask broadcasts to the shape."""
        m, raw = self._tensor(mask), self._raw(value)
        if m.dtype != BOOL:
            raise TensorError(f"a mask of {m.dtype}", fix="compare it: mask != 0")
        fill = raw.cast(self.dtype) if isinstance(raw, Raw) else self.raw.like(raw)
        return self._of(m.expand(self.shape).where(fill.expand(self.shape), self.raw))

    def __abs__(self) -> Self:
        return self.abs()

    def __bool__(self) -> bool:
        raise TensorError(
            "whether a tensor holds is known at the call only",
            fix="condition.where(a, b) chooses at each point",
        )
