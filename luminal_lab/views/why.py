"""Why a candidate: its kernels, and what each of its choices saves."""

from __future__ import annotations

from luminal_lab.search.ladder import FUSED, Rung
from luminal_lab.search.why import Why
from luminal_lab.views import units
from luminal_lab.views.html import Html, card, el, facts, fragment, meter, table


def to_html(found: Why) -> Html:
    """The answer as HTML."""
    return fragment(card(f"Why candidate {found.candidate.name}", *body(found)))


def body(found: Why) -> list[Html]:
    """The content of `to_html`."""
    out = _ladder(found)
    rows = [
        [
            f"k{k['kernel']}",
            el("div", k["computes"].replace("->", "→"), style="min-width:20ch"),
            f"{k['calls']:,}",
            units.seconds(k["predicted_ms"] / 1e3),
            _known(k["measured_ms"]),
            el("span", f"{k['share']:.0%}", meter(k["share"])),
            k["bound"],
            "yes" if k["in_runner_up"] else "no",
        ]
        for k in found.kernels
    ]
    head = [("", "code"), "kernel", ("calls", "num"), ("predicted", "num"),
            ("measured", "num"), ("share", "num"), "bound by", "in the runner-up"]  # fmt: skip
    out.append(el("h4", "Where its time goes"))
    out.append(table(head, rows, label="kernels", all_at=".table()"))
    if found.runner_up:
        saved = units.seconds(abs(found.saved)) if found.saved is not None else None
        word = "less" if (found.saved or 0.0) < 0 else "more"
        out.append(
            facts(
                [
                    (found.runner_up, "is the best other candidate"),
                    (saved, f"{word} there, predicted"),
                ]
            )
        )
    if found.choices:
        rows = [
            [
                c.what,
                el("code", c.mine),
                el("code", c.theirs),
                _signed(c.predicted) if c.predicted is not None else el("span", c.note,
                                                                        class_="muted"),
                _signed(c.measured) if c.measured is not None else None,
            ]
            for c in found.choices
        ]  # fmt: skip
        head = ["choice", "here", "in the runner-up", ("saves alone, predicted", "num"),
                ("measured", "num")]  # fmt: skip
        out.append(el("h4", "What each choice saves, changed alone"))
        out.append(table(head, rows, label="choices", all_at=".choice_table()"))
    if found.note:
        out.append(el("p", found.note, class_="muted"))
    return out


def _ladder(found: Why) -> list[Html]:
    """The candidate beside what it is better than, and that in a sentence."""
    if not found.ladder:
        return []
    timed = found.ladder[-1].measured
    rows = [
        [r.what, f"{r.calls:,}", units.size(r.traffic), units.seconds(r.seconds),
         f"{r.seconds / max(found.candidate.seconds, 1e-30):.2f}×",
         *([_measured(r, timed)] if timed else [])]
        for r in found.ladder
    ]  # fmt: skip
    head = ["program", ("calls", "num"), ("moved through memory", "num"),
            ("predicted", "num"), ("to this one", "num"),
            *([("measured", "num")] if timed else [])]  # fmt: skip
    last = len(rows) - 1
    out = [
        el("h4", "What it wins against"),
        table(head, rows, label="programs", marked=lambda k: k == last,
              all_at=".ladder_table()"),
    ]  # fmt: skip
    first, mine = found.ladder[0], found.ladder[-1]
    if first is not mine and mine.traffic:
        fused = next((r for r in found.ladder if r.what == FUSED), None)
        laws = "" if fused is None else (
            f" Fusion alone comes to {units.size(fused.traffic)} in "
            f"{units.plural(fused.calls, 'call')}; what is gained beyond that is the work of "
            "laws."
        )  # fmt: skip
        out.insert(1, el(
            "p",
            f"As it was captured, the program moves {units.size(first.traffic)} through "
            f"memory in {units.plural(first.calls, 'call')}; this candidate "
            f"{units.size(mine.traffic)} in {units.plural(mine.calls, 'call')}.{laws}",
        ))  # fmt: skip
    return out


def _measured(rung: Rung, mine: float) -> str | None:
    """A measured time, and how it compares with the candidate's."""
    if rung.measured is None:
        return None
    return f"{units.seconds(rung.measured)} ({rung.measured / mine:.2f}×)"


def _known(ms: float) -> str | None:
    return None if ms != ms else units.seconds(ms / 1e3)


def _signed(seconds: float) -> str:
    return ("−" if seconds < 0 else "") + units.seconds(abs(seconds))
