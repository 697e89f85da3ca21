"""A diagram of boxes and arrows, drawn as SVG or written as DOT.

A view builds one `Diagram`; both forms come from it. Nothing here knows any stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import graphviz

from luminal_lab.views.html import BASE_CSS, SVG_CSS, Html, el
from luminal_lab.views.layout import Point, layered

MAX_BOXES = 300
CHAR, SUB_CHAR = 6.95, 6.35  # advance of the two monospaced sizes, in px
PAD_X, LINE, BAR = 11.0, 15.0, 4.0
MARGIN = 8.0


@dataclass(frozen=True)
class Box:
    """One node of a drawing.

    Arguments:
        key: Unique within the diagram.
        label: Its first line.
        sub: A second, quieter line.
        title: Shown when the pointer rests on it; lines are separated by newlines.
        kind: A colour name, `"buffer"` (dashed) or `"mark"` (emphasised). The label says the
            same in words.
    """

    key: str
    label: str
    sub: str = ""
    title: str = ""
    kind: str = ""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in px."""
        width = max(len(self.label) * CHAR, len(self.sub) * SUB_CHAR)
        return max(width + 2 * PAD_X + BAR, 40.0), LINE * (2 if self.sub else 1) + 10


@dataclass(frozen=True)
class Arrow:
    """One edge of a drawing, between keys."""

    tail: str
    head: str
    title: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Diagram:
    """Boxes and arrows.

    Arguments:
        title: One line that says what it shows (the alternative text).
        boxes: In reading order.
        arrows: Arrows whose ends are not among the boxes are not drawn.
        note: A line below the drawing, such as what was left out.
    """

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    note: str = ""


def capped(diagram: Diagram, limit: int = MAX_BOXES) -> Diagram:
    """The first `limit` boxes, with a note that says how many there are."""
    total = len(diagram.boxes)
    if total <= limit:
        return diagram
    note = f"showing {limit:,} of {total:,} nodes"
    kept = diagram.boxes[:limit]
    keys = {b.key for b in kept}
    arrows = tuple(a for a in diagram.arrows if a.tail in keys and a.head in keys)
    return replace(
        diagram, boxes=kept, arrows=arrows, note=f"{diagram.note}; {note}".strip("; ")
    )


def draw(diagram: Diagram, *, standalone: bool = False) -> Html:
    """The diagram as an `<svg>` element.

    Arguments:
        diagram: What to draw; more than `MAX_BOXES` boxes are cut, and said so.
        standalone: Whether it must carry its own style sheet and namespace (a file).
    """
    diagram = capped(diagram)
    at = {b.key: k for k, b in enumerate(diagram.boxes)}
    arrows = [a for a in diagram.arrows if a.tail in at and a.head in at]
    placed = layered(
        [b.size for b in diagram.boxes], [(at[a.tail], at[a.head]) for a in arrows]
    )
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    edges = [_edge(a, path) for a, path in zip(arrows, placed.paths) if path]
    boxes = [_box(b, centre) for b, centre in zip(diagram.boxes, placed.centres)]
    body = el(
        "g", edges, boxes, transform=f"translate({MARGIN:g} {MARGIN:g})"
    )  # fmt: skip
    return canvas(diagram.title, diagram.note, width, height, body, standalone=standalone)


def canvas(
    title: str,
    note: str,
    width: float,
    height: float,
    *body: object,
    standalone: bool = False,
    shrink: float = 0.8,
) -> Html:
    """An `<svg>` with alternative text, at most its natural size.

    Arguments:
        title: The alternative text.
        note: A longer description, or nothing.
        width: Natural width in px.
        height: Natural height in px.
        body: Its content.
        standalone: See `draw`.
        shrink: How far a narrow page may shrink it before it scrolls.
    """
    return el(
        "svg",
        el("title", title),
        el("desc", note) if note else None,
        Html(f"<style>{BASE_CSS}{SVG_CSS}</style>") if standalone else None,
        *body,
        class_="ll",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=title,
        width=f"{width:.0f}" if standalone else None,
        height=f"{height:.0f}" if standalone else None,
        style=None
        if standalone
        else f"width:100%;max-width:{width:.0f}px;min-width:{width * shrink:.0f}px;"
        f"max-height:none",
        xmlns="http://www.w3.org/2000/svg" if standalone else None,
    )


