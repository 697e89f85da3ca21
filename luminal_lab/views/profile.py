"""A Profile: kernels by time, the timeline of a run, and the roofline with measured ceilings.

The static charts stand in every HTML output; `timeline` and `roofline` make the same pictures
interactive.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from luminal_lab.views import chart, units
from luminal_lab.views.html import Html, card, el, facts, fold, fragment, meter, scroll, table

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from luminal_lab.bench.timing import Comparison
    from luminal_lab.runtime.profiling import CallTime, KernelTime, Profile

_LANES = 18  # kernels with a lane of their own in the timeline; the rest share one


def to_html(profile: Profile) -> str:
    """The profile as HTML."""
    return fragment(card(f"Profile · {profile.name}", *body(profile)))


def body(profile: Profile) -> list[Html]:
    """The content of `to_html`."""
    return [
        facts(
            [
                (_spread(profile.seconds), "a call, median and quartiles"),
                units.counted(len(profile.calls), "kernel call"),
                (units.seconds(max(profile.overhead, 0.0)), "outside of kernels"),
                units.counted(len(profile.seconds), "run"),
                (profile.machine.name, ""),
            ]
        ),
        kernel_table(profile),
        el("h4", "Timeline of a run"),
        scroll(timeline_svg(profile), label="timeline", tall=True),
        el("h4", "Roofline"),
        scroll(roofline_svg(profile), label="roofline"),
        fold("Each call", call_table(profile)),
    ]


def _spread(samples: Sequence[float]) -> str:
    if len(samples) < 2:
        return units.seconds(samples[0]) if samples else "–"
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return f"{units.seconds(middle)} ({units.seconds(low)} … {units.seconds(high)})"


def kernel_table(profile: Profile) -> Html:
    """One row per kernel, the longest first."""
    rows = []
    for r in profile.rows():
        flag = (
            el("span", " faster than memory: not credible", class_="bad")
            if r["faster than memory"]
            else None
        )
        time, spread = units.seconds(r["us"] / 1e6), units.seconds(r["iqr_us"] / 1e6)
        rows.append(
            [
                el("span", el("code", r["name"]), flag),
                r["region"],
                f"{r['calls']:,}",
                el(
                    "span",
                    f"{time} ± {spread}",
                ),
                el("span", f"{r['share']:.0%}", meter(r["share"])),
                units.size(r["bytes"]),
                units.count(r["flops"], "FLOP"),
                f"{units.digits(r['GB/s'])}",
                f"{units.digits(r['GF/s'])}",
                f"{r['floor_us'] / r['us']:.0%}" if r["us"] else None,
            ]
        )
    head = ["kernel", ("region", "code"), ("calls", "num"), ("time, all calls", "num"),
            ("share", "num"), ("bytes, each", "num"), ("work, each", "num"), ("GB/s", "num"),
            ("GFLOP/s", "num"), ("of the bound", "num")]  # fmt: skip
    return table(head, rows, label="kernels by time", all_at="profile.table()")


def call_table(profile: Profile) -> Html:
    """One row per call, in order."""
    rows = [
        [str(r["call"]), r["name"], r["region"], units.seconds(r["start_us"] / 1e6),
         units.seconds(r["us"] / 1e6), units.seconds(r["iqr_us"] / 1e6)]
        for r in profile.call_rows()
    ]  # fmt: skip
    head = [("", "num"), ("kernel", "code"), ("region", "code"), ("start", "num"),
            ("time", "num"), ("spread", "num")]  # fmt: skip
    return table(head, rows, label="calls", all_at="profile.call_rows()")


def comparison(found: Comparison) -> list[Html]:
    """Several implementations, timed in the same rounds."""
    rows = []
    best = min(c.median for c in found.contestants)
    first = found.contestants[0].name
    for c in found.contestants:
        rows.append([
            c.name, _spread(c.seconds), f"{found.ratio(first, c.name):.2f}×",
            el("span", meter(best / c.median) if c.median else None),
            None if c.error is None else f"{c.error:.1e}",
        ])  # fmt: skip
    head = ["", ("a call, median and quartiles", "num"), (f"speed against {first}", "num"), "",
            ("largest difference", "num")]  # fmt: skip
    return [el("h4", "Against PyTorch"), table(head, rows, label="comparison",
            marked=lambda k: found.contestants[k].median == best)]  # fmt: skip


def trace(profile: Profile) -> dict[str, Any]:
    """One run in the trace event format, which Chrome and Perfetto open; microseconds."""
    events = [
        {
            "name": r["name"],
            "cat": r["region"] or "program",
            "ph": "X",
            "ts": r["start_us"],
            "dur": r["us"],
            "pid": 1,
            "tid": 1,
            "args": {"kernel": r["kernel"], "region": r["region"], "spread_us": r["iqr_us"]},
        }
        for r in profile.call_rows()
    ]
    head = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": profile.name}}
    return {"traceEvents": [head, *events], "displayTimeUnit": "ns"}


# ----------------------------------------------------------------------------------- timeline


def _lane_of(profile: Profile) -> dict[int, str]:
    """The lane of each kernel: the longest ones have their own."""
    longest = [r["kernel"] for r in profile.rows()]
    names = {k.kernel: k.name for k in profile.kernels}
    many = len(longest) > _LANES
    own = longest[: _LANES - 1] if many else longest
    return {k: names[k] if k in own else f"{len(longest) - len(own)} others" for k in longest}


def timeline_svg(profile: Profile, *, standalone: bool = False) -> Html:
    """One run as bars, a lane per kernel."""
    lanes = _lane_of(profile)
    items = [
        chart.Span(lanes.get(c.kernel, c.name), c.start, c.median, c.name, _call_title(c))
        for c in profile.calls
    ]
    return chart.spans(f"Timeline of {profile.name}: {units.seconds(profile.total)} in "
                       f"{units.plural(len(items), 'call')}", items, units.seconds,
                       standalone=standalone)  # fmt: skip


def _call_title(call: CallTime) -> str:
    where = f"\n{call.region}" if call.region else ""
    return (
        f"{call.name}{where}\n{units.seconds(call.median)}, "
        f"starts at {units.seconds(call.start)}"
    )


def timeline(profile: Profile) -> go.Figure:
    """One run as an interactive plotly figure."""
    import plotly.graph_objects as go

    lanes = _lane_of(profile)
    figure = go.Figure(
        go.Bar(
            base=[c.start * 1e6 for c in profile.calls],
            x=[c.median * 1e6 for c in profile.calls],
            y=[lanes.get(c.kernel, c.name) for c in profile.calls],
            orientation="h",
            hovertext=[_call_title(c).replace("\n", "<br>") for c in profile.calls],
            hoverinfo="text",
        )
    )
    figure.update_layout(
        title=f"Timeline of {profile.name}",
        xaxis_title="µs",
        yaxis={"autorange": "reversed"},
        template="plotly_white",
        showlegend=False,
    )
    return figure


# ----------------------------------------------------------------------------------- roofline


def _points(profile: Profile) -> list[tuple[KernelTime, float, float]]:
    """Kernel, FLOP per byte, FLOP/s; kernels that compute nothing are left out."""
    out = []
    for k in profile.kernels:
        if k.flops > 0 and k.bytes > 0 and k.median > 0:
            out.append((k, k.flops / k.bytes, k.flops * k.calls / k.median))
    return out


def _ceilings(profile: Profile) -> list[tuple[str, float | None, float]]:
    """Name, bytes/s (None for a flat ceiling), FLOP/s limit."""
    m = profile.machine
    return [
        (f"memory {units.count(m.bandwidth, 'B/s')}", m.bandwidth, m.dot_flops),
        (f"last-level cache {units.count(m.l3_bandwidth, 'B/s')}", m.l3_bandwidth, m.dot_flops),
        (f"products {units.count(m.dot_flops, 'FLOP/s')}", None, m.dot_flops),
        (f"elementwise {units.count(m.vector_flops, 'FLOP/s')}", None, m.vector_flops),
    ]


def _lines(profile: Profile) -> list[tuple[str, list[tuple[float, float]]]]:
    intensities = [i for _, i, _ in _points(profile)] or [1.0]
    ridges = [limit / rate for _, rate, limit in _ceilings(profile) if rate is not None]
    low, high = min(*intensities, *ridges) / 4, max(*intensities, *ridges) * 4
    out = []
    for name, bandwidth, limit in _ceilings(profile):
        if bandwidth is None:
            out.append((name, [(low, limit), (high, limit)]))
        else:
            end = limit / bandwidth  # the ridge, where both ceilings meet
            out.append((name, [(low, low * bandwidth), (end, end * bandwidth)]))
    return out


def _kernel_title(k: KernelTime, intensity: float, rate: float) -> str:
    return (
        f"{k.name}: {units.count(rate, 'FLOP/s')} at {units.digits(intensity)} FLOP/B, "
        f"{units.seconds(k.median)} in {units.plural(k.calls, 'call')}"
    )


def roofline_svg(profile: Profile, *, standalone: bool = False) -> Html:
    """Each kernel's rate over its intensity, under the measured ceilings."""
    points = _points(profile)
    series = [
        chart.Series(
            "kernels",
            [(i, r) for _, i, r in points],
            "points",
            [_kernel_title(*p) for p in points],
        )
    ]
    colours = ("warn", "purple", "good", "teal")
    for (name, line), colour in zip(_lines(profile), colours):
        series.append(chart.Series(name, line, "line", dashed=colour != "warn", colour=colour))
    return chart.plot(
        f"Roofline of {profile.name}",
        chart.Axis("FLOP per byte", log=True),
        chart.Axis("FLOP/s", log=True, show=lambda v: units.count(v)),
        series,
        width=680,
        height=320,
        standalone=standalone,
    )


def roofline(profile: Profile) -> Any:
    """The roofline as an interactive plotly figure."""
    import plotly.graph_objects as go

    points = _points(profile)
    figure = go.Figure()
    for name, line in _lines(profile):
        figure.add_trace(
            go.Scatter(x=[x for x, _ in line], y=[y for _, y in line], mode="lines", name=name)
        )
    figure.add_trace(
        go.Scatter(
            x=[i for _, i, _ in points],
            y=[r for _, _, r in points],
            mode="markers",
            name="kernels",
            text=[_kernel_title(*p) for p in points],
            hoverinfo="text",
            marker={"size": 10, "line": {"width": 1, "color": "white"}},
        )
    )
    figure.update_layout(
        title=f"Roofline of {profile.name}",
        xaxis={"type": "log", "title": "FLOP per byte"},
        yaxis={"type": "log", "title": "FLOP/s"},
        template="plotly_white",
    )
    return figure
