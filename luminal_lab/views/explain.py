"""An explanation, written out: what changes in each link, and by which rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from luminal_lab.egraph.explain import COPY, Explanation, Given, Link
from luminal_lab.egraph.terms import Term, subterms, value_of
from luminal_lab.egraph.values import Value
from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import Html, card, el, facts, fold, fragment
from luminal_lab.views.terms import terms

SMALL = ("fusion", COPY)  # what is shown in one line when several follow each other
SWAPPED = "the operands swap, and are written alike"
_WORD = "_%'[],."  # what belongs to a name, beside letters and digits
_SIDE = 4  # rows of names that a text shows
_LONG = 400  # characters of a term that a text shows


def mathematics(found: Explanation, term: Term) -> str:
    """A term as one line of mathematics."""
    return _Writer(found).line(term)


class _Writer:
    """Writes the terms of an explanation; what occurs again keeps its name."""

    def __init__(self, found: Explanation):
        self.found = found
        self.names: dict[Value, str] = {}

    def _value(self, term: Term) -> Value:
        return value_of(term, lambda t: self.found.names.get(t, "t"), self.found.extents)

    def line(self, term: Term) -> str:
        """One line, nothing named."""
        if term.sort == "V":
            return terms([self._value(term)]).results[0]
        return self._tensor(term)[0]

    def lines(self, term: Term) -> list[str]:
        """A term, and a line for each part of it that occurs several times."""
        if term.sort == "V":
            found = terms([self._value(term)])
            return [found.results[0], *(f"  where {n} = {t}" for n, t in found.lets)]
        return self._tensor(term)

    def _tensor(self, term: Term) -> list[str]:
        name = self.found.names.get(term, "t")
        if term.op == "Input":
            return [name]
        if term.op == "Kernel":
            found = terms([self._value(term.args[0])])
            where = f"[{term.args[1].replace(', ', ',')}]" if term.args[1] else ""
            lets = [f"  where {n} = {t}" for n, t in found.lets]
            return [f"{name.rstrip(chr(39))}{where} = {found.results[0]}", *lets]
        below = [
            self.found.names.get(t, "t") if t.sort == "T" else self.line(t)
            for t in term.children()
        ]
        return [f"{name.rstrip(chr(39))} = {term.op.lower()}({', '.join(below)})"]

    def program(self, root: Term) -> list[str]:
        """A term with the kernels that it reads, one line each, those that are read first."""
        out = []
        for t in subterms([root]):
            if t.sort == "T" and t.op != "Input" and t != root:
                name = self.found.names.get(t, "t")
                lines = self._tensor(t)
                lines[0] = name + lines[0][len(name.rstrip("'")) :]
                out += lines
        return [*out, *self.lines(root)]


def changed(old: str, new: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Two lines, each as what is the same before, what differs, and what is the same after."""
    most = min(len(old), len(new))
    head = next((k for k in range(most) if old[k] != new[k]), most)
    while head and (old[head - 1].isalnum() or old[head - 1] in _WORD):
        head -= 1
    tail = next((k for k in range(most - head) if old[-1 - k] != new[-1 - k]), most - head)
    while tail and (old[len(old) - tail].isalnum() or old[len(old) - tail] in _WORD):
        tail -= 1
    return _cut(old, head, tail), _cut(new, head, tail)


def _cut(line: str, head: int, tail: int) -> tuple[str, str, str]:
    end = len(line) - tail
    return line[:head], line[head:end], line[end:]


def grouped(links: Sequence[Link]) -> Iterator[tuple[str, list[Link]]]:
    """Links in order, with runs of `SMALL` ones together."""
    for key, run in groupby(links, lambda x: x.rule if x.rule in SMALL else id(x)):
        some = list(run)
        if key in SMALL:
            yield some[0].rule, some
        else:
            for one in some:
                yield one.rule, [one]


# --------------------------------------------------------------------------------------- text


def to_text(found: Explanation) -> str:
    """The chain as plain text."""
    write = _Writer(found)
    out = [f"{found.title}: {_summary(found)}"]
    out += [f"    {_short(x)}" for x in write.program(found.left)]
    number = 0
    for rule, run in grouped(found.links):
        number += len(run)
        if len(run) > 1:
            first = number - len(run) + 1
            out.append(f"{first}–{number}. {rule}, {len(run)} times: {run[0].law}")
            continue
        link = run[0]
        out.append(f"{number}. {rule}{_direction(link)}: {link.law}{_at(link)}")
        before, after = _lines(write, link.before), _lines(write, link.after)
        if before == after:
            out.append(f"      {_short(before[0])}   ({SWAPPED})")
            continue
        out += [f"      {_short(x)}" for x in before]
        out += [f"    = {_short(after[0])}", *(f"      {_short(x)}" for x in after[1:])]
    if found.links:
        out.append("hence")
        out += [f"    {_short(x)}" for x in write.program(found.right)]
    return "\n".join(out)


