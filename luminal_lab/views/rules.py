"""Users' rules: what each states, and what the test of it said."""

from __future__ import annotations

from luminal_lab.egraph.ruleset import RuleSet
from luminal_lab.egraph.soundness import RuleCheck
from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import Html, card, el, fold, fragment, table

_MARKS = {"true": ("✓ true", "good"), "FALSE": ("✗ false", "bad")}


def to_html(rules: RuleSet) -> Html:
    """A set of rules, with the verdict on each."""
    title = f"Rules {rules.name}: {units.plural(len(rules.checks), 'rule')}"
    return fragment(card(title, *body(rules)))


def body(rules: RuleSet) -> list[Html]:
    """The content of `to_html`."""
    rows = [
        [
            el("code", c.rule.name),
            c.rule.law,
            c.rule.tolerance,
            f"{c.tried:,}",
            f"{c.fired:,}",
            _verdict(c),
        ]
        for c in rules.checks
    ]
    head = ["rule", "law", "class", ("instances", "num"), ("matches", "num"), "verdict"]
    out = [table(head, rows, label="rules", all_at=".table()")]
    out += [h for c in rules.checks for h in _failure(c)]
    out.append(fold("The text", code(rules.text.strip("\n"), "egg", rules.name)))
    return out


def check_html(check: RuleCheck) -> Html:
    """The verdict on one rule."""
    title = f"Rule {check.rule.name} ({check.rule.tolerance}): {check.rule.law}"
    return fragment(
        card(
            title,
            el("p", _verdict(check), f" {_said(check)}"),
            *_failure(check),
            fold("The text", code(check.rule.text, "egg", check.rule.name)),
        )
    )


def _verdict(check: RuleCheck) -> Html:
    mark, css = _MARKS.get(check.verdict, (f"– {check.verdict}", "warn"))
    return el("span", mark, class_=css)


def _said(check: RuleCheck) -> str:
    if check.failure is not None:
        return f"{check.fired:,} matches in {check.tried:,} instances"
    return check.said.partition(": ")[2] or check.said


def _failure(check: RuleCheck) -> list[Html]:
    """The smallest instance on which a rule is false, or why it was not tested."""
    failure = check.failure
    if failure is None:
        return [] if check.ok else [el("p", f"{check.rule.name}: {check.said}", class_="warn")]
    if failure.error is None:
        return [el("p", f"{check.rule.name}: {failure}", class_="bad")]
    return [
        el("p", el("b", check.rule.name), " is false; the smallest instance that shows it ",
           f"({failure.inputs} inputs, relative difference {failure.error:.3g}):"),
        el("div", failure.left, "\n", el("b", "is not "), failure.right, class_="term"),
    ]  # fmt: skip
