"""One timing at a time on a machine, and no compilation beside it, over all processes.

Two locks on files that every process of a user on this machine opens: whoever compiles for a
search holds the *machine* lock shared, whoever times holds it exclusively. A timing holds the
*gate* from the moment it waits, so that a stream of compilations cannot keep it out.

A process that dies gives its locks back. A lock that cannot be had within a minute is done
without: a disturbed timing is better than a search that never ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from luminal_lab.polling import poll

T = TypeVar("T")
R = TypeVar("R")
LONGEST = 60.0  # seconds to wait at most
_TURN = 1.0  # seconds after which others get their turn


def lock_path(name: str) -> Path:
    """The file of a lock: in memory where that exists, so that no two machines share it."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    return Path(folder) / f"luminal-lab-{os.getuid()}.{name}"


@contextlib.contextmanager
def timing(limit: float = LONGEST) -> Iterator[bool]:
    """Have the machine alone, for a short while.

    Arguments:
        limit: Seconds to wait at most.

    Yields:
        Whether the lock was had.

    >>> with timing() as alone:
    ...     alone
    True
    """
    end = time.monotonic() + limit
    with (
        _held("gate", fcntl.LOCK_EX, end) as first,
        _held("machine", fcntl.LOCK_EX, end) as second,
    ):
        yield first and second


@contextlib.contextmanager
def compiling(limit: float = LONGEST) -> Iterator[bool]:
    """Work beside others who compile, and not beside a timing.

    Arguments:
        limit: Seconds to wait at most.

    Yields:
        Whether the lock was had.
    """
    end = time.monotonic() + limit
    with contextlib.ExitStack() as machine:
        with _held("gate", fcntl.LOCK_SH, end) as first:
            second = machine.enter_context(_held("machine", fcntl.LOCK_SH, end))
        yield first and second


def in_turns(items: Iterable[T], run: Callable[[T], R]) -> Iterator[R]:
    """Run something on each item with the machine alone; others get a turn every second.

    Arguments:
        items: What to run it on.
        run: Takes well under a second, as a rule.

    Yields:
        The results in order, while the lock is not held.

    >>> list(in_turns([1, 2, 3], abs))
    [1, 2, 3]
    """
    left = deque(items)
    while left:
        with timing():
            start = time.monotonic()
            done = [run(left.popleft())]
            while left and time.monotonic() - start < _TURN:
                done.append(run(left.popleft()))
        yield from done


@contextlib.contextmanager
def _held(name: str, kind: int, end: float) -> Iterator[bool]:
    descriptor = _open(name)
    if descriptor is None:
        yield False
        return
    try:
        yield _acquire(descriptor, kind, end)
    finally:
        os.close(descriptor)  # gives the lock back


def _open(name: str) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        return os.open(lock_path(name), flags, 0o600)
    return None


def _acquire(descriptor: int, kind: int, end: float) -> bool:
    """Poll: a thread that waits inside flock could not be interrupted."""
    pause = 0.5e-3
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            poll()
            time.sleep(pause)
            pause = min(2 * pause, 10e-3)
        except OSError:  # a file system without locks
            return False
        else:
            return True
