"""Repeats in a sequence of labels: where a loop was unrolled, or a function called again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

LONGEST = 800  # a longer repeat is searched for shorter ones in it
_PERIODS = 64  # candidates that are tried
_BACK = 4  # earlier places of a label that are looked at
_TURNS = 12  # words that are looked for apart from runs
_APART = 2  # so many times as long as in a run they must be: nothing says that they are units
# The shortest word that is worth a border, by how often it must come at least.
_SHORTEST = ((8, 10), (3, 24), (2, 48))

Word = tuple[int, tuple[int, ...]]  # a length, and where it begins
_Spans = list[tuple[int, int]]


def shortest(count: int) -> float:
    """How long a piece must be that comes so often, to be worth its borders.

    >>> shortest(2), shortest(3), shortest(1)
    (48, 24, inf)
    """
    return next((length for least, length in _SHORTEST if count >= least), float("inf"))


def repeats(labels: Sequence[Hashable | None], live: Sequence[int]) -> list[Word]:
    """Disjoint words that come again: `(length, starts)`, by first start.

    Arguments:
        labels: What each item is; None for what no word passes.
        live: For each position, what it costs to cut before it (and one for the end).

    Runs (a word many times in a row) come first; of overlapping ones the one that saves most
    items is taken. A run can be cut at any phase of its period: it is cut where that costs
    least, then where most pieces fit, then as early as can be. The same word is taken wherever
    else it occurs. Then come words that occur apart from each other.
    """
    numbers: dict[Hashable, int] = {}
    items = [numbers.setdefault(label, len(numbers)) for label in labels]
    walls = [-1, *(k for k, label in enumerate(labels) if label is None), len(items)]
    spans: _Spans = [(a + 1, b) for a, b in pairwise(walls) if a + 1 < b]
    out: list[Word] = []
    while (run := _best_run(items, live, spans)) is not None:
        start, period, count = run
        own = [start + k * period for k in range(count)]
        spans = _without(spans, [(start, start + period * count)])
        more = _places(items, tuple(items[start : start + period]), spans)
        spans = _without(spans, [(s, s + period) for s in more])
        out.append((period, tuple(sorted((*own, *more)))))
    for _ in range(_TURNS):
        word = _best_word(items, live, spans)
        if word is None:
            break
        spans = _without(spans, [(s, s + word[0]) for s in word[1]])
        out.append(word)
    return sorted(out, key=lambda w: w[1])


def _without(spans: _Spans, taken: _Spans) -> _Spans:
    for low, high in taken:
        k = next(k for k, (a, b) in enumerate(spans) if a <= low and high <= b)
        a, b = spans[k]
        spans = [
            *spans[:k],
            *((x, y) for x, y in ((a, low), (high, b)) if x < y),
            *spans[k + 1 :],
        ]
    return spans


def _places(items: Sequence[int], word: tuple[int, ...], spans: _Spans) -> list[int]:
    """Where a word occurs, not overlapping itself."""
    out = []
    for low, high in spans:
        k = low
        while k + len(word) <= high:
            if items[k] == word[0] and tuple(items[k : k + len(word)]) == word:
                out.append(k)
                k += len(word)
            else:
                k += 1
    return out


# ---------------------------------------------------------------------- runs
def _best_run(
    items: Sequence[int], live: Sequence[int], spans: _Spans
) -> tuple[int, int, int] | None:
    """The run that saves most: `(start, period, count)`."""
    found: tuple[int, tuple[int, int, int]] | None = None
    for low, high in spans:
        for saved, run in _runs(items, live, low, high):
            if found is None or saved > found[0]:
                found = saved, run
    return None if found is None else found[1]


def _runs(
    items: Sequence[int], live: Sequence[int], low: int, high: int
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    gaps = _gaps(items, low, high)
    for period, _ in sorted(gaps.items(), key=lambda g: (-g[0] * g[1], g[0]))[:_PERIODS]:
        begin = low
        while begin + 2 * period <= high:
            end = begin  # items[begin:end] come again one period later
            while end + period < high and items[end] == items[end + period]:
                end += 1
            if end - begin >= period:
                run = _cut(live, begin, end + period, period)
                if period >= shortest(run[2]):
                    yield period * (run[2] - 1), run
            begin = end + 1


def _gaps(items: Sequence[int], low: int, high: int) -> Counter[int]:
    """How often the same came again after so many items: single ones, and words.

    Words tell a long period from a short one in it: in AAABAAAB an item of A comes again after
    one A, but a word that touches B after the whole period.
    """
    gaps: Counter[int] = Counter()
    for width, least in ((1, 10), (24, 24), (48, 24)):
        last: dict[Hashable, list[int]] = {}
        for k in range(low, high - width + 1):
            word = items[k] if width == 1 else tuple(items[k : k + width])
            places = last.setdefault(word, [])
            for before in places:
                if least <= k - before <= LONGEST:
                    gaps[k - before] += 1
            places.append(k)
            del places[:-_BACK]
    return gaps


def _cut(live: Sequence[int], begin: int, end: int, period: int) -> tuple[int, int, int]:
    """The run in `[begin, end)` at its best phase."""

    def cost(start: int) -> tuple[int, int, int]:
        count = (end - start) // period
        borders = [live[start + k * period] for k in range(count + 1)]
        return max(borders[1:-1]), -count, start

    start = min(range(begin, min(begin + period, end - 2 * period + 1)), key=cost)
    return start, period, (end - start) // period


# ---------------------------------------------------------------------- words apart
def _best_word(items: Sequence[int], live: Sequence[int], spans: _Spans) -> Word | None:
    """The word that saves most, at least three quarters of it, cut where that costs least."""
    best: tuple[int, Word] | None = None
    length = _APART * int(shortest(3))
    longest = min(LONGEST, max((b - a for a, b in spans), default=0))
    while length <= longest:
        for starts in _again(items, spans, length):
            saved = length * (len(starts) - 1)
            if length >= _APART * shortest(min(len(starts), 3)) and (
                best is None or saved > best[0]
            ):
                best = saved, (length, starts)
        length += max(1, length // 4)
    if best is None:
        return None
    length, starts = _grown(items, spans, *best[1])
    least = 3 * length // 4

    def cost(cut: tuple[int, int]) -> tuple[int, int, int]:
        a, b = cut
        return sum(live[s + a] + live[s + b] for s in starts), a - b, a

    cuts = [(a, b) for a in range(length - least + 1) for b in range(a + least, length + 1)]
    a, b = min(cuts, key=cost)
    return b - a, tuple(s + a for s in starts)


def _again(items: Sequence[int], spans: _Spans, length: int) -> Iterator[tuple[int, ...]]:
    """Where each word of a length begins that comes more than once, not overlapping itself."""
    places: dict[tuple[int, ...], list[int]] = {}
    for low, high in spans:
        for k in range(low, high - length + 1):
            found = places.setdefault(tuple(items[k : k + length]), [])
            if not found or found[-1] + length <= k:
                found.append(k)
    yield from (tuple(found) for found in places.values() if len(found) > 1)


def _grown(items: Sequence[int], spans: _Spans, length: int, starts: tuple[int, ...]) -> Word:
    """A word made longer on both sides, as far as all of its copies agree."""
    end = {s: high for s in starts for low, high in spans if low <= s < high}
    begin = {s: low for s in starts for low, high in spans if low <= s < high}
    after = dict(zip(starts, (*starts[1:], len(items))))

    def agree(offset: int) -> bool:
        return len({items[s + offset] for s in starts}) == 1

    while all(s + length < min(end[s], after[s]) for s in starts) and agree(length):
        length += 1
    back = 0
    while (
        all(s - back > begin[s] for s in starts)
        and all(s + length + back < t for s, t in pairwise(starts))
        and agree(-back - 1)
    ):
        back += 1
    return length + back, tuple(s - back for s in starts)
