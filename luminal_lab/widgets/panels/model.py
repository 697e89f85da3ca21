"""The model: its program as a graph, what falls back to ATen, and the way to the e-graph."""

from __future__ import annotations

from collections.abc import Iterable

import ipywidgets as w

from luminal_lab.egraph import Limits
from luminal_lab.views import graphs
from luminal_lab.views import hlir as hlir_view
from luminal_lab.views.html import fold
from luminal_lab.views.sources import operators, source_lines, work
from luminal_lab.widgets.graph import GraphView
from luminal_lab.widgets.panels.base import Panel, button, html, nothing, number, put, row
from luminal_lab.widgets.table import TableView, column

COLUMNS = [
    column("place", "line", code=True),
    column("function", "function"),
    column("text", "source", code=True),
    column("operators", "operators"),
    column("nodes", "nodes", number=True),
    column("work", "work", unit="FLOP"),
]


class ModelPanel(Panel):
    """The captured program."""

    title = "Model"
    stage = "hlir"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.graph = GraphView(graphs.GraphData("Graph", (), ()))
        self._of: dict[str, tuple[int, ...]] = {}  # nodes by source line
        self.facts = html(nothing("Nothing is captured yet."))
        self.lines = TableView("source lines", COLUMNS, height=220)
        self.tables = html()
        limits = Limits()
        self.iterations = number("iterations", limits.iterations, "Iterations per region")
        self.rows = number("e-nodes", limits.rows, "E-nodes per region at most")
        self.seconds = number("seconds", limits.seconds, "Seconds per region", whole=False)
        self.go = button(
            "Saturate", "Grow the e-graph with the rules", self.saturate, primary=True
        )
        self.graph.observe(self._select, "selected")
        self.lines.observe(self._of_line, "selected")
        self.state.observe(self._light, "nodes")
        self.follow("hlir", self._show)
        controls = row(self.go, self.iterations, self.rows, self.seconds)
        return [controls, self.facts, self.graph, self.lines, self.tables]

    def saturate(self) -> None:
        """Start the saturation."""
        limits = Limits(
            iterations=self.iterations.value, rows=self.rows.value, seconds=self.seconds.value
        )
        self.state.saturate(limits)

    def _show(self) -> None:
        hlir = self.state.hlir
        self.go.disabled = hlir is None
        if hlir is None:
            return
        put(self.facts, hlir_view.summary(hlir))
        self.graph.show(graphs.of_hlir(hlir))
        lines = source_lines(hlir)
        self._of = {line.source: line.nodes for line in lines}
        self.lines.marked = []
        self.lines.layout.display = "" if self._of else "none"
        self.lines.show([
            {"key": line.source, "place": line.place, "function": line.function,
             "text": line.text, "operators": operators(hlir, line), "nodes": len(line.nodes),
             "work": work(hlir, line)}
            for line in lines
        ])  # fmt: skip
        tables = [fold("Modules", hlir_view.module_table(hlir))]
        custom = [n for n, node in enumerate(hlir.nodes) if node.op == "Custom"]
        if custom:
            title = f"Fallbacks to ATen ({len(custom)})"
            tables.insert(0, fold(title, hlir_view.node_table(hlir, custom), open_=True))
        put(self.tables, *tables)

    def _select(self, change: dict) -> None:
        key = change["new"]
        self.state.nodes = self.graph.hlir_of(key) if key else ()

    def _of_line(self, change: dict) -> None:
        if change["new"]:
            self.state.nodes = self._of[change["new"]]

    def _light(self, change: dict) -> None:
        found = set(change["new"])
        self.lines.marked = [s for s, nodes in self._of.items() if found.intersection(nodes)]
        if self.lines.selected and found != set(self._of.get(self.lines.selected, ())):
            self.lines.selected = ""
        own = self.graph.hlir_of(self.graph.selected) if self.graph.selected else ()
        if tuple(change["new"]) != tuple(own):
            self.graph.select_hlir(set(change["new"]))
        else:
            self.graph.highlighted = []
