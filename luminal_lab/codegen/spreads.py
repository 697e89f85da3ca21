"""Sums of squared deviations from the mean in one pass, by merging what blocks have.

A `carry` statement of kind `spread` (values x, w) is the sum over j of w*(x - m)**2, where m is
the mean of x with the weights w. A block that is near is read twice, for its mean and for the
squared deviations from that; then it is merged into what the loop carries (Chan, Golub and
LeVeque, 1979):

    mb = mean over the block of x, with weights w
    vb = sum over the block of w*(x - mb)**2
    d  = mb - m
    t  = (weight of the block) / (weight of all so far)
    v  = v + vb + d*d * t * (weight before the block)
    m  = m + d*t

Nothing is subtracted that is not small: a sum of squares less a squared mean never occurs. A
plain sum of w*x over the axis shares the block's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Stmt
from luminal_lab.codegen.terms import const, op, ref
from luminal_lab.codegen.tile import Init, Node
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.dtypes import BOOL, I64, DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering

_TINY = 1e-37  # below it a weight is none


# ------------------------------------------------------------------------------- values


def is_spread(s: Stmt) -> bool:
    """Whether a statement sums squared deviations from a mean."""
    return s.kind == "carry" and s.op == "spread"


def weighted(x: Value, w: Value) -> Value:
    """The product w*x; x itself where w is 1."""
    return x if is_one(w) else op("mul", w, x)


def is_one(w: Value) -> bool:
    """Whether a weight is the constant 1."""
    return w.op == "const" and float(w.attrs[0]) == 1.0


def negated(a: Value) -> Value:
    """A number negated."""
    return op("mul", const(-1.0, a.dtype), a)


def minus(a: Value, b: Value) -> Value:
    """The difference of a and b."""
    return op("add", a, negated(b))


def deviation(x: Value, w: Value, less: Value) -> Value:
    """The squared deviation w*(x + less)**2, where `less` is the mean negated."""
    d = op("add", x, less)
    return weighted(op("mul", d, d), w)


def ratio(a: Value, b: Value) -> Value:
    """The quotient of a and b; 0 where b is 0, as it is while all weights were 0."""
    zero, one = const(0.0, b.dtype), const(1.0, b.dtype)
    nothing = _is_nothing(b)
    safe = Value("select", (nothing, one, b), dtype=b.dtype)
    quotient = op("mul", a, op("recip", safe))
    return Value("select", (nothing, zero, quotient), dtype=b.dtype)


def merged(spread: Value, block: Value, d: Value, part: Value, count: Value) -> Value:
    """The squared deviations of what has been seen and of a block whose mean is d apart."""
    between = op("mul", op("mul", d, d), op("mul", part, count))
    return op("add", op("add", spread, block), between)


def result(spread: Value, w: Value, count: Value) -> Value:
    """The squared deviations in the end: there is no mean where all weights were 0."""
    if is_one(w):
        return spread
    none = const(math.nan, spread.dtype)
    return Value("select", (_is_nothing(count), none, spread), dtype=spread.dtype)


def everywhere(w: Value, axis: str, extents: Mapping[str, Dim]) -> Value:
    """A weight that does not depend on an axis, as one for each of its points."""
    inside = Value(
        "lessthan", (terms.iota(Index.axis(axis)), const(extents[axis], I64)), dtype=BOOL
    )
    return Value("select", (inside, w, const(0.0, w.dtype)), dtype=w.dtype)


def _is_nothing(weight: Value) -> Value:
    tiny, less = const(_TINY, weight.dtype), const(-_TINY, weight.dtype)
    inside = (Value("lessthan", pair, dtype=BOOL) for pair in ((weight, tiny), (less, weight)))
    return Value("mul", tuple(inside), dtype=BOOL)


# ------------------------------------------------------------------------------- statements


def total_of(
    s: Stmt, axis: str, spreads: Sequence[tuple[Value, ...]]
) -> tuple[Value, ...] | None:
    """The pair (x, w) whose plain sum over an axis a statement is, if it is one's."""
    if s.kind != "reduce" or s.op != "add" or s.over != (axis,):
        return None
    return next((pair for pair in spreads if weighted(*pair) == s.value), None)


