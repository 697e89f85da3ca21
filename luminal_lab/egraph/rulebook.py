"""Rule files → what the saturation child loads, and what people read about each rule.

A rule states its obligations in the comment lines right above it:

    ;; law: a factor that does not depend on j leaves a sum over j
    ;; class: reassociates
    (rewrite (Red "add" j (Mul a b)) … :name "sum-linear")

`;; cap: N`, above the law, makes the rule a capped one: in an iteration in which it matches
more than N times it is skipped (commutativity and associativity would otherwise explode).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from luminal_lab.egraph.language import FRESH, SIGNATURES, constructors, families, provenance
from luminal_lab.egraph.library import Declaration, declared, read_kernels
from luminal_lab.egraph.program import ON_DEMAND
from luminal_lab.egraph.sexpr import Atom, Expr, Form, List, call, forms
from luminal_lab.errors import RuleError
from luminal_lab.resources import rules_dir

Tolerance = Literal["exact", "reassociates", "approximate"]
TOLERANCES: tuple[Tolerance, ...] = ("exact", "reassociates", "approximate")
_KINDS = ("rewrite", "birewrite", "rule")
_FIELDS = ("law", "class", "cap")


@dataclass(frozen=True)
class RuleInfo:
    """What a rule states about itself.

    Arguments:
        name: Unique.
        law: The law in words.
        tolerance: How the two sides may differ: `exact`, `reassociates` (equal over the reals,
            roundings in another order), `approximate` (close, under the stated conditions).
        file, line: Where it stands.
        text: Its source.
        cap: In an iteration with more matches it is skipped; None for no cap.
    """

    name: str
    law: str
    tolerance: Tolerance
    file: str
    line: int
    text: str
    cap: int | None = None


@dataclass(frozen=True)
class Loadable:
    """A form to load: what egglog gets, and the user's form that it came from.

    Arguments:
        text: What is loaded.
        original: The form as written, padded to its position: when `text` is rejected it is
            parsed instead, so that the error has the user's line and column.
        file: Where it stands.
    """

    text: str
    original: str
    file: str


@dataclass(frozen=True)
class Rulebook:
    """The loaded rules.

    Arguments:
        rules: In order of file and line; provenance stamps count them from 1.
        forms: Everything that the child loads, in order.
        rulesets: `(name, cap)` of each ruleset that an iteration runs, in order.
        sources: The `(file name, text)`s that it was made of.
        kernels: Kernels of a user that rules may call, by name.
        needs: Of each capped ruleset, what each of its rules looks up: it has no match while
            one of these tables is empty.
    """

    rules: tuple[RuleInfo, ...]
    forms: tuple[Loadable, ...]
    rulesets: tuple[tuple[str, int | None], ...]
    sources: tuple[tuple[str, str], ...] = ()
    kernels: Mapping[str, Declaration] = field(default_factory=dict)
    needs: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    @property
    def wanted(self) -> frozenset[str]:
        """The encoder's facts on demand that its rules read."""
        texts = [rule.text for rule in self.rules]
        return frozenset(f for f in ON_DEMAND if any(f"({f} " in text for text in texts))

    def __repr__(self) -> str:
        lines = [f"Rulebook: {len(self.rules)} rules"]
        lines += [f"  {r.name:24} {r.tolerance:12} {r.law}" for r in self.rules]
        return "\n".join(lines)


