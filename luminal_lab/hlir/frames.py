"""Points at which the interpreter evaluates: boxes of axes, or any index tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luminal_lab.hlir.graph import NodeId
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.view import View, out_axis

if TYPE_CHECKING:
    from torch import Tensor

Ranges = Mapping[str, tuple[int, int, int]]  # axis -> (dim, start, stop)


class _Aranges(dict[str, Any]):
    """Index tensors of the axes of a box, made when they are first asked for."""

    def __init__(self, ranges: Ranges, rank: int):
        super().__init__()
        self.ranges, self.rank = ranges, rank

    def __missing__(self, axis: str) -> Tensor:
        import torch

        dim, start, stop = self.ranges[axis]
        shape = [1] * self.rank
        shape[dim] = stop - start
        self[axis] = torch.arange(start, stop).view(shape)
        return self[axis]


@dataclass(frozen=True)
class Frame:
    """The points at which values are wanted.

    Arguments:
        env: For each axis an int64 index tensor of `rank` dims; they broadcast together.
        extents: The full extent of each axis.
        ranges: Where each axis is a plain range: (dim, start, stop); None for other points.
        rank: Number of dims.
        depth: How many lazily computed values enclose this one.
        memo: What was computed at these points.
        composed: The operands' views of lazily computed nodes, by node, view and rank; frames
            over the same axes share it.
    """

    env: Mapping[str, Any]
    extents: Mapping[str, int]
    ranges: Ranges | None
    rank: int
    depth: int = 0
    memo: dict[tuple[NodeId, View], Any] = field(default_factory=dict)
    composed: dict[tuple[NodeId, View, int], tuple[View, ...]] = field(default_factory=dict)

    @staticmethod
    def box(
        ranges: Sequence[tuple[str, int, int]],
        extents: Mapping[str, int],
        composed: dict[tuple[NodeId, View, int], tuple[View, ...]] | None = None,
    ) -> Frame:
        """The points of a box: `(axis, start, stop)` for each dim."""
        rank = len(ranges)
        places = {axis: (d, start, stop) for d, (axis, start, stop) in enumerate(ranges)}
        shared = {} if composed is None else composed
        return Frame(_Aranges(places, rank), extents, places, rank, composed=shared)

    @staticmethod
    def whole(extents: Mapping[str, int]) -> Frame:
        """All points of some axes, a dim each."""
        return Frame.box([(a, 0, n) for a, n in extents.items()], extents)

    @staticmethod
    def of_shape(shape: Sequence[int]) -> Frame:
        """All points of `shape`."""
        return Frame.whole({out_axis(k): n for k, n in enumerate(shape)})

    def with_axis(self, axis: str, extent: int) -> Frame:
        """These points times a new axis, as the last dim."""
        import torch

        extents, rank = {**self.extents, axis: extent}, self.rank + 1
        if self.ranges is not None:
            ranges = {**self.ranges, axis: (self.rank, 0, extent)}
            env: Mapping[str, Any] = _Aranges(ranges, rank)
        else:
            ranges = None
            env = {a: t.unsqueeze(-1) for a, t in self.env.items()}
            env[axis] = torch.arange(extent).view(*[1] * self.rank, extent)
        return Frame(env, extents, ranges, rank, self.depth, composed=self.composed)

    def deeper(self) -> Frame:
        """The same points, one lazily computed value further in."""
        return Frame(
            self.env,
            self.extents,
            self.ranges,
            self.rank,
            self.depth + 1,
            self.memo,
            self.composed,
        )

    def moved(self, env: Mapping[str, Any], extents: Mapping[str, int]) -> Frame:
        """Other axes, given by index tensors, at the same points."""
        return Frame(env, extents, None, self.rank, self.depth + 1)

    def at(self, index: Sequence[Index]) -> list[Tensor]:
        """Index expressions evaluated at the points, as tensors of `rank` dims."""
        import torch

        out = []
        for i in index:
            v = i.evaluate(self.env)
            out.append(v if isinstance(v, torch.Tensor) else torch.full([1] * self.rank, v))
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all its axes span."""
        if self.ranges is not None:
            out = [1] * self.rank
            for dim, start, stop in self.ranges.values():
                out[dim] = stop - start
            return tuple(out)
        import torch

        return tuple(torch.broadcast_shapes(*(t.shape for t in self.env.values())))

    def size(self, index: Sequence[Index]) -> int:
        """How many distinct points `index` takes at most."""
        axes = sorted(frozenset().union(*(i.axes for i in index)))
        shapes = [self.env[a].shape for a in axes]
        return math.prod(max(s[d] for s in shapes) for d in range(self.rank)) if shapes else 1


def blocks(shape: Sequence[int], budget: int) -> Iterator[list[tuple[str, int, int]]]:
    """Cover `shape` by boxes of at most `budget` points, whole along the trailing dims."""
    if math.prod(shape) == 0:
        return
    steps = []
    for n in reversed(shape):
        steps.append(max(1, min(n, budget)))
        budget //= n
    steps.reverse()
    starts = [0] * len(shape)
    while True:
        yield [(out_axis(d), s, min(s + steps[d], shape[d])) for d, s in enumerate(starts)]
        for d in range(len(shape) - 1, -1, -1):
            starts[d] += steps[d]
            if starts[d] < shape[d]:
                break
            starts[d] = 0
        else:
            return


def strided(stored: Tensor, index: Sequence[Index], frame: Frame) -> Tensor | None:
    """A read of a box as a strided view; None where it is not affine, or a stride negative."""
    if frame.ranges is None or not all(i.is_affine for i in index):
        return None
    offset, size, stride = stored.storage_offset(), [1] * frame.rank, [0] * frame.rank
    for i, step in zip(index, stored.stride()):
        offset += i.const * step
        for axis, coef in i.terms:
            assert isinstance(axis, str)
            dim, start, stop = frame.ranges[axis]
            offset += coef * start * step
            size[dim] = stop - start
            stride[dim] += coef * step
    if any(s < 0 for s in stride):
        return None
    if 0 in size:
        return stored.new_empty(size)
    return stored.as_strided(size, stride, offset)
