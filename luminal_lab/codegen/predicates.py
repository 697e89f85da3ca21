"""Predicates of selects: where a whole block satisfies one, which blocks need no visit.

A comparison of affine expressions in which the loop's axis has coefficient 1 or -1 (a causal
mask, a window, padding) divides the axis' blocks into those where it holds everywhere, those
where it holds nowhere, and those between. Each part gets a loop of its own, in which the
comparison is a constant wherever it is one; a part whose online reductions then see only -inf
is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from luminal_lab.codegen import analysis, terms
from luminal_lab.codegen.body import Stmt, identity
from luminal_lab.codegen.terms import const
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import at_least, largest, smallest

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering, Scope

Bounds = tuple[Index, ...]
Part = tuple[Bounds, Bounds, dict[Value, Value]]
Segment = tuple[Bounds, Bounds, list[Stmt]]
MAX_BODIES = 4  # copies of a loop's body
# Points of a window up to which compilers unroll it, bounds being constants: 25 points took 1.4
# times as long with bounds that are not, 49 points 0.7 times.
UNROLLED = 32


def segments(
    stmts: Sequence[Stmt],
    axis: str,
    step: int,
    scope: Scope,
    low: Lowering,
    dead: Sequence[Value] = (),
) -> list[Segment]:
    """The loops over an axis that together do what one loop over all of its blocks does.

    Arguments:
        stmts: The statements of the loop's body.
        axis: Its axis.
        step: Points of a block.
        scope: The enclosing loops, this one included.
        low: The lowering.
        dead: Values which, when all of them are -inf in a block, make the block superfluous.

    Returns:
        For each loop its lower and upper bounds (see `tile.Loop`) and its statements.
    """
    atoms = _comparisons([v for s in stmts for v in s.values] + list(dead), axis)
    parts: list[Part] = [((), (), {})]
    for atom, form in atoms:
        pieces = _pieces(atom, form, axis, step, scope, low)
        wider = [
            (lo + lo2, hi + hi2, by | by2) for lo, hi, by in parts for lo2, hi2, by2 in pieces
        ]
        wider = [p for p in wider if not _superfluous(p, dead)]
        if len(wider) > MAX_BODIES:
            break
        parts = wider
    out: list[Segment] = []
    for lo, hi, by in parts:
        out.append((lo, hi, [s.map(lambda v, by=by: simplify(v, by)) for s in stmts]))
    return out


def window(
    stmts: Sequence[Stmt], axis: str, scope: Scope, low: Lowering
) -> tuple[Bounds, Bounds, list[Stmt]]:
    """The points of a reduced axis at which its terms are more than what changes nothing.

    A window reaches beyond an image at its edges; the terms there are a choice's other branch,
    which is 0 in a sum and -inf in a maximum. Where the loops around decide that for all that
    a statement computes at once, the loop leaves these points out.

    Arguments:
        stmts: What a loop over single points of the axis holds.
        axis: That axis.
        scope: The enclosing loops.
        low: The lowering.

    Returns:
        Lower and upper bounds of the loop, and the statements in which what holds is decided.
    """
    same: list[tuple[Value, Index]] | None = None
    for s in stmts:
        points = analysis.points(s.over, low.hints)
        if (
            points <= UNROLLED
            or s.kind != "reduce"
            or axis not in s.over
            or s.value.op != "select"
        ):
            return (), (), list(stmts)
        condition, _, other = s.value.args
        if other.op != "const" or other.attrs[0] != identity(s.op, s.dtype):
            return (), (), list(stmts)
        found = [
            (atom, form)
            for atom, form in _comparisons([condition], axis)
            if _conjunct(condition, atom)
            and all(scope.step(a, low.extents) == 1 for a in form.axes - {axis})
        ]
        if same is not None and found != same:
            return (), (), list(stmts)
        same = found
    lower: list[Index] = []
    upper: list[Index] = []
    by: dict[Value, Value] = {}
    for atom, form in same or ():
        sign = form.coef(axis)
        least, _ = _range(form - Index.axis(axis) * sign, scope, low)
        if sign > 0:
            lower.append(-least)
        else:
            upper.append(least + 1)
        by[atom] = const(True, BOOL)
    if not by:
        return (), (), list(stmts)
    decided = [s.map(lambda v: simplify(v, by)) for s in stmts]
    return tuple(lower), tuple(upper), decided


def _conjunct(condition: Value, atom: Value) -> bool:
    """Whether a condition holds nowhere that the comparison does not."""
    if condition == atom:
        return True
    conjunction = condition.op == "mul" and condition.dtype is BOOL
    return conjunction and any(_conjunct(a, atom) for a in condition.args)


def affine(v: Value) -> Index | None:
    """The term as an index expression, if it is one."""
    if v.op == "iota":
        return v.attrs[0] if v.attrs[0].is_affine else None
    if v.op == "const":
        x = v.attrs[0]
        return Index.num(int(x)) if float(x) == int(x) else None
    if v.op == "cast" and v.args[0].dtype.is_int:
        return affine(v.args[0])
    if v.op == "add" and v.dtype.is_int:
        a, b = affine(v.args[0]), affine(v.args[1])
        return a + b if a is not None and b is not None else None
    if v.op == "mul" and v.dtype.is_int:
        a, b = affine(v.args[0]), affine(v.args[1])
        if a is not None and b is not None and not (a.terms and b.terms):
            return b * a.const if not a.terms else a * b.const
    return None


def _comparisons(values: Sequence[Value], axis: str) -> list[tuple[Value, Index]]:
    """Comparisons that depend on the axis, each as `form >= 0`."""
    out: dict[Value, Index] = {}
    for v in postorder(values):
        if v.op != "lessthan" or axis not in v.free or v.args[0].dtype.kind == "bool":
            continue
        if any(_is_infinite(a) for a in v.args):
            continue
        a, b = affine(v.args[0]), affine(v.args[1])
        if a is not None and b is not None:
            form = b - a - 1
            if form.coef(axis) in (1, -1) and _signs_known(form):
                out[v] = form
    return list(out.items())


def _signs_known(form: Index) -> bool:
    return all(at_least(c, 0) or at_least(-c, 0) for _, c in form.terms)


def _is_infinite(v: Value) -> bool:
    return v.op == "const" and not math.isfinite(float(v.attrs[0]))


def _pieces(
    atom: Value, form: Index, axis: str, step: int, scope: Scope, low: Lowering
) -> list[Part]:
    """Blocks where `form >= 0` everywhere, where it is mixed, and where it is nowhere so."""
    sign = form.coef(axis)
    rest = form - Index.axis(axis) * sign
    least, most = _range(rest, scope, low)
    yes, no = {atom: const(True, BOOL)}, {atom: const(False, BOOL)}
    if sign < 0:  # rest - t >= 0: true for small t
        return [
            ((), (least - step + 2,), yes),
            ((least + 1,), (most + 1,), {}),
            ((most + step,), (), no),
        ]
    return [
        ((), (-most - step + 1,), no),
        ((-most,), (-least,), {}),
        ((-least + step - 1,), (), yes),
    ]


def _range(rest: Index, scope: Scope, low: Lowering) -> tuple[Index, Index]:
    """Least and greatest value over the current blocks, over the loops' variables."""
    bound = {a for a, _, _ in scope.path}
    least = most = Index.num(rest.const)
    for atom, coef in rest.terms:
        assert isinstance(atom, str)
        size = scope.step(atom, low.extents)
        base = Index.axis(atom) * coef if atom in bound else Index.num(0)
        reach = coef * (size - 1)
        least = least + base + smallest(reach, 0)
        most = most + base + largest(reach, 0)
    return least, most


