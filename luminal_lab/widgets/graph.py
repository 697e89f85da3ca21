"""The graph view: one widget for programs, e-graphs and candidates."""

from __future__ import annotations

import json
from typing import Any

import anywidget
import traitlets

from luminal_lab.egraph.egraph import EGraph, Part
from luminal_lab.errors import LuminalError
from luminal_lab.hlir.graph import Hlir
from luminal_lab.search.candidate import Candidate
from luminal_lab.views import graphs
from luminal_lab.widgets import assets


class GraphView(anywidget.AnyWidget):
    """A graph that can be walked through: groups open and close, boxes can be searched.

    Traits:
        data: The graph as JSON text (`GraphData.to_data`).
        selected: The key of the selected node or group, `""` for none.
        highlighted: Keys of nodes that are emphasised.
        overlay: The key of the overlay that is shown, `""` for none.
        height: Of the drawing, in px.
        drawn: How many boxes the front end shows (it sets this).

    >>> import torch, luminal_lab as ll
    >>> from luminal_lab.widgets import graph_widget
    >>> graph_widget(ll.capture(torch.nn.GELU(), (torch.ones(4),)))
    GraphView(Graph of GELU: 7 nodes, 7 edges)
    """

    _esm = assets.script("dom.js", "graph_layout.js", "graph_data.js", "graph.js")
    _css = assets.css("graph.css", "graph_svg.css")

    data = traitlets.Unicode("").tag(sync=True)
    svg_css = traitlets.Unicode(assets.text("graph_svg.css")).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    highlighted = traitlets.List(traitlets.Unicode()).tag(sync=True)
    overlay = traitlets.Unicode("").tag(sync=True)
    height = traitlets.Int(520).tag(sync=True)
    drawn = traitlets.Int(0).tag(sync=True)

    def __init__(self, graph: graphs.GraphData, static: Any = None, **traits: Any):
        """Show a graph.

        Arguments:
            graph: What to show.
            static: An object with a `_repr_mimebundle_` that stands in where scripts do not
                run, such as the stage object itself.
            traits: Initial values of the traits.
        """
        self.graph = graph
        self._static = static
        super().__init__(data=json.dumps(graph.to_data()), **traits)
        self.on_msg(self._answer)

    def show(self, graph: graphs.GraphData) -> None:
        """Show another graph in its place."""
        self.graph = graph
        self.selected = ""
        self.highlighted = []
        self.data = json.dumps(graph.to_data())

    def select_hlir(self, nodes: set[int]) -> None:
        """Emphasise what comes from some HLIR nodes."""
        self.highlighted = [n.key for n in self.graph.nodes if nodes.intersection(n.hlir)]

    def hlir_of(self, key: str) -> tuple[int, ...]:
        """The HLIR nodes behind a node of the graph, or behind all nodes of a group."""
        inside = {key}
        for g in self.graph.groups:  # outer groups come first
            if g.parent in inside:
                inside.add(g.key)
        found = [n for n in self.graph.nodes if n.key == key or n.group in inside]
        return tuple(sorted({h for n in found for h in n.hlir}))

    def _answer(self, _: Any, content: Any, __: Any) -> None:
        if isinstance(content, dict) and content.get("type") == "library":
            self.send({"type": "library"}, buffers=[assets.data("vendor/graphviz.js")])

    def __repr__(self) -> str:
        return f"GraphView({self.graph.summary})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data: Any = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is None:
            return bundle
        data["text/plain"] = repr(self)
        if self._static is not None:
            data["text/html"] = self._static._repr_mimebundle_().get("text/html", "")
        return bundle


def graph_widget(stage: Any, region: int = 0, **traits: Any) -> GraphView:
    """The graph view of a stage object.

    Arguments:
        stage: An Hlir, an EGraph, a Part of one, or a Candidate.
        region: Of an EGraph, which region.
        traits: Initial values of the traits of `GraphView`.

    Raises:
        LuminalError: for anything else.
    """
    if isinstance(stage, Hlir):
        return GraphView(graphs.of_hlir(stage), stage, **traits)
    if isinstance(stage, EGraph):
        return GraphView(graphs.of_part(stage.parts[region]), stage, **traits)
    if isinstance(stage, Part):
        return GraphView(graphs.of_part(stage), None, **traits)
    if isinstance(stage, Candidate):
        return GraphView(graphs.of_candidate(stage), stage, **traits)
    raise LuminalError(
        f"there is no graph view of a {type(stage).__name__}",
        fix="pass an Hlir, an EGraph, one of its parts, or a Candidate",
    )
