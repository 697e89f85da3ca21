"""Operators of the user's own: timed in the process that knows them.

They are registered by the user's code, so a child that measures kernels may not have them. They
run in this process anyway, whenever the program does.
"""

from __future__ import annotations

import time

from luminal_lab.errors import HlirError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.runtime.program import Code, Routine
from luminal_lab.search.execute import sized_kernel
from luminal_lab.search.target import Job, Measurement

_SECONDS = 0.06
_SAMPLES = 50


def measure_own(job: Job, code: Code) -> Measurement:
    """Run a call of an operator on a job's inputs, check it against what is expected, time it.

    Arguments:
        job: A custom call.
        code: Its routine.
    """
    import torch

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
