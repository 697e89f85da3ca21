"""When a search ends early: its deadline, or a word from another thread."""

from __future__ import annotations

import threading
import time


class OutOfTime(Exception):
    """The search has to end now; what was found before stays."""


class Clock:
    """Says whether a search may go on.

    Arguments:
        seconds: Until the deadline, from now; None for no deadline.
        cancel: Set it, from any thread, to end the search within two seconds.

    >>> Clock().over, Clock(seconds=0).over
    (False, True)
    """

    def __init__(self, seconds: float | None = None, cancel: threading.Event | None = None):
        self.started = time.monotonic()
        self.deadline = None if seconds is None else self.started + seconds
        self.cancel = cancel or threading.Event()

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds until the deadline, None without one."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether it has to end."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.cancel.is_set()

    def check(self) -> None:
        """Raise `OutOfTime` when it has to end."""
        if self.over:
            raise OutOfTime
