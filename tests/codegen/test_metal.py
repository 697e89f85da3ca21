"""Metal source: valid as far as can be checked here, and right when it runs in the shim."""

from __future__ import annotations

import pytest

from luminal_lab.codegen import metal
from luminal_lab.codegen.blocks import block_schedule, lower_blocks
from luminal_lab.codegen.body import statements
from luminal_lab.runtime import metal_tools
from tests.codegen import gpu_kernels
from tests.codegen.gpu_kernels import KERNELS


@pytest.fixture(autouse=True)
def _needs_a_compiler(c_compiler: str) -> None:
    """The shim is C++; its compiler comes with the C compiler or is missing with it."""


def render(kernel):
    body = statements(kernel)
    return metal.render(lower_blocks(body, block_schedule(body)))


def run(kernel, given):
    source = render(kernel)
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
