"""The table of ATen lowerings, complete: importing this module fills `LOWERINGS`."""

from __future__ import annotations

from luminal_lab.capture import (  # noqa: F401  (each registers its rows)
    aten_index,
    aten_linear,
    aten_pointwise,
    aten_reduce,
    aten_scans,
    aten_views,
)
from luminal_lab.capture.table import LOWERINGS, Call, NoLowering

__all__ = ["LOWERINGS", "Call", "NoLowering"]
