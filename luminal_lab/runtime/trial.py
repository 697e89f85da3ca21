"""Try one kernel by itself: another schedule, or source that a person changed.

The kernel gets random inputs, is checked against its own mathematics in float64 and timed, all
in the measuring child: source that crashes takes nothing down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.errors import LuminalError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.runtime.compiler import GENERATED
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.program import KernelCode
from luminal_lab.runtime.sources import kernel_code
from luminal_lab.search.canonical import canonical
from luminal_lab.search.execute import run_kernel, sized_kernel
from luminal_lab.search.target import Expected, Job, Measurement, Tolerance
from luminal_lab.search.verify import kernel_tolerance, scale_of

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 1 << 27  # elements of the largest value that is computed in float64 for a trial


@dataclass(frozen=True)
class Trial:
    """What became of a kernel that was tried.

    Arguments:
        code: What was compiled.
        schedule: Plain data of its schedule; None for the default one.
        measurement: Whether it was right, how long it took, or why not.
        edited: Whether the source is a person's.
    """

    code: KernelCode
    schedule: Any
    measurement: Measurement
    edited: bool = False

    def __repr__(self) -> str:
        m = self.measurement
        if not m.ok:
            return f"Trial({self.code.entry}: {m.reason}: {m.message})"
        time = f"{m.median * 1e6:.1f} µs ± {m.iqr * 1e6:.1f}" if m.median else "not timed"
        return f"Trial({self.code.entry}: right, {time}, largest error {m.max_error:.2g})"


def try_kernel(
    kernel: Kernel,
    schedule: Any = None,
    text: str | None = None,
    *,
    target: CpuTarget | None = None,
    seed: int = 0,
) -> Trial:
    """Compile, verify and time one kernel.

    Arguments:
        kernel: A derived kernel, such as `candidate.kernels[0]`.
        schedule: Plain data of a schedule; None for the default one.
        text: C to use in place of the one that is generated under this schedule. It must
            define the same entry point.
        target: Where to run it.
        seed: For its inputs.

    Returns:
        The trial; that a kernel does not compile, crashes or is wrong is a result too.

    Raises:
        ScheduleError: when the schedule does not fit the kernel.
        LuminalError: when the kernel is too large to be checked.

    >>> import torch, luminal_lab as ll
    >>> from luminal_lab.runtime.trial import try_kernel
    >>> hlir = ll.capture(torch.nn.GELU(), (torch.ones(64),))
    >>> kernel = ll.search(ll.saturate(hlir), ll.Budget("none")).best.kernels[0]
    >>> try_kernel(kernel).measurement.ok
    True
    """
    plain, _, _ = canonical(kernel)
    assert isinstance(plain, Kernel)
    sizes = {s.name: s.hint for s in plain.symbols}
    fixed = sized_kernel(plain, sizes)
    inputs = random_inputs(fixed, seed)
    values = postorder(o.value for o in fixed.outputs)
    work = max(math.prod(fixed.extents[a] for a in v.free) for v in values)
    if work > _LARGEST:
        raise LuminalError(
            f"checking this kernel means computing {work:,} values in float64",
            fix="capture the program with smaller inputs to edit its kernels",
        )
    own = target or CpuTarget()
    try:
        code = kernel_code(plain, schedule, own.machine())
        if text is not None:
            # The compiler counts lines as the person sees them.
            code = replace(code, text=f'#line 1 "{code.entry}.c"\n{text}')
            if not re.search(rf"\b{code.entry}\s*\(", text):
                return Trial(code, schedule, Measurement(False, (), "compile failed", (
                    f"the source does not define {code.entry}(char *const *b, long threads), "
                    "which is what is called"
                )), True)  # fmt: skip
        job = Job(plain, schedule, inputs, _expected(fixed, inputs), sizes=sizes)
        measurement = own.measure_code(job, code)
    finally:
        if target is None:
            own.close()
    if text is not None:  # what to do about it is said of generated sources
        said = "".join(x for x in measurement.message.splitlines(True) if GENERATED not in x)
        measurement = replace(measurement, message=said.rstrip())
    return Trial(code, schedule, measurement, text is not None)


def random_inputs(kernel: Kernel, seed: int = 0) -> dict[str, Tensor]:
    """A tensor for each buffer that a kernel reads: small, never zero, indices in bounds."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    bound = _index_bound(kernel)
    out = {}
    for name in kernel.reads():
        buffer = kernel.buffers[name]
        dtype = torch_dtype(buffer.dtype, "native")
        if buffer.dtype.is_float:
            sign = torch.where(torch.rand(buffer.shape, generator=rng) < 0.5, -1.0, 1.0)
            values = sign * (0.05 + torch.rand(buffer.shape, generator=rng))
            out[name] = values.to(dtype)
        elif buffer.dtype.name == "bool":
            out[name] = torch.rand(buffer.shape, generator=rng) < 0.8
        else:
            out[name] = torch.randint(0, bound, buffer.shape, generator=rng).to(dtype)
    return out


def _index_bound(kernel: Kernel) -> int:
    """What integers stay below, so that any of them may be an index."""
    bound = 4
    for value in postorder(o.value for o in kernel.outputs):
        if value.op == "load" and value.args:
            bound = min([bound, *kernel.buffers[value.attrs[0]].shape])
    return max(bound, 1)


def _expected(kernel: Kernel, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """What a kernel must write by its own mathematics, whatever rules made it."""
    base = kernel_tolerance(replace(kernel, rules=()), {})
    return {
        name: Expected(None, values.reshape(-1), Tolerance(base * scale_of(values), base))
        for name, values in run_kernel(kernel, inputs).items()
    }


def source_text(kernel: Kernel, schedule: Any = None, target: CpuTarget | None = None) -> str:
    """The C that `try_kernel` would compile: what a person starts editing from."""
    plain, _, _ = canonical(kernel)
    assert isinstance(plain, Kernel)
    return kernel_code(plain, schedule, (target or CpuTarget()).machine()).text
