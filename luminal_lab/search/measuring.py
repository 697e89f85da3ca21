"""Measuring: each distinct kernel is verified once and timed once, and remembered."""

from __future__ import annotations

import hashlib
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import CacheError, ScheduleError
from luminal_lab.hlir.custom import registered_in
from luminal_lab.hlir.sizes import Symbol, hint
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.search.assemble import Assembler, Step
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.clock import OutOfTime
from luminal_lab.search.database import Database, DatabaseWarning
from luminal_lab.search.progress import Progress, SearchEvent
from luminal_lab.search.race import calibration
from luminal_lab.search.region import Individual
from luminal_lab.search.result import KernelRecord
from luminal_lab.search.target import Job, Measurement, Target
from luminal_lab.search.verify import RegionVerifier, built_in

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph
    from luminal_lab.search.budget import Effort

_RECENT = 4  # kernels whose inputs and expected values are kept
_LARGEST = 2 << 30  # bytes of a kernel's buffers that are still measured
_DOUBT = 1.5  # a kernel that takes so many times its prediction is measured again
_AGAIN = 2  # times at most
_OUTSIDE = ("timed out", "crashed")  # may come from outside; believed when it happens again
_HOT = 0.01  # a kernel with less of a candidate's time cannot change who wins
_INSTEAD = 3  # schedules that are tried when the default one does not work


@dataclass
class _Known:
    """A kernel that is to be measured.

    Arguments:
        step: One place where it occurs.
        region: The region of that place.
        share: The largest part of a candidate's predicted time that it takes.
        tried: What was measured: `(schedule, measurement)` once for each, the default first.
        rule: The rule that is to blame when it is wrong.
        others: Its schedules but the default one, None when nobody asked yet.
    """

    step: Step
    region: int
    share: float
    tried: list[tuple[Any, Measurement]] = field(default_factory=list)
    rule: str = ""
    others: list[Any] | None = None

    @property
    def best(self) -> tuple[Any, Measurement] | None:
        """The fastest schedule that was right; the default one of equals."""
        good = [t for t in self.tried if t[1].ok]
        return min(good, key=lambda t: (t[1].median or 0.0, t[0] is not None), default=None)

    def doubtful(self, schedule: Any) -> bool:
        """Whether what was measured with a schedule may be another program's doing."""
        found = next(m for s, m in self.tried if s == schedule)
        if found.reason in _OUTSIDE:
            return True
        if self.best is None or self.best[1] is not found or self.share < _HOT:
            return False  # it cannot change who wins
        return (found.median or 0.0) > _DOUBT * self.step.seconds

    def repeated(self, schedule: Any, measurement: Measurement) -> bool:
        """Take a repetition in place of what was measured before, unless that was better."""
        k, before = next((k, m) for k, (s, m) in enumerate(self.tried) if s == schedule)
        slower = (measurement.median or 0.0) >= (before.median or 0.0)
        if before.ok and (not measurement.ok or slower):
            return False  # what disturbs only adds time
        self.tried[k] = schedule, measurement
        return True


