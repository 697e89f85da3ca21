"""Premises of rules as conjunctive queries over the tables of an e-graph.

egglog itself runs rules in this way: `(= r (Red "add" j (Mul a b)))` asks for a row of the
table `Red` and one of the table `Mul` that share a class. A premise becomes *atoms*: rows that
must exist, and tests on what they bind. Nothing here knows an operator: the pattern is the
rule's own text, and the tables are those that the rule files declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luminal_lab.egraph.primitives import TESTS, number
from luminal_lab.egraph.sexpr import Atom, Expr, Form, List
from luminal_lab.errors import RuleError

PRIMITIVE_SORTS = frozenset({"i64", "f64", "String", "bool", "Unit", "BigInt", "BigRat"})


@dataclass(frozen=True)
class Table:
    """What a rule file declares: a constructor, a function or a relation.

    Arguments:
        name: Its name.
        args: The sorts of its columns.
        sort: The sort of its value; `"Unit"` for a relation.
        kind: `"constructor"`, `"function"` or `"relation"`.
        merge: For a function: the expression over `old` and `new` that joins two values, None
            when two different ones are an error.
    """

    name: str
    args: tuple[str, ...]
    sort: str
    kind: str
    merge: Expr | None = None


@dataclass(frozen=True)
class Schema:
    """The tables and sorts that some rule files declare.

    Arguments:
        tables: By name.
        sorts: For each declared sort, the container it is (`("Set", "String")`), or `()` for a
            sort of terms.
    """

    tables: Mapping[str, Table]
    sorts: Mapping[str, tuple[str, ...]]

    def is_term(self, sort: str) -> bool:
        """Whether values of a sort are e-classes."""
        return self.sorts.get(sort) == ()

    def vector_of_terms(self, sort: str) -> bool:
        """Whether values of a sort are vectors of e-classes."""
        made: tuple[str, ...] = self.sorts.get(sort, ())
        return len(made) == 2 and made[0] == "Vec" and self.is_term(made[-1])


@dataclass(frozen=True)
class Var:
    """A variable of a query."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Lit:
    """A literal: `value` as data, `text` as written."""

    value: Any
    text: str

    def __str__(self) -> str:
        return self.text


Ref = Var | Lit


@dataclass(frozen=True)
class Row:
    """An atom: a row `table(args) = value` must exist.

    Arguments:
        table: The table's name.
        args: A variable or a literal for each column.
        value: A variable or a literal; for a relation a variable that nothing else uses.
        premise: Which premise of the rule it is part of.
        source: The part of the premise that says so.
        terms: For each column and for the value, whether it is an e-class.
    """

    table: str
    args: tuple[Ref, ...]
    value: Ref
    premise: int
    source: Expr
    terms: tuple[bool, ...] = ()

    def __str__(self) -> str:
        call = f"({' '.join([self.table, *map(str, self.args)])})"
        unit = isinstance(self.value, Var) and self.value.name.startswith("unit.")
        return call if unit else f"(= {self.value} {call})"


@dataclass(frozen=True)
class Test:
    """An atom: primitives over what is bound.

    Arguments:
        op: `"="`, or a primitive that holds or fails.
        left: A reference or a primitive call (a tuple: name, arguments).
        right: For `"="`, the other side; None for a predicate, which is `left`.
        premise, source: See `Row`.
    """

    op: str
    left: Any
    right: Any
    premise: int
    source: Expr

    def __str__(self) -> str:
        return str(self.source)


AtomOf = Row | Test


@dataclass(frozen=True)
class Query:
    """A rule's premises.

    Arguments:
        premises: As written (a rewrite's left side is the first, as an equation of `root__`).
        atoms: In the order of the text, patterns before what they contain.
    """

    premises: tuple[List, ...]
    atoms: tuple[AtomOf, ...]


def variables(term: Any) -> Iterator[str]:
    """The variables of a reference, a primitive call or an atom."""
    if isinstance(term, Var):
        yield term.name
    elif isinstance(term, tuple):
        for part in term[1]:
            yield from variables(part)
    elif isinstance(term, Row):
        for part in (*term.args, term.value):
            yield from variables(part)
    elif isinstance(term, Test):
        yield from variables(term.left)
        yield from variables(term.right)


def literal(atom: Atom) -> Any:
    """The value of a literal, None when the atom is a variable."""
    text = atom.text
    if text.startswith('"'):
        return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if text in ("true", "false"):
        return text == "true"
    if text in ("inf", "-inf", "NaN"):
        return number(float(text))
    if text[0].isdigit() or (text[0] in "-+" and len(text) > 1 and text[1].isdigit()):
        return int(text) if text.lstrip("-+").isdigit() else number(float(text))
    return None


