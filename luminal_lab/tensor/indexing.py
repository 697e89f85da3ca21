"""Reading and storing at indices: slices, gathers, scatters, and orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import BOOL, I64
from luminal_lab.hlir.sizes import Size, at_least
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.tensor.base import Base, Operand
from luminal_lab.tensor.calls import op, shown
from luminal_lab.tensor.views import Views


class Indexing(Views, Base):
    """Indices are integer tensors; their values must be in bounds, and are not checked."""

    @op
    def __getitem__(self, key: Any) -> Self:
        """Numbers, slices, None, `...` and integer tensors, as in PyTorch."""
        keys = list(key) if isinstance(key, tuple) else [key]
        used = sum(k is not None and k is not Ellipsis for k in keys)
        if used > self.rank:
            raise TensorError(f"{used} indices for {shown(self)}")
        dots = [n for n, k in enumerate(keys) if k is Ellipsis]
        if len(dots) > 1:
            raise TensorError("more than one `...`")
        fill = [slice(None)] * (self.rank - used)
        at = dots[0] if dots else len(keys)
        keys[at : at + len(dots)] = fill
        out, dim = self, 0
        found: list[Raw | None] = []
        for k in keys:
            if k is None:
                out = out.unsqueeze(dim)
            elif isinstance(k, (int, Size)) and not isinstance(k, bool):
                out = out.select(dim, k)
                continue
            elif isinstance(k, slice):
                out = out.slice(dim, k.start, k.stop, 1 if k.step is None else k.step)
            elif isinstance(k, Base):
                found += [None] * (dim - len(found)) + [self._indices(k)]
            else:
                raise TensorError(f"an index of type {type(k).__name__}")
            dim += 1
        if not found:
            return out
        shape = F.indexed_shape(out.raw, found)
        at_each, reads = F.advanced(out.raw, found, shape)
        return self._of(out.raw.gather(shape, at_each, reads))

    def _indices(self, x: Operand) -> Raw:
        raw = self._tensor(x)
        if raw.dtype == BOOL:
            raise TensorError(
                "a bool index, whose result has a size that depends on data",
                fix="mask.where(x, fill)",
            )
        if not raw.dtype.is_int:
            raise TensorError(f"an index of {raw.dtype}", fix="ids.cast('i64')")
        return raw

    @op
    def gather(self, dim: int, index: Operand) -> Self:
        """One element of a dim for each point of `index`, as `torch.gather`."""
        i = self._indices(index)
        self._fits(dim, i)
        return self._of(F.gather_along(self.raw, dim, i))

    @op
    def take(self, index: Operand) -> Self:
        """The elements at indices into the flattened tensor."""
        return self._of(F.take(self.raw, self._indices(index)))

    @op
    def index_select(self, dim: int, index: Operand) -> Self:
        """The slices of a dim at a vector of indices."""
        i = self._indices(index)
        if i.rank > 1:
            raise TensorError(f"a vector of indices is expected, not {shown(i)}")
        return self._of(F.index_select(self.raw, self.raw.dim(dim), i))

    @op
    def embedding(self, ids: Operand) -> Self:
        """Rows of this table (n, …) at ids of any shape: (*ids.shape, …)."""
        return self._of(F.embedding(self.raw, self._indices(ids)))

    @op
    def scatter(self, dim: int, index: Operand, src: Operand) -> Self:
        """This tensor with `src` (a tensor or a number) stored at indices of a dim.

        Of several values for one place the last one wins.
        """
        return self._scatter(dim, index, src, "set")

    @op
    def scatter_add(self, dim: int, index: Operand, src: Operand) -> Self:
        """This tensor with `src` added at indices of a dim."""
        return self._scatter(dim, index, src, "add")

    def _scatter(self, dim: int, index: Operand, src: Operand, mode: str) -> Self:
        i, value = self._indices(index), self._raw(src)
        self._fits(dim, i)
        if not isinstance(value, Raw):
            value = self.raw.like(value).expand(i.shape)
        elif value.dtype != self.dtype:
            raise TensorError(f"{shown(value)} into {shown(self)}", fix="cast one of them")
        elif value.rank != i.rank or any(
            not at_least(n - m, 0) for n, m in zip(value.shape, i.shape)
        ):
            raise TensorError(f"an index of shape {i.shape} for values of shape {value.shape}")
        return self._of(F.scatter_along(self.raw, dim, i, value, mode))

    def _fits(self, dim: int, index: Raw) -> None:
        d = self.raw.dim(dim)
        if index.rank != self.rank or any(
            k != d and not at_least(n - m, 0)
            for k, (n, m) in enumerate(zip(self.shape, index.shape))
        ):
            raise TensorError(f"an index of shape {index.shape} along dim {d} of {shown(self)}")

    # ------------------------------------------------------------------ orders
    @op
    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The sorted values and where they were (i64); equal ones keep their order."""
        values, places = self._aten(
            "aten.sort.stable",
            (self,),
            [(self.shape, self.dtype), (self.shape, I64)],
            "no lowering",
            stable=True,
            dim=self.raw.dim(dim),
            descending=descending,
        )
        return values, places

    @op
    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Where the sorted values are, i64; equal ones keep their order."""
        return self.sort(dim, descending)[1]

    @op
    def topk(self, k: int, dim: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The `k` largest (or smallest) values of a dim in order, and where they are (i64)."""
        d = self.raw.dim(dim)
        if not self.rank or not at_least(self.shape[d] - k, 0) or k < 0:
            raise TensorError(f"{k} elements of dim {d} of {shown(self)}")
        shape = (*self.shape[:d], k, *self.shape[d + 1 :])
        values, places = self._aten(
            "aten.topk.default",
            (self, k, d, largest, True),
            [(shape, self.dtype), (shape, I64)],
            "no lowering",
        )
        return values, places


def join(parts: Sequence[Any], dim: int, new: bool) -> Any:
    """Tensors joined along a dim, or (`new`) along a new one."""
    first = parts[0]
    raws = [first._tensor(p) for p in parts]
    shape = raws[0].shape
    rank = first.rank + new
    if not -rank <= dim < rank:
        raise TensorError(f"no dim {dim} in a tensor of rank {rank}")
    dim = dim % rank
    for r in raws[1:]:
        rest = [n for k, n in enumerate(r.shape) if new or k != dim]
        if r.rank != first.rank or rest != [n for k, n in enumerate(shape) if new or k != dim]:
            raise TensorError(f"{', '.join(map(shown, parts))} do not join along dim {dim}")
    out, _ = first._operands(*parts)
    raws = [r.cast(out) for r in raws]
    return first._of(F.cat([r.unsqueeze(dim) for r in raws] if new else raws, dim))
