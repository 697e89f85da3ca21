"""Metal source: valid as far as can be checked here, and right when it runs in the shim."""

from __future__ import annotations

import math

import pytest
import torch

from luminal_lab.codegen import default_schedule, lower, render
from luminal_lab.codegen.schedule import Schedule
from luminal_lab.errors import ScheduleError
from luminal_lab.runtime import metal_tools
from luminal_lab.runtime.metal_source import problems
from tests.codegen import gpu_kernels
from tests.codegen.gpu_kernels import KERNELS, WIDE


@pytest.fixture(autouse=True)
def _needs_a_compiler(c_compiler: str) -> None:
    """The shim is C++; its compiler comes with the C compiler or is missing with it."""


def source_of(kernel, schedule: Schedule | None = None):
    return render(lower(kernel, schedule or default_schedule(kernel, style="block")), "metal")


def run(kernel, given, schedule: Schedule | None = None):
    source = source_of(kernel, schedule)
    got = gpu_kernels.outputs(kernel)
    launch = source.launch
    library = metal_tools.compile_shim(source.text)
    args = [{**given, **got}[n] for n in launch["args"]]
    library.run(source.entry, args, launch["groups"], launch["group_size"])
    return got


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_run_in_the_shim_and_agree_with_float64(name: str) -> None:
    kernel = KERNELS[name]()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, run(kernel, given))


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_has_no_words_that_are_not_metal(name: str) -> None:
    assert problems(source_of(KERNELS[name]()).text) == []


@pytest.mark.skipif(metal_tools.find_clang() is None, reason="needs clang 15 or later")
@pytest.mark.parametrize("name", KERNELS)
def test_the_text_type_checks_with_address_spaces(name: str) -> None:
    metal_tools.lint(source_of(KERNELS[name]()).text, address_spaces=True)


@pytest.mark.parametrize("name", WIDE)
def test_a_type_that_metal_lacks_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="Metal has no type for f"):
        source_of(WIDE[name]())


@pytest.mark.parametrize("blocks", [(16, 16, 16), (32, 64, 64), (128, 32, 16), (64, 128, 32)])
def test_a_schedule_chooses_the_blocks(blocks: tuple[int, int, int]) -> None:
    m, n, k = blocks
    schedule = Schedule("block", (("m", m), ("n", n)), (("k", k),))
    kernel = gpu_kernels.gemm()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, run(kernel, given, schedule))


def test_a_block_beyond_threadgroup_memory_is_refused() -> None:
    schedule = Schedule("block", (("m", 4096), ("n", 4096)), (("k", 16),))
    with pytest.raises(ScheduleError, match="too much threadgroup memory"):
        source_of(gpu_kernels.gemm(8192, 8192, 64), schedule)


@pytest.mark.parametrize("name", ["softmax", "softmax_online", "row_sum", "place"])
def test_nan_and_infinities_come_out_as_the_reference_has_them(name: str) -> None:
    kernel = KERNELS[name]()
    x = torch.randn(kernel.buffers["x"].shape)
    x[0, 1], x[1, 2], x[2, 0] = math.nan, math.inf, -math.inf
    x[3], x[4] = -math.inf, 1e30
    gpu_kernels.check(kernel, {"x": x}, run(kernel, {"x": x}))


def test_products_use_simdgroup_matrices() -> None:
    text = source_of(gpu_kernels.gemm()).text
    assert "simdgroup_multiply_accumulate" in text
    assert "#include <metal_simdgroup_matrix>" in text


def test_the_launch_names_the_buffers_and_the_threads() -> None:
    launch = source_of(gpu_kernels.gemm()).launch
    assert launch["args"] == ["x", "w", "b", "o"]
    assert launch["groups"] == [4]
    assert launch["group_size"] == [256]


def test_the_text_of_a_softmax(snapshot) -> None:
    assert source_of(gpu_kernels.softmax()).text == snapshot


def test_the_text_of_a_product(snapshot) -> None:
    assert source_of(gpu_kernels.gemm()).text == snapshot
