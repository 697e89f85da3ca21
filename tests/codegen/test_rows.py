"""Several rows in one step: when, and right at any size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luminal_lab import codegen
from luminal_lab.errors import ScheduleError
from luminal_lab.search.machine import Machine
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs

NEAR = replace(MACHINE, l1=256, l3=1 << 10)  # everything is beyond these caches


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_pointwise_kernels_at_any_number_of_rows(rows: int, stream: bool):
    for m, n in ((64, 256), (37, 100), (5, 1003), (3, 64), (130, 33)):
        kernel = K.pointwise(m, n)
        schedule = codegen.default_schedule(kernel, NEAR)
        for grid in (schedule.grid, (("i", 8),), (("i", 3),)):
            changed = replace(schedule, rows=rows, stream=stream, grid=grid)
            inputs = random_inputs(kernel)
            check(kernel, inputs, Compiled(kernel, changed, NEAR)(inputs))


@pytest.mark.parametrize("form", ["softmax", "layernorm", "rmsnorm"])
def test_rows_that_are_reduced_as_well(form: str):
    kernel = getattr(K, form)(37, 133)
    inputs = random_inputs(kernel)
    for keep in ("output", "scratch", "recompute"):
        schedule = replace(codegen.default_schedule(kernel, MACHINE), rows=4, keep=keep)
        check(kernel, inputs, Compiled(kernel, schedule)(inputs))


def test_long_rows_that_share_a_scale_go_four_at_a_time():
    machine = Machine()
    for m, n, rows in ((4096, 4096, 4), (4096, 2048, 1), (1024, 16384, 4), (256, 4096, 1)):
        schedule = codegen.default_schedule(K.pointwise(m, n), machine)
        assert schedule.rows == rows
        assert all(step >= rows for _, step in schedule.grid)
    for light in (K.rmsnorm(4096, 4096), K.reduce_columns(4096, 4096), K.linear(64, 64, 64)):
        assert codegen.default_schedule(light, machine).rows == 1


def test_a_step_has_two_vectors_of_each_of_its_rows():
    kernel = K.pointwise(4096, 4096)
    text = codegen.render(codegen.lower(kernel, None, Machine()), "c", "kernel", 2).text
    assert text.count("ll_ld_f32(x + ") == text.count("ll_st_f32(y + ") == 8


def test_the_search_measures_both_where_rows_share_something():
    space = codegen.schedule_space(K.pointwise(4096, 4096), Machine())
    assert {s.rows for s in space} == {1, 4}
    space = codegen.schedule_space(K.rmsnorm(2048, 4096), Machine())
    assert {s.rows for s in space} == {1}


def test_a_number_of_rows_that_makes_no_sense_is_refused():
    schedule = replace(codegen.default_schedule(K.pointwise(8, 64), MACHINE), rows=0)
    with pytest.raises(ScheduleError, match="rows=0"):
        codegen.lower(K.pointwise(8, 64), schedule, MACHINE)
