"""Terms, kernels and e-graphs at given sizes: every symbolic size replaced by a number.

What is evaluated, verified, predicted or drawn is a program at the sizes of one call; only code
generation and the rules see symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from luminal_lab.egraph.egraph import EClass, ENode, Part
from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value, postorder
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, Size, value
from luminal_lab.hlir.symbolic import specialize

Resize = Callable[[Dim], Dim]


def at(symbols: Mapping[str, int]) -> Resize:
    """Sizes as numbers, given the values of their symbols."""
    return lambda n: value(n, symbols)


def resized(x: Any, of: Resize) -> Any:
    """Plain data (tuples, lists, dicts, indices, forms) with every size in it replaced."""
    if isinstance(x, Size):
        return of(x)
    if isinstance(x, Index):
        return x.resize(of) if x.symbols else x
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(resized(y, of) for y in x)
    if isinstance(x, dict):
        return {k: resized(y, of) for k, y in x.items()}
    if is_dataclass(x) and not isinstance(x, type) and type(x).__name__ == "GemmForm":
        return type(x)(**{f.name: resized(getattr(x, f.name), of) for f in fields(x)})
    return x


def resized_values(roots: Iterable[Value], of: Resize) -> list[Value]:
    """Values with every size in them replaced."""
    roots = list(roots)
    memo: dict[Value, Value] = {}
    for v in postorder(roots):
        attrs = resized(v.attrs, of) if v.op in ("load", "iota") else v.attrs
        memo[v] = Value(v.op, tuple(memo[a] for a in v.args), attrs, dtype=v.dtype)
    return [memo[r] for r in roots]


def resized_buffer(buffer: Buffer, of: Resize) -> Buffer:
    """A buffer with its sizes replaced."""
    return replace(buffer, shape=resized(buffer.shape, of), strides=resized(buffer.strides, of))


def resized_kernel(kernel: Kernel, of: Resize) -> Kernel:
    """A derived kernel with its sizes replaced."""
    values = iter(resized_values(kernel.values(), of))
    outputs = []
    for o in kernel.outputs:
        value, *at = (next(values) for _ in o.values)
        scatter = o.scatter and replace(o.scatter, at=tuple(at))
        outputs.append(KernelOutput(o.buffer, resized(o.index, of), value, scatter))
    return replace(
        kernel,
        outputs=tuple(outputs),
        buffers={n: resized_buffer(b, of) for n, b in kernel.buffers.items()},
        extents=resized(dict(kernel.extents), of),
    )


def sized_part(part: Part, symbols: Mapping[str, int]) -> Part:
    """A saturated region at given sizes."""
    of = at(symbols)

    def node(n: ENode) -> ENode:
        return replace(n, attrs=resized(n.attrs, of))

    classes = tuple(
        EClass(c.id, c.sort, tuple(map(node, c.nodes)), c.dtype, c.free, resized(c.shape, of))
        for c in part.classes
    )
    return replace(
        part,
        classes=classes,
        extents=resized(dict(part.extents), of),
        hlir=specialize(part.hlir, symbols),
    )
