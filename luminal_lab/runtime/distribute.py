"""Measure through an executor: batches go out, reports come back, and nothing is lost.

A batch whose worker died is not blamed: its jobs are measured again one by one, each with
nothing else in flight. A job that kills its worker then too is rejected as crashed. An executor
that is beyond use (a broken process pool, a cluster without workers) is replaced by this
machine, with a warning.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import SearchError
from luminal_lab.polling import poll
from luminal_lab.runtime.dask_cluster import DaskCluster, WorkerWarning, client_of, foreign
from luminal_lab.runtime.pool import WorkerLost
from luminal_lab.runtime.remote import Batch, Packer, Report, measure_batch, trial_bytes
from luminal_lab.search.target import Job, Measurement

if TYPE_CHECKING:
    from luminal_lab.runtime.cpu import CpuTarget

_BATCH = 16  # jobs of a batch at most
_HANDS = 2  # batches that jobs are dealt to at least
_MAKING = 0.3  # seconds after which what has been made goes out
_BATCH_BYTES = 64 << 20  # bytes of a batch at most, unless one job has more
_AHEAD = 2  # batches in flight per slot: a worker finds the next one waiting
_TRIES = 2  # times that a job may lose its worker
_TICK = 0.2  # seconds between looks at the deadline and at the workers
_PATIENCE = 20.0  # seconds without any worker after which this machine goes on alone
_LOST = ("KilledWorker", "CommClosedError", "FutureCancelledError", "SchedulerShutdown")


@dataclass
class _Item:
    index: int
    job: Job
    tries: int = 0


class _Workers:
    """Any other executor than dask's."""

    def __init__(self, executor: Executor):
        self.executor = executor

    def slots(self) -> int:
        for name in ("_max_workers", "workers"):
            if isinstance(count := getattr(self.executor, name, None), int):
                return max(1, count)
        return os.cpu_count() or 1

    def submit(self, batch: Batch) -> Future[Report]:
        return self.executor.submit(measure_batch, batch)

    def choose(self) -> None:
        """There is no choice: a foreign worker is an error."""


