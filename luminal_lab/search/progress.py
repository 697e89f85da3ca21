"""Progress of a search: events for a function, or bars in a terminal or notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luminal_lab.search.result import Result


@dataclass(frozen=True)
class SearchEvent:
    """One step forward.

    Arguments:
        stage: `"explore"` (genomes evaluated), `"measure"` (kernels measured), or `"finalists"`
            (whole programs timed).
        done: Steps taken in this stage.
        total: Steps of this stage.
        best: Seconds of the best candidate so far (predicted, or measured where known).
        message: A few words.
        result: Gives what was found so far, as `Search.result` does; it takes a while.
    """

    stage: str
    done: int
    total: int
    best: float | None = None
    message: str = ""
    result: Callable[[], Result] | None = field(default=None, compare=False, repr=False)


Listener = Callable[[SearchEvent], None]


class Progress:
    """Passes events on.

    Arguments:
        to: False for nobody, True for progress bars, or a function of a `SearchEvent`.
        result: What events offer as `result`.
    """

    def __init__(self, to: bool | Listener, result: Callable[[], Result] | None = None):
        self._result = result
        self._listener = to if callable(to) else None
        self._bars = to is True
        self._bar: Any = None
        self._stage = ""

    def __call__(self, event: SearchEvent) -> None:
        """Pass one event on."""
        if self._listener is not None:
            self._listener(replace(event, result=self._result))
        elif self._bars:
            self._show(event)

    def _show(self, event: SearchEvent) -> None:
        if event.stage != self._stage:
            from tqdm.auto import tqdm

            self.close()
            self._stage = event.stage
            self._bar = tqdm(total=event.total, desc=event.stage, leave=False)
        self._bar.update(event.done - self._bar.n)
        if event.best is not None:
            self._bar.set_postfix_str(f"best {event.best * 1e3:.3f} ms", refresh=False)

    def close(self) -> None:
        """Remove the bars."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
