"""Kernels for the GPU renderers' tests, their inputs, and what they must compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch

from luminal_lab.egraph.evaluate import evaluate
from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value, postorder
from luminal_lab.hlir.dtypes import (
    BF16,
    BOOL,
    DTYPES,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    DType,
)
from luminal_lab.hlir.index import Index

LOG2E = 1.4426950408889634


# ---------------------------------------------------------------------------------- vocabulary
def ix(i: str | int | Index) -> Index:
    if isinstance(i, Index):
        return i
    return Index.num(i) if isinstance(i, int) else Index.parse(i)


def load(buffer: str, *index: str | int | Index, dtype: DType = F32, args=()) -> Value:
    return Value("load", tuple(args), (buffer, tuple(map(ix, index))), dtype=dtype)


def const(x: float | int | bool, dtype: DType = F32) -> Value:
    return Value("const", (), (x,), dtype=dtype)


def op(name: str, *args: Value) -> Value:
    return Value(name, args, dtype=args[-1].dtype)


def add(*xs: Value) -> Value:
    out = xs[0]
    for x in xs[1:]:
        out = op("add", out, x)
    return out


def mul(*xs: Value) -> Value:
    out = xs[0]
    for x in xs[1:]:
        out = op("mul", out, x)
    return out


def sub(a: Value, b: Value) -> Value:
    return add(a, mul(b, const(-1.0, b.dtype)))


def exp2(x: Value) -> Value:
    return op("exp2", x)


def exp(x: Value) -> Value:
    return exp2(mul(x, const(LOG2E, x.dtype)))


def recip(x: Value) -> Value:
    return op("recip", x)


def less(a: Value, b: Value) -> Value:
    return Value("lessthan", (a, b), dtype=BOOL)


def select(c: Value, a: Value, b: Value) -> Value:
    return Value("select", (c, a, b), dtype=a.dtype)


def cast(x: Value, dtype: DType) -> Value:
    return Value("cast", (x,), dtype=dtype)


def iota(i: str | Index, dtype: DType = I64) -> Value:
    return Value("iota", (), (ix(i),), dtype=dtype)


def red(kind: str, axis: str, x: Value) -> Value:
    return Value("red", (x,), (kind, axis), dtype=x.dtype)


def online(axis: str, s: Value, c: Value, w: Value) -> Value:
    return Value("online", (s, c, w), (axis,), dtype=w.dtype)


def arg_max(axis: str, x: Value, p: Value) -> Value:
    return Value("carry", (x, p), ("argmax", axis), dtype=p.dtype)


def gelu(x: Value) -> Value:
    inner = op("erf", mul(x, const(0.7071067811865476)))
    return mul(x, const(0.5), add(const(1.0), inner))


def kernel(
    outputs: Mapping[str, tuple[Value, tuple]],
    inputs: Mapping[str, tuple[tuple[int, ...], DType]],
    shapes: Mapping[str, tuple[int, ...]],
    **extents: int,
) -> Kernel:
    buffers = {n: Buffer(n, shape, dtype) for n, (shape, dtype) in inputs.items()}
    for name, (value, _) in outputs.items():
        buffers[name] = Buffer(name, shapes[name], value.dtype)
    outs = tuple(KernelOutput(n, tuple(map(ix, index)), v) for n, (v, index) in outputs.items())
    return Kernel(outs, buffers, extents)


def one(
    value: Value, index: tuple, inputs: Mapping, shape: tuple[int, ...], **extents
) -> Kernel:
    return kernel({"o": (value, index)}, inputs, {"o": shape}, **extents)


# ------------------------------------------------------------------------------------- kernels
def pointwise(m: int = 37, n: int = 100, dtype: DType = F32) -> Kernel:
    x, r = load("x", "i", "j", dtype=dtype), load("r", "i", "j", dtype=dtype)
    w, b = load("w", "j", dtype=dtype), load("b", "j", dtype=dtype)
    wide = [cast(v, F32) if dtype is not F32 else v for v in (x, w, b, r)]
    y = add(gelu(add(mul(wide[0], wide[1]), wide[2])), wide[3])
    y = cast(y, dtype) if dtype is not F32 else y
    two, row = ((m, n), dtype), ((n,), dtype)
    return one(y, ("i", "j"), {"x": two, "w": row, "b": row, "r": two}, (m, n), i=m, j=n)


def transpose(m: int = 50, n: int = 70) -> Kernel:
    x = mul(load("x", "j", "i"), const(2.0))
    return one(x, ("i", "j"), {"x": ((n, m), F32)}, (m, n), i=m, j=n)


def softmax(m: int = 20, n: int = 300) -> Kernel:
    x = load("x", "i", "j")
    e = exp2(mul(const(LOG2E), sub(x, red("max", "j", x))))
    y = mul(e, recip(red("add", "j", e)))
    return one(y, ("i", "j"), {"x": ((m, n), F32)}, (m, n), i=m, j=n)


def softmax_online(m: int = 20, n: int = 300) -> Kernel:
    x, c = load("x", "i", "j"), const(LOG2E)
    e = exp2(mul(c, sub(x, red("max", "j", x))))
    y = mul(e, recip(online("j", x, c, const(1.0))))
    return one(y, ("i", "j"), {"x": ((m, n), F32)}, (m, n), i=m, j=n)


def logsumexp(m: int = 20, n: int = 300) -> Kernel:
    x, c = load("x", "i", "j"), const(LOG2E)
    total = op("log2", online("j", x, c, const(1.0)))
    y = add(red("max", "j", x), mul(total, const(1 / LOG2E)))
    return one(y, ("i",), {"x": ((m, n), F32)}, (m,), i=m, j=n)


def layernorm(m: int = 20, n: int = 300, dtype: DType = F32) -> Kernel:
    x, g, b = (load(*a, dtype=dtype) for a in (("x", "i", "j"), ("g", "j"), ("b", "j")))
    if dtype is not F32:
        x, g, b = (cast(v, F32) for v in (x, g, b))
    mean = mul(red("add", "j", x), const(1 / n))
    d = sub(x, mean)
    var = mul(red("add", "j", mul(d, d)), const(1 / n))
    y = add(mul(d, recip(op("sqrt", add(var, const(1e-5)))), g), b)
    y = cast(y, dtype) if dtype is not F32 else y
    inputs = {"x": ((m, n), dtype), "g": ((n,), dtype), "b": ((n,), dtype)}
    return one(y, ("i", "j"), inputs, (m, n), i=m, j=n)


def rmsnorm(m: int = 20, n: int = 300) -> Kernel:
    x = load("x", "i", "j")
    ms = mul(red("add", "j", mul(x, x)), const(1 / n))
    y = mul(x, recip(op("sqrt", add(ms, const(1e-6)))), load("g", "j"))
    return one(y, ("i", "j"), {"x": ((m, n), F32), "g": ((n,), F32)}, (m, n), i=m, j=n)


def row_sum(m: int = 20, n: int = 300) -> Kernel:
    return one(
        red("add", "j", load("x", "i", "j")), ("i",), {"x": ((m, n), F32)}, (m,), i=m, j=n
    )


def column_sum(m: int = 300, n: int = 70) -> Kernel:
    return one(
        red("add", "i", load("x", "i", "j")), ("j",), {"x": ((m, n), F32)}, (n,), i=m, j=n
    )


def full_sum(m: int = 30, n: int = 70) -> Kernel:
    x = red("add", "i", red("add", "j", load("x", "i", "j")))
    return one(x, (), {"x": ((m, n), F32)}, (), i=m, j=n)


def gemm(m: int = 100, n: int = 90, k: int = 70, dtype: DType = F32) -> Kernel:
    x, w, b = (load(*a, dtype=dtype) for a in (("x", "m", "k"), ("w", "n", "k"), ("b", "n")))
    if dtype is not F32:
        x, w, b = (cast(v, F32) for v in (x, w, b))
    y = gelu(add(red("add", "k", mul(x, w)), b))
    y = cast(y, dtype) if dtype is not F32 else y
    inputs = {"x": ((m, k), dtype), "w": ((n, k), dtype), "b": ((n,), dtype)}
    return one(y, ("m", "n"), inputs, (m, n), m=m, n=n, k=k)


def linear(b: int = 2, s: int = 30, h: int = 3, d: int = 32, i: int = 4, j: int = 16) -> Kernel:
    """Tokens (b, s), outputs (h, d), features (i, j): a projection to heads."""
    x = load("x", "b", "s", f"i*{j}+j")
    w = load("w", f"h*{d}+d", f"i*{j}+j")
    y = add(red("add", "i", red("add", "j", mul(x, w))), load("c", f"h*{d}+d"))
    inputs = {"x": ((b, s, i * j), F32), "w": ((h * d, i * j), F32), "c": ((h * d,), F32)}
    return one(y, ("b", "s", "h", "d"), inputs, (b, s, h, d), b=b, s=s, h=h, d=d, i=i, j=j)


def gemv(n: int = 90, k: int = 300) -> Kernel:
    y = red("add", "k", mul(load("w", "n", "k"), load("x", "k")))
    return one(y, ("n",), {"w": ((n, k), F32), "x": ((k,), F32)}, (n,), n=n, k=k)


def rms_linear(m: int = 40, n: int = 80, k: int = 300) -> Kernel:
    x = load("x", "m", "k")
    scale = recip(op("sqrt", add(mul(red("add", "k", mul(x, x)), const(1 / k)), const(1e-6))))
    y = mul(red("add", "k", mul(x, load("g", "k"), load("w", "n", "k"))), scale)
    inputs = {"x": ((m, k), F32), "g": ((k,), F32), "w": ((n, k), F32)}
    return one(y, ("m", "n"), inputs, (m, n), m=m, n=n, k=k)


def swiglu(m: int = 40, n: int = 80, k: int = 150) -> Kernel:
    x = load("x", "m", "k")
    a = red("add", "k", mul(x, load("w", "n", "k")))
    b = red("add", "k", mul(x, load("v", "n", "k")))
    y = mul(a, recip(add(const(1.0), exp(mul(a, const(-1.0))))), b)
    inputs = {"x": ((m, k), F32), "w": ((n, k), F32), "v": ((n, k), F32)}
    return one(y, ("m", "n"), inputs, (m, n), m=m, n=n, k=k)


def mlp(m: int = 40, f: int = 150, k: int = 64, n: int = 48) -> Kernel:
    h = gelu(red("add", "k", mul(load("x", "m", "k"), load("w", "f", "k"))))
    y = red("add", "f", mul(h, load("v", "n", "f")))
    inputs = {"x": ((m, k), F32), "w": ((f, k), F32), "v": ((n, f), F32)}
    return one(y, ("m", "n"), inputs, (m, n), m=m, f=f, k=k, n=n)


def attention(
    h: int = 2, s: int = 150, t: int = 150, d: int = 32, mask: str = "", dtype: DType = F32
) -> Kernel:
    """One pass over the keys, with a mask or without."""
    q, k, v = (load(*a, dtype=dtype) for a in _QKV)
    if dtype is not F32:
        q, k, v = (cast(x, F32) for x in (q, k, v))
    score = red("add", "d", mul(q, k))
    inputs = {n: ((h, s if n == "q" else t, d), dtype) for n in "qkv"}
    minus = const(-math.inf)
    if mask == "causal":
        score = select(less(iota("t"), iota("s+1")), score, minus)
    elif mask == "window":
        near = mul(less(iota("t"), iota("s+1")), less(iota("s"), iota("t+40")))
        score = select(near, score, minus)
    elif mask == "upper":  # the first keys are masked, entire blocks of them
        score = select(less(iota("t"), iota("s")), minus, score)
    elif mask == "keys":
        score = select(load("m", "t", dtype=BOOL), score, minus)
        inputs["m"] = ((t,), BOOL)
    elif mask == "none":  # row 3 sees no key
        score = select(less(iota("s"), const(3, I64)), score, minus)
    c = const(LOG2E / math.sqrt(d))
    y = mul(recip(online("t", score, c, const(1.0))), online("t", score, c, v))
    y = cast(y, dtype) if dtype is not F32 else y
    return one(y, ("h", "s", "e"), inputs, (h, s, d), h=h, s=s, t=t, d=d, e=d)


_QKV = (("q", "h", "s", "d"), ("k", "h", "t", "d"), ("v", "h", "t", "e"))


def gather(n: int = 30, v: int = 11, d: int = 40) -> Kernel:
    rows = load("e", "@0", "d", args=(load("ids", "n", dtype=I64),))
    y = add(rows, load("p", "n", "d"))
    inputs = {"e": ((v, d), F32), "ids": ((n,), I64), "p": ((n, d), F32)}
    return one(y, ("n", "d"), inputs, (n, d), n=n, d=d)


def pad(n: int = 30, left: int = 3, right: int = 5) -> Kernel:
    total = n + left + right
    inside = mul(
        less(iota(f"i-{left}"), const(n, I64)), less(const(-1, I64), iota(f"i-{left}"))
    )
    y = select(inside, load("x", f"i-{left}"), const(7.0))
    return one(y, ("i",), {"x": ((n,), F32)}, (total,), i=total)


def conv1d(n: int = 60, c: int = 16, o: int = 24, w: int = 3) -> Kernel:
    x = load("x", "n+w", "c")
    y = red("add", "w", red("add", "c", mul(x, load("k", "o", "w", "c"))))
    inputs = {"x": ((n + w - 1, c), F32), "k": ((o, w, c), F32)}
    return one(y, ("n", "o"), inputs, (n, o), n=n, o=o, c=c, w=w)


def divmod_index(n: int = 60) -> Kernel:
    e = {"i": n}
    half = ix("i").floordiv(2, e)
    y = add(load("x", half), load("y", ix("i").mod(7, e)), cast(iota(half), F32))
    return one(y, ("i",), {"x": ((n // 2,), F32), "y": ((7,), F32)}, (n,), i=n)


def integers(m: int = 20, n: int = 70, dtype: DType = I64) -> Kernel:
    x, y = load("x", "i", "j", dtype=dtype), load("y", "i", "j", dtype=dtype)
    z = add(mul(x, y), op("mod", x, add(y, const(7, dtype))), const(-3 % 100, dtype))
    inputs = {"x": ((m, n), dtype), "y": ((m, n), dtype)}
    total, top = red("add", "j", z), red("max", "j", z)
    outs = {"o": (z, ("i", "j")), "s": (total, ("i",)), "t": (top, ("i",))}
    return kernel(outs, inputs, {"o": (m, n), "s": (m,), "t": (m,)}, i=m, j=n)


def booleans(m: int = 20, n: int = 70) -> Kernel:
    x, y = load("x", "i", "j", dtype=BOOL), load("y", "i", "j")
    z = add(x, less(y, const(-1.0)))
    outs = {
        "o": (z, ("i", "j")),
        "a": (red("add", "j", mul(z, less(y, const(-1.5)))), ("i",)),
        "f": (cast(z, F32), ("i", "j")),
        "q": (cast(cast(y, I64), BOOL), ("i", "j")),
    }
    inputs = {"x": ((m, n), BOOL), "y": ((m, n), F32)}
    return kernel(outs, inputs, {"o": (m, n), "a": (m,), "f": (m, n), "q": (m, n)}, i=m, j=n)


def functions(n: int = 200) -> Kernel:
    x = load("x", "i")
    positive = add(mul(x, x), const(0.1))
    outs = {
        "a": op("exp2", x), "b": op("log2", positive), "c": op("sin", x),
        "d": op("sqrt", positive), "e": recip(positive), "f": op("erf", x),
        "g": op("mod", x, const(0.7)), "h": op("mod", x, const(-0.7)),
        "k": cast(cast(x, BF16), F32),
    }  # fmt: skip
    return kernel(
        {k: (v, ("i",)) for k, v in outs.items()},
        {"x": ((n,), F32)},
        dict.fromkeys(outs, (n,)),
        i=n,
    )


def place(m: int = 20, n: int = 300, dtype: DType = F32) -> Kernel:
    """The maximum of each row, and where it is first."""
    x = load("x", "i", "j", dtype=dtype)
    outs = {"o": (arg_max("j", x, iota("j")), ("i",)), "top": (red("max", "j", x), ("i",))}
    return kernel(outs, {"x": ((m, n), dtype)}, {"o": (m,), "top": (m,)}, i=m, j=n)


def place_of_computed(m: int = 300, n: int = 70) -> Kernel:
    """Where each column of x*x*y is least."""
    x = load("x", "i", "j")
    value = mul(x, x, load("y", "j"), const(-1.0))
    inputs = {"x": ((m, n), F32), "y": ((n,), F32)}
    return one(arg_max("i", value, iota("i")), ("j",), inputs, (n,), i=m, j=n)


def place_in_all(m: int = 30, n: int = 70) -> Kernel:
    """The place of the maximum over two axes, of a product."""
    s = red("add", "k", mul(load("x", "i", "k"), load("y", "j", "k")))
    inner = arg_max("j", s, iota(f"{n}*i + j"))
    inputs = {"x": ((m, 9), F32), "y": ((n, 9), F32)}
    return one(arg_max("i", red("max", "j", s), inner), (), inputs, (), i=m, j=n, k=9)


def pooled_place(n: int = 60) -> Kernel:
    """The place of the maximum in each window of three, with padding."""
    at = ix("2*i + w - 1")
    inside = less(const(-1, I64), iota(at))
    x = select(inside, load("x", at), const(-math.inf))
    p = select(inside, iota(at), const((1 << 31) - 1, I64))
    m = n // 2
    return one(arg_max("w", x, p), ("i",), {"x": ((n,), F32)}, (m,), i=m, w=3)


def spread(axis: str, x: Value, w: Value) -> Value:
    return Value("carry", (x, w), ("spread", axis), dtype=w.dtype)


def variance(m: int = 20, n: int = 300) -> Kernel:
    """The mean and the squared deviations of each row."""
    x = load("x", "i", "j")
    outs = {
        "o": (spread("j", x, const(1.0)), ("i",)),
        "mean": (mul(red("add", "j", x), const(1 / n)), ("i",)),
    }
    return kernel(outs, {"x": ((m, n), F32)}, {"o": (m,), "mean": (m,)}, i=m, j=n)


def column_variance(m: int = 300, n: int = 70) -> Kernel:
    """The squared deviations of exp2 of each column."""
    x = exp2(load("x", "i", "j"))
    return one(spread("i", x, const(1.0)), ("j",), {"x": ((m, n), F32)}, (n,), i=m, j=n)


def weighted_variance(m: int = 20, n: int = 300) -> Kernel:
    """Squared deviations from a mean under weights, some of which are 0."""
    w = select(load("b", "i", "j", dtype=BOOL), load("w", "j"), const(0.0))
    inputs = {"x": ((m, n), F32), "w": ((n,), F32), "b": ((m, n), BOOL)}
    return one(spread("j", load("x", "i", "j"), mul(w, w)), ("i",), inputs, (m,), i=m, j=n)


def two_outputs(m: int = 20, n: int = 300) -> Kernel:
    x = load("x", "i", "j")
    mean = mul(red("add", "j", x), const(1 / n))
    outs = {"o": (sub(x, mean), ("i", "j")), "mean": (mean, ("i",))}
    return kernel(outs, {"x": ((m, n), F32)}, {"o": (m, n), "mean": (m,)}, i=m, j=n)


def doubles(m: int = 20, n: int = 70, k: int = 40) -> Kernel:
    """Products, softmax and functions in float64."""
    s = red("add", "k", mul(load("x", "m", "k", dtype=F64), load("y", "n", "k", dtype=F64)))
    e = exp2(mul(sub(s, red("max", "n", s)), const(0.1, F64)))
    y = add(mul(e, recip(red("add", "n", e))), op("erf", op("sqrt", mul(s, s))))
    inputs = {"x": ((m, k), F64), "y": ((n, k), F64)}
    return one(y, ("m", "n"), inputs, (m, n), m=m, n=n, k=k)


def float8(n: int = 300, dtype: DType = DTYPES["f8e4m3"]) -> Kernel:
    """From and to an 8-bit float, and rounding in the middle."""
    x, y = cast(load("x", "i", dtype=dtype), F32), load("y", "i")
    z = add(cast(cast(mul(x, y), dtype), F32), x)
    outs = {"o": (cast(z, dtype), ("i",)), "w": (z, ("i",))}
    return kernel(outs, {"x": ((n,), dtype), "y": ((n,), F32)}, {"o": (n,), "w": (n,)}, i=n)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "pointwise": pointwise,
    "pointwise_bf16": lambda: pointwise(dtype=BF16),
    "pointwise_f16": lambda: pointwise(dtype=F16),
    "transpose": transpose,
    "softmax": softmax,
    "softmax_long": lambda: softmax(2, 9000),
    "softmax_online": softmax_online,
    "logsumexp": logsumexp,
    "logsumexp_long": lambda: logsumexp(2, 9000),
    "layernorm": layernorm,
    "layernorm_long": lambda: layernorm(2, 9000),
    "layernorm_bf16": lambda: layernorm(dtype=BF16),
    "rmsnorm": rmsnorm,
    "row_sum": row_sum,
    "column_sum": column_sum,
    "full_sum": full_sum,
    "gemm": gemm,
    "gemm_bf16": lambda: gemm(dtype=BF16),
    "gemm_f16": lambda: gemm(dtype=F16),
    "gemm_small": lambda: gemm(3, 5, 7),
    "linear": linear,
    "gemv": gemv,
    "rms_linear": rms_linear,
    "swiglu": swiglu,
    "mlp": mlp,
    "attention": attention,
    "attention_causal": lambda: attention(mask="causal"),
    "attention_window": lambda: attention(mask="window"),
    "attention_upper": lambda: attention(mask="upper"),
    "attention_keys": lambda: attention(mask="keys"),
    "attention_none": lambda: attention(mask="none", s=20),
    "attention_bf16": lambda: attention(dtype=BF16),
    "attention_one_query": lambda: attention(s=1),
    "attention_one_key": lambda: attention(s=5, t=1, d=8),
    "gather": gather,
    "pad": pad,
    "conv1d": conv1d,
    "divmod": divmod_index,
    "integers": integers,
    **{f"integers_{d}": partial(integers, dtype=d) for d in (I32, I16, I8, U8)},
    "booleans": booleans,
    "functions": functions,
    "two_outputs": two_outputs,
    "place": place,
    "place_long": lambda: place(2, 9000),
    "place_bf16": lambda: place(dtype=BF16),
    **{f"place_{d}": partial(place, dtype=d) for d in (I64, I8)},
    "place_of_computed": place_of_computed,
    "place_in_all": place_in_all,
    "pooled_place": pooled_place,
    "variance": variance,
    "variance_long": lambda: variance(2, 9000),
    "column_variance": column_variance,
    "weighted_variance": weighted_variance,
    "weighted_variance_long": lambda: weighted_variance(2, 9000),
}


WIDE: dict[str, Callable[[], Kernel]] = {  # types that Metal lacks
    "doubles": doubles,
    "place_f64": lambda: place(dtype=F64),
    "float8_e4m3": float8,
    "float8_e5m2": lambda: float8(dtype=DTYPES["f8e5m2"]),
}


# ------------------------------------------------------------------------- inputs and reference
def torch_dtype(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.torch_name)


def inputs(k: Kernel, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors; integers that index something are in its bounds."""
    g = torch.Generator().manual_seed(seed)
    limit = {}
    for v in postorder(o.value for o in k.outputs):
        if v.op == "load":
            for a in v.args:
                limit[a.attrs[0]] = k.buffers[v.attrs[0]].shape[0]
    out = {}
    for name in k.reads():
        b = k.buffers[name]
        if b.dtype.kind == "bool":
            out[name] = torch.rand(b.shape, generator=g) < 0.7
        elif b.dtype.is_int:
            top = limit.get(name, 5)
            out[name] = torch.randint(0, top, b.shape, generator=g).to(torch_dtype(b.dtype))
        else:
            out[name] = torch.randn(b.shape, generator=g).to(torch_dtype(b.dtype))
    return out


