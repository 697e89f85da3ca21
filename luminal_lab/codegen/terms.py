"""Small functions on values: rebuilding, substitution, cost, and the flat form of loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from luminal_lab.egraph.values import BINDERS, Buffer, Value, postorder
from luminal_lab.hlir.dtypes import I64, DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, at_least, bounds, hint

ZERO = {"float": 0.0, "int": 0, "uint": 0, "bool": False}
WORK = 1_000_000  # vector instructions that are worth more than one thread
EXPENSIVE = frozenset({"exp2", "log2", "sin", "erf", "sqrt", "recip"})


def tuned(n: Dim) -> int:
    """The extent that heuristics see: at the hint, and at least 2 where a call decides it."""
    return n if isinstance(n, int) else max(2, hint(n))


def const(number: float | int | bool, dtype: DType) -> Value:
    """A constant."""
    return Value("const", (), (number,), dtype=dtype)


def ref(name: str, axes: Iterable[str], dtype: DType) -> Value:
    """A read of the local `name` at its own axes."""
    return Value("load", (), (name, tuple(Index.axis(a) for a in axes)), dtype=dtype)


def op(name: str, *args: Value) -> Value:
    """An op whose result has the dtype of its last operand."""
    return Value(name, args, dtype=args[-1].dtype)


def remake(v: Value, args: tuple[Value, ...], attrs: tuple | None = None) -> Value:
    """The same op on other arguments."""
    return Value(v.op, args, v.attrs if attrs is None else attrs, dtype=v.dtype)


def rewrite(
    roots: Iterable[Value], step: Callable[[Value, tuple[Value, ...]], Value]
) -> list[Value]:
    """Rebuild terms bottom up: `step(old, new arguments)` replaces each subterm."""
    roots = list(roots)
    memo: dict[Value, Value] = {}
    for v in postorder(roots):
        memo[v] = step(v, tuple(memo[a] for a in v.args))
    return [memo[r] for r in roots]


def replace_terms(root: Value, by: Mapping[Value, Value]) -> Value:
    """The term with each occurrence of a key replaced by its value (outermost first)."""
    if not by:
        return root
    memo: dict[Value, Value] = dict(by)
    stack = [root]
    while stack:
        v = stack[-1]
        if v in memo:
            stack.pop()
            continue
        todo = [a for a in v.args if a not in memo]
        if todo:
            stack.extend(todo)
            continue
        args = tuple(memo[a] for a in v.args)
        memo[v] = v if args == v.args else remake(v, args)
        stack.pop()
    return memo[root]


def substitute(v: Value, by: Mapping[str, Index], extents: Mapping[str, Dim]) -> Value:
    """A term without binders, its axes replaced by expressions."""

    def step(old: Value, args: tuple[Value, ...]) -> Value:
        if old.op == "load":
            index = tuple(i.substitute(by, extents) for i in old.attrs[1])
            return remake(old, args, (old.attrs[0], index, *old.attrs[2:]))
        if old.op == "iota":
            return remake(old, args, (old.attrs[0].substitute(by, extents),))
        return old if args == old.args else remake(old, args)

    return rewrite([v], step)[0]


def rename_bound(v: Value, old: str, new: str) -> Value:
    """The free occurrences of axis `old` in a term (binders included) become `new`.

    Only terms in which `new` does not occur are renamed, so nothing is captured.
    """
    by = {old: new}
    memo: dict[Value, Value] = {}

    def go(t: Value) -> Value:
        if old not in t.free:
            return t
        if t in memo:
            return memo[t]
        args = tuple(go(a) for a in t.args)
        attrs = t.attrs
        if t.op == "load":
            attrs = (attrs[0], tuple(i.rename(by) for i in attrs[1]), *attrs[2:])
        elif t.op == "iota":
            attrs = (attrs[0].rename(by),)
        memo[t] = Value(t.op, args, attrs, dtype=t.dtype)
        return memo[t]

    return go(v)


def axes_in(v: Value) -> set[str]:
    """Every axis that occurs in a term, free or bound."""
    out: set[str] = set()
    for t in postorder([v]):
        out |= t.free
        if t.op in BINDERS:
            out.add(t.attrs[-1])
    return out


def flatten_loads(
    v: Value, args: tuple[Value, ...], buffers: Mapping[str, Buffer], extents: Mapping[str, Dim]
) -> Value:
    """A load with one flat index; `clamp` marks an offset that may leave the buffer."""
    name, index = v.attrs[0], v.attrs[1]
    buffer = buffers[name]
    flat, safe = Index.num(0), True
    for i, n, stride in zip(index, buffer.shape, buffer.element_strides):
        if any(a.startswith("@") for a in i.axes):
            safe = False
        else:
            lo, hi = i.bounds(extents)
            safe = safe and at_least(lo, 0) and at_least(n - hi, 1)
        flat = flat + i * stride
    if buffer.numel == 0:
        return const(ZERO[v.dtype.kind], v.dtype)
    attrs = (name, (flat,)) if safe else (name, (flat,), "clamp")
    return Value("load", args, attrs, dtype=v.dtype)


def span(buffer: Buffer) -> Dim:
    """Elements from the buffer's first to its last, strides included."""
    if buffer.numel == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(buffer.shape, buffer.element_strides))


