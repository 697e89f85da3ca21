"""Operators and functions of the Tensor API against PyTorch: dtypes, NaN, promotion."""

from __future__ import annotations

import itertools
import operator as o
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as TF

import luminal_lab as ll
from luminal_lab.errors import LuminalError, TensorError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.tensor import promote
from tests.capture.eager import special
from tests.tensor.both import FLOATS, agree

INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ARITHMETIC = {"+": o.add, "-": o.sub, "*": o.mul, "/": o.truediv, "//": o.floordiv, "%": o.mod}
COMPARISONS = {"<": o.lt, ">": o.gt, "<=": o.le, ">=": o.ge, "==": o.eq, "!=": o.ne}
FLOAT_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "sqrt", "rsqrt", "reciprocal", "erf", "sigmoid",
)  # fmt: skip
KEEPING = ["abs", "sign", "square", "floor", "ceil", "trunc", "round", "isnan", "isinf"]
ACTIVATIONS = ["relu", "gelu", "silu", "mish", "softplus", "leaky_relu"]


def of_dtype(dtype: torch.dtype) -> torch.Tensor:
    return special(dtype).reshape(4, 6)


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)


@pytest.mark.parametrize("a", [n for n in DTYPES if not n.startswith("f8")])
def test_promotion_is_pytorchs(a: str) -> None:
    kinds = [(d, r) for d in DTYPES.values() for r in (0, 1) if d.bits > 8 or not d.is_float]
    for rank in (0, 1):
        x = torch.ones((2,) * rank, dtype=getattr(torch, DTYPES[a].torch_name))
        for d, r in kinds:
            y = torch.ones((2,) * r, dtype=getattr(torch, d.torch_name))
            want = str(torch.result_type(x, y)).removeprefix("torch.")
            assert promote((DTYPES[a], rank), (d, r)).torch_name == want
        for number in (True, 3, 2.5):
            want = str(torch.result_type(x, number)).removeprefix("torch.")
            assert promote((DTYPES[a], rank), type(number)).torch_name == want


def test_eight_bit_floats_promote_to_nothing() -> None:
    g = ll.Graph()
    x, y = g.tensor("x", 3, "f8e4m3"), g.tensor("y", 3, "f16")
    with pytest.raises(TensorError, match=r"add: .*nothing"):
        x + y


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
@pytest.mark.parametrize("sign", ARITHMETIC)
def test_arithmetic(sign: str, dtype: torch.dtype) -> None:
    f, x = ARITHMETIC[sign], of_dtype(dtype)
    y = x.flip(0, 1)
    if sign in ("//", "%") and not dtype.is_floating_point:
        y = nonzero(y)
        x = torch.where(x == torch.iinfo(dtype).min, torch.zeros_like(x), x)
    if sign == "//" and dtype.is_floating_point:  # inf // y is NaN or inf, by how it is rounded
        x, y = torch.nan_to_num(x, 7.0, 9.0, -9.0), nonzero(torch.nan_to_num(y, 3.0, 5.0, -5.0))
    agree(f, x, y)
    few = x if dtype.is_floating_point else x.clamp(-100, 100) if x.min() < 0 else x % 100
    agree(lambda a, b: (f(a, 3), f(a, 2.5), f(b, 7)), few, y if sign != "%" else few)
    if sign != "%" and sign != "//":
        agree(lambda b: (f(3, b), f(2.5, b)), nonzero(y))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
@pytest.mark.parametrize("sign", COMPARISONS)
def test_comparisons(sign: str, dtype: torch.dtype) -> None:
    f, x = COMPARISONS[sign], of_dtype(dtype)
    y = torch.where(torch.arange(24).reshape(4, 6) % 2 == 0, x, x.flip(0, 1))
    agree(lambda a, b: (f(a, b), f(a, 1), f(a, 0.5), f(2, b)), x, y)