def _superfluous(part: Part, dead: Sequence[Value]) -> bool:
    return bool(dead) and all(_minus_inf(simplify(v, part[2])) for v in dead)


def _minus_inf(v: Value) -> bool:
    return v.op == "const" and v.dtype.is_float and float(v.attrs[0]) == -math.inf


def simplify(root: Value, by: dict[Value, Value]) -> Value:
    """The term with comparisons replaced by constants, and what follows from that.

    Adding -inf gives -inf (also to NaN and to +inf, which a skipped block does not look at).
    """
    if not by:
        return root

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v in by:
            return by[v]
        if args == v.args:
            return v
        if v.op == "select" and args[0].op == "const":
            return args[1] if args[0].attrs[0] else args[2]
        if v.dtype.kind == "bool" and v.op in ("mul", "add"):
            for a, b in (args, args[::-1]):
                if a.op == "const":
                    neutral = v.op == "mul"
                    return b if bool(a.attrs[0]) is neutral else const(not neutral, BOOL)
        if v.op == "lessthan" and args[0].dtype.kind == "bool":
            a, b = args
            if (b.op == "const" and not b.attrs[0]) or (a.op == "const" and a.attrs[0]):
                return const(False, BOOL)
            if a.op == "const":
                return b
        if v.op == "add" and v.dtype.is_float:
            if any(_minus_inf(a) for a in args):
                return const(-math.inf, v.dtype)
            for a, b in (args, args[::-1]):
                if a.op == "const" and float(a.attrs[0]) == 0.0:
                    return b
        if v.op == "mul" and v.dtype.is_float:
            for a, b in (args, args[::-1]):
                if _minus_inf(a) and b.op == "const" and float(b.attrs[0]) > 0:
                    return a
        if v.op == "cast" and args[0].op == "const" and v.dtype.is_float:
            return const(float(args[0].attrs[0]), v.dtype)
        return terms.remake(v, args)

    return terms.rewrite([root], step)[0]
