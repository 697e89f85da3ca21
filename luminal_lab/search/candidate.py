"""A candidate: one complete program that the e-graph contains, as calls of kernels over buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from luminal_lab.egraph.values import Buffer, Kernel


@dataclass(frozen=True)
class LibraryKernel:
    """A call of a routine that is not derived: a BLAS product, hand-written code, or ATen.

    Arguments:
        routine: `"gemm"`, `"custom"`, `"scatter"`, or the name of a file in `kernels/`.
        reads: Names of the buffers that it reads, in the routine's order.
        writes: Names of the buffers that it writes.
        buffers: Every buffer that it touches, by name.
        attrs: What the routine needs to know, as plain data (a gemm's m, n, k, batch and strides;
            a custom's target, template and result).
        nodes: The HLIR nodes that it covers.
        rules: The rules that made it.
    """

    routine: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[int, ...] = field(default=(), compare=False)
    rules: tuple[str, ...] = field(default=(), compare=False)


BufferKind = Literal["arg", "weight", "constant", "output", "temp"]


@dataclass(frozen=True)
class Call:
    """One kernel call of a program.

    Arguments:
        kernel: Which kernel, as an index into `Candidate.kernels`.
        bind: The program's buffer for each of the kernel's own buffer names.
        region: The region instance that it belongs to (`"encoder.layer.3"`), for views.
        at_build: Whether it depends on weights alone and runs once, when the executable is built.
    """

    kernel: int
    bind: Mapping[str, str]
    region: str = ""
    at_build: bool = False


@dataclass(frozen=True)
class Candidate:
    """A program: distinct kernels, and the calls of them in order.

    Repeated layers share kernels: a kernel occurs once in `kernels` and once per layer in `calls`.

    Arguments:
        hlir: The program that it computes (`luminal_lab.hlir.Hlir`).
        kernels: Distinct kernels, in order of first call.
        schedules: The schedule of each kernel (a `codegen.Schedule`, as plain data), None for
            the default one and for library kernels.
        calls: In execution order.
        buffers: Every program buffer by name; `kinds` says what each is.
        kinds: See `BufferKind`; an `output` buffer's name is its OutputSpec's name.
        choice: The genome: what was chosen in each e-graph, as plain sorted data. Two candidates
            with the same choice are the same.
        predicted: Predicted seconds per kernel call, in order of `kernels`; empty when unknown.
        target: `"cpu"`, `"cuda"` or `"mps"`.
    """

    hlir: Any
    kernels: tuple[Kernel | LibraryKernel, ...]
    calls: tuple[Call, ...]
    buffers: Mapping[str, Buffer]
    kinds: Mapping[str, BufferKind]
    schedules: tuple[Any, ...] = ()
    choice: tuple = ()
    predicted: tuple[float, ...] = ()
    target: str = "cpu"
