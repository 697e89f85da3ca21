"""How much a search may do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from luminal_lab.errors import SearchError

EffortName = Literal["none", "quick", "full"]


@dataclass(frozen=True)
class Effort:
    """What an effort level means, per region.

    Arguments:
        evaluations: Genomes that are looked at, at most.
        work: Evaluations times e-nodes of the region, summed over the regions: an evaluation of
            a large region takes longer, so fewer are made.
        wider: How many of them after the descents from the seeds have ended.
        kept: Distinct candidates that the table lists.
        measured: How many of those have their kernels verified and timed.
        schedules: Schedules that are tried of each kernel that can change who wins, the
            default included.
        timings: Measurements up to which still more schedules are tried.
        finalists: Whole programs that are built, verified and timed in a process of their own.
    """

    evaluations: int
    work: int
    wider: int
    kept: int
    measured: int
    schedules: int
    timings: int
    finalists: int


EFFORTS: dict[str, Effort] = {
    "none": Effort(
        evaluations=2000,
        work=3_000_000,
        wider=200,
        kept=16,
        measured=0,
        schedules=0,
        timings=0,
        finalists=0,
    ),
    "quick": Effort(
        evaluations=6000,
        work=10_000_000,
        wider=1500,
        kept=32,
        measured=6,
        schedules=4,
        timings=96,
        finalists=4,
    ),
    "full": Effort(
        evaluations=30000,
        work=100_000_000,
        wider=10000,
        kept=128,
        measured=48,
        schedules=50,
        timings=4000,
        finalists=8,
    ),
}


@dataclass(frozen=True)
class Budget:
    """Bounds on a search.

    Which candidates are looked at follows from `effort`, `candidates`, `memory` and the seed
    alone, unless `seconds` ends the search while it still explores. What is measured within a
    number of seconds may differ between two runs.

    Arguments:
        effort: `"none"` ranks by the cost model alone; `"quick"` measures the most promising
            kernels; `"full"` measures many, with all their schedules.
        seconds: When to stop: exploring, computing what kernels must give, compiling and
            measuring together. The best so far is the result.
        candidates: Distinct candidates to list, instead of the effort's own number.
        memory: Bytes of temporaries that one region may hold at once.
        verify: Verify (and time) the kernels of what is chosen where the effort measures
            nothing; the other efforts verify all that they rank.

    Raises:
        SearchError: for an unknown effort or a bound that is not positive.
    """

    effort: EffortName = "quick"
    seconds: float | None = None
    candidates: int | None = None
    memory: int | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise SearchError(
                f"unknown effort {self.effort!r}", fix=f"one of {', '.join(EFFORTS)}"
            )
        for name in ("seconds", "candidates", "memory"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SearchError(f"the budget's {name} must be positive, got {value!r}")
        if not isinstance(self.verify, bool):
            raise SearchError(f"the budget's verify must be True or False, got {self.verify!r}")

    @property
    def level(self) -> Effort:
        """The effort level, with `candidates` and `verify` applied."""
        level = EFFORTS[self.effort]
        if self.verify and not level.measured:
            level = replace(level, measured=1, schedules=1, finalists=1)
        if self.candidates is None:
            return level
        n = self.candidates
        return replace(
            level,
            evaluations=max(level.evaluations, 5 * n),
            wider=max(level.wider, 4 * n),
            kept=n,
            measured=min(level.measured, n),
            finalists=min(level.finalists, n),
        )
