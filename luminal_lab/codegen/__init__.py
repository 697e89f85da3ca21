"""Code generation: a kernel and a schedule become a tile program, and renderers print it.

kernel ── default_schedule / schedule_space ──> Schedule
kernel + Schedule ── lower ──> TileProgram ── verify ── render("c" | "triton" | "metal") ──>
KernelSource
"""

from __future__ import annotations

from luminal_lab.codegen.lower import lower
from luminal_lab.codegen.render import prelude, render, source
from luminal_lab.codegen.schedule import Schedule, default_schedule, neighbours, schedule_space
from luminal_lab.codegen.tile import KernelSource, Pack, TileProgram
from luminal_lab.codegen.verify import verify

__all__ = [
    "KernelSource",
    "Pack",
    "Schedule",
    "TileProgram",
    "default_schedule",
    "lower",
    "neighbours",
    "prelude",
    "render",
    "schedule_space",
    "source",
    "verify",
]
