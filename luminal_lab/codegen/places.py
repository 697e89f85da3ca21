"""The place of an extreme: the greatest x and where it is first are carried together.

A `carry` statement (values x, p) says: the least p over j among those where x is greatest; NaN
is greater than all. A place is never looked for by equality with a maximum that other
instructions computed: x is computed once, kept where it is more than a plain read, and read
twice. Per block of j:

    bm = maximum over the block of x
    bq = maximum over the block of -p where x is bm
    mn = maximum(m, bm)
    q  = maximum(q where m is mn, bq where bm is mn)
    m  = mn

and the result is -q. Statements with one x over one axis share all but their q, and a plain
maximum of x over the axis is m. Places that fit into 32 bits are carried in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Stmt, identity
from luminal_lab.codegen.terms import const, op, ref
from luminal_lab.codegen.tile import Init, Node
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import BOOL, I32, DType
from luminal_lab.hlir.sizes import Dim

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering

_SAME = frozenset({"load", "const", "iota", "cast", "select", "lessthan"})  # round nothing anew


# ------------------------------------------------------------------------------- values


def is_same_again(x: Value) -> bool:
    """Whether a term has the same bits wherever a kernel computes it: nothing in it rounds."""
    return all(t.op in _SAME or not t.dtype.is_float or _is_negation(t) for t in postorder([x]))


def _is_negation(t: Value) -> bool:
    return t.op == "mul" and any(a.op == "const" and a.attrs[0] == -1 for a in t.args)


def misses(x: Value, best: Value) -> Value:
    """Where x is not the maximum `best`, which is NaN if some x is."""
    less = _less(x, best)
    if not x.dtype.is_float:
        return less
    beaten = _and(_ordered(x), _not(_ordered(best)))
    return Value("add", (less, beaten), dtype=BOOL)


def only(value: Value, x: Value, best: Value) -> Value:
    """An integer where x is the maximum `best`, elsewhere what no maximum takes."""
    low = const(identity("max", value.dtype), value.dtype)
    return Value("select", (misses(x, best), low, value), dtype=value.dtype)


def negative(p: Value, extents: Mapping[str, Dim]) -> Value:
    """The place p, negated, in 32 bits where it fits."""
    low, high = terms.int_range(p, extents, {})
    dtype = I32 if low > -(1 << 31) and high < 1 << 31 else p.dtype
    if p.op == "iota":
        return terms.iota(-p.attrs[0], dtype)
    narrow = p if dtype is p.dtype else Value("cast", (p,), dtype=dtype)
    return op("mul", const(-1, dtype), narrow)


def positive(q: Value, dtype: DType) -> Value:
    """The place that `negative` made q of."""
    wide = q if q.dtype is dtype else Value("cast", (q,), dtype=dtype)
    return op("mul", const(-1, dtype), wide)


def _less(a: Value, b: Value) -> Value:
    return Value("lessthan", (a, b), dtype=BOOL)


def _and(a: Value, b: Value) -> Value:
    return Value("mul", (a, b), dtype=BOOL)


def _not(p: Value) -> Value:
    return Value("select", (p, const(False, BOOL), const(True, BOOL)), dtype=BOOL)


def _ordered(x: Value) -> Value:
    """Where x is not NaN."""
    infinite = const(float("inf"), x.dtype)
    below, above = _less(x, infinite), _less(const(float("-inf"), x.dtype), x)
    return Value("add", (below, above), dtype=BOOL)


# ------------------------------------------------------------------------------- statements


def is_place(s: Stmt) -> bool:
    """Whether a statement looks for the place of a maximum."""
    return s.kind == "carry" and s.op == "argmax"


def is_top(s: Stmt, axis: str, scores: Sequence[Value]) -> bool:
    """Whether a statement is the plain maximum over an axis of one of the values."""
    return s.kind == "reduce" and s.op == "max" and s.over == (axis,) and s.value in scores


class State:
    """What statements with one x over one axis share.

    Arguments:
        x: The value whose maximum is looked for.
        axis: The axis.
        low: The lowering.
        carried: Whether a loop carries the state from block to block.
    """

    def __init__(self, x: Value, axis: str, low: Lowering, carried: bool):
        self.x, self.axis, self.low, self.carried = x, axis, low, carried
        self.axes = x.free - {axis}
        self.names: list[str] = []
        self.m = low.fresh("m") if carried else ""
        if carried:
            low.hold(self.m, self.axes, x.dtype)

    def _ref(self, name: str) -> Value:
        return ref(name, sorted(self.axes), self.x.dtype)

    def inits(self) -> list[Node]:
        """What precedes the loop that carries the state."""
        return [Init(self.m, identity("max", self.x.dtype))]

    def begin(self) -> list[Stmt]:
        """The maximum of the block, and of what has been seen."""
        low, out, x = self.low, [], self.x
        if not is_same_again(x):
            name = low.fresh("x")
            out.append(Stmt(name, "set", (x,), x.dtype, x.free))
            x = ref(name, sorted(x.free), x.dtype)
        self.y, self.top = x, low.fresh("bm")
        out.append(Stmt(self.top, "reduce", (x,), x.dtype, self.axes, (self.axis,), "max"))
        if self.carried:
            self.new = low.fresh("mn")
            value = op("maximum", self._ref(self.m), self._ref(self.top))
            out.append(Stmt(self.new, "set", (value,), x.dtype, self.axes))
            self.names = [self.new]
        return out

    def maximum(self) -> Value:
        """The maximum: of the block, or of all when the loop is over."""
        return self._ref(self.m if self.carried else self.top)

    def place(self, s: Stmt) -> tuple[list[Stmt], list[Node], list[Stmt]]:
        """One place: statements in the block, nodes before the loop, statements after it."""
        low, p = self.low, negative(s.values[1], self.low.extents)
        value = only(p, self.y, self._ref(self.top))
        block = low.fresh("bq")
        axes = value.free - {self.axis}
        inner = [Stmt(block, "reduce", (value,), p.dtype, axes, (self.axis,), "max")]
        low.inherit(block, s.name)
        found = ref(block, sorted(axes), p.dtype)
        if not self.carried:
            result = positive(found, s.dtype)
            return [*inner, Stmt(s.name, "set", (result,), s.dtype, s.axes)], [], []
        q = low.fresh("q")
        low.hold(q, s.axes, p.dtype)
        here, new = ref(q, sorted(s.axes), p.dtype), self._ref(self.new)
        old = only(here, self._ref(self.m), new)
        update = op("maximum", old, only(found, self._ref(self.top), new))
        inner.append(Stmt(q + ".next", "set", (update,), p.dtype, s.axes, target=q))
        self.names.append(q + ".next")
        after = Stmt(s.name, "set", (positive(here, s.dtype),), s.dtype, s.axes)
        return inner, [Init(q, identity("max", p.dtype))], [after]

    def last(self) -> Stmt:
        """M takes its new value after everybody has read the old one."""
        value = self._ref(self.new)
        return Stmt(self.m + ".next", "set", (value,), value.dtype, self.axes,
                    target=self.m, after=tuple(self.names))  # fmt: skip


def whole(stmts: Sequence[Stmt], low: Lowering) -> list[Stmt]:
    """Places along an axis that is one block: nothing is carried."""
    out: list[Stmt] = []
    states: dict[tuple[Value, str], State] = {}
    wanted = {(s.value, s.over[0]) for s in stmts if is_place(s)}
    for s in stmts:
        axis = s.over[0] if s.over else ""
        top = is_top(s, axis, [x for x, a in wanted if a == axis])
        if not top and not is_place(s):
            out.append(s)
            continue
        key = (s.value, axis)
        if key not in states:
            states[key] = State(s.value, axis, low, carried=False)
            out += states[key].begin()
        if top:
            out.append(Stmt(s.name, "set", (states[key].maximum(),), s.dtype, s.axes))
        else:
            out += states[key].place(s)[0]
    return out
