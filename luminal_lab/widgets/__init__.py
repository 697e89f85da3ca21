"""Widgets for notebooks: small classes that show what the views compute.

They need the extra `notebook` (ipywidgets and anywidget); the engine never imports them.
"""

from __future__ import annotations

from luminal_lab.widgets.graph import GraphView, graph_widget

__all__ = ["GraphView", "graph_widget"]
