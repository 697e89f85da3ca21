"""The cpu target, as the search sees it: schedules, measurements, and the machine's rates."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import CompilerError, LuminalError
from luminal_lab.runtime import calibration
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cache import digest
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.measure import TIMEOUT, Worker, measure_job
from luminal_lab.runtime.program import Code, KernelCode
from luminal_lab.runtime.sources import kernel_code
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.machine import Machine
from luminal_lab.search.target import Expected, Job, Measurement

_BATCH = 16  # jobs that are compiled together, before any of them is timed


class CpuTarget:
    """The processor of this machine; kernels are C, measured in a child process.

    How a kernel is timed: after a first run, 3 to 15 samples of at least 50 µs each; operands
    and outputs stay where they are (in a program, a producer has just written them); constants
    of some size are read from copies that exceed the last-level cache (in a program, the
    other layers have evicted them). Nothing is compiled while a kernel is timed.

    Arguments:
        threads: Threads that kernels run on; PyTorch's number when None.
        timeout: Seconds that one job may take in the child.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None, timeout: float = TIMEOUT):
        self.threads = threads or calibration.thread_count()
        self._worker = Worker(timeout)

    def machine(self) -> Machine:
        """This machine's rates, measured once and cached; generic ones without a compiler."""
        return _machine(self.threads)

    def fingerprint(self) -> str:
        """What timings and generated code depend on."""
        try:
            return f"{calibration.fingerprint(self.threads)}; generator {generator_digest()}"
        except CompilerError:
            return f"no compiler; {self.threads} threads"

    def schedules(self, kernel: Kernel) -> list[Any]:
        """Schedules of a kernel as plain data, the default one first.

        Raises:
            ScheduleError: when no C can be generated for this kernel.
        """
        from luminal_lab import codegen

        found = codegen.schedule_space(kernel, self.machine())
        return json.loads(json.dumps([s.to_data() for s in found]))  # as it is read from files

    def measure(
        self, jobs: Sequence[Job], *, progress: Callable[[int], None] | None = None
    ) -> Iterator[Measurement]:
        """Compile, verify and time jobs in a child process; one Measurement each, in order.

        Arguments:
            jobs: What to measure; at most 16 are compiled ahead of being timed.
            progress: Called with the number of jobs done.

        Raises:
            CompilerError: when there is no compiler at all.
            KeyboardInterrupt: on Ctrl-C; compilers and the child are ended.
        """
        cc.discover()
        done = 0
        try:
            for start in range(0, len(jobs), _BATCH):
                batch = jobs[start : start + _BATCH]
                for job, prepared in zip(batch, self._prepare(batch)):
                    if isinstance(prepared, Measurement):
                        result = prepared
                    else:
                        result = self._run(job, *prepared)
                    done += 1
                    if progress is not None:
                        progress(done)
                    yield result
        except BaseException:
            self._worker.close()
            raise

    def measure_code(self, job: Job, code: KernelCode) -> Measurement:
        """Compile, verify and time given code for a job's kernel, in the child process."""
        (compiled,) = cc.compile_units([code.unit])
        prepared = _linked(code, compiled)
        try:
            if isinstance(prepared, Measurement):
                return prepared
            return self._run(job, *prepared)
        except BaseException:
            self._worker.close()
            raise

    def _run(self, job: Job, code: Code, library: Path | None) -> Measurement:
        return measure_job(
            self._worker,
            job,
            library,
            code if isinstance(code, KernelCode) else None,
            threads=self.threads,
            last_level=self.machine().l3,
            blas="ll_sgemm" in code.text if isinstance(code, KernelCode) else False,
        )

    def _prepare(self, jobs: Sequence[Job]) -> list[Measurement | tuple[Code, Path | None]]:
        """Code and library of each job, or why there is none."""
        codes: list[Code | Measurement] = []
        for job in jobs:
            try:
                if isinstance(job.kernel, LibraryKernel):
                    codes.append(library_code(job.kernel))
                else:
                    codes.append(kernel_code(job.kernel, job.schedule, self.machine()))
            except LuminalError as error:
                codes.append(Measurement(False, reason="compile failed", message=str(error)))
        units = [c.unit for c in codes if isinstance(c, KernelCode)]
        objects = iter(cc.compile_units(units))
        pairs = [(c, next(objects) if isinstance(c, KernelCode) else None) for c in codes]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(_linked, *zip(*pairs)))

    def programs(
        self,
        candidates: Sequence[Candidate],
        expected: Sequence[Mapping[str, Expected]],
        *,
        deadline: float | None = None,
    ) -> list[Measurement | None]:
        """Build, verify and time whole programs in turns, in a fresh process.

        Arguments:
            candidates: Programs of one Hlir.
            expected: For each, what its outputs must be on the search's inputs.
            deadline: When to stop (`time.monotonic`).

        Returns:
            A Measurement each, None for those that there was no time for.
        """
        from luminal_lab.runtime.finalists import time_programs

        return time_programs(candidates, expected, threads=self.threads, deadline=deadline)

    def close(self) -> None:
        """End the child process."""
        self._worker.close()

    def __enter__(self) -> CpuTarget:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CpuTarget({cc.cpu().model}, {self.threads} threads)"


def _linked(
    code: Code | Measurement, compiled: Path | CompilerError | None
) -> Measurement | tuple[Code, Path | None]:
    if isinstance(code, Measurement):
        return code
    if compiled is None:
        return code, None
    try:
        if isinstance(compiled, CompilerError):
            raise compiled
        return code, cc.link([compiled])
    except CompilerError as error:
        return Measurement(False, reason="compile failed", message=str(error))


@functools.lru_cache(maxsize=8)
def _machine(threads: int) -> Machine:
    try:
        return calibration.calibrate(threads)
    except CompilerError:
        l1, l2, l3 = calibration.cache_sizes()
        width = cc.cpu().vector_bytes
        return Machine(threads=threads, l1=l1, l2=l2, l3=l3, vector_bytes=width)


@functools.cache
def generator_digest() -> str:
    """A digest of the code that writes kernels: a new generator makes old timings void."""
    here = Path(__file__).resolve().parent
    sources = [here / name for name in ("native.c", "sources.py", "compiler.py")]
    sources += sorted((here.parent / "codegen").glob("*.py"))
    return digest(*(path.read_bytes() for path in sources))[:16]
