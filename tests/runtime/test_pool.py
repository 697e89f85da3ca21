import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from luminal_lab.runtime.pool import LocalPool, WorkerLost
from tests.runtime.processes import PATIENCE, gone, until

ROOT = str(Path(__file__).parents[2])


def test_tasks_run_in_processes_and_errors_come_back(tmp_path):
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with LocalPool(2) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()
        assert [f.result() for f in [pool.submit(divmod, k, 3) for k in range(9)]] == [
            divmod(k, 3) for k in range(9)
        ]
        # Each end of a pipe waits for the other: only two processes at once can open both.
        ends = [pool.submit(os.open, fifo, mode) for mode in (os.O_RDONLY, os.O_WRONLY)]
        assert all(end.result(PATIENCE) > 0 for end in ends)
        assert len(pool.pids) == 2
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
        with pytest.raises((AttributeError, TypeError, ValueError), match=r"pickle|local"):
            pool.submit(lambda: 1).result()
        assert pool.submit(abs, -1).result() == 1
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(abs, 1)


def test_a_dead_process_costs_its_task_only():
    with LocalPool(1) as pool:
        with pytest.raises(WorkerLost):
            pool.submit(os._exit, 3).result()
        assert pool.submit(abs, -2).result() == 2


def test_an_idle_process_that_dies_is_replaced():
    with LocalPool(1) as pool:
        pid = pool.submit(os.getpid).result()
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        assert pool.submit(os.getpid).result() != pid


def test_kill_ends_what_runs_now():
    pool = LocalPool(1)
    pool.submit(abs, 1).result()
    (pid,) = pool.pids
    running, waiting = pool.submit(time.sleep, 10 * PATIENCE), pool.submit(abs, 1)
    assert until(running.running)
    start = time.monotonic()
    pool.kill()
    assert time.monotonic() - start < PATIENCE
    assert gone(pid)
    assert isinstance(running.exception(PATIENCE), WorkerLost)
    assert waiting.cancelled()


def test_what_a_function_prints_is_no_answer():
    with LocalPool(1) as pool:
        assert pool.submit(print, "hello").result() is None
        assert pool.submit(abs, -3).result() == 3


def test_the_pool_does_not_outlive_its_parent():
    script = (
        "import os, time\nfrom luminal_lab.runtime.pool import LocalPool\n"
        "pool = LocalPool(1)\nprint(pool.submit(os.getpid).result(), flush=True)\n"
        "pool.submit(time.sleep, 60)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    pid = int(child.stdout.readline())
    child.kill()
    child.communicate()
    assert gone(pid)


def test_a_pool_that_nobody_holds_ends():
    pool = LocalPool(1)
    pid = pool.submit(os.getpid).result()
    time.sleep(0.05)
    del pool
    assert gone(pid)
