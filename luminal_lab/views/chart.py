"""Small static charts as SVG: lines, points, bars over one pair of axes, and spans over time.

Series differ by marker and by name as well as by colour. Values stand in tooltips and, in every
view, in a table beside the chart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from luminal_lab.views.html import Html, el
from luminal_lab.views.svg import CHAR, canvas

COLOURS = ("accent", "warn", "purple", "good", "teal", "bad")
MARKS = ("circle", "square", "diamond", "triangle")
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One named set of points.

    Arguments:
        name: Its entry in the legend.
        points: `(x, y)`; what the axes cannot show (NaN, ≤ 0 on a log axis) is left out.
        style: How it is drawn.
        titles: A tooltip for each point.
        dashed: Whether a line is dashed.
        colour: A palette name; by position when empty.
    """

    name: str
    points: Sequence[Point]
    style: Literal["line", "points", "both"] = "both"
    titles: Sequence[str] = ()
    dashed: bool = False
    colour: str = ""


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Arguments:
        label: Its title, with the unit.
        log: Whether it is logarithmic.
        show: How a tick is written.
        whole: Whether ticks are whole numbers.
    """

    label: str
    log: bool = False
    show: Callable[[float], str] = field(default=lambda v: f"{v:g}")
    whole: bool = False


def nice_ticks(low: float, high: float, axis: Axis, wanted: int = 5) -> list[float]:
    """Round numbers that cover `low … high`."""
    if axis.log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = max(1, round((last - first) / wanted))
        return [10.0**k for k in range(first, last + step, step)]
    span = high - low or 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    if axis.whole:
        step = max(1.0, round(step))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)
        else:
            share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)


def plot(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    width: float = 560,
    height: float = 260,
    zero: bool = False,
    diagonal: bool = False,
    marked: float | None = None,
    standalone: bool = False,
) -> Html:
    """Lines and points over two axes.

    Arguments:
        title: What it shows, for those who do not see it.
        x: The horizontal axis.
        y: The vertical axis.
        series: What is drawn, in order.
        width: In px.
        height: In px, without the legend.
        zero: Whether the y axis starts at zero.
        diagonal: Whether to draw y = x.
        marked: Where on the x axis a line marks what is being looked at.
        standalone: Whether the SVG carries its own style sheet.
    """
    kept = [(s, [(k, p) for k, p in enumerate(s.points) if _showable(p, x, y)]) for s in series]
    everything = [p for _, points in kept for _, p in points] or [(1.0, 1.0)]
    xs, ys = [p[0] for p in everything], [p[1] for p in everything]
    if diagonal:
        xs = ys = [*xs, *ys]
    x_ticks = nice_ticks(min(xs), max(xs), x)
    y_ticks = nice_ticks(0.0 if zero else min(ys), max(ys), y, wanted=4)
    left = 16 + max(len(y.show(t)) for t in y_ticks) * CHAR * 0.92 + 18
    right = max(18.0, len(x.show(x_ticks[-1])) * CHAR * 0.46 + 4)  # half the last label
    top, bottom = 12.0, 44.0
    to_x = _Scale(x_ticks[0], x_ticks[-1], left, width - right, x.log)
    to_y = _Scale(y_ticks[0], y_ticks[-1], height - bottom, top, y.log)
    body: list[object] = []
    for t in y_ticks:
        at = to_y(t)
        body.append(_line(left, at, width - right, at, "grid"))
        body.append(_label(left - 7, at + 4, y.show(t), "end"))
    for t in x_ticks:
        at = to_x(t)
        body.append(_line(at, height - bottom, at, height - bottom + 4, "grid"))
        body.append(_label(at, height - bottom + 17, x.show(t), "middle"))
    body.append(_label((left + width - right) / 2, height - 8, x.label, "middle"))
    body.append(_label(13, (top + height - bottom) / 2, y.label, "middle", turned=True))
    if diagonal:
        low = max(x_ticks[0], y_ticks[0])
        high = min(x_ticks[-1], y_ticks[-1])
        body.append(_line(to_x(low), to_y(low), to_x(high), to_y(high), "edge dash"))
    if marked is not None and _showable((marked, 1.0), x, y):
        here = to_x(marked)
        body.append(_line(here, top, here, height - bottom, "edge dash"))
    for n, (s, points) in enumerate(kept):
        colour = s.colour or COLOURS[n % len(COLOURS)]
        spots = [(to_x(a), to_y(b)) for _, (a, b) in points]
        if s.style != "points" and len(spots) > 1:
            body.append(
                el("polyline", class_=f"curve s-{colour}",
                   points=" ".join(f"{a:.1f},{b:.1f}" for a, b in spots),
                   stroke_dasharray="5 4" if s.dashed else None)
            )  # fmt: skip
        if s.style != "line":
            for (k, p), spot in zip(points, spots):
                label = s.titles[k] if s.titles else f"{s.name}: {x.show(p[0])}, {y.show(p[1])}"
                body.append(mark(spot, n, colour, label))
    legend, deep = _legend([s for s, _ in kept], left, height + 6, width)
    body.extend(legend)
    return canvas(title, "", width, height + deep, *body, standalone=standalone)


def _showable(p: Point, x: Axis, y: Axis) -> bool:
    return all(
        v is not None and math.isfinite(v) and (v > 0 or not axis.log)
        for v, axis in zip(p, (x, y))
    )


def mark(at: Point, shape: int, colour: str, title: str = "") -> Html:
    """A marker; its shape tells the series too."""
    x, y = at
    kind = MARKS[shape % len(MARKS)]
    css = f"f-{colour}"
    inner = el("title", title) if title else ""
    if kind == "circle":
        return el("circle", inner, class_=css, cx=f"{x:.1f}", cy=f"{y:.1f}", r="3.6")
    corners = {
        "square": ((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)),
        "diamond": ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)),
        "triangle": ((0, -4.4), (4.2, 3.4), (-4.2, 3.4)),
    }[kind]
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
    return el("polygon", inner, class_=css, points=points)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Html:
    return el("line", class_=css, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}",
              y2=f"{y2:.1f}")  # fmt: skip


def _label(x: float, y: float, text: str, anchor: str, turned: bool = False) -> Html:
    return el("text", text, class_="sub", x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor,
              transform=f"rotate(-90 {x:.1f} {y:.1f})" if turned else None)  # fmt: skip


def _legend(
    series: Sequence[Series], left: float, top: float, width: float
) -> tuple[list[Html], float]:
    """The names below a chart, wrapped, and the height that they take."""
    out: list[Html] = []
    x, y = left, top + 8
    for n, s in enumerate(series):
        wide = len(s.name) * CHAR + 34
        if x > left and x + wide > width:
            x, y = left, y + 18
        colour = s.colour or COLOURS[n % len(COLOURS)]
        if s.style != "points":
            out.append(
                el("line", class_=f"curve s-{colour}", x1=f"{x - 2:.1f}", x2=f"{x + 14:.1f}",
                   y1=f"{y - 4:.1f}", y2=f"{y - 4:.1f}",
                   stroke_dasharray="5 4" if s.dashed else None)
            )  # fmt: skip
        if s.style != "line":
            out.append(mark((x + 6, y - 4), n, colour))
        out.append(_label(x + 19, y, s.name, "start"))
        x += wide
    return out, y - top + 14


@dataclass(frozen=True)
class Span:
    """A stretch of time in one lane."""

    lane: str
    start: float
    seconds: float
    name: str
    title: str = ""


def spans(
    title: str,
    items: Sequence[Span],
    show: Callable[[float], str],
    *,
    width: float = 760,
    whole: bool = False,
    standalone: bool = False,
) -> Html:
    """Bars over a time axis, one row per lane, lanes in order of first use."""
    lanes = list(dict.fromkeys(s.lane for s in items))
    row = {lane: k for k, lane in enumerate(lanes)}
    end = max((s.start + s.seconds for s in items), default=0.0) or 1.0
    left = min(12 + max((len(_short(n)) for n in lanes), default=0) * CHAR, width * 0.45)
    right, step = max(18.0, len(show(end)) * CHAR * 0.46 + 4), 22.0  # half the last label
    bottom = len(lanes) * step + 6
    axis = Axis("time", show=show, whole=whole)
    ticks = [t for t in nice_ticks(0.0, end, axis) if t <= end * 1.001]
    to_x = _Scale(0.0, end, left, width - right, log=False)
    body: list[object] = []
    for t in ticks:
        body.append(_line(to_x(t), 2, to_x(t), bottom, "grid"))
        body.append(_label(to_x(t), bottom + 15, show(t), "middle"))
    for lane, k in row.items():
        body.append(_label(left - 7, k * step + 17, _short(lane), "end"))
    for s in items:
        x = to_x(s.start)
        wide = max(to_x(s.start + s.seconds) - x, 0.8)
        colour = COLOURS[row[s.lane] % len(COLOURS)]
        body.append(
            el("rect", el("title", s.title or f"{s.name}: {show(s.seconds)}"),
               class_=f"f-{colour}", x=f"{x:.2f}", y=f"{row[s.lane] * step + 5:.1f}",
               width=f"{wide:.2f}", height=f"{step - 7:.1f}", rx="2")
        )  # fmt: skip
    return canvas(title, "", width, bottom + 24, *body, standalone=standalone)


def _short(name: str, limit: int = 34) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
