"""Build: from a candidate to an executable."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from luminal_lab.errors import CompilerError, LuminalError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.executable import BuildStats, Executable, result_strides
from luminal_lab.runtime.plan import writes_of
from luminal_lab.runtime.program import Code, Program
from luminal_lab.runtime.sources import candidate_code, progress_bar
from luminal_lab.runtime.weights import same_layout
from luminal_lab.search.candidate import Candidate


class NoCompilerWarning(UserWarning):
    """There is no C compiler: the program runs in the reference interpreter, slowly."""


def build(
    candidate: Candidate,
    *,
    freeze: bool = True,
    target: Any = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    code: Mapping[int, Code] | None = None,
) -> Executable:
    """Compile a candidate to one shared library, ready to be called like the module.

    Arguments:
        candidate: The program.
        freeze: Compute and pack what depends on weights alone now, not at each call.
        target: The `CpuTarget` whose machine the sources are made for, None for the default.
        progress: True for a progress bar over compiled units, or a function called with
            (done, total, name).
        code: Code to use for some kernels (by index), such as one that was edited by hand.

    Raises:
        CompilerError: when the compiler rejects a kernel, with its whole message.
        LuminalError: for a candidate of another target.
    """
    if candidate.target != "cpu":
        raise LuminalError(
            f"this candidate is for {candidate.target!r}, and this runtime runs 'cpu'",
            fix="saturate and search with target='cpu'",
        )
    try:
        cc.discover()
    except CompilerError as error:
        warnings.warn(
            f"{error.what}; the program runs in the reference interpreter, which is slow "
            f"({error.fix})",
            NoCompilerWarning,
            stacklevel=2,
        )
        return Executable(candidate, None, BuildStats(0.0, 0.0), freeze)
    start = time.perf_counter()
    given = dict(code or {})
    codes = candidate_code(candidate, target, given)
    middle = time.perf_counter()
    weights = candidate.hlir.weights
    with progress_bar(progress, len(codes)) as report:
        program = Program(
            candidate, codes, weights, direct_outputs(candidate, freeze), freeze=freeze,
            progress=report,
        )  # fmt: skip
    stats = BuildStats(
        middle - start,
        time.perf_counter() - middle,
        program.plan.persistent_bytes,
        program.weights.copied_bytes,
        program.plan.arena_bytes,
    )
    return Executable(candidate, program, stats, freeze)


def direct_outputs(candidate: Candidate, freeze: bool) -> tuple[str, ...]:
    """Output buffers that kernels may write straight into the tensor that the user gets."""
    early = {
        call.bind[name]
        for call in candidate.calls
        if freeze and call.at_build
        for name in writes_of(candidate.kernels[call.kernel])
    }
    out = []
    for spec in candidate.hlir.outputs:
        if spec.mutates is not None or spec.aliases is not None:
            continue
        if spec.name not in candidate.buffers:
            raise LuminalError(
                f"the candidate computes no buffer for the output {spec.name!r}",
                where=candidate.hlir.name,
            )
        buffer = candidate.buffers[spec.name]
        same = same_layout(result_strides(spec), buffer.element_strides, spec.shape)
        if spec.name not in early and same and buffer.shape == tuple(spec.shape):
            out.append(spec.name)
    return tuple(out)
