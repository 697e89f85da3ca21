"""The report of a run: one self-contained HTML file that opens offline.

The caller hands over plain data (stages, times, checks) and whichever stage objects it has;
sections without data are left out.

    write_report("demo-report.html", Report(title="all-MiniLM-L6-v2", stages=..., hlir=...))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.errors import LuminalError
from luminal_lab.files import whole
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import chart, derivation, executable, kernels, profile, result, units
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import hlir as hlir_view
from luminal_lab.views.html import Html, card, el, facts, fold, meter, page, scroll, table
from luminal_lab.views.steps import derive

if TYPE_CHECKING:
    from luminal_lab.egraph import EGraph
    from luminal_lab.hlir import Hlir
    from luminal_lab.runtime import Executable, Profile
    from luminal_lab.search import Candidate, Result

_DERIVED = 3  # kernels whose derivation is written out


@dataclass(frozen=True)
class Stage:
    """One stage of the run.

    Arguments:
        name: `"capture"`.
        came_in: What it was given, in words.
        came_out: What it made, in words.
        seconds: Wall time.
    """

    name: str
    came_in: str
    came_out: str
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Samples of one contender on one workload, taken side by side with the others.

    Arguments:
        workload: `"32 sentences"`.
        contender: `"eager PyTorch"`.
        seconds: The samples.
        ours: Whether it is ours.
    """

    workload: str
    contender: str
    seconds: tuple[float, ...]
    ours: bool = False


@dataclass(frozen=True)
class Check:
    """Something that was verified.

    Arguments:
        name: What was checked.
        found: What came out.
        wanted: What it must be.
        ok: Whether it is.
    """

    name: str
    found: str
    wanted: str
    ok: bool


@dataclass(frozen=True)
class Neighbour:
    """The ranking of one sentence.

    Arguments:
        query: A sentence.
        ours: Its nearest sentence by our embeddings.
        reference: Its nearest sentence by eager PyTorch.
        score: Their similarity by ours.
    """

    query: str
    ours: str
    reference: str
    score: float


@dataclass(frozen=True)
class Report:
    """Everything that a report may show; see the module's text.

    Arguments:
        title: What was compiled.
        intro: A sentence or two below the title.
        machine: Figures about the machine and the versions, `(value, what)`.
        stages: In order.
        timings: All contenders on all workloads.
        checks: What was verified.
        ranking: The nearest sentence of each sentence.
        hlir: The captured program.
        egraph: Its e-graph.
        result: What the search found.
        candidate: The chosen candidate (the best of `result` when None).
        executable: What was built.
        profile: Where its time goes.
        command: How to make this report again.
    """

    title: str
    intro: str = ""
    machine: Sequence[tuple[str, str]] = ()
    stages: Sequence[Stage] = ()
    timings: Sequence[Timing] = ()
    checks: Sequence[Check] = ()
    ranking: Sequence[Neighbour] = ()
    hlir: Hlir | None = None
    egraph: EGraph | None = None
    result: Result | None = None
    candidate: Candidate | None = None
    executable: Executable | None = None
    profile: Profile | None = None
    command: str = ""


def write_report(path: str | Path, report: Report) -> Path:
    """Write a report, whole or not at all.

    Arguments:
        path: The file; an existing one is replaced.
        report: What to show.

    Returns:
        The path.

    Raises:
        LuminalError: when the file cannot be written.
    """
    path = Path(path)
    text = to_html(report)
    with whole(path, LuminalError) as file:
        file.write(text.encode())
    return path


def to_html(report: Report) -> str:
    """The report as a whole HTML document."""
    sections = [
        (title, content) for title, make in _SECTIONS if (content := make(report)) is not None
    ]
    links = [
        el("li", el("a", title, href=f"#{_anchor(title)}")) for title, _ in sections
    ]  # fmt: skip
    return page(
        f"{report.title} · Luminal Lab",
        Html(f"<style>{_CSS}</style>"),
        el("header", el("h1", report.title),
           el("p", report.intro, class_="lead") if report.intro else None,
           facts([*_headline(report), *report.machine]),
           el("nav", el("ul", links), aria_label="sections")),
        el("main", [
            el("section", el("h2", title), *content, id=_anchor(title))
            for title, content in sections
        ]),
        el("footer", el("p", "Made by ", el("code", report.command), class_="muted"))
        if report.command
        else None,
    )  # fmt: skip


