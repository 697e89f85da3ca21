"""Which order of dims suits a tensor that is seen through windows: arithmetic on index maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, hint

Maps = Sequence[tuple[Index, ...]]


def window_axes(i: Index, extents: Mapping[str, Dim]) -> set[str]:
    """The axes of an index expression that reach the same element in several ways.

    An order of dims is right for all sizes: symbolic ones count with their hints here.

    >>> sorted(window_axes(Index.parse("2*y + k"), {"y": 5, "k": 3}))
    ['k', 'y']
    >>> window_axes(Index.parse("3*y + k"), {"y": 5, "k": 3})
    set()
    """
    steps = sorted(
        (abs(hint(c)), hint(extents.get(a, 1)), a)
        for a, c in i.terms
        if isinstance(a, str) and not a.startswith("@") and hint(extents.get(a, 1)) > 1
    )
    out: set[str] = set()
    reach, below = 0, set[str]()
    for step, n, a in steps:
        below.add(a)
        if reach >= step:
            out |= below
        reach += step * (n - 1)
    return out


def plane_axes(maps: Iterable[tuple[Index, ...]], extents: Mapping[str, Dim]) -> frozenset[str]:
    """All axes that take part in windows."""
    out: set[str] = set()
    for index in maps:
        for i in index:
            if len(i.terms) > 1:
                out |= window_axes(i, extents)
    return frozenset(out)


def planes_outermost(
    index: Sequence[Index], shape: Sequence[Dim], planes: frozenset[str], maps: Maps
) -> tuple[int, ...] | None:
    """The dims of a stored tensor, outermost first: the last dim off the planes goes last.

    Arguments:
        index: Where the tensor is stored, over its axes.
        shape: Its extents.
        planes: See `plane_axes`.
        maps: All index maps of the program.

    Returns:
        An order of the dims; None when the tensor has no planes, or lies so already, or is seen
        somewhere as one flat dim in its own order.
    """
    plane = [d for d, i in enumerate(index) if i.axes & planes and hint(shape[d]) > 1]
    channel = [d for d in range(len(index)) if d not in plane and hint(shape[d]) > 1]
    if not plane or not channel or channel[-1] > plane[-1]:
        return None
    both = frozenset().union(*(index[d].axes for d in [channel[-1], *plane]))
    if any(both <= i.axes for other in maps for i in other if len(i.terms) >= len(both)):
        return None
    return (*(d for d in range(len(index)) if d != channel[-1]), channel[-1])


def strides_of(shape: Sequence[Dim], order: Sequence[int]) -> tuple[Dim, ...]:
    """Strides of a dense tensor whose dims lie in the given order.

    >>> strides_of((2, 3, 4), (0, 2, 1))
    (12, 1, 3)
    """
    out: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for d in reversed(order):
        out[d] = step
        step *= shape[d]
    return tuple(out)