class Measurer:
    """Measures the kernels of individuals on a target, through the database.

    Arguments:
        egraph: For what kernels must compute.
        assembler: Makes kernels.
        target: Where to measure.
        database: What is known already.

    Attributes:
        timings: How many measurements were made, and not remembered.
    """

    def __init__(
        self,
        egraph: EGraph,
        assembler: Assembler,
        target: Target,
        database: Database,
    ):
        self.egraph, self.assembler, self.target = egraph, assembler, target
        self.database = database
        self.timings = 0
        self.fingerprint = target.fingerprint() + _own_rules(egraph)
        self.known: dict[str, _Known] = {}
        self.trials = trial_sizes(symbols_of(egraph.hlir).values())
        self._verifiers: dict[tuple[int, int], RegionVerifier] = {}
        self._recent: dict[tuple[str, int], tuple[Any, Any, Any]] = {}  # the last few kernels
        self._forgetful = False

    @property
    def records(self) -> dict[str, KernelRecord]:
        """What is known about each kernel that was asked for."""
        out = {}
        for text, k in self.known.items():
            best = k.best or (k.tried[0] if k.tried else None)
            if best is not None:
                out[text] = KernelRecord(
                    text, best[0] if best[1].ok else None, best[1], len(k.tried)
                )
        return out

    def add(self, region: int, individuals: Iterable[Individual]) -> None:
        """Ask for the kernels of some individuals of a region."""
        kernels = self.assembler.regions[region]
        for one in individuals:
            steps = kernels.steps(one.extraction)
            total = sum(s.seconds for s in steps) or 1.0
            for step in steps:
                share = 0.0 if step.constant else step.seconds / total
                known = self.known.setdefault(step.text, _Known(step, region, share))
                known.share = max(known.share, share)

    def run(self, deadline: float | None, progress: Progress) -> bool:
        """Measure what was asked for and is not measured yet, the default schedules first.

        Arguments:
            deadline: When to stop (`time.monotonic`), None for never.
            progress: Told after each measurement.

        Returns:
            Whether it was all measured before the deadline.
        """
        fresh = [k for k in self.known.values() if not k.tried]
        self._measure([(k, None) for k in fresh], deadline, progress)
        broken = [k for k in fresh if k.tried and k.best is None]
        others = [(k, s) for k in broken for s in self._others(k)[:_INSTEAD]]
        self._measure(others, deadline, progress)
        self._blame(fresh)
        return all(k.tried for k in fresh)

    def tune(
        self,
        texts: Sequence[str],
        level: Effort,
        step: int,
        deadline: float | None,
        progress: Progress,
    ) -> bool:
        """Try some more schedules of some kernels.

        Arguments:
            texts: Which kernels.
            level: How many schedules a kernel is worth, and how many measurements a search.
            step: How many are tried of each kernel now.
            deadline: When to stop.
            progress: Told after each measurement.

        Returns:
            Whether there were any left to try.
        """
        plan: list[tuple[_Known, Any]] = []
        done = sum(len(k.tried) for k in self.known.values())
        for text in texts:
            k = self.known[text]
            room = max(level.schedules - len(k.tried), level.timings - done - len(plan))
            tried = {repr(s) for s, _ in k.tried}
            left = [s for s in self._others(k) if repr(s) not in tried]
            plan += [(k, s) for s in left[: min(step, max(0, room))]]
        if not plan:
            return False
        self._measure(plan, deadline, progress)
        self._blame([k for k, _ in plan])
        return True

    def _blame(self, some: Sequence[_Known]) -> None:
        """Find the rules that made kernels wrong."""
        for k in some:
            if k.best is None and any(m.reason in ("wrong", "nan") for _, m in k.tried):
                k.rule = k.rule or self.verifier(k.region).blame(k.step)

    def worth_tuning(self, region: int, one: Individual) -> list[str]:
        """The kernels of an individual whose schedule can change who wins."""
        known = [(s, k) for s, k in self._steps(region, one) if k is not None and k.best]
        times = {s.text: (k.best[1].median or 0.0) for s, k in known if not s.constant}  # type: ignore[index]
        total = sum(times.values())
        found = [t for t in times if times[t] >= _HOT * total]
        found = [t for t in found if not isinstance(self.known[t].step.kernel, LibraryKernel)]
        return sorted(found, key=lambda t: (-times[t], t))

    def _others(self, k: _Known) -> list[Any]:
        try:
            if k.others is None:
                kernel = k.step.kernel
                library = isinstance(kernel, LibraryKernel)
                k.others = [] if library else self.target.schedules(kernel)[1:]
        except ScheduleError:
            k.others = []
        return k.others

    def _measure(
        self, plan: list[tuple[_Known, Any]], deadline: float | None, progress: Progress
    ) -> None:
        """Measure what is not remembered; what may be disturbed is repeated here and now.

        A measurement is final when this returns: a later search, which finds it in the
        database, then decides as this one and asks for nothing else.
        """
        todo: list[tuple[_Known, Any]] = []
        for k, schedule in plan:
            found = _too_large(k.step) or self._remembered(k, schedule)
            if found is not None:
                k.tried.append((schedule, found))
            else:
                todo.append((k, schedule))
        done = len(plan) - len(todo)
        new: list[tuple[_Known, Any]] = []
        for k, schedule, measurement in self._results(todo, deadline):
            k.tried.append((schedule, measurement))
            new.append((k, schedule))
            if measurement.reason not in _OUTSIDE:
                self.keep(k.step.text, schedule, measurement)
            done += 1
            progress(SearchEvent("measure", done, len(plan), message=measurement.reason))
        for _ in range(_AGAIN):
            again = [(k, schedule) for k, schedule in new if k.doubtful(schedule)]
            new = []
            for k, schedule, measurement in self._results(again, deadline):
                if k.repeated(schedule, measurement):
                    self.keep(k.step.text, schedule, measurement)
                if measurement.ok:
                    new.append((k, schedule))
                progress(SearchEvent("measure", done, len(plan), message=measurement.reason))

    def _results(
        self, todo: list[tuple[_Known, Any]], deadline: float | None
    ) -> Iterator[tuple[_Known, Any, Measurement]]:
        """Measure kernels on the target, as many as there is time for."""
        if not todo or (deadline is not None and time.monotonic() > deadline):
            return
        trials = [self._trials(k) for k, _ in todo]
        jobs = _Jobs(sum(map(len, trials)), self._made(todo))
        results = iter(self.target.measure(jobs, deadline=deadline))
        for (k, schedule), sizes in zip(todo, trials):
            each = list(itertools.islice(results, len(sizes)))
            if len(each) < len(sizes):
                break
            self.timings += 1
            yield k, schedule, _together(each, sizes)
        next(results, None)  # a generator that ends by itself keeps what it works with
        self._recent.clear()

    def _trials(self, k: _Known) -> Sequence[Mapping[str, int]]:
        """The sizes at which a kernel is verified; it is timed at the first ones."""
        return self.trials if k.step.kernel.symbols else ({},)

    def _made(self, todo: Sequence[tuple[_Known, Any]]) -> Iterator[Job]:
        """The jobs for which there is time to compute what they must give."""
        for k, schedule in todo:
            try:
                for trial in range(len(self._trials(k))):
                    yield self._job(k, schedule, trial)
            except OutOfTime:
                return

    def _job(self, k: _Known, schedule: Any, trial: int = 0) -> Job:
        key = (k.step.text, trial)
        if key not in self._recent:  # its schedules follow each other
            verifier = self.verifier(k.region, trial)
            self._recent[key] = (*verifier.job(k.step), verifier.recipes(k.step))
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
        inputs, expected, recipes = self._recent[key]
        sizes = self._trials(k)[trial]
        return Job(k.step.kernel, schedule, inputs, expected, trial == 0, recipes, sizes)

    def verifier(self, region: int, trial: int = 0) -> RegionVerifier:
        """What the kernels of a region must compute, at one of the sizes that are tried."""
        if (region, trial) not in self._verifiers:
            self._verifiers[region, trial] = RegionVerifier(
                self.egraph,
                self.assembler.regions[region],
                region,
                symbols=self.trials[trial] or None,
            )
        return self._verifiers[region, trial]

    def _remembered(self, k: _Known, schedule: Any) -> Measurement | None:
        if self._forgetful:
            return None
        return self.database.get(k.step.text, schedule, self.target.name, self.fingerprint)

    def keep(self, text: str, schedule: Any, measurement: Measurement) -> None:
        """Put a measurement into the database."""
        if self._forgetful:
            return
        try:
            self.database.put(text, schedule, self.target.name, self.fingerprint, measurement)
        except CacheError as error:  # a disk that fills up must not cost what was measured
            self._forgetful = True
            warnings.warn(f"measurements are no longer kept: {error}", DatabaseWarning, 2)

    # --------------------------------------------------------------------------- verdicts

    def _steps(self, region: int, one: Individual) -> list[tuple[Step, _Known | None]]:
        steps = self.assembler.regions[region].steps(one.extraction)
        return [(s, self.known.get(s.text)) for s in steps]

    def verdict(self, region: int, one: Individual) -> tuple[str, str] | None:
        """Why an individual is rejected and by which rule, None when nothing speaks against."""
        for _, k in self._steps(region, one):
            if k is not None and k.tried and k.best is None:
                return k.tried[0][1].reason or "compile failed", k.rule
        return None

    def seconds(self, region: int, one: Individual) -> tuple[float, float] | None:
        """Measured seconds of one call and their spread, None unless all kernels are known."""
        total = spread = 0.0
        for step, k in self._steps(region, one):
            if k is None or k.best is None:
                return None
            if not step.constant:
                total += k.best[1].median or 0.0
                spread += k.best[1].iqr
        return total, spread

    def estimate(self, region: int, one: Individual, ratio: float) -> float:
        """Seconds of one call: measured where known, else predicted times `ratio`."""
        total = 0.0
        for step, k in self._steps(region, one):
            if not step.constant:
                known = k.best[1].median if k is not None and k.best else None
                total += step.seconds * ratio if known is None else known
        return total

    def ratio(self, region: int) -> float:
        """What the predictions of a region's kernels are to be multiplied by."""
        known = [k for k in self.known.values() if k.region == region]
        return calibration([(k.best[1].median or 0.0, k.step.seconds) for k in known if k.best])


