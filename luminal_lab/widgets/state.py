"""What a workbench works on: the stage objects of one program, and what is selected in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import traitlets

from luminal_lab import api
from luminal_lab.egraph import EGraph, Limits
from luminal_lab.hlir import Hlir
from luminal_lab.search import Budget, Candidate, Result
from luminal_lab.widgets.jobs import Job


class State(traitlets.HasTraits):
    """The stages of one program, as far as they were run.

    Traits:
        hlir, egraph, result, candidate, executable, profile: The stage objects, None until
            there is one.
        nodes: The selected HLIR nodes; every panel shows what belongs to them.
        rules: Rules of the user, as `.egg` text.

    Each stage runs as the one job of `job`. A new object of a stage drops what was made from
    the old one.
    """

    hlir: Any = traitlets.Any(None, allow_none=True)
    egraph: Any = traitlets.Any(None, allow_none=True)
    result: Any = traitlets.Any(None, allow_none=True)
    candidate: Any = traitlets.Any(None, allow_none=True)
    executable: Any = traitlets.Any(None, allow_none=True)
    profile: Any = traitlets.Any(None, allow_none=True)
    best = traitlets.List()  # (seconds since the start, best so far, stage) of the last search
    nodes = traitlets.Tuple()
    rules = traitlets.Unicode("")

    def __init__(self, args: Sequence[Any] | None = None, target: str = "cpu"):
        super().__init__()
        self.args = None if args is None else tuple(args)
        self.target = target
        self.job = Job()

    # ------------------------------------------------------------------------------ stages

    def capture(self, module: Any, kwargs: dict[str, Any] | None = None) -> None:
        """Capture a module; not in the background: tracing belongs to the calling thread."""
        self.set_hlir(api.capture(module, self.args or (), kwargs))

    def saturate(
        self, limits: Limits | None = None, then: Callable[[], None] | None = None
    ) -> bool:
        """Grow the e-graph in the background."""
        rules = self.rules if self.rules.strip() else None

        def step(part: int, record: Any) -> None:
            self.job.tell(f"region {part}, iteration {record.number}: {record.rows:,} e-nodes")

        def work() -> EGraph:
            return api.saturate(self.hlir, self.target, rules, limits, progress=step)

        def done(egraph: EGraph) -> None:
            self.set_egraph(egraph)
            if then is not None:
                then()

        return self.job.start("saturation", work, done)

    def search(
        self,
        budget: Budget | None = None,
        seed: int = 0,
        then: Callable[[], None] | None = None,
        **options: Any,
    ) -> bool:
        """Search in the background; what was found until a cancel is kept."""
        self.best = []
        import time

        started = time.monotonic()

        def step(event: Any) -> None:
            share = event.done / event.total if event.total else -1.0
            if event.best is not None:
                spent = time.monotonic() - started
                if not self.best or event.best < self.best[-1][1] or event.stage == "measure":
                    self.best = [*self.best, (spent, event.best, event.stage)]
            best = f", best {event.best * 1e3:.3f} ms" if event.best is not None else ""
            self.job.tell(f"{event.stage} {event.done:,} of {event.total:,}{best}", share)

        def work() -> Result:
            return api.search(self.egraph, budget, seed, progress=step, **options)

        def done(result: Result) -> None:
            self.set_result(result)
            if then is not None:
                then()

        return self.job.start("search", work, done)

    def build(self, then: Callable[[], None] | None = None) -> bool:
        """Compile the candidate in the background."""

        def done(executable: Any) -> None:
            self.executable = executable
            if then is not None:
                then()

        return self.job.start("compilation", lambda: api.build(self.candidate), done)

    # ----------------------------------------------------------------------------- setting

    def set_hlir(self, hlir: Hlir) -> None:
        """Begin with a program."""
        self.set_egraph(None)
        self.nodes = ()
        self.hlir = hlir

    def set_egraph(self, egraph: EGraph | None) -> None:
        """Go on with an e-graph; results of the old one are dropped."""
        self.set_result(None)
        self.egraph = egraph

    def set_result(self, result: Result | None) -> None:
        """Go on with a result, and with its best candidate."""
        self.set_candidate(result.best if result is not None else None)
        self.result = result

    def set_candidate(self, candidate: Candidate | None) -> None:
        """Go on with a candidate."""
        if candidate is not self.candidate:
            self.executable = None
            self.profile = None
        self.candidate = candidate
