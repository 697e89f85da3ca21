"""One door to the renderers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from luminal_lab.codegen.c import render_c
from luminal_lab.codegen.c_prelude import prelude
from luminal_lab.codegen.lower import lower
from luminal_lab.codegen.schedule import Schedule, default_schedule
from luminal_lab.codegen.tile import KernelSource, TileProgram
from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import ScheduleError
from luminal_lab.search.machine import Machine

Language = Literal["c", "triton", "metal"]


def render(
    program: TileProgram, language: Language = "c", entry: str = "kernel", threads: int = 2
) -> KernelSource:
    """The program's source.

    Arguments:
        program: A lowered kernel; C needs a `simd` program, the others a `block` program.
        language: The target language.
        entry: Name of the entry function.
        threads: Most threads that a C kernel will use: its workspace is that large.

    Raises:
        ScheduleError: when the program's style does not fit the language.
    """
    wanted = "simd" if language == "c" else "block"
    if program.style != wanted:
        raise ScheduleError(
            f"a {program.style} program cannot be printed as {language}",
            fix=f"lower the kernel with a schedule of style {wanted!r}",
        )
    if language == "c":
        return render_c(program, entry, threads)
    if language == "triton":
        from luminal_lab.codegen import triton

        return triton.render(program, entry)
    if language == "metal":
        from luminal_lab.codegen import metal

        return metal.render(program, entry)
    raise ScheduleError(
        f"there is no renderer for {language!r}", fix="use 'c', 'triton' or 'metal'"
    )


def source(
    kernel: Kernel,
    schedule: Schedule | Mapping[str, Any] | None = None,
    language: Language = "c",
    machine: Machine | None = None,
) -> KernelSource:
    """A kernel's source in one step.

    Arguments:
        kernel: What to compute.
        schedule: A schedule or its plain data. One that was searched for another style of
            language says nothing about this one; then, and when None, the default is taken.
        language: The target language.
        machine: For which machine; a typical one when None.

    Raises:
        ScheduleError: when the kernel cannot be printed in this language.
    """
    style = "simd" if language == "c" else "block"
    machine = machine or Machine()
    if isinstance(schedule, Mapping):
        schedule = Schedule.from_data(schedule)
    if schedule is None or schedule.style != style:
        schedule = default_schedule(kernel, machine, style)
    return render(lower(kernel, schedule, machine), language, threads=machine.threads)


__all__ = ["prelude", "render", "source"]
