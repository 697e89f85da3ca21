"""PyTorch programs into HLIR: `torch.export`, and `torch.compile` through AOTAutograd."""

from __future__ import annotations

from luminal_lab.capture.export import capture
from luminal_lab.capture.table import LOWERINGS

__all__ = ["LOWERINGS", "capture"]
