"""What became of all that a search looked at; each reason opens to its cases."""

from __future__ import annotations

from luminal_lab.search.rejections import MEANING, Case, Rejections
from luminal_lab.views import units
from luminal_lab.views.html import Html, card, el, fold, fragment, meter, table

_SHOWN = 30  # cases of one reason


def to_html(found: Rejections) -> Html:
    """The answer as HTML."""
    return fragment(card(f"{found.total:,} genomes considered", *body(found)))


def body(found: Rejections) -> list[Html]:
    """The content of `to_html`."""
    rows = []
    for reason, count in found.counts:
        plain = reason.partition(" (rule")[0]
        share = count / found.total if found.total else 0.0
        bar = el("span", f"{share:.0%}", meter(share))
        rows.append([reason, MEANING.get(plain, ""), f"{count:,}", bar])
    rows.append([el("b", "total"), "", el("b", f"{found.total:,}"), ""])
    head = ["outcome", "which means", ("genomes", "num"), ("share", "num")]
    out = [table(head, rows, label="outcomes", all_at=".table()")]
    for reason in dict.fromkeys(c.reason for c in found.known):
        cases = found.cases(reason)
        more = len(cases) - _SHOWN
        items = [_case(c) for c in cases[:_SHOWN]]
        if more > 0:
            items.append(el("p", f"{more} more: .cases({reason!r})", class_="muted"))
        out.append(fold(f"{reason}: {units.plural(len(cases), 'case')}", *items))
    return out


def _case(case: Case) -> Html:
    return el(
        "div",
        el("p", el("b", case.what), f", by rule {case.rule}" if case.rule else ""),
        el("div", case.message, class_="term") if case.message else None,
        el("div", f"smallest failing instance: {case.instance}", class_="term")
        if case.instance
        else None,
        fold("The kernel", el("pre", case.kernel)) if case.kernel else None,
    )
