"""Schedules: plain data, a small space with the default first, every point of it right."""

from __future__ import annotations

import json

import pytest

from luminal_lab import codegen
from luminal_lab.errors import ScheduleError
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs

KERNELS = {
    "softmax": lambda: K.softmax(37, 133),
    "layernorm": lambda: K.layernorm(5, 300),
    "pointwise": lambda: K.pointwise(33, 70),
    "columns": lambda: K.reduce_columns(70, 300),
    "linear": lambda: K.linear(100, 70, 130),
    "swiglu": lambda: K.swiglu(40, 33, 70),
    "attention": lambda: K.attention(1, 2, 100, 300, 64),
    "causal": lambda: K.attention(1, 2, 200, 200, 16, causal="select"),
    "projections": lambda: K.attention_with_projections(37, 140, 1, 32, 24),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_schedule_of_a_space_is_right(name: str, step: int):
    """Every third one; all of them among the slow tests."""
    kernel = KERNELS[name]()
    space = codegen.schedule_space(kernel, MACHINE)
    assert space[0] == codegen.default_schedule(kernel, MACHINE)
    assert len(set(space)) == len(space) <= 50
    assert len(space) > 1
    inputs = random_inputs(kernel)
    for schedule in space[::step]:
        compiled = Compiled(kernel, schedule)
        try:
            check(kernel, inputs, compiled(inputs))
        except AssertionError as error:
            raise AssertionError(f"{schedule}: {error}") from error


@pytest.mark.parametrize("name", KERNELS)
def test_schedules_are_plain_data(name: str):
    for schedule in codegen.schedule_space(KERNELS[name](), MACHINE):
        data = json.loads(json.dumps(schedule.to_data()))
        assert codegen.Schedule.from_data(data) == schedule


@pytest.mark.parametrize("data", [{"grid": 3}, {"tiles": [[1]], "unknown": 2}, {"grid": [5]}])
def test_other_data_is_refused(data):
    with pytest.raises(ScheduleError, match="not a schedule"):
        codegen.Schedule.from_data(data)


@pytest.mark.parametrize(
    "schedule",
    [
        codegen.Schedule(grid=(("nowhere", 4),)),
        codegen.Schedule(grid=(("i", 0),)),
        codegen.Schedule(grid=(("i", 4),), tiles=((0, 32),)),
        codegen.Schedule(grid=(("i", 4),), tiles=((4, 10),)),
        codegen.Schedule(grid=(("i", 4),), unroll=0),
        codegen.Schedule(keep="somewhere"),  # type: ignore[arg-type]
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule):
    with pytest.raises(ScheduleError):
        codegen.lower(K.linear(40, 30, 50), schedule, MACHINE)


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_text_every_time(name: str):
    first, second = (
        codegen.render(codegen.lower(KERNELS[name](), None, MACHINE)).text for _ in range(2)
    )
    assert first == second
