"""From a kernel's text to its compiled library: the work of a search that can go anywhere.

An order and its outcome are plain data, so that they travel between processes and machines.
PyTorch is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import LuminalError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.exclusive import compiling
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.program import Code, KernelCode
from luminal_lab.runtime.sources import kernel_code
from luminal_lab.search.kernel_text import AnyKernel, parse_kernel
from luminal_lab.search.machine import Machine
from luminal_lab.search.target import Reason


@dataclass(frozen=True)
class Order:
    """A kernel to be compiled.

    Arguments:
        kernel: Its canonical text.
        schedule: Plain data of a `codegen.Schedule`; None for the default one.
        machine: What the code is made for.
    """

    kernel: str
    schedule: Any
    machine: Machine


@dataclass(frozen=True)
class Prepared:
    """What became of an Order.

    Arguments:
        code: Entry, parameters and scratch of its C; None for a routine in Python.
        library: Path of the compiled library on the machine that made it.
        failure: Why there is none, `""` when all is well.
        reason: `"compile failed"`, or `"crashed"` when whoever prepared it died each time.
    """

    code: KernelCode | None = None
    library: str = ""
    failure: str = ""
    reason: Reason = "compile failed"


def prepare(order: Order) -> Prepared:
    """Generate, compile and link a kernel, on one core; a failure is an outcome too.

    It waits while a kernel is timed on this machine.
    """
    with compiling():
        try:
            code = code_of(parse_kernel(order.kernel), order.schedule, order.machine)
        except LuminalError as error:
            return Prepared(failure=str(error))
        if not isinstance(code, KernelCode):
            return Prepared()
        return linked(code, cc.compile_units([code.unit], jobs=1)[0])


def code_of(kernel: AnyKernel, schedule: Any, machine: Machine) -> Code:
    """C for a derived kernel, what the library offers for another.

    Raises:
        LuminalError: when there is no code for it.
    """
    if isinstance(kernel, Kernel):
        return kernel_code(kernel, schedule, machine)
    return library_code(kernel)


def linked(code: KernelCode, compiled: Path | LuminalError) -> Prepared:
    """The library of compiled code, or why there is none."""
    if isinstance(compiled, LuminalError):
        return Prepared(code, failure=str(compiled))
    try:
        return Prepared(code, str(cc.link([compiled])))
    except LuminalError as error:
        return Prepared(code, failure=str(error))
