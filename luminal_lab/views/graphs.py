"""Graphs as data for the interactive view: nodes, edges, groups that open and close.

A `GraphData` holds everything, folded or not; what is drawn of it is the widget's choice. The
static pictures of the other views are drawings; this is what a reader can walk through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from luminal_lab.egraph.egraph import ENCODED, EClass, Part
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.regions import partition
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.candidate import Candidate
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import folding, units
from luminal_lab.views import hlir as hlir_view

Details = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Node:
    """One node.

    Arguments:
        key: Unique within the graph.
        label: Its first line.
        sub: Its second, quieter line.
        kind: A colour name of the views, `"buffer"` or `"mark"`; the label says the same.
        group: The key of the innermost group that holds it, `""` for none.
        twin: The corresponding node of the first copy, when its group is an equal copy.
        details: What is known of it, as `(name, value)`.
        values: Numbers for the overlays, by overlay key.
        hlir: The HLIR nodes that it comes from, for selection across views.
    """

    key: str
    label: str
    sub: str = ""
    kind: str = ""
    group: str = ""
    twin: str = ""
    details: Details = ()
    values: Mapping[str, float] = field(default_factory=dict)
    hlir: tuple[int, ...] = ()


@dataclass(frozen=True)
class Group:
    """Nodes that can be drawn as one box.

    Arguments:
        key: Unique among groups.
        label: What the box says.
        parent: The group around it, `""` for none.
        copies: How many equal groups it stands for, itself included.
        twin: The first copy, when it is one of the others.
        details: What is known of it.
    """

    key: str
    label: str
    parent: str = ""
    copies: int = 1
    twin: str = ""
    details: Details = ()


@dataclass(frozen=True)
class Edge:
    """What one node hands to another."""

    tail: str
    head: str
    title: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Overlay:
    """A number of each node that can be drawn over the graph.

    Arguments:
        key: In `Node.values`.
        label: What it is.
        unit: `"s"`, `"B"`, `"FLOP"` or `""`.
    """

    key: str
    label: str
    unit: str = ""


@dataclass(frozen=True)
class GraphData:
    """A whole graph.

    Arguments:
        title: What it shows; the alternative text of its picture.
        nodes: In reading order.
        edges: Between keys of nodes.
        groups: Outer ones first.
        overlays: What `Node.values` hold.
        open: Groups that are open at first.
    """

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...] = ()
    overlays: tuple[Overlay, ...] = ()
    open: tuple[str, ...] = ()

    def to_data(self) -> dict:
        """Plain JSON."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """What it holds, in a line."""
        parts = [units.plural(len(self.nodes), "node"), units.plural(len(self.edges), "edge")]
        if self.groups:
            parts.append(units.plural(len(self.groups), "group"))
        return f"{self.title}: {', '.join(parts)}"


# ------------------------------------------------------------------------------------- HLIR


def of_hlir(hlir: Hlir, values: Mapping[int, Mapping[str, float]] | None = None) -> GraphData:
    """The graph of a program, grouped by module.

    Arguments:
        hlir: The program.
        values: More numbers of nodes for overlays, such as measured seconds, by node.
    """
    drawn = folding.drawn(hlir)
    members = [*(s.node for s in hlir.inputs), *drawn]
    paths = {n: hlir.nodes[n].source.module for n in drawn}
    twins, copies = _twins(hlir, drawn)
    _adopt_weights(hlir, drawn, paths, twins)
    groups = _module_groups(hlir, drawn, copies)
    names = {s.node: s for s in hlir.inputs}
    regions = _regions(hlir)
    extra = values or {}
    nodes = []
    for n in members:
        node = hlir.nodes[n]
        spec = names.get(n)
        numbers = {"bytes": folding.nbytes(hlir, n), "flops": folding.flops(hlir, n)}
        known = {k: float(v) for k, v in numbers.items() if v}
        nodes.append(
            Node(
                f"n{n}",
                spec.name if spec else hlir_view.label(hlir, node),
                f"{node.dtype} {units.shape(node.shape)}",
                "buffer" if spec else hlir_view.colour(node.op),
                paths.get(n, ""),
                f"n{twins[n]}" if n in twins else "",
                _hlir_details(hlir, n, spec.kind if spec else "", regions.get(n, "")),
                {**known, **extra.get(n, {})},
                (n,),
            )
        )
    edges: dict[tuple[str, str], Edge] = {}
    for n in drawn:
        for operand in hlir.nodes[n].operands:
            if folding.is_scalar(hlir, operand.node):
                continue
            tail, head = f"n{operand.node}", f"n{n}"
            title = f"%{operand.node}{operand.view if operand.view.index else ''}"
            edges[tail, head] = Edge(tail, head, title, hlir_view.moved(hlir, operand))
    for k, out in enumerate(hlir.outputs):
        kind = f"{hlir.nodes[out.value.node].dtype} {units.shape(out.shape)}"
        details = (("kind", "output"), ("type", kind),
                   *((("written back to", out.mutates),) if out.mutates else ()))  # fmt: skip
        nodes.append(Node(f"out{k}", out.name, kind,
                          "buffer", "", "", details))  # fmt: skip
        edges[f"n{out.value.node}", f"out{k}"] = Edge(f"n{out.value.node}", f"out{k}")
    keys = {n.key for n in nodes}
    kept = tuple(e for e in edges.values() if e.tail in keys)
    overlays = [Overlay("bytes", "bytes of the result", "B"), Overlay("flops", "work", "FLOP")]
    if any("seconds" in n.values for n in nodes):
        overlays.insert(0, Overlay("seconds", "time", "s"))
    return GraphData(
        f"Graph of {hlir.name}", tuple(nodes), kept, groups, tuple(overlays),
        tuple(g.key for g in groups if not g.parent and len(groups) > 1 and _only(groups, g)),
    )  # fmt: skip


def _only(groups: Sequence[Group], group: Group) -> bool:
    """Whether it is the only outermost group: closed, the picture would be one box."""
    return sum(not g.parent for g in groups) == 1


def _twins(hlir: Hlir, drawn: Sequence[int]) -> tuple[dict[int, int], dict[str, list[str]]]:
    """For nodes of equal copies, the node of the first copy; and the copies of module paths."""
    twin: dict[int, int] = {}
    copies: dict[str, list[str]] = {}
    by_path: dict[str, list[int]] = {}
    for n in drawn:
        by_path.setdefault(hlir.nodes[n].source.module, []).append(n)
    depths = sorted({p.count(".") + 1 for p in by_path if p})
    for depth in depths:
        for group in folding.groups(hlir, drawn, depth):
            if len(group.copies) > 1 and group.key not in copies:
                copies[group.key] = list(group.copies)
    for first, others in copies.items():
        mine = [n for n in drawn if _inside(hlir.nodes[n].source.module, first)]
        for other in others[1:]:
            theirs = [n for n in drawn if _inside(hlir.nodes[n].source.module, other)]
            if len(theirs) == len(mine):
                for a, b in zip(mine, theirs):
                    twin.setdefault(b, a)
    return twin, copies


def _adopt_weights(
    hlir: Hlir, drawn: Sequence[int], paths: dict[int, str], twins: dict[int, int]
) -> None:
    """Put a weight into the module that reads it first: folded away with it, equal with it."""
    weights = {s.node for s in hlir.inputs if s.kind != "arg"}
    for n in drawn:
        first = hlir.nodes[twins[n]].operands if n in twins else ()
        for k, operand in enumerate(hlir.nodes[n].operands):
            if operand.node in weights and operand.node not in paths:
                paths[operand.node] = paths[n]
                if k < len(first) and first[k].node in weights:
                    twins[operand.node] = first[k].node


def _inside(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group}.")


def _module_groups(
    hlir: Hlir, drawn: Sequence[int], copies: Mapping[str, list[str]]
) -> tuple[Group, ...]:
    first_of = {other: first for first, all_ in copies.items() for other in all_[1:]}
    members: dict[str, list[int]] = {}
    for n in drawn:
        path = hlir.nodes[n].source.module
        for depth in range(1, path.count(".") + 2) if path else ():
            members.setdefault(folding.cut(path, depth), []).append(n)
    out = []
    for path, inside in sorted(members.items(), key=lambda p: p[0].count(".")):
        work = folding.total([folding.flops(hlir, n) for n in inside])
        ops = ", ".join(f"{k}× {op}" for op, k in folding.histogram(hlir, inside).items())
        out.append(
            Group(
                path,
                path.rsplit(".", 1)[-1],
                path.rsplit(".", 1)[0] if "." in path else "",
                len(copies.get(path, [path])),
                first_of.get(path, ""),
                (("module", path), ("nodes", f"{len(inside):,}"),
                 ("work", units.count(work, "FLOP")), ("ops", ops)),
            )
        )  # fmt: skip
    return tuple(out)


def _regions(hlir: Hlir) -> dict[int, str]:
    """For each node that is in one copy of a region, which one, of how many."""
    program = partition(hlir)
    if len(program.instances) == 1:
        return {}
    copies = [len(program.names(k)) for k in range(len(program.regions))]
    return {
        n: f"{region}, {name}" + (f", one of ×{copies[region]}" if copies[region] > 1 else "")
        for n, (region, name) in program.homes().items()
    }


def _hlir_details(hlir: Hlir, n: int, kind: str, region: str) -> Details:
    node = hlir.nodes[n]
    reads = ", ".join(f"%{o.node}{o.view if o.view.index else ''}" for o in node.operands)
    pairs = [
        ("node", f"%{n}"),
        ("op", f"{node.op} ({OPS[node.op].family})" if not kind else f"input, {kind}"),
        ("reads", reads),
        ("dtype", str(node.dtype)),
        ("shape", units.shape(node.shape)),
        ("result", units.size(folding.nbytes(hlir, n))),
        ("work", units.count(folding.flops(hlir, n), "FLOP")),
        ("module", node.source.module),
        ("region", region),
        ("ATen op", node.source.aten),
        ("source", node.source.line),
    ]
    return tuple((k, v) for k, v in pairs if v)


# ---------------------------------------------------------------------------------- e-graph


def of_part(part: Part, around: Sequence[int] = (), radius: int = 2) -> GraphData:
    """The e-graph of a region: a group per e-class, a node per e-node, edges to children.

    Arguments:
        part: The region.
        around: E-classes; only those that are reached from them along children in so many steps
            are drawn, and those that have one of them for a child. All when empty.
        radius: How many steps.
    """
    nodes, edges, groups = [], [], []
    holders = {c: n for n, c in part.node_class.items()}
    inside = _near(part, around, radius) if around else range(len(part.classes))
    for c in part.classes:
        if c.id not in inside:
            continue
        free = ", ".join(sorted(c.free)) or "nothing"
        where = f"depends on {free}" if c.sort == "V" else f"shape {units.shape(c.shape)}"
        own = (holders[c.id],) if c.id in holders else ()
        details = [("e-class", egraph_view.name(part, c.id)), ("sort", _SORTS[c.sort]),
                   ("type", f"{c.dtype}, {where}"), ("forms", f"{len(c.nodes):,}")]  # fmt: skip
        details += [("HLIR node", f"%{n}") for n in own]
        label = f"{egraph_view.name(part, c.id)} = {_shortest(part, c)}"
        groups.append(Group(f"c{c.id}", label, details=tuple(details)))
        for k, node in enumerate(c.nodes):
            made = "the encoder" if node.rule == ENCODED else f"rule {node.rule}"
            nodes.append(
                Node(
                    f"c{c.id}.{k}",
                    egraph_view.form(part, node),
                    "as captured" if node.rule == ENCODED else f"{node.rule}, {node.iteration}",
                    _ENODE_COLOURS.get(node.op, ""),
                    f"c{c.id}",
                    details=(("e-node", f"{k} of {egraph_view.name(part, c.id)}"),
                             ("op", node.op), ("made by", made),
                             ("in iteration", str(node.iteration)), ("type", details[2][1])),
                    values={"iteration": float(node.iteration)},
                    hlir=own,
                )
            )  # fmt: skip
            for child in dict.fromkeys(x for x in node.children if x in inside):
                edges.append(Edge(f"c{child}.0", f"c{c.id}.{k}", egraph_view.name(part, child)))
    where = f" around {egraph_view.name(part, around[-1])}" if around else ""
    return GraphData(
        f"E-graph of region {part.region}{where}", tuple(nodes), tuple(edges), tuple(groups),
        (Overlay("iteration", "iteration of birth"),),
    )  # fmt: skip


def _near(part: Part, around: Sequence[int], radius: int) -> set[int]:
    """E-classes around some of them; see `of_part`."""
    near = level = dict.fromkeys(around)
    for _ in range(radius):
        level = dict.fromkeys(
            x for c in level for n in part.classes[c].nodes for x in n.children
        )
        near = {**near, **level}
    centre = set(around)
    users = (c.id for c in part.classes for n in c.nodes if not centre.isdisjoint(n.children))
    return {*near, *users}


_SORTS = {"V": "a value over axes", "T": "a tensor in memory"}
_ENODE_COLOURS = {
    "load": "teal", "kernel": "good", "input": "teal", "red": "warn", "online": "mark",
    "carry": "mark",
    "gemm": "good", "const": "muted", "iota": "muted", "scatter": "bad", "custom": "bad",
}  # fmt: skip


def _shortest(part: Part, c: EClass) -> str:
    """What a closed e-class says: its first form, and how many others there are."""
    first = egraph_view.form(part, c.nodes[0])
    first = first if len(first) <= 40 else first[:39] + "…"
    return first + (f" (+{len(c.nodes) - 1})" if len(c.nodes) > 1 else "")


# -------------------------------------------------------------------------------- candidate


def of_candidate(candidate: Candidate, seconds: Mapping[int, float] | None = None) -> GraphData:
    """Kernels and buffers of a candidate, grouped by layer.

    Arguments:
        candidate: What to show.
        seconds: Measured seconds of each call, by its position; predictions when None.
    """
    drawing = candidate_view.diagram(candidate)
    measured = seconds or {}
    predicted = candidate.predicted
    nodes = []
    for box in drawing.boxes:
        name = box.key[1:]
        values: dict[str, float] = {}
        own: tuple[int, ...] = ()
        if box.key.startswith("c"):
            position = int(name)
            call = candidate.calls[position]
            kernel = candidate.kernels[call.kernel]
            own = tuple(sorted(kernel.nodes))
            time = measured.get(position)
            if time is None and predicted and math.isfinite(predicted[call.kernel]):
                time = predicted[call.kernel]
            if time is not None:
                values["seconds"] = time
            values["bytes"] = float(sum(hint(b.nbytes) for b in kernel.buffers.values()))
        elif name in candidate.buffers:
            values["bytes"] = float(hint(candidate.buffers[name].nbytes))
        first, *rest = box.title.split("\n")
        details = (("what", first), *(("", line) for line in rest if line))
        nodes.append(Node(box.key, box.label, box.sub, box.kind, "", "", details, values, own))
    edges = tuple(Edge(a.tail, a.head, a.title, a.dashed) for a in drawing.arrows)
    label = "measured time" if measured else "predicted time"
    return GraphData(
        drawing.title, tuple(nodes), edges, (),
        (Overlay("seconds", label, "s"), Overlay("bytes", "bytes", "B")),
    )  # fmt: skip
