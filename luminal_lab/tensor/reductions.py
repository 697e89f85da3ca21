"""Reductions, scans, softmax, norms and products of Tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, I64, U8, DType
from luminal_lab.hlir.sizes import Dim
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.tensor.base import Base, Operand, not_empty
from luminal_lab.tensor.calls import known_dtype, op, shown

Over = int | Sequence[int] | None


class Reductions(Base):
    """Over `dim`: one dim, several, or all of them when it is None."""

    def _counted(self) -> DType:
        """The dtype of a sum or product: bools and integers count in i64."""
        return self.dtype if self.dtype.is_float else I64

    def _only_floats(self, what: str) -> None:
        if not self.dtype.is_float:
            raise TensorError(f"{what} of {shown(self)}", fix="x.cast('f32')")

    @op
    def sum(self, dim: Over = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The sum: of integers and bools in i64, of 16-bit floats with one rounding."""
        out = self._counted() if dtype is None else known_dtype(dtype)
        wide = out.is_float and out.bits <= 32 and self.dtype.is_float
        x = F.wide(self.raw) if wide else self.raw.cast(out)
        return self._of(F.sum_(x, self._dims(dim), keepdim).cast(out))

    @op
    def mean(self, dim: Over = None, keepdim: bool = False) -> Self:
        """The arithmetic mean; NaN over no elements."""
        self._only_floats("the mean")
        return self._of(F.mean(self.raw, self._dims(dim), keepdim))

    @op
    def prod(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """The product over a dim of fixed size."""
        x = F.wide(self.raw.cast(self._counted()))
        if dim is None:
            x, dim = x.reshape((self.numel(),)), 0
        n = x.shape[x.dim(dim)] if x.rank else 1
        if not isinstance(n, int):
            raise TensorError(
                f"the product over the symbolic dim {n}", fix="x.log().sum(dim).exp()"
            )
        out = F.product_over(x, dim, n, keepdim) if x.rank else x
        return self._of(out.cast(self._counted()))

    @op
    def max(self, dim: Over = None, keepdim: bool = False) -> Self:
        """The maximum (the values alone), NaN wins."""
        return self._extreme(F.amax, dim, keepdim)

    @op
    def min(self, dim: Over = None, keepdim: bool = False) -> Self:
        """The minimum (the values alone), NaN wins."""
        return self._extreme(F.amin, dim, keepdim)

    def _extreme(self, f: Any, dim: Over, keepdim: bool) -> Self:
        dims = self._dims(dim)
        for d in dims:
            not_empty(self.shape[d], "the extreme")
        return self._of(f(self.raw, dims, keepdim))

    @op
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """The index of the first maximum (of the first NaN where there is one), i64."""
        return self._place("argmax", dim, keepdim)

    @op
    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """The index of the first minimum (of the first NaN where there is one), i64."""
        return self._place("argmin", dim, keepdim)

    def _place(self, name: str, dim: int | None, keepdim: bool) -> Self:
        if dim is None:
            if keepdim:
                raise TensorError(f"{name} over all dims with keepdim", fix="give a dim")
            flat = self._of(self.raw.reshape((self.numel(),)))
            return flat._place(name, 0, False)
        d = self.raw.dim(dim)
        not_empty(self.shape[d] if self.rank else 1, name)
        return self._of((F.argmax if name == "argmax" else F.argmin)(self.raw, d, keepdim))

    @op
    def var(self, dim: Over = None, correction: float = 1, keepdim: bool = False) -> Self:
        """The variance, with `correction` degrees of freedom taken off."""
        return self._moment(dim, correction, keepdim)

    @op
    def std(self, dim: Over = None, correction: float = 1, keepdim: bool = False) -> Self:
        """The standard deviation, with `correction` degrees of freedom taken off."""
        return self._moment(dim, correction, keepdim, root=True)

    def _moment(self, dim: Over, correction: float, keepdim: bool, root: bool = False) -> Self:
        self._only_floats("the variance")
        dims = self._dims(dim)
        out = F.variance(F.wide(self.raw), dims, correction)[0]
        out = F.sqrt(out) if root else out
        return self._of((out if keepdim else out.squeeze(*dims)).cast(self.dtype))

    @op
    def any(self, dim: Over = None, keepdim: bool = False) -> Self:
        """Whether one element is not 0; a bool (u8 for u8)."""
        out = self.raw.cast(BOOL).max(*self._dims(dim), keepdim=keepdim)
        return self._of(out.cast(U8) if self.dtype == U8 else out)

    @op
    def all(self, dim: Over = None, keepdim: bool = False) -> Self:
        """Whether no element is 0; a bool (u8 for u8)."""
        out = F.amin(self.raw.cast(BOOL), self._dims(dim), keepdim)
        return self._of(out.cast(U8) if self.dtype == U8 else out)

    @op
    def norm(self, order: float = 2, dim: Over = None, keepdim: bool = False) -> Self:
        """The p-norm of vectors."""
        self._only_floats("the norm")
        dims = self._dims(dim)
        return self._of(F.vector_norm(F.wide(self.raw), order, dims, keepdim).cast(self.dtype))

    @op
    def cumsum(self, dim: int) -> Self:
        """The sums of all elements up to each one."""
        out = self._counted()
        n = self.shape[self.raw.dim(dim)] if self.rank else 1
        reason = ""
        if not isinstance(n, int) or n > F.CUMULATIVE_LIMIT:
            reason = f"a cumulative sum over {n} elements"
        elif out.is_float and out.bits < 32:
            reason = "a 16-bit cumulative sum, which PyTorch rounds at each step"
        if reason:
            return self._aten("aten.cumsum.default", (self, dim), [(self.shape, out)], reason)[
                0
            ]
        return self._of(F.cumulative_sum(self.raw.cast(out), dim))

    # ------------------------------------------------------------------ softmax
    @op
    def softmax(self, dim: int) -> Self:
        """exp(x - max) / sum exp(x - max) over a dim; in float32 for 16-bit floats."""
        self._only_floats("softmax")
        return self._of(F.softmax(self.raw, self.raw.dim(dim)))

    @op
    def log_softmax(self, dim: int) -> Self:
        """The logarithm of softmax over a dim."""
        self._only_floats("log_softmax")
        return self._of(F.log_softmax(self.raw, self.raw.dim(dim)))

    @op
    def logsumexp(self, dim: Over, keepdim: bool = False) -> Self:
        """log(sum(exp x)) over dims."""
        return self._of(F.logsumexp(self._floats(), self._dims(dim), keepdim))

    # ------------------------------------------------------------------ norms
    @op
    def layer_norm(
        self,
        dims: int = 1,
        weight: Operand | None = None,
        bias: Operand | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """Mean 0 and variance 1 over the last `dims` dims, then scaled and shifted."""
        self._only_floats("layer_norm")
        w, b = (None if p is None else self._tensor(p) for p in (weight, bias))
        return self._of(F.layer_norm(self.raw, dims, w, b, eps)[0].cast(self.dtype))

    @op
    def rms_norm(
        self, dims: int = 1, weight: Operand | None = None, eps: float | None = None
    ) -> Self:
        """Divided by the root of the mean square over the last `dims` dims, then scaled."""
        self._only_floats("rms_norm")
        w = None if weight is None else self._tensor(weight)
        return self._of(F.rms_norm(self.raw, dims, w, eps)[0].cast(self.dtype))

    @op
    def group_norm(
        self,
        groups: int,
        weight: Operand | None = None,
        bias: Operand | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """Mean 0 and variance 1 over each group of channels of (n, c, …)."""
        self._only_floats("group_norm")
        if self.rank < 2 or self.shape[1] % groups:
            raise TensorError(f"{groups} groups of the channels of {self.shape}")
        w, b = (None if p is None else self._tensor(p) for p in (weight, bias))
        return self._of(F.group_norm(self.raw, groups, w, b, eps)[0].cast(self.dtype))

    # ------------------------------------------------------------------ products
    @op
    def matmul(self, other: Operand) -> Self:
        """The product of vectors, matrices, and batches of them, as `torch.matmul`."""
        a, b = self.raw, self._tensor(other)
        self._same_dtype(b)
        if not a.rank or not b.rank:
            raise TensorError("a product with a 0-d tensor", fix="*")
        k, n = a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0]
        _agree(self, other, k, n)
        return self._of(F.matmul(a, b))

    __matmul__ = matmul

    @op
    def linear(self, weight: Operand, bias: Operand | None = None) -> Self:
        """`self @ weight.mT + bias` for a weight (n, k), rounded once."""
        w, b = self._tensor(weight), None if bias is None else self._tensor(bias)
        self._same_dtype(w, *([] if b is None else [b]))
        if w.rank != 2 or not self.rank:
            raise TensorError(f"a weight of shape {w.shape} for {shown(self)}")
        _agree(self, weight, self.shape[-1], w.shape[1])
        return self._of(F.linear(self.raw, w, b).cast(self.dtype))

    @op
    def conv(
        self,
        weight: Operand,
        bias: Operand | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Self:
        """Convolution in as many dims (1 to 3) as the weight (o, c/groups, *taps) has taps."""
        w, b = self._tensor(weight), None if bias is None else self._tensor(bias)
        self._same_dtype(w, *([] if b is None else [b]))
        space = w.rank - 2
        if space not in (1, 2, 3) or self.rank not in (w.rank, w.rank - 1):
            raise TensorError(f"a weight of shape {w.shape} for {shown(self)}")
        if self.shape[-1 - space] != w.shape[1] * groups or w.shape[0] % groups:
            raise TensorError(
                f"{self.shape[-1 - space]} channels in {groups} groups do not fit a weight of "
                f"shape {w.shape}"
            )
        steps, pads, gaps = (
            [v] * space if isinstance(v, int) else list(v) for v in (stride, padding, dilation)
        )
        for d in range(space):
            reach = gaps[d] * (w.shape[2 + d] - 1) + 1
            not_empty(self.shape[d - space] + 2 * pads[d] - reach + 1, "a convolution")
        out = F.convolution(self.raw, w, b, steps, pads, gaps, groups=groups)
        return self._of(out.cast(self.dtype))

    @op
    def attention(
        self,
        key: Operand,
        value: Operand,
        mask: Operand | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Self:
        """softmax(self keyᵀ scale + mask) value, in float32, with one rounding at the end.

        Arguments:
            key: (…, heads, s, d); with fewer heads than the queries (…, heads, l, d), each one
                serves a group of them.
            value: (…, heads, s, e)
            mask: Broadcasts to (…, l, s): a bool (True takes part) or what is added.
            causal: Query i sees keys 0…i.
            scale: 1/sqrt(d) when None.

        Returns:
            (…, heads, l, e)
        """
        self._only_floats("attention")
        k, v = self._tensor(key), self._tensor(value)
        m = None if mask is None else self._tensor(mask)
        self._same_dtype(k, v)
        if min(self.rank, k.rank, v.rank) < 2:
            raise TensorError(f"attention of shapes {self.shape}, {k.shape}, {v.shape}")
        _agree(self, key, self.shape[-1], k.shape[-1])
        if self.rank > 2 and k.rank > 2:
            k, v = F.grouped(k, self.raw), F.grouped(v, self.raw)
        return self._of(F.attention(self.raw, k, v, m, causal=causal, scale=scale)[0])

    def _same_dtype(self, *others: Raw) -> None:
        for x in others:
            if x.dtype != self.dtype:
                raise TensorError(
                    f"a product of {shown(self)} and {shown(x)}", fix="cast one of them"
                )
        if self.dtype == BOOL:
            raise TensorError("a product of bools", fix="x.cast('f32')")


def _agree(a: Any, b: Any, k: Dim, n: Dim) -> None:
    if k != n:
        raise TensorError(f"{shown(a)} and {shown(b)}: the inner dims {k} and {n} differ")
