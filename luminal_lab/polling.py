"""How long work is stopped from outside: it polls, and whoever started it says when to stop.

Evaluating a large program in float64 takes seconds within one call. Passing a deadline through
every function on the way would clutter them all; instead a caller installs a check for the
duration of a block, and loops that may run long call `poll`.

    >>> def check():
    ...     raise TimeoutError
    >>> with polling(check):
    ...     poll()
    Traceback (most recent call last):
    TimeoutError
    >>> poll()  # nobody asks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

POLL = 0.2  # seconds between two polls of something that waits for a process

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def polling(check: Callable[[], None]) -> Iterator[None]:
    """Within the block, long work of this thread calls `check` again and again.

    Arguments:
        check: Raises to stop the work.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def poll() -> None:
    """Give whoever started this work the chance to stop it."""
    check = _CHECK.get()
    if check is not None:
        check()
