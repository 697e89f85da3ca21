"""A small e-graph that remembers why: the rules are run once more, with proofs.

egglog keeps no proofs. This e-graph interprets the same rule texts on the same terms, in the
same order, and records for every equality what made it: a rule that fired on an instance of its
left side, or congruence. A chain of rule applications between two terms is then a path.

It follows egg (Flatt et al., "Small proofs from congruence closure", 2022): each id stands for
one term as it was written first, its arguments are ids as well, and an edge between two ids
says that these two *terms* are equal. The edge of a rule joins an instance of its left side to
the instance of its right side; the edge of a congruence joins two terms whose arguments were
equal at the time. Time makes proofs well-founded: what an edge rests on is older than itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luminal_lab.egraph.language import constructors, families
from luminal_lab.egraph.primitives import call as primitive
from luminal_lab.egraph.queries import (
    Query,
    Row,
    Schema,
    Table,
    Var,
    literal,
    query,
    schema_of,
)
from luminal_lab.egraph.rulebook import Rulebook, RuleInfo, halves, rule_info
from luminal_lab.egraph.sexpr import Atom, Expr, Form, List, forms
from luminal_lab.egraph.tables import Env, Store, same
from luminal_lab.errors import SaturationError
from luminal_lab.resources import rules_dir

CONGRUENCE = "congruence"
COPY = "copy"  # the encoder united a read with the renamed body of what it reads


@dataclass(frozen=True)
class Fact:
    """A row of a relation: that it holds, for these terms, and by which rule.

    Arguments:
        table: The relation.
        args: Ids of terms, and literals.
        rule: The rule that derived it, `""` when the program states it.
        made: The application of that rule, and the action that states the fact.
    """

    table: str
    args: tuple[Any, ...]
    rule: str
    made: tuple[Compiled, Env, List] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Edge:
    """Two equal terms.

    Arguments:
        left, right: Their ids; `left` is the instance of the rule's left side.
        time: When it was recorded.
        rule: The rule, `CONGRUENCE`, or `COPY`.
        iteration: In which iteration.
        facts: The facts that the rule matched.
    """

    left: int
    right: int
    time: int
    rule: str
    iteration: int
    facts: tuple[Fact, ...] = ()


@dataclass
class Compiled:
    """A rule (or one direction of one) as it is run.

    Arguments:
        name: The rule's name.
        query: Its premises.
        actions: What it does.
        sorts: The sort of each variable.
        defined: For a variable that a premise equates with a pattern, the pattern.
        last: The clock at its last run.
    """

    name: str
    query: Query
    actions: tuple[Expr, ...]
    sorts: Mapping[str, str]
    defined: Mapping[str, List]
    last: int = 0


def compiled(
    name: str, facts: Sequence[Expr], actions: Sequence[Expr], schema: Schema
) -> Compiled:
    """A rule ready to run."""
    premises = [f for f in facts if isinstance(f, List)]
    made = query(premises, schema)
    sorts: dict[str, str] = {}
    for atom in made.atoms:
        if isinstance(atom, Row):
            table = schema.tables[atom.table]
            for ref, sort in zip((*atom.args, atom.value), (*table.args, table.sort)):
                if isinstance(ref, Var):
                    sorts.setdefault(ref.name, sort)
    defined: dict[str, List] = {}
    for p in premises:
        if p.head != "=":
            continue
        for var, pattern in ((p.items[1], p.items[2]), (p.items[2], p.items[1])):
            built = isinstance(pattern, List) and pattern.head in schema.tables
            if isinstance(var, Atom) and literal(var) is None and built:
                if schema.tables[pattern.head].kind == "constructor":  # type: ignore[union-attr]
                    defined.setdefault(var.text, pattern)  # type: ignore[arg-type]
    return Compiled(name, made, tuple(actions), sorts, defined)


@dataclass(frozen=True)
class Ruleset:
    """Rules that one step runs together, and the cap on the matches of each."""

    rules: tuple[Compiled, ...]
    cap: int | None


@dataclass(frozen=True)
class Programme:
    """What a rulebook says, ready to be interpreted.

    Arguments:
        schema: Tables and sorts.
        analyses: The rules that derive facts about terms.
        rulesets: The rules, in the order in which an iteration runs them.
        facts: What the rule files state.
        infos: What each rule says about itself.
        wanted: The encoder's facts on demand that they read.
    """

    schema: Schema
    analyses: tuple[Compiled, ...]
    rulesets: tuple[Ruleset, ...]
    facts: tuple[List, ...]
    infos: Mapping[str, RuleInfo]
    wanted: frozenset[str] = frozenset()


def programme(book: Rulebook) -> Programme:
    """Compile the rules of a rulebook."""
    language = (rules_dir() / "language.egg").read_text(encoding="utf-8")
    base = [
        f
        for file, text in (
            ("language.egg", language),
            ("generated", constructors()),
            ("generated", families()),
        )
        for f in forms(text, file)
    ]
    given = [(file, f) for file, text in book.sources for f in forms(text, file)]
    every = [*base, *(f for _, f in given)]
    schema = schema_of(every)
    infos = {r.name: r for r in book.rules}
    analyses = tuple(
        compiled("", premises, actions, schema)
        for f in base
        if f.expr.head == "rule"
        for _, premises, actions in halves(f.expr, "")
    )
    sets: dict[int | None, list[Compiled]] = {cap: [] for _, cap in book.rulesets}
    for file, form in given:
        if form.expr.head not in ("rewrite", "birewrite", "rule"):
            continue
        info = infos.get(rule_info(form, file).name)
        if info is not None:
            for name, premises, actions in halves(form.expr, info.name):
                sets[info.cap].append(compiled(name, premises, actions, schema))
    facts = tuple(f.expr for f in every if _is_fact(f, schema))
    rulesets = tuple(Ruleset(tuple(sets[cap]), cap) for _, cap in book.rulesets)
    return Programme(schema, analyses, rulesets, facts, infos, book.wanted)


def _is_fact(form: Form, schema: Schema) -> bool:
    return form.expr.head in ("set", "union") or form.expr.head in schema.tables


class Replay:
    """See the module's text.

    Arguments:
        program: The rules.
        commands: What loads the terms (`program.commands` of an encoding).
        limit: Terms at most.
        seconds: Wall time at most.
    """

    def __init__(
        self,
        program: Programme,
        commands: Sequence[str],
        limit: int = 400_000,
        seconds: float = 120.0,
    ):
        self.program, self.schema = program, program.schema
        self.store = Store(program.schema.tables)
        self.limit, self.deadline = limit, time.monotonic() + seconds
        self.terms: list[tuple[str, tuple[Any, ...]]] = []
        self.edges: list[list[Edge]] = []
        self.loaded: dict[tuple[str, tuple[Any, ...]], int] = {}  # the encoder's own terms
        self._known: dict[tuple[str, tuple[Any, ...]], int] = {}
        self._up: list[int] = []
        self._node: dict[tuple[str, tuple], int] = {}  # row of a constructor -> its term
        self._facts: dict[tuple[str, tuple], Fact] = {}
        self._uses: dict[int, dict[tuple[str, tuple], None]] = {}
        self._merged: list[int] = []
        self._edges_seen: dict[tuple[int, int, str], None] = {}
        self.clock, self.time, self.iteration = 1, 0, 0
        self._analyses = [_copy(r) for r in program.analyses]
        self._rulesets = [
            Ruleset(tuple(_copy(r) for r in s.rules), s.cap) for s in program.rulesets
        ]
        for fact in program.facts:
            self._act(fact)
        for form in forms("\n".join(commands), "program"):
            self._act(form.expr)
        self._rebuild()
        self._analyse()

    # ------------------------------------------------------------------------------ running

    def step(self) -> bool:
        """One iteration: every ruleset once; whether anything changed."""
        self.iteration += 1
        before = (len(self.terms), sum(u == k for k, u in enumerate(self._up)))
        changed = False
        for ruleset in self._rulesets:
            found = self._run(ruleset.rules, ruleset.cap)
            changed |= found and ruleset.cap is None
            self._analyse()
        after = (len(self.terms), sum(u == k for k, u in enumerate(self._up)))
        return changed or before != after

    def _analyse(self) -> None:
        while self._run(self._analyses, None):
            pass

    def _run(self, rules: Sequence[Compiled], cap: int | None) -> bool:
        """Find the new matches of rules, then apply them."""
        now = self.clock
        todo: list[tuple[Compiled, list[Env]]] = []
        for rule in rules:
            since = rule.last + 1 if rule.last else 0
            found = list(self.store.matches(rule.query.atoms, since=since))
            # egglog, with a fresh scheduler each time, counts the matches of all iterations.
            if cap is not None and found and self._exceeds(rule, cap):
                continue
            rule.last = now
            todo.append((rule, found))
        self.clock += 1
        mark = (len(self.terms), self.time, self._writes)
        for rule, found in todo:
            for env in found:
                self._fire(rule, env)
            if time.monotonic() > self.deadline or len(self.terms) > self.limit:
                raise SaturationError(
                    "the e-graph is too large to be replayed with proofs",
                    where=f"iteration {self.iteration}, {len(self.terms)} terms",
                    fix="explain a smaller region, or saturate with fewer rules",
                )
        self._rebuild()
        return mark != (len(self.terms), self.time, self._writes)

    def _exceeds(self, rule: Compiled, cap: int) -> bool:
        matches = self.store.matches(rule.query.atoms)
        return any(k >= cap for k, _ in enumerate(matches))

    _writes = 0  # rows of functions and relations that were added or changed

    def _fire(self, rule: Compiled, env: Env) -> None:
        """Apply a rule to a match."""
        one = _Application(self, rule, self._found(rule, env))
        for premise in rule.query.premises:  # the instance of the left side, as terms
            one.mention(premise)
        for action in rule.actions:
            self._act(action, one)

    def _found(self, rule: Compiled, env: Env) -> Env:
        """A substitution with the first terms of the classes that it binds."""
        return {
            name: self.find(v) if self.schema.is_term(rule.sorts.get(name, "")) else v
            for name, v in env.items()
        }

    def fact(self, row: Row, env: Env) -> Fact | None:
        """The fact that a premise matched."""
        key = tuple(env[a.name] if isinstance(a, Var) else a.value for a in row.args)
        return self._facts.get((row.table, self.canonical(row.table, key)))

    # ------------------------------------------------------------------------------- terms

    def find(self, a: int) -> int:
        """The first term of a term's class."""
        root = a
        while self._up[root] != root:
            root = self._up[root]
        while self._up[a] != root:
            self._up[a], a = root, self._up[a]
        return root

    def add(self, op: str, args: tuple[Any, ...]) -> int:
        """The id of a term."""
        known = self._known.get((op, args))
        if known is not None:
            return known
        new = len(self.terms)
        self.terms.append((op, args))
        self.edges.append([])
        self._up.append(new)
        self._known[op, args] = new
        key = self.canonical(op, args)
        other = self._node.get((op, key))
        if other is None:
            self._put(op, key, new)
            self._node[op, key] = new
        else:
            self.unite(new, other, CONGRUENCE)
        return new

    def node(self, op: str, args: tuple[Any, ...]) -> int:
        """The first term that is `op` over the classes of `args`."""
        return self._node[op, self.canonical(op, args)]

    def unite(self, a: int, b: int, rule: str, facts: tuple[Fact, ...] = ()) -> None:
        """Record that two terms are equal."""
        if a == b or (a, b, rule) in self._edges_seen:
            return
        self._edges_seen[a, b, rule] = None
        edge = Edge(a, b, self.time, rule, self.iteration, facts)
        x, y = self.find(a), self.find(b)
        if x == y and rule == CONGRUENCE:
            return
        self.time += x != y
        self.edges[a].append(edge)
        self.edges[b].append(edge)
        if x != y:
            first, other = min(x, y), max(x, y)
            self._up[other] = first
            self._merged.append(other)

    def canonical(self, table: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The columns of a row with the first terms of their classes."""
        out = []
        for sort, a in zip(self.schema.tables[table].args, args):
            if self.schema.is_term(sort):
                a = self.find(a)
            elif self.schema.vector_of_terms(sort):
                a = tuple(map(self.find, a))
            out.append(a)
        return tuple(out)

    def _classes(self, table: Table, key: tuple[Any, ...], value: Any) -> Iterator[int]:
        for sort, a in zip((*table.args, table.sort), (*key, value)):
            if self.schema.is_term(sort):
                yield a
            elif self.schema.vector_of_terms(sort):
                yield from a

    def _put(self, name: str, key: tuple[Any, ...], value: Any) -> None:
        table = self.schema.tables[name]
        if self.schema.is_term(table.sort):
            value = self.find(value)
        self.store.tables[name].put(key, value, self.clock)
        for c in self._classes(table, key, value):
            self._uses.setdefault(c, {})[name, key] = None

    def _rebuild(self) -> None:
        """Give rows the first terms of their classes; rows that meet are united or merged."""
        while self._merged:
            lost = self._merged.pop(0)
            for name, key in self._uses.pop(lost, {}):
                rows = self.store.tables[name]
                if key not in rows.values:
                    continue
                value = rows.drop(key)
                new = self.canonical(name, key)
                node = self._node.pop((name, key), None)
                fact = self._facts.pop((name, key), None)
                if new in rows.values:
                    if node is not None:
                        self.unite(node, self._node[name, new], CONGRUENCE)
                        self._put(name, new, rows.values[new])
                    else:
                        self._set(name, new, value)
                    continue
                if node is not None:
                    self._node[name, new] = node
                if fact is not None:
                    self._facts[name, new] = fact
                self._put(name, new, value)

    # ----------------------------------------------------------------------------- actions

    def _act(self, e: Expr, one: _Application | None = None) -> None:
        """An action of a rule, or a command."""
        if not isinstance(e, List):
            return
        at = one or _Application(self, None, {})
        rule = one.rule.name if one is not None and one.rule is not None else ""
        if e.head == "union":
            a, b = at.value(e.items[1]), at.value(e.items[2])
            if a is not None and b is not None:
                self.unite(a, b, rule or COPY, tuple(at.facts))
        elif e.head == "set":
            where, given = e.items[1], at.value(e.items[2])
            assert isinstance(where, List)
            args = tuple(at.value(x) for x in where.items[1:])
            if given is not None and None not in args:
                self._set(where.head, self.canonical(where.head, args), given, one is None)
        elif e.head == "let":
            at.names[str(e.items[1])] = at.value(e.items[2])
        elif e.head in self.schema.tables:
            if self.schema.tables[e.head].kind == "constructor":
                at.value(e)
                return
            args = tuple(at.value(x) for x in e.items[1:])
            if None in args:
                return
            key = self.canonical(e.head, args)
            if key not in self.store.tables[e.head].values:
                made = (one.rule, one.env, e) if one is not None and one.rule else None
                self._facts[e.head, key] = Fact(e.head, args, rule, made)
                self._put(e.head, key, True)
                self._writes += 1

    def _set(self, name: str, key: tuple[Any, ...], value: Any, loading: bool = False) -> None:
        rows, table = self.store.tables[name], self.schema.tables[name]
        if loading and self.schema.is_term(table.sort):
            self.loaded[name, key] = value
        if key not in rows.values:
            self._put(name, key, value)
            self._writes += 1
            return
        old = rows.values[key]
        if self.schema.is_term(table.sort):
            old, value = self.find(old), self.find(value)
        if same(old, value):
            return
        if table.merge is None:
            raise SaturationError(
                f"two values for {name} of one term: {old} and {value}",
                fix="check the rules that were added last with ll.check_rule",
            )
        joined = _Application(self, None, {})
        joined.names.update(old=old, new=value)
        merged = joined.value(table.merge)
        if not same(merged, old):
            self._put(name, key, merged)
            self._writes += 1


class _Application:
    """One application of a rule: which term each variable stands for.

    A match binds variables to classes; an application is about terms. A variable that a premise
    equates with a pattern stands for the instance of the pattern; one that a derived fact is
    about, for the term in that fact; any other, for the first term of its class.

    Arguments:
        replay: The e-graph.
        rule: The rule; None for commands, which have no variables.
        env: The classes (their first terms) and literals that the match bound.
        names: Terms that some variables must stand for.
    """

    def __init__(
        self,
        replay: Replay,
        rule: Compiled | None,
        env: Env,
        names: Mapping[str, Any] | None = None,
    ):
        self.replay, self.rule, self.env = replay, rule, env
        self.names: dict[str, Any] = dict(names or {})
        self.facts: list[Fact] = []
        for atom in rule.query.atoms if rule is not None else ():
            if isinstance(atom, Row) and replay.schema.tables[atom.table].kind == "relation":
                self._take(atom)

    def _take(self, row: Row) -> None:
        """A fact that the rule matched, about the terms that the rule's patterns say."""
        assert isinstance(row.source, List)
        wanted: dict[int, Any] = {}
        for k, item in enumerate(row.source.items[1:]):
            said = isinstance(item, List) or item.text in self.names or self._defined(item)
            if said and self.replay.schema.is_term(self._sort(row, k)):
                wanted[k] = self.value(item)
        fact = self.replay.fact(row, self.env)
        if fact is None:
            return
        fact = self._about(fact, wanted)
        self.facts.append(fact)
        for ref, arg in zip(row.args, fact.args):
            if isinstance(ref, Var):
                self.names.setdefault(ref.name, arg)

    def _sort(self, row: Row, k: int) -> str:
        return self.replay.schema.tables[row.table].args[k]

    def _defined(self, item: Atom) -> bool:
        return self.rule is not None and item.text in self.rule.defined

    def _about(self, fact: Fact, wanted: Mapping[int, Any]) -> Fact:
        """The same fact, derived once more about other terms of the same classes."""
        if fact.made is None or all(fact.args[k] == t for k, t in wanted.items()):
            return fact
        rule, env, action = fact.made
        items = action.items[1:]
        names = {
            str(items[k]): t
            for k, t in wanted.items()
            if isinstance(items[k], Atom) and literal(items[k]) is None  # type: ignore[arg-type]
        }
        found = {k: self.replay.find(v) if self._is_term(rule, k) else v
                 for k, v in env.items()}  # fmt: skip
        one = _Application(self.replay, rule, found, names)
        for premise in rule.query.premises:
            one.mention(premise)
        args = tuple(one.value(x) for x in items)
        return fact if None in args else Fact(fact.table, args, fact.rule, fact.made)

    def _is_term(self, rule: Compiled, name: str) -> bool:
        return self.replay.schema.is_term(rule.sorts.get(name, ""))

    def mention(self, e: Expr) -> None:
        """Make the terms that an expression writes down."""
        if isinstance(e, List):
            table = self.replay.schema.tables.get(e.head)
            if table is not None and table.kind == "constructor":
                self.value(e)
            else:
                for item in e.items[1:]:
                    self.mention(item)

    def value(self, e: Expr) -> Any:
        """What an expression stands for: a term's id, or a literal; None where it has none."""
        if isinstance(e, Atom):
            return self._variable(e)
        table = self.replay.schema.tables.get(e.head)
        args = tuple(self.value(x) for x in e.items[1:])
        if any(a is None for a in args):
            return None
        if table is None:
            return primitive(e.head, args)
        if table.kind == "constructor":
            return self.replay.add(e.head, args)
        rows = self.replay.store.tables[e.head]
        return rows.values.get(self.replay.canonical(e.head, args))

    def _variable(self, atom: Atom) -> Any:
        name = atom.text
        if name in self.names:
            return self.names[name]
        found = literal(atom)
        if found is not None or self.rule is None:
            return found
        self.names[name] = self.env.get(
            name
        )  # what a pattern that contains itself falls back to
        if name in self.rule.defined and self._is_term(self.rule, name):
            self.names[name] = self.value(self.rule.defined[name])
        return self.names[name]


def _copy(rule: Compiled) -> Compiled:
    return Compiled(rule.name, rule.query, rule.actions, rule.sorts, rule.defined)


__all__ = ["CONGRUENCE", "COPY", "Edge", "Fact", "Programme", "Replay", "programme"]
