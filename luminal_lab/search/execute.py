"""Run kernels and whole candidates in float64, with the evaluator of values instead of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.audit import gemm, scattered, store
from luminal_lab.egraph.evaluate import align, evaluate, hold
from luminal_lab.egraph.gemm import GemmForm
from luminal_lab.egraph.library import LibraryForm, reference
from luminal_lab.egraph.sized import at, resized, resized_buffer, resized_kernel
from luminal_lab.egraph.values import Kernel, KernelOutput, Value
from luminal_lab.errors import CallError, SearchError
from luminal_lab.hlir import apply
from luminal_lab.hlir.graph import Node
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.symbolic import specialize
from luminal_lab.polling import poll
from luminal_lab.search.candidate import Candidate, LibraryKernel

if TYPE_CHECKING:
    from torch import Tensor


def value_at(
    value: Value,
    extents: Mapping[str, int],
    buffers: Mapping[str, Tensor],
    axes: Mapping[str, Tensor],
) -> Tensor:
    """A value at some points of each of `axes`, as a tensor over them (sorted by name)."""
    mine = {a: axes[a] for a in sorted(value.free)}
    ((out, order),) = evaluate([value], extents, buffers, mine)
    return align(out, order, sorted(axes)).expand([len(axes[a]) for a in sorted(axes)])


def stored(
    value: Value,
    index: Sequence[Index],
    shape: Sequence[int],
    extents: Mapping[str, int],
    buffers: Mapping[str, Tensor],
) -> Tensor:
    """What a kernel leaves in memory that stores `value` at an index map."""
    ((out, order),) = evaluate([value], extents, buffers)
    axes = sorted(frozenset[str]().union(*(i.axes for i in index)))
    return store(align(out, order, axes), index, axes, shape, extents)


def _output(kernel: Kernel, o: KernelOutput, buffers: Mapping[str, Tensor]) -> Tensor:
    shape = kernel.buffers[o.buffer].shape
    if o.scatter is None:
        return stored(o.value, o.index, shape, kernel.extents, buffers)
    ordered = sorted(o.axes)
    found = evaluate(o.values, kernel.extents, buffers)
    value, *at = (align(x, order, ordered) for x, order in found)
    into = hold(buffers[o.scatter.into])
    return scattered(into, value, at, o.index, o.axes, kernel.extents, o.scatter.mode)


def sized_kernel(kernel: Kernel | LibraryKernel, symbols: Mapping[str, int]) -> Any:
    """A kernel at given sizes."""
    if not kernel.symbols:
        return kernel
    of = at(symbols)
    if isinstance(kernel, Kernel):
        return resized_kernel(kernel, of)
    buffers = {n: resized_buffer(b, of) for n, b in kernel.buffers.items()}
    return replace(kernel, buffers=buffers, attrs=resized(dict(kernel.attrs), of))


def sized_candidate(candidate: Candidate, symbols: Mapping[str, int]) -> Candidate:
    """A program at given sizes: its buffers, kernels and Hlir with numbers for symbols."""
    of = at(symbols)
    return replace(
        candidate,
        hlir=candidate.hlir and specialize(candidate.hlir, symbols),
        kernels=tuple(sized_kernel(k, symbols) for k in candidate.kernels),
        buffers={n: resized_buffer(b, of) for n, b in candidate.buffers.items()},
    )


def run_kernel(
    kernel: Kernel | LibraryKernel, buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What a kernel writes.

    Arguments:
        kernel: Derived, or from a library.
        buffers: What it reads; floats are computed with in float64.

    Returns:
        A tensor for each buffer that it writes: float64, or the integer type.
    """
    if isinstance(kernel, Kernel):
        return {o.buffer: _output(kernel, o, buffers) for o in kernel.outputs}
    reads = [hold(buffers[n]) for n in kernel.reads]
    if kernel.routine == "gemm":
        (name,) = kernel.writes
        out = gemm(GemmForm(**kernel.attrs), reads, kernel.buffers[name].shape)
        return {name: apply.cast(out, kernel.buffers[name].dtype, "float64")}
    if kernel.routine == "library":
        (name,) = kernel.writes
        out = reference(LibraryForm(**kernel.attrs), reads, kernel.buffers[name].shape)
        return {name: apply.cast(out, kernel.buffers[name].dtype, "float64")}
    if kernel.routine == "custom":
        return _custom(kernel, reads)
    raise SearchError(f"the library routine {kernel.routine!r} has no reference")


def _custom(kernel: LibraryKernel, reads: Sequence[Tensor]) -> dict[str, Tensor]:
    first = kernel.buffers[kernel.writes[0]]
    node = Node("Custom", (), first.shape, first.dtype, dict(kernel.attrs))
    native = [
        r.to(apply.torch_dtype(kernel.buffers[n].dtype)) for r, n in zip(reads, kernel.reads)
    ]
    results = apply.call_aten(node, native)
    wanted = kernel.attrs.get("result")
    picks = wanted if isinstance(wanted, tuple) else (wanted,)
    return {n: hold(results[p or 0]) for n, p in zip(kernel.writes, picks)}


def run_candidate(candidate: Candidate, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Evaluate a whole program in float64.

    Arguments:
        candidate: The program.
        inputs: A tensor for each `arg`; weights and constants come from the Hlir when missing.

    Returns:
        A tensor for each program output by name (outputs that alias an input are left out).

    Raises:
        CallError: when an input is missing.
    """
    values: dict[str, Tensor] = {}
    for name, kind in candidate.kinds.items():
        if kind not in ("arg", "weight", "constant"):
            continue
        given = inputs.get(name)
        if given is None and candidate.hlir is not None:
            given = candidate.hlir.weights.get(name)
        if given is None:
            raise CallError(f"no tensor was given for the {kind} {name!r}")
        values[name] = hold(given)
    for call in candidate.calls:
        poll()
        kernel = candidate.kernels[call.kernel]
        reads = {own: values[name] for own, name in call.bind.items() if name in values}
        for own, out in run_kernel(kernel, reads).items():
            values[call.bind[own]] = out
    return {n: values[n] for n, kind in candidate.kinds.items() if kind == "output"}
