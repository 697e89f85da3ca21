"""One kernel by itself: other schedules and edited source are verified, then timed."""

from __future__ import annotations

import pytest
import torch

import luminal_lab as ll
from luminal_lab.codegen import schedule_space
from luminal_lab.runtime.trial import random_inputs, source_text, try_kernel


@pytest.fixture(scope="module")
def kernel():
    hlir = ll.capture(lambda x: torch.softmax(x, -1), (torch.randn(16, 96),))
    return ll.search(ll.saturate(hlir), ll.Budget("none")).best.kernels[0]


def test_a_schedule(kernel) -> None:
    trial = try_kernel(kernel, schedule_space(kernel)[-1].to_data())
    assert trial.measurement.ok
    assert trial.measurement.median
    assert "right" in repr(trial)


def test_source_that_crashes_is_a_result(kernel) -> None:
    text = source_text(kernel)
    broken = text.replace("ll_parallel_for(", "*(volatile int *)0 = 1; ll_parallel_for(", 1)
    trial = try_kernel(kernel, text=broken)
    assert trial.measurement.reason == "crashed"
    assert try_kernel(kernel, text=text).measurement.ok


def test_the_compiler_counts_the_lines_of_the_edited_text(kernel) -> None:
    text = source_text(kernel)
    lines = text.splitlines()
    lines[2] += " nonsense"
    trial = try_kernel(kernel, text="\n".join(lines))
    assert trial.measurement.reason == "compile failed"
    assert f"{trial.code.entry}.c:3" in trial.measurement.message


def test_indices_stay_in_bounds() -> None:
    hlir = ll.capture(lambda t, i: t[i] * 2, (torch.randn(3, 8), torch.tensor([0, 2, 1, 0, 1])))
    best = ll.search(ll.saturate(hlir), ll.Budget("none")).best
    for k in best.kernels:
        for name, tensor in random_inputs(k).items():
            if not tensor.dtype.is_floating_point:
                assert int(tensor.max()) < 3, name
        assert try_kernel(k).measurement.ok


def test_assembly_is_what_the_compiler_made(kernel) -> None:
    from luminal_lab.runtime.assembly import assembly
    from luminal_lab.views.kernels import assembly as view

    text = assembly(kernel)
    assert "ret" in text
    assert ".cfi" not in text
    assert "instructions" in "".join(view(text))


def test_gpu_code_without_a_gpu(kernel) -> None:
    pytest.importorskip("triton")
    from luminal_lab.runtime.assembly import gpu_reports
    from luminal_lab.views.kernels import gpu_code

    reports = gpu_reports(kernel, ["sm_90", "sm_1"])
    assert "ptx" in reports["sm_90"].stages
    page = "".join(gpu_code(reports))
    assert "PTX for sm_90" in page
    assert "unknown architecture" in page
