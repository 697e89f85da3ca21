"""Sizes: arithmetic is right at every value, proofs hold, text reads back."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, Size, Undecided, symbol
from luminal_lab.hlir.view import regroup

N, B = symbol("n", 2, 512, hint=128), symbol("b", 1, 64, hint=4)
SYMBOLS = {"n": N, "b": B}
VALUES = [{"n": n, "b": b} for n, b in ((2, 1), (512, 64), (7, 3), (128, 4), (33, 1))]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Dim, list[int]]:
    """A size, and what it must be at each of VALUES, computed in plain Python."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from([N, B, *range(1, 10)]))
        name = {id(N): "n", id(B): "b"}.get(id(leaf))
        return leaf, [v[name] if name else leaf for v in VALUES]
    (a, xs), (b, ys) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]))
    if op in ("//", "%") and not sizes.at_least(b, 1):
        op = "+"
    plain = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
             "//": lambda x, y: x // y, "%": lambda x, y: x % y,
             "max": sizes.largest, "min": sizes.smallest}[op]  # fmt: skip
    return plain(a, b), [plain(x, y) for x, y in zip(xs, ys)]


@given(expressions())
@settings(max_examples=300, deadline=None)
def test_arithmetic_bounds_and_text(made: tuple[Dim, list[int]]) -> None:
    size, want = made
    assert [sizes.value(size, v) for v in VALUES] == want
    low, high = sizes.bounds(size)
    assert low <= min(want)
    assert max(want) <= high
    back = sizes.parse(str(size), SYMBOLS)
    assert [sizes.value(back, v) for v in VALUES] == want
    names = {"ll_fdiv": lambda a, b: a // b, "ll_max": max, "ll_min": min}
    code = sizes.c_text(size, lambda s: s.name).replace("/", "//")
    assert [eval(code, {**names, **v}) for v in VALUES] == want


def test_what_bounds_decide() -> None:
    assert N > 1
    assert N <= 512
    assert N // 2 + N // 2 <= N
    assert B * N - 1 < B * N
    assert (N - 1) // N == 0
    assert N * 64 % N == 0
    assert sizes.divides(N, N * B)
    assert not sizes.divides(4, N)
    for question in (lambda: N < 100, lambda: B > 1, lambda: bool(B - 1), lambda: int(N)):
        with pytest.raises(Undecided):
            question()
    assert not sizes.surely(lambda: N < 100)
    with pytest.raises(HlirError, match="bounds"):
        symbol("x", 4, 3)
    with pytest.raises(HlirError, match="no value"):
        sizes.value(N, {})


def test_sizes_travel() -> None:
    size = (N * 2 + 1) * B
    assert isinstance(size, Size)
    assert pickle.loads(pickle.dumps(size)) == size
    assert str(size) == "2*b*n+b"
    assert sizes.hint(size) == 257 * 4
    assert {s.name for s in size.free_symbols} == {"n", "b"}


def test_reshapes_regroup_symbolic_dims() -> None:
    assert str(regroup((B, N, 768), (B * N, 768))) == "(i0//{n}, i0%{n}, i1)"
    assert str(regroup((B * N, 768), (B, N, 12, 64))) == "(i0*{n}+i1, i2*64+i3)"
    assert str(regroup((2 * N,), (N, 2))) == "(i0*2+i1,)"
    with pytest.raises(HlirError, match="cannot reshape"):
        regroup((N, 2), (N, 3))


def test_indices_hold_sizes_in_braces() -> None:
    b, i = Index.axis("b"), Index.axis("i")
    extents = {"b": B, "i": N}
    index = b * N + i
    assert str(index) == "b*{n}+i"
    assert index.floordiv(N, extents) == b
    assert index.mod(N, extents) == i
    assert index.bounds(extents) == (0, B * N - 1)
    for one in (index, index + N // 2, Index.num(sizes.largest(N, 40)), i - N):
        assert Index.parse(str(one), None, SYMBOLS) == one
    assert index.resize(lambda n: sizes.value(n, {"n": 5, "b": 2})) == b * 5 + i