def load_rules(
    extra: Any = None,
    tolerance: Tolerance = "approximate",
    target: str = "cpu",
    themes: Sequence[str] | None = None,
) -> Rulebook:
    """The built-in rules, the target's, and a user's own.

    Arguments:
        extra: Rule text, paths of `.egg` files, names of opt-in themes in `rules/optional/` or
            of rules that `%%rules` registered, `RuleSet`s; one, or several.
            Paths of `.c` files are kernels that rules may call; so are those beside an `.egg`
            file.
        tolerance: The loosest class that is admitted.
        target: `rules/targets/<target>.egg` is added when it exists.
        themes: The built-in files to use, by name without `.egg`; None for all.

    Raises:
        RuleError: unknown file or theme; a rule without name, law or class; a name used twice;
            a form that does not parse. (Loading finds whether a rule is well-typed.)
    """
    files = {p.stem: p for p in _builtin(target)}
    if missing := [t for t in themes or () if t not in files]:
        raise RuleError(
            f"there is no built-in theme {missing[0]!r}", fix=f"one of {', '.join(files)}"
        )
    sources = [
        (p.name, p.read_text(encoding="utf-8"))
        for name, p in files.items()
        if themes is None or name in themes
    ]
    kernels: Mapping[str, Declaration] = {}
    if extra is not None:
        one = isinstance(extra, (str, Path)) or hasattr(extra, "source")
        several: list[Any] = [extra] if one else list(extra)  # type: ignore[arg-type]
        kernels = kernels_beside(several)
        texts = [e for e in several if not str(e).endswith(".c")]
        given = [source_of(item, k) for k, item in enumerate(texts)]
        for name, text in given:
            try:
                refuse_commands(forms(text, name), name)
            except RuleError as error:
                raise pointed(error, given) from None
        sources += given
    try:
        return replace(rulebook(sources, tolerance), kernels=kernels)
    except RuleError as error:
        raise pointed(error, sources) from None


def kernels_beside(rules: Iterable[Any]) -> dict[str, Declaration]:
    """The hand-written kernels that are given with rules, or lie beside a file of rules."""
    files = [Path(r) for r in rules if isinstance(r, (str, Path)) and "(" not in str(r)]
    folders = [p.parent for p in files if p.suffix == ".egg" and p.is_file()]
    out = read_kernels([*folders, *(p for p in files if p.suffix == ".c")])
    for item in rules:  # of an operator that brings its own
        for source in getattr(item, "kernels", ()):
            said = declared(source)
            out[said.name] = said
    return out


def rulebook(
    sources: Sequence[tuple[str, str]],
    tolerance: Tolerance = "approximate",
    only: Sequence[str] | None = None,
) -> Rulebook:
    """A rulebook of some `(file name, text)`s.

    Arguments:
        sources: The texts; what they declare comes before what uses it.
        tolerance: The loosest class that is admitted.
        only: Names of the rules to keep, None for all.

    Raises:
        RuleError: see `load_rules`.
    """
    language = (rules_dir() / "language.egg").read_text(encoding="utf-8")
    out = [Loadable("(ruleset analysis)", "", "language")]
    out += _declarations("language.egg", language)
    for part in (constructors(), families(), provenance()):
        out += _declarations("generated", part)
    admitted = TOLERANCES[: TOLERANCES.index(tolerance) + 1]
    rules: list[RuleInfo] = []
    rulesets: dict[tuple[str, int | None], None] = {("main", None): None}
    bodies: list[Loadable] = []
    needs: dict[str, tuple[tuple[str, ...], ...]] = {}
    for file, text in sources:
        for form in forms(text, file):
            if form.expr.head not in _KINDS:
                out.append(Loadable(form.padded, form.padded, file))
                continue
            info = rule_info(form, file)
            _check_name(info, rules)
            if info.tolerance not in admitted or (only is not None and info.name not in only):
                continue
            rules.append(info)
            ruleset = "main" if info.cap is None else f"capped-{info.cap}"
            rulesets[ruleset, info.cap] = None
            if info.cap is not None:
                looked_up = (
                    _heads(premises) for _, premises, _ in halves(form.expr, info.name)
                )
                needs[ruleset] = (*needs.get(ruleset, ()), *looked_up)
            made = [str(r) for r in instrument(form.expr, info.name, len(rules), ruleset)]
            # What is no rule is loaded as it is written: the parser then says what is wrong.
            bodies += [Loadable(text, form.padded, file) for text in made or [form.padded]]
    out += [Loadable(f"(ruleset {name})", "", "generated") for name, _ in rulesets]
    return Rulebook(
        tuple(rules), tuple(out + bodies), tuple(rulesets), tuple(sources), needs=needs
    )


def _builtin(target: str) -> Iterator[Path]:
    folder = rules_dir()
    yield from sorted(p for p in folder.glob("*.egg") if p.name != "language.egg")
    path = folder / "targets" / f"{target}.egg"
    if path.is_file():
        yield path


