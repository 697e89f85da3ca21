"""From a kernel to its source in one call, for people: what a notebook shows and edits."""

from __future__ import annotations

from typing import Any

from luminal_lab.codegen.lower import lower
from luminal_lab.codegen.render import Language, render
from luminal_lab.codegen.schedule import Schedule, default_schedule
from luminal_lab.codegen.tile import KernelSource
from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import ScheduleError
from luminal_lab.search.machine import Machine

STYLES = {"c": "simd", "triton": "block", "metal": "block"}


def source(
    kernel: Kernel,
    schedule: Any = None,
    language: Language = "c",
    machine: Machine | None = None,
    entry: str = "kernel",
) -> KernelSource:
    """The source of a kernel.

    Arguments:
        kernel: A derived kernel.
        schedule: A `Schedule`, or its plain data. One of another style than the language's (a
            CPU schedule has no meaning for a GPU) gives way to the language's default, as does None.
        language: `"c"`, `"triton"` or `"metal"`.
        machine: Vector width, registers and caches; a generic one when None.
        entry: Name of the entry function.

    Raises:
        ScheduleError: for an unknown language, or a schedule that does not fit the kernel.
    """
    if language not in STYLES:
        raise ScheduleError(
            f"there is no renderer for {language!r}", fix=f"one of {', '.join(STYLES)}"
        )
    machine = machine or Machine()
    style = STYLES[language]
    if schedule is not None and not isinstance(schedule, Schedule):
        schedule = Schedule.from_data(schedule)
    if schedule is None or schedule.style != style:
        schedule = default_schedule(kernel, machine, style)  # type: ignore[arg-type]
    return render(lower(kernel, schedule, machine), language, entry, machine.threads)
