"""Why a rule did not fire: its premises, one by one, at the nearest term."""

from __future__ import annotations

from luminal_lab.egraph.why_not import WhyNot
from luminal_lab.views.highlight import code
from luminal_lab.views.html import Html, card, el, fold, fragment, table

MARKS = {
    "holds": "✓ holds",
    "fails": "✗ fails",
    "also fails": "✗ fails too",
    "open": "– not reached",
}
_CLASS = {"holds": "good", "fails": "bad", "also fails": "bad", "open": "muted"}


def headline(found: WhyNot) -> str:
    """One line: the rule, the node, the verdict."""
    verdict = {
        "fails": "does not fire",
        "fired": "fired",
        "known": "fires",
        "held back": "matches, but was not applied",
    }[found.status]
    return f"Rule {found.rule.name} {verdict} at {found.node}"


def to_text(found: WhyNot, indent: str = "") -> str:
    """The answer as plain text."""
    rule = found.rule
    out = [f"{headline(found)}", f"  {found.said}", f"  {rule.law}  [{rule.file}:{rule.line}]"]
    for p in found.premises:
        said = f"  ; {p.said}" if p.said else ""
        out.append(f"    {MARKS[p.state]:13} {p.text}{said}")
    if not found.fired and found.nearest:
        out.append(f"  nearest: {found.nearest}")
    out += [f"    {name} = {value}" for name, value in found.bindings]
    if found.because is not None:
        out += ["  that fact is derived by a rule:"]
        out += ["  " + line for line in to_text(found.because).splitlines()]
    return "\n".join(indent + line for line in out)


def to_html(found: WhyNot) -> Html:
    """The answer as HTML."""
    return fragment(card(headline(found), *body(found)))


def body(found: WhyNot) -> list[Html]:
    """The content of `to_html`."""
    rule = found.rule
    rows = [
        [
            el("span", MARKS[p.state], class_=_CLASS[p.state]),
            el("code", p.text),
            p.said,
        ]
        for p in found.premises
    ]
    out = [
        el("p", el("b", found.said)),
        el("p", f"The law: {rule.law}.", class_="muted"),
        table(["", ("premise", "code"), "at the nearest term" if not found.fired else "here"],
              rows, label="premises", all_at=".table()"),
    ]  # fmt: skip
    if found.bindings:
        lines = "\n".join(f"{name} = {value}" for name, value in found.bindings)
        near = [] if found.fired else [el("p", "The nearest term: ", el("code", found.nearest))]
        out += [*near, el("div", lines, class_="term")]
    if found.because is not None:
        inner = [el("h4", headline(found.because)), *body(found.because)]
        out.append(fold("That fact is derived by a rule", *inner, open_=True))
    out.append(fold(f"{rule.file}:{rule.line}", code(rule.text, "egg", rule.name)))
    return out
