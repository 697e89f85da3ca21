"""Widgets for notebooks: small classes that show what the views compute.

They need the extra `notebook` (ipywidgets and anywidget); the engine never imports them.
"""

from __future__ import annotations

from importlib.util import find_spec

from luminal_lab.errors import LuminalError

if find_spec("ipywidgets") is None or find_spec("anywidget") is None:
    raise LuminalError(
        "widgets need ipywidgets and anywidget", fix="pip install 'luminal-lab[notebook]'"
    )

from luminal_lab.widgets.graph import GraphView, graph_widget
from luminal_lab.widgets.panels import (
    CandidatePanel,
    ComparePanel,
    EGraphPanel,
    KernelsPanel,
    ModelPanel,
    ProfilePanel,
    SearchPanel,
)
from luminal_lab.widgets.state import State
from luminal_lab.widgets.table import TableView, column
from luminal_lab.widgets.workbench import Workbench, panel_of

__all__ = [
    "CandidatePanel",
    "ComparePanel",
    "EGraphPanel",
    "GraphView",
    "KernelsPanel",
    "ModelPanel",
    "ProfilePanel",
    "SearchPanel",
    "State",
    "TableView",
    "Workbench",
    "column",
    "graph_widget",
    "panel_of",
]
