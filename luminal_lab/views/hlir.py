"""The Hlir: a graph folded by module, what each module costs, and every node in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import graphviz

from luminal_lab.hlir.copies import ends
from luminal_lab.hlir.graph import Hlir, Node, Operand
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.regions import Program, partition
from luminal_lab.hlir.view import REDUCED
from luminal_lab.views import folding, units
from luminal_lab.views.html import (
    ROWS_SHOWN,
    Html,
    card,
    el,
    facts,
    fold,
    fragment,
    meter,
    scroll,
    table,
)
from luminal_lab.views.sources import line_table
from luminal_lab.views.svg import Arrow, Box, Diagram, capped, draw, to_digraph
from luminal_lab.views.terms import number

MAX_DRAWN = 60  # boxes of the first drawing; below it nodes are drawn one by one
MAX_INNER = 8  # modules that can be unfolded below the graph
_FAMILY_COLOUR = {
    "unary": "purple", "binary": "accent", "select": "accent", "reduce": "warn",
    "cast": "muted", "index": "good", "custom": "bad", "source": "teal",
}  # fmt: skip
_SIGN = {"Add": "+", "Mul": "×", "Mod": "mod", "LessThan": "<"}


def to_html(hlir: Hlir) -> str:
    """The program as HTML: figures, graph, modules, nodes."""
    return fragment(card(f"Hlir · {hlir.name}", *body(hlir)))


def body(hlir: Hlir) -> list[Html]:
    """The content of `to_html`, for pages that have their own frame."""
    nodes = folding.drawn(hlir)
    fallbacks = [n for n in nodes if hlir.nodes[n].op == "Custom"]
    depth = folding.best_depth(hlir, nodes, MAX_DRAWN)
    graph = capped(diagram(hlir, depth))
    out = [
        summary(hlir),
        _symbols(hlir),
        scroll(draw(graph), label="graph of the program", tall=True),
        el("p", *_legend(graph), class_="muted"),
    ]  # fmt: skip
    if depth is not None:
        out.append(_inner_graphs(hlir, nodes, depth))
    program = partition(hlir)
    if len(program.instances) > 1:
        names = f"Regions: {len(program.regions):,} for {len(program.instances):,} pieces"
        out.append(fold(names, region_table(program)))
    if any(node.source.module for node in hlir.nodes):
        out.append(fold("Modules", module_table(hlir)))
    if any(node.source.line for node in hlir.nodes):
        out.append(fold("Source lines", line_table(hlir)))
    out.append(fold(f"All {units.plural(len(hlir.nodes), 'node')}", node_table(hlir)))
    if fallbacks:
        out.append(fold("Fallbacks", node_table(hlir, fallbacks), open_=True))
    return [o for o in out if o]


def region_table(program: Program) -> Html:
    """One row per region: where it is, how often, how large, and its work in all copies."""
    rows = []
    for k, region in enumerate(program.regions):
        names = program.names(k)
        own = folding.drawn(region.hlir)
        work = folding.total([folding.flops(region.hlir, n) for n in own])
        rows.append([
            str(k), ends(names), f"×{len(names)}", f"{len(own):,}",
            f"{len(own) * len(names):,}",
            units.count(None if work is None else work * len(names), "FLOP"),
        ])  # fmt: skip
    head = [("", "num"), ("region", "code"), ("copies", "num"), ("nodes, each", "num"),
            ("nodes, all", "num"), ("work, all", "num")]  # fmt: skip
    return table(head, rows, label="regions", all_at="luminal_lab.hlir.partition(hlir).table()")


def summary(hlir: Hlir) -> Html:
    """A line of figures."""
    nodes = folding.drawn(hlir)
    kinds = [spec.kind for spec in hlir.inputs]
    weights = [s for s in hlir.inputs if s.kind != "arg"]
    fallbacks = sum(hlir.nodes[n].op == "Custom" for n in nodes)
    return facts(
        [
            units.counted(len(hlir.nodes), "node"),
            units.counted(kinds.count("arg"), "input"),
            (f"{len(weights):,}" if weights else None, "weights, "
             + units.size(_total_bytes(hlir, [s.node for s in weights]))),
            units.counted(len(hlir.outputs), "output"),
            (units.count(folding.total([folding.flops(hlir, n) for n in nodes]), "FLOP"),
             "per call"),
            (f"{fallbacks:,}" if fallbacks else None, "fallbacks to ATen"),
        ]
    )  # fmt: skip


def to_svg(hlir: Hlir, depth: int | None = None) -> str:
    """The graph as a standalone SVG file.

    Arguments:
        hlir: The program.
        depth: Components of module paths to keep; by default as many as fit.
    """
    return draw(diagram(hlir, depth or _default_depth(hlir)), standalone=True)


def to_dot(hlir: Hlir, depth: int | None = None) -> graphviz.Digraph:
    """The graph as DOT, node by node unless a depth is given or it is too large to read."""
    nodes = folding.drawn(hlir)
    return to_digraph(diagram(hlir, depth or folding.best_depth(hlir, nodes, 300)))


def _default_depth(hlir: Hlir) -> int | None:
    return folding.best_depth(hlir, folding.drawn(hlir), MAX_DRAWN)


def diagram(hlir: Hlir, depth: int | None, only: Sequence[int] | None = None) -> Diagram:
    """The boxes and arrows of a program.

    Arguments:
        hlir: The program.
        depth: Components of module paths to keep, None for a box per node.
        only: Draw only these nodes; what they read from elsewhere is drawn as dashed boxes.
    """
    members = folding.drawn(hlir) if only is None else list(only)
    boxes: dict[str, Box] = {}
    owner: dict[int, str] = {}
    if depth is None:
        for n in members:
            boxes[f"n{n}"] = node_box(hlir, n)
            owner[n] = f"n{n}"
    else:
        for group in folding.groups(hlir, members, depth):
            key = f"g{group.key}"
            boxes[key] = _group_box(hlir, group)
            copies = set(group.copies)
            for n in members:
                if folding.cut(hlir.nodes[n].source.module, depth) in copies:
                    owner[n] = key
    arrows: dict[tuple[str, str], Arrow] = {}
    ends: list[Box] = []
    weights = {spec.node: spec for spec in hlir.inputs}
    for n in members:
        for operand in hlir.nodes[n].operands:
            source = operand.node
            if folding.is_scalar(hlir, source):
                continue
            if source not in owner:
                spec = weights.get(source)
                if depth is not None and spec is not None and spec.kind != "arg":
                    continue  # weights would drown a folded graph; the table has them
                owner[source] = f"x{source}"
                ends.append(_end_box(hlir, source))
            _connect(arrows, hlir, owner[source], owner[n], operand)
    for k, out in enumerate(hlir.outputs):
        if out.value.node in owner and (only is None or out.value.node in set(only)):
            name = f"out{k}"
            kind = f"→ {out.mutates}" if out.mutates else units.shape(out.shape)
            ends.append(Box(name, out.name, kind, f"output {out.name}", "buffer"))
            _connect(arrows, hlir, owner[out.value.node], name, out.value)
    first = [b for b in ends if b.key.startswith("x")]
    last = [b for b in ends if not b.key.startswith("x")]
    everything = (*first, *boxes.values(), *last)
    note = "" if depth is None else (
        f"{len(members):,} nodes folded into {len(boxes):,} modules"
    )  # fmt: skip
    if any("×" in boxes[k].label for k in boxes) and depth is not None:
        # What one copy hands to the next would run backwards through every box in between.
        at = {b.key: k for k, b in enumerate(everything)}
        many = {k for k, b in boxes.items() if "×" in b.label}
        arrows = {
            k: a
            for k, a in arrows.items()
            if at[a.tail] < at[a.head] or not many.issuperset((a.tail, a.head))
        }
        note += "; a box with ×n stands for n equal layers, each fed by the one before"
    return Diagram(
        f"Graph of {hlir.name}: {units.plural(len(members), 'node')}",
        everything,
        tuple(arrows.values()),
        note,
    )


def _connect(
    arrows: dict[tuple[str, str], Arrow], hlir: Hlir, tail: str, head: str, operand: Operand
) -> None:
    if tail == head:
        return
    rank = len(hlir.nodes[operand.node].shape)
    dashed = moved(hlir, operand)
    title = f"%{operand.node}{operand.view}" if rank else f"%{operand.node}"
    old = arrows.get((tail, head))
    if old is not None:
        title = title if title in old.title.split("\n") else f"{old.title}\n{title}"
        dashed = dashed and old.dashed
    arrows[(tail, head)] = Arrow(tail, head, title, dashed)


def moved(hlir: Hlir, operand: Operand) -> bool:
    """Whether a read permutes, slices, regroups or pads (broadcasting and reducing do not)."""
    axes = [
        index.single
        for index, dim in zip(operand.view.index, hlir.nodes[operand.node].shape)
        if dim != 1
    ]
    kept = [int(a[1:]) for a in axes if a is not None and a != REDUCED]
    return bool(operand.view.guard) or None in axes or kept != sorted(set(kept))


def node_box(hlir: Hlir, n: int) -> Box:
    """One node as a box: its op with its scalar operands, its dtype and shape."""
    node = hlir.nodes[n]
    return Box(
        f"n{n}",
        label(hlir, node),
        f"{node.dtype} {units.shape(node.shape)}",
        hover(hlir, n),
        colour(node.op),
    )


def colour(op: str) -> str:
    """The colour of an op's family."""
    return _FAMILY_COLOUR[OPS[op].family]