def _lines(write: _Writer, term: Term) -> list[str]:
    lines = write.lines(term)
    if len(lines) > _SIDE + 1:
        lines = [*lines[: _SIDE + 1], f"  … {len(lines) - _SIDE - 1} more names"]
    return lines


def _short(line: str) -> str:
    return line if len(line) <= _LONG else f"{line[: _LONG - 2]} …"


def _summary(found: Explanation) -> str:
    if not found.links:
        return "they are the same term"
    rules = len({x.rule for x in found.links})
    return (
        f"{units.plural(len(found.links), 'link')} by {units.plural(rules, 'rule')},"
        f" {found.tolerance}"
    )


def _fact(write: _Writer, fact: Given) -> str:
    args = [write.line(a) if isinstance(a, Term) else _literal(a) for a in fact.args]
    return f"{fact.relation}({', '.join(args)})"


def _literal(a: object) -> str:
    return f"{{{', '.join(sorted(map(str, a)))}}}" if isinstance(a, frozenset) else str(a)


def _direction(link: Link) -> str:
    return "" if link.forward else " (from right to left)"


def _at(link: Link) -> str:
    return f"  [{link.at}]" if link.at else ""


# --------------------------------------------------------------------------------------- html


def to_html(found: Explanation) -> Html:
    """The chain as HTML: each link with what changed, its law and the text of its rule."""
    return fragment(card(f"Why {found.title}", *body(found)))


def body(found: Explanation) -> list[Html]:
    """The content of `to_html`."""
    write = _Writer(found)
    used = {a for t in subterms([found.left, found.right]) for a in _axes(t)}
    sizes = ", ".join(f"{a}<{n}" for a, n in sorted(found.extents.items()) if a in used)
    out = [
        facts(
            [
                units.counted(len(found.links), "link"),
                units.counted(len({x.rule for x in found.links}), "rule"),
                (found.tolerance, "in all"),
            ]
        ),
        el("p", f"Axes {sizes}. Σ_j and max_j reduce over j; online_j(x, w) is "
           "Σ_j exp2(x − max_j x)·w in one pass.", class_="muted"),
    ]  # fmt: skip
    items = [_item("From", _block(write.program(found.left)))]
    number = 0
    for rule, run in grouped(found.links):
        number += len(run)
        if len(run) == 1:
            items.append(_link(found, write, run[0], number))
            continue
        first = number - len(run) + 1
        inner = [_link(found, write, x, first + k) for k, x in enumerate(run)]
        items.append(
            el(
                "li",
                el("h4", f"{first}–{number}. {rule}, {len(run)} times: {run[0].law}"),
                fold("One by one", el("ol", inner, class_="steps")),
                fold("The whole term after these", _block(write.program(run[-1].whole))),
            )
        )
    items.append(_item("To", _block(write.program(found.right))))
    out.append(el("ol", items, class_="steps"))
    return out


def _axes(term: Term) -> set[str]:
    texts = [a for a in term.args if isinstance(a, str)]
    return {w for t in texts for w in t.replace(",", " ").replace("+", " ").replace("*", " ")
            .split()}  # fmt: skip


def _item(heading: str, *content: object) -> Html:
    return el("li", el("h4", heading), *content)


def _block(lines: Sequence[str]) -> Html:
    return el("div", "\n".join(lines), class_="term")


def _link(found: Explanation, write: _Writer, link: Link, number: int) -> Html:
    before, after = write.lines(link.before), write.lines(link.after)
    (a, x, b), (c, y, d) = changed(before[0], after[0])
    if before == after:
        before, after = [f"{before[0]}   ({SWAPPED})"], []
    shown = el("div", before[0], class_="term") if not after else el(
        "div",
        a, el("del", x) if x else "", b,
        *(f"\n{line}" for line in before[1:]),
        "\n", el("b", "= "), c, el("mark", y) if y else "", d,
        *(f"\n{line}" for line in after[1:] if line not in before),
        class_="term",
    )  # fmt: skip
    about = f"{link.at} · {link.tolerance}, iteration {link.iteration}"
    rule = found.rules.get(link.rule)
    return el(
        "li",
        el("h4", f"{number}. {link.rule}{_direction(link)}: {link.law}"),
        shown,
        [
            el("p", "given ", el("code", _fact(write, f)), f", by {f.rule}", class_="muted")
            for f in link.facts
        ],
        fold(about, code(rule, "egg", link.rule)) if rule else None,
        fold("The whole term now", _block(write.program(link.whole))),
    )
