import math

import pytest

from luminal_lab.egraph.values import Value
from luminal_lab.hlir.dtypes import BOOL, F16, F32, I64
from luminal_lab.hlir.index import Index
from luminal_lab.views.terms import number, term, terms


def load(name: str, *axes: str) -> Value:
    return Value("load", (), (name, tuple(map(Index.axis, axes))), dtype=F32)


def const(x: float) -> Value:
    return Value("const", (), (x,), dtype=F32)


def op(name: str, *args: Value, dtype=F32, attrs=()) -> Value:
    return Value(name, args, attrs, dtype=dtype)


X, Y = load("x", "i"), load("y", "i")
FALSE, TRUE = (Value("const", (), (b,), dtype=BOOL) for b in (False, True))
MINUS_Y = op("mul", Y, const(-1.0))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (X, "x[i]"),
        (load("x"), "x"),
        (op("add", X, MINUS_Y), "x[i] − y[i]"),
        (op("add", MINUS_Y, X), "x[i] − y[i]"),
        (op("mul", op("add", X, Y), X), "(x[i] + y[i])·x[i]"),
        (op("mul", X, op("recip", Y)), "x[i] / y[i]"),
        (op("mul", op("mul", X, op("recip", Y)), Y), "(x[i] / y[i])·y[i]"),
        (op("mul", X, op("recip", op("mul", X, Y))), "x[i] / (x[i]·y[i])"),
        (op("recip", op("add", X, Y)), "1/(x[i] + y[i])"),
        (op("mul", X, const(-2.0)), "x[i]·(−2)"),
        (op("red", op("mul", X, Y), attrs=("add", "i")), "Σ_i(x[i]·y[i])"),
        (op("red", X, attrs=("max", "i")), "max_i(x[i])"),
        (op("online", X, const(1.0), const(1.0), attrs=("i",)), "online_i(x[i])"),
        (op("online", X, const(0.5), Y, attrs=("i",)), "online_i(0.5·x[i], y[i])"),
        (op("select", op("lessthan", X, Y, dtype=BOOL), X, Y), "(x[i] < y[i] ? x[i] : y[i])"),
        (op("mul", X, op("mul", X, Y)), "x[i]·(x[i]·y[i])"),
        (op("mul", op("mul", X, X), Y), "x[i]·x[i]·y[i]"),
        (op("add", X, op("add", X, Y)), "x[i] + (x[i] + y[i])"),
        (
            op("select", op("lessthan", X, Y, dtype=BOOL), FALSE, TRUE, dtype=BOOL),
            "not (x[i] < y[i])",
        ),
        (op("add", FALSE, op("mul", TRUE, FALSE, dtype=BOOL), dtype=BOOL),
         "False or (True and False)"),
        (op("cast", X, dtype=F16), "f16(x[i])"),
        (op("mod", X, Y), "x[i] mod y[i]"),
        (op("exp2", X), "exp2(x[i])"),
        (Value("iota", (), (Index.parse("i*4+j"),), dtype=I64), "i*4+j"),
        (
            Value("load", (Value("iota", (), (Index.axis("j"),), dtype=I64),),
                  ("w", (Index.parse("@0"), Index.axis("i"))), dtype=F32),
            "w[⟨j⟩,i]",
        ),
    ],
)  # fmt: skip
def test_mathematics(value, text):
    assert term(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.log2(math.e), "log2e"),
        (-math.inf, "−∞"),
        (1e-12, "1e−12"),
        (True, "True"),
        (3, "3"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_shared_parts_are_named_once():
    shared = op("exp2", op("add", X, Y))
    found = terms([op("mul", shared, op("recip", op("red", shared, attrs=("add", "i"))))])
    assert found.results == ("A[i] / Σ_i(A[i])",)
    assert found.lets == (("A[i]", "exp2(x[i] + y[i])"),)
    again = terms([op("sqrt", shared)], found.names)
    assert again.results == ("sqrt(A[i])",)
    assert again.lets == ()
    other = op("sqrt", op("add", op("exp2", X), Y))
    fresh = terms([op("mul", other, other)], found.names)
    assert fresh.results == ("B[i]·B[i]",)


def test_deep_sharing_stays_small():
    value = X
    for _ in range(60):
        value = op("add", op("exp2", value), op("exp2", value))
    assert len(str(terms([value]))) < 5000