def label(hlir: Hlir, node: Node) -> str:
    """`Mul × 0.125`, `SumReduce r<64`, `Cast f32`."""
    scalars = [
        number(hlir.nodes[o.node].attrs["value"])
        for o in node.operands
        if folding.is_scalar(hlir, o.node)
    ]
    if node.op in _SIGN and len(scalars) == 1 and len(node.operands) == 2:
        left = folding.is_scalar(hlir, node.operands[0].node)
        spelled = f"{scalars[0]} {_SIGN[node.op]}" if left else f"{_SIGN[node.op]} {scalars[0]}"
        return f"{node.op} {spelled}"
    if OPS[node.op].family == "reduce":
        return f"{node.op} r<{node.attrs.get('extent')}"
    if node.op == "Cast":
        return f"Cast {node.dtype}"
    if node.op == "Iota":
        return f"Iota {node.attrs.get('index')}"
    if node.op == "Custom":
        return f"Custom {node.attrs.get('target', '')}"
    return node.op + (f" {', '.join(scalars)}" if scalars else "")


def hover(hlir: Hlir, n: int) -> str:
    """All that is known of a node, in lines."""
    node = hlir.nodes[n]
    reads = ", ".join(f"%{o.node}{o.view if o.view.index else ''}" for o in node.operands)
    lines = [
        f"%{n} = {node.op}({reads})",
        f"{node.dtype} {units.shape(node.shape)}, {units.size(folding.nbytes(hlir, n))}, "
        f"{units.count(folding.flops(hlir, n), 'FLOP')}",
        node.source.module,
        node.source.aten,
        node.source.line,
    ]
    return "\n".join(line for line in lines if line)


