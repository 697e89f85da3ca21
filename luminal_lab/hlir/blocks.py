"""Finding repeated blocks: by module path, and as repetitions where a loop was unrolled.

A block is the outermost module path whose nodes equal those of another path, wherever that is:
a sibling, the mirror image in a decoder, a second call. Members of lists (`layers.3`) are
blocks when they have some nodes, other modules when they have many. Loops that were unrolled
without such paths (functions, recurrences) show as a repetition of equal nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from luminal_lab.hlir.extract import Copies, Extract, Flow, extract
from luminal_lab.hlir.graph import Hlir, NodeId
from luminal_lab.hlir.labels import Labels, live_at
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.repeats import repeats, shortest

# Nodes of a numbered block that is worth a border, by how many of them reduce: borders stop
# fusion, and between two products there is little to fuse.
_SMALLEST = {0: 12, 1: 12, 2: 8}
_NUMBER = re.compile(r"\d+(@\d+)?$")


@dataclass
class Cuts:
    """Pieces of a program, each cut out once."""

    hlir: Hlir
    flow: Flow
    known: dict[tuple[NodeId, ...], Extract] = field(default_factory=dict)

    def __call__(self, members: tuple[NodeId, ...]) -> Extract:
        """The piece of some nodes."""
        if members not in self.known:
            self.known[members] = extract(self.hlir, members, self.flow)
        return self.known[members]


@dataclass(frozen=True)
class Block:
    """Nodes under one module path.

    Arguments:
        name: The path.
        members: Its nodes, in order.
        key: Structural hash.
    """

    name: str
    members: tuple[NodeId, ...]
    key: str


def blocks_of(copies: Copies, flow: Flow, cut: Cuts) -> list[Block]:
    """The repeated blocks, disjoint, in order of their first nodes."""
    hlir = copies.hlir
    paths = _paths(hlir, flow)
    chosen: list[Block] = []
    taken: set[NodeId] = set()
    for depth in sorted({_depth(p) for p in paths}):
        # Shallower paths, too: a stem may equal a block that lies deeper.
        free = {p: m for p, m in paths.items() if _depth(p) <= depth and m[0] not in taken}
        sizes = Counter(len(m) for m in (*free.values(), *(b.members for b in chosen)))
        blocks = [Block(p, m, cut(m).key) for p, m in free.items() if sizes[len(m)] > 1]
        count = Counter(b.key for b in (*blocks, *chosen))
        for block in sorted(blocks, key=lambda b: _depth(b.name)):
            if len(block.members) >= _least(hlir, block, count[block.key]):
                if taken.isdisjoint(block.members):
                    chosen.append(block)
                    taken.update(block.members)
    chosen += _unrolled(hlir, chosen, flow, cut)
    chosen.sort(key=lambda b: b.members[0])
    return _without_cycles(_with_copies(copies, chosen), flow)


def _paths(hlir: Hlir, flow: Flow) -> dict[str, tuple[NodeId, ...]]:
    """The nodes under each module path that may be a block; of equal sets, under one path."""
    under: dict[str, list[NodeId]] = {}
    nodes = 0
    for n, node in enumerate(hlir.nodes):
        if not flow.by_use[n]:
            nodes += 1
            for prefix in _prefixes(node.source.module):
                under.setdefault(prefix, []).append(n)
    least = {p: _SMALLEST[2] if _numbered(p) else shortest(3) for p in under}
    names: dict[tuple[NodeId, ...], str] = {}
    for path, members in under.items():
        if least[path] <= len(members) <= nodes // 2:
            name = names.setdefault(tuple(members), path)
            if _numbered(path) and not _numbered(name):
                names[tuple(members)] = path
    return {path: members for members, path in names.items()}


def _least(hlir: Hlir, block: Block, count: int) -> float:
    """How many nodes a block must have that comes so often."""
    if count < 2:
        return float("inf")
    if not _numbered(block.name):
        return shortest(min(count, 3))
    return _SMALLEST[min(_reductions(hlir, block.members), 2)]


def _reductions(hlir: Hlir, members: Sequence[NodeId]) -> int:
    return sum(OPS[hlir.nodes[n].op].family == "reduce" for n in members)


def _unrolled(hlir: Hlir, chosen: Sequence[Block], flow: Flow, cut: Cuts) -> Iterator[Block]:
    """Repeats among the nodes that are in no block yet: loops without module paths."""
    taken = {n for b in chosen for n in b.members}
    label = Labels(hlir, flow)
    nodes: list[NodeId] = []
    labels: list[str | None] = []
    for n in range(len(hlir.nodes)):
        if n in taken:  # passed by no word
            if labels and labels[-1] is not None:
                nodes.append(n)
                labels.append(None)
        elif not flow.by_use[n] and hlir.nodes[n].op != "Input":
            nodes.append(n)
            labels.append(label(n))
    number = 0
    for length, starts in repeats(labels, live_at(nodes, flow)):
        parts = [tuple(nodes[s : s + length]) for s in starts]
        keys = [cut(p).key for p in parts]
        count = Counter(keys)
        reduces = _reductions(hlir, parts[0]) > 0
        # A border where nothing is reduced costs more than it saves, in short pieces.
        equal = [
            k
            for k, key in enumerate(keys)
            if length >= shortest(count[key]) and (reduces or length >= shortest(3))
        ]
        yield from (Block(f"repeat {number}.{k}", parts[k], keys[k]) for k in equal)
        number += bool(equal)


def _prefixes(module: str) -> list[str]:
    """The prefixes of a module path, outermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


def _depth(module: str) -> int:
    return module.count(".")


def _numbered(module: str) -> bool:
    """Whether a path ends in a number: a member of a list, where a border is expected."""
    return _NUMBER.match(module.rpartition(".")[2]) is not None


def _with_copies(copies: Copies, blocks: list[Block]) -> list[Block]:
    """Blocks with the copies that make outputs, where all equal blocks have the same ones."""
    nodes = copies.hlir.nodes
    own: list[tuple[NodeId, ...]] = []
    facts: list[tuple] = []
    by_key: dict[str, set[tuple]] = {}
    for block in blocks:
        place = {n: k for k, n in enumerate(block.members)}
        made = [c for c in copies.structural if nodes[c].operands[0].node in place]
        own.append(tuple(made))
        reads = [(nodes[c].operands[0], nodes[c].shape) for c in made]
        facts.append(tuple((place[o.node], o.view, shape) for o, shape in reads))
        by_key.setdefault(block.key, set()).add(facts[-1])
    return [
        replace(block, members=block.members + made) if len(by_key[block.key]) == 1 else block
        for block, made in zip(blocks, own)
    ]


def _without_cycles(blocks: list[Block], flow: Flow) -> list[Block]:
    """Without the blocks (and their equals) that depend on something that follows them."""
    while blocks:
        stages, home = stages_of(blocks, flow)
        bad = {
            block.key
            for j, block in enumerate(blocks)
            for n in block.members
            for m in flow.reads[n]
            if home[m] != j and stages[m] > j
        }
        if not bad:
            break
        blocks = [b for b in blocks if b.key not in bad]
    return blocks


def stages_of(blocks: Sequence[Block], flow: Flow) -> tuple[list[int], list[int | None]]:
    """After how many of the blocks each node is available, and which block it is in."""
    home: list[int | None] = [None] * len(flow.reads)
    for j, block in enumerate(blocks):
        for n in block.members:
            home[n] = j
    stages: list[int] = []
    for n, reads in enumerate(flow.reads):
        own = home[n]
        ready = max((stages[m] for m in reads), default=0)
        stages.append(ready if own is None else own + 1)
    return stages, home
