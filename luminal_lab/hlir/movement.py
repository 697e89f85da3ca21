"""Movement of tensors: each method composes the view that a tensor is read through, lazily."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.graph import Dim
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import Shape, axes_of, is_one, scalar_of
from luminal_lab.hlir.sizes import ceildiv, largest, surely
from luminal_lab.hlir.view import Scalar, regroup

if TYPE_CHECKING:
    from luminal_lab.hlir.tensor import Graph


class Movable:
    """What a Tensor can do without adding a node."""

    graph: Graph
    shape: Shape
    dtype: DType

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of dims."""

    @abstractmethod
    def viewed(self, shape: Sequence[Dim], at: Sequence[Index]) -> Self:
        """Of `shape`: dim k of this tensor is read at `at[k]`, over axes of `shape`."""

    @abstractmethod
    def guarded(
        self, shape: Sequence[Dim], at: Sequence[Index], guard: Sequence[Index], fill: Scalar
    ) -> Self:
        """Likewise, but `fill` where one of `guard`, over axes of `shape`, is negative."""

    def dim(self, dim: int) -> int:
        """A dim counted from either end, from the front.

        Raises:
            HlirError: when there is no such dim.
        """
        if not -max(self.rank, 1) <= dim < max(self.rank, 1):
            raise HlirError(f"no dim {dim} in a tensor of shape {self.shape}")
        return dim % max(self.rank, 1)

    def permute(self, *order: int) -> Self:
        """Dim k of the result is dim `order[k]` of this tensor."""
        order = tuple(self.dim(k) for k in order) if self.rank else ()
        if sorted(order) != list(range(self.rank)):
            raise HlirError(f"{order} is not an order of the dims of {self.shape}")
        shape = tuple(self.shape[k] for k in order)
        axes = axes_of(shape)
        return self.viewed(shape, [axes[order.index(k)] for k in range(self.rank)])

    def transpose(self, a: int, b: int) -> Self:
        """Dims `a` and `b` exchanged."""
        order = list(range(self.rank))
        if order:
            a, b = self.dim(a), self.dim(b)
            order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def expand(self, shape: Sequence[Dim]) -> Self:
        """Broadcast to `shape`: dims are aligned at the end, and dims of size 1 repeat."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        lead = len(shape) - self.rank
        fits = lead >= 0 and all(is_one(o) or o == n for o, n in zip(self.shape, shape[lead:]))
        if not fits:
            raise HlirError(f"cannot expand {self.shape} to {shape}")
        return self.viewed(shape, axes_of(shape)[lead:])

    def reshape(self, shape: Sequence[Dim]) -> Self:
        """The same elements, in row-major order, in another shape.

        Raises:
            HlirError: when the numbers of elements differ.
        """
        shape = tuple(shape)
        if shape == self.shape:
            return self
        return self.viewed(shape, regroup(self.shape, shape))

    def unsqueeze(self, dim: int) -> Self:
        """A dim of size 1 before dim `dim`."""
        dim = dim % (self.rank + 1)
        return self.reshape(self.shape[:dim] + (1,) + self.shape[dim:])

    def squeeze(self, *dims: int) -> Self:
        """Without those of `dims` whose size is 1."""
        gone = {self.dim(d) for d in dims}
        kept = [n for k, n in enumerate(self.shape) if k not in gone or not is_one(n)]
        return self.reshape(kept)

    def slice(self, dim: int, start: int, stop: int, step: int = 1) -> Self:
        """Indices `start, start + step, …` below `stop` of a dim; bounds must be in range."""
        dim = self.dim(dim)
        size = largest(0, ceildiv(stop - start, step))
        shape = self.shape[:dim] + (size,) + self.shape[dim + 1 :]
        at = list(axes_of(shape))
        at[dim] = at[dim] * step + start
        return self.viewed(shape, at)

    def pick(self, dim: int, index: int) -> Self:
        """The tensor at one index of a dim, without that dim."""
        dim = self.dim(dim)
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        at = list(axes_of(shape))
        at.insert(dim, Index.num(index))
        return self.viewed(shape, at)

    def flip(self, *dims: int) -> Self:
        """Reversed along each of `dims`."""
        at = list(axes_of(self.shape))
        for dim in {self.dim(d) for d in dims}:
            if not is_one(self.shape[dim]):
                at[dim] = -at[dim] + (self.shape[dim] - 1)
        return self.viewed(self.shape, at)

    def repeat(self, times: Sequence[int]) -> Self:
        """Tiled `times[k]` times along dim k (dims are aligned at the end)."""
        source = self.reshape((1,) * (len(times) - self.rank) + self.shape)
        shape = tuple(n * t for n, t in zip(source.shape, times))
        extents = self.graph.extents(shape)
        at = [
            Index() if 0 in (n, t) else axis.mod(n, extents)
            for axis, n, t in zip(axes_of(shape), source.shape, times)
        ]
        return source.viewed(shape, at)

    def windows(self, dim: int, size: int, stride: int = 1, dilation: int = 1) -> Self:
        """Overlapping windows along a dim: it counts them, a new last dim is inside one."""
        dim = self.dim(dim)
        count = (self.shape[dim] - dilation * (size - 1) - 1) // stride + 1
        shape = self.shape[:dim] + (largest(count, 0),) + self.shape[dim + 1 :] + (size,)
        axes = axes_of(shape)
        at = list(axes[:-1])
        at[dim] = at[dim] * stride + axes[-1] * dilation
        return self.viewed(shape, at)

    def pad(self, pads: Sequence[tuple[int, int]], fill: Scalar = 0) -> Self:
        """`pads[k] = (before, after)` elements of `fill` around dim k; negative ones crop."""
        fill = scalar_of(fill, self.dtype)
        shape = tuple(n + lo + hi for n, (lo, hi) in zip(self.shape, pads))
        at = [axis - lo for axis, (lo, _) in zip(axes_of(shape), pads)]
        guard: list[Index] = []
        for n, index, (lo, hi) in zip(self.shape, at, pads):
            guard += [index] * (not surely(lambda lo=lo: lo <= 0))
            guard += [-index + (n - 1)] * (not surely(lambda hi=hi: hi <= 0))
        return self.guarded(shape, at, guard, fill)
