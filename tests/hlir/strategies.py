"""Hypothesis strategies for index expressions, shapes and small programs."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from luminal_lab.hlir import Graph, Hlir, Index
from luminal_lab.hlir.dtypes import BF16, BOOL, F16, F32, I8, I32, I64, U8

EXTENTS = {"i0": 4, "i1": 6, "i2": 1, "r": 5}
small = st.integers(-8, 8)
divisors = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])


@st.composite
def indices(draw: st.DrawFn, depth: int = 2) -> Index:
    """An index expression over the axes of EXTENTS, with nested divisions."""
    out = Index.num(draw(small))
    for axis in draw(st.lists(st.sampled_from(sorted(EXTENTS)), max_size=3, unique=True)):
        out = out + Index.axis(axis) * draw(st.integers(-24, 24))
    if depth and draw(st.booleans()):
        inner = draw(indices(depth=depth - 1))
        op = draw(st.sampled_from([Index.floordiv, Index.mod]))
        out = out + op(inner, draw(divisors), EXTENTS) * draw(st.integers(-3, 3))
    return out


def points(extents: dict[str, int]) -> list[dict[str, int]]:
    """All points of a box."""
    out: list[dict[str, int]] = [{}]
    for axis, n in extents.items():
        out = [{**p, axis: k} for p in out for k in range(n)]
    return out


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with the same number of elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), max_size=5))
    old = _merged(draw, factors)
    new = _merged(draw, draw(st.permutations(factors)))
    return old, new


def _merged(draw: st.DrawFn, factors: list[int]) -> tuple[int, ...]:
    out: list[int] = []
    for f in factors:
        if out and draw(st.booleans()):
            out[-1] *= f
        else:
            out.append(f)
    if draw(st.booleans()):
        out.insert(draw(st.integers(0, len(out))), 1)
    return tuple(out)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([F32, F16, BF16, I64, I32, I8, U8, BOOL])


@st.composite
def programs(draw: st.DrawFn) -> Hlir:
    """A small program over all pointwise ops, reductions, views and dtypes."""
    g = Graph("random")
    shape = draw(shapes)
    pool = [g.input(f"x{k}", shape, draw(dtypes)) for k in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(pool))
        choice = draw(st.integers(0, 9))
        if choice == 0 and x.dtype.is_float:
            x = x.unary(draw(st.sampled_from(["Exp2", "Log2", "Sin", "Sqrt", "Recip", "Erf"])))
        elif choice == 1:
            same = [y for y in pool if y.shape == x.shape and y.dtype == x.dtype]
            ops = ["Add", "Mul", "LessThan"]
            x = x.binary(draw(st.sampled_from(ops)), draw(st.sampled_from(same)))
        elif choice == 2:
            x = x.cast(draw(dtypes))
        elif choice == 3 and x.rank:
            x = x.reduce(draw(st.sampled_from(["SumReduce", "MaxReduce"])), 0)
        elif choice == 4:
            x = x.permute(*draw(st.permutations(range(x.rank))))
        elif choice == 5 and x.rank:
            x = x.flip(draw(st.integers(0, x.rank - 1)))
        elif choice == 6:
            pads = [tuple(draw(st.integers(0, 2)) for _ in "ab") for _ in range(x.rank)]
            x = x.pad(pads, draw(st.integers(0, 3)) if x.dtype is not BOOL else False)
        elif choice == 7:
            x = x.reshape((math.prod(x.shape),))
        elif choice == 8 and x.rank:
            x = x.repeat((2,) + (1,) * (x.rank - 1))
        elif choice == 9 and x.dtype is BOOL:
            x = x.where(g.full(x.shape, 1.5, F32), g.full(x.shape, -0.0, F32))
        pool.append(x)
    return g.finish(*pool[-2:])