def flat_index(buffer: Buffer, index: tuple[Index, ...]) -> Index:
    """The element offset of an index tuple."""
    flat = Index.num(0)
    for i, stride in zip(index, buffer.element_strides):
        flat = flat + i * stride
    return flat


def cancels(v: Value) -> bool:
    """Whether a sum of floats holds a term, or constants, with both signs."""
    signs: dict[Value | None, set[bool]] = {}
    todo = [(v, False)]
    while todo:
        t, negative = todo.pop()
        if t.op == "add":
            todo += [(a, negative) for a in t.args]
            continue
        while t.op == "mul" and any(a.op == "const" for a in t.args):
            k = next(i for i, a in enumerate(t.args) if a.op == "const")
            negative ^= t.args[k].attrs[0] < 0
            t = t.args[1 - k]
        if t.op == "add":
            todo.append((t, negative))
        elif t.op == "const":
            signs.setdefault(None, set()).add(negative ^ (t.attrs[0] < 0))
        else:
            signs.setdefault(t, set()).add(negative)
    return any(len(both) > 1 for both in signs.values())


def is_expensive(v: Value) -> bool:
    """Whether computing it once more costs noticeably."""
    return any(t.op in EXPENSIVE for t in postorder([v]))


def work(v: Value, along: str | None = None) -> int:
    """A rough count of vector instructions for one point.

    Arguments:
        v: The term.
        along: Count only what differs between the points of this axis.
    """
    cost = {"exp2": 12, "log2": 18, "sin": 24, "erf": 28, "sqrt": 6, "recip": 6, "mod": 8}
    return sum(
        cost.get(t.op, 1)
        for t in postorder([v])
        if t.op not in ("const", "iota") and (along is None or along in t.free)
    )


def factors(v: Value) -> list[Value]:
    """The factors of a product, left to right; a term that is no product is its own factor."""
    out: list[Value] = []
    stack = [v]
    while stack:
        t = stack.pop()
        if t.op == "mul" and t.dtype.kind != "bool":
            stack.extend(reversed(t.args))
        else:
            out.append(t)
    return out


def product(terms: Iterable[Value]) -> Value:
    """The product of at least one factor."""
    terms = list(terms)
    out = terms[0]
    for t in terms[1:]:
        out = op("mul", out, t)
    return out


def reads(v: Value) -> tuple[str, ...]:
    """Names of the buffers and locals that a term reads, in order of first use."""
    out: dict[str, None] = {}
    for t in postorder([v]):
        if t.op == "load":
            out.setdefault(t.attrs[0])
    return tuple(out)


def coefficient(v: Value, axis: str) -> Dim | None:
    """Element stride of a flat load along an axis; None when it is not affine there."""
    index = v.attrs[1][0]
    for atom, coef in index.terms:
        if atom == axis:
            return coef
        if not isinstance(atom, str) and axis in atom.inner.axes:
            return None
    return 0


_WIDE = -(1 << 62), (1 << 62)
_RANGE = {
    "i32": (-(1 << 31), (1 << 31) - 1),
    "i16": (-(1 << 15), (1 << 15) - 1),
    "i8": (-128, 127),
    "u8": (0, 255),
    "bool": (0, 1),
}


def int_range(v: Value, extents: Mapping[str, Dim], memo: dict[Value, tuple[int, int]]):
    """Inclusive bounds of an integer term."""
    if v in memo:
        return memo[v]
    whole = _RANGE.get(v.dtype.name, _WIDE)
    out = whole
    if v.op == "const":
        out = (int(v.attrs[0]), int(v.attrs[0]))
    elif v.op == "iota":
        lo, hi = v.attrs[0].bounds(extents)
        out = (bounds(lo)[0], bounds(hi)[1])
    elif v.op == "cast" and v.args[0].dtype.kind != "float":
        out = int_range(v.args[0], extents, memo)
    elif v.op in ("add", "mul") and v.dtype.is_int:
        a, b = (int_range(x, extents, memo) for x in v.args)
        corners = [x + y if v.op == "add" else x * y for x in a for y in b]
        out = (min(corners), max(corners))
    elif v.op == "select" and v.dtype.is_int:
        a, b = (int_range(x, extents, memo) for x in v.args[1:])
        out = (min(a[0], b[0]), max(a[1], b[1]))
    if out[0] < whole[0] or out[1] > whole[1]:
        out = whole
    memo[v] = out
    return out


def iota(index: Index, dtype: DType = I64) -> Value:
    """An index expression as a value."""
    return Value("iota", (), (index,), dtype=dtype)