def schema_of(forms: Sequence[Form]) -> Schema:
    """The tables and sorts that forms declare."""
    tables: dict[str, Table] = {}
    sorts: dict[str, tuple[str, ...]] = {}
    for form in forms:
        items = form.expr.items
        head = form.expr.head
        if head == "sort":
            made = next(iter(items[2:]), None)
            sorts[str(items[1])] = tuple(map(str, made.items)) if isinstance(made, List) else ()
        elif head in ("constructor", "function", "relation"):
            columns = items[2]
            args = tuple(map(str, columns.items)) if isinstance(columns, List) else ()
            sort = "Unit" if head == "relation" else str(items[3])
            tables[str(items[1])] = Table(str(items[1]), args, sort, head, _merge(items))
        elif head == "datatype":
            name = str(items[1])
            sorts[name] = ()
            for variant in items[2:]:
                if isinstance(variant, List):
                    args = tuple(
                        str(a) for a in variant.items[1:] if not str(a).startswith(":")
                    )
                    tables[variant.head] = Table(variant.head, args, name, "constructor")
    return Schema(tables, sorts)


def _merge(items: Sequence[Expr]) -> Expr | None:
    for k, item in enumerate(items[:-1]):
        if isinstance(item, Atom) and item.text == ":merge":
            return items[k + 1]
    return None


def query(premises: Sequence[List], schema: Schema) -> Query:
    """The query of some premises.

    Raises:
        RuleError: for a name that is neither declared nor a primitive.
    """
    made = _Flattener(schema)
    for k, premise in enumerate(premises):
        made.premise(k, premise)
    return Query(tuple(premises), tuple(made.atoms))


class _Flattener:
    def __init__(self, schema: Schema):
        self.schema = schema
        self.atoms: list[AtomOf] = []
        self.count = 0

    def fresh(self, kind: str = "t") -> Var:
        self.count += 1
        return Var(f"{kind}.{self.count}")

    def premise(self, k: int, fact: List) -> None:
        if fact.head == "=":
            a, b = fact.items[1], fact.items[2]
            if self._is_row(b) and not self._is_row(a):
                self._equal_row(k, b, a)
            elif self._is_row(a):
                self._equal_row(k, a, b)
            else:
                left, right = self.operand(k, a), self.operand(k, b)
                self.atoms.append(Test("=", left, right, k, fact))
        elif self._is_row(fact):
            table = self.schema.tables[fact.head]
            self.row(k, fact, self.fresh("unit" if table.kind == "relation" else "t"))
        else:
            self.atoms.append(Test(fact.head, self.operand(k, fact), None, k, fact))

    def _is_row(self, e: Expr) -> bool:
        return isinstance(e, List) and e.head in self.schema.tables

    def _equal_row(self, k: int, pattern: Expr, other: Expr) -> None:
        assert isinstance(pattern, List)
        if isinstance(other, Atom):
            self.row(k, pattern, self.reference(other))
        elif self._is_row(other):
            assert isinstance(other, List)
            value = self.fresh()
            self.row(k, other, value)
            self.row(k, pattern, value)
        else:
            value = self.fresh()
            self.row(k, pattern, value)
            self.atoms.append(Test("=", value, self.operand(k, other), k, other))

    def reference(self, atom: Atom) -> Ref:
        if atom.text == "_":
            return self.fresh("any")
        value = literal(atom)
        return Var(atom.text) if value is None else Lit(value, atom.text)

    def row(self, k: int, pattern: List, value: Ref) -> None:
        """The atoms of a pattern: its own row, then those of its arguments."""
        args: list[Ref] = []
        inner: list[tuple[Expr, Var]] = []
        before: list[tuple[Expr, Var]] = []
        for item in pattern.items[1:]:
            if isinstance(item, Atom):
                args.append(self.reference(item))
                continue
            var = self.fresh()
            args.append(var)
            (inner if self._is_row(item) else before).append((item, var))
        for item, var in before:  # a primitive call inside of a pattern
            self.atoms.append(Test("=", var, self.operand(k, item), k, item))
        table = self.schema.tables[pattern.head]
        terms = tuple(map(self.schema.is_term, (*table.args, table.sort)))
        self.atoms.append(Row(pattern.head, tuple(args), value, k, pattern, terms))
        for item, var in inner:
            assert isinstance(item, List)
            self.row(k, item, var)

    def operand(self, k: int, e: Expr) -> Any:
        """A primitive call, with the rows that it needs before it."""
        if isinstance(e, Atom):
            return self.reference(e)
        if self._is_row(e):
            value = self.fresh()
            self.row(k, e, value)
            return value
        if not e.head:
            raise RuleError(f"{e} is no premise")
        return (e.head, tuple(self.operand(k, x) for x in e.items[1:]))


def spelled(term: Any) -> str:
    """An operand as text."""
    if isinstance(term, tuple):
        return f"({' '.join([term[0], *map(spelled, term[1])])})"
    return str(term)


def is_predicate(op: str) -> bool:
    """Whether a primitive holds or fails rather than having a value."""
    return op in TESTS
