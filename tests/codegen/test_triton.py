"""Triton source: right in the interpreter, and accepted by the compiler for GPUs."""

from __future__ import annotations

import pytest

from luminal_lab.codegen import triton
from luminal_lab.codegen.blocks import block_schedule, lower_blocks
from luminal_lab.codegen.body import statements
from luminal_lab.runtime import triton_tools
from tests.codegen import gpu_kernels
from tests.codegen.gpu_kernels import KERNELS

pytest.importorskip("triton")


def render(kernel):
    body = statements(kernel)
    return triton.render(lower_blocks(body, block_schedule(body)))


def interpret(kernel, given, *, in_process=True):
    source = render(kernel)
    got = gpu_kernels.outputs(kernel)
    launch = source.launch
    args = [{**given, **got}[n] for n in launch["args"]] + list(launch["constexprs"].values())
    triton_tools.run_interpreted(
        source.text, source.entry, tuple(launch["grid"]), args, in_process=in_process
    )
    return got


@pytest.mark.parametrize("name", KERNELS)
def test_interpreted_kernels_agree_with_float64(name: str) -> None:
    kernel = KERNELS[name]()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, interpret(kernel, given))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_ahead_of_time(name: str) -> None:
    source = render(KERNELS[name]())
    launch = source.launch
    report = triton_tools.compile_ahead(
        source.text,
        source.entry,
        launch["signature"],
        launch["constexprs"],
        num_warps=launch["num_warps"],
        num_stages=launch["num_stages"],
    )
    assert report.registers > 0
