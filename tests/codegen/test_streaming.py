"""Results that go past the caches: which, by what rule, and right wherever they lie."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from luminal_lab import codegen
from luminal_lab.codegen.tile import Store, walk
from luminal_lab.egraph.values import Buffer, Kernel
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import BF16, BOOL, DTYPES, F32, F64
from luminal_lab.search.machine import Machine
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs

NEAR = replace(MACHINE, l2=8, l3=64)  # everything is beyond these caches


class Shifted(Compiled):
    """A compiled kernel whose buffers begin some bytes behind a line."""

    shift = 0

    def pointer(self, memory: torch.Tensor) -> int:
        return super().pointer(memory) + self.shift


def streamed(kernel: Kernel, schedule=None, machine: Machine = NEAR) -> set[str]:
    """The buffers that some store of the program streams to."""
    program = codegen.lower(kernel, schedule, machine)
    nodes = (node for node, _ in walk(program.body))
    return {n.buffer for n in nodes if isinstance(n, Store) and n.stream}


def verified(kernel: Kernel, shift: int = 0, **changes) -> str:
    """Run a kernel with streaming stores against float64; its text."""
    schedule = replace(codegen.default_schedule(kernel, NEAR), stream=True, **changes)
    compiled, inputs = Shifted(kernel, schedule, NEAR), random_inputs(kernel)
    compiled.shift = shift
    check(kernel, inputs, compiled(inputs))
    return compiled.source.text


def doubled(m: int, n: int, dtype, strides=None) -> Kernel:
    """y = x + x."""
    x = K.load("x", "i", "j", dtype=dtype)
    value = K.op("lessthan", K.const(False, BOOL), x) if dtype is BOOL else K.add(x, x)
    out = Buffer("y", (m, n), dtype, strides=strides)
    extents = {"i": m, "j": n}
    return K.kernel([("y", ("i", "j"), value)], extents, [Buffer("x", (m, n), dtype), out])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_with_tails_and_at_any_place(dtype):
    for m, n, shifts in ((33, 256, (0,)), (9, 1003, (0, 8, 16, 40))):
        for shift in shifts:
            assert f"ll_nt_{dtype}(" in verified(doubled(m, n, dtype), shift)


def test_vectors_of_every_width():
    narrow = [b for b in (16, 32, 64) if b <= MACHINE.vector_bytes]
    for nbytes in narrow:
        machine = replace(NEAR, vector_bytes=nbytes, registers=16)
        for kernel in (K.rmsnorm(7, 333), doubled(20, 130, BF16), doubled(20, 130, F64)):
            inputs = random_inputs(kernel)
            check(kernel, inputs, Compiled(kernel, None, machine)(inputs))


def test_rows_that_do_not_touch_each_other():
    for row in (256, 300, 259):  # aligned rows, whole vectors off a line, anything
        text = verified(doubled(21, 256, F32, strides=(row, 1)))
        assert "ll_nt_f32(" in text
    assert "ll_nt_" not in verified(doubled(48, 64, F32, strides=(128, 2)))


def test_norms_and_sums_of_rows():
    for m, n in ((37, 256), (8, 1003), (3, 4096)):
        for kernel in (K.rmsnorm(m, n), K.layernorm(m, n)):
            for shift in (0, 4, 32):
                assert "ll_nt_f32(" in verified(kernel, shift)


def test_a_result_that_the_kernel_reads_again_is_not_streamed():
    kernel = K.softmax(37, 300)
    base = replace(codegen.default_schedule(kernel, NEAR), stream=True)
    assert streamed(kernel, replace(base, keep="output")) == set()
    assert streamed(kernel, replace(base, keep="scratch")) == {"y"}
    for keep in ("output", "scratch", "recompute"):
        verified(kernel, keep=keep)


def test_an_output_that_is_also_an_input_is_not_streamed():
    x, y = K.load("x", "i", "j"), K.load("y", "i", "j")
    buffers = [Buffer("x", (40, 256), F32), Buffer("y", (40, 256), F32)]
    extents = {"i": 40, "j": 256}
    assert streamed(K.kernel([("y", ("i", "j"), K.add(x, y))], extents, buffers)) == set()
    assert streamed(K.kernel([("y", ("i", "j"), K.add(x, x))], extents, buffers)) == {"y"}


def test_each_of_several_results_is_decided_by_itself():
    x = K.load("x", "i", "j")
    outputs = [("y", ("i", "j"), K.add(x, x)), ("s", ("i",), K.red("add", "j", x))]
    shapes = {"x": (64, 512), "y": (64, 512), "s": (64,)}
    buffers = [Buffer(name, shape, F32) for name, shape in shapes.items()]
    kernel = K.kernel(outputs, {"i": 64, "j": 512}, buffers)
    assert streamed(kernel, machine=replace(NEAR, l2=256)) == {"y"}
    verified(kernel)


def test_products_may_stream_and_do_not_by_default():
    kernel = K.linear(100, 70, 128)
    assert not codegen.default_schedule(kernel, NEAR).stream
    verified(kernel)


@pytest.mark.parametrize(
    ("form", "far"), [("rmsnorm", True), ("layernorm", True), ("softmax", True)]
)
def test_the_size_decides(form: str, far: bool):
    machine = Machine()
    make = getattr(K, form)
    assert codegen.default_schedule(make(2048, 4096), machine).stream is far
    assert not codegen.default_schedule(make(1024, 4096), machine).stream
    assert not codegen.default_schedule(make(8, 4096), machine).stream


def test_small_results_are_not_streamed():
    machine = Machine()
    assert codegen.default_schedule(K.pointwise(4096, 4096), machine).stream
    assert not codegen.default_schedule(K.reduce_columns(4096, 4096), machine).stream
    assert codegen.default_schedule(doubled(4096, 4096, F32), machine).stream


def test_the_search_measures_both_kinds_beyond_the_last_level_only():
    machine = Machine()
    for m, both in ((2048, True), (1280, True), (512, False)):
        space = codegen.schedule_space(K.rmsnorm(m, 4096), machine)
        assert len({s.stream for s in space}) == 1 + both
        assert space[0] == codegen.default_schedule(K.rmsnorm(m, 4096), machine)


def test_a_schedule_must_say_yes_or_no():
    kernel = K.rmsnorm(8, 64)
    schedule = replace(codegen.default_schedule(kernel, NEAR), stream="yes")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="stream"):
        codegen.lower(kernel, schedule, NEAR)


def test_every_task_that_streams_ends_with_a_fence():
    for kernel in (K.rmsnorm(64, 4096), doubled(300, 500, BF16), doubled(1, 4096, F32)):
        program = codegen.lower(kernel, None, NEAR)
        text = codegen.render(program, "c", "kernel", 2).text
        functions = [f for f in re.split(r"^(?=\S.*\{$)", text, flags=re.M) if "ll_nt_" in f]
        assert functions
        for f in functions:
            assert re.search(r"^  ll_nt_fence\(\);\n\}", f, re.M), f
        plain = replace(codegen.default_schedule(kernel, NEAR), stream=False)
        text = codegen.render(codegen.lower(kernel, plain, NEAR), "c", "kernel", 2).text
        assert "ll_nt_" not in text


def test_threads_see_what_others_have_streamed():
    kernel = K.rmsnorm(512, 1024)
    inputs = random_inputs(kernel)
    schedule = codegen.default_schedule(kernel, NEAR)
    assert schedule.stream
    want = Compiled(kernel, replace(schedule, stream=False), NEAR)(inputs)
    compiled = Compiled(kernel, schedule, NEAR)
    for _ in range(20):
        assert torch.equal(compiled(inputs)["y"], want["y"])


def test_a_whole_program_beyond_the_last_level():
    import luminal_lab as ll
    from luminal_lab.runtime.cpu import CpuTarget

    rows = CpuTarget().machine().l3 // 4096
    if rows > 1 << 14:
        pytest.skip("a last level of more than 64 MiB")
    x = torch.randn(rows, 1024)
    program = ll.compile(lambda x: x * 2 + 1, (x,), budget=ll.Budget(effort="none"))
    kernel = program.candidate.kernels[0]
    assert codegen.default_schedule(kernel, CpuTarget().machine()).stream
    assert torch.equal(program(x), x * 2 + 1)
