"""Magics for notebooks: `%load_ext luminal_lab`, then `%%rules` and `%rules`.

The only module that imports IPython; nothing of the compiler imports it.
"""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from luminal_lab.egraph.ruleset import (
    RuleSet,
    check_rules,
    forget,
    names,
    register,
    registered,
)
from luminal_lab.errors import RuleError


@magics_class
class RuleMagics(Magics):
    """`%%rules` registers a cell of rules; `%rules` lists, shows and removes them."""

    @magic_arguments()
    @argument("name", nargs="?", default="", help="the name of the rules")
    @argument("--tried", type=int, default=80, help="instances that each rule is tested on")
    @argument("--force", action="store_true", help="register them whatever the test says")
    @argument("--remove", action="store_true", help="forget the rules of that name")
    @line_cell_magic
    def rules(self, line: str, cell: str | None = None) -> Any:
        """Rules of your own.

        `%%rules name` above a cell of egglog rules reads them, checks their types, tests each
        on random instances, and registers them: `ll.saturate(hlir, rules="name")` uses them.
        `%rules` lists what is registered, `%rules name` shows one, `%rules --remove name`
        forgets it.
        """
        given = parse_argstring(self.rules, line)
        if cell is None:
            return self._line(given)
        if not given.name:
            raise UsageError("%%rules needs a name: %%rules mine")
        # One line more at the top, so that places count from the cell's own first line.
        found = check_rules("\n" + cell, given.name, given.tried)
        if not found.ok and not given.force:
            bad = [c for c in found.checks if not c.ok]
            raise RuleError(
                "\n".join([f"{len(bad)} of {len(found.checks)} rules are not fit for use",
                           *(f"  line {c.rule.line}, {c.rule.name}: {c.said}" for c in bad)]),
                fix="correct them, or say %%rules --force to register them as they are",
            )  # fmt: skip
        register(found)
        self._bind(found)
        return found

    def _bind(self, found: RuleSet) -> None:
        """Make the rules a variable of the notebook, unless something else has the name."""
        space = self.shell.user_ns if self.shell is not None else {}
        free = isinstance(space.get(found.name), RuleSet) or found.name not in space
        if found.name.isidentifier() and free:
            space[found.name] = found

    def _line(self, given: Any) -> Any:
        if given.remove:
            if registered(given.name) is None:
                raise UsageError(f"no rules are called {given.name!r}; there are {_known()}")
            forget([given.name])
            return None
        if given.name:
            found = registered(given.name)
            if found is None:
                raise UsageError(f"no rules are called {given.name!r}; there are {_known()}")
            return found
        import pandas as pd

        tables = [
            f.table().assign(rules=n) for n in names() if (f := registered(n)) is not None
        ]
        if not tables:
            return pd.DataFrame(columns=["rules", "rule", "law", "class", "verdict"])
        return pd.concat(tables)[["rules", "rule", "law", "class", "verdict"]]


def _known() -> str:
    return ", ".join(names()) or "none"


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics; `%load_ext luminal_lab` calls this."""
    ipython.register_magics(RuleMagics)
