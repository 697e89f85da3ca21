"""The float64 evaluator, against plain torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from luminal_lab.egraph import evaluate as module
from luminal_lab.egraph.evaluate import evaluate
from luminal_lab.egraph.gemm import Stored, gemm_form
from luminal_lab.egraph.values import Value
from luminal_lab.hlir.dtypes import BF16, BOOL, F32, I32, I64
from luminal_lab.hlir.index import Index

A = Index.axis
EXTENTS = {"i": 3, "j": 4, "k": 5, "z": 0}


def load(name: str, *axes: str, dtype=F32) -> Value:
    return Value("load", (), (name, tuple(A(a) for a in axes)), dtype=dtype)


def const(x: float) -> Value:
    return Value("const", (), (x,), dtype=F32)


def mul(a: Value, b: Value) -> Value:
    return Value("mul", (a, b), dtype=a.dtype)


def red(op: str, axis: str, x: Value) -> Value:
    return Value("red", (x,), (op, axis), dtype=x.dtype)


@pytest.fixture
def buffers() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "x": torch.randn(3, 4),
        "y": torch.randn(4, 5),
        "s": torch.randn(3, 4),
        "n": torch.randint(-3, 4, (3, 4), dtype=torch.int32),
        "at": torch.tensor([2, 0, 1]),
    }


def one(value: Value, buffers, **more) -> torch.Tensor:
    ((out, order),) = evaluate([value], EXTENTS, buffers, **more)
    assert order == tuple(sorted(value.free))
    return out


def test_a_product_is_one_contraction(buffers) -> None:
    value = red("add", "j", mul(load("x", "i", "j"), load("y", "j", "k")))
    assert torch.allclose(one(value, buffers), buffers["x"].double() @ buffers["y"].double())


def test_binders_shadow(buffers) -> None:
    # sum over j of x[i, j] * max over j of x[i, j]
    inner = red("max", "j", load("x", "i", "j"))
    value = red("add", "j", mul(load("x", "i", "j"), inner))
    x = buffers["x"].double()
    assert torch.allclose(one(value, buffers), x.sum(1) * x.amax(1))


def test_points_of_free_axes_leave_bound_axes_whole(buffers) -> None:
    total = red("add", "j", load("x", "i", "j"))
    value = mul(load("x", "i", "j"), total)
    some = {"j": torch.tensor([3, 1])}
    x = buffers["x"].double()
    assert torch.allclose(
        one(value, buffers, axes=some), (x * x.sum(1, keepdim=True))[:, [3, 1]]
    )


def test_a_sum_over_an_axis_that_does_not_occur(buffers) -> None:
    x = buffers["x"].double()
    assert torch.allclose(one(red("add", "k", load("x", "i", "j")), buffers), 5 * x)
    both = red("add", "k", mul(load("x", "i", "j"), const(2.0)))
    assert torch.allclose(one(both, buffers), 10 * x)
    assert one(red("add", "z", load("x", "i", "j")), buffers).eq(0).all()
    assert one(red("max", "z", load("x", "i", "j")), buffers).eq(-math.inf).all()


def test_online_is_its_definition(buffers) -> None:
    args = (load("s", "i", "j"), const(1.5), load("y", "j", "k"))
    value = Value("online", args, ("j",), dtype=F32)
    s, y = buffers["s"].double(), buffers["y"].double()
    p = (1.5 * (s - s.amax(1, keepdim=True))).exp2()
    assert torch.allclose(one(value, buffers), p @ y)
    masked = {**buffers, "s": torch.full((3, 4), -math.inf)}
    assert one(value, masked).isnan().all()


def test_casts_round_to_sixteen_bits_only(buffers) -> None:
    x = load("x", "i", "j")
    rounded = one(Value("cast", (x,), dtype=BF16), buffers)
    assert rounded.dtype == torch.float64
    assert torch.equal(rounded, buffers["x"].bfloat16().double())
    tenth = Value("cast", (const(0.1),), dtype=F32)
    assert one(tenth, buffers).item() == 0.1
    assert one(Value("cast", (x,), dtype=I64), buffers).dtype == torch.int64


def test_integers_and_bools_stay_what_they_are(buffers) -> None:
    n = load("n", "i", "j", dtype=I32)
    assert one(mul(n, n), buffers).dtype == torch.int32
    test = Value("lessthan", (n, Value("const", (), (1,), dtype=I32)), dtype=BOOL)
    assert torch.equal(one(red("add", "j", test), buffers), (buffers["n"] < 1).any(1))
    assert torch.equal(one(red("add", "j", n), buffers), buffers["n"].sum(1, dtype=torch.int32))


def test_loads_are_clamped_and_data_dependent(buffers) -> None:
    shifted = Value("load", (), ("x", (A("i") - 1, A("j"))), dtype=F32)
    assert torch.equal(one(shifted, buffers), buffers["x"].double()[[0, 0, 1]])
    at = load("at", "i", dtype=I64)
    gathered = Value("load", (at,), ("x", (A("@0"), A("j"))), dtype=F32)
    assert torch.equal(one(gathered, buffers), buffers["x"].double()[buffers["at"]])


def test_large_sums_are_computed_in_blocks(buffers, monkeypatch) -> None:
    value = red("add", "j", Value("exp2", (load("x", "i", "j"),), dtype=F32))
    whole = one(value, buffers)
    monkeypatch.setattr(module, "_BLOCK", 4)
    monkeypatch.setattr(module, "_KEEP", 0)
    assert torch.allclose(one(value, buffers), whole)


def test_deep_values_do_not_overflow_the_stack(buffers) -> None:
    value = load("x", "i", "j")
    for _ in range(5000):
        value = Value("add", (value, const(1.0)), dtype=F32)
    assert torch.allclose(one(value, buffers), buffers["x"].double() + 5000)


# ---------------------------------------------------------------------- library products


def stored(shape: tuple[int, ...], *index: Index) -> Stored:
    return Stored(shape, index)


def test_a_product_by_strides() -> None:
    extents = {"b": 2, "h": 3, "m": 4, "n": 5, "k": 6}
    a = stored((2, 4, 3, 6), A("b"), A("m"), A("h"), A("k"))
    b = stored((2, 5, 3, 6), A("b"), A("n"), A("h"), A("k"))
    c = stored((2, 3, 4, 5), A("b"), A("h"), A("m"), A("n"))
    form = gemm_form(a, b, c, ["k"], extents)
    assert form is not None
    assert (form.m, form.n, form.k) == (4, 5, 6)
    assert form.batch == ((2, 72, 90, 60), (3, 6, 6, 20))
    assert (form.a, form.b, form.c) == ((18, 1), (1, 18), (5, 1))


def test_axes_that_are_contiguous_merge() -> None:
    extents = {"b": 2, "s": 3, "h": 2, "d": 4, "n": 5}
    a = stored((2, 3, 8), A("b"), A("s"), A("h") * 4 + A("d"))
    b = stored((5, 8), A("n"), A("h") * 4 + A("d"))
    c = stored((2, 3, 5), A("b"), A("s"), A("n"))
    form = gemm_form(a, b, c, ["h", "d"], extents)
    assert form is not None
    assert (form.m, form.n, form.k, form.batch) == (6, 5, 8, ())


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ((A("m"), A("k")), (A("k"), A("n")), (A("n"), A("m"))),  # C is not row-major
        ((A("m") + 1, A("k")), (A("k"), A("n")), (A("m"), A("n"))),  # a shifted read
        ((A("m"), A("k")), (A("k"), A("n")), (A("m"), A("k"))),  # k is not summed
    ],
)
def test_products_that_no_library_takes(a, b, c) -> None:
    extents = {"m": 4, "n": 4, "k": 4}
    assert (
        gemm_form(stored((5, 4), *a), stored((4, 4), *b), stored((4, 4), *c), ["k"], extents)
        is None
    )


def test_every_gemm_of_real_programs_has_a_unit_stride() -> None:
    from luminal_lab.egraph.saturate import saturate
    from tests.egraph.programs import program

    for name in ("llama", "bert", "patches"):
        (part,) = saturate(program(name)[0]).parts
        forms = [n.attrs[0] for c in part.classes for n in c.nodes if n.op == "gemm"]
        assert forms
        for form, side in itertools.product(forms, ("a", "b")):
            assert 1 in getattr(form, side) or 1 in (form.m, form.n, form.k)