class Distributor:
    """Measures jobs through an executor, for one target.

    Arguments:
        target: Whose machine the results are for; it also finishes what the executor cannot.
        executor: Any `concurrent.futures.Executor` whose workers can import this package, or a
            dask `Client`.
    """

    def __init__(self, target: CpuTarget, executor: Executor | Any):
        self.target, self.wanted = target, target.fingerprint()
        client = client_of(executor)
        if client is not None:
            self.workers: Any = DaskCluster(client, target.threads, self.wanted)
        elif hasattr(executor, "submit"):
            self.workers = _Workers(executor)
        else:
            raise SearchError(
                f"{type(executor).__name__} is no executor",
                fix="pass a concurrent.futures.Executor or a dask Client",
            )
        self.flying: dict[Future[Report], list[_Item]] = {}
        self.dealt: deque[list[_Item]] = deque()  # on their way out
        self.suspects: deque[_Item] = deque()
        self.done: dict[int, Measurement] = {}
        self.packer = Packer()
        self.taken = 0

    def measure(
        self,
        jobs: Iterable[Job],
        *,
        progress: Callable[[int], None] | None = None,
        deadline: float | None = None,
    ) -> Iterator[Measurement]:
        """See `CpuTarget.measure`."""
        for count, result in enumerate(self._results(jobs, deadline), 1):
            if progress is not None:
                progress(count)
            yield result

    def _results(self, jobs: Iterable[Job], deadline: float | None) -> Iterator[Measurement]:
        stream, ended, given = iter(jobs), False, 0
        slots = max(1, self.workers.slots())
        # Each timing of a batch stops all others that compile, so batches are few and equal.
        hands = max(_HANDS, slots)
        share = max(1, min(_BATCH, -(-length_hint(jobs, _BATCH * hands) // hands)))
        alone_since = time.monotonic()
        try:
            while True:
                while not ended and not self.suspects and len(self.flying) < _AHEAD * slots:
                    items, ended = self._take(stream, share * hands, hands)
                    self.dealt.extend(items[k::hands] for k in range(min(hands, len(items))))
                    while self.dealt:
                        self._fly(self.dealt.popleft())
                if self.suspects and not self.flying:
                    self._fly([self.suspects.popleft()])
                while given in self.done:
                    yield self.done.pop(given)
                    given += 1
                if ended and not self.flying and not self.suspects:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    return
                poll()
                landed = wait_for(self.flying, _TICK, FIRST_COMPLETED).done
                for future in landed:
                    self._land(future)
                count = slots if landed else self.workers.slots()
                if count > 0:
                    alone_since, slots = time.monotonic(), count
                elif time.monotonic() - alone_since > _PATIENCE:
                    raise _Unusable("the cluster has no workers left")
        except _Unusable as error:
            warnings.warn(
                f"{error}: this machine measures the rest", WorkerWarning, stacklevel=3
            )
            yield from self._here(stream, given, deadline)
        finally:
            self._cancel()

    # --------------------------------------------------------------------------- going out

    def _take(self, stream: Iterator[Job], count: int, hands: int) -> tuple[list[_Item], bool]:
        """The next jobs, some for each hand, and whether they were the last ones.

        Neighbours, such as the schedules of one kernel, go to different hands: they take alike.
        """
        items: list[_Item] = []
        limit = time.monotonic() + _MAKING
        for job in stream:
            items.append(_Item(self.taken, job))
            self.taken += 1
            late = len(items) % hands == 0 and time.monotonic() > limit
            if late or len(items) == count:
                return items, False
        return items, True

    def _fly(self, items: list[_Item]) -> None:
        """Send some jobs, in several batches where they are large."""
        self.packer = Packer()
        while items:
            count, trials = 0, ()
            while count < len(items):
                more = (*trials, self.packer.trial(items[count].job))
                if trials and trial_bytes(more) > _BATCH_BYTES:
                    break
                count, trials = count + 1, more
            batch = Batch(trials, self.target.machine(), self.wanted, self.target.timeout)
            try:
                future = self.workers.submit(batch)
            except (BrokenExecutor, RuntimeError) as error:
                self.suspects.extend(items)
                raise _Unusable(f"the executor takes no more work ({error})") from error
            self.flying[future] = items[:count]
            items = items[count:]

    # ------------------------------------------------------------------------- coming back

    def _land(self, future: Future[Report]) -> None:
        items = self.flying.pop(future)
        try:
            report = future.result()
        except (Exception, CancelledError) as error:
            if not _is_loss(error):
                raise SearchError(
                    f"a worker could not measure: {type(error).__name__}: {error}",
                    fix="workers need the same versions of Python, torch and luminal-lab",
                ) from error
            self._lost(items)
            return
        if report.outcome == "foreign":
            self.workers.choose()
            if isinstance(self.workers, _Workers):
                raise foreign(self.wanted, [report.fingerprint])
            self._fly(items)
        elif report.outcome == "measured":
            for item, result in zip(items, report.results, strict=True):
                self.done[item.index] = result
        else:
            self._lost(items)

    def _lost(self, items: list[_Item]) -> None:
        for item in items:
            item.tries += 1
            if item.tries < _TRIES:
                self.suspects.append(item)
                continue
            message = "its worker died twice, the second time with nothing else to do"
            self.done[item.index] = Measurement(False, reason="crashed", message=message)

    def _here(
        self, stream: Iterator[Job], given: int, deadline: float | None
    ) -> Iterator[Measurement]:
        """Measure what is left on this machine, in order."""
        groups = [self.suspects, *self.dealt, *self.flying.values()]
        left = [item for items in groups for item in items]
        left.sort(key=lambda item: item.index)
        self._cancel()
        results = self.target.measure_here([i.job for i in left], deadline=deadline)
        for item, result in zip(left, results):
            self.done[item.index] = result
        while given in self.done:
            yield self.done.pop(given)
            given += 1
        if given == self.taken:
            yield from self.target.measure_here(stream, deadline=deadline)

    def _cancel(self) -> None:
        for future in self.flying:
            future.cancel()
        self.flying = {}


class _Unusable(Exception):
    """The executor is beyond use."""


def _is_loss(error: BaseException) -> bool:
    """Whether an error says that a worker is gone, and nothing about its jobs."""
    kinds = (BrokenExecutor, CancelledError, WorkerLost, ConnectionError, EOFError)
    return isinstance(error, kinds) or type(error).__name__ in _LOST
