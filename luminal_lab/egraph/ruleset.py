"""Users' rules: read, type-checked and tested before they are used.

The checks run in children with limits of their own: a rule that crashes egglog, panics or grows
without end costs a child, not the notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.custom_check import operators_of
from luminal_lab.egraph.library import Declaration
from luminal_lab.egraph.process import Child, Limits
from luminal_lab.egraph.rulebook import (
    kernels_beside,
    load_rules,
    pointed,
    refuse_commands,
    rule_info,
    source_of,
)
from luminal_lab.egraph.sexpr import forms
from luminal_lab.egraph.soundness import RuleCheck, builtin_sources, check_form, rules_in
from luminal_lab.errors import RuleError
from luminal_lab.hlir.custom import registered as registered_op

if TYPE_CHECKING:
    import pandas as pd

_TRIED = 40  # instances of each rule when rules are checked on the way to saturation


@dataclass(frozen=True)
class RuleSet:
    """Some rules under a name, with the verdict on each.

    Arguments:
        name: The name.
        text: The rules and the relations that they declare.
        checks: The verdict on each rule.
    """

    name: str
    text: str
    checks: tuple[RuleCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every rule matched something and was never false."""
        return all(c.ok for c in self.checks)

    @property
    def source(self) -> tuple[str, str]:
        """The name for places in error messages, and the text."""
        return (self.name, self.text)

    def table(self) -> pd.DataFrame:
        """One row per rule: law, class, instances, matches, verdict."""
        import pandas as pd

        rows = [
            {
                "rule": c.rule.name,
                "law": c.rule.law,
                "class": c.rule.tolerance,
                "tried": c.tried,
                "matches": c.fired,
                "verdict": c.verdict,
                "line": c.rule.line,
            }
            for c in self.checks
        ]
        names = ["rule", "law", "class", "tried", "matches", "verdict", "line"]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        head = f"rules {self.name!r}: {len(self.checks)}"
        return "\n".join([head, *(f"  {line}" for c in self.checks for line in _lines(c))])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.rules")
        return {"text/plain": repr(self), "text/html": str(view.to_html(self))}


def _lines(check: RuleCheck) -> list[str]:
    return repr(check).splitlines()


def check_rules(
    text: str,
    name: str = "rules",
    tried: int = 80,
    seed: int = 0,
    kernels: Mapping[str, Declaration] | None = None,
) -> RuleSet:
    """Read some rules, check their types, and test each on random instances.

    Arguments:
        text: Rules, with their `;; law:` and `;; class:`, and the relations that they use.
        name: What to call them; error messages give their place as `name:line:column`.
        tried: Instances of each rule.
        seed: Same seed, same instances.
        kernels: Hand-written kernels that they may call, by name.

    Raises:
        RuleError: a rule does not parse, is ill-typed, or lacks its name, law or class.

    Example:
        >>> mine = check_rules('''
        ... ;; law: x+x = 2*x
        ... ;; class: exact
        ... (rewrite (Add x x) (Mul (Const 2.0 d) x) :when ((= d (dtype x)) (floating d))
        ...   :name "double")''')
        >>> mine.ok, mine.checks[0].verdict
        (True, 'true')
    """
    try:
        given = forms(text, name)
        refuse_commands(given, name)
        mine = list(rules_in(given))
        if not mine:
            raise RuleError(
                "there is no rule in this text",
                where=f"{name}:1:1",
                fix="write (rewrite …), (birewrite …) or (rule …)",
            )
        for form in mine:
            rule_info(form, name)
        check_types((name, text))
        sources = [*builtin_sources(), (name, text)]
        checks = tuple(check_form(f, name, sources, tried, seed, kernels) for f in mine)
    except RuleError as error:
        raise pointed(error, [(name, text)]) from None
    return RuleSet(name, text, checks)


def check_types(source: tuple[str, str]) -> None:
    """Load the rules into a child, where egglog reads them.

    Raises:
        RuleError: egglog rejects one.
    """
    book = load_rules([_Source(source)])
    with Child() as child:
        child.run(book, [[]], Limits(iterations=0, memory=1 << 30))


@dataclass(frozen=True)
class _Source:
    source: tuple[str, str]


def _operators(text: str) -> tuple[str, ...]:
    """The implementations that rules about operators are true or false of."""
    named = operators_of([form.expr for form in forms(text, "")]) if "(Custom " in text else []
    return tuple(op.digest if (op := registered_op(n)) else "" for n in named)


@lru_cache(maxsize=64)
def _verdict(
    text: str, name: str, kernels: tuple[Declaration, ...], operators: tuple[str, ...]
) -> RuleSet:
    return check_rules(text, name, _TRIED, kernels={k.name: k for k in kernels})


def refuse_false_rules(rules: Any, target: str = "cpu") -> None:
    """Check the rules that a user gave as text, as files or as a `RuleSet`.

    Arguments:
        rules: As for `load_rules`; themes that ship with the compiler are tested already.
        target: For which target.

    Raises:
        RuleError: one of them is false, or could not be tested.
    """
    del target
    several = [rules] if isinstance(rules, (str, Path, RuleSet)) else list(rules)
    kernels = tuple(kernels_beside(several).values())
    for k, item in enumerate(several):
        if isinstance(item, (str, Path)) and str(item).endswith(".c"):
            continue
        found = item if isinstance(item, RuleSet) else None
        if found is None and isinstance(item, str) and "(" not in item:
            found = registered(item)
            if found is None and not Path(item).suffix:
                continue  # a theme of ours, or an error that load_rules explains
        if found is None:
            name, text = source_of(item, k)
            found = _verdict(text, name, kernels, _operators(text))
        bad = next((c for c in found.checks if not c.ok), None)
        if bad is not None:
            raise RuleError(
                f"the rule {bad.rule.name!r} ({bad.rule.law}) is not fit for use: {bad.said}",
                where=f"{bad.rule.file}:{bad.rule.line}",
                fix="correct it (ll.check_rule tests it), or pass check=False to use it anyway",
            )


# ------------------------------------------------------------------------- the notebook's shelf

_SHELF: dict[str, RuleSet] = {}  # what `%%rules` registered in this process


def register(rules: RuleSet) -> None:
    """Keep rules under their name, for `ll.saturate(..., rules=name)`."""
    _SHELF[rules.name] = rules


def registered(name: str) -> RuleSet | None:
    """The rules of that name, None when there are none."""
    return _SHELF.get(name)


def names() -> tuple[str, ...]:
    """The names under which rules are kept."""
    return tuple(_SHELF)


def forget(some: Iterable[str]) -> None:
    """Drop names."""
    for name in some:
        _SHELF.pop(name, None)