COMMANDS = frozenset(
    {"run", "run-schedule", "simplify", "extract", "query-extract", "push", "pop", "include",
     "input", "output", "print-function", "print-size", "print-stats",
     "print-overall-statistics", "check", "fail", "prove", "prove-exists", "set-option",
     "let-scheduler", "panic", "delete", "subsume", "add-ruleset", "unstable-combined-ruleset"}
)  # fmt: skip


def refuse_commands(found: Iterable[Form], file: str) -> None:
    """Rules and declarations may be given; what egglog should do at once may not.

    Raises:
        RuleError: at the first command.
    """
    for form in found:
        if form.expr.head in COMMANDS:
            raise RuleError(
                f"({form.expr.head} …) is a command, not a rule or a declaration",
                where=f"{file}:{form.expr.line}:{form.expr.column}",
                fix="leave it out: saturation decides when rules run",
            )


def pointed(error: RuleError, sources: Sequence[tuple[str, str]]) -> RuleError:
    """The error with the line that it is about, and a caret below the column."""
    where = (error.where or "").rsplit(":", 2)
    texts = dict(sources)
    if len(where) != 3 or where[0] not in texts or not (where[1] + where[2]).isdigit():
        return error
    lines = texts[where[0]].splitlines()
    line, column = int(where[1]), int(where[2])
    if "\n" in error.what or not 1 <= line <= len(lines):
        return error
    margin = f"{line:>5} | "
    shown = f"{margin}{lines[line - 1]}\n{' ' * (len(margin) + column - 1)}^"
    return RuleError(f"{error.what}\n{shown}", where=error.where, fix=error.fix)


def source_of(item: Any, k: int) -> tuple[str, str]:
    """A user's rules as `(file name, text)`."""
    if hasattr(item, "source"):
        return item.source
    if isinstance(item, str) and "(" not in item:
        # By name: it imports this module.
        known = import_module("luminal_lab.egraph.ruleset").registered(item)
        if known is not None:
            return known.source
    text = str(item)
    if isinstance(item, str) and "(" in text:
        return (f"rules[{k}]", text)
    path = Path(text)
    if not path.suffix:
        path = rules_dir() / "optional" / f"{text}.egg"
    if not path.is_file():
        known = sorted(p.stem for p in (rules_dir() / "optional").glob("*.egg"))
        raise RuleError(
            f"there is no rule file {text!r}",
            where=str(path),
            fix=f"give rule text, the path of an .egg file, the name of rules that %%rules"
            f" registered, or one of {', '.join(known)}",
        )
    return (str(path), path.read_text(encoding="utf-8"))


def _check_name(info: RuleInfo, rules: Sequence[RuleInfo]) -> None:
    for other in rules:
        if other.name == info.name:
            raise RuleError(
                f"two rules are called {info.name!r}; the other is {other.file}:{other.line}",
                where=f"{info.file}:{info.line}:1",
                fix="give this one another :name",
            )


def rule_info(form: Form, file: str) -> RuleInfo:
    """What the comments and the options of a rule state.

    Raises:
        RuleError: when the name, the law or the class is missing, or the class is unknown.
    """
    where = f"{file}:{form.expr.line}:{form.expr.column}"
    name = _option(form.expr, ":name")
    if not isinstance(name, Atom):
        raise RuleError("a rule has no name", where=where, fix='add :name "my-rule" to it')
    said = _fields(form.comments)
    label = name.text.strip('"')
    if not said.get("law"):
        raise RuleError(
            f"the rule {label!r} does not say its law",
            where=where,
            fix="put a line `;; law: <the law in words>` right above it",
        )
    tolerance = said.get("class", "")
    if tolerance not in TOLERANCES:
        raise RuleError(
            f"the rule {label!r} has the class {tolerance!r}, which is none of {TOLERANCES}",
            where=where,
            fix="put a line `;; class: exact` (or reassociates, approximate) right above it",
        )
    cap = said.get("cap")
    if cap is not None and not cap.isdigit():
        raise RuleError(f"the cap of the rule {label!r} is {cap!r}, not a number", where=where)
    return RuleInfo(
        label,
        said["law"],
        tolerance,
        file,
        form.expr.line,
        form.text,
        int(cap) if cap else None,
    )


