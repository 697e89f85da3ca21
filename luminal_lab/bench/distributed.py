"""How much a second dask worker saves: one search that is bound by compilation, three times.

With one worker process of one thread, with two, and with two of which one is killed in the
middle. Each time the caches are empty; the table of candidates must be the same.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from luminal_lab.egraph import EGraph
    from luminal_lab.search import Machine, Result

BAR = 1.6  # times as fast with two workers
# What follows from times, such as who wins and who is measured beyond the most promising,
# differs between two searches in one process too.
_SAME = ["region", "instances", "rank", "genome", "kernels", "reason", "rule"]


@dataclass(frozen=True)
class Run:
    """One search.

    Arguments:
        name: What it ran on.
        seconds: Of the whole search.
        measuring: Of them, from the last explored candidate to the last measured kernel.
        jobs: Kernels and schedules that were measured.
        outcome: The table without what follows from times, and all counts of rejections.
    """

    name: str
    seconds: float
    measuring: float
    jobs: int
    outcome: str


def block(x: Any, q: Any, k: Any, v: Any, o: Any, up: Any, down: Any) -> Any:
    """A small transformer block: many different kernels, none of which runs long."""
    import torch
    from torch.nn import functional as F

    b, t, d = x.shape
    heads = [(x @ w).view(b, t, 2, d // 2).transpose(1, 2) for w in (q, k, v)]
    scores = heads[0] @ heads[1].transpose(-1, -2) * (d // 2) ** -0.5
    y = (torch.softmax(scores, -1) @ heads[2]).transpose(1, 2).reshape(b, t, d)
    x = F.layer_norm(x + y @ o, (d,))
    return F.layer_norm(x + F.gelu(x @ up) @ down, (d,))


def program() -> EGraph:
    """The block, saturated."""
    import torch

    import luminal_lab as ll

    rng = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 16), *((16, 16),) * 4, (16, 32), (32, 16))
    return ll.saturate(ll.capture(block, tuple(torch.randn(s, generator=rng) for s in shapes)))


def measured(
    name: str, egraph: EGraph, machine: Machine, client: Any, on_job: Callable[[int], None]
) -> Run:
    """Search through a client, with a database of its own."""
    from luminal_lab.runtime.cpu import CpuTarget
    from luminal_lab.search import Budget, Database
    from luminal_lab.search.run import search

    start = time.monotonic()
    last: dict[str, float] = {"explore": start, "measure": start}
    count = 0

    def listen(event: Any) -> None:
        nonlocal count
        last[event.stage] = time.monotonic()
        if event.stage == "measure":
            count += 1
            on_job(count)

    with (
        CpuTarget(executor=client, machine=machine) as target,
        Database(":memory:") as database,
    ):
        budget = Budget("full", candidates=12)
        result = search(egraph, budget, 0, target, listen, database=database)
    end = time.monotonic()
    jobs = sum(r.tried for r in result.records.values())
    measuring = last["measure"] - last["explore"]
    return Run(name, end - start, measuring, jobs, _outcome(result))


def _outcome(result: Result) -> str:
    return f"{result.table()[_SAME].to_csv()}\n{sorted(result.rejected.items())}"


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of a fresh cluster with an empty cache, warmed up."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise LuminalError(
            "dask.distributed is not installed", fix="pip install 'luminal-lab[distributed]'"
        ) from error
    from luminal_lab.runtime.calibration import thread_count

    folder, before = tempfile.mkdtemp(prefix="luminal-bench-"), os.environ.get("LUMINAL_CACHE")
    os.environ["LUMINAL_CACHE"] = folder
    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None}
    try:
        with LocalCluster(n_workers=workers, **options) as made, Client(made) as client:
            client.run(warm, thread_count())
            yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["LUMINAL_CACHE"]
        else:
            os.environ["LUMINAL_CACHE"] = before


def warm(threads: int) -> str:
    """Import what a worker needs, compile the runtime's own C, start the measuring child."""
    import torch  # noqa: F401

    import luminal_lab.codegen  # noqa: F401
    from luminal_lab.runtime.cpu import fingerprint
    from luminal_lab.runtime.native import native
    from luminal_lab.runtime.remote import start_child

    native()
    start_child(threads)
    return fingerprint(threads)


def run(rounds: int = 1, kill: bool = True) -> tuple[float, list[Run]]:
    """Search with one worker, with two, and (if asked) with two of which one is killed.

    Arguments:
        rounds: How often one and two workers are compared; the best of each counts.
        kill: Whether to search once more and kill a worker.

    Returns:
        How many times as fast the measuring was with two workers, and all searches.
    """
    from luminal_lab.runtime.cpu import CpuTarget

    egraph = program()
    machine = CpuTarget().machine()  # the same rates for all, or other candidates are listed
    runs = []
    for _ in range(rounds):
        for count, name in ((1, "1 worker"), (2, "2 workers")):
            with cluster(count) as client:
                runs.append(measured(name, egraph, machine, client, lambda done: None))
    if kill:
        with cluster(2) as client:
            victim = next(iter(client.run(os.getpid).values()))
            killed: list[int] = []

            def end(done: int) -> None:
                if done >= 12 and not killed:
                    killed.append(victim)
                    os.kill(victim, signal.SIGKILL)

            runs.append(measured("2 workers, 1 killed", egraph, machine, client, end))
    best = [
        min(r.measuring for r in runs if r.name == name) for name in ("1 worker", "2 workers")
    ]
    return best[0] / best[1], runs


def report(rounds: int = 1) -> tuple[str, bool]:
    """The text of a run, and whether the bar was reached with equal tables."""
    ratio, runs = run(rounds)
    same = all(r.outcome == runs[0].outcome for r in runs)
    lines = [f"a search of {runs[0].jobs} kernels and schedules, bound by compilation"]
    lines += [
        f"  {r.name:<20} {r.seconds:>7.1f} s, {r.measuring:>7.1f} s of it measuring"
        for r in runs
    ]
    lines.append(f"  two workers: {ratio:.2f}x as fast in measuring (bar {BAR}x)")
    lines.append(f"  candidate tables apart from times: {'the same' if same else 'DIFFERENT'}")
    for r in runs[1:]:
        lines += unified_diff(
            runs[0].outcome.splitlines(), r.outcome.splitlines(), runs[0].name, r.name, n=0
        )
    return "\n".join(lines), same and ratio >= BAR
