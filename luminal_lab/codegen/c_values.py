"""Values as C expressions: one point or one vector of points of a block at a time."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from luminal_lab.codegen import terms
from luminal_lab.codegen.c_prelude import C_TYPE
from luminal_lab.codegen.terms import span
from luminal_lab.codegen.tile import Local, TileProgram, is_local
from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, Symbol, at_least, c_text

# register types: letter -> (scalar, vector)
TYPES = {"f": ("float", "vf"), "d": ("double", "vd"), "i": ("int", "vi"), "l": ("long", "vl"),
         "b": ("int", "vi")}  # fmt: skip
SMALL_FLOATS = {"f16", "bf16", "f8e4m3", "f8e5m2"}
WRAP = {"i8": "(({x}) << 24 >> 24)", "i16": "(({x}) << 16 >> 16)", "u8": "(({x}) & 255)"}


@dataclass(frozen=True)
class Block:
    """The current block of an axis: `base` (C text) plus 0 … size-1.

    Arguments:
        base: C expression of its first point.
        size: Number of points, None when only known at run time (then `end` is its end).
        end: C expression.
        step: The step of the loop that bound it.
        aligned: What `base` is a multiple of; 0 when it is always 0.
        counts: The last, partial block of a vector axis: for each vector of it the C name of
            how many of its lanes are in use.
    """

    base: str
    size: int | None
    end: str
    step: int
    aligned: int = 1
    counts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expr:
    """A C expression; `type` is a letter of `TYPES`, `vector` whether it has lanes."""

    code: str
    type: str
    vector: bool = False


@dataclass
class Point:
    """Where in the block a statement is being printed: offsets, and the lanes in use."""

    offsets: dict[str, int]
    vector: str | None = None
    count: int | str = 0  # lanes in use, a number or C text; 0 for all

    def key(self, free: frozenset[str]) -> tuple:
        """What distinguishes the value of a term with these free axes at this point."""
        return tuple(sorted((a, o) for a, o in self.offsets.items() if a in free))


def letter(dtype: DType) -> str:
    """The register type of a dtype."""
    if dtype.kind == "bool":
        return "b"
    if dtype.is_float:
        return "d" if dtype.name == "f64" else "f"
    return "l" if dtype.name == "i64" else "i"


def number(value: float | int | bool, type_: str) -> str:
    """A C literal."""
    if type_ == "b":
        return "1" if value else "0"
    if type_ in "il":
        n = int(value)
        if type_ == "i":
            return "(-2147483647 - 1)" if n == -(1 << 31) else str(n)
        return "(-9223372036854775807L - 1)" if n == -(1 << 63) else f"{n}L"
    x = float(value)
    suffix = "f" if type_ == "f" else ""
    if math.isnan(x):
        return f'__builtin_nan{suffix}("")'
    if type_ == "f" and not math.isinf(x):
        try:
            x = struct.unpack("f", struct.pack("f", x))[0]
        except OverflowError:
            x = math.copysign(math.inf, x)
    if math.isinf(x):
        return f"{'-' if x < 0 else ''}__builtin_inf{suffix}()"
    text = format(x, ".9g" if type_ == "f" else ".17g")
    if not any(c in text for c in ".e"):
        text += ".0"
    return text + suffix


@dataclass
class Scope:
    """What the printer of values needs to know about where it is."""

    program: TileProgram
    blocks: Mapping[str, Block]
    emit: Callable[[str], None]
    fresh: Callable[[], str]
    local_name: Callable[[str, tuple[int, ...]], str]
    pointer: Callable[[str], str]
    origins: Mapping[str, str]  # loop variable -> C expression of its value
    vectors: Mapping[str, str | None]  # register local -> its vector axis
    size_name: Callable[[Symbol], str] = str  # the C variable of a size symbol
    memo: dict[tuple, Expr] = field(default_factory=dict)
    ranges: dict[Value, tuple[int, int]] = field(default_factory=dict)
    users: Counter = field(default_factory=Counter)
    cancelling: dict[Value, bool] = field(default_factory=dict)
    turned: dict[tuple, str] = field(default_factory=dict)  # transposed blocks of loads


class ValuePrinter:
    """Prints values in one scope; equal terms at equal points are printed once."""

    def __init__(self, scope: Scope):
        self.s = scope
        self.extents = scope.program.extents

    # ------------------------------------------------------------------ types and conversions

    def type_of(self, v: Value) -> str:
        """The register type of a term; small 64-bit integers are computed in 32 bits."""
        t = letter(v.dtype)
        if t != "l":
            return t
        lo, hi = terms.int_range(v, self.extents, self.s.ranges)
        if lo < -(1 << 31) or hi >= 1 << 31:
            return "l"
        if v.op in ("add", "mul", "mod"):
            return "i" if all(self.type_of(a) == "i" for a in v.args) else "l"
        if v.op == "select":
            return "i" if all(self.type_of(a) == "i" for a in v.args[1:]) else "l"
        if v.op == "cast":
            return "i" if self.type_of(v.args[0]) in "ib" else "l"
        return "i" if v.op in ("iota", "const") else "l"

    def convert(self, e: Expr, to: str) -> Expr:
        """The same number in another register type."""
        if e.type == to:
            return e
        if e.vector:
            vector = TYPES[to][1]
            if to == "b":
                if e.type in "fi":
                    return Expr(f"(vi)({e.code} != 0)", "b", True)
                return Expr(f"LL_CONVERT({e.code} != 0, vi)", "b", True)
            code = f"-({e.code})" if e.type == "b" else e.code
            if e.type == "b" and to == "i":
                return Expr(code, to, True)
            return Expr(f"LL_CONVERT({code}, {vector})", to, True)
        if to == "b":
            return Expr(f"(({e.code}) != 0)", "b")
        return Expr(f"(({TYPES[to][0]})({e.code}))", to)

    def splat(self, e: Expr) -> Expr:
        """The expression with lanes."""
        if e.vector:
            return e
        if e.type == "b":
            return Expr(f"ll_vi(-({e.code}))", "b", True)
        return Expr(f"ll_v{e.type}({e.code})", e.type, True)

    # ------------------------------------------------------------------ indices

    def size(self, n: Dim) -> str:
        """A size as a C expression."""
        return c_text(n, self.s.size_name)

    def long(self, n: Dim) -> str:
        """Likewise, of type long."""
        return f"{n}L" if isinstance(n, int) else self.size(n)

    def axis(self, a: str, p: Point, lane: str = "") -> tuple[str, int]:
        """The C text of an axis at a point, as base and constant offset."""
        block = self.s.blocks.get(a)
        base = block.base if block else "0"
        offset = p.offsets.get(a, 0)
        if lane and a == p.vector:
            base = lane if base == "0" else f"({base} + {lane})"
        return base, offset

    def index(self, i: Index, p: Point, args: list[str] | None = None, lane: str = "") -> str:
        """An index expression at a point; constants are folded to the end."""
        parts: list[str] = []
        total: Dim = i.const
        for atom, coef in i.terms:
            if isinstance(atom, str):
                if atom.startswith("@"):
                    assert args is not None
                    text, offset = args[int(atom[1:])], 0
                else:
                    text, offset = self.axis(atom, p, lane)
                total += offset * coef
                if text == "0":
                    continue
            else:
                inner = self.index(atom.inner, p, args, lane)
                bounds = {a: self.extents.get(a, 1 << 30) for a in atom.inner.axes}
                safe = at_least(atom.inner.bounds(bounds)[0], 0) and not any(
                    a.startswith("@") for a in atom.inner.axes
                )
                by = self.size(atom.by)
                if inner.lstrip("-").isdigit() and isinstance(atom.by, int):
                    n = int(inner)
                    total += coef * (n // atom.by if atom.op == "//" else n % atom.by)
                    continue
                if safe:
                    text = f"({inner}) {'/' if atom.op == '//' else '%'} {by}"
                else:
                    text = f"ll_{'fdiv' if atom.op == '//' else 'fmod'}({inner}, {by})"
                text = f"({text})"
            parts.append(text if coef == 1 else f"{text}*{self.size(coef)}")
        if total != 0 or not parts:
            parts.append(self.size(total))
        return " + ".join(parts).replace("+ -", "- ")

    def local_address(self, local: Local, p: Point, lane: str = "") -> str:
        """The element offset of a local's point in its memory."""
        sizes = local.sizes()
        dims = {d.axis: d for d in local.dims}
        left = {d.axis: 0 for d in local.dims}
        parts: list[str] = []
        total: Dim = 0
        stride: Dim = 1
        strides: list[Dim] = []
        for n in reversed(sizes):
            strides.append(stride)
            stride *= n
        strides.reverse()
        for (axis, gran), step in zip(local.layout, strides):
            base, offset = self.axis(axis, p, lane)
            block = self.s.blocks.get(axis)
            origin = self.s.origins.get(dims[axis].origin, "0") if dims[axis].origin else "0"
            if origin == base:
                base = "0"
            elif origin != "0":
                base = f"({base} - {origin})"
            outer = left[axis]
            left[axis] = gran
            aligned = block is None or (block.aligned % max(gran, outer or 1) == 0)
            lanes_ok = not lane or axis != p.vector
            text = self.size(step)
            if gran > 1:  # a panel number
                if aligned and lanes_ok and offset < gran:
                    if base != "0":
                        parts.append(f"{base} / {gran} * {text}")
                elif base == "0" and lanes_ok:
                    total += offset // gran * step
                else:
                    parts.append(f"({base} + {offset}) / {gran} * {text}")
                continue
            if outer:  # the point in its panel
                if aligned and lanes_ok and offset < outer:
                    total += offset * step
                elif base == "0" and lanes_ok:
                    total += offset % outer * step
                else:
                    parts.append(f"({base} + {offset}) % {outer} * {text}")
                continue
            total += offset * step
            if base != "0":
                parts.append(base if step == 1 else f"{base}*{text}")
        if total != 0 or not parts:
            parts.append(self.size(total))
        return " + ".join(parts)

    # ------------------------------------------------------------------ values

    def value(self, v: Value, p: Point) -> Expr:
        """The term at a point."""
        key = (v, p.key(v.free), p.count if p.vector in v.free else 0)
        if key in self.s.memo:
            return self.s.memo[key]
        e = self._compute(v, p)
        if self._wants_name(v, e):
            name = self.s.fresh()
            scalar, vector = TYPES[e.type]
            self.s.emit(f"{vector if e.vector else scalar} {name} = {e.code};")
            e = Expr(name, e.type, e.vector)
        self.s.memo[key] = e
        return e

    def _wants_name(self, v: Value, e: Expr) -> bool:
        if v.op in ("const", "iota") and not e.vector:
            return False
        if e.code.isidentifier():
            return False
        return v.op in terms.EXPENSIVE or self.s.users[v] != 1 or len(e.code) > 160

    def _compute(self, v: Value, p: Point) -> Expr:
        if v.op == "const":
            t = self.type_of(v)
            return Expr(number(v.attrs[0], t), t)
        if v.op == "iota":
            return self._iota(v, p)
        if v.op == "load":
            return self._local(v, p) if is_local(v.attrs[0]) else self._load(v, p)
        args = [self.value(a, p) for a in v.args]
        vector = any(a.vector for a in args)
        return getattr(self, f"_{v.op}", self._unary)(v, args, vector)

    def _iota(self, v: Value, p: Point) -> Expr:
        i, t = v.attrs[0], self.type_of(v)
        if p.vector is None or p.vector not in i.axes:
            text = self.index(i, p)
            return Expr(f"(({TYPES[t][0]})({text}))", t)
        c = i.coef(p.vector)
        plain = all(isinstance(a, str) or p.vector not in a.inner.axes for a, _ in i.terms)
        if plain:
            base = f"({TYPES[t][0]})({self.index(i, p)})"
            lanes = "ll_lanes()" if t == "i" else "LL_CONVERT(ll_lanes(), vl)"
            if c != 1:
                times = str(c) if isinstance(c, int) else f"({TYPES[t][0]}){self.size(c)}"
                lanes = f"{lanes} * {times}"
            return Expr(f"({lanes} + {base})", t, True)
        name, lane = self.s.fresh(), "q"
        text = self.index(i, p, lane=lane)
        self.s.emit(f"{TYPES[t][1]} {name};")
        self.s.emit(f"for (int {lane} = 0; {lane} < W; ++{lane}) {name}[{lane}] = {text};")
        return Expr(name, t, True)

    def _local(self, v: Value, p: Point) -> Expr:
        local = self.s.program.locals[v.attrs[0]]
        t = letter(v.dtype)
        if local.space == "register":
            where = tuple(p.offsets.get(a, 0) for a in local.axes)
            lanes = self.s.vectors.get(local.name)
            vector = lanes is not None and lanes == p.vector and lanes in local.axes
            return Expr(self.s.local_name(local.name, where), t, vector)
        store, base = storage(local.dtype), self.s.pointer(local.name)
        if p.vector is None or p.vector not in local.axes:
            return Expr(f"ll_get_{store}({base} + {self.local_address(local, p)})", t)
        if local.layout[-1][0] == p.vector:
            return Expr(
                self._contiguous(store, f"{base} + {self.local_address(local, p)}", p), t, True
            )
        return self._gather(store, t, base, lambda q: self.local_address(local, p, q), p)

    def _contiguous(self, store: str, address: str, p: Point) -> str:
        if p.count:
            return f"ll_ldn_{store}({address}, {p.count})"
        return f"ll_ld_{store}({address})"

    def _gather(self, store: str, t: str, base: str, address, p: Point) -> Expr:
        name, lane = self.s.fresh(), "q"
        vector = TYPES[t][1]
        one = f"ll_get_{store}({base} + {address(lane)})"
        if t == "b":
            one = f"-{one}"
        self.s.emit(f"{vector} {name} = {{}};")
        n = p.count or "W"
        self.s.emit(f"for (int {lane} = 0; {lane} < {n}; ++{lane}) {name}[{lane}] = {one};")
        return Expr(name, t, True)

    def _load(self, v: Value, p: Point) -> Expr:
        name, index = v.attrs[0], v.attrs[1][0]
        buffer = self.s.program.buffers[name]
        store, base, t = v.dtype.name, self.s.pointer(name), letter(v.dtype)
        if buffer.dtype.name != store:
            store = buffer.dtype.name
        args = [self.value(a, p) for a in v.args]
        clamp = len(v.attrs) > 2
        last = span(buffer)

        def address(lane: str = "") -> str:
            texts = []
            for a in args:
                texts.append(f"((long){a.code}[{lane}])" if a.vector else f"((long){a.code})")
            text = self.index(index, p, texts, lane)
            return f"ll_clamp({text}, {self.long(last)})" if clamp else text

        if p.vector is None or p.vector not in v.free:
            return Expr(f"ll_get_{store}({base} + {address()})", t)
        gathered = any(a.vector for a in args)
        unit = terms.coefficient(v, p.vector) == 1
        if unit and not gathered and not clamp:
            return Expr(self._contiguous(store, f"{base} + {address()}", p), t, True)
        if unit and not gathered:  # at an offset that may be outside, or is chosen by data
            texts = [f"((long){a.code})" for a in args]
            return self._edge(store, t, base, self.index(index, p, texts), p, last)
        if not args and not clamp and (e := self._turned(v, p, store, t)) is not None:
            return e
        if terms.coefficient(v, p.vector) == 2 and not gathered and self._halves(p):
            texts = [f"((long){a.code})" for a in args]
            return self._every_other(
                store, t, base, self.index(index, p, texts), p, last, clamp
            )
        named = []
        for a in args:  # lanes of an expression are taken from a variable
            if a.vector and not a.code.isidentifier():
                n = self.s.fresh()
                self.s.emit(f"{TYPES[a.type][1]} {n} = {a.code};")
                a = Expr(n, a.type, True)
            named.append(a)
        args = named
        return self._gather(store, t, base, address, p)

    def _turned(self, v: Value, p: Point, store: str, t: str) -> Expr | None:
        """A vector across lines whose other points are unrolled: a row of a transposed block.

        A vector is loaded along the line of each lane, and all are transposed in registers.
        None where no axis along the lines is unrolled.
        """
        name, index = v.attrs[0], v.attrs[1][0]
        lanes = self.s.program.lanes
        if t not in "fi" or name in self.s.program.writes:
            return None
        for a in sorted(v.free - {p.vector}):
            block = self.s.blocks.get(a)
            size = block.size if block is not None else None
            if size is None or size < 2 or a not in p.offsets or terms.coefficient(v, a) != 1:
                continue
            first = p.offsets[a] - p.offsets[a] % lanes
            key = (v, a, first, *p.key(v.free - {a}))
            if key not in self.s.turned:
                rows = self.s.turned[key] = self.s.fresh()
                at = self.index(index, replace(p, offsets={**p.offsets, a: first}), [], "q")
                along = replace(p, count=size - first if size - first < lanes else 0)
                one = self._contiguous(store, f"{self.s.pointer(name)} + {at}", along)
                self.s.emit(f"{TYPES[t][1]} {rows}[W]{' = {}' if p.count else ''};")
                self.s.emit(f"for (int q = 0; q < {p.count or 'W'}; ++q) {rows}[q] = {one};")
                self.s.emit(f"ll_transpose_{t}({rows});")
            return Expr(f"{self.s.turned[key]}[{p.offsets[a] - first}]", t, True)
        return None

    def _halves(self, p: Point) -> bool:
        """Whether two vectors within what the lanes span hold every second element of it."""
        lanes = self.s.program.lanes
        return not p.count or (isinstance(p.count, int) and 2 * p.count - 1 >= lanes)

    def _every_other(
        self, store: str, t: str, base: str, index: str, p: Point, end: Dim, clamp: bool
    ) -> Expr:
        """Every second element: two vectors, of which lanes are taken in turn.

        The second vector ends where the last lane is, so that nothing beyond it is read. What
        may cross an end of the buffer is read lane by lane there.
        """
        lanes = self.s.program.lanes
        n = int(p.count) or lanes
        back = 2 * n - 1 - lanes  # where the second vector begins
        take = [2 * q if 2 * q < lanes else lanes + 2 * q - back for q in range(n)]
        take += [0] * (lanes - n)
        at, name, last = self.s.fresh(), self.s.fresh(), self.long(end)
        self.s.emit(f"long {at} = {index};")
        pair = f"ll_ld_{store}({base} + {at}), ll_ld_{store}({base} + {at} + {back})"
        both = f"__builtin_shufflevector({pair}, {', '.join(map(str, take))})"
        if not clamp:
            self.s.emit(f"{TYPES[t][1]} {name} = {both};")
            return Expr(name, t, True)
        one = f"ll_get_{store}({base} + ll_clamp({at} + 2*q, {last}))"
        one = f"-{one}" if t == "b" else one
        self.s.emit(
            f"{TYPES[t][1]} {name} = {{}};\n"
            f"if ({at} >= 0 && {at} + {2 * n - 1} <= {last}) {name} = {both};\n"
            f"else for (int q = 0; q < {n}; ++q) {name}[q] = {one};"
        )
        return Expr(name, t, True)

    def _edge(self, store: str, t: str, base: str, index: str, p: Point, end: Dim) -> Expr:
        """A contiguous vector that may cross an end of the buffer."""
        at, name, last = self.s.fresh(), self.s.fresh(), self.long(end)
        n = p.count or "W"
        self.s.emit(f"long {at} = {index};")
        self.s.emit(f"{TYPES[t][1]} {name};")
        full = self._contiguous(store, f"{base} + {at}", p)
        one = f"ll_get_{store}({base} + ll_clamp({at} + q, {last}))"
        one = f"-{one}" if t == "b" else one
        self.s.emit(
            f"if ({at} >= 0 && {at} + {n} <= {last}) {name} = {full};\n"
            f"else for (int q = 0; q < {n}; ++q) {name}[q] = {one};"
        )
        return Expr(name, t, True)

    # ------------------------------------------------------------------ ops

    def _same(self, v: Value, args: list[Expr], t: str) -> list[Expr]:
        return [self.convert(a, t) for a in args]

    def _rounded(self, v: Value, e: Expr) -> Expr:
        """Arithmetic in a narrow integer type wraps.

        In a small float type it stays in float32: only a cast and a store round.
        """
        name = v.dtype.name
        if name in WRAP:
            return Expr(WRAP[name].format(x=e.code), e.type, e.vector)
        return e

    def _add(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        # Compilers take (a + b) - a for b, where that is inf - inf or rounds.
        if t in "fd" and self._cancels(v):
            kind = f"v{t}" if vector else TYPES[t][0]
            args = [
                replace(a, code=f"ll_keep_{kind}({self._lanes(a, t, vector)})", vector=vector)
                if v.args[k].op in ("add", "mul")
                else a
                for k, a in enumerate(args)
            ]
        return self._infix(v, args, vector, "+", "|")

    def _cancels(self, v: Value) -> bool:
        known = self.s.cancelling
        if v not in known:
            known[v] = terms.cancels(v)
        return known[v]

    def _lanes(self, e: Expr, t: str, vector: bool) -> str:
        e = self.convert(e, t)
        return (self.splat(e) if vector else e).code

    def _mul(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        if vector and self.type_of(v) in "fd":  # compilers drop vectors times 0, NaN or not
            args = [
                replace(e, code="ll_zero()") if a.op == "const" and a.attrs[0] == 0 else e
                for a, e in zip(v.args, args, strict=True)
            ]
        return self._infix(v, args, vector, "*", "&")

    def _infix(self, v: Value, args: list[Expr], vector: bool, sign: str, logical: str) -> Expr:
        t = self.type_of(v)
        a, b = self._same(v, args, t)
        if t == "b":
            if vector:
                a, b = self.splat(a), self.splat(b)
            return Expr(f"({a.code} {logical} {b.code})", "b", vector)
        return self._rounded(v, Expr(f"({a.code} {sign} {b.code})", t, vector))

    def _common(self, args: list[Expr]) -> str:
        kinds = [a.type for a in args]
        return next(t for t in "dflib" if t in kinds)

    def _lessthan(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self._common(args)
        a, b = self._same(v, args, t)
        if vector:
            a, b = self.splat(a), self.splat(b)
            if t == "b":
                return Expr(f"(~{a.code} & {b.code})", "b", True)
            code = f"({a.code} < {b.code})"
            return Expr(code if t in "fi" else f"LL_CONVERT({code}, vi)", "b", True)
        return Expr(f"({a.code} < {b.code})", "b")

    def _select(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        c = self.convert(args[0], "b")
        a, b = self._same(v, args[1:], t)
        if not vector:
            return Expr(f"({c.code} ? {a.code} : {b.code})", t)
        if not c.vector:  # one branch for all lanes
            a, b = self.splat(a), self.splat(b)
            return Expr(f"({c.code} ? {a.code} : {b.code})", t, True)
        a, b = self.splat(a), self.splat(b)
        kind = "i" if t == "b" else t
        return Expr(f"ll_sel_{kind}({c.code}, {a.code}, {b.code})", t, True)

    def _maximum(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        a, b = self._same(v, args, t)
        return self.maximum(a, b, t, vector)

    def maximum(self, a: Expr, b: Expr, t: str, vector: bool) -> Expr:
        """NaN-keeping maximum."""
        if vector:
            a, b = self.splat(a), self.splat(b)
        if t == "b":
            return Expr(f"({a.code} | {b.code})", t, vector)
        return Expr(f"ll_max_{t}{'' if vector else 's'}({a.code}, {b.code})", t, vector)

    def _mod(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        a, b = self._same(v, args, t)
        if vector:
            a, b = self.splat(a), self.splat(b)
        e = Expr(f"ll_mod_{t}{'' if vector else 's'}({a.code}, {b.code})", t, vector)
        return self._rounded(v, e)

    def _recip(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        return self._rounded(v, Expr(f"({number(1.0, t)} / {args[0].code})", t, vector))

    def _unary(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        t = self.type_of(v)
        suffix = {("f", True): "", ("f", False): "_s", ("d", True): "_d", ("d", False): "_ds"}
        e = Expr(f"ll_{v.op}{suffix[t, vector]}({args[0].code})", t, vector)
        return self._rounded(v, e)

    def _cast(self, v: Value, args: list[Expr], vector: bool) -> Expr:
        source, t = v.args[0].dtype, self.type_of(v)
        e = args[0]
        if e.type in "fd" and t == "i" and v.dtype.name != "i32":
            e = self.convert(e, "l")  # through 64 bits, as torch does
        e = self.convert(e, t)
        if source.name == v.dtype.name:
            return e
        if v.dtype.name in WRAP and source.kind != "bool":
            return self._rounded(v, e)
        if v.dtype.name in SMALL_FLOATS:
            tail = "" if e.vector else "_s"
            return Expr(f"ll_round_{v.dtype.name}{tail}({e.code})", e.type, e.vector)
        return e


def storage(dtype: DType) -> str:
    """In which type a local keeps a dtype in memory."""
    if dtype.name in SMALL_FLOATS:
        return "f32"
    return "i32" if dtype.name in WRAP else dtype.name


def storage_type(dtype: DType) -> str:
    """The C type of that."""
    return C_TYPE[storage(dtype)]


def count_users(roots: list[Value]) -> Counter:
    """How many times each term is used by terms or as a root."""
    users: Counter = Counter(roots)
    for v in postorder(roots):
        users.update(v.args)
    return users
