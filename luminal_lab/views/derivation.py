"""The derivation of a kernel, written out: the program's ops, fusion, then rule by rule."""

from __future__ import annotations

from luminal_lab.egraph.egraph import EGraph
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.errors import LuminalError
from luminal_lab.search.candidate import Candidate
from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import Figure, Html, card, el, fold, fragment
from luminal_lab.views.steps import FUSION, Derivation, Step, derive
from luminal_lab.views.terms import Terms, terms


def derivation(egraph: EGraph, candidate: Candidate, kernel: int = 0) -> Figure:
    """How one kernel of a candidate follows from the captured program.

    Arguments:
        egraph: The e-graph that the candidate was found in.
        candidate: The candidate.
        kernel: An index into `candidate.kernels`.

    Raises:
        LuminalError: when the kernel is a library call, or not of this e-graph.
    """
    found = derive(egraph, candidate, kernel)
    title = (
        f"Kernel k{kernel}: {units.plural(len(found.written), 'op')}, "
        f"{units.plural(len(found.steps), 'rewrite')}"
    )
    return Figure(fragment(card(title, *body(egraph, found))), to_text(egraph, found))


def body(egraph: EGraph, found: Derivation) -> list[Html]:
    """The content of `derivation`."""
    lines = Lines(found)
    used = _axes(found)
    sizes = ", ".join(f"{a}<{n}" for a, n in sorted(found.extents.items()) if a in used)
    items = [
        _item(
            "As the program says it: one kernel per op, each result in memory",
            None,
            None,
            _block([f"{name} = {lines.plain(value)}" for name, value in found.written]),
        ),
        _item(
            "Fusion: reading a kernel's result is computing it in place",
            _rule(egraph, FUSION),
            None,
            _block(lines.whole(found.fused)),
        ),
    ]
    for n, step in enumerate(found.steps, 1):
        before, after = lines.change(step)
        items.append(
            _item(
                f"{n}. {_heading(egraph, step)}",
                _rule(egraph, step.rule),
                step,
                el("div", before, "\n", el("b", "= "), el("mark", after), class_="term"),
                fold("The whole kernel now", _block(lines.whole(step.whole))),
            )
        )
    if found.steps:
        items.append(_item("The kernel", None, None, _block(lines.whole(found.final))))
    return [
        el("p", f"Axes {sizes}. ", legend(), class_="muted"),
        el("ol", items, class_="steps"),
    ]


def _axes(found: Derivation) -> set[str]:
    """The axes that occur in a derivation."""
    out: set[str] = set()
    for v in postorder([found.fused, found.final, *(v for _, v in found.written)]):
        out |= v.free
    return out


def legend() -> str:
    """How to read the terms."""
    return (
        "Σ_j and max_j reduce over j. online_j(x, w) is Σ_j exp2(x − max_j x)·w, computed in "
        "one pass that carries the running maximum."
    )


def to_text(egraph: EGraph, found: Derivation) -> str:
    """The derivation as plain text."""
    lines = Lines(found)
    out = ["as the program says it:"]
    out += [f"    {name} = {lines.plain(value)}" for name, value in found.written]
    out += ["fusion:", *_indented(lines.whole(found.fused))]
    for n, step in enumerate(found.steps, 1):
        before, after = lines.change(step)
        out += [
            f"{n}. {_heading(egraph, step)}:",
            *_indented([before]),
            *_indented([f"= {after}"]),
        ]
    if found.steps:
        out += ["the kernel:", *_indented(lines.whole(found.final))]
    return "\n".join(out)


def _indented(blocks: list[str]) -> list[str]:
    return [f"    {line}" for block in blocks for line in block.splitlines()]


class Lines:
    """Writes terms with names that stay the same from step to step."""

    def __init__(self, found: Derivation):
        self.output = found.output
        self.names: dict[Value, str] = {}
        self.meaning: dict[str, str] = {}

    def plain(self, value: Value) -> str:
        """One op, without names."""
        return terms([value]).results[0]

    def whole(self, value: Value) -> list[str]:
        """The kernel's value with the meaning of every name in it."""
        found = self._named(value)
        text = f"{self.output} = {found.results[0]}"
        return [text, *self._where(found, text)]

    def change(self, step: Step) -> tuple[str, str]:
        """The changed part before and after, with the meaning of the new names."""
        before, after = self._named(step.before), self._named(step.after)
        new = [f"  where {n} = {t}" for f in (before, after) for n, t in f.lets]
        return before.results[0], "\n".join([after.results[0], *dict.fromkeys(new)])

    def _named(self, value: Value) -> Terms:
        found = terms([value], {v: n for v, n in self.names.items() if v != value})
        self.names.update({v: n for v, n in found.names.items() if v not in self.names})
        self.meaning.update(dict(found.lets))
        return found

    def _where(self, found: Terms, text: str) -> list[str]:
        """The names that occur in a text, each before those that it uses."""
        out: list[str] = []
        todo = [text]
        while todo:
            line = todo.pop(0)
            for name in self.meaning:
                entry = f"  where {name} = {self.meaning[name]}"
                if name in line.partition(" = ")[2] and entry not in out:
                    out.append(entry)
                    todo.append(entry)
        return out


def _block(lines: list[str]) -> Html:
    return el("div", "\n".join(lines), class_="term")


def _rule(egraph: EGraph, name: str) -> RuleInfo | None:
    try:
        return egraph.rule(name)
    except LuminalError:
        return None


def _heading(egraph: EGraph, step: Step) -> str:
    rule = _rule(egraph, step.rule)
    if not step.rule:
        return "the remaining choices of this candidate"
    return f"{step.rule}: {rule.law}" if rule else step.rule


def _item(heading: str, rule: RuleInfo | None, step: Step | None, *content: object) -> Html:
    details = None
    if rule is not None:
        when = f", iteration {step.iteration}" if step else ""
        details = fold(
            f"{rule.file}:{rule.line} · {rule.tolerance}{when}",
            code(rule.text, "egg", rule.name),
        )
    return el("li", el("h4", heading), *content, details)
