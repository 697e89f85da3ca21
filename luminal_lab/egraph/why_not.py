"""Why did a rule not fire at a node? The first premise that fails, and the nearest term.

The premises are put to the tables that egglog left, one after the other from the node on. What
matches is followed as far as it goes; the branch that satisfies most premises is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.evidence import Evidence, evidence, shown
from luminal_lab.egraph.language import datum
from luminal_lab.egraph.names import Place, place
from luminal_lab.egraph.primitives import UnknownPrimitive
from luminal_lab.egraph.primitives import call as primitive
from luminal_lab.egraph.queries import AtomOf, Lit, Row, Test, Var, literal, variables
from luminal_lab.egraph.replay import Compiled
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.egraph.sexpr import Atom, Expr, List
from luminal_lab.egraph.tables import Env, ready, value_of
from luminal_lab.egraph.witness import programme_of, witness
from luminal_lab.errors import LuminalError, RuleError

if TYPE_CHECKING:
    import pandas as pd

    from luminal_lab.egraph.egraph import EGraph

_STEPS = 200_000  # rows that are looked at
_KEPT = 64  # branches that are compared
_DEEP = 3  # rules behind rules that are asked, too
_REPLAYED = 4000  # e-nodes of a region up to which the iteration of a firing is looked up


@dataclass(frozen=True)
class Premise:
    """One premise of a rule.

    Arguments:
        text: As the rule writes it.
        state: `"holds"`, `"fails"`, or `"open"` when it was not reached.
        said: What was found there.
    """

    text: str
    state: str
    said: str


@dataclass(frozen=True)
class WhyNot:
    """What became of a rule at a node.

    Arguments:
        rule: The rule.
        node: The node.
        status: `"fails"`: a premise does not hold. `"fired"`: it made a member of the node's
            class. `"known"`: it matches, and what it gives had been there before. `"held
            back"`: it matches and was not applied.
        said: The answer in words.
        premises: Each premise, for the nearest term.
        bindings: What the variables stand for in it.
        nearest: The pattern as far as it matches.
        iteration: Of a firing, when.
        tried: How many ways to match were looked at.
        because: When the premise is a fact that rules derive: what became of the best one.
        atoms: The premises in the form in which they are asked, in order.
        satisfied: How many of these the nearest term satisfies.
        root: The variable that stands for the node's class, and this class.
    """

    rule: RuleInfo
    node: str
    status: str
    said: str
    premises: tuple[Premise, ...]
    bindings: tuple[tuple[str, str], ...] = ()
    nearest: str = ""
    iteration: int | None = None
    tried: int = 0
    because: WhyNot | None = None
    atoms: tuple[str, ...] = field(default=(), repr=False)
    satisfied: int = 0
    root: tuple[str, int] | None = field(default=None, repr=False)  # variable and e-class

    @property
    def fired(self) -> bool:
        """Whether all premises hold."""
        return self.status != "fails"

    @property
    def failing(self) -> Premise | None:
        """The first premise that does not hold."""
        return next((p for p in self.premises if p.state == "fails"), None)

    def table(self) -> pd.DataFrame:
        """One row per premise: text, state, what was found."""
        import pandas as pd

        rows = [(p.text, p.state, p.said) for p in self.premises]
        return pd.DataFrame(rows, columns=["premise", "state", "found"])

    def text(self) -> str:
        """The answer, premise by premise."""
        return import_module("luminal_lab.views.why_not").to_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.why_not")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


def why_not(egraph: EGraph, rule: str, node: Any, region: int | None = None) -> WhyNot:
    """See `EGraph.why_not`."""
    info = _info(egraph, rule)
    at = place(egraph, node, region)
    found = evidence(egraph, at.region)
    halves = _halves(egraph, info.name)
    answers = [
        _ask(egraph, found, info, half, c, at, _DEEP)
        for half in halves
        for c in _classes(egraph, half, at)
    ]
    if not answers:
        sort = _root_sort(halves[0])
        what = {"V": "values", "T": "tensors"}.get(sort, sort)
        raise LuminalError(
            f"the rule {info.name!r} is about {what}, and {at.label} is none",
            where=f"{info.file}:{info.line}",
            fix="ask about an HLIR node, or about a class of the other sort",
        )
    return max(answers, key=lambda a: (a.status != "fails", a.satisfied))


def _info(egraph: EGraph, rule: str) -> RuleInfo:
    names = [r.name for r in egraph.rules]
    if rule in names:
        return egraph.rule(rule)
    close = get_close_matches(rule, names, 3, 0.5)
    raise RuleError(
        f"there is no rule {rule!r} in this e-graph",
        fix=f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else "egraph.table() lists the rules",
    )


def _halves(egraph: EGraph, name: str) -> list[Compiled]:
    """A rule as it is run: two of them for a birewrite."""
    labels = (name, f"{name}=>", f"{name}<=")
    sets = programme_of(egraph).rulesets
    return [r for s in sets for r in s.rules if r.name in labels]


def root_of(rule: Compiled) -> str | None:
    """The variable that stands for what a rule is about: what it unites, or states facts of."""
    for action in rule.actions:
        if not isinstance(action, List):
            continue
        operands: Sequence[Expr] = action.items[1:]
        if action.head == "set" and isinstance(action.items[1], List):
            operands = action.items[1].items[1:]
        for item in operands:
            if isinstance(item, Atom) and literal(item) is None:
                if rule.sorts.get(item.text) in ("V", "T"):
                    return item.text
    return None


def _root_sort(rule: Compiled) -> str:
    root = root_of(rule)
    return rule.sorts.get(root, "") if root is not None else ""


def _classes(egraph: EGraph, rule: Compiled, at: Place) -> list[int]:
    """The classes of a node that a rule may be about."""
    part = egraph.parts[at.region]
    own = part.classes[at.eclass]
    if at.member is None and own.sort == "T":
        several = [own] + [part.classes[n.children[0]] for n in own.nodes if n.op == "kernel"]
    else:
        several = [own] + [
            c for c in part.classes if c.sort == "T" and own.sort == "V"
            and any(n.op == "kernel" and n.children[0] == own.id for n in c.nodes)
        ]  # fmt: skip
    sort = _root_sort(rule)
    return list(dict.fromkeys(c.id for c in several if not sort or c.sort == sort))


# ---------------------------------------------------------------------------------- asking


@dataclass
class _Branch:
    """How far one way to match went: the atom that failed, and what was bound there."""

    env: Env
    depth: int


class _Asker:
    """Follows the premises of a rule from one class on."""

    def __init__(self, found: Evidence, rule: Compiled, env: Env):
        self.found, self.rule, self.start = found, rule, env
        self.atoms = reading_order(rule.query.atoms, env)
        self.steps = 0
        self.tried = 0
        self.deepest: list[_Branch] = []
        self.whole: list[Env] = []

    def run(self) -> None:
        """Look at all ways to match."""
        self._follow(0, self.start)

    def _follow(self, k: int, env: Env) -> None:
        if k == len(self.atoms):
            self.tried += 1
            if len(self.whole) < _KEPT:
                self.whole.append(env)
            return
        went = False
        for more in self.found.store.extend(self.atoms[k], env):
            went = True
            self.steps += 1
            if self.steps > _STEPS:
                return
            self._follow(k + 1, more)
        if not went:
            self.tried += 1
            depth = self.deepest[0].depth if self.deepest else -1
            if k > depth:
                self.deepest = []
            if k >= depth and len(self.deepest) < _KEPT:
                self.deepest.append(_Branch(env, k))

    def nearest(self) -> _Branch:
        """The branch that satisfies most premises, those after the failing one included."""
        return max(self.deepest, key=lambda b: self._later(b))

    def _later(self, branch: _Branch) -> int:
        env, count = branch.env, 0
        for atom in self.atoms[branch.depth + 1 :]:
            unbound = [v for v in variables(atom) if v not in env]
            if isinstance(atom, Test) and not ready(atom, env):
                continue
            more = next(self.found.store.extend(atom, env), None)
            if more is not None:
                count += 1
                env = more if len(unbound) <= 1 else env
        return count


def reading_order(atoms: Sequence[AtomOf], bound: Mapping[str, Any]) -> list[AtomOf]:
    """Atoms in the order of the text, each after something that it shares a variable with."""
    have = dict.fromkeys(bound)
    left = list(atoms)
    out: list[AtomOf] = []

    def reached(atom: AtomOf) -> bool:
        if isinstance(atom, Test):
            return ready(atom, have)
        return any(v in have for v in variables(atom)) or not any(variables(atom))

    while left:
        position = next((k for k, a in enumerate(left) if reached(a)), None)
        if position is None:
            rows = [k for k, a in enumerate(left) if isinstance(a, Row)]
            position = rows[0] if rows else 0
        atom = left.pop(position)
        out.append(atom)
        have.update(dict.fromkeys(variables(atom)))
    return out


def _ask(
    egraph: EGraph,
    found: Evidence,
    info: RuleInfo,
    rule: Compiled,
    c: int,
    at: Place,
    deep: int,
) -> WhyNot:
    root = root_of(rule)
    env: Env = {} if root is None else {root: found.numbers[c]}
    asker = _Asker(found, rule, env)
    try:
        asker.run()
    except UnknownPrimitive as unknown:
        raise LuminalError(
            f"the rule {info.name!r} uses the primitive {unknown.args[0]!r}, which only egglog"
            " can compute",
            where=f"{info.file}:{info.line}",
        ) from None
    atoms = tuple(map(str, asker.atoms))
    rooted = None if root is None else (root, c)
    if asker.whole:
        return _matched(egraph, found, info, rule, asker, c, at.label, atoms, rooted)
    branch = asker.nearest()
    atom = asker.atoms[branch.depth]
    words = _Words(found, rule, branch.env, asker.atoms[: branch.depth])
    premises = _premises(words, asker, branch)
    because = None
    if deep and isinstance(atom, Row) and _lemmas(egraph, found, atom.table):
        because = _behind(egraph, found, atom, branch.env, at, deep - 1)
    return WhyNot(
        info,
        at.label,
        "fails",
        f"{words.failure(atom)}.",
        premises,
        words.bindings(),
        words.pattern(),
        None,
        asker.tried,
        because,
        atoms,
        branch.depth,
        rooted,
    )


def _premises(words: _Words, asker: _Asker, branch: _Branch) -> tuple[Premise, ...]:
    failing = asker.atoms[branch.depth]
    env = branch.env
    reached = {a.premise for a in asker.atoms[: branch.depth]}
    left = {a.premise for a in asker.atoms[branch.depth :]}
    out = []
    for k, premise in enumerate(asker.rule.query.premises):
        text = spelled(premise)
        if k == failing.premise:
            out.append(Premise(text, "fails", words.failure(failing)))
        elif k in reached and k not in left:
            out.append(Premise(text, "holds", words.held(k)))
        else:
            premise_, env = _later(words, asker, branch, env, k, text)
            out.append(premise_)
    return tuple(out)


def _later(
    words: _Words, asker: _Asker, branch: _Branch, env: Env, k: int, text: str
) -> tuple[Premise, Env]:
    """A premise after the failing one: tested by itself when all that it needs is known."""
    before = asker.atoms[: branch.depth]
    start = env
    for atom in [a for a in asker.atoms[branch.depth :] if a.premise == k]:
        if not any(v in env for v in variables(atom)):
            return Premise(text, "open", ""), start
        if isinstance(atom, Test) and not ready(atom, env):
            return Premise(text, "open", ""), start
        more = next(words.found.store.extend(atom, env), None)
        if more is None:
            told = _Words(words.found, asker.rule, env, before)
            return Premise(text, "also fails", told.failure(atom)), start
        env = more
    told = _Words(words.found, asker.rule, env, before)
    return Premise(text, "holds", told.held(k)), env


def spelled(premise: List) -> str:
    """A premise as the rule writes it; a rewrite's left side without its equation."""
    if premise.head == "=" and str(premise.items[1]) == "root__":
        return str(premise.items[2])
    return str(premise)


