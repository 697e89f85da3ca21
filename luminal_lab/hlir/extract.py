"""Cutting pieces out of a program: a group of nodes as an Hlir of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from luminal_lab.hlir.compare import structural_hash
from luminal_lab.hlir.graph import (
    Hlir,
    InputKind,
    InputSpec,
    Node,
    NodeId,
    Operand,
    OutputSpec,
    Source,
)
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.hlir.view import View, out_axis

_CONE = 64  # nodes of index arithmetic that are copied rather than stored at a border
_CHEAP = ("Add", "Mul", "Mod", "LessThan", "Select", "Cast")


@dataclass(frozen=True)
class Copies:
    """A program whose outputs are all whole, computed nodes.

    Arguments:
        hlir: The program, with a copying node (a Cast to its own dtype) appended for each
            output that reads through a view, reads a source, or shares its node.
        origin: For each node, the node of the original program that it stands for.
        structural: The copies that outputs need wherever borders are.
        carried: Numbers that one step of a loop hands to the next: each is stored, even
            where it is cheap, and by the last step, too.
    """

    hlir: Hlir
    origin: tuple[NodeId, ...]
    structural: tuple[NodeId, ...]
    carried: frozenset[NodeId] = frozenset()

    def more(self, outputs: Sequence[int]) -> Copies:
        """With copies for further outputs, by position."""
        extended = _append(self.hlir, outputs)
        origin = list(self.origin)
        for node in extended.nodes[len(origin) :]:
            origin.append(self.origin[node.operands[0].node])
        return replace(self, hlir=extended, origin=tuple(origin))


def copies_of(hlir: Hlir) -> Copies:
    """The program with the copies that its outputs need."""
    by_use = placed_by_use(hlir)
    wanted, seen = [], set()
    for k, out in enumerate(hlir.outputs):
        n = out.value.node
        if by_use[n] or n in seen or not _is_whole(out, hlir.nodes[n]):
            wanted.append(k)
        seen.add(n)
    first = Copies(hlir, tuple(range(len(hlir.nodes))), ()).more(wanted)
    return replace(first, structural=tuple(range(len(hlir.nodes), len(first.hlir.nodes))))


def _is_whole(out: OutputSpec, node: Node) -> bool:
    """Whether an output is a node read by identity (a dim of size 1 may be read at 0)."""
    if out.value.view.guard or tuple(out.shape) != tuple(node.shape):
        return False
    return all(
        i == Index.axis(out_axis(k)) or (i == Index() and n == 1)
        for k, (i, n) in enumerate(zip(out.value.view.index, node.shape))
    )


def _append(hlir: Hlir, outputs: Sequence[int]) -> Hlir:
    nodes, specs = list(hlir.nodes), list(hlir.outputs)
    for k, out in enumerate(specs):
        if k in outputs:
            read = hlir.nodes[out.value.node]
            source = Source(read.source.line, "", read.source.aten)
            nodes.append(Node("Cast", (out.value,), out.shape, read.dtype, {}, source))
            whole = Operand(len(nodes) - 1, View.identity(len(out.shape)))
            specs[k] = replace(out, value=whole)
    return replace(hlir, nodes=tuple(nodes), outputs=tuple(specs))


def placed_by_use(hlir: Hlir) -> list[bool]:
    """Which nodes are copied into each region that uses them.

    These are the sources, and what a few cheap pointwise ops make of constants, indices, and
    integer or bool values: a mask is worth more as inequalities than as a stored tensor.
    """
    copied: list[bool] = []
    cone: list[frozenset[NodeId] | None] = []  # the nodes that a use brings along, if it may
    for n, node in enumerate(hlir.nodes):
        joined = frozenset({n})
        if node.op in _CHEAP:
            below = [cone[o.node] for o in node.operands]
            joined = joined.union(*(c for c in below if c is not None))
            copy = None not in below and len(joined) <= _CONE
        else:
            copy = OPS[node.op].family == "source"
        copied.append(copy)
        if not copy:
            joined = frozenset()
        leaf = node.op == "Constant" or not node.dtype.is_float
        cone.append(joined if leaf or (copy and node.op in _CHEAP) else None)
    return copied


@dataclass(frozen=True)
class Flow:
    """Who reads whom in a program, seen through the nodes that are copied to their users.

    Arguments:
        by_use: Which nodes are copied into each region that uses them.
        reads: For each node the nodes, not copied, that it depends on, in order.
        users: For each node the nodes, not copied, that depend on it, in order.
        carried: Nodes that are outputs of their group, whether read or not.
    """

    by_use: tuple[bool, ...]
    reads: tuple[tuple[NodeId, ...], ...]
    users: tuple[tuple[NodeId, ...], ...]
    carried: frozenset[NodeId] = frozenset()

    @staticmethod
    def of(
        hlir: Hlir,
        by_use: Sequence[bool] | None = None,
        carried: frozenset[NodeId] = frozenset(),
    ) -> Flow:
        """The flow of a program, or of a piece of one for which it is known what is copied."""
        if by_use is None:
            written = {o.value.node for o in hlir.outputs} | carried
            by_use = [use and n not in written for n, use in enumerate(placed_by_use(hlir))]
        reads: list[tuple[NodeId, ...]] = []
        users: list[list[NodeId]] = [[] for _ in hlir.nodes]
        for n, node in enumerate(hlir.nodes):
            found: dict[NodeId, None] = {}
            for o in node.operands:
                below = reads[o.node] if by_use[o.node] else (o.node,)
                found.update(dict.fromkeys(below))
            reads.append(tuple(found))
            if not by_use[n]:
                for m in found:
                    users[m].append(n)
        return Flow(tuple(by_use), tuple(reads), tuple(map(tuple, users)), carried)


@dataclass(frozen=True)
class Extract:
    """A group of nodes, cut out.

    Arguments:
        hlir: The piece; inputs `x0…`, `w0…`, outputs `y0…`.
        key: Its structural hash.
        nodes: For each of its nodes, the node of the program.
        inputs: For each of its inputs, the node of the program.
        outputs: For each of its outputs, the node of the program.
    """

    hlir: Hlir
    key: str
    nodes: tuple[NodeId, ...]
    inputs: tuple[NodeId, ...]
    outputs: tuple[NodeId, ...]


def extract(hlir: Hlir, members: Sequence[NodeId], flow: Flow) -> Extract:
    """Cut `members` out of a program whose outputs are whole nodes.

    Nodes are numbered by first use, so that equal groups give equal pieces whatever else the
    program shares with them.
    """
    cutter = _Cutter(hlir, frozenset(members), flow.by_use)
    for n in members:
        cutter.place(n)
    written = {o.value.node for o in hlir.outputs} | flow.carried
    inside = cutter.members
    outputs = [
        n for n in members if n in written or any(u not in inside for u in flow.users[n])
    ]
    specs = [
        OutputSpec(
            Operand(cutter.number[n], View.identity(len(hlir.nodes[n].shape))),
            hlir.nodes[n].shape,
            f"y{k}",
        )
        for k, n in enumerate(outputs)
    ]
    piece = Hlir(
        tuple(cutter.nodes), tuple(cutter.inputs), tuple(specs), {}, {}, name=hlir.name
    )
    if hlir.symbols:
        piece = replace(piece, symbols={n: hlir.symbols[n] for n in symbols_of(piece)})
    return Extract(
        piece,
        structural_hash(piece),
        tuple(cutter.number),
        tuple(cutter.outer),
        tuple(outputs),
    )


class _Cutter:
    def __init__(self, hlir: Hlir, members: frozenset[NodeId], by_use: Sequence[bool]):
        self.hlir = hlir
        self.members = members
        self.by_use = by_use
        self.kinds: dict[NodeId, InputKind] = {s.node: s.kind for s in hlir.inputs}
        self.number: dict[NodeId, int] = {}  # node of the program -> node of the piece
        self.nodes: list[Node] = []
        self.inputs: list[InputSpec] = []
        self.outer: list[NodeId] = []

    def place(self, root: NodeId) -> None:
        """Add a node after what it reads."""
        stack = [(root, False)]
        while stack:
            n, ready = stack.pop()
            if n in self.number:
                continue
            node = self.hlir.nodes[n]
            if node.op == "Input" or not (n in self.members or self.by_use[n]):
                self._input(n, node)
            elif ready:
                self._add(n, node)
            else:
                stack.append((n, True))
                stack.extend((o.node, False) for o in reversed(node.operands))

    def _add(self, n: NodeId, node: Node) -> None:
        reads = tuple(Operand(self.number[o.node], o.view) for o in node.operands)
        self.number[n] = len(self.nodes)
        self.nodes.append(replace(node, operands=reads))

    def _input(self, n: NodeId, node: Node) -> None:
        kind: InputKind = self.kinds.get(n, "arg")
        letter = "x" if kind == "arg" else "w"
        count = sum(s.name.startswith(letter) for s in self.inputs)
        self.number[n] = len(self.nodes)
        position = count if kind == "arg" else None
        name = f"{letter}{count}"
        self.inputs.append(InputSpec(len(self.nodes), name, kind, position))
        self.outer.append(n)
        attrs = {"name": name}
        self.nodes.append(Node("Input", (), node.shape, node.dtype, attrs, node.source))
