"""Which mutated inputs are updated where they lie: a cache is written at its new rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.egraph.values import Kernel
from luminal_lab.runtime.plan import overwritable, reads_of, writes_of
from luminal_lab.search.candidate import Candidate

if TYPE_CHECKING:
    from torch import Tensor


def in_place(candidate: Candidate, at_call: Sequence[int]) -> dict[str, str]:
    """Buffers that can live in the memory of a mutated input, and that input.

    The new value of the input is made by scatters, one after the other, of which the first
    starts from the input; and whatever reads an older state comes before it is overwritten.

    Arguments:
        candidate: The program.
        at_call: Positions in `candidate.calls` that run at each call, in order.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for when, position in enumerate(at_call):
        call = candidate.calls[position]
        kernel = candidate.kernels[call.kernel]
        for name in writes_of(kernel):
            writer[call.bind[name]] = when
        for name in reads_of(kernel):
            readers.setdefault(call.bind[name], []).append(when)
    found: dict[str, str] = {}
    for spec in candidate.hlir.outputs:
        source = spec.mutates
        if source is None or source not in candidate.buffers:
            continue
        for name in _chain(candidate, at_call, spec.name, source, writer, readers):
            found[name] = source
    return found


def _chain(
    candidate: Candidate,
    at_call: Sequence[int],
    name: str,
    source: str,
    writer: Mapping[str, int],
    readers: Mapping[str, Sequence[int]],
) -> list[str]:
    """The states from a new value back to the input, without it; none if there is no such."""
    chain: list[str] = []
    while name != source:
        when = writer.get(name)
        if when is None or (chain and candidate.kinds[name] != "temp"):
            return []
        call = candidate.calls[at_call[when]]
        kernel = candidate.kernels[call.kernel]
        before = _destination(kernel, call.bind, name)
        if before is None or max(readers.get(before, (when,))) > when:
            return []
        chain.append(name)
        name = before
    return chain


def _destination(kernel, bind: Mapping[str, str], name: str) -> str | None:
    """The buffer that a kernel may write over to make the buffer `name`, if it scatters."""
    if not isinstance(kernel, Kernel):
        return None
    for out in kernel.outputs:
        if bind[out.buffer] == name and out.scatter is not None:
            bound = bind[out.scatter.into]
            alone = sum(b == bound for b in bind.values()) == 1
            if alone and out.scatter.into in overwritable(kernel, out.buffer):
                return bound
    return None


def overlapping(given: Sequence[Tensor]) -> list[bool]:
    """For each tensor, whether another one may share memory with it."""
    storages = [t.untyped_storage().data_ptr() for t in given]
    return [storages.count(s) > 1 for s in storages]
