"""The spelling of values in Metal: scalar expressions of one point of a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_text import BlockView, Names, compute_dtype, negated
from luminal_lab.codegen.tile import is_local
from luminal_lab.egraph.values import Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index

TYPES = {
    "f32": "float", "f16": "half", "bf16": "bfloat", "i64": "long", "i32": "int",
    "i16": "short", "i8": "char", "u8": "uchar", "bool": "bool",
}  # fmt: skip
_UNSIGNED = {"i64": "ulong", "i32": "uint"}
HELPERS = {
    "ll_maximum": """// The larger one; NaN wins.
template <typename T> inline T ll_maximum(T a, T b) { return a > b || a != a ? a : b; }
""",
    "ll_fremainder": """// The remainder with the divisor's sign, as in Python.
inline float ll_fremainder(float a, float b) {
  float r = fmod(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
""",
    "ll_remainder": """// The remainder with the divisor's sign, as in Python.
template <typename T> inline T ll_remainder(T a, T b) {
  T r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
""",
    "ll_floordiv": """// Division that rounds down, as in Python.
template <typename T> inline T ll_floordiv(T a, T b) {
  T q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
""",
    "ll_erf": """// erf(x), within 1 ulp (N. Juffa's two polynomials).
inline float ll_erf(float x) {
  float t = fabs(x), s = x * x;
  if (t > 0.921875f) {
    float r = fma(-1.72853470e-5f, t, 3.83197126e-4f);
    float u = fma(-3.88396438e-3f, t, 2.42546219e-2f);
    r = fma(r, s, u);
    r = fma(r, t, -1.06777877e-1f);
    r = fma(r, t, -6.34846687e-1f);
    r = fma(r, t, -1.28717512e-1f);
    r = fma(r, t, -t);
    return copysign(1.0f - precise::exp2(r * 1.4426950408889634f), x);
  }
  float r = -5.96761703e-4f;
  r = fma(r, s, 4.99119423e-3f);
  r = fma(r, s, -2.67681349e-2f);
  r = fma(r, s, 1.12819925e-1f);
  r = fma(r, s, -3.76125336e-1f);
  r = fma(r, s, 1.28379166e-1f);
  return fma(r, x, x);
}
""",
}
ATOM, UNARY, TIMES, PLUS, LESS, AND, OR, TERNARY = 9, 8, 7, 6, 5, 3, 2, 1
_UNARY = {
    "exp2": "precise::exp2({})",
    "log2": "precise::log2({})",
    "sin": "precise::sin({})",
    "sqrt": "precise::sqrt({})",
    "erf": "ll_erf({})",
}
_LONG = 60


def type_of(dtype: DType) -> str:
    """Metal's name of a type.

    Raises:
        ScheduleError: Metal has no such type.
    """
    if dtype.name not in TYPES:
        raise ScheduleError(
            f"Metal has no type for {dtype}",
            fix="cast to float32 first, or choose another target",
        )
    return TYPES[dtype.name]


@dataclass(frozen=True)
class Text:
    """An expression: its text and how strongly it binds."""

    text: str
    prec: int = ATOM

    def at(self, prec: int) -> str:
        """The text, in parentheses where its own operator binds less than `prec`."""
        return self.text if self.prec >= prec else f"({self.text})"


class Point:
    """Computes values at one point of a block: a nest of scopes, one per loop of registers.

    Arguments:
        view: The program.
        names: Where names come from.
        coords: The text of each axis' coordinate.
        read: The text of a local at the current point.
        pointers: The parameter of each buffer.
        levels: For each scope, outermost first, the axes that it binds.
    """

    def __init__(
        self,
        view: BlockView,
        names: Names,
        coords: Mapping[str, str],
        read: Callable[[str], str],
        pointers: Mapping[str, str],
        levels: list[tuple[str, ...]],
    ):
        self.view, self.names, self.coords, self.read = view, names, coords, read
        self.pointers = pointers
        self.level = {a: k for k, axes in enumerate(levels) for a in axes}
        self.lines: list[list[str]] = [[] for _ in levels]
        self.memo: dict[Value, Text] = {}

    def home(self, v: Value) -> int:
        """The scope in which a value is computed: the innermost that binds one of its axes."""
        return max((self.level.get(a, 0) for a in v.free), default=0)

    def value(self, v: Value, scope: int | None = None) -> Text:
        """The expression of a value, with what it shares in variables."""
        if v.op == "const":
            return const(v.attrs[0], v.dtype)
        if v.op == "load" and is_local(v.attrs[0]):
            return Text(self.read(v.attrs[0]))
        if v in self.memo:
            return self.memo[v]
        home = self.home(v)
        e = self._compute(v, home)
        outside = scope is not None and scope != home
        if v.op == "load" or self.view.uses[v] > 1 or outside or len(e.text) > _LONG:
            name = self.names.new(v.attrs[0] if v.op == "load" else "v")
            self.lines[home].append(f"{type_of(compute_dtype(v.dtype))} {name} = {e.text};")
            e = Text(name)
            self.memo[v] = e
        return e

    def index(self, index: Index, args: Mapping[str, str]) -> Text:
        """An index expression at the current point."""
        out = ""
        for atom, coef in index.terms:
            if isinstance(atom, str):
                text = args.get(atom) or self.coords[atom]
            else:
                inner = self.index(atom.inner, args)
                gathered = any(a.startswith("@") for a in atom.inner.axes)
                if gathered or atom.inner.bounds(self.view.extents)[0] < 0:
                    helper = "ll_floordiv" if atom.op == "//" else "ll_remainder"
                    kind = "long" if gathered else "int"
                    text = f"{helper}<{kind}>({inner.text}, {atom.by})"
                else:
                    text = f"{inner.at(TIMES)} {atom.op[0]} {atom.by}"
                    text = text if coef == 1 else f"({text})"
            text = text if abs(coef) == 1 else f"{text} * {abs(coef)}"
            out += (" - " if coef < 0 else " + ") + text if out else ("-" * (coef < 0)) + text
        if index.const or not out:
            sign = " - " if index.const < 0 else " + "
            out = f"{out}{sign}{abs(index.const)}" if out else str(index.const)
        return Text(out, ATOM if out.isidentifier() or out.isdigit() else PLUS)

    def _compute(self, v: Value, scope: int) -> Text:
        if v.op == "load":
            return self._load(v, scope)
        if v.op == "iota":
            return Text(f"{type_of(v.dtype)}({self.index(v.attrs[0], {}).text})")
        if v.op == "lessthan" and all(
            a.op in ("iota", "const") and a.dtype.is_int for a in v.args
        ):
            sides = (Index.num(a.attrs[0]) if a.op == "const" else a.attrs[0] for a in v.args)
            a, b = (self.index(i, {}).at(PLUS) for i in sides)
            return Text(f"{a} < {b}", LESS)
        if v.op == "add" and (x := negated(v.args[1])) is not None:
            a, b = self.value(v.args[0], scope), self.value(x, scope)
            return Text(f"{a.at(PLUS)} - {b.at(TIMES)}", PLUS)
        args = [self.value(a, scope) for a in v.args]
        if v.op == "cast":
            return converted(args[0], v.args[0].dtype, v.dtype)
        if v.op in _UNARY:
            return Text(_UNARY[v.op].format(args[0].text))
        if v.op == "recip":
            return Text(f"1.0f / {args[0].at(UNARY)}", TIMES)
        if v.op == "select":
            c, a, b = args
            return Text(f"{c.at(OR)} ? {a.at(OR)} : {b.at(OR)}", TERNARY)
        return self._binary(v, *args)

    def _binary(self, v: Value, a: Text, b: Text) -> Text:
        if v.op == "lessthan":
            return Text(f"{a.at(PLUS)} < {b.at(PLUS)}", LESS)
        if v.op == "maximum":
            return Text(f"ll_maximum({a.text}, {b.text})")
        if v.op == "mod":
            name = "ll_fremainder" if v.dtype.is_float else f"ll_remainder<{type_of(v.dtype)}>"
            return Text(f"{name}({a.text}, {b.text})")
        if v.op not in ("add", "mul"):
            raise ScheduleError(f"Metal has no spelling for the op {v.op!r}")
        if v.dtype.kind == "bool":
            if v.op == "add":
                return Text(f"{a.at(OR)} || {b.at(AND)}", OR)
            return Text(f"{a.at(AND)} && {b.at(LESS)}", AND)
        return arithmetic(v.op, a, b, v.dtype)

    def _load(self, v: Value, scope: int) -> Text:
        name, index = v.attrs[0], v.attrs[1][0]
        args = {f"@{k}": self.value(a, scope).at(ATOM) for k, a in enumerate(v.args)}
        at = self.index(index, args)
        dtype = self.view.program.buffers[name].dtype
        text = f"{self.pointers[name]}[{at.text}]"
        kind = type_of(compute_dtype(dtype))
        if compute_dtype(dtype) is not dtype:
            text = f"{kind}({text})"
        if len(v.attrs) > 2:  # the offset may leave the buffer where nobody looks
            where = self.names.new(f"{name}_at")
            wide = "long" if args else "int"
            self.lines[scope].append(f"{wide} {where} = {at.text};")
            n = terms.span(self.view.program.buffers[name])
            text = text.replace(f"[{at.text}]", f"[{where}]")
            zero = const(0.0 if dtype.is_float else 0, dtype).text
            return Text(f"{where} >= 0 && {where} < {n} ? {text} : {kind}({zero})", TERNARY)
        return Text(text)


def arithmetic(op: str, a: Text, b: Text, dtype: DType) -> Text:
    """A sum or product; integers wrap."""
    sign, prec = ("+", PLUS) if op == "add" else ("*", TIMES)
    if dtype.is_float:
        return Text(f"{a.at(prec)} {sign} {b.at(prec + 1)}", prec)
    unsigned = _UNSIGNED.get(dtype.name, "int")
    return Text(f"{type_of(dtype)}({unsigned}({a.text}) {sign} {unsigned}({b.text}))")


def const(x: float | int | bool, dtype: DType) -> Text:
    """A constant."""
    kind = type_of(compute_dtype(dtype))
    if kind == "bool":
        return Text("true" if x else "false")
    if kind != "float":
        if x == -(1 << 63):
            return Text("(-9223372036854775807L - 1)")
        text = f"{kind}({x}{'L' if kind == 'long' else ''})"
        return Text(text)
    x = float(x)
    if math.isnan(x):
        return Text("NAN")
    if math.isinf(x):
        return Text("INFINITY") if x > 0 else Text("-INFINITY", UNARY)
    return Text(f"{x!r}f", ATOM if math.copysign(1, x) > 0 else UNARY)


def converted(e: Text, source: DType, target: DType) -> Text:
    """A conversion; narrow floats are rounded and widened again."""
    if target.kind == "bool":
        zero = const(0, source).text
        return e if source is target else Text(f"{e.at(PLUS)} != {zero}", LESS)
    kind = type_of(target)
    if compute_dtype(target) is target:
        same = type_of(compute_dtype(source)) == kind
        return e if same else Text(f"{kind}({e.text})")
    inner = e.text if type_of(compute_dtype(source)) == "float" else f"float({e.text})"
    return Text(f"float({kind}({inner}))")
