"""The search: choices, kernels, their cost, strategies, verification and the tuning database.

Names are imported when they are first used: nothing here loads torch or pandas by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Budget": "budget",
    "Call": "candidate",
    "Candidate": "candidate",
    "LibraryKernel": "candidate",
    "Database": "database",
    "DatabaseWarning": "database",
    "KernelCost": "cost",
    "kernel_cost": "cost",
    "Machine": "machine",
    "SearchEvent": "progress",
    "Finalist": "finalists",
    "KernelRecord": "result",
    "Result": "result",
    "Row": "result",
    "Search": "run",
    "Strategy": "strategies",
    "sample": "run",
    "search": "run",
    "STRATEGIES": "strategies",
    "Expected": "target",
    "Job": "target",
    "Measurement": "target",
    "Target": "target",
    "Tolerance": "target",
}

__all__ = [
    "STRATEGIES",
    "Budget",
    "Call",
    "Candidate",
    "Database",
    "DatabaseWarning",
    "Expected",
    "Finalist",
    "Job",
    "KernelCost",
    "KernelRecord",
    "LibraryKernel",
    "Machine",
    "Measurement",
    "Result",
    "Row",
    "Search",
    "SearchEvent",
    "Strategy",
    "Target",
    "Tolerance",
    "kernel_cost",
    "sample",
    "search",
]

if TYPE_CHECKING:
    from luminal_lab.search.budget import Budget
    from luminal_lab.search.candidate import Call, Candidate, LibraryKernel
    from luminal_lab.search.cost import KernelCost, kernel_cost
    from luminal_lab.search.database import Database, DatabaseWarning
    from luminal_lab.search.finalists import Finalist
    from luminal_lab.search.machine import Machine
    from luminal_lab.search.progress import SearchEvent
    from luminal_lab.search.result import KernelRecord, Result, Row
    from luminal_lab.search.run import Search, sample, search
    from luminal_lab.search.strategies import STRATEGIES, Strategy
    from luminal_lab.search.target import Expected, Job, Measurement, Target, Tolerance


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.search.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.search' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
