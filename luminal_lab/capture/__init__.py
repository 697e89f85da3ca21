"""PyTorch programs into HLIR: `torch.export`, and `torch.compile` through AOTAutograd.

Names are imported when they are first used: nothing here loads torch by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {"LOWERINGS": "table", "capture": "export"}

__all__ = ["LOWERINGS", "capture"]

if TYPE_CHECKING:
    from luminal_lab.capture.export import capture
    from luminal_lab.capture.table import LOWERINGS


def __getattr__(name: str) -> Any:
    if name in _HOME:
        if name == "LOWERINGS":
            import_module("luminal_lab.capture.aten")  # fills the table
        return getattr(import_module(f"luminal_lab.capture.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.capture' has no attribute {name!r}")
