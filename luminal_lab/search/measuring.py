"""Measuring: each distinct kernel is verified once and timed once, and remembered."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import CacheError, ScheduleError
from luminal_lab.search.assemble import Assembler, Step
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.database import Database, DatabaseWarning
from luminal_lab.search.progress import Progress, SearchEvent
from luminal_lab.search.region import Individual
from luminal_lab.search.result import KernelRecord
from luminal_lab.search.target import Job, Measurement, Target
from luminal_lab.search.verify import RegionVerifier

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph

_BATCH = 8  # jobs whose inputs are in memory at once
_LARGEST = 2 << 30  # bytes of a kernel's buffers that are still measured
_DOUBT = 1.5  # a kernel that takes so many times its prediction is measured again
_AGAIN = 2  # times at most
_HOT = 0.03  # part of a region's time above which more schedules of a kernel are tried


@dataclass
class _Known:
    """A kernel that is to be measured.

    Arguments:
        step: One place where it occurs.
        region: The region of that place.
        share: The largest part of a candidate's predicted time that it takes.
        tried: What was measured, by schedule: `(schedule, measurement)`, the default first.
        rule: The rule that is to blame when it is wrong.
        new: Whether it was measured now, and not remembered.
    """

    step: Step
    region: int
    share: float
    tried: list[tuple[Any, Measurement]] = field(default_factory=list)
    rule: str = ""
    new: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether its time may be another program's doing."""
        seconds = self.best[1].median if self.best else None
        return self.new and seconds is not None and seconds > _DOUBT * self.step.seconds

    @property
    def best(self) -> tuple[Any, Measurement] | None:
        """The fastest schedule that was right."""
        good = [t for t in self.tried if t[1].ok]
        return min(good, key=lambda t: t[1].median or 0.0, default=None)


class Measurer:
    """Measures the kernels of individuals on a target, through the database.

    Arguments:
        egraph: For what kernels must compute.
        assembler: Makes kernels.
        target: Where to measure.
        database: What is known already.
        schedules: How many schedules of an important kernel are tried.
    """

    def __init__(
        self,
        egraph: EGraph,
        assembler: Assembler,
        target: Target,
        database: Database,
        schedules: int,
    ):
        self.egraph, self.assembler, self.target = egraph, assembler, target
        self.database, self.schedules = database, schedules
        self.fingerprint = target.fingerprint()
        self.known: dict[str, _Known] = {}
        self._verifiers: dict[int, RegionVerifier] = {}
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
        more: list[tuple[_Known, Any]] = []
        for k in fresh:
            hot = k.share >= _HOT or k.best is None
            if hot and not isinstance(k.step.kernel, LibraryKernel) and self.schedules > 1:
                more += [(k, s) for s in self._others(k)]
        self._measure(more, deadline, progress)
        for _ in range(_AGAIN):
            again = [(k, k.best[0]) for k in fresh if k.doubtful and k.share >= _HOT and k.best]
            self._measure(again, deadline, progress, again=True)
        for k in fresh:
            if k.best is None and any(m.reason in ("wrong", "nan") for _, m in k.tried):
                k.rule = self._verifier(k.region).blame(k.step)
        return all(k.tried for k in fresh)

    def _others(self, k: _Known) -> list[Any]:
        try:
            return self.target.schedules(k.step.kernel)[1 : self.schedules]  # type: ignore[arg-type]
        except ScheduleError:
            return []

    def _measure(
        self,
        plan: list[tuple[_Known, Any]],
        deadline: float | None,
        progress: Progress,
        again: bool = False,
    ) -> None:
        todo: list[tuple[_Known, Any]] = []
        for k, schedule in plan:
            found = None if again else _too_large(k.step) or self._remembered(k, schedule)
            if found is not None:
                k.tried.append((schedule, found))
            else:
                todo.append((k, schedule))
        done = len(plan) - len(todo)
        for start in range(0, len(todo), _BATCH):
            if deadline is not None and time.monotonic() > deadline:
                return
            batch = todo[start : start + _BATCH]
            jobs = [self._job(k, s) for k, s in batch]
            for (k, schedule), measurement in zip(batch, self.target.measure(jobs)):
                known = k.best
                k.tried.append((schedule, measurement))
                k.new = True
                if not again or k.best is not known:  # a slower repetition says nothing
                    self._remember(k, schedule, measurement)
                done += 1
                progress(SearchEvent("measure", done, len(plan), message=measurement.reason))

    def _job(self, k: _Known, schedule: Any) -> Job:
        inputs, expected = self._verifier(k.region).job(k.step)
        return Job(k.step.kernel, schedule, inputs, expected)

    def _verifier(self, region: int) -> RegionVerifier:
        if region not in self._verifiers:
            self._verifiers[region] = RegionVerifier(
                self.egraph, self.assembler.regions[region], region
            )
        return self._verifiers[region]

    def _remembered(self, k: _Known, schedule: Any) -> Measurement | None:
        if self._forgetful:
            return None
        return self.database.get(k.step.text, schedule, self.target.name, self.fingerprint)

    def _remember(self, k: _Known, schedule: Any, measurement: Measurement) -> None:
        if self._forgetful or measurement.reason in ("timed out", "crashed"):
            return  # may be the machine's fault: it is tried again next time
        try:
            self.database.put(
                k.step.text, schedule, self.target.name, self.fingerprint, measurement
            )
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


def _too_large(step: Step) -> Measurement | None:
    nbytes = sum(b.nbytes for b in step.kernel.buffers.values())
    if nbytes <= _LARGEST:
        return None
    message = f"its buffers take {nbytes / 1e9:.1f} GB"
    return Measurement(False, reason="over memory", message=message)
