"""Text and graph of an e-graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from luminal_lab.egraph.egraph import ENCODED, EGraph, ENode, Part
from luminal_lab.egraph.stops import held_back

if TYPE_CHECKING:
    import graphviz

_COLOURS = {"V": "#eef2ff", "T": "#fef3c7"}


def summary(egraph: EGraph) -> str:
    """One screen: size, regions, the rules that did most."""
    lines = [
        f"EGraph for {egraph.target}: {egraph.size} e-nodes in {len(egraph.parts)} region(s),"
        f" {len(egraph.rules)} rules, {egraph.seconds.get('total', 0.0):.3f} s"
    ]
    for part in egraph.parts:
        report = part.report
        lines.append(
            f"  region {part.region}{uses(egraph, part.region)}:"
            f" {len(part.hlir.nodes)} HLIR nodes → {part.size} e-nodes,"
            f" {len(part.classes)} e-classes; {report.stopped or 'not at an end'} after"
            f" {len(report.iterations) - 1} iterations, {report.seconds * 1e3:.0f} ms"
        )
        counts = report.counts
        said = [
            f"{getattr(counts, name)} {label}"
            for name, label in (
                ("copies", "renamed copies"),
                ("captures", "captured axes renamed"),
                ("divmods", "indices with // or %"),
                ("stopped", "copies stopped at a reduction"),
                ("skipped", "copies over the limit"),
                ("conflicts", "axis cuts that do not fit"),
            )
            if getattr(counts, name)
        ]
        if said:
            lines.append("    " + ", ".join(said))
        rules = sorted(part.by_rule.items(), key=lambda kv: (-kv[1], kv[0]))
        made = [f"{name} {n}" for name, n in rules if name != ENCODED][:8]
        if made:
            lines.append("    e-nodes by rule: " + ", ".join(made))
        held = held_back(part, egraph.rules)
        if held:
            lines.append(
                "    held back: " + ", ".join(h.rule.name for h in held) + " (.report)"
            )
    return "\n".join(lines)


def uses(egraph: EGraph, region: int) -> str:
    """How often a region is used, and where: ` × 12 (layers.0, …, layers.11)`, or nothing."""
    names = [i.name for i in egraph.program.instances if i.region == region]
    if len(names) < 2:
        return ""
    shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
    return f" × {len(names)} ({', '.join(shown)})"


def text(egraph: EGraph) -> str:
    """Every class on a line, its e-nodes below it."""
    return "\n".join(line for part in egraph.parts for line in _part_text(egraph, part))


def _part_text(egraph: EGraph, part: Part) -> Iterator[str]:
    yield f"region {part.region}{uses(egraph, part.region)}:"
    named: dict[int, list[str]] = {}
    for node, c in part.node_class.items():
        named.setdefault(c, []).append(f"%{node}")
    for name, c in part.outputs:
        named.setdefault(c, []).append(name)
    for c in part.classes:
        about = f"free {{{', '.join(sorted(c.free))}}}" if c.sort == "V" else f"{list(c.shape)}"
        names = f"  ; {' '.join(named[c.id])}" if c.id in named else ""
        yield f"  {name_of(part, c.id)} : {c.sort} {c.dtype} {about}{names}"
        for n in c.nodes:
            origin = "" if n.rule == ENCODED else f"   ; {n.rule} @{n.iteration}"
            yield f"    {node_text(part, n)}{origin}"


def name_of(part: Part, c: int) -> str:
    """How a class is written: `v12`, `t3`."""
    return f"{part.classes[c].sort.lower()}{c}"


def node_text(part: Part, node: ENode) -> str:
    """An e-node as an s-expression over class names."""
    attrs = [
        f"[{', '.join(map(str, a))}]" if isinstance(a, tuple) else str(a) for a in node.attrs
    ]
    return f"({' '.join([node.op, *attrs, *(name_of(part, c) for c in node.children)])})"


def graph(part: Part) -> graphviz.Digraph:
    """One box per e-class, one row per e-node, an edge from each e-node to its children."""
    import graphviz

    dot = graphviz.Digraph(
        f"egraph{part.region}",
        node_attr={"shape": "plain", "fontname": "Helvetica", "fontsize": "10"},
        graph_attr={"rankdir": "BT"},
    )
    for c in part.classes:
        rows = [
            f'<TR><TD PORT="n{k}" ALIGN="LEFT">{_escape(_label(n))}</TD></TR>'
            for k, n in enumerate(c.nodes)
        ]
        head = f'<TR><TD BGCOLOR="{_COLOURS[c.sort]}"><B>{name_of(part, c.id)}</B></TD></TR>'
        box = f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0">{head}{"".join(rows)}</TABLE>'
        dot.node(f"c{c.id}", f"<{box}>")
        for k, n in enumerate(c.nodes):
            for child in n.children:
                dot.edge(f"c{c.id}:n{k}", f"c{child}")
    return dot


def _label(node: ENode) -> str:
    attrs = [
        f"[{', '.join(map(str, a))}]" if isinstance(a, tuple) else str(a) for a in node.attrs
    ]
    return " ".join([node.op, *attrs])


def _escape(label: str) -> str:
    return label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
