"""Measuring through executors: nothing is lost, and nothing foreign is mixed in."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from luminal_lab.errors import SearchError
from luminal_lab.runtime import remote
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.dask_cluster import WorkerWarning
from luminal_lab.runtime.pool import LocalPool
from luminal_lab.runtime.remote import Batch, Packed, Packer, measure_batch, trial_bytes
from luminal_lab.search.target import Measurement
from tests.runtime.distributed_jobs import POISON, SLOW, job, spoiled_batch
from tests.runtime.processes import PATIENCE, ctrl_c, gone

ROOT = str(Path(__file__).parents[2])


class Wrapped(Executor):
    """An executor whose workers run another function than the one they are told to."""

    def __init__(self, inner, function=spoiled_batch, workers=1):
        self.inner, self.function, self.workers = inner, function, workers
        self.submitted = 0

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.submitted += 1
        return self.inner.submit(self.function if fn is measure_batch else fn, *args)


def foreign_batch(batch):
    return remote.Report("foreign", "another chip", "far away")


def broken_batch(batch):
    raise ImportError("no module named luminal_lab")


@pytest.fixture(scope="module")
def pool():
    with LocalPool(2) as made:
        yield made


def reasons(target, jobs) -> list[str]:
    with target:
        return [m.reason for m in target.measure(jobs)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float8_e5m2"])
def test_tensors_survive_the_journey(dtype):
    x = (torch.randn(3, 5) * 4).to(getattr(torch, dtype))
    back = Packed.of(x.t()).tensor()
    assert back.dtype == x.dtype
    assert torch.equal(back.view(torch.uint8), x.t().contiguous().view(torch.uint8))
    assert Packed.of(x[:0]).tensor().shape == (0, 5)


def test_random_inputs_travel_as_recipes_and_shared_tensors_once(c_compiler):
    packer, one = Packer(), job(8)
    trials = tuple(packer.trial(one) for _ in range(3))
    assert trial_bytes(trials) == 8 * 5 * (4 + 8)  # the second input, and what must come out
    target = CpuTarget()
    batch = Batch(trials, target.machine(), target.fingerprint())
    try:
        report = measure_batch(batch)
    finally:
        remote.close_children()
    assert report.outcome == "measured"
    assert [m.ok for m in report.results] == [True] * 3
    assert all(m.seconds for m in report.results)


def test_an_executor_gives_what_this_process_gives(c_compiler, pool):
    rows = [3, 4, 5, 6, 7, 8, 9]
    jobs = [job(n, wrong=n == 5) for n in rows]
    seen = []
    with CpuTarget(executor=pool) as target:
        there = list(target.measure(jobs, progress=seen.append))
    here = list(CpuTarget(workers=0).measure(jobs))
    assert (
        [m.reason for m in there]
        == [m.reason for m in here]
        == ["wrong" if n == 5 else "" for n in rows]
    )
    assert [m.max_error for m in there] == [m.max_error for m in here]
    assert seen == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_the_executors_of_the_standard_library(c_compiler, make):
    options = {"mp_context": get_context("spawn")} if make is ProcessPoolExecutor else {}
    with make(1, **options) as executor:
        assert reasons(CpuTarget(executor=executor), [job(3), job(4)]) == ["", ""]


class Counting(Executor):
    """Two workers that measure nothing, and note what they are given."""

    workers = 2

    def __init__(self, takes_at_most=100):
        self.batches: list[list[str]] = []
        self.takes_at_most = takes_at_most

    def submit(self, fn, /, *args, **kwargs) -> Future:
        if len(self.batches) == self.takes_at_most:
            raise RuntimeError("it is shut down")
        (batch,) = args
        self.batches.append([t.kernel for t in batch.trials])
        future: Future = Future()
        results = tuple(Measurement(True, (1.0,)) for _ in batch.trials)
        future.set_result(remote.Report("measured", batch.fingerprint, "here", results))
        return future


@pytest.mark.parametrize(("count", "sizes"), [(13, [7, 6]), (1, [1]), (70, [16] * 4 + [3, 3])])
def test_jobs_are_dealt_evenly_in_few_batches(c_compiler, count, sizes):
    # While a batch is timed nothing is compiled anywhere, so each of them stops the others.
    executor = Counting()
    jobs = [job(n) for n in range(100, 100 + count)]
    assert reasons(CpuTarget(executor=executor), jobs) == [""] * count
    assert [len(b) for b in executor.batches] == sizes
    if count > 1:  # neighbours go to different workers
        first, second = executor.batches[:2]
        assert "[100, 5]" in first[0]
        assert "[101, 5]" in second[0]


def test_what_was_dealt_and_not_taken_is_measured_here(c_compiler):
    executor = Counting(takes_at_most=1)
    with pytest.warns(WorkerWarning, match="takes no more work"):
        got = reasons(CpuTarget(executor=executor), [job(n) for n in (3, 4, 5, 6)])
    assert got == ["", "", "", ""]


def test_a_worker_that_dies_loses_nothing(c_compiler, pool):
    """Whichever moment it dies in, the results are the same."""
    jobs = [job(n) for n in range(10, 22)]
    for moment in (1, 4):

        def kill(done: int, moment=moment) -> None:
            if done == moment:
                for pid in pool.pids[:1]:
                    os.kill(pid, signal.SIGKILL)

        with CpuTarget(executor=pool) as target:
            assert [m.reason for m in target.measure(jobs, progress=kill)] == [""] * 12


def test_a_poisoned_job_is_rejected_after_two_tries(c_compiler, pool):
    executor = Wrapped(pool)
    jobs = [job(n) for n in (3, POISON, 4, 5)]
    assert reasons(CpuTarget(executor=executor), jobs) == ["", "crashed", "", ""]


def test_a_broken_process_pool_is_replaced_by_this_machine(c_compiler):
    # Not forked: the child of a process whose OpenMP threads have worked waits for them.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as inner:
        executor = Wrapped(inner)
        jobs = [job(n) for n in (3, POISON, 4)]
        with pytest.warns(WorkerWarning, match="this machine measures the rest"):
            assert reasons(CpuTarget(executor=executor), jobs) == ["", "", ""]


def test_workers_on_another_machine_are_refused(c_compiler, pool):
    executor = Wrapped(pool, foreign_batch)
    with pytest.raises(SearchError, match=r"not like the machine(.|\n)*another chip"):
        reasons(CpuTarget(executor=executor), [job(3)])


def test_a_worker_that_cannot_measure_says_why(c_compiler, pool):
    with pytest.raises(SearchError, match="no module named luminal_lab"):
        reasons(CpuTarget(executor=Wrapped(pool, broken_batch)), [job(3)])
    with pytest.raises(SearchError, match="no executor"):
        reasons(CpuTarget(executor=3), [job(3)])


def test_a_deadline_is_kept(c_compiler):
    jobs = [job(n) for n in (3, SLOW, 4)]
    for target in (CpuTarget(executor=Wrapped(LocalPool(1))), CpuTarget()):
        start = time.monotonic()
        if target.executor is None:
            jobs = [job(n) for n in range(70, 100)]
        with target:
            got = list(target.measure(jobs, deadline=start + 0.5))
        assert time.monotonic() - start < PATIENCE  # a kernel takes an hour
        assert len(got) < len(jobs)
        if target.executor is not None:
            target.executor.inner.kill()


SCRIPT = """
import signal, sys
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.search.target import Measurement
from tests.runtime.distributed_jobs import job
jobs = [job(n) for n in range(100, 300)]
with CpuTarget() as target:
    target.machine()
    try:
        for m in target.measure(jobs):
            print("pids", *target._pool.pids, target._worker._child.pid, flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_the_pool_and_leaves_nothing(c_compiler, fresh_cache):
    env = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(fresh_cache.parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=env, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    pids = [int(p) for p in child.stdout.readline().split()[1:]]
    assert len(pids) >= 2
    time.sleep(0.3)  # in the middle of a wave, or of its timing
    with ctrl_c(child):
        while not (line := child.stdout.readline()).startswith("interrupted"):
            assert line
    assert all(gone(pid) for pid in pids)
    child.communicate("\n", timeout=PATIENCE)
    assert child.returncode == 0
    assert not list(fresh_cache.parent.glob("luminal-*"))
    assert not list(fresh_cache.parent.glob("cc*"))


def test_a_process_that_was_dying_before_costs_its_next_task_nothing():
    with LocalPool(1) as pool:
        for n in range(5):
            assert pool.submit(divmod, n, 2).result() == divmod(n, 2)
            os.kill(pool.pids[0], signal.SIGKILL)  # the next task may meet it half dead
