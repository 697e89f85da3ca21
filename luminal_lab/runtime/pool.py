"""Processes on this machine, as an `Executor` that survives the death of one of them.

Unlike `ProcessPoolExecutor`, a child does not import the user's main module (a script needs no
`if __name__ == "__main__"`), a dead child costs the task that it ran and not the pool, and
`kill` ends everything at once, with the compilers that it started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from luminal_lab.runtime.compiler import remove_scratch
from luminal_lab.runtime.measure import package_parent
from luminal_lab.runtime.servant import BEGUN, receive, send

_GRACE = 1.0  # seconds between asking a child to leave and killing it
_STARTS = 3  # processes that may die in a row before they have begun a task


class WorkerLost(Exception):
    """The process that ran a task has died; nothing is known about the task."""


class LocalPool(Executor):
    """Some processes that run module-level functions on plain data.

    Arguments:
        workers: How many; the number of cores when None. Each starts with its first task.
        environment: Variables to set in the children.

    >>> with LocalPool(1) as pool:
    ...     pool.submit(divmod, 7, 2).result()
    (3, 1)
    """

    def __init__(self, workers: int | None = None, environment: dict[str, str] | None = None):
        self.workers = workers or os.cpu_count() or 1
        self.environment = dict(environment or {})
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # threads without a task, less tasks without a thread
        self._closed = self._killed = False
        self._finalizer = weakref.finalize(self, _end_all, self._children, self._tasks)

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        with self._lock:
            return [c.pid for c in self._children.values() if c.poll() is None]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn(*args)` in one of the processes.

        Raises:
            RuntimeError: after `shutdown`.
        """
        if kwargs:
            raise TypeError("a LocalPool passes no keyword arguments on")
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._tasks.put((future, fn, args))
            self._waiting -= 1
            if self._waiting < 0 and len(self._threads) < self.workers:
                thread = threading.Thread(
                    target=_serve, args=(weakref.ref(self), self._tasks, len(self._threads)),
                    name="luminal-pool", daemon=True,
                )  # fmt: skip
                self._threads.append(thread)
                thread.start()
        return future

    def run(self, number: int, future: Future[Any], fn: Any, args: tuple[Any, ...]) -> None:
        """Run one task in a child, from a thread of this pool."""
        if not future.set_running_or_notify_cancel():
            with self._lock:
                self._waiting += 1
            return
        child = None
        try:
            child = self._begun(number, (fn, args))
            assert child.stdout is not None
            good, outcome = receive(child.stdout)
        except (EOFError, OSError) as error:
            if child is not None:  # the next task must not meet a process that is dying
                child.kill()
                _end(child)
            future.set_exception(WorkerLost(f"process {number} of the pool has died: {error}"))
        except Exception as error:  # noqa: BLE001  (what cannot be pickled is the caller's)
            future.set_exception(error)
        else:
            (future.set_result if good else future.set_exception)(outcome)
        finally:
            with self._lock:
                self._waiting += 1

    def _begun(self, number: int, task: Any) -> subprocess.Popen[bytes]:
        """A child that has taken a task; one that was dying before says nothing about it."""
        start = 0
        while True:
            child, start = self._child(number), start + 1
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                send(child.stdin, task)
                if receive(child.stdout) == BEGUN:
                    return child
            except (EOFError, OSError):
                child.kill()
                _end(child)
                if start == _STARTS:
                    raise

    def _child(self, number: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise EOFError("the pool was ended")
            child = self._children.get(number)
            if child is not None and child.poll() is not None:
                _end(child)
                child = None
            if child is None:
                path = os.pathsep.join(p for p in (package_parent(), *sys.path) if p)
                child = self._children[number] = subprocess.Popen(
                    [sys.executable, "-m", "luminal_lab.runtime.servant"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C reaches this process alone
                    env={**os.environ, "PYTHONPATH": path, **self.environment},
                )
            return child

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after all tasks when `wait`, after those that run otherwise."""
        with self._lock:
            self._closed = True
        if cancel_futures or not wait:
            self._cancel()
        self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
            self._finalizer()

    def kill(self) -> None:
        """End all processes now, and what they started; their tasks are lost."""
        with self._lock:
            self._closed = self._killed = True
        self._cancel()
        self._finalizer()

    def _cancel(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (task := self._tasks.get_nowait()) is not None:
                    task[0].cancel()
                    task[0].set_running_or_notify_cancel()


def _serve(owner: weakref.ref[LocalPool], tasks: queue.SimpleQueue[Any], number: int) -> None:
    """A thread's life; between tasks it does not keep the pool alive."""
    while (task := tasks.get()) is not None:
        pool = owner()
        if pool is None:
            break
        pool.run(number, *task)
        del pool, task
    tasks.put(None)  # for the next thread


def _end_all(children: dict[int, subprocess.Popen[bytes]], tasks: Any) -> None:
    tasks.put(None)
    for child in list(children.values()):
        with contextlib.suppress(OSError):
            child.terminate()
    for child in list(children.values()):
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    remove_scratch(child.pid)
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
