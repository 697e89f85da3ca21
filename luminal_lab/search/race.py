"""Which kernels and schedules of a region to measure: those that can still change who wins.

Candidates are ranked by the sum of their kernels' times, each under the best schedule that was
tried. The race starts with the default schedules of the most promising candidates. Then it asks
for more where something can be won:

- a listed candidate whose estimate (measured kernels, calibrated predictions for the others) is
  below the best measured one has its kernels measured;
- the kernels of those near the best have further schedules tried, all of them in turn.

A kernel is measured once, wherever it occurs, so most candidates cost one or two measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from luminal_lab.search.clock import Clock
from luminal_lab.search.region import Individual, RegionSearch

if TYPE_CHECKING:
    from luminal_lab.search.budget import Effort
    from luminal_lab.search.measuring import Measurer
    from luminal_lab.search.progress import Progress

NEAR = 1.25  # candidates up to so many times the best have their schedules searched
LEADERS = 6  # of them at most
ROUNDS = 8  # times that more candidates are asked for, once there are right ones
STEP = 3  # schedules of a kernel that are tried before others have their turn
TIE = 0.02  # times that differ by less are taken for equal
SPREAD = 0.03  # and by their spread, up to so much


@dataclass
class Explored:
    """One region: its search, and the individuals that are listed.

    Arguments:
        search: What was found.
        listed: What the table shows, by predicted time.
        lost: Why some of those are rejected, and by which rule, by their genes.
    """

    search: RegionSearch
    listed: list[Individual] = field(default_factory=list)
    lost: dict[tuple, tuple[str, str]] = field(default_factory=dict)

    @property
    def left(self) -> list[Individual]:
        """Those that are listed and not rejected."""
        return [i for i in self.listed if i.genes not in self.lost]


def preferred(times: list[tuple[float, float, tuple, Individual]]) -> Individual:
    """The fastest; of those that tie with it, the one with the least key.

    Arguments:
        times: Seconds, spread, key and individual of each. The key orders what noise cannot
            tell apart: fewer kernels first, then the better prediction.
    """
    best, spread, _, _ = min(times, key=lambda t: (t[0], t[2]))
    return min((t for t in times if tied(best, spread, t[0], t[1])), key=lambda t: t[2])[3]


def tied(
    best: float, best_spread: float, time: float, spread: float, most: float = SPREAD
) -> bool:
    """Whether a time cannot be told from the best one.

    Arguments:
        best: The best time.
        best_spread: The distance between the quartiles of its samples.
        time: The other time.
        spread: Likewise of this one.
        most: The part of the best time up to which spread counts as doubt.

    >>> tied(100e-6, 1e-6, 101e-6, 1e-6), tied(100e-6, 0.0, 104e-6, 0.0)
    (True, False)
    """
    doubt = min((best_spread + spread) / 2, most * best)
    return time <= best * (1 + TIE) + doubt


class Race:
    """Measures what can win.

    Arguments:
        regions: What was explored.
        measurer: Measures kernels.
        level: How much to measure.
        clock: When to stop.
        progress: Is told.
    """

    def __init__(
        self,
        regions: list[Explored],
        measurer: Measurer,
        level: Effort,
        clock: Clock,
        progress: Progress,
    ):
        self.regions, self.measurer, self.level = regions, measurer, level
        self.clock, self.progress = clock, progress

    def run(self) -> None:
        """Measure until nothing can be won any more, or the time is over."""
        for k, r in enumerate(self.regions):
            self.measurer.add(k, self._first(r))
        rounds = 0
        while self._measure_defaults() and self._ask_for_more():
            rounds += self._all_have_one()  # a region without a right candidate goes on
            if rounds >= ROUNDS:
                break
        while self._tune() and not self.clock.over:
            self.judge()
            if self._ask_for_more():
                self._measure_defaults()
        self.judge()

    def _all_have_one(self) -> bool:
        """Whether every region has an individual that is measured and right."""
        return all(
            any(self.measurer.seconds(k, i) is not None for i in r.left)
            for k, r in enumerate(self.regions)
        )

    def _measure_defaults(self) -> bool:
        try:
            return self.measurer.run(self.clock.deadline, self.progress)
        finally:
            self.judge()

    def _first(self, r: Explored) -> list[Individual]:
        picked = r.listed[: self.level.measured]
        if not self.level.timings:  # to be verified, not to be raced
            return picked
        for has in (r.search.has_online, r.search.calls_library):
            one = next((i for i in r.listed if has(i)), None)
            if one is not None and one not in picked:
                picked.append(one)
        return picked

    def judge(self) -> None:
        """Find the listed individuals that contain a kernel which was rejected."""
        for k, r in enumerate(self.regions):
            for one in r.left:
                verdict = self.measurer.verdict(k, one)
                if verdict is not None:
                    r.lost[one.genes] = verdict

    # ------------------------------------------------------------------ more candidates

    def _ask_for_more(self) -> bool:
        """Ask for further individuals where they may win; whether there were any."""
        asked = False
        for k, r in enumerate(self.regions):
            timed = [t for i in r.left if (t := self.measurer.seconds(k, i)) is not None]
            if not timed:  # all that were measured are rejected
                more = (r.left or self._without_false_rules(r))[: self.level.measured]
            else:
                more = self._promising(k, r, min(t for t, _ in timed))
            if more:
                self.measurer.add(k, more)
                asked = True
        return asked

    def _promising(self, k: int, r: Explored, best: float) -> list[Individual]:
        open_ = [i for i in r.left if self.measurer.seconds(k, i) is None]
        ratio = self.measurer.ratio(k)
        estimates = [(self.measurer.estimate(k, i, ratio), i) for i in open_]
        able = sorted((e for e in estimates if e[0] < best), key=lambda e: (e[0], e[1].genes))
        return [i for _, i in able[: self.level.measured // 2]]  # one alone is not to be beaten

    def _without_false_rules(self, r: Explored) -> list[Individual]:
        """List further individuals, made without the rules that spoiled all listed ones."""
        false = {rule for _, rule in r.lost.values() if rule}
        listed = {i.genes for i in r.listed}
        if not false:
            return []
        others = (i for i in r.search.ranked() if i.genes not in listed)
        right = (i for i in others if not false & r.search.rules_of(i))
        more = list(islice(right, self.level.measured))
        r.listed += more
        r.search.rejected["pruned"] = r.search.rejected.get("pruned", 0) - len(more)
        return more

    # ------------------------------------------------------------------ more schedules

    def leaders(self, k: int, within: float = NEAR, count: int = LEADERS) -> list[Individual]:
        """The measured individuals of a region that are near the best one, that one first."""
        r = self.regions[k]
        timed = [(t[0], i) for i in r.left if (t := self.measurer.seconds(k, i)) is not None]
        timed.sort(key=lambda t: (t[0], t[1].genes))
        return [i for t, i in timed[:count] if t <= timed[0][0] * within]

    def _tune(self) -> bool:
        """Try some more schedules of the leaders' kernels; whether there were any."""
        wanted: dict[str, None] = {}
        for k in range(len(self.regions)):
            for one in self.leaders(k):
                wanted.update(dict.fromkeys(self.measurer.worth_tuning(k, one)))
        return self.measurer.tune(
            list(wanted), self.level, STEP, self.clock.deadline, self.progress
        )


def calibration(pairs: list[tuple[float, float]]) -> float:
    """What predictions are to be multiplied by, from `(measured, predicted)` pairs."""
    return median([m / p for m, p in pairs if p > 0]) if pairs else 1.0