def _fields(comments: Iterable[str]) -> dict[str, str]:
    """The `key: value` comments; a line without a key continues the one above it."""
    out: dict[str, str] = {}
    key = ""
    for comment in comments:
        head, colon, rest = comment.partition(":")
        if colon and head in _FIELDS:
            key = head
            out[key] = rest.strip()
        elif key:
            out[key] += " " + comment
    return out


def _option(expr: List, option: str) -> Expr | None:
    for k, item in enumerate(expr.items):
        if isinstance(item, Atom) and item.text == option and k + 1 < len(expr.items):
            return expr.items[k + 1]
    return None


def _declarations(file: str, text: str) -> Iterator[Loadable]:
    """Declarations; rules among them are analyses unless they say their ruleset."""
    for form in forms(text, file):
        loaded = form.padded
        if form.expr.head == "rule" and _option(form.expr, ":ruleset") is None:
            loaded = f"{form.text[:-1]} :ruleset analysis)"
        yield Loadable(loaded, form.padded, file)


def instrument(expr: List, name: str, number: int, ruleset: str) -> Iterator[List]:
    """A rule as `rule` forms whose heads also record who made each term; see `halves`."""
    for label, premises, actions in halves(expr, name):
        yield _rule(premises, actions, label, number, ruleset)


def halves(expr: List, name: str) -> Iterator[tuple[str, tuple[Expr, ...], tuple[Expr, ...]]]:
    """A rule as `(name, premises, actions)`, with `root__` for what a rewrite rewrites.

    A birewrite becomes two rules, `name=>` and `name<=`; what is no rule becomes none.
    """
    if expr.head == "rule":
        parts = [e for e in expr.items[1:3] if isinstance(e, List)]
        if len(parts) == 2:
            yield name, parts[0].items, parts[1].items
        return
    if len(expr.items) < 3:
        return
    left, right = expr.items[1], expr.items[2]
    when = _option(expr, ":when")
    guards = when.items if isinstance(when, List) else ()
    both = expr.head == "birewrite"
    for a, b, suffix in ((left, right, "=>"), (right, left, "<=")):
        premises = (call("=", "root__", a), *guards)
        actions: tuple[Expr, ...] = (call("union", "root__", b),)
        if any(isinstance(i, Atom) and i.text == ":subsume" for i in expr.items):
            actions = (*actions, call("subsume", a))
        yield name + (suffix if both else ""), premises, actions
        if not both:
            return


def _rule(
    facts: Iterable[Expr], actions: Iterable[Expr], name: str, number: int, ruleset: str
) -> List:
    actions = tuple(actions)
    made: dict[str, List] = {}
    for action in actions:
        if isinstance(action, List) and action.head != "subsume":
            for term in _terms(action):
                made.setdefault(str(term), term)
    stamps = tuple(
        call("set", List((Atom(f"by_{t.head}"), *t.items[1:])), str(FRESH + number))
        for t in made.values()
    )
    return call(
        "rule",
        List(tuple(facts)),
        List((*actions, *stamps)),
        ":ruleset",
        ruleset,
        ":name",
        f'"{name}"',
    )


def _heads(premises: Iterable[Expr]) -> tuple[str, ...]:
    """What premises apply: names of tables, and of primitive functions."""
    found: dict[str, None] = {}
    todo = list(premises)
    while todo:
        expr = todo.pop()
        if isinstance(expr, List):
            if expr.head:
                found[expr.head] = None
            todo += expr.items
    return tuple(sorted(found))


def _terms(expr: Expr) -> Iterator[List]:
    """The terms of sorts V and T that an action builds, inner ones first."""
    if isinstance(expr, List):
        for item in expr.items:
            yield from _terms(item)
        signature = SIGNATURES.get(expr.head)
        if signature is not None and signature.sort in ("V", "T"):
            yield expr


def rule_catalogue() -> tuple[RuleInfo, ...]:
    """Every rule that ships with the compiler, opt-in themes and all targets included."""
    out = []
    for path in sorted(rules_dir().rglob("*.egg")):
        if path.name != "language.egg":
            for form in forms(path.read_text(encoding="utf-8"), path.name):
                if form.expr.head in _KINDS:
                    out.append(rule_info(form, path.name))
    return tuple(out)
