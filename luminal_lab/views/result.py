"""A search result: what was tried, what it takes, and why others lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luminal_lab.search.result import Result, Row
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import chart, units
from luminal_lab.views.html import Html, card, el, facts, fold, fragment, meter, scroll, table


def to_html(result: Result) -> str:
    """The result as HTML: the best candidate, the table, rejections."""
    return fragment(card("Search", *body(result)))


def body(result: Result, with_best: bool = True) -> list[Html]:
    """The content of `to_html`.

    Arguments:
        result: What to show.
        with_best: Whether to show the best candidate too.
    """
    verified = sum(r.status == "verified" for r in result.rows)
    out = [
        facts(
            [
                (f"{result.considered:,}", "genomes considered"),
                (f"{len(result.rows):,}", "listed"),
                (f"{verified:,}", "verified and timed"),
                (f"{len(result.records):,}", "distinct kernels measured"),
                (units.seconds(result.seconds), "of search"),
                (result.budget.effort, "effort"),
                (str(result.seed), "seed"),
                ("yes" if result.complete else None, "all that there are"),
                ("yes" if result.interrupted else None, "interrupted"),
                ("yes" if result.out_of_time else None, "out of time"),
            ]
        ),
        el("h4", "Candidates"),
        candidate_table(result),
    ]
    if result.finalists:
        out.append(el("h4", "Whole programs, timed in turns in a fresh process"))
        out.append(finalist_table(result))
    if any(r.measured is not None for r in result.rows):
        out.append(el("h4", "Predicted against measured"))
        out.append(scroll(scatter_svg(result), label="predicted against measured"))
    out.append(el("h4", "What became of everything that was considered"))
    out.append(rejection_table(result))
    if with_best:
        best = candidate_view.body(result.best)
        out.append(fold(f"The best: candidate {result.best.name}", *best))
    return out


def candidate_table(result: Result) -> Html:
    """One row per listed candidate of each region; the winner of a region is emphasised."""
    winners = _winners(result)
    ratio = _ratios(result)
    rows = [
        [
            f"{r.region} ×{r.instances}" if r.instances > 1 else str(r.region),
            str(r.rank),
            el("code", r.genome),
            f"{r.kernels:,}",
            units.seconds(r.predicted),
            f"{units.seconds(r.measured)} ± {units.seconds(r.iqr)}"
            if r.measured is not None
            else None,
            None if ratio[k] is None else f"{ratio[k]:.2f}×",
            _status(r, r in winners),
        ]
        for k, r in enumerate(result.rows)
    ]
    head = [("region", "num"), ("rank", "num"), "genome", ("kernels", "num"),
            ("predicted", "num"), ("measured", "num"), ("to the fastest", "num"),
            "verdict"]  # fmt: skip
    marks = [r in winners for r in result.rows]
    return table(head, rows, label="candidates", marked=lambda i: marks[i],
                 all_at="result.table()")  # fmt: skip


def finalist_table(result: Result) -> Html:
    """One row per finalist; the program that was chosen is emphasised."""
    rows = []
    for f in result.finalists:
        m = f.measurement
        timed = m is not None and m.median is not None
        verdict = "not timed" if m is None else "✓ verified" if m.ok else f"✗ {m.reason}"
        rule = f", by rule {f.rule}" if f.rule else ""
        rows.append(
            [
                el("code", f.name),
                f"{f.kernels:,}",
                units.seconds(f.predicted),
                f"{units.seconds(m.median)} ± {units.seconds(m.iqr)}" if timed else None,  # type: ignore[union-attr]
                None if m is None else f"{m.max_error:.1e}",
                f"{verdict}{rule}{', chosen' if f.name == result.best.name else ''}",
            ]
        )
    head = ["program", ("kernels", "num"), ("predicted", "num"), ("measured", "num"),
            ("error", "num"), "verdict"]  # fmt: skip
    chosen = [f.name == result.best.name for f in result.finalists]
    return table(head, rows, label="finalists", marked=lambda i: chosen[i],
                 all_at="result.final_table()")  # fmt: skip


def _time(row: Row) -> float:
    return row.measured if row.measured is not None else row.predicted


def _ratios(result: Result) -> list[float | None]:
    """Each row's time over the fastest of its region; measured is compared with measured."""
    out: list[float | None] = []
    for r in result.rows:
        left = [x for x in result.rows if x.region == r.region and x.status != "rejected"]
        timed = [x.measured for x in left if x.measured is not None]
        time = r.measured if timed else r.predicted
        best = min(timed or [x.predicted for x in left], default=0.0)
        out.append(time / best if time is not None and best else None)
    return out


def _winners(result: Result) -> list[Row]:
    """The row of each region that the best candidate is made of."""
    if chosen := [r for r in result.rows if r.chosen]:
        return chosen
    out = []
    for region in dict.fromkeys(r.region for r in result.rows):
        left = [r for r in result.rows if r.region == region and r.status != "rejected"]
        timed = [r for r in left if r.measured is not None]
        if left:
            out.append(min(timed or left, key=_time))
    return out


def _status(row: Row, winner: bool) -> Html:
    if row.status == "rejected":
        rule = f", by rule {row.rule}" if row.rule else ""
        return el("span", f"✗ {row.reason}{rule}", class_="bad")
    if row.status == "verified":
        return el("span", "✓ verified" + (", chosen" if winner else ""), class_="good")
    return el("span", "chosen, not measured" if winner else row.status, class_="muted")