def _box(box: Box, centre: Point) -> Html:
    w, h = box.size
    x, y = centre[0] - w / 2, centre[1] - h / 2
    middle = centre[0] + BAR / 2
    first = y + (LINE + 5 if box.sub else h / 2 + 4) - (3 if box.sub else 0)
    return el(
        "g",
        el("title", box.title or box.label),
        el("rect", class_="box", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{w:.1f}",
           height=f"{h:.1f}", rx="5"),
        el("rect", class_="bar", x=f"{x + 3:.1f}", y=f"{y + 4:.1f}", width=f"{BAR - 1:.1f}",
           height=f"{h - 8:.1f}", rx="1.5") if box.kind not in ("", "buffer") else None,
        el("text", box.label, class_="b", x=f"{middle:.1f}", y=f"{first:.1f}",
           text_anchor="middle"),
        el("text", box.sub, class_="sub", x=f"{middle:.1f}", y=f"{first + LINE:.1f}",
           text_anchor="middle") if box.sub else None,
        class_=f"k-{box.kind}" if box.kind else None,
    )  # fmt: skip


def _edge(arrow: Arrow, path: Sequence[Point]) -> Html:
    tip, before = path[-1], path[-2]
    up = before[1] > tip[1]
    end = (tip[0], tip[1] + (5.5 if up else -5.5))
    points = [*path[:-1], end]
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y1 - y0) * 0.5
        steps.append(f"C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}")
    away = 6 if up else -6
    head = f"{tip[0]:.1f},{tip[1]:.1f} {tip[0] - 3.5:.1f},{tip[1] + away:.1f} " + (
        f"{tip[0] + 3.5:.1f},{tip[1] + away:.1f}"
    )
    return el(
        "g",
        el("title", arrow.title) if arrow.title else None,
        el("path", class_="edge dash" if arrow.dashed else "edge", d=" ".join(steps)),
        el("polygon", class_="tip", points=head),
    )


_DOT_FILL = {
    "accent": "#ddf0ff", "purple": "#f0e6ff", "warn": "#fff3d6", "good": "#e0f7e4",
    "bad": "#ffe6e4", "teal": "#dcf4f7", "muted": "#eef2f6", "mark": "#eef2f6",
    "buffer": "white", "": "#f6f8fa",
}  # fmt: skip


def to_digraph(diagram: Diagram) -> graphviz.Digraph:
    """The diagram as DOT; rendering it needs the `dot` program, reading it does not.

    Keys become `n0`, `n1`, …; labels and tooltips are escaped.
    """
    dot = graphviz.Digraph(
        comment=" ".join(diagram.title.split()),
        graph_attr={"rankdir": "TB", "nodesep": "0.25", "ranksep": "0.35"},
        node_attr={
            "shape": "box", "style": "rounded,filled", "fontname": "monospace",
            "fontsize": "10", "margin": "0.12,0.05", "color": "#8b949e",
            "fontcolor": "#1f2328",
        },
        edge_attr={"color": "#57606a", "arrowsize": "0.6"},
    )  # fmt: skip
    at = {b.key: f"n{k}" for k, b in enumerate(diagram.boxes)}
    for box in diagram.boxes:
        lines = [graphviz.escape(t).replace("\n", "\\n") for t in (box.label, box.sub) if t]
        style = "rounded,filled,dashed" if box.kind == "buffer" else None
        dot.node(
            at[box.key],
            graphviz.nohtml("\\n".join(lines)),
            tooltip=_one_string(box.title or box.label),
            fillcolor=_DOT_FILL.get(box.kind, "#f6f8fa"),
            style=style,
        )
    for arrow in diagram.arrows:
        if arrow.tail in at and arrow.head in at:
            dot.edge(
                at[arrow.tail],
                at[arrow.head],
                tooltip=_one_string(arrow.title) if arrow.title else None,
                style="dashed" if arrow.dashed else None,
            )
    if diagram.note:
        dot.attr(label=_one_string(diagram.note), fontsize="9", fontname="monospace")
    return dot


def _one_string(value: str) -> str:
    return graphviz.nohtml(graphviz.escape(value).replace("\n", "\\n"))
