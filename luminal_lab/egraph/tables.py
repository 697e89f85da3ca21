"""Tables of an e-graph with indices, and the join that answers queries over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luminal_lab.egraph.primitives import call
from luminal_lab.egraph.queries import AtomOf, Lit, Query, Row, Test, Var, variables

Key = tuple[Any, ...]
Env = dict[str, Any]


@dataclass
class Rows:
    """The rows of one table: `key -> value`, found by key, by value, or by one column.

    Arguments:
        values: The rows.
        stamps: When each row was made or changed last.
        by_value: The keys of each value.
        by_column: For each column, the keys that hold each value there.
    """

    values: dict[Key, Any] = field(default_factory=dict)
    stamps: dict[Key, int] = field(default_factory=dict)
    by_value: dict[Any, dict[Key, None]] = field(default_factory=dict)
    by_column: list[dict[Any, dict[Key, None]]] = field(default_factory=list)

    def put(self, key: Key, value: Any, stamp: int) -> None:
        """Add a row, or change its value."""
        if key in self.values:
            self.by_value[self.values[key]].pop(key, None)
        self.values[key] = value
        self.stamps[key] = stamp
        self.by_value.setdefault(value, {})[key] = None
        while len(self.by_column) < len(key):
            self.by_column.append({})
        for column, part in zip(self.by_column, key):
            column.setdefault(part, {})[key] = None

    def drop(self, key: Key) -> Any:
        """Remove a row; its value."""
        value = self.values.pop(key)
        del self.stamps[key]
        self.by_value[value].pop(key, None)
        for column, part in zip(self.by_column, key):
            column[part].pop(key, None)
        return value


class Store:
    """All tables of an e-graph.

    Arguments:
        names: The tables that exist.
    """

    def __init__(self, names: Iterable[str]):
        self.tables: dict[str, Rows] = {name: Rows() for name in names}

    def matches(
        self, atoms: Sequence[AtomOf], env: Mapping[str, Any] | None = None, since: int = 0
    ) -> Iterator[Env]:
        """All substitutions under which all atoms hold.

        Arguments:
            atoms: What must hold.
            env: What is bound already.
            since: With a stamp, only those that use a row which is at least as new.
        """
        start = dict(env or {})
        if not since:
            yield from self._join(start, ordered(atoms, start))
            return
        seen: set[tuple] = set()
        for k, atom in enumerate(atoms):
            if not isinstance(atom, Row):
                continue
            rows = self.tables[atom.table]
            fresh = [key for key, stamp in rows.stamps.items() if stamp >= since]
            if not fresh:
                continue
            bound = dict.fromkeys([*start, *variables(atom)])
            rest = ordered([a for j, a in enumerate(atoms) if j != k], bound)
            for key in fresh:
                found = _bind(atom, key, rows.values[key], start)
                if found is None:
                    continue
                for whole in self._join(found, rest):
                    mark = tuple(sorted(whole.items()))
                    if mark not in seen:
                        seen.add(mark)
                        yield whole

    def _join(self, env: Env, atoms: Sequence[AtomOf]) -> Iterator[Env]:
        if not atoms:
            yield env
            return
        first, rest = atoms[0], atoms[1:]
        for more in self.extend(first, env):
            yield from self._join(more, rest)

    def extend(self, atom: AtomOf, env: Env) -> Iterator[Env]:
        """All ways to satisfy one more atom."""
        if isinstance(atom, Test):
            found = hold(atom, env)
            if found is not None:
                yield found
            return
        rows = self.tables[atom.table]
        known = [_known(a, env) for a in atom.args]
        if all(k is not _UNKNOWN for k in known):
            key = tuple(known)
            if key in rows.values:
                found = _bind(atom, key, rows.values[key], env)
                if found is not None:
                    yield found
            return
        for key in list(self._candidates(rows, known, _known(atom.value, env))):
            found = _bind(atom, key, rows.values[key], env)
            if found is not None:
                yield found

    @staticmethod
    def _candidates(rows: Rows, known: Sequence[Any], value: Any) -> Iterable[Key]:
        best: Iterable[Key] = rows.values
        size = len(rows.values)
        if value is not _UNKNOWN:
            found = rows.by_value.get(value, {})
            if len(found) < size:
                best, size = found, len(found)
        for k, part in enumerate(known):
            if part is not _UNKNOWN:
                found = rows.by_column[k].get(part, {}) if k < len(rows.by_column) else {}
                if len(found) < size:
                    best, size = found, len(found)
        return best


_UNKNOWN = object()


def _known(ref: Any, env: Mapping[str, Any]) -> Any:
    return ref.value if isinstance(ref, Lit) else env.get(ref.name, _UNKNOWN)


def _bind(atom: Row, key: Key, value: Any, env: Mapping[str, Any]) -> Env | None:
    """`env` with the variables of a row bound, None when the row does not fit."""
    out = dict(env)
    for ref, part in zip((*atom.args, atom.value), (*key, value)):
        if isinstance(ref, Lit):
            if not same(ref.value, part):
                return None
        elif ref.name in out:
            if not same(out[ref.name], part):
                return None
        else:
            out[ref.name] = part
    return out


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN is NaN."""
    return a is b or a == b


