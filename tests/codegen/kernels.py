"""Kernels by name, for the tests and measurements of generated C."""

from __future__ import annotations

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.hlir.dtypes import BOOL, F32, I64, DType
from luminal_lab.hlir.index import Index

LOG2E = 1.4426950408889634
INF = float("inf")
A = Index.axis


def load(buffer: str, *index, dtype: DType = F32, args=()) -> Value:
    at = tuple(A(i) if isinstance(i, str) else i for i in index)
    return Value("load", tuple(args), (buffer, at), dtype=dtype)


def const(x, dtype: DType = F32) -> Value:
    return Value("const", (), (x,), dtype=dtype)


def op(name: str, *args: Value) -> Value:
    return Value(name, args, dtype=args[-1].dtype)


def add(a: Value, b: Value) -> Value:
    return op("add", a, b)


def mul(a: Value, b: Value) -> Value:
    return op("mul", a, b)


def neg(a: Value) -> Value:
    return mul(const(-1.0, a.dtype), a)


def red(kind: str, axis: str, x: Value) -> Value:
    return Value("red", (x,), (kind, axis), dtype=x.dtype)


def select(c: Value, a: Value, b: Value) -> Value:
    return Value("select", (c, a, b), dtype=a.dtype)


def less(a: Value, b: Value) -> Value:
    return Value("lessthan", (a, b), dtype=BOOL)


def iota(i, dtype: DType = I64) -> Value:
    return Value("iota", (), (A(i) if isinstance(i, str) else i,), dtype=dtype)


def online(axis: str, s: Value, c: Value, w: Value) -> Value:
    return Value("online", (s, c, w), (axis,), dtype=w.dtype)


def arg_max(axis: str, x: Value, p: Value) -> Value:
    return Value("carry", (x, p), ("argmax", axis), dtype=p.dtype)


def cast(x: Value, dtype: DType) -> Value:
    return Value("cast", (x,), dtype=dtype)


def exp(x: Value) -> Value:
    return op("exp2", mul(const(LOG2E, x.dtype), x))


def gelu(v: Value) -> Value:
    inner = op("erf", mul(v, const(0.7071067811865476)))
    return mul(mul(const(0.5), v), add(const(1.0), inner))


def kernel(outputs, extents, buffers) -> Kernel:
    outs = tuple(
        KernelOutput(b, tuple(A(i) if isinstance(i, str) else i for i in at), v)
        for b, at, v in outputs
    )
    return Kernel(outs, {b.name: b for b in buffers}, extents)


def rows(value: Value, m: int, n: int, *buffers: Buffer, dtype: DType = F32) -> Kernel:
    """A kernel over (i, j) that reads x."""
    bs = [Buffer("x", (m, n), dtype), *buffers, Buffer("y", (m, n), value.dtype)]
    return kernel([("y", ("i", "j"), value)], {"i": m, "j": n}, bs)


def pointwise(m: int, n: int) -> Kernel:
    v = gelu(add(mul(load("x", "i", "j"), load("w", "j")), load("b", "j")))
    more = [Buffer("r", (m, n), F32), Buffer("w", (n,), F32), Buffer("b", (n,), F32)]
    return rows(add(v, load("r", "i", "j")), m, n, *more)


def softmax(m: int, n: int) -> Kernel:
    x = load("x", "i", "j")
    e = exp(add(x, neg(red("max", "j", x))))
    return rows(mul(e, op("recip", red("add", "j", e))), m, n)


def layernorm(m: int, n: int) -> Kernel:
    x = load("x", "i", "j")
    d = add(x, neg(mul(red("add", "j", x), const(1.0 / n))))
    var = mul(red("add", "j", mul(d, d)), const(1.0 / n))
    y = mul(d, op("recip", op("sqrt", add(var, const(1e-5)))))
    more = [Buffer("g", (n,), F32), Buffer("b", (n,), F32)]
    return rows(add(mul(y, load("g", "j")), load("b", "j")), m, n, *more)


def rmsnorm(m: int, n: int) -> Kernel:
    x = load("x", "i", "j")
    mean = mul(red("add", "j", mul(x, x)), const(1.0 / n))
    y = mul(x, op("recip", op("sqrt", add(mean, const(1e-5)))))
    return rows(mul(y, load("g", "j")), m, n, Buffer("g", (n,), F32))


