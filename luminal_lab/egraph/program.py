"""An encoding as egglog commands: one `(set (nid i) …)` for each term."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from luminal_lab.egraph.encode import Encoding, Term
from luminal_lab.egraph.language import MEMORY, WEIGHTS
from luminal_lab.egraph.steps import is_gathered
from luminal_lab.egraph.tiles import facts
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, bounds

# Facts about index maps and tensors that are loaded only for rules that read them.
_OF_INDICES = ("lead", "last", "width", "box", "order", "tiles")
ON_DEMAND = frozenset((*_OF_INDICES, "calls", "reads", "stored-at", "roles", "numbers"))


def commands(encoding: Encoding, wanted: frozenset[str] = ON_DEMAND) -> list[str]:
    """The commands that load a region."""
    return list(_commands(encoding, wanted))


def _commands(encoding: Encoding, wanted: frozenset[str]) -> Iterator[str]:
    yield from _index_facts(encoding, wanted)
    marks = _marks(encoding)
    for axis, n in encoding.extents.items():
        if isinstance(n, int):
            yield f"(set (extent {quote(axis)}) {n})"
        yield f"(set (least {quote(axis)}) {bounds(n)[0]})"
    sent = 0

    def tensors(up_to: int) -> Iterator[str]:
        nonlocal sent
        for t in range(sent, up_to):
            tensor = encoding.tensors[t]
            yield f"(set (tid {t}) {_tensor(tensor.term)})"
            yield f'(stored {t} "{tensor.dtype.name}" {_set(sorted(marks[t]))})'
            if "order" in wanted:
                yield f"(set (order (tid {t})) {t})"
        sent = max(sent, up_to)

    for v, term in enumerate(encoding.values):
        if term.op in ("Load", "LoadAt"):  # a tensor is defined before what reads it
            yield from tensors(term.children[0] + 1)
        yield f"(set (nid {v}) {_value(term)})"
        if term.op == "LoadAt":
            depends = [*sorted(free_axes(encoding, v)), MEMORY]
            yield f"(set (free (nid {v})) {_set(depends)})"
    yield from tensors(len(encoding.tensors))
    yield from _calls(encoding, wanted)
    for a, b in encoding.unions:
        yield f"(same {a} {b})"
    if "tiles" in wanted:
        yield from facts(encoding.tiles)


def _calls(encoding: Encoding, wanted: frozenset[str]) -> Iterator[str]:
    """What rules need to know about the calls of operators."""
    for call in encoding.calls:
        said = {"calls": quote(call.target)}
        if call.stored is not None:
            said["stored-at"] = quote(call.stored)
            said["reads"] = _list(map(quote, call.reads))
            said["roles"] = _list(_set(sorted(axes)) for axes in call.roles)
            said["numbers"] = _list(map(literal, call.numbers))
        yield from (f"(set ({f} {call.node}) {v})" for f, v in said.items() if f in wanted)


def _list(items: Iterable[str]) -> str:
    listed = list(items)
    return f"(vec-of {' '.join(listed)})" if listed else "(vec-empty)"


def _marks(encoding: Encoding) -> list[frozenset[str]]:
    """Whether the contents of each tensor depend on weights, and on what varies between calls.

    The analysis in `language.egg` would find the same, one kernel at a time.
    """
    of_value: dict[int, frozenset[str]] = {}
    of_tensor: dict[int, frozenset[str]] = {}
    varies, known = frozenset({MEMORY}), frozenset({WEIGHTS})
    pending: list[tuple[str, int]] = [("T", t) for t in reversed(range(len(encoding.tensors)))]
    while pending:
        sort, k = pending[-1]
        done = of_tensor if sort == "T" else of_value
        term = encoding.tensors[k].term if sort == "T" else encoding.values[k]
        below: list[tuple[str, int]] = []
        found: frozenset[str] = frozenset()
        if sort == "T" and term.op != "Kernel":
            weight = term.op == "Input" and term.attrs[0] in encoding.weights
            found = known if weight else varies
        elif term.op == "LoadAt":
            found = varies
        else:
            below = [("T" if term.op == "Load" else "V", c) for c in term.children]
        if missing := [
            x for x in below if x[1] not in (of_tensor if x[0] == "T" else of_value)
        ]:
            pending += missing
            continue
        done[k] = found.union(*((of_tensor if s == "T" else of_value)[c] for s, c in below))
        pending.pop()
    return [of_tensor[t] for t in range(len(encoding.tensors))]


def _index_facts(encoding: Encoding, wanted: frozenset[str]) -> Iterator[str]:
    """What rules need to know about index maps, which are text to them."""
    said: dict[str, None] = {}
    parts = {"lead", "last", "width", "box"} & wanted
    for text, index in encoding.indices.items():
        said[f"(set (axes {quote(text)}) {_set(_axes(index))})"] = None
        if not parts or len(index) < 2 or any(is_gathered(a) for i in index for a in i.axes):
            continue
        for part, several in (("lead", index[:-1]), ("last", index[-1:])):
            shown = ", ".join(map(str, several))
            said[f"(set ({part} {quote(text)}) {quote(shown)})"] = None
            said[f"(set (axes {quote(shown)}) {_set(_axes(several))})"] = None
            box = _box(several, encoding.extents)
            if box is not None:
                said[f"(set (box {quote(shown)}) {quote(', '.join(map(str, box)))})"] = None
                if len(several) == 1:
                    said[f"(set (width {quote(shown)}) {box[0]})"] = None
    yield from said


def _axes(index: Sequence[Index]) -> list[str]:
    axes = frozenset().union(*(i.axes for i in index))
    return sorted(a for a in axes if not is_gathered(a))


def _box(index: Sequence[Index], extents: Mapping[str, Dim]) -> tuple[int, ...] | None:
    """The shape of which an index map reads each element once.

    None when there is none, or when a call decides it: rules count with numbers.
    """
    shape: list[int] = []
    seen: set[str] = set()
    for i in index:
        span = 1
        for atom, coef in reversed(i.terms):  # smallest coefficient first
            if not isinstance(atom, str) or atom in seen or coef != span:
                return None
            n = extents[atom]
            if not isinstance(n, int):
                return None
            seen.add(atom)
            span *= n
        if i.const != 0:
            return None
        shape.append(span)
    return tuple(shape)


def free_axes(encoding: Encoding, value: int) -> frozenset[str]:
    """The axes that a term depends on, as it is written."""
    term = encoding.values[value]
    below = term.children[term.op in ("Load", "LoadAt") :]
    free = frozenset().union(*(free_axes(encoding, c) for c in below))
    if term.op in ("Load", "LoadAt", "Iota"):
        for index in encoding.indices[term.attrs[0]]:
            free |= {a for a in index.axes if not is_gathered(a)}
    return free - {term.attrs[1]} if term.op in ("Red", "Carry") else free


def quote(text: str) -> str:
    """A string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def literal(value: Any) -> str:
    """A literal of an egglog primitive sort."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return repr(value)
    return str(int(value))


def _set(items: Sequence[str]) -> str:
    return f"(set-of {' '.join(map(quote, items))})" if items else "(set-empty)"


def _vector(sort: str, ids: Sequence[int]) -> str:
    return f"(vec-of {' '.join(f'({sort} {i})' for i in ids)})" if ids else "(vec-empty)"


def _value(term: Term) -> str:
    if term.op in ("Load", "LoadAt"):
        t, *values = term.children
        more = f" {_vector('nid', values)}" if term.op == "LoadAt" else ""
        return f"({term.op} (tid {t}) {quote(term.attrs[0])}{more})"
    if term.op == "Iota":
        return f"(Iota (Affine {quote(term.attrs[0])}) {quote(term.attrs[1])})"
    children = [f"(nid {c})" for c in term.children]
    attrs = [literal(a) for a in term.attrs]
    parts = children + attrs if term.op == "Cast" else attrs + children
    return f"({' '.join([term.op, *parts])})"


def _tensor(term: Term) -> str:
    if term.op == "Input":
        return f"(Input {quote(term.attrs[0])})"
    if term.op == "Kernel":
        return f"(Kernel (nid {term.children[0]}) {quote(term.attrs[0])})"
    if term.op == "Scatter":
        into, value, *at = term.children
        mode, points, index = map(quote, term.attrs)
        vector = _vector("nid", at)
        return f"(Scatter {mode} (tid {into}) (nid {value}) {points} {index} {vector})"
    return f"({term.op} {term.attrs[0]} {_vector('tid', term.children)})"