class State:
    """What a loop over an axis carries for the squared deviations of one (x, w).

    Arguments:
        x: The value.
        w: Its weight.
        axis: The axis.
        low: The lowering.
    """

    def __init__(self, x: Value, w: Value, axis: str, low: Lowering):
        self.x, self.w, self.axis, self.low = x, w, axis, low
        self.axes = (x.free | w.free) - {axis}
        self.dtype = x.dtype
        self.counted = w.free - {axis}
        self.mean, self.sum, self.count = (low.fresh(n) for n in ("mean", "dev", "count"))
        low.hold(self.mean, self.axes, self.dtype)
        low.hold(self.sum, self.axes, self.dtype)
        low.hold(self.count, self.counted, self.dtype)

    def _ref(self, name: str) -> Value:
        return ref(name, sorted(self.axes), self.dtype)

    def _number(self, name: str) -> Value:
        return ref(name, sorted(self.counted), self.dtype)

    def inits(self) -> list[Node]:
        """What precedes the loop that carries the state."""
        return [Init(name, 0.0) for name in (self.mean, self.sum, self.count)]

    def begin(self) -> list[Stmt]:
        """The sum of the block, and everything that is merged from it."""
        low, out, x = self.low, [], self.x
        if terms.is_expensive(x):
            name = low.fresh("x")
            out.append(Stmt(name, "set", (x,), x.dtype, x.free))
            x = ref(name, sorted(x.free), x.dtype)
        names = (low.fresh(n) for n in ("bw", "total", "bm", "bv", "by", "part"))
        bw, total, bm, bv, by, part = names
        over = (self.axis,)

        def add(name: str, value: Value, axes: frozenset[str]) -> None:
            out.append(Stmt(name, "reduce", (value,), self.dtype, axes, over, "add"))

        def let(name: str, value: Value, axes: frozenset[str]) -> None:
            out.append(Stmt(name, "set", (value,), self.dtype, axes))

        add(bw, self.w, self.counted)
        add(total, weighted(x, self.w), self.axes)
        let(bm, ratio(self._ref(total), self._number(bw)), self.axes)
        add(bv, deviation(x, self.w, negated(self._ref(bm))), self.axes)
        so_far = op("add", self._number(self.count), self._number(bw))
        let(part, ratio(self._number(bw), so_far), self.counted)
        let(by, minus(self._ref(bm), self._ref(self.mean)), self.axes)
        self.bw, self.total, self.bv, self.by, self.part = bw, total, bv, by, part
        return out

    def block_total(self) -> Value:
        """The block's sum of w*x."""
        return self._ref(self.total)

    def result(self, s: Stmt) -> Stmt:
        """The sum of the squared deviations, once the loop is over."""
        value = result(self._ref(self.sum), self.w, self._number(self.count))
        return Stmt(s.name, "set", (value,), s.dtype, s.axes)

    def last(self) -> list[Stmt]:
        """What is carried takes its new values: the count after all that read the old one."""
        d, t = self._ref(self.by), self._number(self.part)
        spread = merged(self._ref(self.sum), self._ref(self.bv), d, t, self._number(self.count))
        mean = op("add", self._ref(self.mean), op("mul", d, t))
        count = op("add", self._number(self.count), self._number(self.bw))
        names = (self.sum + ".next", self.mean + ".next", self.count + ".next")
        axes, dtype = self.axes, self.dtype
        return [
            Stmt(names[0], "set", (spread,), dtype, axes, target=self.sum),
            Stmt(names[1], "set", (mean,), dtype, axes, target=self.mean,
                 after=(self.by, names[0])),
            Stmt(names[2], "set", (count,), dtype, self.counted, target=self.count,
                 after=(self.part, names[0])),
        ]  # fmt: skip


def whole(stmts: Sequence[Stmt], low: Lowering) -> list[Stmt]:
    """Squared deviations along an axis that is one block: the mean, then the deviations."""
    out: list[Stmt] = []
    totals: dict[tuple[Value, tuple[str, ...]], Value] = {}
    for s in stmts:
        if s.kind == "reduce" and s.op == "add" and len(s.over) == 1:
            totals.setdefault((s.value, s.over), ref(s.name, sorted(s.axes), s.dtype))
        if not is_spread(s):
            out.append(s)
            continue
        x, w = s.values

        def total(value: Value, over: tuple[str, ...] = s.over) -> Value:
            if (value, over) not in totals:
                name, axes = low.fresh("total"), value.free - set(over)
                out.append(Stmt(name, "reduce", (value,), value.dtype, axes, over, "add"))
                totals[value, over] = ref(name, sorted(axes), value.dtype)
            return totals[value, over]

        if is_one(w):
            n = low.extents[s.over[0]]
            less = op("mul", _negative_reciprocal(n, x.dtype), total(x))
        else:
            less = negated(op("mul", total(weighted(x, w)), op("recip", total(w))))
        value = deviation(x, w, less)
        out.append(Stmt(s.name, "reduce", (value,), s.dtype, s.axes, s.over, "add"))
    return out


def _negative_reciprocal(n: Dim, dtype: DType) -> Value:
    if isinstance(n, int):
        return const(-1.0 / n, dtype)
    return op("recip", Value("cast", (terms.iota(Index.num(-n)),), dtype=dtype))