def reduce_rows(m: int, n: int, kind: str = "add", dtype: DType = F32) -> Kernel:
    v = red(kind, "j", load("x", "i", "j", dtype=dtype))
    bs = [Buffer("x", (m, n), dtype), Buffer("y", (m,), dtype)]
    return kernel([("y", ("i",), v)], {"i": m, "j": n}, bs)


def reduce_columns(m: int, n: int, kind: str = "add", dtype: DType = F32) -> Kernel:
    v = red(kind, "i", load("x", "i", "j", dtype=dtype))
    bs = [Buffer("x", (m, n), dtype), Buffer("y", (n,), dtype)]
    return kernel([("y", ("j",), v)], {"i": m, "j": n}, bs)


def place_in_rows(m: int, n: int, dtype: DType = F32, computed: bool = False) -> Kernel:
    """Where each row is greatest (of `x*x - x`, when computed)."""
    x = load("x", "i", "j", dtype=dtype)
    v = add(mul(x, x), neg(x)) if computed else x
    bs = [Buffer("x", (m, n), dtype), Buffer("y", (m,), I64)]
    return kernel([("y", ("i",), arg_max("j", v, iota("j")))], {"i": m, "j": n}, bs)


def place_in_columns(m: int, n: int, dtype: DType = F32, computed: bool = False) -> Kernel:
    x = load("x", "i", "j", dtype=dtype)
    v = add(mul(x, x), neg(x)) if computed else x
    bs = [Buffer("x", (m, n), dtype), Buffer("y", (n,), I64)]
    return kernel([("y", ("j",), arg_max("i", v, iota("i")))], {"i": m, "j": n}, bs)


def deviations(m: int, n: int, axis: str, weighted: bool = False, dtype: DType = F32) -> Kernel:
    """The squared deviations and the sum along `i` or `j`, the former with weights if asked."""
    x, other = load("x", "i", "j", dtype=dtype), "ij".replace(axis, "")
    size = {"i": m, "j": n}
    w = load("w", axis, dtype=dtype) if weighted else const(1.0, dtype)
    v = Value("carry", (x, w), ("spread", axis), dtype=dtype)
    bs = [Buffer("x", (m, n), dtype), *(Buffer(b, (size[other],), dtype) for b in "yz")]
    bs += [Buffer("w", (size[axis],), dtype)] if weighted else []
    outs = [("y", (other,), v), ("z", (other,), red("add", axis, x))]
    return kernel(outs, size, bs)


def kept_deviations(m: int, n: int) -> Kernel:
    """Layer norm of half of what also is summed whole, as laws may leave it; both have erf."""
    x = load("x", "i", "j")
    whole = mul(add(op("erf", x), const(1.0)), x)
    half = mul(whole, const(0.5))
    spread = Value("carry", (half, const(1.0)), ("spread", "j"), dtype=F32)
    centred = add(half, mul(red("add", "j", whole), const(-0.5 / n)))
    scale = op("recip", op("sqrt", add(mul(spread, const(1.0 / n)), const(1e-6))))
    bs = [Buffer("x", (m, n), F32), Buffer("y", (m, n), F32)]
    return kernel([("y", ("i", "j"), mul(centred, scale))], {"i": m, "j": n}, bs)


def total(m: int, n: int) -> Kernel:
    v = red("add", "i", red("add", "j", load("x", "i", "j")))
    bs = [Buffer("x", (m, n), F32), Buffer("y", (), F32)]
    return kernel([("y", (), v)], {"i": m, "j": n}, bs)


def linear(m: int, k: int, n: int, *, constant=True, act=True, residual=False, rows_first=True):
    """x @ w.T (or x @ w) + b, then GELU, then + r."""
    w = load("w", "j", "k") if rows_first else load("w", "k", "j")
    v = add(red("add", "k", mul(load("x", "i", "k"), w)), load("b", "j"))
    v = gelu(v) if act else v
    v = add(v, load("r", "i", "j")) if residual else v
    bs = [
        Buffer("x", (m, k), F32),
        Buffer("w", (n, k) if rows_first else (k, n), F32, constant=constant),
        Buffer("b", (n,), F32),
        Buffer("r", (m, n), F32),
        Buffer("y", (m, n), F32),
    ]
    return kernel([("y", ("i", "j"), v)], {"i": m, "j": n, "k": k}, bs)


def gemv(n: int, k: int) -> Kernel:
    v = red("add", "k", mul(load("w", "j", "k"), load("x", "k")))
    bs = [
        Buffer("x", (k,), F32),
        Buffer("w", (n, k), F32, constant=True),
        Buffer("y", (n,), F32),
    ]
    return kernel([("y", ("j",), v)], {"j": n, "k": k}, bs)


