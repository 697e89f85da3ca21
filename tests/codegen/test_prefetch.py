"""Rows that are asked for while others are computed: which, where, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luminal_lab import codegen
from luminal_lab.codegen.tile import Loop, walk
from luminal_lab.egraph.values import Buffer, Kernel
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import BF16, F32
from luminal_lab.search.machine import Machine
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs

NEAR = replace(MACHINE, l2=1 << 16, l3=64)  # large operands come from beyond the last level


def asked(kernel: Kernel, machine: Machine = NEAR) -> list[tuple[str, str]]:
    """What the default program asks for: (loop variable, place)."""
    program = codegen.lower(kernel, None, machine)
    loops = [n for n, _ in walk(program.body) if isinstance(n, Loop)]
    return [(n.var, f"{name}[{index}]") for n in loops for name, index in n.ahead]


@pytest.mark.parametrize("form", [K.softmax, K.rmsnorm, K.layernorm])
def test_the_second_loop_over_a_row_asks_for_the_next_one_once(form):
    ((var, place),) = asked(form(64, 4096))
    assert var == "j"
    assert place == "x[i*4096+j+4096]"
    program = codegen.lower(form(64, 4096), None, NEAR)
    loops = [n for n, _ in walk(program.body) if isinstance(n, Loop) and n.axis == "j"]
    assert not loops[0].ahead  # the first waits for its own row
    assert "ask x[" in program.text()


@pytest.mark.parametrize(("m", "n"), [(37, 300), (5, 1003), (1, 4096), (64, 17), (3, 1)])
@pytest.mark.parametrize("form", [K.softmax, K.rmsnorm, K.layernorm])
def test_results_are_those_without(form, m, n):
    kernel, machine = form(m, n), replace(NEAR, l2=max(8 * n, 8192))  # half holds a row
    first = codegen.default_schedule(kernel, machine)
    for ahead in (True, False):
        schedule = replace(first, ahead=ahead)
        compiled, inputs = Compiled(kernel, schedule, machine), random_inputs(kernel)
        check(kernel, inputs, compiled(inputs))
        asks = ahead and 4 * m * n > machine.threads * machine.l2
        assert ("ll_ask(" in compiled.source.text) == asks


def test_elements_of_two_bytes_ask_once_per_line():
    x = K.load("x", "i", "j", dtype=BF16)
    e = K.exp(K.cast(x, F32))
    value = K.mul(e, K.op("recip", K.red("add", "j", K.cast(x, F32))))
    buffers = [Buffer("x", (64, 4096), BF16), Buffer("y", (64, 4096), F32)]
    kernel = K.kernel([("y", ("i", "j"), value)], {"i": 64, "j": 4096}, buffers)
    text = codegen.source(kernel, None, "c", NEAR).text
    step = int(text.split("j += ")[-1].split(")")[0])
    assert text.count("ll_ask(") == max(1, step // 32)


def test_what_is_near_or_read_once_is_not_asked_for():
    machine = Machine()
    assert codegen.default_schedule(K.softmax(2048, 4096), machine).ahead
    assert not codegen.default_schedule(K.softmax(64, 4096), machine).ahead
    for kernel in (K.reduce_rows(4096, 4096), K.linear(256, 64, 128)):
        assert not codegen.default_schedule(kernel, NEAR).ahead
        assert asked(kernel) == []
    assert asked(K.softmax(64, 4096), replace(NEAR, l2=8192)) == []  # it would not stay near


def test_a_loop_with_much_arithmetic_asks_a_page_ahead():
    places = asked(K.pointwise(64, 4096))
    assert places
    assert all(place.endswith("+1024]") for _, place in places)


def test_a_far_softmax_keeps_a_short_row_in_scratch_and_streams():
    machine = Machine()
    short = codegen.default_schedule(K.softmax(4096, 4096), machine)
    assert (short.keep, short.stream, short.ahead) == ("scratch", True, True)
    assert dict(short.grid) == {"i": 1}
    wide = codegen.default_schedule(K.softmax(1024, 16384), machine)
    assert (wide.keep, wide.stream) == ("output", False)


def test_it_is_a_choice_of_the_schedule():
    kernel = K.softmax(2048, 4096)
    first = codegen.default_schedule(kernel, Machine())
    assert replace(first, ahead=False) in codegen.neighbours(kernel, first, Machine())
    assert codegen.Schedule.from_data(first.to_data()) == first
    old = {k: v for k, v in first.to_data().items() if k != "ahead"}
    assert not codegen.Schedule.from_data(old).ahead
    with pytest.raises(ScheduleError, match="ahead"):
        codegen.lower(kernel, replace(first, ahead="yes"), Machine())  # type: ignore[arg-type]
