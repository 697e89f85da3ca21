"""The search: explore each region, measure what is promising, choose, and tell why."""

from __future__ import annotations

import gc
import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import ScheduleError, SearchError
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.budget import Budget
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.database import Database
from luminal_lab.search.machine import Machine
from luminal_lab.search.measuring import Measurer
from luminal_lab.search.progress import Listener, Progress, SearchEvent
from luminal_lab.search.region import Individual, RegionSearch
from luminal_lab.search.result import KernelRecord, Result, Row
from luminal_lab.search.strategies import STRATEGIES, descent, exhaustive, sampling

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph
    from luminal_lab.search.target import Target

SMALL = 64  # regions with so few moves are first explored exhaustively
_IDLE = 400  # random genomes in a row that bring nothing new end a sampling
_REPORT = 16  # evaluations between two progress events


@dataclass
class _Explored:
    """One region: its search, and the individuals that are listed."""

    search: RegionSearch
    listed: list[Individual] = field(default_factory=list)


def search(
    egraph: EGraph,
    budget: Budget | None = None,
    seed: int = 0,
    target: Target | None = None,
    progress: bool | Listener = False,
    *,
    strategy: str = "genetic",
    database: Database | None = None,
) -> Result:
    """Find the fastest candidate that computes the right thing.

    Arguments:
        egraph: What was saturated.
        budget: How much to do; `Budget()` when None.
        seed: With the same seed and budget the same candidates are listed, in any process.
        target: Where to measure; only effort `"none"` works without one.
        progress: True for progress bars, or a function of each `SearchEvent`.
        strategy: What follows the descent from the seeds; a name of `STRATEGIES`.
        database: What is known about kernels; the user's own when None.

    Returns:
        What was found. Ctrl-C ends the search and keeps what was found before it.

    Raises:
        SearchError: when no candidate is left, or measuring is asked for without a target.
        CacheError: when the database cannot be used.
    """
    budget = budget or Budget()
    if target is None and budget.level.measured:
        raise SearchError(
            f"effort {budget.effort!r} measures, and there is no target to measure on",
            fix="pass a target, or Budget('none')",
        )
    run = _Search(egraph, budget, seed, target, Progress(progress), strategy, database)
    try:
        return run.run()
    finally:
        run.progress.close()


