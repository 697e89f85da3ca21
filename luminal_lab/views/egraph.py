"""The e-graph: how it grew, which rules did it, and the alternatives of any node."""

from __future__ import annotations

from collections.abc import Sequence

import graphviz

from luminal_lab.egraph.alternatives import Alternatives
from luminal_lab.egraph.egraph import ENCODED, EClass, EGraph, ENode, Part
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.copies import ends, span
from luminal_lab.views import chart, units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import (
    Figure,
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
from luminal_lab.views.svg import Arrow, Box, Diagram, capped, draw, to_digraph
from luminal_lab.views.terms import term

REGIONS_SHOWN = 6
_CLASSES_SHOWN = 40  # classes whose alternatives are listed


def to_html(egraph: EGraph) -> str:
    """The e-graph as HTML: figures, growth, rules, alternatives."""
    return fragment(card(f"EGraph · {egraph.hlir.name}", *body(egraph)))


def body(egraph: EGraph) -> list[Html]:
    """The content of `to_html`."""
    out = [summary(egraph)]
    if len(egraph.program.instances) > 1:
        out.append(region_table(egraph))
    out.append(el("h4", "Growth"))
    out.append(scroll(growth_svg(egraph), label="growth of the e-graph"))
    out.append(el("h4", "Rules by the e-nodes that they made"))
    out.append(leaderboard(egraph))
    for part in egraph.parts[:REGIONS_SHOWN]:
        where = f" of region {part.region}, {copies(egraph, part)}"
        where = where if len(egraph.program.instances) > 1 else ""
        out.append(fold(f"Alternatives{where}", alternatives_table(part)))
        target = _output_value(part)
        if target is not None:
            graph = capped(neighbourhood_diagram(part, target, radius=1))
            out.append(
                fold(
                    f"Around the output{where}",
                    el("p", *_legend(graph), class_="muted"),
                    scroll(draw(graph), label="e-classes around the output", tall=True),
                )
            )
    if len(egraph.parts) > REGIONS_SHOWN:
        hidden = len(egraph.parts) - REGIONS_SHOWN
        out.append(el("p", f"{hidden} more regions: views.egraph.alternatives", class_="muted"))
    return out


def summary(egraph: EGraph) -> Html:
    """A line of figures."""
    classes = sum(len(p.classes) for p in egraph.parts)
    times = len(egraph.program.instances)
    made = {n.rule for p in egraph.parts for c in p.classes for n in c.nodes} - {ENCODED}
    return facts(
        [
            (f"{egraph.size:,}", "e-nodes"),
            (f"{classes:,}", "e-classes"),
            (f"{len(egraph.parts):,}", "regions" if len(egraph.parts) > 1 else "region"),
            (f"{times:,}" if times > 1 else None, "copies of them in the program"),
            (f"{len(made):,} of {len(egraph.rules):,}", "rules made e-nodes"),
            (units.seconds(egraph.seconds.get("total")), "in all"),
            (egraph.target, "target"),
        ]
    )


def to_svg(egraph: EGraph, region: int = 0) -> str:
    """The e-graph of a region as a standalone SVG file."""
    return draw(diagram(egraph.parts[region]), standalone=True)


def to_dot(egraph: EGraph, region: int = 0) -> graphviz.Digraph:
    """The e-graph of a region as DOT: dashed e-classes, and the e-nodes in them."""
    return to_digraph(diagram(egraph.parts[region]))


# ----------------------------------------------------------------------------------- figures


def region_table(egraph: EGraph) -> Html:
    """One row per region: what it is, how often it is used, how its saturation went."""
    used: dict[int, list[str]] = {}
    for instance in egraph.program.instances:
        used.setdefault(instance.region, []).append(instance.name)
    rows = [
        [
            str(p.region),
            ends(used.get(p.region, [])),
            f"×{len(used.get(p.region, []))}",
            f"{len(p.hlir.nodes):,}",
            f"{p.size:,}",
            f"{len(p.classes):,}",
            f"{p.report.stopped} after {len(p.report.iterations) - 1}",
            units.seconds(p.report.seconds),
        ]
        for p in egraph.parts
    ]
    head = [("", "num"), ("region", "code"), ("used", "num"), ("HLIR nodes", "num"),
            ("e-nodes", "num"), ("e-classes", "num"), "stopped", ("time", "num")]  # fmt: skip
    return table(head, rows, label="regions", all_at="egraph.parts")


def copies(egraph: EGraph, part: Part) -> str:
    """The instances of a region: `layers.0 … layers.11 ×12`."""
    return span(egraph.program.names(part.region))


def growth_svg(
    egraph: EGraph, *, parts: Sequence[Part] = (), at: int | None = None,
    standalone: bool = False,
) -> Html:  # fmt: skip
    """E-nodes and e-classes after each iteration.

    Arguments:
        egraph: What was saturated.
        parts: Some of its regions; all together when empty.
        at: An iteration to mark.
        standalone: Whether the SVG carries its own style sheet.
    """
    parts = parts or egraph.parts
    last = max((len(p.report.iterations) for p in parts), default=0)
    rows, classes = [], []
    for n in range(last):
        some = [p.report.iterations[min(n, len(p.report.iterations) - 1)] for p in parts]
        rows.append((float(n), float(sum(i.rows for i in some))))
        classes.append((float(n), float(sum(i.classes for i in some))))
    return chart.plot(
        f"E-nodes after each iteration: {units.plural(int(rows[-1][1]), 'e-node')} in the end"
        if rows
        else "no iterations",
        chart.Axis("iteration", whole=True),
        chart.Axis("", show=lambda v: f"{v:,.0f}", whole=True),
        [chart.Series("e-nodes", rows), chart.Series("e-classes", classes, dashed=True)],
        zero=True,
        marked=None if at is None else float(at),
        standalone=standalone,
    )


def leaderboard(egraph: EGraph) -> Html:
    """One row per rule that matched: its law, what it did, where it stands."""
    frame = egraph.table()
    most = max(frame["new e-nodes"].tolist(), default=0) or 1
    source = {r.name: r for r in egraph.rules}
    rows = []
    for r in frame.to_dict("records"):
        if not r["matches"]:
            continue
        made = r["new e-nodes"]
        rows.append(
            [
                el("code", r["rule"]),
                fold(r["law"], code(source[r["rule"]].text, "egg", r["rule"])),
                r["class"],
                f"{r['matches']:,}",
                el("span", f"{made:,}", meter(made / most)),
                r["at"],
            ]
        )
    head = ["rule", "law", "class", ("matches", "num"), ("new e-nodes", "num"),
            ("where", "code")]  # fmt: skip
    idle = len(egraph.rules) - len(rows)
    note = el("p", f"{units.plural(idle, 'rule')} found nothing to match.", class_="muted")
    body = table(head, rows, label="rules", all_at="egraph.table()")
    return Html(body + note) if idle else body


# -------------------------------------------------------------------------------- alternatives


def alternatives(egraph: EGraph, node: int, region: int = 0, radius: int = 1) -> Figure:
    """All forms of one HLIR node: its e-class, what is in it, and what is around it.

    Arguments:
        egraph: The e-graph.
        node: A node of `egraph.parts[region].hlir`.
        region: Which region.
        radius: How far around it to draw.

    Raises:
        LuminalError: when the node has no tensor of its own (constants and Iotas).
    """
    found = egraph.alternatives(node, region)
    return Figure(alternatives_html(found, radius), alternatives_text(found))


def alternatives_html(found: Alternatives, radius: int = 1) -> Html:
    """The members of a node's classes, and the classes around it."""
    part = found._egraph.parts[found.region]
    rows = [row for c in found.classes for row in _rows(part, c)]
    graph = capped(neighbourhood_diagram(part, found.classes[-1].id, radius))
    return fragment(
        card(
            f"{found.title}: {units.plural(len(rows), 'form')}",
            _forms(rows),
            scroll(draw(graph), label=f"around {found.title}", tall=True),
            el("p", *_legend(graph), class_="muted"),
        )
    )


def alternatives_text(found: Alternatives) -> str:
    """One line per member."""
    part = found._egraph.parts[found.region]
    rows = [row for c in found.classes for row in _rows(part, c)]
    wide = max((len(r[1]) for r in rows), default=0)
    wide = min(wide, 60)
    lines = [f"{found.title}: {units.plural(len(rows), 'form')}"]
    lines += [
        f"  {m.place.label:>7} = {r[1]:<{wide}}   {r[2]}" for m, r in zip(found.members, rows)
    ]
    return "\n".join(lines)


def forms_of(part: Part, node: int) -> Html:
    """The table of all forms of an HLIR node of a region."""
    tensor = part.classes[part.node_class[node]]
    values = [part.classes[n.children[0]] for n in tensor.nodes if n.op == "kernel"]
    return _forms([r for c in dict.fromkeys((tensor, *values)) for r in _rows(part, c)])


def alternatives_table(part: Part) -> Html:
    """The classes with the most forms, each form with its rule."""
    known = {c: n for n, c in part.node_class.items()}
    found = sorted((c for c in part.classes if len(c.nodes) > 1), key=lambda c: -len(c.nodes))
    shown = sorted(found[:_CLASSES_SHOWN], key=lambda c: c.id)
    rows = [row for c in shown for row in _rows(part, c, known)]
    note = ""
    if len(found) > len(shown):
        note = f"showing {len(shown)} of {len(found)} classes with more than one form"
    return Html(_forms(rows) + (el("p", note, class_="muted") if note else ""))


def _rows(part: Part, c: EClass, known: dict[int, int] | None = None) -> list[list[str]]:
    out = []
    for n in c.nodes:
        made = "as captured" if n.rule == ENCODED else f"{n.rule}, iteration {n.iteration}"
        tensor = f"%{known[c.id]}" if known and c.id in known else ""
        kind = f"{c.dtype} {units.shape(c.shape) if c.sort == 'T' else axes(c)}"
        out.append([name(part, c.id), form(part, n), made, kind, tensor])
    return out


def _forms(rows: Sequence[Sequence[str]]) -> Html:
    head = [("class", "code"), ("form", "code"), "made by", ("type", "code"), ("node", "code")]
    if not any(r[-1] for r in rows):
        head, rows = head[:-1], [r[:-1] for r in rows]
    return table(head, rows, label="alternatives", all_at="egraph.text()")


def axes(c: EClass) -> str:
    """The axes that a value depends on: `[a,b]`."""
    return f"[{','.join(sorted(c.free))}]"


def name(part: Part, c: int) -> str:
    """How a class is called: `v12`, `t3`, or the input's name."""
    inputs = [n.attrs[0] for n in part.classes[c].nodes if n.op == "input"]
    return inputs[0] if inputs else f"{part.classes[c].sort.lower()}{c}"


def form(part: Part, node: ENode) -> str:
    """One e-node as mathematics over the names of its children."""
    names = [name(part, c) for c in node.children]
    if node.op == "input":
        return f"input {node.attrs[0]}"
    if node.op in ("kernel", "planes"):
        where = ", ".join(map(str, node.attrs[0]))
        order = f", dims in memory {node.attrs[1]}" if node.op == "planes" else ""
        return f"store {names[0]} at [{where}]{order}"
    if part_is_tensor(node):
        return f"{node.op}({', '.join(names)})"
    attrs = node.attrs
    kids = node.children
    if node.op == "load":
        attrs, kids, names = (names[0], node.attrs[0]), node.children[1:], names[1:]
    args = tuple(
        Value("load", (), (n, ()), dtype=part.classes[c].dtype) for n, c in zip(names, kids)
    )
    dtype = part.classes[node.children[0]].dtype if node.children else part.classes[0].dtype
    return term(Value(node.op, args, attrs, dtype=dtype))


def part_is_tensor(node: ENode) -> bool:
    """Whether an e-node makes a tensor rather than a value."""
    return node.op in ("gemm", "library", "scatter", "custom")


# ------------------------------------------------------------------------------------- graphs


def _output_value(part: Part) -> int | None:
    for _, tensor in part.outputs:
        for n in part.classes[tensor].nodes:
            if n.op == "kernel":
                return n.children[0]
    return None


def neighbourhood(egraph: EGraph, node: int, region: int = 0, radius: int = 2) -> str:
    """The e-classes around an HLIR node as standalone SVG."""
    part = egraph.parts[region]
    target = egraph.classes_of(node, region)[-1].id
    return draw(neighbourhood_diagram(part, target, radius), standalone=True)


def neighbourhood_diagram(part: Part, target: int, radius: int = 2) -> Diagram:
    """A class, its e-nodes, their children, and so on, `radius` times."""
    near = [target]
    level = [target]
    for _ in range(radius):
        children = [k for c in level for n in part.classes[c].nodes for k in n.children]
        level = [c for c in dict.fromkeys(children) if c not in near]
        near += level
    return diagram(part, near, near[: len(near) - len(level)], target)


def diagram(
    part: Part,
    classes: Sequence[int] | None = None,
    opened: Sequence[int] | None = None,
    mark: int | None = None,
) -> Diagram:
    """E-classes as dashed boxes, and their e-nodes as boxes below them.

    Arguments:
        part: The e-graph of a region.
        classes: Which classes; all when None.
        opened: Of which of them the e-nodes are drawn; of all when None.
        mark: A class to emphasise.
    """
    shown = list(range(len(part.classes)) if classes is None else classes)
    unfolded = set(shown if opened is None else opened)
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    for c in shown:
        cls = part.classes[c]
        forms = "\n".join(form(part, n) for n in cls.nodes)
        kind = "mark" if c == mark else "buffer"
        boxes.append(Box(f"c{c}", name(part, c), _type(cls), forms, kind))
        if c not in unfolded:
            continue
        for k, n in enumerate(cls.nodes):
            key = f"e{c}.{k}"
            made = "" if n.rule == ENCODED else f"{n.rule} @{n.iteration}"
            colour = "muted" if n.rule == ENCODED else "accent"
            boxes.append(Box(key, form(part, n), made, made or "as captured", colour))
            arrows.append(Arrow(f"c{c}", key, dashed=True))
            arrows += [Arrow(key, f"c{child}") for child in dict.fromkeys(n.children)]
    title = f"E-classes around {name(part, mark)}" if mark is not None else "E-classes"
    return Diagram(f"{title}: {units.plural(len(shown), 'class', 'classes')}", tuple(boxes),
                   tuple(arrows))  # fmt: skip


def _type(c: EClass) -> str:
    return f"{c.dtype} {units.shape(c.shape) if c.sort == 'T' else axes(c)}"


def _legend(graph: Diagram) -> list[str]:
    return [
        f"{graph.note}. " if graph.note else "",
        "A dashed box is an e-class; each box below it is one of its equal forms, with the "
        "rule that made it and the iteration.",
    ]