def _group_box(hlir: Hlir, group: folding.Group) -> Box:
    work = folding.total([folding.flops(hlir, n) for n in group.nodes])
    times = f" ×{len(group.copies)}" if len(group.copies) > 1 else ""
    ops = ", ".join(f"{k}× {op}" for op, k in folding.histogram(hlir, group.nodes).items())
    return Box(
        f"g{group.key}",
        group.label + times,
        f"{units.plural(len(group.nodes), 'node')}, {units.count(work, 'FLOP')}",
        f"{group.label}{times}\n{ops}",
        "accent" if group.key else "muted",
    )


def _end_box(hlir: Hlir, n: int) -> Box:
    node = hlir.nodes[n]
    spec = next((s for s in hlir.inputs if s.node == n), None)
    name = spec.name if spec else f"%{n} {node.op}"
    if spec and spec.kind != "arg":
        name = name.rsplit(".", 2)[-1] if len(name) > 24 else name
    return Box(f"x{n}", name, f"{node.dtype} {units.shape(node.shape)}",
               f"{spec.kind + ' ' + spec.name if spec else ''}\n{hover(hlir, n)}".strip(),
               "buffer")  # fmt: skip


def _inner_graphs(hlir: Hlir, nodes: Sequence[int], depth: int) -> Html:
    """The largest modules, drawn node by node, folded away."""
    found = [g for g in folding.groups(hlir, nodes, depth) if 1 < len(g.nodes) <= ROWS_SHOWN]
    found.sort(key=lambda g: -len(g.nodes) * len(g.copies))
    inner = []
    for group in found[:MAX_INNER]:
        times = f" ({len(group.copies)} equal copies)" if len(group.copies) > 1 else ""
        drawing = draw(diagram(hlir, None, group.nodes))
        title = f"{group.label}: {units.plural(len(group.nodes), 'node')}{times}"
        inner.append(fold(title, scroll(drawing, label=f"inside {group.label}", tall=True)))
    return fold("Inside the modules", *inner) if inner else Html("")


