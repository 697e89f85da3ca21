"""What compilers make of a kernel: the CPU's assembly, PTX and SASS, registers and spills."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import CompilerError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.program import KernelCode
from luminal_lab.runtime.sources import kernel_code
from luminal_lab.search.canonical import canonical

GPUS = ("sm_80", "sm_90", "sm_100")  # architectures that resources are reported for


def assembly(
    kernel: Kernel,
    schedule: Any = None,
    target: CpuTarget | None = None,
    text: str | None = None,
) -> str:
    """The assembly of a kernel's C on this machine, without directives for debuggers.

    Arguments:
        kernel: A derived kernel.
        schedule: Plain data of its schedule; None for the default one.
        target: The machine; this one when None.
        text: C to use in place of the generated one.

    Raises:
        CompilerError: when there is no compiler, or it rejects the source.
    """
    plain, _, _ = canonical(kernel)
    assert isinstance(plain, Kernel)
    code = kernel_code(plain, schedule, (target or CpuTarget()).machine())
    return assembly_of(code if text is None else replace(code, text=text))


def assembly_of(code: KernelCode) -> str:
    """The assembly of given C.

    Raises:
        CompilerError: when there is no compiler, or it rejects the source.
    """
    compiler = cc.discover()
    unit = code.unit
    with tempfile.TemporaryDirectory(prefix="luminal-asm-") as folder:
        (Path(folder) / "kernel.c").write_text(unit.text)
        flags = [*compiler.flags, *unit.flags, "-fno-asynchronous-unwind-tables", "-g0"]
        command = [*compiler.command, *flags, "-S", "kernel.c", "-o", "kernel.s"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=cc.UNIT_SECONDS,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise CompilerError(
                f"the C compiler rejected {unit.name}:\n{done.stderr.strip()}",
                where=compiler.describe(),
            )
        return readable((Path(folder) / "kernel.s").read_text())


def readable(text: str) -> str:
    r"""Assembly without directives and without labels that nothing jumps to.

    >>> print(readable("\t.text\n.L1:\n.L2:\n\tjmp\t.L2\n"))
    .L2:
        jmp	.L2
    """
    plain = [line for line in text.splitlines() if not re.match(r"\s*\.|\.L\w+:", line)]
    used = set(re.findall(r"\.L\w+", "\n".join(plain)))
    out = []
    for line in text.splitlines():
        label = re.match(r"(\.L\w+):", line)
        if label:
            if label[1] in used:
                out.append(line)
        elif re.match(r"\s+\.", line) or line.lstrip().startswith("#"):
            continue
        elif line.strip():
            out.append(line.rstrip())
    return "\n".join(out)


def gpu_reports(kernel: Kernel, archs: Sequence[str] = GPUS) -> Mapping[str, Any]:
    """What Triton's compiler says about a kernel, per architecture; no GPU is needed.

    Arguments:
        kernel: A derived kernel.
        archs: Keys of `triton_tools.ARCHS`.

    Returns:
        A `triton_tools.Report` by architecture, or the `CompilerError` that it ended with.

    Raises:
        ScheduleError: when the kernel cannot be printed in Triton.
    """
    from luminal_lab import codegen
    from luminal_lab.runtime import triton_tools

    plain, _, _ = canonical(kernel)
    assert isinstance(plain, Kernel)
    source = codegen.source(plain, None, "triton")
    launch = source.launch
    out: dict[str, Any] = {}
    for arch in archs:
        try:
            out[arch] = triton_tools.compile_ahead(
                source.text, launch["entry"], launch["signature"], launch["constexprs"], arch,
                num_warps=launch["num_warps"], num_stages=launch["num_stages"],
            )  # fmt: skip
        except CompilerError as error:
            out[arch] = error
    return out