def outputs(k: Kernel) -> dict[str, torch.Tensor]:
    """Tensors full of a value that no kernel computes."""
    out = {}
    for name in k.writes():
        b = k.buffers[name]
        out[name] = torch.full(b.shape, 99, dtype=torch_dtype(b.dtype))
    return out


def check(
    k: Kernel, given: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]
) -> float:
    """Compare with the float64 evaluator; returns the largest relative error."""
    wanted = evaluate([o.value for o in k.outputs], k.extents, given)
    worst = 0.0
    for o, (value, order) in zip(k.outputs, wanted, strict=True):
        axes = sorted(frozenset().union(*(i.axes for i in o.index)) | o.value.free)
        shape = [k.extents[a] for a in axes]
        value = value.reshape([k.extents[a] if a in order else 1 for a in axes]).expand(shape)
        where = (
            torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij") if shape else ()
        )
        points = dict(zip(axes, where, strict=True))
        at = tuple(
            torch.as_tensor(i.evaluate(points)).expand(shape).reshape(-1) for i in o.index
        )
        actual = got[o.buffer][at].reshape(shape) if at else got[o.buffer]
        dtype = k.buffers[o.buffer].dtype
        if not dtype.is_float:
            assert torch.equal(actual, value.to(actual.dtype)), o.buffer
            continue
        tolerance = {"f64": 1e-10, "f32": 2e-5, "f16": 2e-3, "bf16": 1e-2}.get(dtype.name, 0.13)
        scale = value.double().nan_to_num(0, 0, 0).abs().amax().clamp(min=1e-30).item()
        torch.testing.assert_close(
            actual.double(), value.double(), rtol=0, atol=tolerance * scale, equal_nan=True
        )
        error = (actual.double() - value.double()).nan_to_num(0, 0, 0).abs() / scale
        worst = max(worst, error.max().item())
    return worst