def module_table(hlir: Hlir) -> Html:
    """What each module does, two levels of equal layers folded."""
    nodes = folding.drawn(hlir)
    found = folding.groups(hlir, nodes, 99)
    work = [folding.total([folding.flops(hlir, n) for n in g.nodes]) for g in found]
    whole = folding.total([w * len(g.copies) if w is not None else None
                           for w, g in zip(work, found)])  # fmt: skip
    rows = []
    for g, w in zip(found, work):
        share = w * len(g.copies) / whole if w is not None and whole else None
        ops = ", ".join(f"{k}× {op}" for op, k in folding.histogram(hlir, g.nodes).items())
        rows.append(
            [
                el("code", g.label),
                f"×{len(g.copies)}" if len(g.copies) > 1 else "",
                f"{len(g.nodes):,}",
                el("span", units.count(w, "FLOP"), meter(share) if share is not None else None),
                units.size(_total_bytes(hlir, g.nodes)),
                ops,
            ]
        )
    head = ["module", "copies", ("nodes", "num"), ("work", "num"), ("results", "num"), "ops"]
    return table(head, rows, label="modules")


def node_table(hlir: Hlir, only: Sequence[int] | None = None) -> Html:
    """Every node: what it reads, its type, its cost, where it came from."""
    names: Mapping[int, str] = {s.node: s.name for s in hlir.inputs}
    rows = []
    for n, node in enumerate(hlir.nodes):
        if only is not None and n not in only:
            continue
        reads = ", ".join(f"%{o.node}{o.view if o.view.index else ''}" for o in node.operands)
        what = names.get(n) or (number(node.attrs["value"]) if node.op == "Constant" else reads)
        rows.append(
            [
                f"%{n}",
                label(hlir, node) if node.op not in ("Constant", "Input") else node.op,
                what,
                f"{node.dtype} {units.shape(node.shape)}",
                units.size(folding.nbytes(hlir, n)),
                units.count(folding.flops(hlir, n)),
                node.source.module,
                node.source.aten,
                node.source.line,
            ]
        )
    head = [("", "code"), "op", ("reads", "code"), ("type", "code"), ("bytes", "num"),
            ("flop", "num"), ("module", "code"), ("aten", "code"), "line"]  # fmt: skip
    return table(head, rows, label="nodes", all_at="hlir.table()")


def _legend(graph: Diagram) -> list[str]:
    """What a reader must know about a drawing, in words."""
    lines = [f"{graph.note}. "] if graph.note else []
    if any(a.dashed for a in graph.arrows):
        lines.append("Dashed arrow: read permuted, sliced, regrouped or padded. ")
    lines.append("Rest the pointer on a box or an arrow for its details.")
    return lines


def _symbols(hlir: Hlir) -> Html:
    if not hlir.symbols:
        return Html("")
    return facts([(f"{low} … {high}", f"bounds of {name}")
                  for name, (low, high) in hlir.symbols.items()])  # fmt: skip


def _total_bytes(hlir: Hlir, nodes: Sequence[int]) -> int | None:
    return folding.total([folding.nbytes(hlir, n) for n in nodes])
