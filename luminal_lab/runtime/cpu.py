"""The cpu target, as the search sees it: schedules, measurements, and the machine's rates."""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from operator import length_hint
from pathlib import Path
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import CompilerError, LuminalError
from luminal_lab.polling import POLL, poll
from luminal_lab.runtime import calibration
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cache import digest
from luminal_lab.runtime.exclusive import compiling, in_turns, timing
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.measure import TIMEOUT, Worker, measure_job
from luminal_lab.runtime.own import is_own_job, measure_own, without_own
from luminal_lab.runtime.pool import LocalPool, WorkerLost
from luminal_lab.runtime.prepare import Order, Prepared, linked, prepare
from luminal_lab.runtime.program import KernelCode
from luminal_lab.runtime.sources import kernel_code
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.kernel_text import kernel_text
from luminal_lab.search.machine import Machine
from luminal_lab.search.target import Expected, Job, Measurement

_WAVE = 16  # jobs that are compiled together, before any of them is timed; more on many cores
_WAVE_BYTES = 1 << 30  # bytes of inputs after which a wave is full
_FEW = 8  # so few jobs are not worth starting processes for

Handed = Future[Prepared] | KernelCode | Prepared


class CpuTarget:
    """The processor of this machine; kernels are C, measured in a child process.

    How a kernel is timed: after a first run, 3 to 15 samples of at least 50 µs each; operands
    and outputs stay where they are (in a program, a producer has just written them); constants
    of some size are read from copies that exceed the last-level cache (in a program, the
    other layers have evicted them). Jobs come in waves: those of a wave are compiled on all
    cores, while this process computes what they must give; then they are timed one by one, and
    nothing is compiled meanwhile, by this search or by another one on this machine.

    Arguments:
        threads: Threads that kernels run on; PyTorch's number when None.
        timeout: Seconds that one job may take in the child.
        executor: Where to measure instead: any `concurrent.futures.Executor`, or a dask
            `Client`; see `Distributor`.
        workers: Processes that generate and compile code here; as many as cores when None, and
            with 0 this process does it itself.
        machine: Rates to predict and to make code with, instead of the measured ones: two
            searches with the same rates list the same candidates.
    """

    name = "cpu"

    def __init__(
        self,
        threads: int | None = None,
        timeout: float = TIMEOUT,
        executor: Executor | Any = None,
        workers: int | None = None,
        machine: Machine | None = None,
    ):
        self.threads = threads or calibration.thread_count()
        self.timeout, self.executor = timeout, executor
        self.workers = (os.cpu_count() or 1) if workers is None else workers
        self._worker = Worker(timeout, self.threads)
        self._pool: LocalPool | None = None
        self._machine = machine

    def machine(self) -> Machine:
        """This machine's rates, measured once and cached; generic ones without a compiler.

        A target keeps them: a search makes all its code for the same rates.
        """
        if self._machine is None:
            self._machine = _machine(self.threads)
        return self._machine

    def fingerprint(self) -> str:
        """What timings and generated code depend on."""
        return fingerprint(self.threads)

    def schedules(self, kernel: Kernel) -> list[Any]:
        """Schedules of a kernel as plain data, the default one first.

        Raises:
            ScheduleError: when no C can be generated for this kernel.
        """
        from luminal_lab import codegen

        found = codegen.schedule_space(kernel, self.machine())
        return json.loads(json.dumps([s.to_data() for s in found]))  # as it is read from files

    def measure(
        self,
        jobs: Iterable[Job],
        *,
        progress: Callable[[int], None] | None = None,
        deadline: float | None = None,
    ) -> Iterator[Measurement]:
        """Compile, verify and time jobs in other processes; one Measurement each, in order.

        Arguments:
            jobs: What to measure; taken from in waves. A length (or length hint) helps.
            progress: Called with the number of jobs done.
            deadline: When to stop (`time.monotonic`).

        Raises:
            CompilerError: when there is no compiler at all.
            SearchError: when the executor cannot measure for this machine.
            KeyboardInterrupt: on Ctrl-C; compilers and children are ended.
        """
        cc.discover()
        if self.executor is not None:
            from luminal_lab.runtime.distribute import Distributor

            distributor = Distributor(self, self.executor)
            yield from without_own(
                jobs,
                lambda rest: distributor.measure(rest, progress=progress, deadline=deadline),
            )
        else:
            yield from self.measure_here(jobs, progress=progress, deadline=deadline)

    def measure_here(
        self,
        jobs: Iterable[Job],
        *,
        progress: Callable[[int], None] | None = None,
        deadline: float | None = None,
    ) -> Iterator[Measurement]:
        """`measure` on this machine, whatever the executor."""
        done, pooled = 0, self.workers > 0 and length_hint(jobs, 0) > _FEW
        stream, late = iter(jobs), _Deadline(deadline)
        try:
            while (wave := self._wave(stream, pooled)) and not late():
                if (ready := self._compiled(wave, late)) is None:
                    return
                for result in in_turns(ready, lambda pair: self._timed(*pair, late)):
                    if result is None:
                        return
                    done += 1
                    if progress is not None:
                        progress(done)
                    yield result
        except GeneratorExit:
            raise
        except BaseException:
            self.close()
            raise

    def measure_code(self, job: Job, code: KernelCode) -> Measurement:
        """Compile, verify and time given code for a job's kernel, in the child process."""
        try:
            with compiling():
                prepared = linked(code, cc.compile_units([code.unit])[0])
            with timing():
                return trial(self._worker, job, prepared, self.machine())
        except BaseException:
            self._worker.close()
            raise

    def _wave(self, stream: Iterator[Job], pooled: bool) -> list[tuple[Job, Handed]]:
        """The next jobs; the pool compiles each while the next is made."""
        wave: list[tuple[Job, Handed]] = []
        seen: dict[int, int] = {}
        for job in itertools.islice(stream, max(_WAVE, 8 * self.workers)):
            wave.append((job, self._handed(job, pooled)))
            seen |= {id(x): x.nbytes for x in job.inputs.values()}
            if sum(seen.values()) > _WAVE_BYTES:
                break
        return wave

    def _handed(self, job: Job, pooled: bool) -> Handed:
        """A job's code: asked of the pool, or generated here and not compiled yet."""
        if pooled and isinstance(job.kernel, Kernel):
            return self._submitted(job)
        try:
            if isinstance(job.kernel, LibraryKernel):
                code = library_code(job.kernel)
            else:
                code = kernel_code(job.kernel, job.schedule, self.machine())
        except LuminalError as error:
            return Prepared(failure=str(error))
        return code if isinstance(code, KernelCode) else Prepared()

    def _submitted(self, job: Job) -> Future[Prepared]:
        if self._pool is None:
            self._pool = LocalPool(self.workers)
        order = Order(kernel_text(job.kernel), job.schedule, self.machine())
        return self._pool.submit(prepare, order)

    def _compiled(
        self, wave: list[tuple[Job, Handed]], late: _Deadline
    ) -> list[tuple[Job, Prepared]] | None:
        """The libraries of a wave, None when it took too long."""
        codes = [h for _, h in wave if isinstance(h, KernelCode)]
        with compiling():
            objects = cc.compile_units([c.unit for c in codes])
            made = iter([linked(c, o) for c, o in zip(codes, objects)])
        out: list[tuple[Job, Prepared]] = []
        for job, handed in wave:
            if isinstance(handed, Future):
                handed = self._waited(job, handed, late)
                if handed is None:
                    return None
            elif isinstance(handed, KernelCode):
                handed = next(made)
            out.append((job, handed))
        return out

    def _waited(self, job: Job, future: Future[Prepared], late: _Deadline) -> Prepared | None:
        again = True
        while not late():
            poll()
            try:
                return future.result(POLL)
            except TimeoutError:
                continue
            except WorkerLost as error:
                if not again:
                    return Prepared(failure=str(error), reason="crashed")
                again, future = False, self._submitted(job)
        self._end_pool()
        return None

    def _timed(self, job: Job, prepared: Prepared, late: _Deadline) -> Measurement | None:
        if late():
            return None
        if is_own_job(job):
            return measure_own(job)
        return trial(self._worker, job, prepared, self.machine())

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.kill()
            self._pool = None

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
        """End the child processes; they start again when they are needed."""
        self._end_pool()
        self._worker.close()

    def __enter__(self) -> CpuTarget:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CpuTarget({cc.cpu().model}, {self.threads} threads)"


class _Deadline:
    """When to stop, as a question."""

    def __init__(self, at: float | None):
        self.at = at

    def __call__(self) -> bool:
        return self.at is not None and time.monotonic() > self.at


def trial(worker: Worker, job: Job, prepared: Prepared, machine: Machine) -> Measurement:
    """Verify and time one compiled job in a child."""
    if prepared.failure:
        return Measurement(False, reason=prepared.reason, message=prepared.failure)
    code = prepared.code
    return measure_job(
        worker,
        job,
        Path(prepared.library) if prepared.library else None,
        code,
        threads=machine.threads,
        last_level=machine.l3,
        blas=code is not None and "ll_sgemm" in code.text,
    )


def fingerprint(threads: int) -> str:
    """What timings and generated code depend on, for kernels on so many threads here."""
    try:
        return f"{calibration.fingerprint(threads)}; generator {generator_digest()}"
    except CompilerError:
        return f"no compiler; {threads} threads"


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
