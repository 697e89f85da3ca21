"""What a match found, in words: what variables stand for, and how a premise failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from luminal_lab.egraph.evidence import Evidence, shown
from luminal_lab.egraph.queries import AtomOf, Lit, Row, Test, Var, variables
from luminal_lab.egraph.replay import Compiled
from luminal_lab.egraph.sexpr import Atom, Expr, List
from luminal_lab.egraph.tables import Env, value_of


def spelled(premise: List) -> str:
    """A premise as the rule writes it; a rewrite's left side without its equation."""
    if premise.head == "=" and str(premise.items[1]) == "root__":
        return str(premise.items[2])
    return str(premise)


class Words:
    """Says in words what a branch found."""

    def __init__(self, found: Evidence, rule: Compiled, env: Env, before: Sequence[AtomOf]):
        self.found, self.rule, self.env = found, rule, env
        # What the variables that the flattening made stand for: `(free a)`, a nested pattern.
        self.meaning = {
            a.value.name: str(a.source)
            for a in rule.query.atoms
            if isinstance(a, Row) and isinstance(a.value, Var) and "." in a.value.name
        }
        self.before = before

    def _sort(self, name: str) -> str:
        return self.rule.sorts.get(name, "")

    def value(self, name: str) -> str:
        """What a variable stands for, short."""
        value = self.env[name]
        if self.found.schema.is_term(self._sort(name)):
            return self.found.name(value)
        return shown(value)

    def _label(self, name: str) -> str:
        return self.meaning.get(name, name)

    def bindings(self) -> tuple[tuple[str, str], ...]:
        """Each variable of the rule with what it stands for."""
        out = []
        for name, value in self.env.items():
            if "." in name or name == "root__":
                continue
            text = self.value(name)
            if self.found.schema.is_term(self._sort(name)):
                full = self.found.term(value, 2)
                text = f"{text} = {full}" if full != text else text
            out.append((name, text))
        return tuple(out)

    def pattern(self) -> str:
        """The first premise with what is bound filled in; `‹…›` around what is not."""
        premise = self.rule.query.premises[0]
        return self._filled(premise.items[2] if spelled(premise) != str(premise) else premise)

    def _filled(self, e: Expr) -> str:
        if isinstance(e, Atom):
            return self.value(e.text) if e.text in self.env else e.text
        text = f"({' '.join([e.head, *map(self._filled, e.items[1:])])})"
        matched = any(isinstance(a, Row) and a.source is e for a in self.before)
        known = e.head in self.found.schema.tables and not matched
        return f"‹{text}›" if known else text

    def held(self, premise: int) -> str:
        """What a premise that holds bound."""
        names: dict[str, None] = {}
        for atom in self.rule.query.atoms:
            if atom.premise == premise:
                names.update(dict.fromkeys(variables(atom)))
        return self._where(names)

    def _where(self, names: Mapping[str, None] | Sequence[str]) -> str:
        parts = []
        for name in names:
            inner = "." in name and name not in self.meaning
            term = self.found.schema.is_term(self._sort(name))
            if name not in self.env or inner or (term and "." in name):
                continue
            if name.startswith(("unit.", "any.")):
                continue
            label = "it" if name == "root__" else self._label(name)
            parts.append(f"{label} is {self.value(name)}")
        return ", ".join(dict.fromkeys(parts))

    def failure(self, atom: AtomOf) -> str:
        """Why an atom has no match."""
        if isinstance(atom, Test):
            return self._test(atom)
        table = self.found.schema.tables[atom.table]
        if table.kind == "constructor":
            return self._constructor(atom)
        if table.kind == "relation":
            return self._relation(atom)
        return self._function(atom)

    def _test(self, test: Test) -> str:
        names = dict.fromkeys(variables(test))
        where = self._where(names)
        if test.op == "=":
            sides = [(s, value_of(s, self.env)) for s in (test.left, test.right)]
            computed = [
                f"{_operand(s, self.meaning)} is {shown(v)}" for s, v in sides
                if isinstance(s, tuple) and s[1] and v is not None
            ]  # fmt: skip
            where = ", ".join([x for x in (where, *computed) if x])
        else:
            computed = [
                f"{_operand(a, self.meaning)} is {shown(v)}"
                for a in test.left[1]
                if isinstance(a, tuple) and a[1] and (v := value_of(a, self.env)) is not None
            ]
            where = ", ".join([x for x in (where, *computed) if x])
        return f"{test.source} does not hold: {where}" if where else f"{test.source} fails"

    def _mismatch(self, atom: Row, key: Sequence[Any], value: Any) -> list[str]:
        """How a row differs from what is asked for."""
        table = self.found.schema.tables[atom.table]
        out = []
        for ref, have, sort in zip(
            (*atom.args, atom.value), (*key, value), (*table.args, table.sort)
        ):
            if isinstance(ref, Lit):
                if ref.value != have and ref.value is not have:
                    out.append(f"{ref.text} is asked for, and it is {shown(have)}")
            elif ref.name in self.env and self.env[ref.name] != have:
                what = self.found.value(sort, have)
                want = self.value(ref.name)
                label = self._label(ref.name)
                label = "it" if label == "root__" else label
                out.append(f"{label} is {want}, and here it is {what}")
        return out

    def _constructor(self, atom: Row) -> str:
        rows = self.found.store.tables[atom.table]
        asked = str(atom.source)
        c = self.env.get(atom.value.name) if isinstance(atom.value, Var) else None
        if c is None:
            return self._nearby(atom, asked)
        name = self.found.name(c)
        here = list(rows.by_value.get(c, {}))
        if here:
            best = min(here, key=lambda k: len(self._mismatch(atom, k, c)))
            differ = "; ".join(self._mismatch(atom, best, c))
            return (
                f"{asked} is asked for; {name} has {self.found.row(atom.table, best)}, but"
                f" {differ}"
            )
        k = self.found.found.number.get(c)
        forms: list[str] = []
        if k is not None:
            for op, args in self.found.found.sources[k]:
                forms.append(self.found.row(op, args))
        some = ", ".join(forms[:3]) + (f" and {len(forms) - 3} more" if len(forms) > 3 else "")
        return f"{name} has no {atom.table} for {asked}: it is {some or 'of no known form'}"

    def _nearby(self, atom: Row, asked: str) -> str:
        """A row whose class is not known: what there is for the arguments that are."""
        rows = self.found.store.tables[atom.table]
        if not rows.values:
            return f"there is no {atom.table} in this e-graph, and {asked} asks for one"
        best = min(rows.values, key=lambda k: len(self._mismatch(atom, k, rows.values[k])))
        differ = "; ".join(self._mismatch(atom, best, rows.values[best]))
        near = self.found.row(atom.table, best)
        return f"nothing matches {asked}; the nearest is {near}: {differ}"

    def _relation(self, atom: Row) -> str:
        args = [
            ref.text if isinstance(ref, Lit)
            else self.value(ref.name) if ref.name in self.env else ref.name.split(".")[0]
            for ref in atom.args
        ]  # fmt: skip
        fact = f"({' '.join([atom.table, *args])})"
        text = str(atom.source)
        where = self._where([v for v in variables(atom) if not v.startswith("unit.")])
        about = f", where {where}" if where else ""
        if fact == text:
            return f"{text} does not hold"
        return f"no fact {text} is known{about}"

    def _function(self, atom: Row) -> str:
        rows = self.found.store.tables[atom.table]
        keys = [
            ref.value if isinstance(ref, Lit) else self.env.get(ref.name) for ref in atom.args
        ]
        source = atom.source
        if None not in keys and tuple(keys) in rows.values:
            have = rows.values[tuple(keys)]
            sort = self.found.schema.tables[atom.table].sort
            got = self.found.value(sort, have)
            if isinstance(atom.value, Lit):
                return f"{source} is {got}, and {atom.value.text} is asked for"
            want = self.value(atom.value.name)
            where = self._where([v for a in atom.args for v in variables(a)])
            about = f" ({where})" if where else ""
            return f"{source} is {got}{about}, but {self._label(atom.value.name)} is {want}"
        return f"{source} is not known"


def _operand(operand: Any, meaning: Mapping[str, str]) -> str:
    if isinstance(operand, tuple):
        return f"({' '.join([operand[0], *(_operand(x, meaning) for x in operand[1])])})"
    if isinstance(operand, Var):
        return meaning.get(operand.name, operand.name)
    return str(operand)
