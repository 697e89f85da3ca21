"""Benchmarks: workloads as a table, and timings that are fair to everybody.

from luminal_lab.bench import compare
compare({"eager": fn, "ours": ll.compile(fn, args)}, args).table()
"""

from __future__ import annotations

from luminal_lab.bench.timing import Comparison, Contestant, compare, warm_allocator
from luminal_lab.bench.workloads import SUITES, WORKLOADS, Workload

__all__ = [
    "SUITES",
    "WORKLOADS",
    "Comparison",
    "Contestant",
    "Workload",
    "compare",
    "warm_allocator",
]
