"""What a workbench works on: the stage objects of one program, and what is selected in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import traitlets

from luminal_lab import api
from luminal_lab.egraph import EGraph, Limits
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import Hlir
from luminal_lab.search import Budget, Candidate, Result
from luminal_lab.session import STAGES, Session
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
    seen: Any = traitlets.Any(None, allow_none=True)  # what a search that runs has found so far
    nodes = traitlets.Tuple()
    rules = traitlets.Unicode("")
    by_hand = traitlets.Tuple()  # candidates that were made from tried kernels
    rank = traitlets.Int(-1)  # which candidate it is: listed, the best (-1), by hand (-2, …)

    def __init__(self, args: Sequence[Any] | None = None, target: str = "cpu"):
        super().__init__()
        self.args = None if args is None else tuple(args)
        self.target = target
        self.module: Any = None  # what was captured, to compare with
        self.job = Job()
        self.session: Session | None = None
        self.listed: list[Candidate] = []  # of a reopened session
        self._look_after = 0.0  # when the session is to be brought up to date again
        for name in STAGES:
            self.observe(self._record, name)

    # ---------------------------------------------------------------------------- sessions

    def save(self, path: str | Path) -> Session:
        """Write all stages into a session file, and keep it up to date from now on.

        Raises:
            CacheError: when it cannot be written.
        """
        if self.session is not None and self.session.path != Path(path):
            self.session.close()
            self.session = None
        session = self.session or Session(path)
        for name in STAGES:
            session.record(name, getattr(self, name))
        for seconds, best, stage in self.best:
            session.record_progress(seconds, best, stage)
        self.session = session
        return session

    def reopen(self, session: Session) -> None:
        """Take over what a session holds; nothing is computed again.

        Raises:
            LuminalError: when there is no program in it.
        """
        if session.stage("hlir") is None:
            raise LuminalError(
                "there is no program in this session",
                where=str(session.path),
                fix="pass the module and its arguments, and this file as session=",
            )
        self.session = None
        self.listed = session.candidates()
        for name in STAGES:
            stage = session.stage(name)
            if isinstance(stage, Result) and self.egraph is not None:
                stage = stage.beside(self.egraph)
            setattr(self, name, stage)
        if self.candidate is None and self.result is not None:
            self.candidate = self.result.best
        self.best = session.progress()
        self.session = session

    def _record(self, change: Any) -> None:
        if self.session is None:
            return
        try:
            self.session.record(change["name"], change["new"])
        except LuminalError as error:  # a full disk must not end the work itself
            self.job.message = f"the session is not kept: {error}"

    # ------------------------------------------------------------------------------ stages

    def capture(self, module: Any, kwargs: dict[str, Any] | None = None) -> None:
        """Capture a module; not in the background: tracing belongs to the calling thread."""
        self.module = module
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
        self._look_after = started = time.monotonic()

        def step(event: Any) -> None:
            share = event.done / event.total if event.total else -1.0
            spent = time.monotonic() - started
            if event.best is not None and (not self.best or event.best < self.best[-1][1]):
                self._point(spent, event.best, event.stage)
            self._look(event, spent)
            best = f", best {event.best * 1e3:.3f} ms" if event.best is not None else ""
            self.job.tell(f"{event.stage} {event.done:,} of {event.total:,}{best}", share)

        def work() -> Result:
            return api.search(
                self.egraph, budget, seed, progress=step, cancel=self.job.canceled, **options
            )

        def done(result: Result) -> None:
            self._measured(result, time.monotonic() - started)
            self.set_result(result)
            self.seen = None
            if then is not None:
                then()

        return self.job.start("search", work, done)

    def _look(self, event: Any, spent: float) -> None:
        """Look at what a search has found so far, in at most a twentieth of its time.

        What was measured becomes a point of `best`, and the session is brought up to date.
        """
        began = time.monotonic()
        wanted = self.session is not None or event.stage == "measure"
        if event.result is None or not wanted or began < self._look_after:
            return
        try:
            found = replace(event.result(), interrupted=True)
            self._measured(found, spent)
            self.seen = found
            if self.session is not None:
                self.session.record("result", found)
                self.session.record("candidate", found.best)
        except LuminalError as error:  # nothing yet, or a full disk: the search goes on
            self.job.message = f"looked at later: {error}"
        self._look_after = time.monotonic() + max(1.0, 20 * (time.monotonic() - began))

    def _measured(self, found: Result, spent: float) -> None:
        """A point of `best` for what was measured so far."""
        chosen = [(r.instances, r.measured) for r in found.rows if r.chosen]
        if chosen and all(seconds is not None for _, seconds in chosen):
            self._point(spent, sum(n * (seconds or 0.0) for n, seconds in chosen), "measured")

    def _point(self, spent: float, seconds: float, stage: str) -> None:
        self.best = [*self.best, (spent, seconds, stage)]
        if self.session is not None:
            self.session.record_progress(spent, seconds, stage)

    def build(self, then: Callable[[], None] | None = None) -> bool:
        """Compile the candidate in the background."""

        def done(executable: Any) -> None:
            self.executable = executable
            if then is not None:
                then()

        return self.job.start(
            "compilation", lambda: api.build(self.candidate), done, prompt=True
        )

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
        self.by_hand, self.rank = (), -1
        self.result = result
        self.set_candidate(result.best if result is not None else None)

    def set_candidate(self, candidate: Candidate | None) -> None:
        """Go on with a candidate."""
        if candidate is not self.candidate:
            self.executable = None
            self.profile = None
        self.candidate = candidate

    def keep(self, candidate: Candidate) -> None:
        """Go on with a candidate that was made by hand; it can be chosen again later."""
        self.by_hand = (*self.by_hand, candidate)
        self.rank = -1 - len(self.by_hand)
        self.set_candidate(candidate)

    def at(self, rank: int) -> Candidate:
        """The candidate of a rank: a listed one, the best (-1), or one by hand (-2 and below).

        Raises:
            LuminalError: for a session whose e-graph is another one.
        """
        if rank <= -2:
            return self.by_hand[-2 - rank]
        return self.result.best if rank < 0 else self.result.candidates[rank]

    def choose(self, rank: int) -> None:
        """Go on with the candidate of a rank; see `at`."""
        candidate = self.at(rank)
        self.rank = rank
        self.set_candidate(candidate)

    def record_trial(self, name: str, trial: Any) -> None:
        """Keep what became of a kernel that was tried by hand, when there is a session."""
        if self.session is None:
            return
        m = trial.measurement
        data = {
            "ok": m.ok, "reason": m.reason, "message": m.message, "seconds": list(m.seconds),
            "max_error": m.max_error, "schedule": trial.schedule, "edited": trial.edited,
            "entry": trial.code.entry, "text": trial.code.text,
        }  # fmt: skip
        try:
            self.session.record_trial(name, data)
        except LuminalError as error:  # a full disk must not end the work itself
            self.job.message = f"the session is not kept: {error}"
