"""Work that runs beside the notebook: in a thread, with progress, and a cancel that works."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import traitlets

from luminal_lab.errors import LuminalError
from luminal_lab.polling import polling


class Job(traitlets.HasTraits):
    """One piece of work at a time.

    Traits:
        state: `"idle"`, `"running"`, `"pausing"`, `"canceling"`.
        stage: What runs.
        message: How far it is, or how it ended.
        fraction: How far it is, from 0 to 1; negative when unknown.
        failed: Whether the last work ended with an error.
    """

    state = traitlets.Unicode("idle")
    stage = traitlets.Unicode("")
    message = traitlets.Unicode("")
    fraction = traitlets.Float(-1.0)
    failed = traitlets.Bool(False)

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None
        self._go = threading.Event()
        self._go.set()
        self._told = 0.0
        self.canceled = threading.Event()  # for stages that look at it themselves
        self.details = ""  # the traceback of the last error

    def start(
        self,
        stage: str,
        work: Callable[[], Any],
        done: Callable[[Any], None] | None = None,
        *,
        prompt: bool = False,
    ) -> bool:
        """Run `work` in a thread, then `done` with what it returned.

        Arguments:
            stage: What to call it.
            work: What to do.
            done: What to do with its value.
            prompt: Whether a cancel ends it wherever it polls, such as while a compiler runs;
                for work that has nothing to keep then.

        Returns:
            False when other work is still running.
        """
        if self.state != "idle":
            self.message = f"{self.stage} is still running: cancel it first"
            return False
        self.stage, self.message, self.fraction = stage, "started", -1.0
        self.failed, self.details = False, ""
        self._go.set()
        self.canceled.clear()
        self.state = "running"
        self._thread = threading.Thread(
            target=self._run,
            args=(work, done, prompt),
            name=f"luminal-lab {stage}",
            daemon=True,
        )
        self._thread.start()
        return True

    def _run(
        self, work: Callable[[], Any], done: Callable[[Any], None] | None, prompt: bool
    ) -> None:
        started = time.monotonic()
        try:
            with polling(self._end) if prompt else contextlib.nullcontext():
                value = work()
            if done is not None:
                done(value)
            canceled = self.state == "canceling"
            spent = time.monotonic() - started
            self.message = f"{'stopped after' if canceled else 'done in'} {spent:.2f} s"
        except KeyboardInterrupt:
            self.message = (
                f"canceled after {time.monotonic() - started:.2f} s" if prompt
                else "canceled before there was anything to keep"
            )  # fmt: skip
        except LuminalError as error:
            self.failed, self.message = True, str(error)
        except Exception as error:  # noqa: BLE001  (a thread must report whatever ends it)
            self.failed, self.message = True, f"{type(error).__name__}: {error}"
            self.details = traceback.format_exc()
        finally:
            self.fraction = 1.0
            self.state = "idle"

    def _end(self) -> None:
        if self.canceled.is_set():
            raise KeyboardInterrupt

    def tell(self, message: str, fraction: float = -1.0) -> None:
        """Say how far the work is; it calls this often, and here it pauses or ends.

        Raises:
            KeyboardInterrupt: when it was canceled: the stages keep what they have.
        """
        if not self._go.is_set():
            while self.state == "pausing" and not self._go.wait(0.05):
                pass
        if self.state == "canceling":
            raise KeyboardInterrupt
        now = time.monotonic()
        if now - self._told > 0.1:  # the front end is told ten times a second at most
            self._told = now
            self.message, self.fraction = message, fraction

    def cancel(self) -> None:
        """End the work at its next step."""
        if self.state in ("running", "pausing"):
            self.state = "canceling"
            self.canceled.set()
            self._go.set()

    def pause(self) -> None:
        """Hold the work at its next step, or let it go on."""
        if self.state == "running":
            self._go.clear()
            self.state = "pausing"
            self.message = f"{self.stage} paused"
        elif self.state == "pausing":
            self.state = "running"
            self._go.set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until nothing runs."""
        if self._thread is not None:
            self._thread.join(seconds)