def _lemmas(egraph: EGraph, found: Evidence, table: str) -> list[Compiled]:
    """The rules that derive a relation."""
    if found.schema.tables[table].kind != "relation":
        return []
    return [
        r
        for s in programme_of(egraph).rulesets
        for r in s.rules
        if any(isinstance(a, List) and a.head == table for a in r.actions)
    ]


def _behind(
    egraph: EGraph, found: Evidence, atom: Row, env: Env, at: Place, deep: int
) -> WhyNot | None:
    """What became of the best rule that derives a fact, at what the fact is about."""
    best: WhyNot | None = None
    for lemma in _lemmas(egraph, found, atom.table):
        root = root_of(lemma)
        action = next(a for a in lemma.actions if isinstance(a, List) and a.head == atom.table)
        names = [str(x) for x in action.items[1:]]
        if root is None or root not in names:
            continue
        about = atom.args[names.index(root)]
        c = env.get(about.name) if isinstance(about, Var) else None
        if c is None or c not in found.found.number:
            continue
        name = lemma.name.removesuffix("=>").removesuffix("<=")
        where = Place(at.region, found.found.number[c], None, None, found.name(c))
        one = _ask(egraph, found, egraph.rule(name), lemma, where.eclass, where, deep)
        if best is None or (one.fired, one.satisfied) > (best.fired, best.satisfied):
            best = one
    return best


