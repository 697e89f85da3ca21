"""Sums of products that use one set of accumulators: `x@A + y@B` goes on where `x@A` ended.

Two products of one tile whose results meet in a sum alone are one sum. The later product then
does not begin at zero, and the earlier one is neither kept nor added. The order of the summands
is that of one long product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Stmt
from luminal_lab.codegen.terms import ref
from luminal_lab.egraph.values import Value, postorder

if TYPE_CHECKING:
    from luminal_lab.codegen.dots import Product


def links(products: Sequence[Product], stmts: Sequence[Stmt]) -> list[tuple[str, str]]:
    """Which products go on from which others: pairs (earlier, later), to be linked in turn.

    Arguments:
        products: Of a kernel, in statement order.
        stmts: All of its statements.
    """
    found = {p.stmt.name: p for p in products if p.stmt.kind == "reduce"}
    out: list[tuple[str, str]] = []
    stmts = list(stmts)
    while len(found) > 1:
        pair = _pair(found, stmts)
        if pair is None:
            break
        first, second = pair
        stmts = link(stmts, first, second)
        out.append(pair)
        del found[second]
    return out


def begun_by(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """For each product that goes on from others, the one that begins."""
    out: dict[str, str] = {}
    for first, second in pairs:
        out = {name: first if one == second else one for name, one in out.items()}
        out[second] = first
    return out


def _pair(found: dict[str, Product], stmts: Sequence[Stmt]) -> tuple[str, str] | None:
    """Two products that are wanted for their sum alone."""
    parents: dict[str, set[Value | None]] = {name: set() for name in found}
    for s in stmts:
        for v in postorder(s.values):
            for a in v.args:
                if _name(a) in found:
                    parents[_name(a)].add(v)
        for v in s.values:
            if _name(v) in found:
                parents[_name(v)].add(None)
    place = {name: k for k, name in enumerate(found)}
    for first in found:
        only = next(iter(parents[first])) if len(parents[first]) == 1 else None
        if only is None or only.op != "add":
            continue
        for second in {_name(a) for a in only.args} - {first}:
            if second in found and parents[second] == {only} and place[first] < place[second]:
                if _alike(found[first], found[second]) and not _waits(second, stmts):
                    return first, second
    return None


def _name(v: Value) -> str:
    return v.attrs[0] if v.op == "load" else ""


def _alike(p: Product, q: Product) -> bool:
    """Whether two products can have one tile, with loops in one order around it."""
    shared = [x.left.free - x.right.free - set(x.stmt.over) for x in (p, q)]
    return (
        p.stmt.axes == q.stmt.axes
        and (p.row, p.col) == (q.row, q.col)
        and shared[0] == shared[1]
    )


def _waits(name: str, stmts: Sequence[Stmt]) -> bool:
    """Whether a statement reads what another reduction made: their nests are apart then."""
    writers: dict[str, list[Stmt]] = {}
    for s in stmts:
        for n in {s.name, s.target} - {""}:
            writers.setdefault(n, []).append(s)
    todo, seen = [d for s in writers[name] for d in s.deps()], set[str]()
    while todo:
        d = todo.pop()
        if d in seen or d == name:
            continue
        seen.add(d)
        for s in writers.get(d, ()):
            if s.kind != "set" and s.kind != "store":
                return True
            todo += s.deps()
    return False


def link(stmts: Sequence[Stmt], first: str, second: str) -> list[Stmt]:
    """The statements with the second product going on from the first.

    It writes the local of the first; what reads their sum reads that.
    """
    one = next(s for s in stmts if s.name == first)
    result = ref(first, sorted(one.axes), one.dtype)

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "add" and {_name(a) for a in args} == {first, second}:
            return result
        return terms.remake(v, args)

    out: list[Stmt] = []
    for s in stmts:
        if second in (s.name, s.target):  # or what goes on from it
            out.append(replace(s, target=first, after=(*s.after, first)))
        elif second in s.reads():
            values = tuple(terms.rewrite(s.values, step))
            out.append(replace(s, values=values, after=(*s.after, second)))
        else:
            out.append(s)
    return out
