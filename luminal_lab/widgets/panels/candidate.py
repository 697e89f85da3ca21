"""The candidate: its kernels and buffers, memory over time, what decided, and comparisons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ipywidgets as w

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import LuminalError
from luminal_lab.search import Candidate, Result
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import chart, graphs, units
from luminal_lab.views import derivation as derivation_view
from luminal_lab.views import why as why_view
from luminal_lab.views.html import el, fold, scroll, table
from luminal_lab.views.steps import derive
from luminal_lab.widgets.graph import GraphView
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

_MANY = 200  # choices in the list of candidates


class CandidatePanel(Panel):
    """One candidate, and how it differs from others."""

    title = "Candidate"
    stage = "candidate"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.pick = choice("candidate", [], "Which candidate to look at")
        self.other = choice("compare with", [], "Another candidate")
        self.go = button("Build", "Compile it to one library", self.state.build, primary=True)
        self.facts = html(nothing("No candidate yet: see the Search panel."))
        self.graph = GraphView(graphs.GraphData("Kernels", (), ()))
        self.why, self.kernels, self.memory, self.diff = html(), html(), html(), html()
        self.derived = choice("kernel", [], "Whose derivation to show", wide="460px")
        self.steps = html()
        self.pick.observe(self._picked, "value")
        self.other.observe(lambda c: self._diff(), "value")
        self.graph.observe(self._select, "selected")
        self.state.observe(lambda c: self._light(), "nodes")
        self.state.observe(lambda c: self._memory(), "executable")
        self.derived.observe(lambda c: self._derive(), "value")
        self._listing, self._listed = False, None
        self._stale = {1, 2, 5}  # tabs that are made when they are looked at
        self.tabs = w.Tab(children=[
            w.VBox([self.graph]), self.why, w.VBox([row(self.derived), self.steps]),
            self.kernels, self.memory, w.VBox([row(self.other), self.diff]),
        ])  # fmt: skip
        self.tabs.titles = ("Graph", "Why this one", "How it follows", "What it computes",
                            "Memory", "Difference")  # fmt: skip
        self.tabs.observe(lambda c: self._refresh(), "selected_index")
        self.follow(["result", "by_hand", "rank"], self._list)
        self.follow("candidate", self._show)
        return [row(self.go, self.pick), self.facts, self.tabs]

    def explain(self) -> None:
        """Turn to the reasons for this candidate."""
        self.tabs.selected_index = 1

    def _refresh(self) -> None:
        """Bring the tab that is looked at up to date."""
        at = self.tabs.selected_index
        if at in self._stale and self.state.candidate is not None:
            self._stale.discard(at)
            {1: self._why, 2: self._derive, 5: self._diff}[at]()

    def _list(self) -> None:
        result = self.state.result
        if result is None:
            offer(self.pick, [])
            offer(self.other, [])
            return
        many = min(len(result.candidates), _MANY)
        names = [("the best", -1), *((f"rank {k}", k) for k in range(many))]
        made = self.state.by_hand
        names += [(f"by hand: {c.name}", -2 - k) for k, c in enumerate(made)]
        self._listing = True
        try:
            offer(self.pick, names, self.state.rank)
        finally:
            self._listing = False
        if result is not self._listed:  # what was chosen to compare with stays
            self._listed = result
            offer(self.other, [("–", None), *names], unlike(result, many))

    def _picked(self, change: dict) -> None:
        if self.state.result is None or change["new"] is None or self._listing:
            return
        try:
            self.state.choose(change["new"])
        except LuminalError as error:  # a session whose e-graph is another one
            put(self.facts, el("p", str(error), class_="bad"))

    def _show(self) -> None:
        found: Candidate | None = self.state.candidate
        self.go.disabled = found is None
        if found is None:
            put(self.facts, nothing("No candidate yet: see the Search panel."))
            return
        put(self.facts, candidate_view.summary(found))
        self.graph.show(graphs.of_candidate(found))
        put(self.kernels, candidate_view.kernel_table(found),
            fold("What each kernel computes", *candidate_view.mathematics(found)),
            fold("All calls", candidate_view.call_table(found)))  # fmt: skip
        names = [
            (f"k{k} {candidate_view.describe(kernel)}", k)
            for k, kernel in enumerate(found.kernels) if isinstance(kernel, Kernel)
        ]  # fmt: skip
        worst = candidate_view.costliest(found)
        offer(self.derived, names, worst if worst in dict(names).values() else None)
        self._stale = {1, 2, 5}
        self._refresh()
        self._memory()

    def _derive(self) -> None:
        """How the chosen kernel follows from the program."""
        egraph, found, k = self.state.egraph, self.state.candidate, self.derived.value
        if 2 in self._stale or found is None:
            return
        if egraph is None or k is None:
            said = "Every kernel is a library's." if k is None else "There is no e-graph."
            put(self.steps, nothing(said))
            return
        try:
            put(self.steps, *derivation_view.body(egraph, derive(egraph, found, k)))
        except LuminalError as error:
            put(self.steps, el("p", str(error), class_="bad"))

    def _why(self) -> None:
        result, found = self.state.result, self.state.candidate
        if result is None:
            put(self.why, nothing("It did not come from a search."))
            return
        try:
            put(self.why, *why_view.body(result.why(found)))
        except LuminalError as error:
            put(self.why, el("p", str(error), class_="bad"))

    def _memory(self) -> None:
        executable = self.state.executable
        if executable is None:
            put(self.memory, nothing("Build it to see the memory plan."))
            return
        try:
            plan = executable.plan
        except LuminalError as error:
            put(self.memory, nothing(str(error)))
            return
        put(self.memory, *memory(plan))

    def _diff(self) -> None:
        if 5 in self._stale:
            return
        if self.other.value is None or self.state.candidate is None:
            put(self.diff, nothing("Choose another candidate."))
            return
        try:
            other = self.state.at(self.other.value)
        except LuminalError as error:
            put(self.diff, el("p", str(error), class_="bad"))
            return
        self.diff.value = str(candidate_view.difference(self.state.candidate, other).html)

    def _select(self, change: dict) -> None:
        if change["new"]:
            self.state.nodes = self.graph.hlir_of(change["new"])

    def _light(self) -> None:
        self.graph.select_hlir(set(self.state.nodes))


def unlike(result: Result, most: int) -> int | None:
    """The rank of the first candidate with another number of kernels than the best one."""
    mine = {r.region: r.kernels for r in result.rows if r.chosen}
    ranks = [
        r.rank for r in result.rows if r.kernels != mine.get(r.region, r.kernels)
        and r.status != "rejected" and r.rank < most
    ]  # fmt: skip
    return min(ranks, default=None)


def memory(plan: Any) -> list[Any]:
    """The arena over the calls of a run: a bar per buffer, at its live range."""
    inside = [p for p in plan.placements if p.place == "arena"]
    shown = sorted(inside, key=lambda p: -p.nbytes)[:40]
    shown.sort(key=lambda p: (p.first, p.offset))
    bars = [
        chart.Span(p.name, float(p.first), float(p.last - p.first + 1), units.size(p.nbytes),
                   f"{p.name}: {units.size(p.nbytes)} at {p.offset:,}, {p.first}–{p.last}")
        for p in shown
    ]  # fmt: skip
    rows = [
        [p.name, p.place, units.size(p.nbytes), f"{p.offset:,}", f"{p.first}–{p.last}",
         p.over or None]
        for p in plan.placements
    ]  # fmt: skip
    head = [("buffer", "code"), "place", ("size", "num"), ("offset", "num"), ("calls", "num"),
            ("overwrites", "code")]  # fmt: skip
    return [
        el("p", f"The arena takes {units.size(plan.arena_bytes)}; without sharing it would be "
           f"{units.size(plan.sum_bytes)}, and {units.size(plan.live_bytes)} are live at once."
           f" Weights that were packed or computed at build time take "
           f"{units.size(plan.persistent_bytes)}."
           + (" A workspace is what one kernel needs while it runs; it is no temporary of the "
              "program." if any("workspace" in p.name for p in inside) else "")),
        scroll(chart.spans("Live ranges of buffers over the calls of a run", bars,
                           lambda v: f"{v:.0f}", whole=True), label="memory plan", tall=True)
        if bars else nothing("No buffer lives in the arena."),
        fold("All buffers", table(head, rows, label="buffers")),
    ]  # fmt: skip