def rms_linear(m: int, k: int, n: int, constant: bool = True) -> Kernel:
    x = load("x", "i", "k")
    mean = mul(red("add", "k", mul(x, x)), const(1.0 / k))
    scale = op("recip", op("sqrt", add(mean, const(1e-5))))
    v = mul(scale, red("add", "k", mul(mul(x, load("g", "k")), load("w", "j", "k"))))
    bs = [
        Buffer("x", (m, k), F32),
        Buffer("g", (k,), F32, constant=constant),
        Buffer("w", (n, k), F32, constant=constant),
        Buffer("y", (m, n), F32),
    ]
    return kernel([("y", ("i", "j"), v)], {"i": m, "j": n, "k": k}, bs)


def swiglu(m: int, k: int, n: int, constant: bool = True) -> Kernel:
    x = load("x", "i", "k")
    gate, up = (red("add", "k", mul(x, load(w, "j", "k"))) for w in ("wg", "wu"))
    sigmoid = op("recip", add(const(1.0), exp(neg(gate))))
    bs = [
        Buffer("x", (m, k), F32),
        Buffer("wg", (n, k), F32, constant=constant),
        Buffer("wu", (n, k), F32, constant=constant),
        Buffer("y", (m, n), F32),
    ]
    v = mul(mul(gate, sigmoid), up)
    return kernel([("y", ("i", "j"), v)], {"i": m, "j": n, "k": k}, bs)


def attention(b: int, h: int, s: int, t: int, d: int, *, causal="", window=0, mask=False,
              layout="bhsd") -> Kernel:  # fmt: skip
    """One pass over the keys. causal: "", "select" or "add"; mask: an additive input (b, t)."""

    def read(name: str, at: str, e: str) -> Value:
        return load(name, "b", "h", at, e) if layout == "bhsd" else load(name, "b", at, "h", e)

    q, k, v = read("q", "s", "d"), read("k", "t", "d"), read("v", "t", "e")
    x = mul(const(d**-0.5), red("add", "d", mul(q, k)))
    bs = [
        Buffer(n, (b, h, size, d) if layout == "bhsd" else (b, size, h, d), F32)
        for n, size in (("q", s), ("k", t), ("v", t))
    ]
    later = less(iota("s"), iota("t"))
    if causal == "select":
        x = select(later, const(-INF), x)
    elif causal == "add":
        x = add(x, select(later, const(-INF), const(0.0)))
    if window:
        x = select(less(iota(A("t") + window - 1), iota("s")), const(-INF), x)
    if mask:
        x = add(x, load("mask", "b", "t"))
        bs.append(Buffer("mask", (b, t), F32))
    out = mul(
        op("recip", online("t", x, const(LOG2E), const(1.0))), online("t", x, const(LOG2E), v)
    )
    shape = (b, h, s, d) if layout == "bhsd" else (b, s, h * d)
    at = ("b", "h", "s", "e") if layout == "bhsd" else ("b", "s", A("h") * d + A("e"))
    bs.append(Buffer("y", shape, F32))
    return kernel([("y", at, out)], {"b": b, "h": h, "s": s, "t": t, "d": d, "e": d}, bs)


def attention_with_projections(s: int, t: int, h: int, d: int, model: int, groups: int = 1):
    """q, k and v are linears with biases, computed inside; `groups` query heads share a key."""
    kv = h // groups

    def project(w: str, at: str, out: str, head: Index, name: str) -> Value:
        x = load("x" if at == "s" else "z", at, name)
        row = head * d + A(out)
        weight = load(w, row, name)
        return add(red("add", name, mul(x, weight)), load("b" + w, row))

    head = A("h") if groups == 1 else A("g")
    q_head = A("h") if groups == 1 else A("g") * groups + A("u")
    q = project("wq", "s", "d", q_head, "m")
    k = project("wk", "t", "d", head, "m")
    v = project("wv", "t", "e", head, "m")
    x = mul(const(d**-0.5), red("add", "d", mul(q, k)))
    out = mul(
        op("recip", online("t", x, const(LOG2E), const(1.0))), online("t", x, const(LOG2E), v)
    )
    extents = {"s": s, "t": t, "d": d, "e": d, "m": model}
    extents |= {"h": h} if groups == 1 else {"g": kv, "u": groups}
    bs = [Buffer("x", (s, model), F32), Buffer("z", (t, model), F32)]
    for name, heads in (("wq", h), ("wk", kv), ("wv", kv)):
        bs.append(Buffer(name, (heads * d, model), F32, constant=True))
        bs.append(Buffer("b" + name, (heads * d,), F32, constant=True))
    bs.append(Buffer("y", (s, h * d), F32))
    return kernel([("y", ("s", q_head * d + A("e")), out)], extents, bs)


