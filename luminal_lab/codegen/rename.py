"""Alpha-renaming of bound axes, before a kernel is cut into statements.

Binders may shadow and may differ in name only. Two renamings help what follows:

* *together*: a reduction over `b` whose operands are read elsewhere at `c`, of the same extent,
  is renamed to `c`, so that its terms become equal to those others and can share their loop;
* *apart*: a product that reduces an axis which is also an output axis (or a row or column of
  another product, or the axis of an online reduction) gets an axis of its own, because it will
  have a loop nest of its own and the output's tiles must not bind its axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from luminal_lab.codegen import terms
from luminal_lab.egraph.values import Value, postorder


def alpha_rename(
    values: Sequence[Value], outs: Sequence[frozenset[str]], extents: dict[str, int]
) -> list[Value]:
    """Values that equal the given ones; `extents` receives the new axes.

    Arguments:
        values: One per output.
        outs: The output axes of each.
        extents: Extent of every axis; extended in place.
    """
    values = _together(list(values), extents)
    return _apart(values, frozenset().union(*outs) if outs else frozenset(), extents)


def _together(values: list[Value], extents: dict[str, int]) -> list[Value]:
    loads = {v for v in postorder(values) if v.op == "load"}

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op != "red":
            return terms.remake(v, args)
        op, axis = v.attrs
        mine = [t for t in postorder(args) if t.op == "load" and axis in t.free]
        if len(mine) and not any(_elsewhere(t, v, loads_of) for t in mine):
            taken = set().union(*(terms.axes_in(a) for a in args))
            for other in sorted(extents):
                if other in taken or extents[other] != extents[axis]:
                    continue
                renamed = [terms.rename_bound(t, axis, other) for t in mine]
                if all(t in loads for t in renamed):
                    return terms.remake(
                        v, (terms.rename_bound(args[0], axis, other),), (op, other)
                    )
        return terms.remake(v, args)

    loads_of = _users(values)
    return terms.rewrite(values, step)


def _users(values: Iterable[Value]) -> dict[Value, set[Value]]:
    """For each load, the outermost-binder reductions (or None for outputs) that use it."""
    out: dict[Value, set[Value]] = {}
    for v in postorder(values):
        if v.op == "red":
            for t in postorder(v.args):
                if t.op == "load":
                    out.setdefault(t, set()).add(v)
    return out


def _elsewhere(load: Value, red: Value, users: dict[Value, set[Value]]) -> bool:
    """Whether another reduction over the same axis reads the same load."""
    return any(u is not red and u.attrs[1] == red.attrs[1] for u in users.get(load, ()))


def _apart(values: list[Value], outs: frozenset[str], extents: dict[str, int]) -> list[Value]:
    products = [
        v for v in postorder(values) if v.op == "red" and dot_sides(v.args[0], _bound(v))
    ]
    busy = set(outs)
    for v in postorder(values):
        if v.op in ("online", "carry"):
            busy.add(v.attrs[-1])
    for v in products:
        busy |= set(v.free)

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "red" and v.attrs[1] in busy and v in chosen:
            op, axis = v.attrs
            new = axis + "_"
            while new in extents:
                new += "_"
            extents[new] = extents[axis]
            return terms.remake(v, (terms.rename_bound(args[0], axis, new),), (op, new))
        return terms.remake(v, args)

    chosen: set[Value] = set()
    for v in products:
        t = v
        while t.op == "red":  # every binder of the chain
            chosen.add(t)
            t = t.args[0]
    return terms.rewrite(values, step) if chosen else values


def _bound(v: Value) -> tuple[str, ...]:
    """The axes of a chain of reductions of one op."""
    out = []
    op = v.attrs[0]
    while v.op == "red" and v.attrs[0] == op:
        out.append(v.attrs[1])
        v = v.args[0]
    return tuple(out)


def dot_sides(body: Value, over: Sequence[str]) -> tuple[list[Value], list[Value]] | None:
    """The two operands of a sum of products, as lists of factors, or None.

    A sum over axes is *dot-like* when its factors fall into two groups of which each has a free
    axis that the other lacks (the rows and the columns); what is common is a batch axis.

        >>> from luminal_lab.egraph.values import Value
        >>> from luminal_lab.hlir.dtypes import F32
        >>> from luminal_lab.hlir.index import Index
        >>> load = lambda b, *a: Value("load", (), (b, tuple(map(Index.axis, a))), dtype=F32)
        >>> product = Value("mul", (load("x", "i", "k"), load("w", "k", "j")), dtype=F32)
        >>> dot_sides(product, ["k"])
        ([(load x (i, k))], [(load w (k, j))])
    """
    while body.op == "red":
        body = body.args[0]
    parts = terms.factors(body)
    if len(parts) < 2:
        return None
    over_set = frozenset(over)
    widest = max(
        range(len(parts)),
        key=lambda k: (len(parts[k].free & over_set) > 0, len(parts[k].free), -k),
    )
    if not parts[widest].free & over_set:
        return None
    left, right = [parts[widest]], []
    lf: frozenset[str] = parts[widest].free
    rf: frozenset[str] = frozenset()
    rest = [p for k, p in enumerate(parts) if k != widest]
    # The second side is the factor with the most axes that the first lacks.
    rest_sorted = sorted(range(len(rest)), key=lambda k: (-len(rest[k].free - lf), k))
    if not rest[rest_sorted[0]].free - lf:
        return None
    right.append(rest[rest_sorted[0]])
    rf = right[0].free
    for k in sorted(rest_sorted[1:]):
        p = rest[k]
        if p.free <= lf and not p.free <= rf:
            left.append(p)
        elif p.free <= rf and not p.free <= lf:
            right.append(p)
        elif p.free <= lf and p.free <= rf:
            left.append(p)
        else:
            return None
    if not (lf - rf - over_set) or not (rf - lf - over_set):
        return None
    if not over_set <= lf or not over_set <= rf:
        return None
    order = {id(p): k for k, p in enumerate(parts)}
    left.sort(key=lambda p: order[id(p)])
    right.sort(key=lambda p: order[id(p)])
    return (left, right)
