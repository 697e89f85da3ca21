"""One door to the renderers."""

from __future__ import annotations

from typing import Literal

from luminal_lab.codegen.c import render_c
from luminal_lab.codegen.c_prelude import prelude
from luminal_lab.codegen.tile import KernelSource, TileProgram
from luminal_lab.errors import ScheduleError

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


__all__ = ["prelude", "render"]
