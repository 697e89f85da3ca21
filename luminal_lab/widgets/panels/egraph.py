"""The e-graph: how it grew, which rules did it, the forms of any node, rules of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets as w

from luminal_lab.egraph import check_rule
from luminal_lab.egraph.egraph import ENCODED, EClass, EGraph, Part
from luminal_lab.errors import LuminalError
from luminal_lab.search import Candidate
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import explain as explain_view
from luminal_lab.views import graphs, units
from luminal_lab.views import hlir as hlir_view
from luminal_lab.views import why_not as why_not_view
from luminal_lab.views.html import el, scroll, table
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

_WHOLE = 120  # e-classes up to which the whole e-graph is drawn at once
_SHOWN = 60  # e-nodes of one iteration that are listed


class EGraphPanel(Panel):
    """The saturated e-graph."""

    title = "E-graph"
    stage = "egraph"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.facts = html(nothing("Nothing is saturated yet: see the Model panel."))
        self.region = choice("region", [("0", 0)], "Which region to look at")
        self.iteration = w.IntSlider(
            value=0, min=0, max=0, description="iteration", continuous_update=False,
            layout=w.Layout(width="420px"),
        )  # fmt: skip
        self.play = w.Play(value=0, min=0, max=0, interval=900, description="Grow")
        w.jslink((self.play, "value"), (self.iteration, "value"))
        self.growth, self.born = html(), html()
        self.rules = html()
        self.node = choice("node", [], "A node of the program", wide="420px")
        self.forms = html()
        self.graph = GraphView(graphs.GraphData("E-graph", (), ()))
        self.whole = w.Checkbox(
            value=False, description="the whole e-graph", indent=False,
            tooltip="Not only what is near the node", layout=w.Layout(width="auto"),
        )  # fmt: skip
        self._drawn: Any = None  # the region and e-classes that are drawn
        self._clicked = False
        self.editor = w.Textarea(
            placeholder=RULE_HINT, layout=w.Layout(width="auto", height="150px"),
        )  # fmt: skip
        self.verdict = html()
        self.rule = choice("rule", [], "A rule of this e-graph", wide="300px")
        self.goal = choice("to the form", [], "A member of the node's e-class", wide="420px")
        why = button("Did it fire here? Why not?", "The first premise that fails", self.why_not)
        path = button("Explain", "The chain of rules from the node to this form", self.explain)
        self.reason = html(nothing(
            "About the node that is chosen in the tab before. How a whole kernel follows from "
            "the program stands in the Candidate panel."
        ))  # fmt: skip
        self.onward: Callable[[], Any] = self.state.search  # the workbench has its controls
        self.search = button(
            "Search", "Go on to the search", lambda: self.onward(), primary=True
        )
        check = button("Check", "Parse it, and test it on random instances", self.check)
        again = button(
            "Saturate with it",
            "Check it, then grow the e-graph again",
            self.again,
            primary=True,
        )
        self.region.observe(lambda c: self._part(), "value")
        self.iteration.observe(lambda c: self._born(), "value")
        self.node.observe(lambda c: self._forms(), "value")
        self.whole.observe(lambda c: self._draw(), "value")
        self.graph.observe(self._select, "selected")
        self.state.observe(lambda c: self._light(), "nodes")
        self.state.observe(lambda c: self._goals(), "candidate")
        self.follow("egraph", self._show)
        inner = w.Tab()
        inner.children = [
            w.VBox([row(self.play, self.iteration), self.growth, self.born]),
            w.VBox([self.rules]),
            w.VBox([row(self.node), self.forms, row(self.whole), self.graph]),
            w.VBox([row(self.rule, why), row(self.goal, path), self.reason]),
            w.VBox([self.editor, row(check, again), self.verdict]),
        ]
        inner.titles = ("Growth", "Rules", "Forms of a node", "Why", "Your rules")
        return [row(self.search, self.region), self.facts, inner]

    # ------------------------------------------------------------------------------ showing

    @property
    def part(self) -> Part | None:
        """The region that is shown."""
        egraph: EGraph | None = self.state.egraph
        return None if egraph is None else egraph.parts[self.region.value or 0]

    def _show(self) -> None:
        egraph: EGraph | None = self.state.egraph
        self.search.disabled = egraph is None
        if egraph is None:
            return
        regions = [
            (f"{p.region}: {egraph_view.copies(egraph, p) or 'the program'}", k)
            for k, p in enumerate(egraph.parts)
        ]
        offer(self.region, regions)
        put(self.facts, egraph_view.summary(egraph))
        put(self.rules, egraph_view.leaderboard(egraph))
        offer(self.rule, sorted((r.name, r.name) for r in egraph.rules))
        self._part()

    def _part(self) -> None:
        part = self.part
        if part is None:
            return
        last = len(part.report.iterations) - 1
        self.play.max = self.iteration.max = last
        self.iteration.value = last
        self._born()
        nodes = [
            (f"%{n} {hlir_view.label(part.hlir, part.hlir.nodes[n])}  "
             f"{part.hlir.nodes[n].source.module}", n)
            for n in sorted(part.node_class)
            if part.hlir.nodes[n].op != "Input"
        ]  # fmt: skip
        made = {t for _, t in part.outputs}
        last = [n for _, n in nodes if part.node_class[n] in made]
        self._drawn = None
        offer(self.node, nodes, last[-1] if last else None)
        self.whole.layout.display = "" if len(part.classes) > _WHOLE else "none"
        self._draw()
        self._forms()
        self._light()

    def _born(self) -> None:
        egraph, part = self.state.egraph, self.part
        if egraph is None or part is None:
            return
        at = self.iteration.value
        curve = egraph_view.growth_svg(egraph, parts=(part,), at=at)
        put(self.growth, scroll(curve, label="growth of this region"))
        put(self.born, *born(part, at))

    def _draw(self) -> None:
        """Draw the e-graph, of a large one what is near the chosen node."""
        egraph, node, part = self.state.egraph, self.node.value, self.part
        if egraph is None or part is None:
            return
        around: tuple[int, ...] = ()
        if node is not None and len(part.classes) > _WHOLE and not self.whole.value:
            around = tuple(c.id for c in egraph.classes_of(node, part.region))
        if (id(part), around) != self._drawn:
            self._drawn = id(part), around
            self.graph.show(graphs.of_part(part, around))

    def _forms(self) -> None:
        egraph, node = self.state.egraph, self.node.value
        if egraph is None or node is None:
            return
        put(self.forms, egraph_view.forms_of(egraph.parts[self.region.value or 0], node))
        part = self.part
        if part is not None:
            if not self._clicked:  # what was clicked stays where it is
                self._draw()
            inside = {f"c{c.id}" for c in egraph.classes_of(node, part.region)}
            self.graph.highlighted = [
                n.key for n in self.graph.graph.nodes if n.group in inside
            ]
            self._goals()

    def _goals(self) -> None:
        """Offer the forms of the node, first of all the one that the candidate took."""
        egraph, node, part = self.state.egraph, self.node.value, self.part
        if egraph is None or node is None or part is None:
            return
        forms = members(part, egraph.classes_of(node, part.region))
        chosen = taken(self.state.candidate, part.region)
        offer(self.goal, forms, next((key for _, key in forms if key in chosen), None))

    def _select(self, change: dict) -> None:
        hlir = self.graph.hlir_of(change["new"]) if change["new"] else ()
        known = {n for _, n in self.node.options}
        self._clicked = True
        try:
            for n in hlir:
                if n in known:
                    self.node.value = n
        finally:
            self._clicked = False

    def _light(self) -> None:
        """Show the forms of what is selected in the program, when this region holds it."""
        egraph: EGraph | None = self.state.egraph
        if egraph is None:
            return
        known = {n for _, n in self.node.options}
        for program_node in self.state.nodes:
            for instance in egraph.program.instances:
                if program_node not in instance.nodes or instance.region != self.region.value:
                    continue
                here = instance.nodes.index(program_node)
                if here in known:
                    self.node.value = here
                    return

    # ---------------------------------------------------------------------------------- why

    def why_not(self) -> None:
        """Say whether the chosen rule fired at the chosen node, and if not, why."""
        egraph, node, rule = self.state.egraph, self.node.value, self.rule.value
        if egraph is not None and node is not None and rule is not None:
            region = self.region.value or 0
            self._answer(lambda: why_not_view.body(egraph.why_not(rule, node, region)))

    def explain(self) -> None:
        """Show the chain of rules from the chosen node to the chosen form."""
        egraph, node, goal = self.state.egraph, self.node.value, self.goal.value
        if egraph is not None and node is not None and goal is not None:
            region = self.region.value or 0
            self._answer(lambda: explain_view.body(egraph.explain(node, goal, region)))

    def _answer(self, ask: Callable[[], list[Any]]) -> None:
        def work() -> None:
            try:
                put(self.reason, *ask())
            except LuminalError as error:
                put(self.reason, el("pre", str(error), class_="bad"))

        put(self.reason, nothing("Looking…"))
        self.state.job.start("explanation", work)

    # -------------------------------------------------------------------------------- rules

    def check(self) -> bool:
        """Check the rules in the editor; whether they may be used."""
        text = self.editor.value
        if not text.strip():
            put(self.verdict, nothing("There is no rule to check."))
            return False
        try:
            verdict = check_rule(text)
        except LuminalError as error:
            put(self.verdict, el("pre", str(error), class_="bad"))
            return False
        tone = "good" if verdict.ok else "bad"
        put(self.verdict, el("pre", repr(verdict), class_=tone))
        return verdict.ok

    def again(self) -> None:
        """Saturate with the rules of the editor, if they are right."""
        if self.editor.value.strip() and not self.check():
            return
        self.state.rules = self.editor.value
        self.state.saturate()


RULE_HINT = """;; law: x + x = 2 * x
;; class: exact
(rewrite (Add x x) (Mul (Const 2.0 d) x) :when ((= d (dtype x)) (floating d)) :name "double")"""


def members(part: Part, classes: Sequence[EClass]) -> list[tuple[str, str]]:
    """The forms of a node as choices: what they say, and what `explain` calls them."""
    return [
        (f"{egraph_view.form(part, n)}  ({n.rule})", f"{c.sort.lower()}{c.id}.{k}")
        for c in classes
        for k, n in enumerate(c.nodes)
    ]


def taken(candidate: Candidate | None, region: int) -> set[str]:
    """What `explain` calls the members that a candidate took in a region."""
    if candidate is None:
        return set()
    return {f"v{c}.{k}" for at, _, picks in candidate.choice if at == region for c, k in picks}


def born(part: Part, iteration: int) -> list[Any]:
    """What one iteration added to the e-graph of a region."""
    record = part.report.iterations[iteration]
    found = [
        (c, n) for c in part.classes for n in c.nodes if n.iteration == iteration
        and (iteration or n.rule == ENCODED)
    ]  # fmt: skip
    rows = [
        [egraph_view.name(part, c.id), egraph_view.form(part, n), n.rule]
        for c, n in found[:_SHOWN]
    ]
    what = "The encoder made" if not iteration else f"Iteration {iteration} added"
    more = f"; showing {_SHOWN}" if len(found) > _SHOWN else ""
    line = (
        f"{what} {units.plural(len(found), 'e-node')}{more}. After it: {record.rows:,} e-nodes "
        f"in {record.classes:,} e-classes, {units.seconds(record.seconds)}."
    )
    if iteration == len(part.report.iterations) - 1 and record.rows > part.size:
        line += f" {part.size:,} can be chosen from: those that others subsume are left out."
    head = [("class", "code"), ("form", "code"), "made by"]
    return [el("p", line), table(head, rows, label="new e-nodes") if rows else None]
