"""The panels of the workbench, each a widget of its own over a `State`."""

from __future__ import annotations

from luminal_lab.widgets.panels.candidate import CandidatePanel
from luminal_lab.widgets.panels.compare import ComparePanel
from luminal_lab.widgets.panels.egraph import EGraphPanel
from luminal_lab.widgets.panels.kernels import KernelsPanel
from luminal_lab.widgets.panels.model import ModelPanel
from luminal_lab.widgets.panels.profile import ProfilePanel
from luminal_lab.widgets.panels.search import SearchPanel

__all__ = [
    "CandidatePanel",
    "ComparePanel",
    "EGraphPanel",
    "KernelsPanel",
    "ModelPanel",
    "ProfilePanel",
    "SearchPanel",
]
