"""How an operand is read: an index map from the consumer's axes to the producer's dims.

Movement is not an op in HLIR. A node iterates over axes `i0, i1, …` (its output dims) and, when
it reduces, `r`; a `View` says at which index of the producer each point reads. Permute, expand,
slice, flip, split, merge and repeat are index maps; padding adds a guard and a fill value.
Where the guard is false the fill is read, and the index may then be out of bounds (consumers
clamp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.index import Extents, Index
from luminal_lab.hlir.sizes import Dim

Scalar = bool | int | float
REDUCED = "r"  # the axis that a reduction node iterates over besides its output dims


def out_axis(dim: int) -> str:
    """The name of the axis over output dim `dim`: `i0`, `i1`, …."""
    return f"i{dim}"


@dataclass(frozen=True)
class View:
    """An index map with an optional guard.

    Arguments:
        index: One expression per dim of the producer, over axes of the consumer.
        guard: Affine expressions that must all be >= 0 for the read to happen.
        fill: What is read where the guard is false (0 when there is no guard).
    """

    index: tuple[Index, ...]
    guard: tuple[Index, ...] = ()
    fill: Scalar = 0

    def __post_init__(self) -> None:
        if not self.guard:
            object.__setattr__(self, "fill", 0)

    @staticmethod
    def identity(rank: int) -> View:
        """The view that reads dim k at axis `ik`."""
        return View(tuple(Index.axis(out_axis(k)) for k in range(rank)))

    @property
    def is_identity(self) -> bool:
        """Whether it reads each dim at its own axis, unguarded."""
        return self == View.identity(len(self.index))

    def compose(self, inner: Mapping[str, Index], extents: Extents) -> View:
        """This view with its axes replaced by expressions over other axes.

        Arguments:
            inner: What each axis of this view becomes.
            extents: Extents of the axes of the result.
        """
        guard = tuple(g.substitute(inner, extents) for g in self.guard)
        kept = tuple(g for g in guard if not sizes.at_least(g.bounds(extents)[0], 0))
        return View(tuple(i.substitute(inner, extents) for i in self.index), kept, self.fill)

    def __str__(self) -> str:
        text = "[" + ", ".join(map(str, self.index)) + "]"
        if self.guard:
            text += f" if {' & '.join(f'{g}>=0' for g in self.guard)} else {self.fill!r}"
        return text


def regroup(old: Sequence[Dim], new: Sequence[Dim]) -> tuple[Index, ...]:
    """The index map of a reshape: one expression per old dim over axes `i0…` of the new dims.

    Dims are regrouped factor by factor, so that a split or merge leaves no flattened index;
    only sizes that do not divide each other fall back to floor-division and remainder of a
    flattened group.

        >>> regroup((4, 6), (8, 3))
        (i0//2, i0%2*3+i1)

    Raises:
        HlirError: when the numbers of elements differ.
    """
    total_old, total_new = _product(old), _product(new)
    if total_old != total_new:
        raise HlirError(
            f"cannot reshape {tuple(old)} into {tuple(new)}: {total_old} != {total_new}"
        )
    if total_old == 0:
        return tuple(Index.num(0) for _ in old)
    extents = {out_axis(k): n for k, n in enumerate(new)}
    out: list[Index] = []
    for olds, news in _groups(list(old), list(new)):
        flat = Index.num(0)
        stride = 1
        for k in reversed(news):
            if new[k] == 1:
                continue
            flat = flat + Index.axis(out_axis(k)) * stride
            stride *= new[k]
        below = 1
        reads: list[Index] = []
        for k in reversed(olds):
            q = flat.floordiv(below, extents)
            reads.append(q if k == olds[0] else q.mod(old[k], extents))
            below *= old[k]
        out.extend(reversed(reads))
    return tuple(out)


def _groups(old: list[Dim], new: list[Dim]) -> list[tuple[list[int], list[int]]]:
    """Minimal runs of old and new dims with equal products; size-1 dims join a neighbour."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        a: Dim = 1
        b: Dim = 1
        while True:
            if i < len(old) and (_behind(a, b) or (a == b and not olds)):
                olds.append(i)
                a = a * old[i]
                i += 1
            elif j < len(new) and (_behind(b, a) or (a == b and not news)):
                news.append(j)
                b = b * new[j]
                j += 1
            elif a == b:
                break
            elif i < len(old):  # symbolic and neither divides the other
                olds.append(i)
                a = a * old[i]
                i += 1
            else:
                news.append(j)
                b = b * new[j]
                j += 1
        groups.append((olds, news))
    return groups


def _behind(a: Dim, b: Dim) -> bool:
    """Whether a run of product `a` needs another dim to catch up with one of product `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return a != b and sizes.divides(a, b)


def _product(dims: Sequence[Dim]) -> Dim:
    out: Dim = 1
    for d in dims:
        out = out * d
    return out