# ----------------------------------------------------------------------------------- words


class _Words:
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


# --------------------------------------------------------------------------------- matches


def _matched(
    egraph: EGraph,
    found: Evidence,
    info: RuleInfo,
    rule: Compiled,
    asker: _Asker,
    c: int,
    label: str,
    atoms: tuple[str, ...],
    root: tuple[str, int] | None,
) -> WhyNot:
    """The answer when all premises hold: what the rule gave, or why it was not applied."""
    results = [(env, *_result(found, rule, env)) for env in asker.whole]
    order = {"fired": 0, "known": 1, "held back": 2}
    judged = [(_judge(egraph, found, info, c, given), env, given) for env, _, given in results]
    (status, said, iteration), env, _ = min(judged, key=lambda j: order[j[0][0]])
    words = _Words(found, rule, env, asker.atoms)
    premises = tuple(
        Premise(spelled(p), "holds", words.held(k)) for k, p in enumerate(rule.query.premises)
    )
    more = f" ({asker.tried} matches here)" if asker.tried > 1 else ""
    return WhyNot(
        info, label, status, said + more + ".", premises, words.bindings(), words.pattern(),
        iteration, asker.tried, None, atoms, len(atoms), root,
    )  # fmt: skip


@dataclass(frozen=True)
class _Given:
    """What a rule's action gives under a substitution.

    Arguments:
        text: In words.
        eclass: egglog's class of it, None when it is not in the e-graph.
        row: Its row, when it is built.
        united: Whether it is where the rule wants it.
        fact: Whether it is a fact and no term.
    """

    text: str
    eclass: int | None
    row: tuple[str, tuple] | None
    united: bool
    fact: bool = False