def mlp(m: int, k: int, f: int, n: int) -> Kernel:
    """gelu(x @ w1.T) @ w2.T in one kernel, with the output's axis also the input's."""
    inner = gelu(red("add", "j", mul(load("x", "i", "j"), load("w1", "f", "j"))))
    v = red("add", "f", mul(inner, load("w2", "j" if k == n else "n", "f")))
    bs = [
        Buffer("x", (m, k), F32),
        Buffer("w1", (f, k), F32, constant=True),
        Buffer("w2", (n, f), F32, constant=True),
        Buffer("y", (m, n), F32),
    ]
    extents = {"i": m, "j": k, "f": f} | ({} if k == n else {"n": n})
    return kernel([("y", ("i", "j" if k == n else "n"), v)], extents, bs)


def out_projection(b: int, h: int, s: int, d: int, n: int) -> Kernel:
    """Heads in (b, h, s, d) layout, projected: a sum over d, then over h, plus a residual."""
    x = load("x", "b", "h", "s", "d")
    w = load("w", "j", A("h") * d + A("d"))
    v = add(red("add", "h", red("add", "d", mul(x, w))), load("r", "b", "s", "j"))
    bs = [
        Buffer("x", (b, h, s, d), F32),
        Buffer("w", (n, h * d), F32, constant=True),
        Buffer("r", (b, s, n), F32),
        Buffer("y", (b, s, n), F32),
    ]
    return kernel([("y", ("b", "s", "j"), v)], {"b": b, "h": h, "s": s, "d": d, "j": n}, bs)


def linear_layernorm(m: int, k: int, n: int) -> Kernel:
    """A product whose whole rows are needed: layernorm(x @ w.T + r)."""
    z = red("add", "k", mul(load("x", "i", "k"), load("w", "j", "k")))
    z = add(z, load("r", "i", "j"))
    d = add(z, neg(mul(red("add", "j", z), const(1.0 / n))))
    var = mul(red("add", "j", mul(d, d)), const(1.0 / n))
    v = mul(d, op("recip", op("sqrt", add(var, const(1e-5)))))
    bs = [
        Buffer("x", (m, k), F32),
        Buffer("w", (n, k), F32, constant=True),
        Buffer("r", (m, n), F32),
        Buffer("y", (m, n), F32),
    ]
    return kernel([("y", ("i", "j"), v)], {"i": m, "j": n, "k": k}, bs)


def conv(b: int, c: int, o: int, y: int, x: int, pad: int = 1, k: int = 3) -> Kernel:
    """A k×k convolution with padding."""
    at_y, at_x = A("y") + A("u") - pad, A("x") + A("v") - pad
    image = load("x", "b", "c", at_y, at_x)
    for index, n in ((at_y, y), (at_x, x)):
        inside = select(less(iota(index), const(n, I64)), image, const(0.0))
        image = select(less(iota(index), const(0, I64)), const(0.0), inside)
    weight = load("w", "o", "c", "u", "v")
    v = red("add", "c", red("add", "u", red("add", "v", mul(image, weight))))
    out_y, out_x = y + 2 * pad - k + 1, x + 2 * pad - k + 1
    bs = [
        Buffer("x", (b, c, y, x), F32),
        Buffer("w", (o, c, k, k), F32, constant=True),
        Buffer("y", (b, o, out_y, out_x), F32),
    ]
    extents = {"b": b, "o": o, "c": c, "y": out_y, "x": out_x, "u": k, "v": k}
    return kernel([("y", ("b", "o", "y", "x"), v)], extents, bs)


def embedding(n: int, vocabulary: int, d: int) -> Kernel:
    ids = load("ids", "i", dtype=I64)
    v = add(load("table", A("@0"), "j", args=(ids,)), load("p", "i", "j"))
    bs = [
        Buffer("ids", (n,), I64),
        Buffer("table", (vocabulary, d), F32, constant=True),
        Buffer("p", (n, d), F32),
        Buffer("y", (n, d), F32),
    ]
    return kernel([("y", ("i", "j"), v)], {"i": n, "j": d}, bs)
