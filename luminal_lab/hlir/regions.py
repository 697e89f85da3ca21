"""Repeated blocks: a program as few distinct regions and many instances of them.

Saturation and search cost what the *distinct* code of a program costs. Blocks are found by
module path: `encoder.layer.3` is the outermost prefix that ends in a number and whose nodes
equal those of a sibling (by structural hash, so that layers that only look alike stay apart).
Loops that were unrolled without such paths (functions, recurrences) show as a repetition of
equal nodes. What is in no block lies between two of them, in a segment of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.hlir.compare import local_text
from luminal_lab.hlir.extract import Copies, Extract, Flow, copies_of, extract
from luminal_lab.hlir.graph import Hlir, NodeId
from luminal_lab.hlir.repeats import SHORTEST, repeats

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

_SMALLEST = 12  # nodes of a block that is worth a border: borders stop fusion
_NUMBERED = re.compile(r"(?:^|\.)\d+(?=[.@]|$)(?:@\d+)?")


@dataclass(frozen=True)
class Region:
    """A self-contained piece of a program.

    Arguments:
        hlir: Its nodes; inputs are called `x0…` (kind `arg`) and `w0…` (kind `weight` or
            `constant`), outputs `y0…`, each read by identity.
        key: Its structural hash: ops, views, shapes, dtypes, attributes; neither weights nor
            names nor sources.
    """

    hlir: Hlir
    key: str


@dataclass(frozen=True)
class Instance:
    """One execution of a region.

    Arguments:
        region: Index into `Program.regions`.
        name: A module path (`"encoder.layer.3"`), or what the segment is.
        nodes: For each node of the region, the node of the program that it stands for.
        bind: For each input and output of the region, the name of the program's value.
    """

    region: int
    name: str
    nodes: tuple[NodeId, ...]
    bind: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class Program:
    """A partitioned program.

    Values have names: an input its own, a program output its own, and what crosses a border
    between instances `n<node>`.

    Arguments:
        hlir: The whole.
        regions: Distinct regions, in order of first use.
        instances: In execution order.
    """

    hlir: Hlir
    regions: tuple[Region, ...]
    instances: tuple[Instance, ...]

    def table(self) -> pandas.DataFrame:
        """One row per instance: name, region, nodes, what it reads and what it writes."""
        import pandas

        rows = []
        for instance in self.instances:
            region = self.regions[instance.region]
            reads = [s.name for s in region.hlir.inputs if s.kind == "arg"]
            writes = [o.name for o in region.hlir.outputs]
            rows.append(
                {
                    "name": instance.name,
                    "region": instance.region,
                    "key": region.key,
                    "nodes": len(region.hlir.nodes),
                    "reads": ", ".join(instance.bind[r] for r in reads),
                    "weights": len(region.hlir.inputs) - len(reads),
                    "writes": ", ".join(instance.bind[w] for w in writes),
                }
            )
        columns = ["name", "region", "key", "nodes", "reads", "weights", "writes"]
        return pandas.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        total = sum(len(r.hlir.nodes) for r in self.regions)
        lines = [
            f"Program {self.hlir.name}: {len(self.hlir.nodes)} nodes in {len(self.instances)} "
            f"instances of {len(self.regions)} regions ({total} nodes)"
        ]
        for k, region in enumerate(self.regions[:20]):
            names = [i.name for i in self.instances if i.region == k]
            shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
            count = f"×{len(names)}" if len(names) > 1 else ""
            lines.append(
                f"  region {k}: {len(region.hlir.nodes)} nodes {count} {', '.join(shown)}"
            )
        if len(self.regions) > 20:
            lines.append(f"  … {len(self.regions) - 20} more regions: .table()")
        return "\n".join(lines)

    def run(
        self,
        args: Sequence[Any] | Mapping[str, Any],
        *,
        compute: Literal["float64", "native"] = "float64",
    ) -> list[Tensor]:
        """Evaluate the program instance by instance; see `luminal_lab.hlir.run`."""
        from luminal_lab.hlir.interpreter import Reference, bind_arguments

        values = bind_arguments(self.hlir, args)
        for instance in self.instances:
            region = self.regions[instance.region].hlir
            given = {s.name: values[instance.bind[s.name]] for s in region.inputs}
            reference = Reference(region, given, compute=compute)
            reference.evaluate()
            for k, out in enumerate(region.outputs):
                values[instance.bind[out.name]] = reference.output(k)
        return [values[out.name] for out in self.hlir.outputs]


def partition(hlir: Hlir, regions: bool = True) -> Program:
    """Split a program into regions at the borders of its repeated blocks.

    Sources (Constant, Iota, Input) and cheap index arithmetic, such as a causal mask, are
    copied into each region that uses them. Without repeats, or where borders would make a
    cycle, the program is one region with one instance.

    Arguments:
        hlir: A program without unused nodes.
        regions: False to keep the program whole, as one region.
    """
    copies = copies_of(hlir)
    while True:
        flow = Flow.of(copies.hlir)
        cut = _Cuts(copies.hlir, flow)
        blocks = _blocks(copies, flow, cut) if regions else []
        groups = _ordered(copies.hlir, blocks, flow)
        shared = _crossing_outputs(copies.hlir, groups, flow)
        if not shared:
            return _program(hlir, copies, groups, cut)
        copies = copies.more(shared)


# ---------------------------------------------------------------------- finding blocks
@dataclass
class _Cuts:
    """Pieces of a program, each cut out once."""

    hlir: Hlir
    flow: Flow
    known: dict[tuple[NodeId, ...], Extract] = field(default_factory=dict)

    def __call__(self, members: tuple[NodeId, ...]) -> Extract:
        if members not in self.known:
            self.known[members] = extract(self.hlir, members, self.flow)
        return self.known[members]


@dataclass(frozen=True)
class _Block:
    """Nodes under one module path.

    Arguments:
        name: The path.
        members: Its nodes, in order.
        key: Structural hash.
    """

    name: str
    members: tuple[NodeId, ...]
    key: str


def _blocks(copies: Copies, flow: Flow, cut: _Cuts) -> list[_Block]:
    """The repeated blocks, disjoint, in order of their first nodes."""
    hlir = copies.hlir
    under: dict[str, list[NodeId]] = {}
    for n, node in enumerate(hlir.nodes):
        if not flow.by_use[n]:
            for prefix in _prefixes(node.source.module):
                under.setdefault(prefix, []).append(n)
    left = [
        _Block(prefix, tuple(members), cut(tuple(members)).key)
        for prefix, members in under.items()
        if len(members) >= _SMALLEST
    ]
    chosen: list[_Block] = []
    for depth in range(1, 1 + max((len(_prefixes(b.name)) for b in left), default=0)):
        names = [b.name for b in chosen]
        free = [b for b in left if len(_prefixes(b.name)) == depth]
        free = [b for b in free if not set(names) & set(_prefixes(b.name))]
        keys = [b.key for b in (*free, *chosen)]
        chosen += [b for b in free if keys.count(b.key) > 1]
    chosen += _unrolled(hlir, chosen, flow, cut)
    chosen.sort(key=lambda b: b.members[0])
    return _without_cycles(_with_copies(copies, chosen), flow)


def _unrolled(hlir: Hlir, chosen: Sequence[_Block], flow: Flow, cut: _Cuts) -> Iterator[_Block]:
    """Repeats among the nodes that are in no block yet: loops without module paths."""
    taken = {n for b in chosen for n in b.members}
    rest = [n for n in range(len(hlir.nodes)) if not flow.by_use[n]]
    pieces: list[list[NodeId]] = [[]]
    for n in rest:
        if n in taken:
            pieces.append([])
        elif hlir.nodes[n].op != "Input":
            pieces[-1].append(n)
    known: dict[NodeId, str] = {}
    number = 0
    for nodes in pieces:
        if len(nodes) < 2 * min(SHORTEST.values()):
            continue
        labels = [_label(hlir, n, flow, known) for n in nodes]
        for start, period, count in repeats(labels, _live(nodes, flow)):
            parts = [
                tuple(nodes[start + k * period : start + (k + 1) * period])
                for k in range(count)
            ]
            keys = [cut(p).key for p in parts]
            equal = [k for k in range(count) if keys.count(keys[k]) > 1]
            yield from (_Block(f"repeat {number}.{k}", parts[k], keys[k]) for k in equal)
            number += bool(equal)


def _label(hlir: Hlir, n: NodeId, flow: Flow, known: dict[NodeId, str]) -> str:
    """What a node is, with the constants and index arithmetic that it reads."""
    if n not in known:
        node = hlir.nodes[n]
        if node.op == "Input":
            return f"{node.dtype}{node.shape}"
        below = (o.node for o in node.operands if flow.by_use[o.node])
        parts = [local_text(node), *(_label(hlir, m, flow, known) for m in below)]
        known[n] = parts[0] if len(parts) == 1 else sha256(repr(parts).encode()).hexdigest()
    return known[n]


def _live(nodes: Sequence[NodeId], flow: Flow) -> list[int]:
    """How many values a border before each of some nodes would have to pass on."""
    place = {n: k for k, n in enumerate(nodes)}
    change = [0] * (len(nodes) + 2)
    for k, n in enumerate(nodes):
        last = max((place[u] for u in flow.users[n] if u in place), default=k)
        change[k + 1] += 1
        change[last + 1] -= 1
    return list(accumulate(change))[: len(nodes) + 1]


def _prefixes(module: str) -> list[str]:
    """The prefixes of a module path that end in a number, outermost first."""
    return [module[: m.end()] for m in _NUMBERED.finditer(module)]


def _with_copies(copies: Copies, blocks: list[_Block]) -> list[_Block]:
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


def _without_cycles(blocks: list[_Block], flow: Flow) -> list[_Block]:
    """Without the blocks (and their equals) that depend on something that follows them."""
    while blocks:
        stages, home = _stages(blocks, flow)
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


def _stages(blocks: Sequence[_Block], flow: Flow) -> tuple[list[int], list[int | None]]:
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


# ---------------------------------------------------------------------- ordering
@dataclass(frozen=True)
class _Group:
    name: str
    members: tuple[NodeId, ...]


def _ordered(hlir: Hlir, blocks: Sequence[_Block], flow: Flow) -> list[_Group]:
    """All groups of nodes in execution order: segments and blocks in turn."""
    stages, home = _stages(blocks, flow)
    written = {o.value.node for o in hlir.outputs}
    rest = [n for n in range(len(hlir.nodes)) if home[n] is None and not flow.by_use[n]]
    for n in reversed(rest):  # what only later segments use belongs there
        users = flow.users[n]
        if users and n not in written and all(home[u] is None for u in users):
            stages[n] = min(stages[u] for u in users)
    segments: list[list[NodeId]] = [[] for _ in range(len(blocks) + 1)]
    for n in rest:
        segments[stages[n]].append(n)
    groups: list[_Group] = []
    for k, segment in enumerate(segments):
        groups.append(_Group(_segment_name(k, blocks), tuple(segment)))
        if k < len(blocks):
            groups.append(_Group(blocks[k].name, blocks[k].members))
    return [g for g in groups if g.members]


def _segment_name(k: int, blocks: Sequence[_Block]) -> str:
    if not blocks:
        return "program"
    return f"after {blocks[k - 1].name}" if k else f"before {blocks[0].name}"


def _crossing_outputs(hlir: Hlir, groups: Sequence[_Group], flow: Flow) -> list[int]:
    """Outputs (by position) whose node also crosses a border, and that need a copy of it."""
    home = {n: g for g, group in enumerate(groups) for n in group.members}
    return [
        k
        for k, out in enumerate(hlir.outputs)
        if any(home[u] != home[out.value.node] for u in flow.users[out.value.node])
    ]


# ---------------------------------------------------------------------- building
def _program(hlir: Hlir, copies: Copies, groups: Sequence[_Group], cut: _Cuts) -> Program:
    whole = copies.hlir
    names = {o.value.node: o.name for o in whole.outputs}
    names |= {s.node: s.name for s in whole.inputs}
    taken = frozenset(names.values())
    regions: dict[str, Region] = {}
    instances: list[Instance] = []
    for group in groups:
        piece = cut(group.members)
        region = regions.setdefault(piece.key, Region(piece.hlir, piece.key))
        ports = [*region.hlir.inputs, *region.hlir.outputs]
        values = [
            names.get(n) or _free_name(f"n{n}", taken) for n in (*piece.inputs, *piece.outputs)
        ]
        bind = {port.name: value for port, value in zip(ports, values, strict=True)}
        nodes = tuple(copies.origin[n] for n in piece.nodes)
        place = list(regions).index(piece.key)
        instances.append(Instance(place, group.name, nodes, bind))
    return Program(hlir, tuple(regions.values()), tuple(instances))


def _free_name(name: str, taken: frozenset[str]) -> str:
    while name in taken:
        name += "_"
    return name
