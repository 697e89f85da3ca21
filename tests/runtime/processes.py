"""What several tests ask about processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE = 120.0  # seconds: what comes at once on an idle machine may take long on a busy one


def until(condition: Callable[[], object]) -> bool:
    """Whether something comes true while we are patient."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def ctrl_c(child: subprocess.Popen[str]) -> Iterator[None]:
    """Press Ctrl-C, and again after a while: Python loses one that meets a finalizer.

    The child ignores further ones when it has heard the first.
    """
    heard = threading.Event()

    def press() -> None:
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            if heard.wait(PATIENCE / 3):
                return

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        yield
    finally:
        heard.set()
        thread.join()


def gone(pid: int) -> bool:
    """Whether a process ends."""
    return until(lambda: _ended(pid))


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