class _Jobs:
    """Jobs that are made when they are taken; their number is known before."""

    def __init__(self, count: int, jobs: Iterator[Job]):
        self.count, self.jobs = count, jobs

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Job]:
        return self.jobs


def _own_rules(egraph: EGraph) -> str:
    """What tells verdicts under rules of a user's own from those under the built-in ones.

    A kernel is compared with what its e-class means. A false rule can make one class out of
    two, so what was found there counts for this program under these rules, and nothing else.
    The same holds for an operator of the user's own, and its present implementation.
    """
    own = [r.text for r in egraph.rules if not built_in(r)]
    own += [op.digest for op in registered_in(egraph.hlir)]
    if not own:
        return ""
    text = "\n".join([*own, egraph.hlir.text(sources=False)])
    return f" rules {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def trial_sizes(symbols: Iterable[Symbol]) -> tuple[dict[str, int], ...]:
    """Sizes at which kernels are verified: first the hints, then the least and odd ones."""
    symbols = sorted(symbols)
    odd = {s.name: min(s.high, max(s.low, s.hint * 2 // 3 | 1)) for s in symbols}
    trials = [{s.name: s.hint for s in symbols}, {s.name: s.low for s in symbols}, odd]
    return tuple(t for k, t in enumerate(trials) if t not in trials[:k])


def _together(
    measured: Sequence[Measurement], sizes: Sequence[Mapping[str, int]]
) -> Measurement:
    """The measurement at the hints, unless the kernel is wrong at other sizes."""
    for one, at in zip(measured, sizes):
        if not one.ok:
            where = ", ".join(f"{name}={n}" for name, n in at.items())
            return replace(one, message=f"at {where}: {one.message}") if where else one
    return measured[0]


def _too_large(step: Step) -> Measurement | None:
    nbytes = sum(hint(b.nbytes) for b in step.kernel.buffers.values())
    if nbytes <= _LARGEST:
        return None
    message = f"its buffers take {nbytes / 1e9:.1f} GB"
    return Measurement(False, reason="over memory", message=message)
