"""Tiles of windows: which values slide along axes, and the same values tile by tile.

A convolution reads `x[g + e]` at each place `g` and each tap `e`. Computed tile by tile, `m`
places at a time, it needs `x[m*t + k]` for `k` up to `m + 1`: one value, with `m*t` for `g` and
`k` for `e`. The encoder makes that value (no substitution runs inside egglog), and states how
the two belong together; what to make of it is the business of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim

TAPS = 3  # a window's extent
SIZES = (2, 4)  # places per tile and axis


@dataclass(frozen=True)
class Tiles:
    """Two values: one that slides along two axes, and the same by tiles.

    Arguments:
        slides: A value that depends on `g + e` and `h + f`, and on these axes in no other way.
        tiled: The same with `size*t + k` and `size*u + q` in their place.
        size: Places per tile, along each axis.
        places, taps: (g, h), which may be expressions, and (e, f).
        tiles, inside: (t, u) and (k, q).
        lists: Sets of axes, in an order, that rules need to spell.
    """

    slides: int
    tiled: int
    size: int
    places: tuple[Index, Index]
    taps: tuple[str, str]
    tiles: tuple[str, str]
    inside: tuple[str, str]
    lists: tuple[tuple[str, ...], ...] = ()

    def names(self) -> Iterator[str]:
        """The axes, in the order of the relation `tiles`."""
        yield from (*map(str, self.places), *self.taps, *self.tiles, *self.inside)


@dataclass(frozen=True)
class Sliding:
    """A place and a tap that occur only as their sum.

    Arguments:
        place: An expression over axes: one, or the parts that a long one is split into.
        tap: An axis.
        extent: How many places there are.
    """

    place: Index
    tap: str
    extent: int

    @property
    def unit(self) -> str:
        """The axis of the place whose step is one."""
        return next(str(a) for a, c in self.place.terms if c == 1)


def sliding(
    indices: Iterable[Index], others: frozenset[str], extents: Mapping[str, Dim]
) -> tuple[Sliding, ...]:
    """What slides in index expressions, one after another.

    Arguments:
        indices: All expressions of a read: its index, and what guards it.
        others: The axes of what it is multiplied with: taps are among them, places are not.
        extents: Of all axes.

    >>> i = Index.parse("2*g + h + e - 1")
    >>> sliding([i, -i + 20], frozenset("oe"), {"g": 10, "h": 2, "e": 3})
    (Sliding(place=g*2+h, tap='e', extent=20),)
    >>> sliding([Index.parse("2*g + e")], frozenset("oe"), {"g": 20, "e": 3})
    ()
    """
    indices = list(indices)
    found = (_slides(tap, indices, others, extents) for tap in sorted(others))
    return tuple(s for s in found if s is not None)


def _slides(
    tap: str, indices: Sequence[Index], others: frozenset[str], extents: Mapping[str, Dim]
) -> Sliding | None:
    first = next((i for i in indices if i.coef(tap)), None)
    if first is None or extents.get(tap) != TAPS or not all(i.is_affine for i in indices):
        return None
    step = first.coef(tap)
    parts = [(a, c // step) for a, c in first.terms if isinstance(a, str) and a not in others]
    span = 1
    for a, c in reversed(parts):  # smallest step first
        n = extents.get(a)
        if not isinstance(n, int) or c != span:
            return None
        span *= n
    place = Index.linear(parts)
    together = all(
        abs(i.coef(tap)) <= 1 and all(i.coef(a) == i.coef(tap) * c for a, c in parts)
        for i in indices
    )
    return Sliding(place, tap, span) if together and span >= max(SIZES) else None


def listings(
    read: frozenset[str], other: frozenset[str], taps: frozenset[str], places: frozenset[str]
) -> tuple[tuple[str, ...], ...]:
    """Sets of axes that a product's parts are stored over, each in an order.

    Arguments:
        read: The axes of what slides.
        other: The axes of what it is multiplied with.
        taps: The axes of taps.
        places: The axes of places.
    """
    x, w = read - taps - places, other - taps
    out = [x, w]
    for c in sorted(x & w):
        out += [frozenset({c}), (x | w) - {c}]
    return tuple(dict.fromkeys(tuple(sorted(s)) for s in out))


def facts(tiles: Sequence[Tiles]) -> Iterator[str]:
    """The encoder's facts about them, as egglog commands."""
    said: dict[str, None] = {}
    for one in tiles:
        for index in (*one.places, *map(Index.axis, (*one.taps, *one.inside))):
            axes = " ".join(f'"{a}"' for a in sorted(index.axes))
            said[f'(set (axes "{index}") (set-of {axes}))'] = None
        names = " ".join(f'"{a}"' for a in one.names())
        said[f"(tiles (nid {one.slides}) (nid {one.tiled}) {one.size} {names})"] = None
        for axes in one.lists:
            spelled = " ".join(f'"{a}"' for a in axes)
            said[f'(set (listing (set-of {spelled})) "{", ".join(axes)}")'] = None
    yield from said
