"""The kernels: sources side by side, other schedules, and source edited by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import ipywidgets as w

from luminal_lab.codegen import schedule_space
from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import LuminalError
from luminal_lab.runtime.assembly import assembly, gpu_reports
from luminal_lab.runtime.trial import Trial, source_text, try_kernel
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import kernels as kernels_view
from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import el, fold, table
from luminal_lab.views.sources import lines_of
from luminal_lab.widgets.panels.base import (
    Panel,
    button,
    choice,
    html,
    nothing,
    offer,
    put,
    row,
)


class KernelsPanel(Panel):
    """The kernels of the candidate."""

    title = "Kernels"
    stage = "candidate"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.pick = choice("kernel", [], "Which kernel", wide="460px")
        self.languages = w.SelectMultiple(
            options=[("C", "c"), ("Triton", "triton"), ("Metal", "metal")],
            value=("c", "triton"), rows=3, description="languages",
            layout=w.Layout(width="220px"),
        )  # fmt: skip
        self.formula, self.sources = html(), html(nothing("No candidate yet."))
        self.schedule = choice("schedule", [], "A point of the schedule space", wide="560px")
        self.trials: list[tuple[str, Trial]] = []
        self.tried = html()
        self.rendered = html()
        self.editor = w.Textarea(layout=w.Layout(width="auto", height="420px"))
        self.editor.add_class("ll-code")
        time = button(
            "Verify and time", "Compile it, check it, time it", self.time, primary=True
        )
        each = button("Time all schedules", "Each point of the space", self.time_all)
        fresh = button("Start from the generated source", "Drop what was edited", self._fresh)
        mine = button("Compile, verify, time", "Try the edited source", self.time_edited,
                      primary=True)  # fmt: skip
        self.keep = button(
            "Keep for the build", "Build the candidate with this source", self._keep
        )
        self.keep.disabled = True
        self.kept: dict[int, Any] = {}
        machine = button("CPU assembly", "What the C compiler makes of it", self.show_assembly)
        gpus = button("GPU code and resources", "Compile the Triton source ahead of time",
                      self.show_gpus)  # fmt: skip
        self.machine = html(nothing("Compiled on demand; no GPU is needed."))
        self.pick.observe(lambda c: self._show(), "value")
        self.languages.observe(lambda c: self._sources(), "value")
        self.schedule.observe(lambda c: self._render(), "value")
        self.state.observe(lambda c: self._follow_nodes(), "nodes")
        self.follow("candidate", self._list)
        tabs = w.Tab(children=[
            w.VBox([row(self.languages), self.sources]),
            w.VBox([row(self.schedule, time, each), self.rendered]),
            w.VBox([row(machine, gpus), self.machine]),
            w.VBox([row(fresh, mine, self.keep), self.editor]),
        ])  # fmt: skip
        tabs.titles = ("Sources", "Schedules", "Machine code", "Edit by hand")
        return [row(self.pick), self.formula, tabs, self.tried]

    # ------------------------------------------------------------------------------ showing

    @property
    def kernel(self) -> Kernel | None:
        """The derived kernel that is shown; None for a library routine."""
        found = self.state.candidate
        if found is None or self.pick.value is None:
            return None
        kernel = found.kernels[self.pick.value]
        return kernel if isinstance(kernel, Kernel) else None

    def _list(self) -> None:
        found = self.state.candidate
        self.trials, self.kept = [], {}
        put(self.tried)
        if found is None:
            offer(self.pick, [])
            put(self.sources, nothing("No candidate yet: see the Search panel."))
            return
        names = [
            (f"k{k} {candidate_view.describe(kernel)}", k)
            for k, kernel in enumerate(found.kernels)
        ]
        offer(self.pick, names, candidate_view.costliest(found))
        self._show()

    def _show(self) -> None:
        found, k = self.state.candidate, self.pick.value
        if found is None or k is None:
            return
        formula = candidate_view.mathematics_of(
            found.kernels[k], candidate_view.first_bind(found, k)
        )
        put(self.formula, el("div", formula, class_="term"), self._came_from(found.kernels[k]))
        self._sources()
        kernel = self.kernel
        if kernel is None:
            offer(self.schedule, [])
            self.editor.value = ""
            return
        space = schedule_space(kernel)
        self._space = space
        points = [
            (f"{n}: {describe(s)}{' (default)' if not n else ''}", n)
            for n, s in enumerate(space)
        ]
        offer(self.schedule, points)
        self._fresh()
        self._render()

    def _came_from(self, kernel: Any) -> Any:
        """The user's lines that a kernel computes."""
        hlir = self.state.hlir
        lines = lines_of(hlir, kernel.nodes) if hlir is not None else []
        if not lines:
            return ""
        said = [
            el("li", el("code", line.place, title=line.source), " ", el("code", line.text))
            for line in lines
        ]
        return fold(f"From {units.plural(len(lines), 'source line')}", el("ul", *said))

    def _sources(self) -> None:
        found, k = self.state.candidate, self.pick.value
        if found is not None and k is not None:
            chosen = self.languages.value or ("c",)
            put(self.sources, *kernels_view.body(found, k, chosen)[1:])

    def _render(self) -> None:
        kernel, n = self.kernel, self.schedule.value
        if kernel is None or n is None:
            put(self.rendered, nothing("A library routine has no schedules."))
            return
        text = source_text(kernel, self._space[n].to_data())
        put(self.rendered, code(text, "c", "C under this schedule"))

    def _fresh(self) -> None:
        kernel = self.kernel
        if kernel is not None:
            found, k = self.state.candidate, self.pick.value
            chosen = found.schedules[k] if k < len(found.schedules) else None
            self.editor.value = source_text(kernel, chosen)

    def _follow_nodes(self) -> None:
        found = self.state.candidate
        wanted = set(self.state.nodes)
        if found is None or not wanted:
            return
        for k, kernel in enumerate(found.kernels):
            if wanted.intersection(kernel.nodes):
                self.pick.value = k
                return

    # ------------------------------------------------------------------------- machine code

    def show_assembly(self) -> None:
        """Compile the C of the schedule that is shown to assembly."""
        kernel, n = self.kernel, self.schedule.value
        if kernel is None or n is None:
            put(self.machine, nothing("A library routine has no source."))
            return
        data = self._space[n].to_data()
        self._machine(lambda: put(self.machine, *kernels_view.assembly(assembly(kernel, data))))

    def show_gpus(self) -> None:
        """Compile the Triton source for several architectures."""
        kernel = self.kernel
        if kernel is None:
            put(self.machine, nothing("A library routine has no source."))
            return
        self._machine(lambda: put(self.machine, *kernels_view.gpu_code(gpu_reports(kernel))))

    def _machine(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except LuminalError as error:
                put(self.machine, el("pre", str(error), class_="bad"))

        self.state.job.start("compilation of one kernel", guarded)

    # ------------------------------------------------------------------------------- trials

    def time(self) -> None:
        """Verify and time the schedule that is shown."""
        kernel, n = self.kernel, self.schedule.value
        if kernel is not None and n is not None:
            data = self._space[n].to_data()
            self._start([(f"schedule {n}", data, None)])

    def time_all(self) -> None:
        """Verify and time every schedule."""
        if self.kernel is not None:
            self._start(
                [(f"schedule {n}", s.to_data(), None) for n, s in enumerate(self._space)]
            )

    def time_edited(self) -> None:
        """Verify and time the edited source."""
        if self.kernel is not None:
            self._start([("edited", None, self.editor.value)])

    def _start(self, plan: list[tuple[str, Any, str | None]]) -> None:
        kernel, k = self.kernel, self.pick.value
        assert kernel is not None

        def work() -> None:
            for n, (name, schedule, text) in enumerate(plan):
                self.state.job.tell(f"{name}, {n} of {len(plan)} done", n / len(plan))
                try:
                    trial = try_kernel(kernel, schedule, text)
                except LuminalError as error:
                    put(self.tried, el("p", str(error), class_="bad"))
                    return
                self.trials.append((f"k{k} {name}", trial))
                self.keep.disabled = not (trial.edited and trial.measurement.ok)
                put(self.tried, trial_table(self.trials))

        self.state.job.start("kernel trial", work)

    def _keep(self) -> None:
        """Build the candidate with the edited source in place of the generated one."""
        from dataclasses import replace

        from luminal_lab.runtime.building import build
        from luminal_lab.search.canonical import canonical

        trial = self.trials[-1][1]
        kernel, k, found = self.kernel, self.pick.value, self.state.candidate
        if kernel is None or not trial.measurement.ok:
            return
        _, _, back = canonical(kernel)
        code = replace(trial.code, params=tuple(back.get(p, p) for p in trial.code.params))
        self.kept[k] = code

        def done(executable: Any) -> None:
            self.state.executable = executable

        self.state.job.start("compilation", lambda: build(found, code=dict(self.kept)), done)


_HINTS = {"stream": "results past the caches", "ahead": "next rows asked for"}


def describe(schedule: Any) -> str:
    """A schedule in a line."""
    data = schedule.to_data()
    parts = []
    for key in ("grid", "serial"):
        if data[key]:
            parts.append(f"{key} " + " ".join(f"{a}:{n}" for a, n in data[key]))
    if data["tiles"]:
        parts.append("tiles " + " ".join(f"{a}×{b}" for a, b in data["tiles"]))
    block, steps = data["column_block"]
    parts.append(f"unroll {data['unroll']}, keep {data['keep']}, columns {block}×{steps}")
    parts += [text for key, text in _HINTS.items() if data[key]]
    return ", ".join(parts)


def trial_table(trials: list[tuple[str, Trial]]) -> Any:
    """What was tried: verdict, time, error; the fastest right one is emphasised."""
    right = [t.measurement.median for _, t in trials if t.measurement.ok]
    best = min((m for m in right if m), default=None)
    rows = []
    for name, t in trials:
        m = t.measurement
        verdict = (
            el("span", "✓ right", class_="good")
            if m.ok
            else el("span", f"✗ {m.reason}", class_="bad")
        )
        rows.append([
            name, verdict,
            f"{units.seconds(m.median)} ± {units.seconds(m.iqr)}" if m.median else None,
            f"{m.median / best:.2f}×" if m.median and best else None,
            f"{m.max_error:.2g}" if m.ok else None,
            el("pre", m.message) if m.message else "",
        ])  # fmt: skip
    head = ["tried", "verdict", ("time", "num"), ("to the fastest", "num"),
            ("largest error", "num"), "message"]  # fmt: skip
    fastest = [best is not None and t.measurement.median == best for _, t in trials]
    return table(head, rows, label="kernel trials", marked=fastest.__getitem__)
