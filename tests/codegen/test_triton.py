"""Triton source: right in the interpreter, and accepted by the compiler for GPUs."""

from __future__ import annotations

import math

import pytest
import torch

from luminal_lab.codegen import default_schedule, lower, render
from luminal_lab.codegen.schedule import Schedule
from luminal_lab.errors import ScheduleError
from luminal_lab.runtime import triton_tools
from tests.codegen import gpu_kernels
from tests.codegen.gpu_kernels import KERNELS, WIDE

pytest.importorskip("triton")
ALL = KERNELS | WIDE
# A compilation takes seconds: these cover every construct, the others are left to `slow`.
COMPILED = (
    "pointwise_bf16",
    "layernorm",
    "gemm_bf16",
    "attention_causal",
    "gather",
    "booleans",
)


def source_of(kernel, schedule: Schedule | None = None):
    return render(
        lower(kernel, schedule or default_schedule(kernel, style="block")), "triton", "kernel"
    )


def interpret(kernel, given, *, in_process: bool = True, schedule: Schedule | None = None):
    source = source_of(kernel, schedule)
    got = gpu_kernels.outputs(kernel)
    launch = source.launch
    args = [{**given, **got}[n] for n in launch["args"]] + list(launch["constexprs"].values())
    triton_tools.run_interpreted(
        source.text, source.entry, tuple(launch["grid"]), args, in_process=in_process
    )
    return got


@pytest.mark.parametrize("name", ALL)
def test_interpreted_kernels_agree_with_float64(name: str) -> None:
    kernel = ALL[name]()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, interpret(kernel, given))


def test_a_kernel_runs_in_a_child_process() -> None:
    kernel = gpu_kernels.layernorm()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, interpret(kernel, given, in_process=False))


@pytest.mark.parametrize(
    ("name", "arch"),
    [(n, "sm_90") for n in COMPILED]
    + [pytest.param(n, "sm_90", marks=pytest.mark.slow) for n in ALL if n not in COMPILED]
    + [pytest.param(n, "sm_100", marks=pytest.mark.slow) for n in COMPILED],
)
def test_kernels_compile_ahead_of_time(name: str, arch: str) -> None:
    source = source_of(ALL[name]())
    launch = source.launch
    report = triton_tools.compile_ahead(
        source.text,
        source.entry,
        launch["signature"],
        launch["constexprs"],
        arch,
        num_warps=launch["num_warps"],
        num_stages=launch["num_stages"],
        in_process=True,
    )
    assert report.blocks_per_unit >= 1
    assert report.spill_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemm", "attention", "softmax"])
def test_kernels_compile_for_amd(name: str) -> None:
    from luminal_lab.codegen import triton

    kernel = ALL[name]()
    program = lower(kernel, default_schedule(kernel, style="block"))
    source = triton.render(program, precision="ieee")
    launch = source.launch
    report = triton_tools.compile_ahead(
        source.text, source.entry, launch["signature"], launch["constexprs"], "gfx942"
    )
    assert report.blocks_per_unit >= 1


# ------------------------------------------------------------------------------- hostile inputs
def hostile(shape: tuple[int, ...]) -> torch.Tensor:
    """Rows with NaN, ±inf, nothing but -inf, and large numbers."""
    x = torch.randn(shape)
    flat = x.view(-1, shape[-1])
    flat[0, 1] = math.nan
    flat[1, 2] = math.inf
    flat[2, 0] = -math.inf
    flat[3] = -math.inf
    flat[4] = 1e30
    flat[5] = math.inf
    return x


@pytest.mark.parametrize("name", ["softmax", "softmax_online", "logsumexp", "row_sum", "place"])
def test_nan_and_infinities_come_out_as_the_reference_has_them(name: str) -> None:
    kernel = KERNELS[name]()
    given = {"x": hostile(kernel.buffers["x"].shape)}
    gpu_kernels.check(kernel, given, interpret(kernel, given))


def test_an_online_loop_over_hostile_rows() -> None:
    kernel = gpu_kernels.softmax_online(8, 9000)
    given = {"x": hostile((8, 9000))}
    gpu_kernels.check(kernel, given, interpret(kernel, given))


def test_keys_that_are_all_masked_give_nan_as_the_reference() -> None:
    kernel = gpu_kernels.attention(mask="keys", s=20)
    given = gpu_kernels.inputs(kernel) | {"m": torch.zeros(150, dtype=torch.bool)}
    got = interpret(kernel, given)
    assert got["o"].isnan().all()
    gpu_kernels.check(kernel, given, got)


# ----------------------------------------------------------------------------------- the source
def test_attention_is_one_pass_over_the_keys_and_stops_at_the_diagonal() -> None:
    text = source_of(gpu_kernels.attention(h=12, s=1024, t=1024, d=64, mask="causal")).text
    assert text.count("for ") == 1
    assert "tl.minimum(1024, s_start" in text
    before, inside = text.split("    for ")
    assert "q = tl.load" in before  # what the loop does not change is loaded before it
    assert inside.count("tl.dot") == 2


def test_a_window_bounds_the_loop_at_both_ends() -> None:
    text = source_of(gpu_kernels.attention(s=1024, t=1024, mask="window")).text
    assert "for t_start in range(tl.maximum(0, s_start-39) // BLOCK_T * BLOCK_T" in text


def test_reductions_of_one_row_share_its_loads() -> None:
    text = source_of(gpu_kernels.softmax()).text
    assert text.count("tl.load") == 1
    assert text.count("tl.exp2") == 1


def test_the_scale_of_a_normalised_product_needs_one_loop() -> None:
    text = source_of(gpu_kernels.rms_linear()).text
    assert text.count("for ") == 1


def test_narrow_operands_of_a_product_stay_narrow() -> None:
    text = source_of(gpu_kernels.gemm(dtype=gpu_kernels.BF16)).text
    assert ".to(tl.bfloat16), tl.trans(" in text
    assert "input_precision" not in text


def test_the_text_carries_its_launch() -> None:
    source = source_of(gpu_kernels.gemm())
    module = triton_tools.load_module(source.text)
    assert source.launch == module.LAUNCH
    assert source.launch["args"] == ["x", "w", "b", "o"]
    assert source.launch["grid"] == [4]


@pytest.mark.parametrize("blocks", [(16, 16, 16), (32, 64, 64), (128, 32, 16)])
def test_a_schedule_chooses_the_blocks(blocks: tuple[int, int, int]) -> None:
    m, n, k = blocks
    schedule = Schedule("block", (("m", m), ("n", n)), (("k", k),))
    kernel = gpu_kernels.gemm()
    given = gpu_kernels.inputs(kernel)
    gpu_kernels.check(kernel, given, interpret(kernel, given, schedule=schedule))


@pytest.mark.parametrize(
    ("grid", "serial", "message"),
    [
        ((("k", 16),), (), "which the kernel reduces"),
        ((("m", 24),), (), "not a power of two"),
        ((("q", 16),), (), "which the kernel lacks"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(grid, serial, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        source_of(gpu_kernels.gemm(), Schedule("block", grid, serial))


def test_a_simd_program_is_refused() -> None:
    program = lower(gpu_kernels.gemm(), default_schedule(gpu_kernels.gemm()))
    with pytest.raises(ScheduleError, match="cannot be printed"):
        render(program, "triton")


def test_the_text_of_attention(snapshot) -> None:
    assert source_of(gpu_kernels.attention(mask="causal")).text == snapshot


def test_the_text_is_the_same_again() -> None:
    for make in (gpu_kernels.attention, gpu_kernels.mlp, gpu_kernels.two_outputs):
        assert source_of(make()).text == source_of(make()).text
