"""The search: its controls, the best so far, every candidate, and why the others lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ipywidgets as w

from luminal_lab.errors import LuminalError
from luminal_lab.search import Budget
from luminal_lab.search.budget import EFFORTS
from luminal_lab.search.strategies import STRATEGIES, strategy_of
from luminal_lab.views import chart, units
from luminal_lab.views import rejections as rejections_view
from luminal_lab.views import result as result_view
from luminal_lab.views.html import el, facts, scroll
from luminal_lab.widgets.panels.base import (
    Panel,
    button,
    choice,
    html,
    nothing,
    number,
    put,
    row,
)
from luminal_lab.widgets.table import TableView, column

COLUMNS = [
    column("region", "region", number=True),
    column("copies", "copies", number=True),
    column("rank", "rank", number=True),
    column("genome", "genome", code=True),
    column("kernels", "kernels", number=True),
    column("predicted", "predicted", unit="s"),
    column("measured", "measured", unit="s"),
    column("spread", "spread", unit="s"),
    column("verdict", "verdict"),
]


class SearchPanel(Panel):
    """The search and its result."""

    title = "Search"
    stage = "result"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.effort = choice("effort", list(EFFORTS), "How much to do", "quick")
        self.seconds = number("seconds (0: any)", 0, "Stop measuring then; 0 for no limit",
                              whole=False, wide=190)  # fmt: skip
        self.seed = number("seed", 0, "The same seed lists the same candidates", wide=110)
        self.strategy = choice(
            "strategy", sorted(STRATEGIES), "What follows the descent from the seeds", "genetic"
        )
        self.heat = w.FloatText(
            value=0.05, description="temperature", step=0.01,
            tooltip="How much slower a move may be, as a share, to be accepted at first",
            layout=w.Layout(width="170px"), style={"description_width": "initial"},
        )  # fmt: skip
        tip = "How many to list; 0 for the effort's own number"
        self.wanted = number("candidates (0: by effort)", 0, tip, wide=230)
        self.memory = number("MiB at most (0: any)", 0, "Temporaries of a region; 0 for any",
                             wide=210)  # fmt: skip
        self.verify = w.Checkbox(
            value=False, description="verify", indent=False, layout=w.Layout(width="auto"),
            tooltip="Verify what effort none chooses; the others verify all that they rank",
        )  # fmt: skip
        self.go = button("Search", "Start the search", self.search, primary=True, icon="play")
        self.hold = button("Pause", "Hold the search, or go on", self.state.job.pause)
        self.end = button("Cancel", "End it and keep what was found", self.state.job.cancel)
        self.live = html()
        self.facts = html()
        self.table = TableView("candidates", COLUMNS)
        self.below = html(nothing("Nothing was searched yet."))
        self.table.observe(self._choose, "selected")
        self.strategy.observe(lambda c: self._buttons(), "value")
        self.effort.observe(lambda c: self._buttons(), "value")
        self.state.observe(lambda c: self._progress(), "best")
        self.state.observe(lambda c: self._so_far(), "seen")
        self.state.job.observe(lambda c: self._buttons(), "state")
        self.follow(["egraph", "result"], self._show)
        return [
            row(self.go, self.hold, self.end, self.effort, self.seconds, self.seed,
                self.strategy, self.heat, self.wanted, self.memory, self.verify),
            self.live, self.facts, self.table, self.below,
        ]  # fmt: skip

    def search(self) -> None:
        """Start the search."""
        try:
            budget = Budget(
                self.effort.value,
                seconds=self.seconds.value or None,
                candidates=self.wanted.value or None,
                memory=self.memory.value * 2**20 or None,
                verify=self.verify.value,
            )
            strategy = self.strategy.value
            if strategy == "annealing":
                strategy = f"annealing:{self.heat.value}"
            strategy_of(strategy)
        except LuminalError as error:
            put(self.facts, el("p", str(error), class_="bad"))
            return
        self.state.search(budget, self.seed.value, strategy=strategy)

    def _buttons(self) -> None:
        running = self.state.job.state != "idle"
        searching = running and self.state.job.stage == "search"
        self.go.disabled = running or self.state.egraph is None
        self.hold.disabled = not searching
        self.end.disabled = not running
        self.heat.disabled = self.strategy.value != "annealing"
        self.verify.disabled = self.effort.value != "none"
        self.hold.description = "Go on" if self.state.job.state == "pausing" else "Pause"

    def _progress(self) -> None:
        points = [(t, best) for t, best, _ in self.state.best]
        if len(points) < 2:
            put(self.live)
            return
        put(
            self.live,
            el("h4", f"Best so far: {units.seconds(points[-1][1])}"),
            scroll(best_svg(self.state.best), label="best so far over time"),
        )

    def _so_far(self) -> None:
        """List what a search that runs has measured."""
        found = self.state.seen
        if found is not None and self.state.result is None:
            self.table.show(candidate_rows(found))
            put(self.below, nothing("The search goes on; this is what it has found so far."))

    def _show(self) -> None:
        self._buttons()
        result = self.state.result
        if result is None:
            self.table.show([])
            put(self.facts)
            put(self.below, nothing("Nothing was searched yet."))
            return
        put(
            self.facts,
            facts(
                [
                    (f"{result.considered:,}", "genomes considered"),
                    (f"{len(result.rows):,}", "listed"),
                    (f"{len(result.records):,}", "distinct kernels measured"),
                    (units.seconds(result.seconds), "of search"),
                    ("yes" if result.interrupted else None, "stopped early"),
                ]
            ),
        )
        self.table.show(candidate_rows(result))
        self.table.marked = [f"{r.region}.{r.rank}" for r in result.rows if r.chosen]
        parts: list[Any] = []
        if result.finalists:
            parts += [el("h4", "Whole programs, timed in turns in a fresh process"),
                      result_view.finalist_table(result)]  # fmt: skip
        if result.rows:  # a search that was killed early has a best candidate and no list
            pareto = scroll(result_view.pareto_svg(result), label="memory over time")
            parts += [el("h4", "Time and memory"), pareto]
        if any(r.measured is not None for r in result.rows):
            picture = scroll(result_view.scatter_svg(result), label="predicted, measured")
            parts += [el("h4", "Predicted against measured"), picture]
        parts += [el("h4", "What became of everything that was considered"),
                  *rejections_view.body(result.rejections())]  # fmt: skip
        put(self.below, *parts)

    def _choose(self, change: dict) -> None:
        result = self.state.result
        if result is None or not change["new"]:
            return
        rank = int(change["new"].split(".")[1])
        try:
            self.state.choose(rank)
        except LuminalError as error:  # a session whose e-graph is another one
            put(self.facts, el("p", str(error), class_="bad"))


def candidate_rows(result: Any) -> list[dict[str, Any]]:
    """The rows of the candidate table."""
    rows = []
    for r in result.rows:
        rejected = r.status == "rejected"
        verdict = (
            r.status if not rejected else f"{r.reason}{f', by {r.rule}' if r.rule else ''}"
        ) + (", chosen" if r.chosen else "")
        rows.append(
            {
                "key": f"{r.region}.{r.rank}",
                "region": r.region,
                "copies": r.instances,
                "rank": r.rank,
                "genome": r.genome,
                "kernels": r.kernels,
                "predicted": r.predicted,
                "measured": r.measured,
                "spread": r.iqr if r.measured is not None else None,
                "verdict": verdict,
                "verdict_tone": "bad" if rejected else
                "good" if r.status == "verified" else "muted",
            }
        )  # fmt: skip
    return rows


def best_svg(best: list[tuple[float, float, str]]) -> Any:
    """The best time over the seconds of a search, one curve per stage."""
    series = []
    times = [seconds for _, seconds, _ in best] or [1.0]
    for stage in dict.fromkeys(s for _, _, s in best):
        steps = [(t, seconds) for t, seconds, s in best if s == stage]
        points = [p for k, p in enumerate(steps)
                  if not k or k == len(steps) - 1 or p[1] != steps[k - 1][1]]  # fmt: skip
        series.append(chart.Series(stage, points))
    return chart.plot(
        "Best candidate so far, over the seconds of the search",
        chart.Axis("seconds of search", show=lambda v: f"{v:g}"),
        chart.Axis("best", log=max(times) > 5 * min(times) > 0, show=units.seconds),
        series,
        width=520,
        height=200,
    )