class _Search:
    def __init__(
        self,
        egraph: EGraph,
        budget: Budget,
        seed: int,
        target: Target | None,
        progress: Progress,
        strategy: str,
        database: Database | None,
    ):
        if strategy not in STRATEGIES:
            raise SearchError(
                f"unknown strategy {strategy!r}", fix=f"one of {', '.join(STRATEGIES)}"
            )
        self.egraph, self.budget, self.seed, self.target = egraph, budget, seed, target
        self.progress, self.strategy, self.database = progress, strategy, database
        self.machine = target.machine() if target else Machine()
        self.assembler = Assembler(egraph, self.machine)
        self.regions = [
            _Explored(RegionSearch(k, budget.memory)) for k in self.assembler.regions
        ]
        self.interrupted = False
        self.started = time.monotonic()
        self.measurer: Measurer | None = None
        self.lost: dict[tuple[int, tuple], tuple[str, str]] = {}  # individual -> reason, rule

    def run(self) -> Result:
        """Explore, measure, choose."""
        try:
            with without_collector():
                self._explore()
        except KeyboardInterrupt:
            if any(r.search.best is None for r in self.regions):
                raise  # there is nothing to keep
            self.interrupted = True
        for r in self.regions:
            self._list(r)
        if self.budget.level.measured and not self.interrupted:
            try:
                self._measure()
            except KeyboardInterrupt:
                self.interrupted = True
        chosen = [self._choose(k) for k in range(len(self.regions))]
        best = self._candidate(chosen)
        return self._result(best)

    # -------------------------------------------------------------------------- exploring

    def _explore(self) -> None:
        total = self.budget.level.evaluations * len(self.regions)
        done = 0
        for k, r in enumerate(self.regions):
            rng = random.Random(f"{self.seed}/{k}")
            for _ in self._steps(r.search, rng):
                done += 1
                if done % _REPORT == 0:
                    best = r.search.best
                    at = best.seconds if best else None
                    self.progress(SearchEvent("explore", done, total, at, f"region {k}"))
            if r.search.best is None:
                reasons = ", ".join(
                    f"{n} {why}" for why, n in sorted(r.search.rejected.items())
                )
                raise SearchError(
                    f"no candidate of region {k} can be run: {reasons}",
                    fix="raise the budget's memory" if self.budget.memory else None,
                )

    def _steps(self, region: RegionSearch, rng: random.Random) -> Iterator[None]:
        level = self.budget.level
        limit = region.considered + level.evaluations
        if region.n_moves <= SMALL:
            for _ in exhaustive(region, rng):
                yield
                if region.considered >= limit // 2:
                    break
            else:
                return  # there is no other candidate
        for _ in descent(region, rng):
            yield
            if region.considered >= limit:
                return
        limit = min(limit, region.considered + level.wider)
        for _ in STRATEGIES[self.strategy](region, rng):
            yield
            if region.considered >= limit:
                return

    def _list(self, r: _Explored) -> None:
        """Keep the best individuals, and the best with an online form when there is one."""
        ranked = r.search.ranked()
        kept = ranked[: self.budget.level.kept]
        online = next((i for i in ranked if r.search.has_online(i)), None)
        if online is not None and online not in kept:
            kept[-1] = online
        r.listed = kept
        for _ in range(len(ranked) - len(kept)):
            r.search.reject("pruned")

    # -------------------------------------------------------------------------- measuring

    def _measure(self) -> None:
        assert self.target is not None
        deadline = None
        if self.budget.seconds is not None:
            deadline = self.started + self.budget.seconds
        database = Database() if self.database is None else self.database
        self.measurer = Measurer(
            self.egraph, self.assembler, self.target, database, self.budget.level.schedules
        )
        try:
            for k, r in enumerate(self.regions):
                self.measurer.add(k, self._to_measure(r))
            while self.measurer.run(deadline, self.progress):
                self._judge()
                if not self._measure_more():
                    break
        finally:
            self._judge()
            if self.database is None:
                database.close()

    def _judge(self) -> None:
        """Find the listed individuals that contain a kernel which was rejected."""
        assert self.measurer is not None
        for k, r in enumerate(self.regions):
            for one in r.listed:
                verdict = self.measurer.verdict(k, one)
                if verdict is not None:
                    self.lost[k, one.genes] = verdict

    def _measure_more(self) -> bool:
        """Ask for further individuals of the regions whose measured ones were all rejected."""
        assert self.measurer is not None
        asked = False
        for k, r in enumerate(self.regions):
            left = [i for i in r.listed if (k, i.genes) not in self.lost]
            if not left:
                left = self._without_false_rules(k, r)
            if left and all(self._measured(k, i) is None for i in left):
                self.measurer.add(k, left[: self.budget.level.measured])
                asked = True
        return asked

    def _without_false_rules(self, region: int, r: _Explored) -> list[Individual]:
        """List further individuals, made without the rules that spoiled all listed ones."""
        false = {rule for (k, _), (_, rule) in self.lost.items() if k == region and rule}
        listed = {i.genes for i in r.listed}
        others = [i for i in r.search.ranked() if i.genes not in listed]
        more = [i for i in others if not false & r.search.rules_of(i)]
        more = more[: self.budget.level.measured] if false else []
        r.listed += more
        r.search.rejected["pruned"] = r.search.rejected.get("pruned", 0) - len(more)
        return more

    def _to_measure(self, r: _Explored) -> list[Individual]:
        picked = r.listed[: self.budget.level.measured]
        online = next((i for i in r.listed if r.search.has_online(i)), None)
        if online is not None and online not in picked:
            picked.append(online)
        return picked

    # --------------------------------------------------------------------------- choosing

    def _choose(self, region: int) -> Individual:
        """The fastest individual that is not rejected: by measured time where known."""
        left = [i for i in self.regions[region].listed if (region, i.genes) not in self.lost]
        timed = [(t, i) for i in left if (t := self._measured(region, i)) is not None]
        if timed:
            return min(timed, key=lambda p: p[0][0])[1]
        for one in left:
            if (why := self._unschedulable(region, one)) is None:
                return one
            self.lost[region, one.genes] = (why, "")
        count: dict[str, int] = {}
        for (k, _), (why, rule) in self.lost.items():
            if k == region:
                name = f"{why} (rule {rule})" if rule else why
                count[name] = count.get(name, 0) + 1
        told = ", ".join(f"{n} {why}" for why, n in sorted(count.items()))
        raise SearchError(f"no candidate of region {region} is left: {told}")

    def _unschedulable(self, region: int, one: Individual) -> str | None:
        if self.target is None:
            return None
        for step in self.assembler.regions[region].steps(one.extraction):
            try:
                if isinstance(step.kernel, Kernel):
                    self.target.schedules(step.kernel)
            except ScheduleError:
                return "no schedule"
        return None

    def _measured(self, region: int, one: Individual) -> tuple[float, float] | None:
        if self.measurer is None:
            return None
        return self.measurer.seconds(region, one)

    # ------------------------------------------------------------------------------ result

    def _candidate(self, chosen: list[Individual]) -> Candidate:
        made = self.assembler.candidate([i.extraction for i in chosen])
        if self.measurer is None:
            return made
        records = self.measurer.records
        texts = self.assembler.texts(made)
        schedules = tuple(records[t].schedule if t in records else None for t in texts)
        return replace(made, schedules=schedules)

    def _result(self, best: Candidate) -> Result:
        rows = [
            self._row(k, rank, one)
            for k, r in enumerate(self.regions)
            for rank, one in enumerate(r.listed)
        ]
        rejected: dict[str, int] = {}
        for r in self.regions:
            for why, n in r.search.rejected.items():
                rejected[why] = rejected.get(why, 0) + n
        for why, rule in self.lost.values():
            name = f"{why} (rule {rule})" if rule else why
            rejected[name] = rejected.get(name, 0) + 1
        records: dict[str, KernelRecord] = self.measurer.records if self.measurer else {}
        return Result(
            best=best,
            rows=tuple(rows),
            rejected=dict(sorted(rejected.items())),
            considered=sum(r.search.considered for r in self.regions),
            records=records,
            budget=self.budget,
            seed=self.seed,
            machine=self.machine,
            interrupted=self.interrupted,
            seconds=time.monotonic() - self.started,
            _make=self._program,
        )

    def _program(self, k: int) -> Candidate:
        return self._candidate([r.listed[min(k, len(r.listed) - 1)] for r in self.regions])

    def _row(self, region: int, rank: int, one: Individual) -> Row:
        measured = self._measured(region, one)
        reason, rule = self.lost.get((region, one.genes), ("", ""))
        status = "rejected" if reason else "verified" if measured is not None else "listed"
        return Row(
            region=region,
            instances=self.assembler.instances_of[region],
            rank=rank,
            genome=genome_digest(one.genes),
            kernels=len(one.extraction.bodies),
            predicted=one.seconds,
            measured=measured[0] if measured else None,
            iqr=measured[1] if measured else 0.0,
            status=status,
            reason=reason,
            rule=rule,
        )


