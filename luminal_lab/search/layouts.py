"""How the tensors between kernels lie in memory: the order of their dims.

Rules say which tensors may lie in another order than row-major (`rules/layout.egg`). Program
inputs lie row-major. A program output lies as eager PyTorch's would, where kernels can write it
so: what is computed from a transposed tensor, or is a view of one, needs no transpose then. The
tensors between regions lie alike in all instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.egraph.planes import plane_axes, planes_outermost, strides_of, window_axes
from luminal_lab.hlir.index import Index

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
    orders = {o.name: order for o in program.hlir.outputs if (order := _order(o)) is not None}
    fixed = {s.name for s in program.hlir.inputs}
    fixed |= {o.name for o in program.hlir.outputs if o.name not in orders}
    groups = _Groups()
    for inst in program.instances:
        part = egraph.parts[inst.region]
        for name, t in (*part.outputs, *inputs[inst.region].items()):
            if name in inst.bind:
                groups.join((inst.region, t), inst.bind[name])
    planes = _planes(egraph.parts, inputs, groups)
    wanted = [
        _wanted(part, s, p) for part, s, p in zip(egraph.parts, scattered, planes, strict=True)
    ]
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


class _Maps:
    """A region's index maps, by the tensors that they are about."""

    def __init__(self, part: Part):
        self.part = part
        self.stored: dict[int, tuple[Index, ...]] = {}
        self.read: dict[int, dict[tuple[Index, ...], None]] = {}
        self.law = False  # whether tensors may lie with their planes outermost
        for c in part.classes:
            for e in c.nodes:
                if e.op == "kernel" and c.id not in self.stored:
                    self.stored[c.id] = e.attrs[0]
                elif e.op == "planes":
                    self.law = True
                elif e.op == "load":
                    self.read.setdefault(e.children[0], {}).setdefault(e.attrs[0])
        self.all = tuple(dict.fromkeys(i for reads in self.read.values() for i in reads))
        # The axes along which planes lie: of windows, and of what windows slide over.
        self.planes = set(plane_axes(self.all, part.extents))
        for t, reads in self.read.items():
            for d in {d for i in reads for d in self._windows(i)}:
                self.mark(t, d)

    def _windows(self, index: tuple[Index, ...]) -> list[int]:
        extents = self.part.extents
        return [d for d, i in enumerate(index) if len(i.terms) > 1 and window_axes(i, extents)]

    def dims(self, t: int) -> set[int]:
        """The dims of a tensor along which its planes lie."""
        maps = [*self.read.get(t, ()), *([self.stored[t]] if t in self.stored else [])]
        return {d for index in maps for d, i in enumerate(index) if i.axes & self.planes}

    def mark(self, t: int, d: int) -> None:
        """A dim of a tensor belongs to its planes, and so do the axes along it."""
        for index in self.read.get(t, ()):
            if d < len(index) and len(index[d].terms) == 1 and index[d].is_affine:
                self.planes |= index[d].axes
        if t in self.stored and d < len(self.stored[t]):
            self.planes |= self.stored[t][d].axes


def _planes(
    parts: Sequence[Part], inputs: Sequence[Mapping[str, int]], groups: _Groups
) -> list[_Maps]:
    """The axes of planes of each region.

    What is a plane in one region is one in those that make or read the same tensors: a product
    over channels, or a concatenation, has no windows, and still had better read its operands as
    its neighbours make them.
    """
    maps = [_Maps(part) for part in parts]
    if not any(m.law for m in maps):
        for m in maps:
            m.planes.clear()
        return maps
    shared: dict[object, list[tuple[int, int]]] = {}
    for r, part in enumerate(parts):
        for t in dict.fromkeys([*(t for _, t in part.outputs), *inputs[r].values()]):
            shared.setdefault(groups.of((r, t)), []).append((r, t))
    known: dict[object, set[int]] = {g: set() for g in shared}
    changed = True
    while changed:
        changed = False
        for g, places in shared.items():
            found = set[int]().union(*(maps[r].dims(t) for r, t in places))
            if found <= known[g]:
                continue
            known[g] |= found
            changed = True
            for r, t in places:
                for d in found:
                    maps[r].mark(t, d)
    return maps


def _wanted(part: Part, scattered: frozenset[int], maps: _Maps) -> dict[int, Strides]:
    """The layouts of a region's own tensors, but for those that are scattered into."""
    out: dict[int, Strides] = {}
    planes = frozenset(maps.planes)
    for t, index in maps.stored.items():
        shape = part.classes[t].shape
        if t in scattered or len(shape) != len(index):
            continue
        order = planes_outermost(index, shape, planes, maps.all)
        if order is not None:
            out[t] = strides_of(shape, order)
    return out


def _scattered(part: Part) -> frozenset[int]:
    """The tensors that are scattered into: what results lies as they do."""
    return frozenset(e.children[0] for c in part.classes for e in c.nodes if e.op == "scatter")
