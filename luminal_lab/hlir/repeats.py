"""Repeats in a sequence of labels: where a loop was unrolled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

# The shortest period that is worth a border, by how often it must come at least.
SHORTEST = {2: 48, 3: 24}
LONGEST = 800  # a longer period is searched for shorter ones in it
_PERIODS = 64  # candidates that are tried


def repeats(labels: Sequence[Hashable], live: Sequence[int]) -> list[tuple[int, int, int]]:
    """Disjoint runs of equal pieces: `(start, period, count)`, by start.

    Arguments:
        labels: What each item is.
        live: For each position, what it costs to cut before it (and one for the end).

    Of overlapping runs the one that saves most items is taken. A run can be cut at any phase of
    its period: it is cut where that costs least, then where most pieces fit, then as early as
    can be.
    """
    out: list[tuple[int, int, int]] = []
    todo = [(0, len(labels))]
    while todo:
        low, high = todo.pop()
        best = _best(labels, live, low, high)
        if best is None:
            continue
        start, period, count = best
        out.append(best)
        todo += [(low, start), (start + period * count, high)]
    return sorted(out)


def _best(
    labels: Sequence[Hashable], live: Sequence[int], low: int, high: int
) -> tuple[int, int, int] | None:
    least = min(SHORTEST.values())
    last: dict[Hashable, int] = {}
    gaps: Counter[int] = Counter()
    for k in range(low, high):
        gap = k - last.get(labels[k], k)
        last[labels[k]] = k
        if least <= gap <= LONGEST:
            gaps[gap] += 1
    found: tuple[int, tuple[int, int, int]] | None = None
    for period, _ in sorted(gaps.items(), key=lambda g: (-g[0] * g[1], g[0]))[:_PERIODS]:
        begin = low
        while begin + 2 * period <= high:
            end = begin  # labels[begin:end] come again one period later
            while end + period < high and labels[end] == labels[end + period]:
                end += 1
            if end - begin >= period:
                run = _cut(live, begin, end + period, period)
                saved = period * (run[2] - 1)
                if period >= SHORTEST[min(run[2], 3)] and (found is None or saved > found[0]):
                    found = saved, run
            begin = end + 1
    return None if found is None else found[1]


def _cut(live: Sequence[int], begin: int, end: int, period: int) -> tuple[int, int, int]:
    """The run in `[begin, end)` at its best phase."""

    def cost(start: int) -> tuple[int, int, int]:
        count = (end - start) // period
        borders = [live[start + k * period] for k in range(count + 1)]
        return max(borders[1:-1]), -count, start

    start = min(range(begin, min(begin + period, end - 2 * period + 1)), key=cost)
    return start, period, (end - start) // period
