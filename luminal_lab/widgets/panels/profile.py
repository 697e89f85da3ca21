"""The profile: a timeline, a roofline, times by kernel, and a comparison with PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import ipywidgets as w

from luminal_lab import api
from luminal_lab.session import safe_name
from luminal_lab.views import profile as profile_view
from luminal_lab.views.html import el
from luminal_lab.widgets.panels.base import Panel, button, html, nothing, number, put, row

_FAR = 5.0  # times the prediction beyond which a profile is doubted


class ProfilePanel(Panel):
    """Times of the built candidate."""

    title = "Profile"
    stage = "profile"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.repeats = number("runs", 20, "Timed runs", wide=120)
        self.go = button("Profile", "Time it kernel by kernel", self.profile, primary=True)
        self.export = button("Chrome trace", "Write trace.json for Perfetto", self.write_trace)
        self.eager = button("Compare with PyTorch", "Time eager PyTorch in the same rounds",
                            lambda: self.versus(False))  # fmt: skip
        tip = "Inductor compiles first; this can take long"
        self.inductor = button("… and torch.compile", tip, lambda: self.versus(True))
        self.note, self.others = html(), html()
        self.view = html(nothing("Build a candidate first: see the Candidate panel."))
        self.follow(["executable", "profile"], self._show)
        controls = row(self.go, self.repeats, self.eager, self.inductor, self.export)
        return [controls, self.note, self.others, self.view]

    def profile(self) -> None:
        """Time the executable on the workbench's inputs."""
        state = self.state
        if state.executable is None:
            return
        args = state.args
        if args is None:
            args, _ = state.executable.example_inputs()

        def work() -> Any:
            return api.profile(state.executable, args, repeats=self.repeats.value)

        def done(profile: Any) -> None:
            state.profile = profile

        state.job.start("profile", work, done)

    def versus(self, inductor: bool) -> None:
        """Time the executable against the module as it is, and as Inductor compiles it."""
        state = self.state
        args = state.args
        if state.executable is None or state.module is None or args is None:
            put(self.others, nothing("There is no module to compare with."))
            return

        def work() -> Any:
            import torch

            from luminal_lab.bench.timing import compare

            fns = {"eager": state.module}
            if inductor:
                state.job.tell("Inductor compiles the module")
                fns["torch.compile"] = torch.compile(state.module)
            fns["luminal_lab"] = state.executable
            return compare(fns, args, rounds=self.repeats.value, name=state.hlir.name,
                           reference=lambda: state.module(*args))  # fmt: skip

        def done(found: Any) -> None:
            put(self.others, *profile_view.comparison(found))

        state.job.start("comparison", work, done)

    def write_trace(self) -> None:
        """Write the timeline as a trace that Chrome and Perfetto open."""
        from pathlib import Path

        path = Path(f"{safe_name(self.state.profile.name)}-trace.json")
        path.write_text(json.dumps(profile_view.trace(self.state.profile)), encoding="utf-8")
        put(self.note, el("p", f"Wrote {path.resolve()}; open it at ui.perfetto.dev."))

    def _show(self) -> None:
        profile = self.state.profile
        self.go.disabled = self.state.executable is None
        self.export.disabled = profile is None
        self.eager.disabled = self.inductor.disabled = self.state.executable is None
        if profile is not None:
            found = self.state.candidate
            said = doubt(profile, found.seconds if found is not None else 0.0)
            put(self.view, el("p", said, class_="warn") if said else None,
                *profile_view.body(profile))  # fmt: skip
        elif self.state.executable is not None:
            put(self.view, nothing("Built, not yet timed."))
        else:
            put(self.view, nothing("Build a candidate first: see the Candidate panel."))


def doubt(profile: Any, predicted: float) -> str:
    """Why a profile may tell more of other programs on this machine than of this one."""
    took = sum(k.median for k in profile.kernels)
    if not predicted > 0 or took < _FAR * predicted:
        return ""
    busy = ""
    if hasattr(os, "getloadavg"):
        busy = f" (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
    return (
        f"This is {took / predicted:,.0f} times what the cost model predicts. If "
        f"others run on this machine{busy}, they may be what was measured: a kernel waits "
        "until all its threads have had a core. Profile again when it is calm; Compare with "
        "PyTorch times both in the same rounds."
    )
