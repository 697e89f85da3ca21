"""Movement of Tensors: views, which add no node, and what joins them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import axes_of, is_one
from luminal_lab.hlir.sizes import Dim, Size, at_least, largest, smallest, surely
from luminal_lab.hlir.view import Scalar
from luminal_lab.tensor.base import Base
from luminal_lab.tensor.calls import op


class Views(Base):
    """Other shapes of the same elements."""

    @op
    def expand(self, *shape: Dim | Sequence[Dim]) -> Self:
        """Broadcast: dims of size 1 repeat, new dims come in front; -1 keeps a size."""
        wanted = list(_flat(shape))
        lead = len(wanted) - self.rank
        for k, n in enumerate(wanted):
            if isinstance(n, int) and n == -1 and k >= lead:
                wanted[k] = self.shape[k - lead]
        return self._of(self.raw.expand(wanted))

    @op
    def permute(self, *order: int | Sequence[int]) -> Self:
        """Dim k of the result is dim `order[k]` of this tensor."""
        return self._of(self.raw.permute(*_flat(order)))

    @op
    def transpose(self, a: int, b: int) -> Self:
        """Dims `a` and `b` exchanged."""
        return self._of(self.raw.transpose(a, b))

    @property
    def mT(self) -> Self:
        """The last two dims exchanged."""
        return self.transpose(-1, -2)

    @op
    def reshape(self, *shape: Dim | Sequence[Dim]) -> Self:
        """The same elements, in row-major order, in another shape; one size may be -1."""
        wanted = list(_flat(shape))
        holes = [k for k, n in enumerate(wanted) if isinstance(n, int) and n == -1]
        if len(holes) > 1:
            raise TensorError(f"more than one -1 in {tuple(wanted)}")
        if holes:
            rest = math.prod(n for k, n in enumerate(wanted) if k != holes[0])
            total = self.numel()
            known = isinstance(rest, Size) or rest > 0
            if not known or not surely(lambda: total % rest == 0):
                raise TensorError(f"cannot reshape {self.shape} to {tuple(wanted)}")
            wanted[holes[0]] = total // rest
        return self._of(self.raw.reshape(wanted))

    view = reshape

    @op
    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Dims `start` to `end` (inclusive) merged into one."""
        a, b = self.raw.dim(start), self.raw.dim(end)
        merged = F.count(self.raw, range(a, b + 1)) if self.rank else 1
        return self._of(self.raw.reshape((*self.shape[:a], merged, *self.shape[b + 1 :])))

    @op
    def merge_dims(self, a: int, b: int) -> Self:
        """Two adjacent dims as one."""
        a, b = self.raw.dim(a), self.raw.dim(b)
        if b != a + 1:
            raise TensorError(
                f"dims {a} and {b} do not stand side by side", fix="permute them first"
            )
        return self.flatten(a, b)

    @op
    def split_dims(self, dim: int, inner: Dim) -> Self:
        """A dim of size n as two: n/inner and inner."""
        dim = self.raw.dim(dim)
        n = self.shape[dim]
        if not surely(lambda: n % inner == 0):
            raise TensorError(f"dim {dim} of size {n} does not split into parts of {inner}")
        shape = (*self.shape[:dim], n // inner, inner, *self.shape[dim + 1 :])
        return self._of(self.raw.reshape(shape))

    @op
    def unsqueeze(self, dim: int) -> Self:
        """A dim of size 1 before dim `dim`."""
        if not -self.rank - 1 <= dim <= self.rank:
            raise TensorError(f"no place {dim} in a tensor of shape {self.shape}")
        return self._of(self.raw.unsqueeze(dim))

    @op
    def squeeze(self, *dims: int) -> Self:
        """Without those of `dims` (of all dims when none are given) whose size is 1."""
        return self._of(self.raw.squeeze(*(dims or range(self.rank))))

    @op
    def slice(
        self, dim: int, start: Dim | None = None, stop: Dim | None = None, step: int = 1
    ) -> Self:
        """`self[start:stop:step]` along a dim, as Python slices."""
        dim = self.raw.dim(dim)
        if step < 1:
            raise TensorError(f"a step of {step}", fix="flip the dim first")
        n = self.shape[dim]
        first = _clamped(0 if start is None else start, n)
        last = largest(_clamped(n if stop is None else stop, n), first)
        if first == 0 and last == n and step == 1:
            return self
        return self._of(self.raw.slice(dim, first, last, step))

    @op
    def select(self, dim: int, index: Dim) -> Self:
        """The tensor at one index of a dim, without that dim."""
        dim = self.raw.dim(dim)
        if not self.rank:
            raise TensorError("a 0-d tensor has no dim to select from")
        n = self.shape[dim]
        at = index + n if at_least(-index, 1) else index
        if at_least(-at, 1) or at_least(at - n, 0):
            raise TensorError(f"index {index} is out of bounds of dim {dim} of size {n}")
        if not (at_least(at, 0) and at_least(n - 1 - at, 0)):
            raise TensorError(
                f"index {index} may be out of bounds of dim {dim} of size {n}",
                fix=f"a larger lower bound of {n}",
            )
        return self._of(self.raw.pick(dim, at))

    @op
    def flip(self, *dims: int) -> Self:
        """Reversed along each of `dims`."""
        return self._of(self.raw.flip(*dims))

    @op
    def roll(self, shift: Dim, dim: int) -> Self:
        """Rotated along a dim: element k comes to k + shift."""
        dim = self.raw.dim(dim)
        n = self.shape[dim]
        if n in (0, 1):
            return self
        at = list(axes_of(self.shape))
        at[dim] = (at[dim] - shift).mod(n, self.raw.graph.extents(self.shape))
        return self._of(self.raw.viewed(self.shape, at))

    @op
    def repeat(self, *times: int | Sequence[int]) -> Self:
        """Tiled `times[k]` times along dim k; new dims come in front."""
        each = list(_flat(times))
        if len(each) < self.rank:
            raise TensorError(f"{len(each)} factors for the {self.rank} dims of {self.shape}")
        return self._of(self.raw.repeat(each))

    @op
    def repeat_interleave(self, times: int, dim: int) -> Self:
        """Each element `times` times in a row along a dim."""
        dim = self.raw.dim(dim)
        wide = self.raw.unsqueeze(dim + 1)
        shape = (*wide.shape[: dim + 1], times, *wide.shape[dim + 2 :])
        merged = (*self.shape[:dim], self.shape[dim] * times, *self.shape[dim + 1 :])
        return self._of(wide.expand(shape).reshape(merged))

    @op
    def unfold(self, dim: int, size: int, step: int = 1, dilation: int = 1) -> Self:
        """Windows along a dim: it counts them, and a new last dim is inside one."""
        dim = self.raw.dim(dim)
        reach = dilation * (size - 1) + 1
        if not at_least(self.shape[dim] - reach, 0):
            raise TensorError(f"a window of {reach} in a dim of size {self.shape[dim]}")
        return self._of(self.raw.windows(dim, size, step, dilation))

    @op
    def pad(self, *pads: tuple[int, int], value: Scalar = 0) -> Self:
        """`(before, after)` elements of `value` around each of the last dims, in their order.

        Negative numbers crop.
        """
        if len(pads) > self.rank:
            raise TensorError(f"{len(pads)} pairs for the {self.rank} dims of {self.shape}")
        each = [(0, 0)] * (self.rank - len(pads)) + [(a, b) for a, b in pads]
        for d, (a, b) in enumerate(each):
            if not at_least(self.shape[d] + a + b, 0):
                raise TensorError(f"{a, b} crops more than dim {d} of size {self.shape[d]}")
        return self._of(self.raw.pad(each, value))

    @op
    def split(self, size: Dim | Sequence[Dim], dim: int = 0) -> tuple[Self, ...]:
        """Parts of `size` (the last one may be smaller), or of the sizes given, along a dim."""
        dim = self.raw.dim(dim)
        n = self.shape[dim]
        if isinstance(size, Sequence):
            sizes = list(size)
        elif isinstance(n, int) and isinstance(size, int) and size > 0:
            sizes = [min(size, n - k) for k in range(0, n, size)] or [0]
        else:
            sizes = [size] * self._number_of(dim, size)
        if sum(sizes) != n:
            raise TensorError(f"parts of sizes {sizes} do not make up a dim of size {n}")
        parts, start = [], 0
        for s in sizes:
            parts.append(self._of(self.raw.slice(dim, start, start + s)))
            start = start + s
        return tuple(parts)

    @op
    def chunk(self, parts: int, dim: int = 0) -> tuple[Self, ...]:
        """At most so many parts of equal size (the last one may be smaller) along a dim."""
        n = self.shape[self.raw.dim(dim)]
        if isinstance(n, int):
            return self.split(max(-(-n // parts), 1), dim)
        if not surely(lambda: n % parts == 0):
            raise TensorError(f"a dim of size {n} has no {parts} equal parts")
        return self.split([n // parts] * parts, dim)

    def _number_of(self, dim: int, size: Dim) -> int:
        number = self.shape[dim] // size
        if not isinstance(number, int):
            raise TensorError(f"the number of parts {number} is known at the call only")
        return number

    @op
    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The tensors along a dim of fixed size."""
        n = self.shape[self.raw.dim(dim)] if self.rank else 0
        if not isinstance(n, int) or not self.rank:
            raise TensorError(f"a tensor of shape {self.shape} has no fixed number of parts")
        return tuple(self._of(self.raw.pick(dim, k)) for k in range(n))

    @op
    def tril(self, diagonal: int = 0) -> Self:
        """The last two dims with 0 above a diagonal."""
        return self._of(F.below(self.raw, diagonal).where(self.raw, self.raw.like(0)))

    @op
    def triu(self, diagonal: int = 0) -> Self:
        """The last two dims with 0 below a diagonal."""
        return self._of(F.below(self.raw, diagonal - 1).where(self.raw.like(0), self.raw))

    @op
    def diagonal(self, offset: int = 0) -> Self:
        """The diagonal of the last two dims, as the last dim."""
        rows, cols = self.shape[-2:]
        up, down = max(offset, 0), max(-offset, 0)
        n = largest(smallest(rows - down, cols - up), 0)
        shape = (*self.shape[:-2], n)
        axes = axes_of(shape)
        along = axes[-1] if not is_one(n) else Index()
        return self._of(self.raw.viewed(shape, [*axes[:-1], along + down, along + up]))

    def __iter__(self) -> Iterator[Self]:
        return iter(self.unbind(0))

    def __len__(self) -> int:
        if not self.rank or not isinstance(self.shape[0], int):
            raise TensorError(f"a tensor of shape {self.shape} has no fixed length")
        return self.shape[0]


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that may be given one by one or as one sequence."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    return values


def _clamped(at: Dim, n: Dim) -> Dim:
    """A bound of a slice within a dim of size n, negative ones from its end."""
    if at_least(-at, 1):
        at = at + n
    elif not at_least(at, 0):
        raise TensorError(f"whether {at} counts from the end depends on the sizes of a call")
    return smallest(largest(at, 0), n)
