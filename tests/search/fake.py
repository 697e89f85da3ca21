"""A target without a compiler: kernels are evaluated, and take as long as predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.search import Candidate, Expected, Job, Machine, Measurement, kernel_cost
from luminal_lab.search.execute import run_candidate, run_kernel, sized_candidate, sized_kernel
from luminal_lab.search.inputs import search_inputs


class FakeTarget:
    """Implements the Target protocol; `spoil` may change what a kernel writes."""

    name = "cpu"

    def __init__(
        self,
        spoil: Callable[[Kernel, dict], dict] | None = None,
        interrupt_after: int | None = None,
    ):
        self.spoil, self.interrupt_after = spoil, interrupt_after
        self.measured: list[Job] = []
        self.programs_run: list[Candidate] = []
        self.spoil_program: Callable[[Candidate, dict], dict] | None = None
        self.program_seconds: Callable[[Candidate], float] = lambda c: c.seconds

    def machine(self) -> Machine:
        """The generic machine."""
        return Machine()

    def fingerprint(self) -> str:
        """A constant."""
        return "fake"

    def schedules(self, kernel: Kernel) -> list[Any]:
        """Two of them."""
        return [{"kind": "default"}, {"kind": "other"}]

    def programs(
        self,
        candidates: Sequence[Candidate],
        expected: Sequence[Mapping[str, Expected]],
        *,
        deadline: float | None = None,
    ) -> list[Measurement | None]:
        """Evaluate each program."""
        out = []
        for c, want in zip(candidates, expected):
            self.programs_run.append(c)
            c = sized_candidate(c, {n: s.hint for n, s in symbols_of(c.hlir).items()})
            got = run_candidate(c, search_inputs(c.hlir, c.hlir.weights, 0))
            if self.spoil_program is not None:
                got = self.spoil_program(c, got)
            verdicts = [w.check(got[n]) for n, w in want.items()]
            bad = next((v for v in verdicts if v[0]), None)
            if bad is not None:
                out.append(Measurement(False, (), bad[0], bad[2], bad[1]))
            else:
                out.append(Measurement(True, (self.program_seconds(c),) * 3))
        return out

    def measure(
        self,
        jobs: Iterable[Job],
        *,
        progress: Callable[[int], None] | None = None,
        deadline: float | None = None,
    ) -> Iterator[Measurement]:
        """Evaluate each kernel."""
        for job in jobs:
            if self.interrupt_after is not None and len(self.measured) >= self.interrupt_after:
                raise KeyboardInterrupt
            self.measured.append(job)
            got = run_kernel(sized_kernel(job.kernel, job.sizes), job.inputs)
            if self.spoil is not None:
                got = self.spoil(job.kernel, got)
            worst, failed = 0.0, None
            for name, expected in job.expected.items():
                reason, error, message = expected.check(got[name])
                worst = max(worst, error)
                failed = failed or (reason and (reason, message))
            if failed:
                yield Measurement(False, (), failed[0], failed[1], worst)
            else:
                yield Measurement(True, (kernel_cost(job.kernel, Machine()).seconds,) * 3)