def rejection_table(result: Result) -> Html:
    """How many genomes ended how; the counts add up."""
    rows = []
    for reason, count in result.rejections().table().itertuples(index=False):
        share = count / result.considered if result.considered else 0.0
        rows.append([reason, f"{count:,}", el("span", f"{share:.0%}", meter(share))])
    rows.append([el("b", "total"), el("b", f"{result.considered:,}"), ""])
    head = ["outcome", ("genomes", "num"), ("share", "num")]
    return table(head, rows, label="outcomes", all_at="result.rejections()")


def _points(result: Result) -> dict[int, list[Row]]:
    out: dict[int, list[Row]] = {}
    for r in result.rows:
        if r.measured is not None:
            out.setdefault(r.region, []).append(r)
    return out


def scatter_svg(result: Result, *, standalone: bool = False) -> Html:
    """Measured over predicted time; on the diagonal the cost model is right."""
    series = [
        chart.Series(
            f"region {region}",
            [(r.predicted, r.measured or 0.0) for r in rows],
            "points",
            [_title(r) for r in rows],
        )
        for region, rows in _points(result).items()
    ]
    return chart.plot(
        "Measured over predicted seconds of each candidate",
        chart.Axis("predicted", log=True, show=units.seconds),
        chart.Axis("measured", log=True, show=units.seconds),
        series,
        width=520,
        height=320,
        diagonal=True,
        standalone=standalone,
    )


@dataclass(frozen=True)
class Program:
    """A listed program as a point: its time and its memory.

    Arguments:
        rank: Its place in `result.candidates`.
        seconds: Measured, or predicted where that is not known.
        measured: Whether all of its kernels were measured.
        nbytes: Of its temporaries.
        rejected: Why it was rejected, `""` when it was not.
    """

    rank: int
    seconds: float
    measured: bool
    nbytes: int
    rejected: str = ""


def programs(result: Result, most: int = 32) -> list[Program]:
    """The listed programs with their time and memory, at most so many.

    Of a result that was read from a file there is the best one only.
    """
    by_rank: dict[int, dict[int, Row]] = {}
    depth: dict[int, int] = {}
    for r in result.rows:
        by_rank.setdefault(r.rank, {})[r.region] = r
        depth[r.region] = max(depth.get(r.region, 0), r.rank)
    out = []
    for k, candidate in enumerate(itertools.islice(result.candidates, most)):
        rows = [by_rank[min(k, depth[region])][region] for region in depth]
        if candidate is result.best:
            rows = [r for r in result.rows if r.chosen] or rows
        measured = all(r.measured is not None for r in rows)
        seconds = sum(
            r.instances * (r.measured if measured and r.measured is not None else r.predicted)
            for r in rows
        )
        why = next((r.reason for r in rows if r.status == "rejected"), "")
        out.append(Program(k, seconds, measured, candidate.temporaries, why))
    return out


def frontier(some: Sequence[Program]) -> list[Program]:
    """Those that no other one beats in both time and memory, fastest first."""
    out: list[Program] = []
    for p in sorted((p for p in some if not p.rejected), key=lambda p: (p.seconds, p.nbytes)):
        if not out or p.nbytes < out[-1].nbytes:
            out.append(p)
    return out


def pareto_svg(result: Result, *, standalone: bool = False) -> Html:
    """Memory over time of the listed programs; the line joins those that nothing beats.

    Rejected programs are shown too: a fast point that is missing would be missed.
    """
    some = programs(result)
    kinds = (
        ("measured", [p for p in some if p.measured and not p.rejected]),
        ("predicted only", [p for p in some if not p.measured and not p.rejected]),
        ("rejected", [p for p in some if p.rejected]),
    )
    most = max((p.nbytes for p in some), default=0)
    power = next(k for k in range(5) if most < 4 << (10 * k + 10) or k == 4)
    unit = f"{'KMGT'[power - 1]}iB" if power else "B"

    def points(group: Sequence[Program]) -> list[tuple[float, float]]:
        return [(p.seconds, p.nbytes / 1024**power) for p in group]

    series = [
        chart.Series(name, points(group), "points", [_said(p) for p in group], colour=c)
        for (name, group), c in zip(kinds, ("accent", "purple", "bad"))
        if group
    ]
    best = frontier([p for p in some if p.measured] or some)
    if len(best) > 1:
        series.append(chart.Series("not beaten", points(best), "line", colour="good"))
    times = [p.seconds for p in some] or [1.0]
    return chart.plot(
        "Bytes of temporaries over seconds of a run, for each listed program",
        chart.Axis("a run takes", log=max(times) > 5 * min(times), show=units.seconds),
        chart.Axis(f"temporaries, {unit}"),
        series,
        width=520,
        height=320,
        zero=True,
        standalone=standalone,
    )


def _said(p: Program) -> str:
    verdict = p.rejected or ("measured" if p.measured else "predicted")
    return f"rank {p.rank}: {units.seconds(p.seconds)}, {units.size(p.nbytes)}, {verdict}"


def _title(r: Row) -> str:
    return (
        f"{r.genome}, {units.plural(r.kernels, 'kernel')}: predicted "
        f"{units.seconds(r.predicted)}, measured {units.seconds(r.measured)}, {r.status}"
    )


def scatter(result: Result) -> Any:
    """`scatter_svg` as an interactive plotly figure."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for region, rows in _points(result).items():
        figure.add_trace(
            go.Scatter(
                x=[r.predicted for r in rows],
                y=[r.measured for r in rows],
                error_y={"array": [r.iqr / 2 for r in rows]},
                mode="markers",
                name=f"region {region}",
                text=[_title(r) for r in rows],
                hoverinfo="text",
            )
        )
    figure.update_layout(
        xaxis={"type": "log", "title": "predicted, s"},
        yaxis={"type": "log", "title": "measured, s"},
        template="plotly_white",
    )
    return figure
