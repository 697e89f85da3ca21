"""Repeated blocks: a program as few distinct regions and many instances of them.

Saturation and search cost what the *distinct* code of a program costs. Blocks (see `blocks`)
are equal by structural hash, so that layers that only look alike stay apart. What is in no
block lies between two of them, in a segment of its own. A block that holds repeats is split in
the same way, and all of its copies with it: what is an instance in the end holds no repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.hlir.blocks import Block, Cuts, blocks_of, stages_of
from luminal_lab.hlir.extract import Copies, Flow, copies_of
from luminal_lab.hlir.graph import Hlir, NodeId
from luminal_lab.hlir.offsets import with_counters

if TYPE_CHECKING:
    import pandas
    from torch import Tensor


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
        """One row per instance: name, region, copies, nodes, what it reads and writes."""
        import pandas

        rows = []
        copies = Counter(i.region for i in self.instances)
        for instance in self.instances:
            region = self.regions[instance.region]
            reads = [s.name for s in region.hlir.inputs if s.kind == "arg"]
            writes = [o.name for o in region.hlir.outputs]
            rows.append(
                {
                    "name": instance.name,
                    "region": instance.region,
                    "copies": copies[instance.region],
                    "key": region.key,
                    "nodes": len(region.hlir.nodes),
                    "reads": ", ".join(instance.bind[r] for r in reads),
                    "weights": len(region.hlir.inputs) - len(reads),
                    "writes": ", ".join(instance.bind[w] for w in writes),
                }
            )
        columns = ["name", "region", "copies", "key", "nodes", "reads", "weights", "writes"]
        return pandas.DataFrame(rows, columns=columns)

    def names(self, region: int) -> tuple[str, ...]:
        """The names of a region's instances, in order."""
        return tuple(i.name for i in self.instances if i.region == region)

    def homes(self) -> dict[NodeId, tuple[int, str]]:
        """For each node that lies in one instance alone, the region and the instance's name.

        Inputs, and what is copied into each region that uses it, have none.
        """
        out: dict[NodeId, tuple[int, str]] = {}
        shared: set[NodeId] = set()
        for instance in self.instances:
            for n, node in zip(instance.nodes, self.regions[instance.region].hlir.nodes):
                if node.op == "Input" or self.hlir.nodes[n].op == "Input":
                    continue
                if n in out and out[n][1] != instance.name:
                    shared.add(n)
                out[n] = instance.region, instance.name
        return {n: home for n, home in out.items() if n not in shared}

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
    if regions:
        copies = with_counters(copies)
    while True:
        flow = Flow.of(copies.hlir, carried=copies.carried)
        cut = Cuts(copies.hlir, flow)
        groups = _split(copies, flow, cut) if regions else _ordered(copies.hlir, [], flow)
        shared = _crossing_outputs(copies.hlir, groups, flow)
        if not shared:
            return _program(hlir, copies, groups, cut)
        copies = copies.more(shared)


# ---------------------------------------------------------------------- ordering
@dataclass(frozen=True)
class _Group:
    name: str
    members: tuple[NodeId, ...]


def _split(copies: Copies, flow: Flow, cut: Cuts) -> list[_Group]:
    """All groups of nodes in execution order, where no group holds repeats."""
    blocks = blocks_of(copies, flow, cut)
    keys = {b.name: b.key for b in blocks}
    inner: dict[str, tuple[_Group, list[_Group]]] = {}  # by key: a block and its groups
    out: list[_Group] = []
    for group in _ordered(copies.hlir, blocks, flow):
        piece = cut(group.members)
        if group.name not in keys:
            out.append(group)
            continue
        if piece.key not in inner:
            by_use = [
                node.op == "Input" or flow.by_use[n]
                for n, node in zip(piece.nodes, piece.hlir.nodes)
            ]
            passed = frozenset(
                k
                for k, n in enumerate(piece.nodes)
                if n in flow.carried and piece.hlir.nodes[k].op != "Input"
            )
            within = Flow.of(piece.hlir, by_use, passed)
            copied = Copies(piece.hlir, tuple(range(len(by_use))), (), passed)
            inner[piece.key] = group, _split(copied, within, Cuts(piece.hlir, within))
        first, found = inner[piece.key]
        parts = [
            _Group(
                _renamed(g.name, first.name, group.name),
                tuple(piece.nodes[k] for k in g.members),
            )
            for g in found
        ]
        whole = sorted(n for g in parts for n in g.members) == sorted(group.members)
        out += parts if whole and len(parts) > 1 else [group]
    return out


def _renamed(name: str, first: str, other: str) -> str:
    """The name of a part of one block, for the same part of an equal one."""
    lead = next((w for w in ("before ", "after ") if name.startswith(w)), "")
    path = name.removeprefix(lead)
    within = path.removeprefix(first + ".") if path.startswith(first + ".") else None
    return f"{lead}{other}/{path}" if within is None else f"{lead}{other}.{within}"


def _ordered(hlir: Hlir, blocks: Sequence[Block], flow: Flow) -> list[_Group]:
    """All groups of nodes in execution order: segments and blocks in turn."""
    stages, home = stages_of(blocks, flow)
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


def _segment_name(k: int, blocks: Sequence[Block]) -> str:
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
def _program(hlir: Hlir, copies: Copies, groups: Sequence[_Group], cut: Cuts) -> Program:
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
