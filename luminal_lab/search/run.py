"""The search: explore each region, measure what is promising, choose, and tell why."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from luminal_lab.collector import without_collector
from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import ScheduleError, SearchError
from luminal_lab.hlir.custom import own_operators
from luminal_lab.polling import polling
from luminal_lab.search import finalists as final
from luminal_lab.search import replay as replaying
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.budget import Budget
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.clock import Clock, OutOfTime
from luminal_lab.search.database import Database
from luminal_lab.search.extract import Extraction
from luminal_lab.search.machine import Machine
from luminal_lab.search.measuring import Measurer
from luminal_lab.search.progress import Listener, Progress, SearchEvent
from luminal_lab.search.race import Explored, Race, preferred
from luminal_lab.search.region import Individual, RegionSearch
from luminal_lab.search.result import KernelRecord, Result, Row
from luminal_lab.search.strategies import Strategy, descent, exhaustive, sampling, strategy_of

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph
    from luminal_lab.search.target import Target

SMALL = 64  # regions with so few moves are first explored exhaustively
_IDLE = 400  # random genomes in a row that bring nothing new end a sampling
FEW = 200  # evaluations of a region at least
_REPORT = 16  # evaluations between two progress events


def search(
    egraph: EGraph,
    budget: Budget | None = None,
    seed: int = 0,
    target: Target | None = None,
    progress: bool | Listener = False,
    *,
    strategy: str | Strategy = "genetic",
    database: Database | None = None,
    replay: str | Path | Result | None = None,
    cancel: threading.Event | None = None,
) -> Result:
    """Find the fastest candidate that computes the right thing.

    Arguments:
        egraph: What was saturated.
        budget: How much to do; `Budget()` when None.
        seed: With the same seed and budget the same candidates are listed, in any process.
        target: Where to measure; only effort `"none"` works without one.
        progress: True for progress bars, or a function of each `SearchEvent`.
        strategy: What follows the descent from the seeds, a name of `STRATEGIES`; or a
            `Strategy` of your own, which explores alone.
        database: What is known about kernels; the user's own when None.
        replay: A saved result (or its file): its candidates are rebuilt here, nothing is
            explored or measured, and the table is the saved one.
        cancel: Set it, from any thread, to end the search and keep what was found.

    Returns:
        What was found. Ctrl-C ends the search and keeps what was found before it.

    Raises:
        SearchError: when no candidate is left, measuring is asked for without a target, or a
            replay differs (saying in what).
        CacheError: when the database cannot be used.
    """
    run = Search(
        egraph, budget, seed, target, progress, strategy=strategy, database=database,
        cancel=cancel,
    )  # fmt: skip
    return run.run() if replay is None else run.replay(replay)


class Search:
    """A search that can be watched: run it in one thread, read and end it from another.

    Arguments:
        egraph: As for `search`, like all the others.
        budget: …
        seed: …
        target: …
        progress: …
        strategy: …
        database: …
        cancel: …

    Raises:
        SearchError: for an unknown strategy, or effort that measures without a target.
    """

    def __init__(
        self,
        egraph: EGraph,
        budget: Budget | None = None,
        seed: int = 0,
        target: Target | None = None,
        progress: bool | Listener = False,
        *,
        strategy: str | Strategy = "genetic",
        database: Database | None = None,
        cancel: threading.Event | None = None,
    ):
        self.budget = budget or Budget()
        if target is None and self.budget.level.measured:
            raise SearchError(
                f"effort {self.budget.effort!r} measures, and there is no target to measure on",
                fix="pass a target, or Budget('none')",
            )
        self.strategy = strategy_of(strategy)
        # Others go on from an enumeration of what is small and the descents from the seeds.
        self.alone = not isinstance(strategy, str) or strategy == "exhaustive"
        self.egraph, self.seed, self.target = egraph, seed, target
        self.progress, self.database = Progress(progress, self.result), database
        self.machine = target.machine() if target else Machine()
        with without_collector():
            self.assembler = Assembler(egraph, self.machine)
            self.regions = [
                Explored(RegionSearch(k, self.budget.memory)) for k in self.assembler.regions
            ]
        self.clock = Clock(self.budget.seconds, cancel)
        self.interrupted = self.out_of_time = False
        self.measurer: Measurer | None = None
        self.entries: list[final.Entry] = []
        self.instances: dict[str, str] = {}  # false rule -> its smallest failing instance

    def cancel(self) -> None:
        """End the search soon, from any thread; `run` returns what was found."""
        self.clock.cancel.set()

    def run(self) -> Result:
        """Explore, measure, choose."""
        try:
            self._guarded(self._explore)
            for r in self.regions:
                if not r.listed:
                    self._list(r)
            if self.budget.level.measured and not self._ended:
                database = Database() if self.database is None else self.database
                try:
                    self._guarded(lambda: self._measure(database))
                finally:
                    if self.database is None:
                        database.close()
            return self.result()
        finally:
            self.progress.close()

    def replay(self, saved: str | Path | Result) -> Result:
        """Rebuild the candidates of a saved result; see `search`."""
        result, made = replaying.replay(saved, self.egraph, self.assembler)

        def program(k: int) -> Candidate:
            rows = [row[min(k, len(row) - 1)] for row in made]
            return replaying.scheduled(
                self.assembler.candidate(rows), self.assembler, result.records
            )

        return result.with_programs(program, self.egraph)

    @property
    def _ended(self) -> bool:
        return self.interrupted or self.out_of_time

    def _guarded(self, phase) -> None:
        """Run a phase that may be ended by Ctrl-C, a word from another thread, or the clock."""
        try:
            with polling(self.clock.check):
                phase()
        except KeyboardInterrupt:
            if any(r.search.best is None for r in self.regions):
                raise  # there is nothing to keep
            self.interrupted = True
        except OutOfTime:
            pass
        if self.clock.over:
            if self.clock.cancel.is_set():
                self.interrupted = True
            else:
                self.out_of_time = True

    # -------------------------------------------------------------------------- exploring

    def _explore(self) -> None:
        total = self.budget.level.evaluations * len(self.regions)
        done = 0
        with without_collector():
            for k, r in enumerate(self.regions):
                rng = random.Random(f"{self.seed}/{k}")
                for _ in self._steps(r.search, rng):
                    done += 1
                    if done % _REPORT == 0:
                        best = r.search.best
                        at = best.seconds if best else None
                        self.progress(SearchEvent("explore", done, total, at, f"region {k}"))
                    if r.search.best is not None and self.clock.over:
                        break
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
        share = level.work // len(self.regions) // max(region.space.part.size, 1)
        limit = region.considered + max(min(level.evaluations, share), FEW)
        if self.clock.over:  # something has to run all the same
            region.seeds()
            yield
            return
        if not self.alone and region.n_moves <= SMALL:
            for _ in exhaustive(region, rng):
                yield
                if region.considered >= limit // 2:
                    break
            else:
                return  # there is no other candidate
        if not self.alone:
            for _ in descent(region, rng):
                yield
                if region.considered >= limit:
                    return
            limit = min(limit, region.considered + level.wider)
        for _ in self.strategy(region, rng):
            yield
            if region.considered >= limit:
                return

    def _list(self, r: Explored) -> None:
        """Keep the best, the best with an online form, and the best that calls a kernel."""
        ranked = r.search.ranked()
        kept = ranked[: self.budget.level.kept]
        forms = (r.search.has_online, r.search.calls_library)
        found = [next((i for i in ranked if has(i)), None) for has in forms]
        wanted = list(dict.fromkeys(i for i in found if i is not None))
        others = [i for i in kept if i not in wanted][: max(len(kept) - len(wanted), 0)]
        kept = [i for i in ranked if i in others or i in wanted]
        r.listed = kept
        for _ in range(len(ranked) - len(kept)):
            r.search.reject("pruned")

    # -------------------------------------------------------------------------- measuring

    def _measure(self, database: Database) -> None:
        assert self.target is not None
        self.measurer = Measurer(self.egraph, self.assembler, self.target, database)
        race = Race(self.regions, self.measurer, self.budget.level, self.clock, self.progress)
        try:
            race.run()
        finally:
            race.judge()
        self._name_instances()
        self._finish(race, database)

    def _name_instances(self) -> None:
        """The smallest failing instance of each rule that is to blame."""
        assert self.measurer is not None
        for k, r in enumerate(self.regions):
            for rule in sorted({rule for _, rule in r.lost.values() if rule}):
                if rule not in self.instances:
                    self.instances[rule] = self.measurer.verifier(k).instance(rule)

    # -------------------------------------------------------------------------- finalists

    def _finish(self, race: Race, database: Database) -> None:
        """Verify and time the best whole programs in a fresh process."""
        target, level = self.target, self.budget.level
        assert target is not None
        assert self.measurer is not None
        # A fresh process may not know operators of the user's own: their programs are judged by
        # their kernels.
        own = own_operators(self.egraph.hlir)
        if not level.finalists or own or not hasattr(target, "programs"):
            return
        leaders: list[list[tuple[float, Individual]]] = []
        for k, count in enumerate(self.assembler.instances_of):
            found = race.leaders(k, final.CLOSE, level.finalists)
            first = self._choose(k)
            row = [first, *(i for i in found if i.genes != first.genes)]
            timed = [(self._measured(k, i), i) for i in row]
            leaders.append([(t[0] * count, i) for t, i in timed if t is not None])
        if not all(leaders) or final.too_large(self.egraph):
            return
        entries: dict[str, final.Entry] = {}
        for seconds, chosen in final.combinations(leaders, level.finalists):
            made = self._candidate(chosen)
            entries.setdefault(made.name, final.Entry(chosen, made, seconds))
        self.entries = list(entries.values())
        memo = final.Memo(database, target, self.measurer)
        if not memo.recall(self.entries):
            self.progress(SearchEvent("finalists", 0, len(self.entries)))
            expected = final.expected_outputs(self.egraph, self.assembler, self.entries)
            results = target.programs(
                [e.candidate for e in self.entries], expected, deadline=self.clock.deadline
            )
            for e, measurement in zip(self.entries, results):
                e.measurement = measurement
            self.measurer.timings += sum(m is not None for m in results)
            memo.remember(self.entries)
            self.progress(SearchEvent("finalists", len(self.entries), len(self.entries)))
        self._reject_finalists()

    def _reject_finalists(self) -> None:
        """A wrong program loses its place: its individuals are rejected where they differ."""
        right = [e for e in self.entries if e.measurement is not None and e.measurement.ok]
        good = {(k, i.genes) for e in right for k, i in enumerate(e.chosen)}
        for e in self.entries:
            if e.measurement is None or e.measurement.ok:
                continue
            e.rule = self._blamed(e)
            for k, one in enumerate(e.chosen):
                if (k, one.genes) not in good:
                    self.regions[k].lost[one.genes] = (e.measurement.reason, e.rule)
        self._name_instances()

    def _blamed(self, entry: final.Entry) -> str:
        """The rule that made a whole program wrong, `""` when its rules are all right."""
        assert self.measurer is not None
        if entry.measurement is None or entry.measurement.reason not in ("wrong", "nan"):
            return ""
        for k, one in enumerate(entry.chosen):
            for step in self.assembler.regions[k].steps(one.extraction):
                rule = self.measurer.verifier(k).blame(step)
                if rule:
                    return rule
        return ""

    # --------------------------------------------------------------------------- choosing

    def _choose(self, region: int) -> Individual:
        """The fastest individual that is not rejected: by measured time where known."""
        r = self.regions[region]
        left = r.left if r.listed else r.search.ranked()
        timed = [(t, i) for i in left if (t := self._measured(region, i)) is not None]
        if timed:
            return preferred(
                [
                    (t, spread, (len(i.extraction.bodies), i.seconds, i.genes), i)
                    for (t, spread), i in timed
                ]
            )
        said: dict[str, None] = {}
        for one in left:
            if (why := self._unschedulable(region, one)) is None:
                return one
            said[why] = None
            r.lost[one.genes] = ("no schedule", "")
        count: dict[str, int] = {}
        for why, rule in r.lost.values():
            name = f"{why} (rule {rule})" if rule else why
            count[name] = count.get(name, 0) + 1
        told = ", ".join(f"{n} {why}" for why, n in sorted(count.items()))
        rules = sorted({rule for _, rule in r.lost.values() if rule})
        shown = [f"{n}: {self.instances[n]}" for n in rules if self.instances.get(n)]
        raise SearchError(
            "\n".join([f"no candidate of region {region} is left: {told}", *said, *shown])
        )

    def _unschedulable(self, region: int, one: Individual) -> str | None:
        """What code generation says against one of the kernels, if it has no schedule."""
        if self.target is None:
            return None
        for step in self.assembler.regions[region].steps(one.extraction):
            try:
                if isinstance(step.kernel, Kernel):
                    self.target.schedules(step.kernel)
            except ScheduleError as error:
                return str(error)
        return None

    def _measured(self, region: int, one: Individual) -> tuple[float, float] | None:
        if self.measurer is None:
            return None
        return self.measurer.seconds(region, one)

    def _chosen(self) -> list[Individual]:
        """The individual of each region that the best candidate is made of."""
        best = final.winner(self.entries)
        if best is not None:
            return best.chosen
        return [self._choose(k) for k in range(len(self.regions))]

    # ------------------------------------------------------------------------------ result

    def result(self) -> Result:
        """What was found so far; while the search runs, from any thread.

        Raises:
            SearchError: when nothing was found yet, or nothing is left.
        """
        if any(r.search.best is None for r in self.regions):
            raise SearchError("the search has not found a candidate yet", fix="ask again later")
        with without_collector():
            return self._result()

    def _result(self) -> Result:
        chosen = self._chosen()
        best = self._candidate(chosen)
        rows = [
            self._row(k, rank, one, chosen)
            for k, r in enumerate(self.regions)
            for rank, one in enumerate(list(r.listed))
        ]
        rejected: dict[str, int] = {}
        for r in self.regions:
            for why, n in list(r.search.rejected.items()):
                rejected[why] = rejected.get(why, 0) + n
            for why, rule in list(r.lost.values()):
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
            out_of_time=self.out_of_time,
            complete=all(r.search.complete for r in self.regions),
            finalists=tuple(self._finalist(e) for e in self.entries),
            instances=dict(self.instances),
            timings=self.measurer.timings if self.measurer else 0,
            origin=replaying.Origin.of(self.egraph),
            seconds=self.clock.seconds,
            _make=self._program,
            _egraph=self.egraph,
        )

    def _candidate(self, chosen: Sequence[Individual]) -> Candidate:
        return self._scheduled([i.extraction for i in chosen])

    def _scheduled(self, extractions: Sequence[Extraction]) -> Candidate:
        made = self.assembler.candidate(extractions)
        if self.measurer is None:
            return made
        return replaying.scheduled(made, self.assembler, self.measurer.records)

    def _program(self, k: int) -> Candidate:
        return self._candidate([r.listed[min(k, len(r.listed) - 1)] for r in self.regions])

    def _finalist(self, e: final.Entry) -> final.Finalist:
        return final.Finalist(
            e.candidate.name,
            tuple(genome_digest(i.genes) for i in e.chosen),
            e.calls,
            e.candidate.seconds,
            e.measurement,
            e.rule,
        )

    def _row(self, region: int, rank: int, one: Individual, chosen: list[Individual]) -> Row:
        measured = self._measured(region, one)
        reason, rule = self.regions[region].lost.get(one.genes, ("", ""))
        status = "rejected" if reason else "verified" if measured is not None else "listed"
        whole = [e.measurement for e in self.entries if e.chosen[region].genes == one.genes]
        times = [m.median for m in whole if m is not None and m.median is not None]
        steps = self.assembler.regions[region].steps(one.extraction)
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
            program=min(times, default=None),
            chosen=one.genes == chosen[region].genes,
            genes=one.genes,
            texts=replaying.texts_digest([s.text for s in steps]),
        )


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
