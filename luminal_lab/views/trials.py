"""Kernels that were tried by hand: other schedules, and edited source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.views import units
from luminal_lab.views.html import Html, el, table

_LINES = 12  # of a compiler's message that are shown at once


def schedule_line(data: Any) -> str:
    """The plain data of a schedule in a line.

    >>> schedule_line({"grid": [["a", 1]], "serial": [], "tiles": [["a", 4]], "unroll": 2,
    ...                "keep": "output"})
    'grid a:1, tiles a×4, unroll 2, keep output'
    """
    parts = []
    for key in ("grid", "serial"):
        if data[key]:
            parts.append(f"{key} " + " ".join(f"{a}:{n}" for a, n in data[key]))
    if data["tiles"]:
        parts.append("tiles " + " ".join(f"{a}×{b}" for a, b in data["tiles"]))
    parts.append(f"unroll {data['unroll']}, keep {data['keep']}")
    return ", ".join(parts)


def trial_table(trials: Sequence[tuple[str, Any]]) -> Html:
    """What was tried, the last first: verdict, times, error; the fastest right one is marked.

    Trials are made one after the other, and other programs can only slow a run down: they are
    compared by their least times.

    Arguments:
        trials: Name and `Trial` of each, in order.
    """
    shown = list(reversed(trials))
    least = [min(t.measurement.seconds) if t.measurement.seconds else None for _, t in shown]
    best = min((s for s in least if s is not None), default=None)
    rows = []
    for (name, t), quick in zip(shown, least):
        m = t.measurement
        rows.append([
            el("span", name, style="white-space:nowrap"), verdict(t),
            units.seconds(quick) if quick else None,
            f"{units.seconds(m.median)} ± {units.seconds(m.iqr)}" if m.median else None,
            f"{quick / best:.2f}×" if quick and best else None,
            f"{m.max_error:.2g}" if m.ok else None,
        ])  # fmt: skip
    head = ["tried", "verdict", ("least time", "num"), ("median", "num"),
            ("to the fastest", "num"), ("largest error", "num")]  # fmt: skip
    marks = [best is not None and quick == best for quick in least]
    return table(head, rows, label="kernel trials", marked=marks.__getitem__)


def verdict(trial: Any) -> Html:
    """Whether a trial was right, in a word or two."""
    m = trial.measurement
    if m.ok:
        return el("span", "✓ right", class_="good")
    return el("span", f"✗ {m.reason}", class_="bad", style="white-space:nowrap")


def last_trial(name: str, trial: Any) -> list[Html]:
    """What became of one trial, in a sentence, with the message of a failure."""
    m = trial.measurement
    if m.ok:
        said = f": {units.seconds(min(m.seconds))} at best, largest error {m.max_error:.2g}"
        return [el("p", f"{name}: ", verdict(trial), said if m.seconds else "")]
    lines = m.message.strip("\n").splitlines()
    more = f"\n… and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    out = [el("p", f"{name}: ", verdict(trial))]
    if lines:
        text = "\n".join(lines[:_LINES]) + more
        out.append(el("pre", text, tabindex="0", role="region", aria_label="message"))
    return out
