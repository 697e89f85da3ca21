"""Programs on whole blocks, for Triton and Metal: their schedules and their lowering."""

from __future__ import annotations

from luminal_lab.codegen.block_lower import lower_blocks
from luminal_lab.codegen.block_schedule import block_schedule

__all__ = ["block_schedule", "lower_blocks"]