@contextmanager
def without_collector() -> Iterator[None]:
    """Exploring makes many small objects and no cycles: collecting would take a third of it.

    Afterwards they all count as old, so that the next collection does not visit them either.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def genome_digest(genes: tuple) -> str:
    """Ten hex digits of an individual's identity."""
    return hashlib.sha256(repr(genes).encode()).hexdigest()[:10]


def sample(
    egraph: EGraph, n: int = 32, seed: int = 0, machine: Machine | None = None
) -> list[Candidate]:
    """Distinct candidates of an e-graph, unmeasured.

    The first is the most promising seed; the others are drawn at random, by perturbed work
    around the seeds, so that they are varied rather than good.

    Arguments:
        egraph: What was saturated.
        n: How many; fewer come back when the e-graph holds fewer (or hides them well).
        seed: The same seed gives the same candidates in any process.
        machine: For predictions.

    Raises:
        SearchError: when a region has no executable program.
    """
    assembler = Assembler(egraph, machine or Machine())
    with without_collector():
        rows = [
            _drawn(RegionSearch(kernels), random.Random(f"{seed}/{k}/sample"), n)
            for k, kernels in enumerate(assembler.regions)
        ]
        if not all(rows):
            raise SearchError("a region of this program has no executable candidate")
        count = min(n, max(len(row) for row in rows))
        return [
            assembler.candidate([row[k % len(row)].extraction for row in rows])
            for k in range(count)
        ]


def _drawn(region: RegionSearch, rng: random.Random, n: int) -> list[Individual]:
    """At most `n` distinct individuals of a region."""
    found, idle = 0, 0
    for _ in sampling(region, rng):
        idle = idle + 1 if len(region.found) == found else 0
        found = len(region.found)
        if found >= n or idle >= _IDLE:
            break
    return list(region.found.values())[:n]