@pytest.mark.parametrize(
    ("a", "b"), list(itertools.product(("f16", "bf16", "i8", "u8", "bool", "i64"), repeat=2))
)
def test_mixed_dtypes(a: str, b: str) -> None:
    x, y = (of_dtype(getattr(torch, DTYPES[d].torch_name)) for d in (a, b))
    x, y = (t.clamp(-1000, 1000) if t.dtype == torch.int64 else t for t in (x, y))
    agree(lambda x, y: (x + y, x * y, x / y, x < y, x.maximum(y)), x, y[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_functions_of_real_numbers(name: str, dtype: torch.dtype) -> None:
    x = of_dtype(dtype)
    if name in ("sinh", "cosh") and not dtype.is_floating_point:
        x = x.clamp(-20, 20) if dtype != torch.bool else x
    if name in ("sin", "cos", "tan") and not dtype.is_floating_point and dtype != torch.bool:
        x = x % 100
    agree(lambda x: getattr(x, name)(), x, torch_fn=lambda x: getattr(torch, name)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", KEEPING)
def test_functions_that_keep_the_dtype(name: str, dtype: torch.dtype) -> None:
    x = of_dtype(dtype)
    agree(lambda x: getattr(x, name)(), x, torch_fn=lambda x: getattr(torch, name)(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: torch.dtype) -> None:
    x = of_dtype(dtype)
    x = x.clamp(max=100) if name == "gelu" else x  # PyTorch's own differ at infinity
    agree(lambda x: getattr(x, name)(), x, torch_fn=getattr(TF, name))
    if name == "gelu":
        agree(
            lambda x: x.gelu("tanh"),
            x,
            torch_fn=lambda x: TF.gelu(x, approximate="tanh"),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_powers(dtype: torch.dtype) -> None:
    x = of_dtype(dtype)
    exponents = (0, 1, 2, 3, 5) + ((0.5, -1, -2, -0.5, 2.5) if dtype.is_floating_point else ())
    for e in exponents:
        agree(lambda x, e=e: x**e, x)
    if dtype.is_floating_point:
        agree(lambda x, y: x**y, x, x.flip(0))
        agree(lambda x: (2**x, 0.5**x, (-2.0) ** x.round()), x.clamp(-9, 9))
    else:
        small = x.clamp(0, 9)
        agree(lambda x, y: x**y, small, small.flip(0), fallbacks=1)
        agree(lambda x: x**70, small, fallbacks=1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
def test_selecting(dtype: torch.dtype) -> None:
    x = of_dtype(dtype)
    y = x.flip(1)
    agree(lambda x, y: (x.maximum(y), x.minimum(y), -x, abs(x)), x, y)
    agree(lambda x: (x.clamp(-1, 2), x.clamp(min=0), x.clamp(max=1)), x)
    agree(
        lambda x, y: (ll.where(x < y, x, 0), ll.where(x < y, 2.5, y), (x < y).where(x, y)),
        x,
        y,
        torch_fn=lambda x, y: (
            torch.where(x < y, x, 0),
            torch.where(x < y, 2.5, y),
            torch.where(x < y, x, y),
        ),
    )
    agree(lambda x, y: x.masked_fill(x > 1, 7), x, y)


def test_logic() -> None:
    p, q = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    agree(lambda p, q: (p & q, p | q, p ^ q, ~p, p + q, p * q, p & True, False | q), p, q)


@pytest.mark.parametrize("to", [n for n in DTYPES if not n.startswith("f8")])
def test_casts(to: str) -> None:
    wanted = getattr(torch, DTYPES[to].torch_name)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        x = of_dtype(dtype)
        if dtype.is_floating_point and not wanted.is_floating_point:
            x = torch.nan_to_num(x, 0.0, 3.0, 5.0).clamp(0, 5)
        agree(lambda x: x.cast(to), x, torch_fn=lambda x: x.to(wanted))


def test_numbers_of_numpy_and_sizes_are_operands() -> None:
    import numpy as np

    agree(lambda x: x * np.float32(1.5) + torch.tensor(2), torch.ones(3))
    g = ll.Graph()
    s = g.dim("s", 1, 9)
    x = g.tensor("x", (s,), "f16")
    (x * s).output()
    got = ll.hlir.run(g.hlir(), [torch.ones(5, dtype=torch.float16)], compute="native")
    torch.testing.assert_close(got[0], torch.full((5,), 5.0, dtype=torch.float16))


REFUSED: dict[str, Callable[[ll.Tensor, ll.Tensor], object]] = {
    r"add: shapes \(4, 6\), \(5,\) do not broadcast": lambda x, p: x + x.graph.zeros(5),
    "sub: the difference of bools": lambda x, p: p - p,
    "neg: the negative of a bool": lambda x, p: -p,
    "mod: % of bools": lambda x, p: p % p,
    "logical_and: a bool is expected": lambda x, p: x & x,
    "where: a bool is expected": lambda x, p: ll.where(x, 1, 2),
    "gelu: no approximation": lambda x, p: x.gelu("erf"),
    "pow: integers to the negative": lambda x, p: x.cast("i32") ** -1,
    "a list is no operand": lambda x, p: x + [1],
    "cast: no dtype 'f99'": lambda x, p: x.cast("f99"),
    "known at the call only": lambda x, p: bool(x),
    "different graphs": lambda x, p: x + ll.Graph().zeros(6),
    "masked_fill: a mask of f32": lambda x, p: x.masked_fill(x, 0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_told_at_once(message: str) -> None:
    g = ll.Graph()
    x, p = g.tensor("x", (4, 6)), g.tensor("p", (4, 6), "bool")
    with pytest.raises(LuminalError, match=message) as caught:
        REFUSED[message](x, p)
    assert isinstance(caught.value, TensorError)
    if "call only" not in message:
        assert "test_pointwise.py:" in (caught.value.where or "")
