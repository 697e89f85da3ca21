"""The kernels: sources side by side, other schedules, and source edited by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import ipywidgets as w

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import LuminalError
from luminal_lab.runtime.assembly import assembly, gpu_reports
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.trial import Trial, source_text, try_kernel
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import kernels as kernels_view
from luminal_lab.views import trials as trials_view
from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import el, fold
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

_SOURCES, _SCHEDULES = 0, 1  # tabs that are made when they are looked at


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
            tooltip="Ctrl or Shift to choose several", layout=w.Layout(width="220px"),
        )  # fmt: skip
        self.formula, self.sources = html(), html(nothing("No candidate yet."))
        self.schedule = choice(
            "schedule", [], "A point of the schedule space", wide="calc(100% - 4px)"
        )
        self.space: list[Any] = []  # plain data of the schedules to choose from
        self.trials: list[tuple[str, Trial]] = []
        self.last: tuple[Any, int, Any, str | None] | None = None  # what may be kept
        self.said, self.tried, self.rendered = html(), html(), html()
        self.editor = w.Textarea(layout=w.Layout(width="auto", height="420px"))
        self.editor.add_class("ll-code")
        self.base: Any = None  # the schedule that the edited source started from
        time = button(
            "Verify and time", "Compile it, check it, time it", self.time, primary=True
        )
        each = button("Time all schedules", "Each point of the space", self.time_all)
        tip = "Drop what was edited; take the schedule that is chosen"
        fresh = button("Start from the generated source", tip, self._fresh)
        mine = button("Compile, verify, time", "Try the edited source", self.time_edited,
                      primary=True)  # fmt: skip
        tip = (
            "Make the candidate with the last one that was tried in place of its own; build it"
        )
        self.keep = button("Keep as a candidate", tip, self.keep_last)
        self.keep.disabled = True
        machine = button("CPU assembly", "What the C compiler makes of it", self.show_assembly)
        gpus = button("GPU code and resources", "Compile the Triton source ahead of time",
                      self.show_gpus)  # fmt: skip
        self.machine = html(nothing("Compiled on demand; no GPU is needed."))
        self._stale = {_SOURCES, _SCHEDULES}
        self._filling = False
        self.pick.observe(lambda c: self._filling or self._show(), "value")
        self.languages.observe(lambda c: self._renew(_SOURCES), "value")
        self.schedule.observe(lambda c: self._filling or self._renew(_SCHEDULES), "value")
        self.tabs = w.Tab(children=[
            w.VBox([row(self.languages), self.sources]),
            w.VBox([self.schedule, row(time, each, self.keep), self.said, self.tried,
                    self.rendered]),
            w.VBox([row(machine, gpus), self.machine]),
            w.VBox([row(fresh, mine, self.keep), self.said, self.editor, self.tried]),
        ])  # fmt: skip
        self.tabs.titles = ("Sources", "Schedules", "Machine code", "Edit by hand")
        self.tabs.observe(lambda c: self.wake(), "selected_index")
        self.state.observe(lambda c: self._follow_nodes(), "nodes")
        self.follow("candidate", self._list)
        return [row(self.pick), self.formula, self.tabs]

    # ------------------------------------------------------------------------------ showing

    @property
    def kernel(self) -> Kernel | None:
        """The derived kernel that is shown; None for a library routine."""
        found = self.state.candidate
        if found is None or self.pick.value is None:
            return None
        kernel = found.kernels[self.pick.value]
        return kernel if isinstance(kernel, Kernel) else None

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Fill fields without showing anything yet."""
        before, self._filling = self._filling, True
        try:
            yield
        finally:
            self._filling = before

    def _list(self) -> None:
        found = self.state.candidate
        if found is None:
            offer(self.pick, [])
            put(self.sources, nothing("No candidate yet: see the Search panel."))
            return
        names = [
            (f"k{k} {candidate_view.describe(kernel)}", k)
            for k, kernel in enumerate(found.kernels)
        ]
        kept = self.state.by_hand and found is self.state.by_hand[-1]
        at = self.pick.value if kept else candidate_view.costliest(found)
        with self._quietly():
            offer(self.pick, names, at)
        if not kept:
            self.trials = []
            put(self.tried)
            put(self.said)
            self.keep.disabled = True
        self._show()

    def _show(self) -> None:
        found, k = self.state.candidate, self.pick.value
        if found is None or k is None:
            return
        formula = candidate_view.mathematics_of(
            found.kernels[k], candidate_view.first_bind(found, k)
        )
        put(self.formula, el("div", formula, class_="term"), self._came_from(found.kernels[k]))
        kernel = self.kernel
        self.space, points, at = [], [], None
        if kernel is not None:
            own = found.schedules[k] if k < len(found.schedules) else None
            self.space = list(CpuTarget().schedules(kernel))
            if own is not None and own not in self.space:
                self.space.append(own)
            at = 0 if own is None else self.space.index(own)
            points = [
                (f"{n}: {trials_view.schedule_line(s)}{' (this candidate)' * (n == at)}", n)
                for n, s in enumerate(self.space)
            ]
        with self._quietly():
            offer(self.schedule, points, at)
        if kernel is None:
            self.editor.value = ""
        else:
            self._fresh()
            self.editor.value = found.written.get(k, self.editor.value)
        self._stale = {_SOURCES, _SCHEDULES}
        self.wake()

    def wake(self) -> None:
        """Bring the tab that is looked at up to date."""
        at = self.tabs.selected_index
        if self.awake and at in self._stale:
            self._stale.discard(at)
            {_SOURCES: self._sources, _SCHEDULES: self._render}[at]()

    def _renew(self, tab: int) -> None:
        self._stale.add(tab)
        self.wake()

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
        put(self.rendered, code(source_text(kernel, self.space[n]), "c",
                                "C under this schedule"))  # fmt: skip

    def _fresh(self) -> None:
        kernel, n = self.kernel, self.schedule.value
        if kernel is not None and n is not None:
            self.base = self.space[n]
            self.editor.value = source_text(kernel, self.base)

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
        label, data = self.schedule.label, self.space[n]
        self._machine(lambda: put(
            self.machine, el("p", f"Of schedule {label}", class_="muted"),
            *kernels_view.assembly(assembly(kernel, data)),
        ))  # fmt: skip

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

        if self.state.job.start("compilation of one kernel", guarded, prompt=True):
            put(self.machine, nothing("The compiler runs …"))

    # ------------------------------------------------------------------------------- trials

    def time(self) -> None:
        """Verify and time the schedule that is shown."""
        n = self.schedule.value
        if self.kernel is not None and n is not None:
            self._start([(f"schedule {n}", self.space[n], None)])

    def time_all(self) -> None:
        """Verify and time every schedule."""
        if self.kernel is not None:
            self._start([(f"schedule {n}", s, None) for n, s in enumerate(self.space)])

    def time_edited(self) -> None:
        """Verify and time the edited source."""
        if self.kernel is not None:
            self._start([("edited", self.base, self.editor.value)])

    def _start(self, plan: list[tuple[str, Any, str | None]]) -> None:
        kernel, k, found = self.kernel, self.pick.value, self.state.candidate
        assert kernel is not None

        def work() -> None:
            for n, (name, schedule, text) in enumerate(plan):
                self.state.job.tell(f"{name}, {n} of {len(plan)} done", n / len(plan))
                try:
                    trial = try_kernel(kernel, schedule, text)
                except LuminalError as error:
                    put(self.said, el("p", str(error), class_="bad"))
                    return
                name = f"k{k} {name}"
                self.trials.append((name, trial))
                self.state.record_trial(name, trial)
                # What to keep: this kernel of this candidate, under this schedule, from this C.
                self.last = (found, k, schedule, text)
                self.keep.disabled = not trial.measurement.ok
                put(self.said, *trials_view.last_trial(name, trial))
                put(self.tried, trials_view.trial_table(self.trials))

        self.state.job.start("kernel trial", work, prompt=True)

    def keep_last(self) -> None:
        """Make a candidate of what was tried last, and build it."""
        if self.last is None or self.keep.disabled or self.state.job.state != "idle":
            return
        found, k, schedule, text = self.last
        schedules = [*found.schedules, *[None] * (len(found.kernels) - len(found.schedules))]
        schedules[k] = schedule
        written = {n: c for n, c in found.written.items() if n != k}
        if text is not None:
            written[k] = text
        made = replace(found, schedules=tuple(schedules), written=written)
        self.state.keep(made)
        put(
            self.said,
            el("p", f"Kept as candidate {made.name}; it is built now.", class_="good"),
        )
        self.state.build()
