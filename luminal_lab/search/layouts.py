"""How the tensors between kernels lie in memory: the order of their dims.

A tensor that is read through windows (an image) may be stored with the dims of its planes
outermost and what lies at one point of the plane innermost: a sum over channels then runs over
neighbours, whatever the stride and the padding of the windows, and the channels are vector
lanes of everything that is computed point by point. Which dims those are follows from the index
maps alone. Program inputs and outputs lie as PyTorch gives and wants them, and the tensors
between regions lie alike in all instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.hlir.index import Index

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, Part

Strides = tuple[int, ...]
Layouts = Mapping[int, Strides]  # T-class -> strides; row-major for the others


def image_layouts(egraph: EGraph) -> tuple[Layouts, ...]:
    """For each region, the T-classes that do not lie row-major, with their strides."""
    program = egraph.program
    inputs = [_inputs(part) for part in egraph.parts]
    wanted = [_wanted(part) for part in egraph.parts]
    fixed = {s.name for s in program.hlir.inputs} | {o.name for o in program.hlir.outputs}
    groups = _Groups()
    for inst in program.instances:
        part = egraph.parts[inst.region]
        for name, t in (*part.outputs, *inputs[inst.region].items()):
            if name in inst.bind:
                groups.join((inst.region, t), inst.bind[name])
    refused = {groups.of(name) for name in fixed}
    agreed: dict[object, Strides] = {}
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


def _wanted(part: Part) -> dict[int, Strides]:
    """The layouts that a region's own index maps ask for."""
    maps = list(_index_maps(part))
    planes: set[str] = set()
    for index in maps:
        for i in index:
            planes |= window_axes(i, part.extents)
    out: dict[int, Strides] = {}
    for cls in part.classes:
        kernel = next((e for e in cls.nodes if e.op == "kernel"), None)
        if cls.sort != "T" or kernel is None:
            continue
        order = _order(kernel.attrs[0], cls.shape, planes, maps)
        if order is not None:
            out[cls.id] = strides_of(cls.shape, order)
    return out


def _index_maps(part: Part) -> Iterator[tuple[Index, ...]]:
    seen: dict[tuple[Index, ...], None] = {}
    for cls in part.classes:
        for e in cls.nodes:
            if e.op in ("load", "kernel"):
                seen.setdefault(e.attrs[0])
    return iter(seen)


def window_axes(i: Index, extents: Mapping[str, int]) -> set[str]:
    """The axes of an index expression that reach the same element in several ways.

    >>> sorted(window_axes(Index.parse("2*y + k"), {"y": 5, "k": 3}))
    ['k', 'y']
    >>> window_axes(Index.parse("3*y + k"), {"y": 5, "k": 3})
    set()
    """
    steps = sorted(
        (abs(c), extents.get(a, 1), a)
        for a, c in i.terms
        if isinstance(a, str) and not a.startswith("@") and extents.get(a, 1) > 1
    )
    out: set[str] = set()
    reach, below = 0, set[str]()
    for step, n, a in steps:
        below.add(a)
        if reach >= step:
            out |= below
        reach += step * (n - 1)
    return out


def _order(
    index: Sequence[Index], shape: Sequence[int], planes: set[str], maps: Sequence
) -> list[int] | None:
    """The dims, outermost first: what lies at a point of the planes is moved to the end."""
    plane = [d for d, i in enumerate(index) if i.axes & planes and shape[d] > 1]
    channel = [d for d in range(len(index)) if d not in plane and shape[d] > 1]
    if not plane or not channel or channel[-1] > plane[-1]:
        return None
    both = frozenset().union(*(index[d].axes for d in [channel[-1], *plane]))
    if any(both <= i.axes for other in maps for i in other):
        return None  # somebody sees the dims as one, in their order
    return [d for d in range(len(index)) if d != channel[-1]] + [channel[-1]]


def strides_of(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Strides of a dense tensor whose dims lie in the given order.

    >>> strides_of((2, 3, 4), (0, 2, 1))
    (12, 1, 3)
    """
    out, step = [0] * len(shape), 1
    for d in reversed(order):
        out[d] = step
        step *= shape[d]
    return tuple(out)
