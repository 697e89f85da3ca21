"""Compile a candidate, plan its memory, run it, measure it.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Buckets": "buckets",
    "Executable": "executable",
    "build": "building",
    "MemoryPlan": "plan",
    "Profile": "profiling",
    "profile": "profiling",
    "CpuTarget": "cpu",
    "calibrate": "calibration",
}

__all__ = [
    "Buckets",
    "CpuTarget",
    "Executable",
    "MemoryPlan",
    "Profile",
    "build",
    "calibrate",
    "profile",
]

if TYPE_CHECKING:
    from luminal_lab.runtime.buckets import Buckets
    from luminal_lab.runtime.building import build
    from luminal_lab.runtime.calibration import calibrate
    from luminal_lab.runtime.cpu import CpuTarget
    from luminal_lab.runtime.executable import Executable
    from luminal_lab.runtime.plan import MemoryPlan
    from luminal_lab.runtime.profiling import Profile, profile


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.runtime.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
