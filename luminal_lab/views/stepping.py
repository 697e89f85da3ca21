"""A saturation step by step: what each iteration made, and how the e-graph grew."""

from __future__ import annotations

from collections import Counter

from luminal_lab.egraph.stepping import Step, Stepping
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import units
from luminal_lab.views.html import Html, card, el, facts, fold, fragment, meter, scroll, table

_SHOWN = 12  # e-nodes that a text lists


def headline(step: Step) -> str:
    """One line: which iteration, how many e-nodes came in."""
    where = f"region {step.region}, " if len(step.egraph.parts) > 1 else ""
    if step.number == 0:
        return f"{where}iteration 0, the program as captured: {step.iteration.rows:,} e-nodes"
    made = units.plural(len(step.added), "new e-node")
    joined = units.plural(sum(len(m.before) - 1 for m in step.merged), "class", "classes")
    end = f"; {step.stopped}" if step.stopped else ""
    return f"{where}iteration {step.number}: {made}, {joined} merged away{end}"


def to_text(step: Step) -> str:
    """What an iteration did, as plain text."""
    out = [headline(step)]
    if step.number:
        some = [
            f"  {egraph_view.name(step.part, a.eclass):>5} = "
            f"{egraph_view.form(step.part, a.enode)}   ; {a.enode.rule}"
            for a in step.added[:_SHOWN]
        ]
        out += some
        if len(step.added) > _SHOWN:
            out.append(f"  … {len(step.added) - _SHOWN} more: .table()")
        out += [f"  {' = '.join(m.before)} (now {m.after})" for m in step.merged[:_SHOWN]]
    return "\n".join(out)


def to_html(step: Step) -> Html:
    """What an iteration did, as HTML."""
    return fragment(card(headline(step), *body(step)))


def body(step: Step) -> list[Html]:
    """The content of `to_html`."""
    record = step.iteration
    out = [
        facts(
            [
                (f"{record.rows:,}", "e-nodes"),
                (f"{record.classes:,}", "e-classes"),
                (f"{sum(record.matches.values()):,}", "matches"),
                (f"{len(step.added):,}", "new e-nodes"),
                (f"{len(step.merged):,}", "merges"),
            ]
        )
    ]
    if step.number == 0:
        return out
    made = Counter(a.enode.rule for a in step.added)
    most = max(made.values(), default=1)
    rules = [
        [
            el("code", name),
            f"{count:,}",
            el("span", f"{made.get(name, 0):,}", meter(made.get(name, 0) / most)),
        ]
        for name, count in sorted(record.matches.items(), key=lambda p: (-made.get(p[0], 0), p))
    ]
    head = ["rule", ("matches", "num"), ("new e-nodes", "num")]
    rules = rules or [["no rule matched", None, None]]
    out.append(table(head, rules, label="rules of this iteration"))
    rows = [
        [
            egraph_view.name(step.part, a.eclass),
            egraph_view.form(step.part, a.enode),
            a.enode.rule,
        ]
        for a in step.added
    ]
    if rows:
        columns = [("class", "code"), ("new form", "code"), ("made by", "code")]
        shown = table(columns, rows, label="new e-nodes")
        out.append(fold(units.plural(len(rows), "new e-node"), shown, open_=len(rows) <= 40))
    if step.merged:
        lines = [f"{' = '.join(m.before)} (now {m.after})" for m in step.merged]
        out.append(
            fold(
                units.plural(len(lines), "merge"),
                el("div", "\n".join(lines), class_="term"),
            )
        )
    return out


def all_text(steps: Stepping) -> str:
    """The steps so far, one line each."""
    if not steps.done:
        return "Stepping: no step was taken yet; next(steps) runs one"
    return "\n".join(headline(s) for s in steps.done)


def all_html(steps: Stepping) -> Html:
    """The steps so far: the growth curve, and each step behind a line."""
    if not steps.done:
        return fragment(card("Stepping", el("p", "No step was taken yet.")))
    growth = scroll(egraph_view.growth_svg(steps.egraph), label="growth of the e-graph")
    return fragment(
        card(
            f"Stepping: {units.plural(len(steps.done), 'step')}",
            growth,
            *(fold(headline(s), *body(s)) for s in steps.done),
        )
    )