_CSS = """
.ll .lead{font-size:15px;margin-bottom:10px}
.ll nav ul{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;padding:8px 0;
 margin:8px 0 0;border-top:1px solid var(--line);border-bottom:1px solid var(--line)}
.ll a{color:var(--accent)}.ll a:focus-visible{outline:2px solid var(--accent)}
.ll footer{margin-top:32px;border-top:1px solid var(--line);padding-top:8px}
@media print{.ll .scroll,.ll .scroll.tall,.ll pre{max-height:none;overflow:visible}}
"""


def _anchor(title: str) -> str:
    return "-".join(title.lower().split())


# ------------------------------------------------------------------------------------- times


def _headline(report: Report) -> list[tuple[str | None, str]]:
    """The figures that one looks for first."""
    out: list[tuple[str | None, str]] = []
    for workload in dict.fromkeys(t.workload for t in report.timings):
        found = _speedup(report.timings, workload)
        if found is not None:
            out.append((f"{found[0]:.2f}×", f"as fast as {found[1]}, {workload}"))
    if report.checks:
        good = sum(c.ok for c in report.checks)
        out.append((f"{good} of {len(report.checks)}", "checks passed"))
    return out


def _speedup(timings: Sequence[Timing], workload: str) -> tuple[float, str] | None:
    """How many times as fast as the best other contender we are, and who that is."""
    ours = [median(t.seconds) for t in timings if t.workload == workload and t.ours]
    others = [
        (median(t.seconds), t.contender)
        for t in timings
        if t.workload == workload and not t.ours
    ]
    if not ours or not others:
        return None
    best, name = min(others)
    return best / min(ours), name


def _timing_section(report: Report) -> list[Html] | None:
    if not report.timings:
        return None
    slowest = {
        w: max(median(t.seconds) for t in report.timings if t.workload == w)
        for w in dict.fromkeys(t.workload for t in report.timings)
    }
    rows = []
    for t in report.timings:
        middle = median(t.seconds)
        ours = [
            median(o.seconds) for o in report.timings if o.workload == t.workload and o.ours
        ]
        low, high = _quartiles(t.seconds)
        rows.append(
            [
                t.workload,
                el("b", t.contender) if t.ours else t.contender,
                el("span", units.seconds(middle), meter(middle / slowest[t.workload])),
                f"{units.seconds(low)} … {units.seconds(high)}",
                f"{len(t.seconds)}",
                f"{middle / min(ours):.2f}×" if ours else None,
            ]
        )
    marks = [t.ours for t in report.timings]
    head = ["workload", "contender", ("median", "num"), ("quartiles", "num"), ("runs", "num"),
            ("time, relative to ours", "num")]  # fmt: skip
    return [
        el("p", "Contenders took turns in one process on the same inputs; a bar compares with "
           "the slowest of its workload.", class_="muted"),
        table(head, rows, label="timings", marked=lambda i: marks[i]),
    ]  # fmt: skip


