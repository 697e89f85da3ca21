"""Library kernels on the CPU: routines that are called, not derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import LuminalError
from luminal_lab.hlir import apply
from luminal_lab.hlir.graph import Node
from luminal_lab.runtime.program import Code, Routine
from luminal_lab.search.candidate import LibraryKernel

if TYPE_CHECKING:
    from torch import Tensor


def library_code(kernel: LibraryKernel) -> Code:
    """How a library kernel runs here.

    Raises:
        LuminalError: for a routine that the CPU does not have.
    """
    make = _ROUTINES.get(kernel.routine)
    if make is None:
        raise LuminalError(
            f"the cpu target has no library routine {kernel.routine!r}",
            fix=f"it has {', '.join(_ROUTINES)}",
        )
    return make(kernel)


def _custom(kernel: LibraryKernel) -> Code:
    """An ATen operator; attrs `target`, `template`, and `result` when it returns several."""
    first = kernel.buffers[kernel.writes[0]]
    node = Node("Custom", (), first.shape, first.dtype, dict(kernel.attrs))

    def run(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        results = apply.call_aten(node, reads)
        chosen = results if len(writes) > 1 else (results[kernel.attrs.get("result") or 0],)
        for out, result in zip(writes, chosen):
            out.copy_(result)

    return Routine(str(kernel.attrs["target"]), run)


def _scatter(kernel: LibraryKernel) -> Code:
    """Operands dest, src, one index per dim of dest; attr `mode` is `set` or `add`."""
    mode = str(kernel.attrs["mode"])

    def run(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        dest, src, *index = reads
        writes[0].copy_(apply.scatter(dest, src, index, mode))

    return Routine(f"scatter_{mode}", run)


_ROUTINES: Mapping[str, Callable[[LibraryKernel], Any]] = {
    "custom": _custom,
    "scatter": _scatter,
}