def _result(found: Evidence, rule: Compiled, env: Env) -> tuple[bool, _Given]:
    for action in rule.actions:
        if not isinstance(action, List):
            continue
        if action.head == "union":
            left, _ = _lookup(found, env, action.items[1])
            right, row = _lookup(found, env, action.items[2])
            text = found.row(*row, 1) if row is not None else None
            if text is None:
                text = found.name(right) if right is not None else str(action.items[2])
            united = right is not None and left == right
            return united, _Given(text, right, row, united)
        if action.head in found.schema.tables:
            key = tuple(_lookup(found, env, x)[0] for x in action.items[1:])
            known = None not in key and key in found.store.tables[action.head].values
            text = found.row(action.head, key) if None not in key else str(action)
            return known, _Given(text, None, None, known, True)
    return True, _Given(str(rule.actions[0]) if rule.actions else "nothing", None, None, True)


def _lookup(found: Evidence, env: Env, e: Expr) -> tuple[Any, tuple[str, tuple] | None]:
    """The value of an expression of an action, and the row when it is a term that is there."""
    if isinstance(e, Atom):
        value = literal(e)
        return (env.get(e.text) if value is None else value), None
    args = tuple(_lookup(found, env, x)[0] for x in e.items[1:])
    if any(a is None for a in args):
        return None, None
    table = found.schema.tables.get(e.head)
    if table is None:
        return primitive(e.head, args), None
    value = found.store.tables[e.head].values.get(args)
    return value, (e.head, args) if value is not None else None


def _judge(
    egraph: EGraph, found: Evidence, info: RuleInfo, c: int, given: _Given
) -> tuple[str, str, int | None]:
    part = found.part
    if given.fact and given.united:
        return "fired", f"it fired: {given.text} is known", None
    if not given.united:
        return "held back", _held_back(egraph, found, info), None
    k = found.found.number.get(given.eclass) if given.eclass is not None else None
    if given.row is not None and k is not None:
        for node, source in zip(found.found.classes[k].nodes, found.found.sources[k]):
            if source[0] == given.row[0] and _same_row(found, source, given.row):
                if node.rule == info.name:
                    said = f"it fired in iteration {node.iteration}, giving {given.text}"
                    return "fired", said, node.iteration
                maker = f"{node.rule} in iteration {node.iteration}"
                by = "the program itself" if node.rule == "encode" else f"rule {maker}"
                when = _iteration(egraph, part, info.name, c)
                told = f" in iteration {when}" if when is not None else ""
                return "known", f"it fires{told}; {given.text} is made by {by}", when
    when = _iteration(egraph, part, info.name, c)
    told = f" in iteration {when}" if when is not None else ""
    return "fired", f"it fired{told}, giving {given.text}", when


def _same_row(found: Evidence, source: tuple[str, tuple], row: tuple[str, tuple]) -> bool:
    sorts = found.schema.tables[row[0]].args
    left = [datum(s, a) for s, a in zip(sorts, source[1])]
    return list(row[1]) == left


def _iteration(egraph: EGraph, part: Any, rule: str, c: int) -> int | None:
    """When a rule united something with a class first, by the replay."""
    if part.size > _REPLAYED:
        return None
    replayed = witness(egraph, part.region)
    names = (rule, f"{rule}=>", f"{rule}<=")
    found: Iterator[int] = (
        e.iteration
        for edges in replayed.replay.edges
        for e in edges
        if e.rule in names and replayed.class_of(e.left) == c
    )
    return min(found, default=None)


def _held_back(egraph: EGraph, found: Evidence, info: RuleInfo) -> str:
    report = found.part.report
    if info.cap is not None:
        return (
            f"all premises hold, but the rule is capped: in an iteration with more than"
            f" {info.cap} matches it is skipped, and saturation ended with"
            f" {report.stopped!r}"
        )
    return (
        f"all premises hold, but saturation stopped before it was applied:"
        f" {report.stopped} after {report.iterations[-1].number} iterations"
    )


__all__ = ["Premise", "WhyNot", "why_not"]