def value_of(operand: Any, env: Mapping[str, Any]) -> Any:
    """The value of an operand, None where it has none or a variable is not bound."""
    if isinstance(operand, Lit):
        return operand.value
    if isinstance(operand, Var):
        return env.get(operand.name)
    args = tuple(value_of(a, env) for a in operand[1])
    return None if any(a is None for a in args) else call(operand[0], args)


def hold(test: Test, env: Env) -> Env | None:
    """`env` when a test holds (with a variable that it defines bound), else None."""
    if test.op != "=":
        found = value_of(test.left, env)
        return env if found is not None and found is not False else None
    for side, other in ((test.left, test.right), (test.right, test.left)):
        if isinstance(side, Var) and side.name not in env:
            found = value_of(other, env)
            return None if found is None else {**env, side.name: found}
    left, right = value_of(test.left, env), value_of(test.right, env)
    return env if left is not None and right is not None and same(left, right) else None


def ordered(atoms: Sequence[AtomOf], bound: Iterable[str]) -> list[AtomOf]:
    """Atoms in an order that binds early: tests as soon as they can run, rows with most known.

    Among equals the order of the text stays.
    """
    have = dict.fromkeys(bound)
    left = list(atoms)
    out: list[AtomOf] = []
    while left:
        best = min(range(len(left)), key=lambda k: _rank(left[k], have, k))
        atom = left.pop(best)
        out.append(atom)
        have.update(dict.fromkeys(variables(atom)))
    return out


def _rank(atom: AtomOf, have: Mapping[str, None], position: int) -> tuple:
    if isinstance(atom, Test):
        missing = [v for v in variables(atom) if v not in have]
        defines = atom.op == "=" and len(set(missing)) <= 1
        return (0 if not missing or (defines and ready(atom, have)) else 9, position)
    bound = [isinstance(a, Lit) or a.name in have for a in (*atom.args, atom.value)]
    if all(bound[:-1]):
        return (1, position)
    # A known e-class leaves few rows to look at; a known name or number leaves many.
    classes = sum(b and t for b, t in zip(bound, atom.terms))
    return (2 if classes else 3, -classes, -sum(bound), position)


def ready(test: Test, have: Mapping[str, None] | Mapping[str, Any]) -> bool:
    """Whether a test can run: all it uses is bound, or one side is a variable to define."""
    missing = {v for v in variables(test) if v not in have}
    if not missing:
        return True
    if test.op != "=":
        return False
    for side, other in ((test.left, test.right), (test.right, test.left)):
        if isinstance(side, Var) and side.name in missing:
            return not any(v in missing for v in variables(other))
    return False


def answers(store: Store, query: Query, env: Mapping[str, Any] | None = None) -> list[Env]:
    """All substitutions under which a rule's premises hold."""
    return list(store.matches(query.atoms, env))


Finder = Callable[[Any], Any]
