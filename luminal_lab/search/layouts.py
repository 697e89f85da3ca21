"""How the tensors between kernels lie in memory: the order of their dims.

Rules say which tensors may lie in another order than row-major (`rules/layout.egg`). Program
inputs lie row-major. A program output lies as eager PyTorch's would, where kernels can write it
so: what is computed from a transposed tensor, or is a view of one, needs no transpose then. The
tensors between regions lie alike in all instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from luminal_lab.egraph.planes import strides_of

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, Part
    from luminal_lab.hlir.graph import OutputSpec

OWN = frozenset({"kernel", "planes"})  # e-nodes of tensors that take any strides
Strides = tuple[int, ...]
Layouts = Mapping[int, Strides]  # T-class -> strides; row-major for the others


def image_layouts(egraph: EGraph) -> tuple[Layouts, ...]:
    """For each region, the T-classes that do not lie row-major, with their strides."""
    program = egraph.program
    inputs = [_inputs(part) for part in egraph.parts]
    scattered = [_scattered(part) for part in egraph.parts]
    wanted = [_wanted(part, s) for part, s in zip(egraph.parts, scattered, strict=True)]
    orders = {o.name: order for o in program.hlir.outputs if (order := _order(o)) is not None}
    fixed = {s.name for s in program.hlir.inputs}
    fixed |= {o.name for o in program.hlir.outputs if o.name not in orders}
    groups = _Groups()
    for inst in program.instances:
        part = egraph.parts[inst.region]
        for name, t in (*part.outputs, *inputs[inst.region].items()):
            if name in inst.bind:
                groups.join((inst.region, t), inst.bind[name])
    refused = {groups.of(name) for name in fixed}
    refused |= {groups.of((r, t)) for r, into in enumerate(scattered) for t in into}
    agreed: dict[object, Strides] = {}
    for inst in program.instances:
        part = egraph.parts[inst.region]
        for name, t in part.outputs:
            order = orders.get(inst.bind.get(name, ""))
            if order is None:
                continue
            strides, group = (
                strides_of(part.classes[t].shape, order),
                groups.of((inst.region, t)),
            )
            if not _by_kernels(part, t) or agreed.setdefault(group, strides) != strides:
                refused.add(group)
            wanted[inst.region][t] = strides
    for r, part in enumerate(egraph.parts):
        for t in {t: None for _, t in part.outputs}:
            group, strides = groups.of((r, t)), wanted[r].get(t)
            if strides is None or agreed.setdefault(group, strides) != strides:
                refused.add(group)
    out: list[Layouts] = []
    for r, part in enumerate(egraph.parts):
        mine = dict(wanted[r])
        for t in dict.fromkeys([*(t for _, t in part.outputs), *inputs[r].values()]):
            group = groups.of((r, t))
            mine.pop(t, None)
            if group not in refused and group in agreed:
                mine[t] = agreed[group]
        out.append(mine)
    return tuple(out)


def _order(spec: OutputSpec) -> tuple[int, ...] | None:
    """The dims of an output, outermost first: None unless it is dense and not row-major."""
    if spec.stride is None or spec.mutates is not None or spec.aliases is not None:
        return None
    numbers = (*spec.shape, *spec.stride)
    if any(not isinstance(n, int) for n in numbers) or 0 in spec.shape:
        return None
    steps = spec.stride
    order = sorted(range(len(spec.shape)), key=lambda d: (-steps[d], -spec.shape[d], d))
    if order == sorted(order):
        return None
    meant = strides_of(spec.shape, order)
    dense = all(
        a == b or n == 1 for a, b, n in zip(spec.stride, meant, spec.shape, strict=True)
    )
    return tuple(order) if dense else None


def _by_kernels(part: Part, t: int) -> bool:
    """Whether all that makes or reads a tensor are kernels of our own."""
    if any(e.op not in OWN for e in part.classes[t].nodes):
        return False
    return not any(
        t in e.children and e.op not in OWN
        for c in part.classes
        if c.sort == "T"
        for e in c.nodes
    )


def _inputs(part: Part) -> dict[str, int]:
    return {
        e.attrs[0]: c.id
        for c in part.classes
        if c.sort == "T"
        for e in c.nodes
        if e.op == "input"
    }


class _Groups:
    """Things that must lie alike (union-find)."""

    def __init__(self) -> None:
        self.parent: dict[object, object] = {}

    def of(self, x: object) -> object:
        """The representative of a thing's group."""
        while (up := self.parent.setdefault(x, x)) != x:
            x = up
        return x

    def join(self, a: object, b: object) -> None:
        """Put two things into one group."""
        self.parent[self.of(a)] = self.of(b)


def _wanted(part: Part, scattered: frozenset[int]) -> dict[int, Strides]:
    """The layouts that the rules found for a region's own tensors, but for those."""
    out: dict[int, Strides] = {}
    for cls in part.classes:
        if cls.id in scattered:
            continue
        planes = next((e for e in cls.nodes if e.op == "planes"), None)
        if planes is not None:
            out[cls.id] = strides_of(cls.shape, planes.attrs[1])
    return out


def _scattered(part: Part) -> frozenset[int]:
    """The tensors that are scattered into: what results lies as they do."""
    return frozenset(e.children[0] for c in part.classes for e in c.nodes if e.op == "scatter")