def _quartiles(samples: Sequence[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


def _check_section(report: Report) -> list[Html] | None:
    if not report.checks and not report.ranking:
        return None
    out = []
    if report.checks:
        rows = [
            [
                el("span", "✓ right" if c.ok else "✗ wrong", class_="good" if c.ok else "bad"),
                c.name,
                c.found,
                c.wanted,
            ]
            for c in report.checks
        ]
        out.append(table(["verdict", "check", "found", "wanted"], rows, label="checks"))
    if report.ranking:
        same = sum(n.ours == n.reference for n in report.ranking)
        rows = [
            [n.query, n.ours, f"{n.score:.4f}",
             el("span", "same", class_="good") if n.ours == n.reference
             else el("span", f"eager: {n.reference}", class_="bad")]
            for n in report.ranking
        ]  # fmt: skip
        head = ["sentence", "nearest", ("similarity", "num"), "eager PyTorch finds"]
        title = (
            f"Nearest sentences: {same} of {len(report.ranking)} as eager PyTorch ranks them"
        )
        out.append(fold(title, table(head, rows, label="nearest sentences")))
    return out


def _stage_section(report: Report) -> list[Html] | None:
    if not report.stages:
        return None
    total = sum(s.seconds for s in report.stages)
    rows = [
        [
            el("b", s.name),
            s.came_in,
            s.came_out,
            el("span", units.seconds(s.seconds), meter(s.seconds / total if total else 0.0)),
        ]
        for s in report.stages
    ]
    rows.append([el("b", "all"), "", "", el("b", units.seconds(total))])
    head = ["stage", "what came in", "what came out", ("time", "num")]
    start, items = 0.0, []
    for s in report.stages:
        items.append(chart.Span(s.name, start, s.seconds, s.name))
        start += s.seconds
    line = chart.spans("Stages over time", items, units.seconds)
    return [table(head, rows, label="stages"), scroll(line, label="stages over time")]


# ------------------------------------------------------------------------------- stage objects


def _chosen(report: Report) -> Candidate | None:
    return report.candidate or (report.result.best if report.result else None)


def _program_section(report: Report) -> list[Html] | None:
    return None if report.hlir is None else hlir_view.body(report.hlir)


def _egraph_section(report: Report) -> list[Html] | None:
    return None if report.egraph is None else egraph_view.body(report.egraph)


def _search_section(report: Report) -> list[Html] | None:
    if report.result is None:
        return None
    return result.body(report.result, with_best=False)


def _candidate_section(report: Report) -> list[Html] | None:
    chosen = _chosen(report)
    return None if chosen is None else candidate_view.body(chosen)


def _derivation_section(report: Report) -> list[Html] | None:
    chosen = _chosen(report)
    if report.egraph is None or chosen is None:
        return None
    out = []
    for k in _interesting(chosen)[:_DERIVED]:
        try:
            found = derive(report.egraph, chosen, k)
        except LuminalError:
            continue  # a kernel that was edited by hand has no derivation
        title = (
            f"k{k} {candidate_view.describe(chosen.kernels[k])}: "
            f"{units.plural(len(found.written), 'op')} became one kernel in "
            f"{units.plural(len(found.steps), 'rewrite')}"
        )
        out.append(fold(title, *derivation.body(report.egraph, found), open_=not out))
    if not out:
        return None
    note = "Each line equals the one before it; the rule that says so stands beside it."
    return [el("p", note, class_="muted"), *out]


def _interesting(candidate: Candidate) -> list[int]:
    """Derived kernels by what there is to tell: one-pass forms first, then the most rules."""

    def key(k: int) -> tuple[bool, int]:
        kernel = candidate.kernels[k]
        values = postorder(kernel.values())  # type: ignore[union-attr]
        return not any(v.op == "online" for v in values), -len(kernel.rules)

    derived = [k for k, x in enumerate(candidate.kernels) if isinstance(x, Kernel)]
    return sorted(derived, key=key)


def _kernel_section(report: Report) -> list[Html] | None:
    chosen = _chosen(report)
    if chosen is None:
        return None
    return kernels.all_sources(chosen, opened=_interesting(chosen)[:1])


def _build_section(report: Report) -> list[Html] | None:
    if report.executable is None:
        return None
    return [card("Executable", *executable.body(report.executable))]


def _profile_section(report: Report) -> list[Html] | None:
    return None if report.profile is None else profile.body(report.profile)


_SECTIONS = (
    ("Times", _timing_section),
    ("Checks", _check_section),
    ("Stages", _stage_section),
    ("Program", _program_section),
    ("E-graph", _egraph_section),
    ("Search", _search_section),
    ("Candidate", _candidate_section),
    ("Derivation", _derivation_section),
    ("Kernels", _kernel_section),
    ("Build", _build_section),
    ("Profile", _profile_section),
)
