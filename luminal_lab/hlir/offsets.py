"""Steps that read one array at different offsets: the offset as a value that the steps pass on.

In a recurrence, step t reads `x[:, t]`: its nodes equal those of the other steps but for that
number. Where numbers of a repetition grow (or fall) by the same amount from step to step, they
become a counter: each step gathers at its value, and hands the next step the next value. Then
all steps are equal, and one region.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from luminal_lab.hlir.dtypes import I64
from luminal_lab.hlir.extract import Copies, Flow
from luminal_lab.hlir.graph import Hlir, Node, NodeId, Operand, Source
from luminal_lab.hlir.index import GATHERED, Index
from luminal_lab.hlir.labels import Labels, live_at
from luminal_lab.hlir.repeats import repeats
from luminal_lab.hlir.view import View, out_axis

_STEPS = 4  # a loop of fewer steps is left as it is
_At = tuple[int, int]  # a node's place in its step, and which operand


def with_counters(copies: Copies) -> Copies:
    """A program whose steps at different offsets are equal; itself where there are none."""
    if not _may_step(copies.hlir):
        return copies
    flow = Flow.of(copies.hlir)
    loops = list(_loops(copies.hlir, flow))
    return _Rewriting(copies, loops).made() if loops else copies


def _may_step(hlir: Hlir) -> bool:
    """Whether some array but a weight is read at many offsets: a look before the work."""
    weights = {s.node for s in hlir.inputs if s.kind != "arg"}
    offsets: dict[NodeId, set[tuple]] = {}
    for node in hlir.nodes:
        for o in node.operands:
            if o.node not in weights and not o.view.guard:
                if any(i.const != 0 for i in o.view.index):
                    found = offsets.setdefault(o.node, set())
                    found.add(tuple(i.const for i in o.view.index))
                    if len(found) >= _STEPS - 1:  # the first step may be at 0
                        return True
    return False


@dataclass(frozen=True)
class _Read:
    """An operand that steps read at an offset of their own.

    Arguments:
        dim: The dim of what is read in which the offset differs.
        first: The offset in the first step.
        by: What is added from step to step.
    """

    dim: int
    first: int
    by: int


@dataclass(frozen=True)
class _Loop:
    """Equal steps but for offsets: the nodes of each, and the operands that differ."""

    steps: tuple[tuple[NodeId, ...], ...]
    reads: dict[_At, _Read]


def _loops(hlir: Hlir, flow: Flow) -> Iterator[_Loop]:
    nodes = [n for n in range(len(hlir.nodes)) if not flow.by_use[n]]
    nodes = [n for n in nodes if hlir.nodes[n].op != "Input"]
    labels = Labels(hlir, flow, offsets=False)
    weights = {s.node for s in hlir.inputs if s.kind != "arg"}
    for length, starts in repeats([labels(n) for n in nodes], live_at(nodes, flow)):
        steps = [tuple(nodes[s : s + length]) for s in starts]
        for run in _runs(hlir, steps, weights):
            reads = {at: _Read(dim, first, by) for at, dim, first, by in run[1]}
            yield _Loop(tuple(run[0]), reads)


_Grown = tuple[
    tuple[_At, int, int, int], ...
]  # operands that differ: dim, first offset, growth


def _runs(
    hlir: Hlir, steps: Sequence[tuple[NodeId, ...]], weights: set[NodeId]
) -> Iterator[tuple[list[tuple[NodeId, ...]], _Grown]]:
    """Steps in a row whose offsets go on growing alike; the other direction is another run."""
    run, first, growth = [steps[0]], None, None
    for before, step in pairwise(steps):
        grown = _grown(hlir, before, step, weights)
        alike = grown is not None and (growth is None or _same_growth(growth, grown))
        if alike and grown is not None:
            first = first or grown
            growth = grown
            run.append(step)
            continue
        if first and len(run) >= _STEPS:
            yield run, first
        run, first, growth = [step], None, None
    if first and len(run) >= _STEPS:
        yield run, first


def _same_growth(a: _Grown, b: _Grown) -> bool:
    return [(at, dim, by) for at, dim, _, by in a] == [(at, dim, by) for at, dim, _, by in b]


def _grown(
    hlir: Hlir, before: tuple[NodeId, ...], after: tuple[NodeId, ...], weights: set[NodeId]
) -> _Grown | None:
    """How offsets grow from one step to the next; None when something else differs."""
    out: list[tuple[_At, int, int, int]] = []
    for place, (a, b) in enumerate(zip(before, after)):
        for k, (x, y) in enumerate(zip(hlir.nodes[a].operands, hlir.nodes[b].operands)):
            if x.view == y.view:
                continue
            pairs = [(i.const, j.const) for i, j in zip(x.view.index, y.view.index)]
            dims = [d for d, (i, j) in enumerate(pairs) if i != j]
            if x.node != y.node or x.node in weights or x.view.guard or len(dims) != 1:
                return None
            low, high = pairs[dims[0]]
            if not (isinstance(low, int) and isinstance(high, int)):
                return None
            out.append(((place, k), dims[0], low, high - low))
    return tuple(out)


# ---------------------------------------------------------------------- rewriting
@dataclass
class _Rewriting:
    """A program with counters and gathers in it.

    Arguments:
        copies: The program.
        loops: Its loops.
    """

    copies: Copies
    loops: Sequence[_Loop]
    nodes: list[Node] = field(default_factory=list)
    origin: list[NodeId] = field(default_factory=list)
    carried: list[NodeId] = field(default_factory=list)

    def made(self) -> Copies:
        """The new program."""
        hlir = self.copies.hlir
        where = {
            n: (loop, k, place)
            for loop, one in enumerate(self.loops)
            for k, step in enumerate(one.steps)
            for place, n in enumerate(step)
        }
        new: dict[NodeId, NodeId] = {}
        counters: list[dict[tuple[int, int], NodeId]] = [{} for _ in self.loops]
        gathered: dict[tuple, NodeId] = {}
        for n, node in enumerate(hlir.nodes):
            operands = [replace(o, node=new[o.node]) for o in node.operands]
            if n in where:
                number, k, place = where[n]
                loop = self.loops[number]
                if k == place == 0:
                    counters[number] = self._start(n, loop)
                for j in range(len(operands)):
                    read = loop.reads.get((place, j))
                    if read is not None:
                        count = counters[number][read.first, read.by]
                        operands[j] = self._gather(n, operands[j], read, loop, count, gathered)
            new[n] = self._add(replace(node, operands=tuple(operands)), self.copies.origin[n])
            if n in where and where[n][2] == len(self.loops[where[n][0]].steps[0]) - 1:
                number = where[n][0]
                counters[number] = {
                    (first, by): self._next(n, count, by)
                    for (first, by), count in counters[number].items()
                }
        outputs = tuple(
            replace(o, value=replace(o.value, node=new[o.value.node])) for o in hlir.outputs
        )
        inputs = tuple(replace(s, node=new[s.node]) for s in hlir.inputs)
        made = replace(hlir, nodes=tuple(self.nodes), outputs=outputs, inputs=inputs)
        structural = tuple(new[n] for n in self.copies.structural)
        return Copies(made, tuple(self.origin), structural, frozenset(self.carried))

    def _add(self, node: Node, origin: NodeId) -> NodeId:
        self.nodes.append(node)
        self.origin.append(origin)
        return len(self.nodes) - 1

    def _constant(self, value: int, origin: NodeId) -> Operand:
        node = Node("Constant", (), (), I64, {"value": value})
        return Operand(self._add(node, origin), View(()))

    def _start(self, n: NodeId, loop: _Loop) -> dict[tuple[int, int], NodeId]:
        """The counters of a loop before its first step, by first value and growth."""
        origin = self.copies.origin[n]
        out: dict[tuple[int, int], NodeId] = {}
        for read in loop.reads.values():
            if (read.first, read.by) not in out:
                value = self._constant(read.first, origin)
                start = self._add(Node("Cast", (value,), (), I64), origin)
                self.carried.append(start)
                out[read.first, read.by] = start
        return out

    def _next(self, n: NodeId, count: NodeId, by: int) -> NodeId:
        origin = self.copies.origin[n]
        reads = (Operand(count, View(())), self._constant(by, origin))
        module = self.copies.hlir.nodes[n].source.module
        out = self._add(Node("Add", reads, (), I64, {}, Source("", module, "")), origin)
        self.carried.append(out)
        return out

    def _gather(
        self,
        n: NodeId,
        operand: Operand,
        read: _Read,
        loop: _Loop,
        count: NodeId,
        gathered: dict[tuple, NodeId],
    ) -> Operand:
        """An operand read at a counter: over the axes that it depends on."""
        node = self.copies.hlir.nodes[n]
        extents = node.axes()
        used = frozenset[str]().union(*(i.axes for i in operand.view.index))
        axes = [a for a in extents if a in used]
        names = {a: Index.axis(out_axis(k)) for k, a in enumerate(axes)}
        shape = tuple(extents[a] for a in axes)
        own = {out_axis(k): extents[a] for k, a in enumerate(axes)}
        index = [i.substitute(names, own) for i in operand.view.index]
        index[read.dim] = (
            index[read.dim] + (-index[read.dim].const) + Index.axis(f"{GATHERED}0")
        )
        last = read.first + read.by * (len(loop.steps) - 1)
        extent = max(read.first, last) + 1
        key = (count, operand.node, tuple(index), shape, extent)
        if key not in gathered:
            reads = (Operand(operand.node, View(tuple(index))), Operand(count, View(())))
            source = self.nodes[operand.node]
            made = Node(
                "Gather", reads, shape, source.dtype, {"extents": (extent,)}, node.source
            )
            gathered[key] = self._add(made, self.origin[operand.node])
        return Operand(gathered[key], View(tuple(Index.axis(a) for a in axes)))
