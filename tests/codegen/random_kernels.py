"""Random kernels: any nesting of reductions, selects, casts, gathers, views and dtypes."""

from __future__ import annotations

import random

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.hlir.dtypes import BOOL, DTYPES, F32, I64, DType
from luminal_lab.hlir.index import Index

EXTENTS = (1, 2, 3, 5, 7, 16, 17, 31, 33, 37, 64, 70, 100)
FLOATS = [DTYPES[n] for n in ("f32", "f32", "f32", "f64", "f16", "bf16")]
INTS = [DTYPES[n] for n in ("i64", "i32", "i16", "i8", "u8")]


class Maker:
    """Makes one kernel from a seed."""

    def __init__(self, seed: int, dtype: DType | None = None, budget: int = 60_000):
        self.r = random.Random(seed)
        self.main = dtype or self.r.choice([F32, F32, F32, *FLOATS, *INTS, BOOL])
        self.buffers: dict[str, Buffer] = {}
        self.extents: dict[str, int] = {}
        self.budget = budget

    def axis(self) -> str:
        name = f"a{len(self.extents)}"
        self.extents[name] = self.r.choice(EXTENTS)
        return name

    def points(self, axes) -> int:
        out = 1
        for a in axes:
            out *= self.extents[a]
        return out

    def load(self, axes: list[str], dtype: DType) -> Value:
        r = self.r
        axes = list(axes)
        r.shuffle(axes)
        axes = axes[: r.choice([1, 2, 2, 3, 3])]
        index, shape, k = [], [], 0
        while k < len(axes):
            a = axes[k]
            n = self.extents[a]
            style = r.random()
            if style < 0.55 or dtype.name in ("i64",):
                index.append(Index.axis(a))
                shape.append(n)
            elif style < 0.65 and k + 1 < len(axes):  # a merged dim
                b = axes[k + 1]
                index.append(Index.axis(a) * self.extents[b] + Index.axis(b))
                shape.append(n * self.extents[b])
                k += 1
            elif style < 0.75:  # flipped
                index.append(Index.num(n - 1) - Index.axis(a))
                shape.append(n)
            elif style < 0.85:  # strided, with an offset
                index.append(Index.axis(a) * 2 + 1)
                shape.append(2 * n + 1)
            elif style < 0.93:
                index.append(Index.axis(a).floordiv(3, self.extents))
                shape.append((n + 2) // 3)
            else:
                index.append(Index.axis(a).mod(4, self.extents))
                shape.append(min(n, 4))
            k += 1
        name = f"x{len(self.buffers)}"
        strides = None
        if r.random() < 0.1 and shape:  # transposed memory
            strides, step = [0] * len(shape), 1
            for d, n in enumerate(shape):
                strides[d] = step
                step *= n
            strides = tuple(strides)
        constant = r.random() < 0.3
        self.buffers[name] = Buffer(name, tuple(shape), dtype, strides, constant)
        return Value("load", (), (name, tuple(index)), dtype=dtype)

    def gather(self, axes: list[str], dtype: DType) -> Value:
        rows = self.r.choice([1, 5, 40])
        where = self.load(axes, I64)
        name = f"x{len(self.buffers)}"
        a = self.r.choice(axes)
        self.buffers[name] = Buffer(name, (rows, self.extents[a]), dtype)
        self.buffers[where.attrs[0]] = self.buffers[where.attrs[0]]
        return Value("load", (where,), (name, (Index.axis("@0"), Index.axis(a))), dtype=dtype)

    def guarded(self, axes: list[str], dtype: DType) -> Value:
        """A padded read: out of bounds where the other branch is taken."""
        a = self.r.choice(axes)
        n, left = self.extents[a], self.r.choice([1, 3, 20])
        size = max(1, n - left - self.r.choice([0, 1, 4]))
        name = f"x{len(self.buffers)}"
        rest = [b for b in axes if b != a][:1]
        shape = (*(self.extents[b] for b in rest), size)
        self.buffers[name] = Buffer(name, shape, dtype)
        at = Index.axis(a) - left
        read = Value("load", (), (name, (*map(Index.axis, rest), at)), dtype=dtype)
        iota = Value("iota", (), (Index.axis(a),), dtype=I64)
        low = Value("lessthan", (iota, self.const(left, I64)), dtype=BOOL)
        high = Value("lessthan", (iota, self.const(left + size, I64)), dtype=BOOL)
        fill = self.const(self.number(dtype), dtype)
        inner = Value("select", (high, read, fill), dtype=dtype)
        return Value("select", (low, fill, inner), dtype=dtype)

    @staticmethod
    def const(x, dtype: DType) -> Value:
        return Value("const", (), (x,), dtype=dtype)

    def number(self, dtype: DType):
        if dtype.kind == "bool":
            return self.r.random() < 0.5
        if dtype.is_int:
            return self.r.randint(0 if dtype.kind == "uint" else -3, 4)
        return self.r.choice([0.5, -1.0, 1.25, 2.0, -0.75])

    def leaf(self, axes: list[str], dtype: DType) -> Value:
        x = self.r.random()
        if not axes or x < 0.12:
            return self.const(self.number(dtype), dtype)
        if x < 0.2 and dtype.name in ("i64", "i32"):
            return Value("iota", (), (Index.axis(self.r.choice(axes)),), dtype=dtype)
        if x < 0.28:
            return self.gather(axes, dtype)
        if x < 0.36:
            return self.guarded(axes, dtype)
        return self.load(axes, dtype)

    def value(self, axes: list[str], dtype: DType, depth: int) -> Value:
        r = self.r
        if depth == 0:
            return self.leaf(axes, dtype)
        x = r.random()
        if x < 0.22:
            return self.reduction(axes, dtype, depth)
        if x < 0.32:
            c = self.condition(axes, depth - 1)
            a, b = (self.value(axes, dtype, depth - 1) for _ in range(2))
            return Value("select", (c, a, b), dtype=dtype)
        if x < 0.42:
            other = r.choice([F32, F32, *FLOATS, *INTS, BOOL])
            return self.cast(self.value(axes, other, depth - 1), dtype)
        if dtype.kind == "bool" and x < 0.6:
            return self.condition(axes, depth - 1)
        if dtype.is_float and x < 0.55:
            name = r.choice(["exp2", "sin", "erf", "recip", "sqrt", "log2"])
            inner = self.value(axes, dtype, depth - 1)
            if name in ("recip", "sqrt", "log2"):  # away from poles
                inner = Value("mul", (inner, inner), dtype=dtype)
                inner = Value("add", (inner, self.const(0.5, dtype)), dtype=dtype)
            else:  # in a tame range
                inner = Value("sin", (inner,), dtype=dtype)
            return Value(name, (inner,), dtype=dtype)
        if x < 0.6 and dtype.is_int:
            inner = self.value(axes, dtype, depth - 1)
            return Value("mod", (inner, self.const(r.choice([2, 3, 7]), dtype)), dtype=dtype)
        a = self.value(axes, dtype, depth - 1)
        b = self.value(axes, dtype, depth - 1) if r.random() < 0.8 else a
        return Value(r.choice(["add", "mul"]), (a, b), dtype=dtype)

    def cast(self, v: Value, dtype: DType) -> Value:
        if v.dtype.name == dtype.name:
            return v
        if v.dtype.is_float and not dtype.is_float:  # casts of large floats are undefined
            v = Value("sin", (v,), dtype=v.dtype)
            v = Value("mul", (v, self.const(3.0, v.dtype)), dtype=v.dtype)
            if dtype.kind == "uint":
                v = Value("mul", (v, v), dtype=v.dtype)
        return Value("cast", (v,), dtype=dtype)

    def condition(self, axes: list[str], depth: int) -> Value:
        r = self.r
        if axes and r.random() < 0.5:
            a, b = r.choice(axes), r.choice(axes)
            i = Value("iota", (), (Index.axis(a) + r.randint(-3, 3),), dtype=I64)
            j = Value("iota", (), (Index.axis(b) if a != b else Index.num(4),), dtype=I64)
            return Value("lessthan", (i, j) if r.random() < 0.5 else (j, i), dtype=BOOL)
        dtype = r.choice([F32, I64, DTYPES["i32"]])
        args = tuple(self.leaf(axes, dtype) for _ in range(2))
        return Value("lessthan", args, dtype=BOOL)

    def reduction(self, axes: list[str], dtype: DType, depth: int) -> Value:
        r = self.r
        bound = r.choice(axes) if axes and r.random() < 0.4 else self.axis()
        inner = [*axes, bound] if bound not in axes else list(axes)
        while self.points(inner) > self.budget and len(inner) > 1:
            inner.remove(r.choice([a for a in inner if a != bound]))
        kind = r.random()
        if dtype.is_float and kind < 0.3:
            s = self.value(inner, dtype, depth - 1)
            w = r.choice([self.const(1.0, dtype), self.leaf(inner, dtype)])
            return Value("online", (s, self.const(0.5, dtype), w), (bound,), dtype=dtype)
        if dtype.is_float and kind < 0.55:  # a product
            a, b = self.load(inner, dtype), self.load(inner, dtype)
            return Value(
                "red", (Value("mul", (a, b), dtype=dtype),), ("add", bound), dtype=dtype
            )
        op = r.choice(["add", "max"])
        body = self.value(inner, dtype, depth - 1)
        if dtype.name in ("f16", "bf16") and op == "add":  # as captured: sums in float32
            wide = Value("red", (Value("cast", (body,), dtype=F32),), (op, bound), dtype=F32)
            return Value("cast", (wide,), dtype=dtype)
        return Value("red", (body,), (op, bound), dtype=dtype)

    def kernel(self) -> Kernel:
        r = self.r
        axes = [self.axis() for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3]))]
        while self.points(axes) > self.budget:
            axes.pop()
        outputs = []
        for k in range(r.choice([1, 1, 1, 2])):
            dtype = self.main if k == 0 else r.choice([F32, I64])
            value = self.value(axes, dtype, r.choice([1, 2, 3, 4]))
            mine = sorted(axes)
            r.shuffle(mine)
            name = f"y{k}"
            index = tuple(Index.axis(a) for a in mine)
            self.buffers[name] = Buffer(name, tuple(self.extents[a] for a in mine), dtype)
            outputs.append(KernelOutput(name, index, value))
        return Kernel(tuple(outputs), self.buffers, self.extents)


def make(seed: int, dtype: DType | None = None) -> Kernel:
    """The random kernel of a seed."""
    return Maker(seed, dtype).kernel()
