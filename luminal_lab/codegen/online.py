"""Reductions that a shared loop carries from block to block, online ones among them.

At a shared loop over `t`, a plain reduction becomes: an accumulator, a reduction of the block
alone, and an update. An `online` reduction (sum over t of exp2(c*(s - max s)) * w) becomes

    m, acc = -inf, 0
    for each block:
        mn  = maximum(m, max over the block of s)
        mz  = mn, or 0 while mn is -inf          (else -inf - -inf would give NaN)
        al  = exp2(c * (m - mz))                 (0 while m is -inf)
        p   = exp2(c * (s - mz))
        acc = acc * al + sum over the block of p * w
        m   = mn                                 (last: al reads the old one)
    acc is NaN where m is still -inf, as the reference gives

Statements with the same (t, s, c) share m and p, and a plain maximum of s over t is m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Stmt, identity
from luminal_lab.codegen.places import State as PlaceState
from luminal_lab.codegen.places import is_place, is_top
from luminal_lab.codegen.spreads import State as SpreadState
from luminal_lab.codegen.spreads import is_spread, total_of
from luminal_lab.codegen.terms import const, op, ref
from luminal_lab.codegen.tile import Init, Node
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.dtypes import BOOL

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering


def carry(
    part: Sequence[Stmt], axis: str, low: Lowering
) -> tuple[list[Stmt], list[Node], list[Stmt]]:
    """The statements inside a shared loop, the nodes before it, and the statements after it."""
    inner: list[Stmt] = []
    inits: list[Node] = []
    after: list[Stmt] = []
    states: dict[tuple[Value, Value], _State] = {}
    scores = {s.values[0]: s for s in part if s.kind == "online" and s.over == (axis,)}
    places = {s.value: None for s in part if is_place(s) and s.over == (axis,)}
    found: dict[Value, PlaceState] = {}
    spreads = [s.values for s in part if is_spread(s) and s.over == (axis,)]
    spread: dict[tuple[Value, ...], SpreadState] = {}
    for s in part:
        if axis not in s.over:
            inner.append(s)
        elif s.kind == "reduce" and s.op == "max" and s.over == (axis,) and s.value in scores:
            # The maximum is a part of the state: nothing is reduced for it alone.
            other = scores[s.value]
            key = (other.values[0], other.values[1])
            if key not in states:
                states[key] = _State(other, low)
                inits.append(Init(states[key].m, -math.inf))
                inner += states[key].begin()
            after.append(_set(s.name, states[key].maximum(), s.axes))
        elif is_top(s, axis, list(places)) or (is_place(s) and s.over == (axis,)):
            if s.value not in found:
                found[s.value] = PlaceState(s.value, axis, low, carried=True)
                inits += found[s.value].inits()
                inner += found[s.value].begin()
            if s.kind == "reduce":
                after.append(_set(s.name, found[s.value].maximum(), s.axes))
                continue
            for parts, more in zip((inner, inits, after), found[s.value].place(s)):
                parts.extend(more)  # type: ignore[arg-type]
        elif s.kind == "online":
            key = (s.values[0], s.values[1])
            if key not in states:
                states[key] = _State(s, low)
                inits.append(Init(states[key].m, -math.inf))
                inner += states[key].begin()
            inits.append(states[key].add(s, inner, after))
        elif is_spread(s):
            state = _spread(s.values, axis, low, spread, inits, inner)
            after.append(state.result(s))
        elif (pair := total_of(s, axis, spreads)) is not None:
            state = _spread(pair, axis, low, spread, inits, inner)
            low.declare(replace(s, over=()))
            inits.append(Init(s.name, 0.0))
            update = op("add", ref(s.name, sorted(s.axes), s.dtype), state.block_total())
            inner.append(_set(s.name + ".next", update, s.axes, target=s.name))
        else:
            block = replace(s, name=low.fresh(s.name[1:] + ".block"))
            low.inherit(block.name, s.name)
            low.declare(replace(s, over=()))
            inits.append(Init(s.name, identity(s.op, s.dtype)))
            here, part_ = (ref(n, sorted(s.axes), s.dtype) for n in (s.name, block.name))
            name = "maximum" if s.op == "max" else "add"
            update = op(name, here, part_)
            inner += [block, _set(s.name + ".next", update, s.axes, target=s.name)]
    for state in (*states.values(), *found.values()):
        inner.append(state.last())
    for carried in spread.values():
        inner += carried.last()
    return inner, inits, after


def _spread(
    key: tuple[Value, ...],
    axis: str,
    low: Lowering,
    known: dict[tuple[Value, ...], SpreadState],
    inits: list[Node],
    inner: list[Stmt],
) -> SpreadState:
    """The state of the squared deviations of (x, w), begun where it is new."""
    if key not in known:
        x, w = key
        known[key] = SpreadState(x, w, axis, low)
        inits += known[key].inits()
        inner += known[key].begin()
    return known[key]


def _set(name: str, value: Value, axes: frozenset[str], *, target: str = "", after=()) -> Stmt:
    return Stmt(name, "set", (value,), value.dtype, axes, target=target, after=tuple(after))


def _not_minus_inf(m: Value) -> Value:
    return Value("lessthan", (const(-math.inf, m.dtype), m), dtype=BOOL)


class _State:
    """The carried state of one (axis, s, c)."""

    def __init__(self, s: Stmt, low: Lowering):
        self.low, self.axis = low, s.over[0]
        self.s, self.c = s.values[0], s.values[1]
        self.axes = (self.s.free | self.c.free) - {self.axis}
        self.dtype = self.s.dtype
        self.m = low.fresh("m")
        low.hold(self.m, self.axes, self.dtype)
        self.names: list[str] = []

    def _ref(self, name: str) -> Value:
        return ref(name, sorted(self.axes), self.dtype)

    def begin(self) -> list[Stmt]:
        """Statements up to the weights p."""
        low, out = self.low, []
        s = self.s
        if terms.is_expensive(s) or any(n.startswith("%") for n in terms.reads(s)):
            name = low.fresh("s")
            staged = _set(name, s, s.free)
            out.append(staged)
            s = ref(name, sorted(s.free), s.dtype)
        bm, mn, mz, al = (low.fresh(n) for n in ("bm", "mn", "mz", "al"))
        axes = self.axes
        out.append(
            Stmt(bm, "reduce", (s,), self.dtype, s.free - {self.axis}, (self.axis,), "max")
        )
        m, block = self._ref(self.m), ref(bm, sorted(s.free - {self.axis}), self.dtype)
        out.append(_set(mn, op("maximum", m, block), axes))
        new = self._ref(mn)
        out.append(
            _set(mz, Value("select", (_not_minus_inf(new), new, const(0.0, self.dtype)),
                           dtype=self.dtype), axes)
        )  # fmt: skip
        base = self._ref(mz)
        out.append(_set(al, self._exp2(m, base), axes))
        self.al, self.mn, self.names = al, mn, [mn, al]
        self.p = self._exp2(s, base)
        self.staged_p = ""
        return out

    def _exp2(self, x: Value, base: Value) -> Value:
        gap = op("add", x, op("mul", const(-1.0, self.dtype), base))
        return op("exp2", op("mul", self.c, gap))

    def add(self, s: Stmt, inner: list[Stmt], after: list[Stmt]) -> Node:
        """One accumulator; returns its initialisation."""
        low, w = self.low, s.values[2]
        p = self._weights(inner)
        ones = w.op == "const" and float(w.attrs[0]) == 1.0
        value = p if ones else op("mul", p, w)
        acc, block = low.fresh("acc"), low.fresh("pw")
        low.hold(acc, s.axes, s.dtype)
        here = ref(acc, sorted(s.axes), s.dtype)
        axes = value.free - {self.axis}
        inner.append(Stmt(block, "reduce", (value,), s.dtype, axes, (self.axis,), "add"))
        low.inherit(block, s.name)
        scaled = op("mul", here, self._ref(self.al))
        update = op("add", scaled, ref(block, sorted(axes), s.dtype))
        inner.append(_set(acc + ".next", update, s.axes, target=acc))
        known = _not_minus_inf(self._ref(self.m))
        final = Value("select", (known, here, const(math.nan, s.dtype)), dtype=s.dtype)
        after.append(_set(s.name, final, s.axes))
        return Init(acc, 0.0)

    def _weights(self, inner: list[Stmt]) -> Value:
        """p, kept in scratch: it is used by every accumulator of this state."""
        if not self.staged_p:
            self.staged_p = self.low.fresh("p")
            inner.append(_set(self.staged_p, self.p, self.p.free))
        return ref(self.staged_p, sorted(self.p.free), self.dtype)

    def maximum(self) -> Value:
        """The maximum itself, once the loop is over."""
        return self._ref(self.m)

    def last(self) -> Stmt:
        """M takes its new value after everybody has read the old one."""
        return _set(self.m + ".next", self._ref(self.mn), self.axes, target=self.m,
                    after=self.names)  # fmt: skip


def whole(stmts: Sequence[Stmt], low: Lowering) -> list[Stmt]:
    """Online reductions whose axis is one block: the plain two-pass form, nothing carried."""
    out: list[Stmt] = []
    weights: dict[tuple[Value, Value], tuple[str, Value]] = {}
    for s in stmts:
        if s.kind != "online":
            out.append(s)
            continue
        axis, (x, c, w) = s.over[0], s.values
        if (x, c) not in weights:
            y = x
            if terms.is_expensive(x) or any(n.startswith("%") for n in terms.reads(x)):
                name = low.fresh("s")
                out.append(_set(name, x, x.free))
                y = ref(name, sorted(x.free), x.dtype)
            bm, p = low.fresh("bm"), low.fresh("p")
            axes = y.free - {axis}
            out.append(Stmt(bm, "reduce", (y,), y.dtype, axes, (axis,), "max"))
            top = ref(bm, sorted(axes), y.dtype)
            gap = op("add", y, op("mul", const(-1.0, y.dtype), top))
            value = op("exp2", op("mul", c, gap))
            out.append(_set(p, value, value.free))
            weights[x, c] = (p, ref(p, sorted(value.free), value.dtype))
        _, p_ref = weights[x, c]
        ones = w.op == "const" and float(w.attrs[0]) == 1.0
        value = p_ref if ones else op("mul", p_ref, w)
        axes = value.free - {axis}
        out.append(Stmt(s.name, "reduce", (value,), s.dtype, axes, (axis,), "add"))
    return out
