"""The workbench: all stages of one program in one place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from luminal_lab.egraph import EGraph
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import Hlir
from luminal_lab.runtime import Executable, Profile
from luminal_lab.search import Candidate, Result
from luminal_lab.session import Session
from luminal_lab.views.html import el
from luminal_lab.widgets.panels import (
    CandidatePanel,
    ComparePanel,
    EGraphPanel,
    KernelsPanel,
    ModelPanel,
    ProfilePanel,
    SearchPanel,
)
from luminal_lab.widgets.panels.base import Panel, button, html, put, row, sheet
from luminal_lab.widgets.state import State


class Workbench(w.VBox):
    """See a program through all stages, and steer each.

    Arguments:
        module_or_fn: An `nn.Module`, a function of tensors, an Hlir, or a `Session` to reopen.
        args: Example arguments, as for `capture`.
        kwargs: Example keyword arguments.
        target: The target.
        session: A file that is kept up to date with every stage as it ends.

    The stages run in the background: other cells can run meanwhile, `Cancel` ends what runs
    and keeps what was found. `workbench.state` holds the stage objects, `workbench.model`,
    `.egraph`, `.search`, `.candidate`, `.kernels`, `.profile` and `.compare` are the panels.

    >>> import torch, luminal_lab as ll
    >>> bench = ll.Workbench(torch.nn.GELU(), (torch.ones(8),))
    >>> bench
    Workbench(GELU: captured)
    >>> _ = bench.state.saturate(); bench.state.job.wait(); bench
    Workbench(GELU: captured, saturated)
    """

    def __init__(
        self,
        module_or_fn: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        target: str = "cpu",
        session: str | Path | None = None,
    ):
        super().__init__()
        self.state = State(args, target)
        if isinstance(module_or_fn, Session):
            self.state.reopen(module_or_fn)
        elif isinstance(module_or_fn, Hlir):
            self.state.set_hlir(module_or_fn)
        else:
            self.state.capture(module_or_fn, kwargs)
        self.model = ModelPanel(self.state)
        self.egraph = EGraphPanel(self.state)
        self.search = SearchPanel(self.state)
        self.candidate = CandidatePanel(self.state)
        self.kernels = KernelsPanel(self.state)
        self.profile = ProfilePanel(self.state)
        self.compare = ComparePanel(self.state)
        self.egraph.onward = self.search.search
        self.panels = (
            self.model, self.egraph, self.search, self.candidate, self.kernels, self.profile,
            self.compare,
        )  # fmt: skip
        self.tabs = w.Tab(children=self.panels, titles=[p.title for p in self.panels])
        self.tabs.observe(lambda c: self._wake(), "selected_index")
        self._wake()
        self.bar = w.FloatProgress(min=0, max=1, layout=w.Layout(width="180px", height="14px"))
        self.reasons = button("Why this one?", "Why the candidate won, and how it follows",
                              self.explain)  # fmt: skip
        self.text = html()
        self.all = button(
            "Run all",
            "Saturate, search, build and profile",
            self.run_all,
            primary=True,
            icon="play",
        )
        self.end = button(
            "Cancel", "End what runs; what was found is kept", self.state.job.cancel
        )
        self.text.layout.width = "auto"
        self.children = (
            sheet(),
            row(self.all, self.end, self.reasons, self.bar, self.text),
            self.tabs,
        )
        self.add_class("ll-panel")
        self.state.job.observe(lambda c: self._status())
        self.state.job.observe(lambda c: self._watch(), "state")
        self.state.observe(lambda c: self._status(), "candidate")
        self.state.observe(self._forward, ["egraph", "result", "executable", "profile"])
        self._status()
        if session is not None:
            self.state.save(session)
            self.compare.refresh()

    def run_all(self) -> None:
        """Saturate, search, build and profile, one after the other."""

        def chain() -> None:
            job = self.state.job
            for start in (
                self.model.saturate, self.search.search, self.state.build, self.profile.profile,
            ):  # fmt: skip
                start()
                job.wait()
                if job.failed or "cancel" in job.message or "stopped" in job.message:
                    return

        threading.Thread(target=chain, daemon=True).start()

    def explain(self) -> None:
        """Show why the candidate won."""
        self.tabs.selected_index = self.panels.index(self.candidate)
        self.candidate.explain()

    def _wake(self) -> None:
        """Let the panel that is looked at show itself; what nobody sees is not drawn."""
        for k, panel in enumerate(self.panels):
            panel.awake = k == self.tabs.selected_index
            if panel.awake:
                panel.wake()

    def _status(self) -> None:
        job = self.state.job
        running = job.state != "idle"
        self.end.disabled = not running
        self.all.disabled = running
        self.reasons.disabled = self.state.candidate is None
        self.bar.value = max(job.fraction, 0.0) if running else 0.0
        self.bar.layout.display = "" if running else "none"
        tone = "bad" if job.failed else "muted"
        text = f"{job.stage}: {job.message}" if job.stage else (
            "Run all saturates, searches, builds and profiles; each panel runs one of them."
        )  # fmt: skip
        if job.state == "canceling":
            text = f"{job.stage}: canceling…"
        put(self.text, el("div", text, class_=tone, role="status"))

    def _watch(self) -> None:
        """Turn to the search while it runs: the best so far is there."""
        job = self.state.job
        if job.state == "running" and job.stage == "search":
            self.tabs.selected_index = self.panels.index(self.search)

    def _forward(self, change: dict) -> None:
        """Show the panel of the stage that has just ended."""
        if change["new"] is None:
            return
        self.tabs.selected_index = {"egraph": 1, "result": 2, "executable": 3, "profile": 5}[
            change["name"]
        ]

    def __repr__(self) -> str:
        s = self.state
        done = ["captured"]
        for name, word in (("egraph", "saturated"), ("result", "searched"),
                           ("executable", "built"), ("profile", "profiled")):  # fmt: skip
            if getattr(s, name) is not None:
                done.append(word)
        return f"Workbench({s.hlir.name}: {', '.join(done)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data: Any = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
            last = next(
                o for o in (self.state.profile, self.state.candidate, self.state.egraph,
                            self.state.hlir) if o is not None
            )  # fmt: skip
            data["text/html"] = last._repr_mimebundle_().get("text/html", "")
        return bundle


def panel_of(stage: Any) -> Panel:
    """The panel of a stage object, by itself.

    Arguments:
        stage: An Hlir, EGraph, Result, Candidate, Executable or Profile.

    Raises:
        LuminalError: for anything else.

    >>> import torch, luminal_lab as ll
    >>> panel = ll.capture(torch.nn.GELU(), (torch.ones(8),)).widget()
    >>> panel.title
    'Model'
    """
    state = State()
    if isinstance(stage, Hlir):
        state.hlir = stage
        return ModelPanel(state)
    if isinstance(stage, EGraph):
        state.hlir, state.egraph = stage.hlir, stage
        return EGraphPanel(state)
    if isinstance(stage, Result):
        state.hlir, state.result, state.candidate = stage.best.hlir, stage, stage.best
        return SearchPanel(state)
    if isinstance(stage, Candidate):
        state.hlir, state.candidate = stage.hlir, stage
        return CandidatePanel(state)
    if isinstance(stage, Executable):
        state.hlir, state.candidate = stage.hlir, stage.candidate
        state.executable = stage
        return ProfilePanel(state)
    if isinstance(stage, Profile):
        state.profile = stage
        return ProfilePanel(state)
    raise LuminalError(
        f"there is no panel for a {type(stage).__name__}",
        fix="pass an Hlir, EGraph, Result, Candidate, Executable or Profile",
    )
