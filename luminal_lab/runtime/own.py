"""Operators of the user's own: timed in the process that knows them.

They are registered by the user's code, so a child that measures kernels may not have them. They
run in this process anyway, whenever the program does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from luminal_lab.errors import HlirError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.custom import is_own
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.program import Routine
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.execute import sized_kernel
from luminal_lab.search.target import Job, Measurement

_SECONDS = 0.06
_SAMPLES = 50


def is_own_job(job: Job) -> bool:
    """Whether a job calls an operator that only this process may know."""
    return isinstance(job.kernel, LibraryKernel) and is_own(job.kernel.attrs)


def without_own(
    jobs: Iterable[Job], measure: Callable[[Iterator[Job]], Iterable[Measurement]]
) -> Iterator[Measurement]:
    """Measure jobs elsewhere, but for those that must be measured here; in their order.

    Arguments:
        jobs: All of them.
        measure: Measures the others, one result each, in order.
    """
    waiting: deque[Job | None] = deque()  # what is to come: a job of ours, or a result

    def others() -> Iterator[Job]:
        for job in jobs:
            waiting.append(job if is_own_job(job) else None)
            if waiting[-1] is None:
                yield job

    def ours() -> Iterator[Measurement]:
        while waiting and (job := waiting[0]) is not None:
            waiting.popleft()
            yield measure_own(job)

    for result in measure(others()):
        yield from ours()
        waiting.popleft()
        yield result
    yield from ours()


def measure_own(job: Job) -> Measurement:
    """Run a call of an operator on a job's inputs, check what it gives, and time it."""
    import torch

    assert isinstance(job.kernel, LibraryKernel)
    code = library_code(job.kernel)
    assert isinstance(code, Routine)
    kernel = sized_kernel(job.kernel, job.sizes)
    reads = [job.inputs[n].reshape(kernel.buffers[n].shape) for n in kernel.reads]
    outs = [kernel.buffers[n] for n in kernel.writes]
    writes = [torch.empty(b.shape, dtype=torch_dtype(b.dtype)) for b in outs]
    samples: list[float] = []
    try:
        end = time.perf_counter() + _SECONDS
        while not samples or (
            job.timed and len(samples) < _SAMPLES and time.perf_counter() < end
        ):
            start = time.perf_counter()
            code.run(reads, writes)
            samples.append(time.perf_counter() - start)
    except HlirError as error:
        return Measurement(False, reason="crashed", message=str(error))
    worst = 0.0
    for name, got in zip(kernel.writes, writes):
        if name in job.expected:
            reason, error, message = job.expected[name].check(got)
            if reason:
                return Measurement(False, reason=reason, message=message, max_error=error)
            worst = max(worst, error)
    warm = samples[1:] if len(samples) > 1 else samples  # the first one fetches and allocates
    return Measurement(True, tuple(warm) if job.timed else (), max_error=worst)
