"""Long reductions to few results, cut into parts that run in parallel.

`sum over n` of N terms becomes `sum over c` of `sum over m` with n = c*M + m, and the inner sum
a statement of its own: its parts are the tasks of a grid. This is what a kernel needs whose
output axes alone cannot occupy the machine: a total, the statistics of a few long rows.
"""

from __future__ import annotations

from dataclasses import replace

from luminal_lab.codegen import terms
from luminal_lab.codegen.analysis import loads, points
from luminal_lab.codegen.body import Body, Stmt
from luminal_lab.codegen.rename import dot_sides
from luminal_lab.codegen.spreads import is_one, is_spread
from luminal_lab.codegen.terms import const, op, ref
from luminal_lab.hlir.index import Index
from luminal_lab.search.machine import Machine

WORTH = 1 << 18  # points of a reduction, below which one thread is as fast


def split_reductions(body: Body, machine: Machine) -> Body:
    """The body with its long reductions in two steps, where its outputs are too few."""
    stmts: list[Stmt] = []
    extents = dict(body.extents)
    hints = body.tuned.extents
    names = {s.name for s in body.stmts}
    reduced = {a for s in body.stmts for a in s.over}
    tasks = max((points(s.axes - reduced, hints) for s in body.stores()), default=0)
    for s in body.stmts:
        axis = _axis(s, hints, body.symbolic) if tasks < 2 * machine.threads else None
        count = _count(extents[axis], machine) if axis else 1
        if axis is None or count == 1:
            stmts.append(s)
            continue
        outer, inner = _fresh(axis + ".part", extents), _fresh(axis + ".rest", extents)
        size = extents[axis] // count
        extents[outer], extents[inner] = count, size
        at = {axis: Index.axis(outer) * size + Index.axis(inner)}
        values = tuple(terms.substitute(v, at, extents) for v in s.values)
        over = tuple(inner if a == axis else a for a in s.over)
        name = _unused(s.name + ".part", names)
        part = replace(s, name=name, values=values, axes=s.axes | {outer}, over=over)
        whole = [ref(name, sorted(part.axes), s.dtype)]
        if is_spread(s):
            stmts += _merged(s, part, size, names)
            continue
        if s.kind == "carry":  # the part's maximum, and its place
            x = values[0]
            name, axes = _unused(s.name + ".top", names), x.free - {inner}
            stmts.append(Stmt(name, "reduce", (x,), x.dtype, axes, over, "max"))
            whole.insert(0, ref(name, sorted(axes), x.dtype))
        stmts += [part, replace(s, values=tuple(whole), over=(outer,))]
    split = len(stmts) > len(body.stmts)
    return replace(body, stmts=tuple(stmts), extents=extents, split=split)


def _axis(s: Stmt, extents, symbolic: frozenset[str]) -> str | None:
    """The axis to cut, or None: products, and reductions of scratch, stay whole.

    An axis whose extent is known at the call only has no parts of equal size.
    """
    if s.kind not in ("reduce", "carry") or points(s.space, extents) < WORTH:
        return None
    if is_spread(s) and not is_one(s.values[1]):
        return None
    if s.op == "add" and dot_sides(s.value, s.over) is not None:
        return None
    fixed = sorted(set(s.over) - symbolic)
    if not fixed:
        return None
    axis = max(fixed, key=lambda a: extents[a])
    held = any(v.attrs[0].startswith("%") and axis in v.free for v in loads(s))
    return None if held else axis  # scratch is addressed by whole axes


def _count(n: int, machine: Machine) -> int:
    """Into how many equal parts: a divisor of n, a few per thread."""
    most = 16 * machine.threads
    return max((d for d in range(2 * machine.threads, most + 1) if n % d == 0), default=1)


def _merged(s: Stmt, part: Stmt, size: int, names: set[str]) -> list[Stmt]:
    """Deviations from the mean of all: those within each part, and those of their means."""
    (outer,), dtype = part.axes - s.axes, s.dtype
    total, within, between = (
        _unused(s.name + end, names) for end in (".total", ".within", ".between")
    )
    deviations, summed = (ref(n, sorted(part.axes), dtype) for n in (part.name, total))
    mean = op("mul", const(1.0 / size, dtype), summed)
    of_parts, of_means = (ref(n, sorted(s.axes), dtype) for n in (within, between))
    value = op("add", of_parts, op("mul", const(float(size), dtype), of_means))
    return [
        part,
        replace(part, name=total, kind="reduce", op="add", values=part.values[:1]),
        Stmt(within, "reduce", (deviations,), dtype, s.axes, (outer,), "add"),
        replace(s, name=between, over=(outer,), values=(mean, s.values[1])),
        Stmt(s.name, "set", (value,), dtype, s.axes),
    ]


def _unused(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _fresh(name: str, extents) -> str:
    while name in extents:
        name += "_"
    return name
