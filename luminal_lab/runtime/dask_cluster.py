"""dask.distributed as the place where a search measures: which workers fit, and who has died.

Importing this module does not import dask.
"""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import Executor, Future
from typing import Any

from luminal_lab.errors import SearchError
from luminal_lab.runtime.cpu import fingerprint
from luminal_lab.runtime.remote import Batch, Report, measure_batch


class WorkerWarning(UserWarning):
    """Some workers cannot take part in a search."""


def client_of(executor: Any) -> Any:
    """The dask `Client` that an executor belongs to (or is), None for another executor."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    if isinstance(executor, distributed.Client):
        return executor
    return getattr(executor, "_client", None)


class DaskCluster:
    """The workers of a cluster.

    Arguments:
        client: A connected `distributed.Client`.
        threads: Threads that kernels run on.
        wanted: The fingerprint that a worker's machine must have.
    """

    def __init__(self, client: Any, threads: int, wanted: str):
        self.client, self.threads, self.wanted = client, threads, wanted
        self._known: frozenset[str] | None = None  # all workers when some were left out
        self._executor: Executor = client.get_executor(pure=False)

    def slots(self) -> int:
        """Batches that run at the same time; 0 when no worker is there."""
        return sum(self._threads().values())

    def _threads(self) -> dict[str, int]:
        return dict(self.client.nthreads())

    def submit(self, batch: Batch) -> Future[Report]:
        """Send a batch to a worker."""
        if self._known is not None and self._known != frozenset(self._threads()):
            self.choose()  # a worker came, or came back under another address
        return self._executor.submit(measure_batch, batch)

    def choose(self) -> None:
        """Find the workers on machines like the target's, and use only those from now on.

        Raises:
            SearchError: when there is none.
        """
        found: dict[str, str] = self.client.run(fingerprint, self.threads)
        good = sorted(address for address, text in found.items() if text == self.wanted)
        if not good:
            raise foreign(self.wanted, sorted(set(found.values())))
        if len(good) < len(found) and self._known is None:
            warnings.warn(
                f"{len(found) - len(good)} of {len(found)} workers run on other machines or "
                "versions than the target and do not measure for it",
                WorkerWarning,
                stacklevel=2,
            )
        self._known = frozenset(found)
        self._executor = self.client.get_executor(
            pure=False, workers=good, allow_other_workers=False
        )


def foreign(wanted: str, found: list[str]) -> SearchError:
    """The error for workers whose times would say nothing about the target."""
    others = "\n    ".join(found)
    return SearchError(
        f"the workers are not like the machine that the search is for:\n    {others}",
        where=f"the target is\n    {wanted}",
        fix="start the search on a machine like the workers' (the same chip, compiler, threads "
        "and versions), or use workers like this one: their times are not comparable",
    )


class CurrentTask:
    """The dask task that this thread runs.

    Arguments:
        worker: The `distributed.Worker` that runs it.
    """

    def __init__(self, worker: Any):
        self.worker, self.key = worker, worker.get_current_task()

    def began_before(self) -> bool:
        """Leave a mark with the scheduler; whether a worker that has died had left one."""
        from distributed.utils import sync

        async def mark() -> bool:
            rpc = self.worker.scheduler
            before = await rpc.get_metadata(keys=[self.key], default=None)
            await rpc.set_metadata(keys=[self.key], value="began")
            return before is not None

        return bool(sync(self.worker.loop, mark))

    def cancelled(self) -> bool:
        """Whether the scheduler has taken it back."""
        task = self.worker.state.tasks.get(self.key)
        return task is None or task.state == "cancelled"


def current_task() -> CurrentTask | None:
    """The dask task that this thread runs, None when it is none."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return CurrentTask(distributed.get_worker())
    except (ValueError, AttributeError):
        return None
