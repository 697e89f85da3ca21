"""An encoding as egglog commands: one `(set (nid i) …)` for each term."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from luminal_lab.egraph.encode import Encoding, Term
from luminal_lab.egraph.language import MEMORY
from luminal_lab.egraph.steps import is_gathered
from luminal_lab.hlir.sizes import bounds


def commands(encoding: Encoding) -> list[str]:
    """The commands that load a region."""
    return list(_commands(encoding))


def _commands(encoding: Encoding) -> Iterator[str]:
    for text, index in encoding.indices.items():
        axes = sorted(
            a for a in frozenset().union(*(i.axes for i in index)) if not is_gathered(a)
        )
        yield f"(set (axes {quote(text)}) {_set(axes)})"
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
            yield f'(set (stores (tid {t})) "{tensor.dtype.name}")'
        sent = max(sent, up_to)

    for v, term in enumerate(encoding.values):
        if term.op in ("Load", "LoadAt"):  # a tensor is defined before what reads it
            yield from tensors(term.children[0] + 1)
        yield f"(set (nid {v}) {_value(term)})"
        if term.op == "LoadAt":
            depends = [*sorted(free_axes(encoding, v)), MEMORY]
            yield f"(set (free (nid {v})) {_set(depends)})"
    yield from tensors(len(encoding.tensors))
    for a, b in encoding.unions:
        yield f"(union (nid {a}) (nid {b}))"


def free_axes(encoding: Encoding, value: int) -> frozenset[str]:
    """The axes that a term depends on, as it is written."""
    term = encoding.values[value]
    below = term.children[term.op in ("Load", "LoadAt") :]
    free = frozenset().union(*(free_axes(encoding, c) for c in below))
    if term.op in ("Load", "LoadAt", "Iota"):
        for index in encoding.indices[term.attrs[0]]:
            free |= {a for a in index.axes if not is_gathered(a)}
    return free - {term.attrs[1]} if term.op == "Red" else free


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
