"""Index expressions mean what Python means, on every point, before and after simplification."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.index import DivMod, Index
from tests.hlir.strategies import EXTENTS, divisors, indices, points, small

POINTS = points(EXTENTS)
A = Index.axis


def plain(index: Index) -> str:
    """Its text, which is also a Python expression."""
    return str(index)


def value(index: Index, point: dict[str, int]) -> int:
    out = eval(plain(index), {}, point)
    assert index.evaluate(point) == out
    return out


@given(indices())
def test_text_is_python_and_parses_back(index):
    back = Index.parse(str(index))
    for p in POINTS[::7]:
        assert value(index, p) == value(back, p)
    assert Index.parse(str(back)) == back
    assert back == index


@given(indices(), divisors)
def test_floordiv_and_mod_are_pythons(index, k):
    q, r = index.floordiv(k, EXTENTS), index.mod(k, EXTENTS)
    for p in POINTS:
        v = value(index, p)
        assert value(q, p) == v // k
        assert value(r, p) == v % k


@given(indices(), indices(), small)
def test_sums_and_products(a, b, k):
    for p in POINTS[::5]:
        assert value(a + b, p) == value(a, p) + value(b, p)
        assert value(a - b, p) == value(a, p) - value(b, p)
        assert value(a * k, p) == value(a, p) * k
        assert value(a + k, p) == value(a, p) + k


@given(indices())
def test_bounds_hold(index):
    low, high = index.bounds(EXTENTS)
    values = [value(index, p) for p in POINTS]
    assert low <= min(values)
    assert max(values) <= high
    if index.is_affine:
        assert (low, high) == (min(values), max(values))


@given(indices(), indices(depth=1), indices(depth=1))
def test_substitution(index, first, second):
    low = {a: e.bounds(EXTENTS)[0] for a, e in (("i0", first), ("i1", second))}
    by = {"i0": first - low["i0"], "i1": second - low["i1"]}
    out = index.substitute(by, EXTENTS)
    for p in POINTS[::3]:
        inner = {**p, **{a: value(e, p) for a, e in by.items()}}
        assert value(out, p) == value(index, inner)


@given(indices())
def test_renaming_and_tensors(index):
    names = {"i0": "a", "i1": "b", "i2": "c", "r": "d"}
    renamed = index.rename(names)
    assert renamed.rename({v: k for k, v in names.items()}) == index
    assert renamed.axes == {names[a] for a in index.axes}
    grid = {a: torch.arange(n) for a, n in EXTENTS.items()}
    boxed = {
        a: t.view([-1 if k == j else 1 for j in range(4)])
        for k, (a, t) in enumerate(grid.items())
    }
    got = torch.as_tensor(index.evaluate(boxed)).expand(tuple(EXTENTS.values()))
    assert got.reshape(-1).tolist() == [value(index, p) for p in POINTS]


@given(st.integers(2, 9), st.integers(2, 9))
def test_splitting_a_merged_axis_leaves_no_division(n, m):
    merged = A("h") * m + A("d")
    extents = {"h": n, "d": m}
    assert merged.floordiv(m, extents) == A("h")
    assert merged.mod(m, extents) == A("d")


def test_canonical_forms():
    extents = {"i": 4, "j": 8}
    assert A("i") + A("j") == A("j") + A("i")
    assert A("i") - A("i") == Index()
    assert str(A("i") * 64 + A("d")) == "i*64+d"
    assert str(-A("i") + 3) == "-i+3"
    assert (A("i") * 6 + A("j")).mod(2, extents) == A("j").mod(2, extents)
    assert A("i").floordiv(4, extents) == Index.num(0)
    assert (A("i") - 4).floordiv(4, extents) == Index.num(-1)
    assert A("i").single == "i"
    assert (A("i") * 2).single is None
    assert A("i").coef("i") == 1
    assert Index(((DivMod("//", A("j"), 2), 1),)).axes == {"j"}


def test_text_for_c_keeps_the_sign_outside():
    assert (-A("i").floordiv(4, {"i": 16})).render(div="/") == "-(i/4)"


@pytest.mark.parametrize(
    "text", ["", "i0*i1", "i0+", "(i0", "i0)", "i0 & 3", "2.5", "i0//i1", "i0//0"]
)
def test_bad_text_is_refused(text):
    with pytest.raises(HlirError):
        Index.parse(text)


def test_a_size_that_may_be_1_divides_nothing_for_certain() -> None:
    n = sizes.symbol("n", 1, 9)
    i, extents = Index.axis("i"), {"i": 3 * n}
    for value in (1, 2, 9):
        fixed = [e.resize(lambda d, v=value: sizes.value(d, {"n": v}))
                 for e in (i.mod(n, extents), i.floordiv(n, extents))]  # fmt: skip
        for k in range(3 * value):
            assert [e.evaluate({"i": k}) for e in fixed] == [k % value, k // value]
