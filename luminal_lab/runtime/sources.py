"""From kernels to code that runs: C for derived ones, routines for those of libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.runtime.cache import digest
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.program import Code, KernelCode
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.canonical import canonical
from luminal_lab.search.machine import Machine


def candidate_code(
    candidate: Candidate, target: Any = None, given: Mapping[int, Code] | None = None
) -> list[Code]:
    """Code for each kernel of a candidate.

    Arguments:
        candidate: The program.
        target: The `CpuTarget` whose machine decides vector widths and schedules.
        given: Code to use for some kernels instead of generating it.

    Raises:
        ScheduleError: when a schedule does not fit its kernel.
    """
    given = given or {}
    out: list[Code] = []
    machine: Machine | None = None
    for k, kernel in enumerate(candidate.kernels):
        if k in given:
            out.append(given[k])
        elif isinstance(kernel, LibraryKernel):
            out.append(library_code(kernel))
        else:
            if machine is None:
                machine = _machine(target)
            schedule = candidate.schedules[k] if k < len(candidate.schedules) else None
            mine = candidate.written.get(k)
            out.append(
                kernel_code(kernel, schedule, machine)
                if mine is None
                else written_code(kernel, schedule, machine, mine)
            )
    return out


def written_code(kernel: Kernel, schedule: Any, machine: Machine, text: str) -> KernelCode:
    """A kernel's code with a person's C in place of what is generated under a schedule.

    Buffers come in the order of the kernel under its canonical names, which is what was edited.
    """
    plain, _, back = canonical(kernel)
    assert isinstance(plain, Kernel)
    code = kernel_code(plain, schedule, machine)
    return replace(code, text=text, params=tuple(back.get(p, p) for p in code.params))


def _machine(target: Any) -> Machine:
    if target is not None:
        return target.machine()
    from luminal_lab.runtime.cpu import CpuTarget

    return CpuTarget().machine()


def kernel_code(kernel: Kernel, schedule: Any, machine: Machine) -> KernelCode:
    """The C of a derived kernel.

    Arguments:
        kernel: The kernel.
        schedule: Plain data of a `codegen.Schedule`; None for the default one.
        machine: Vector width, registers, caches.
    """
    from luminal_lab import codegen

    if schedule is None:
        chosen = codegen.default_schedule(kernel, machine)
    elif isinstance(schedule, codegen.Schedule):
        chosen = schedule
    else:
        chosen = codegen.Schedule.from_data(schedule)
    entry = entry_name(kernel, chosen)
    program = codegen.lower(kernel, chosen, machine)
    source = codegen.render(program, "c", entry, machine.threads)
    return KernelCode(
        source.entry,
        source.text,
        source.params,
        tuple(pack.nbytes for pack in source.packs),
        source.workspace_bytes,
        # A scatter reads its destination before anything else, and only where it is apart.
        overwrites="restrict" not in source.text or any(o.scatter for o in kernel.outputs),
        prelude=codegen.prelude(machine),
        sizes=tuple(s.name for s in source.sizes),
    )


_TOLD = ("online", "red", "erf", "exp2", "log2", "sin", "sqrt", "mod", "select", "cast")


def entry_name(kernel: Kernel, schedule: Any) -> str:
    """A C name that tells kernels apart, and a reader what one does: `sum_max_exp2_1f0c2a7b`.

    It follows from the kernel's text and its schedule, so equal kernels have equal names.
    """
    told: dict[str, None] = {}
    for value in postorder(kernel.values()):
        if value.op == "red":
            told.setdefault("max" if value.attrs[0] == "max" else "sum")
        elif value.op == "carry":
            told.setdefault(value.attrs[0])
        elif value.op in _TOLD:
            told.setdefault(value.op)
    ordered = sorted(told, key=_ORDER.__getitem__)[:3] or ["map"]
    text = canonical(kernel)[1]
    return "_".join((*ordered, digest(text, repr(schedule.to_data()))[:8]))


_ORDER = {
    name: k for k, name in enumerate(("online", "argmax", "spread", "sum", "max", *_TOLD[2:]))
}


@contextlib.contextmanager
def progress_bar(
    progress: bool | Callable[[int, int, str], None] | None, total: int
) -> Iterator[Callable[[int, int, str], None] | None]:
    """A function for `compile_units` to report to: the user's own, or a tqdm bar's."""
    if not progress:
        yield None
    elif callable(progress):
        yield progress
    else:
        from tqdm.auto import tqdm

        with tqdm(total=total, desc="compile", unit="kernel", leave=False) as bar:

            def report(done: int, count: int, name: str) -> None:
                bar.total = count
                bar.set_postfix_str(name, refresh=False)
                bar.update(done - bar.n)

            yield report
