"""How a block is spread over the threads of a Metal threadgroup.

A threadgroup is W simdgroups of 32 lanes. Every wide axis of a kernel has one *side*, the same
in all of its blocks: its points lie across the lanes (`lane`), across the simdgroups (`group`),
across both (`both`, for blocks of one axis), or all in each thread (`register`). So operations
on blocks are local to each thread, broadcasts included; only reductions and products exchange.
A block that is narrower than its side is held several times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_text import BlockView
from luminal_lab.codegen.tile import Accumulate, Loop, Store, is_local, value_of, walk
from luminal_lab.egraph.values import Value, postorder

Side = Literal["lane", "group", "both", "register"]
LANES = 32


@dataclass(frozen=True)
class Place:
    """Where the points of an axis' block lie.

    Arguments:
        side: Across what.
        block: Points in a block.
        spread: How many threads along its side hold different points.
        registers: Points that one thread holds.
    """

    side: Side
    block: int
    spread: int
    registers: int


class Layout:
    """The sides of all axes of a program, and the number of simdgroups.

    Arguments:
        view: The program.
    """

    def __init__(self, view: BlockView):
        self.view = view
        sets = _together(view)
        widest = max((view.points(s) for s in sets), default=1)
        dots = any(getattr(n, "dot", False) for n, _ in walk(view.program.body))
        self.groups = 8 if dots else min(8, max(1, widest // LANES))
        self.sides = _sides(view, sets)

    @property
    def threads(self) -> int:
        """Threads in a threadgroup."""
        return LANES * self.groups

    def place(self, axis: str) -> Place:
        """Where an axis' block lies."""
        side = self.sides.get(axis, "register")
        across = {"lane": LANES, "group": self.groups, "both": self.threads, "register": 1}[
            side
        ]
        block = self.view.block(axis)
        spread = min(block, across)
        return Place(side, block, spread, block // spread)

    def registers(self, axes: Iterable[str]) -> int:
        """Points of a block over these axes that one thread holds."""
        out = 1
        for a in axes:
            out *= self.place(a).registers
        return out


def _together(view: BlockView) -> list[tuple[str, ...]]:
    """The sets of axes that some statement holds in registers at once, stores first."""
    stores: dict[tuple[str, ...], None] = {}
    others: dict[tuple[str, ...], None] = {}
    for node, _ in walk(view.program.body):
        if isinstance(node, Loop):
            continue
        value = value_of(node)
        if isinstance(node, Store):
            stores[view.sort(node.index.axes | node.value.free)] = None
            continue
        others[view.local_axes(node.local)] = None
        if isinstance(node, Accumulate) and node.dot:
            for factor in terms.factors(node.value):
                if reads_local(factor):
                    others[view.sort(factor.free)] = None
        elif value is not None:
            others[view.sort({*value.free, *view.local_axes(node.local)})] = None
    return [s for s in (stores | others) if s]


def reads_local(v: Value) -> bool:
    """Whether a term reads a local that is spread over threads."""
    return any(t.op == "load" and is_local(t.attrs[0]) for t in postorder([v]))


def _sides(view: BlockView, sets: list[tuple[str, ...]]) -> dict[str, Side]:
    near: dict[str, set[str]] = {}
    for s in sets:
        for a in s:
            near.setdefault(a, set()).update(b for b in s if b != a)
    score = _contiguity(view)
    out: dict[str, Side] = {}
    for s in sets:
        for a in sorted(s, key=lambda a: (-score.get(a, 0), -view.order[a])):
            if a in out:
                continue
            if not near[a]:
                out[a] = "both"
                continue
            taken = {out[b] for b in near[a] if b in out}
            sides: tuple[Side, ...] = ("lane", "group", "register")
            out[a] = next(side for side in sides if side not in taken or side == "register")
    return out


def _contiguity(view: BlockView) -> dict[str, int]:
    """How often an axis has unit stride in memory."""
    out: dict[str, int] = {}
    for node, _ in walk(view.program.body):
        value = value_of(node)
        indices = [node.index] if isinstance(node, Store) else []
        for v in postorder([value]) if value is not None else ():
            if v.op == "load" and not is_local(v.attrs[0]):
                indices.append(v.attrs[1][0])
        for index in indices:
            for a in index.axes:
                if not a.startswith("@") and abs(index.coef(a)) == 1:
                    out[a] = out.get(a, 0) + 1
    return out
