"""Every pointwise lowering, for every dtype that PyTorch takes, on awkward values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.capture.eager import agrees, everywhere, special

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8)
NUMBERS = (*FLOATS, *INTS)
ALL = (*NUMBERS, torch.bool)
SIGNED = (*FLOATS, torch.int64, torch.int32)

UNARY = {
    "neg": (torch.neg, NUMBERS),
    "abs": (torch.abs, NUMBERS),
    "sign": (torch.sign, ALL),
    "relu": (torch.relu, SIGNED),
    "floor": (torch.floor, NUMBERS),
    "ceil": (torch.ceil, NUMBERS),
    "trunc": (torch.trunc, NUMBERS),
    "round": (torch.round, NUMBERS),
    "frac": (torch.frac, FLOATS),
    "square": (torch.square, NUMBERS),
    "exp": (torch.exp, ALL),
    "exp2": (torch.exp2, ALL),
    "expm1": (torch.expm1, ALL),
    "log": (torch.log, ALL),
    "log2": (torch.log2, ALL),
    "log10": (torch.log10, ALL),
    "log1p": (torch.log1p, ALL),
    "sin": (torch.sin, FLOATS),
    "cos": (torch.cos, FLOATS),
    "tan": (torch.tan, FLOATS),
    "sqrt": (torch.sqrt, ALL),
    "rsqrt": (torch.rsqrt, ALL),
    "reciprocal": (torch.reciprocal, ALL),
    "erf": (torch.erf, ALL),
    "tanh": (torch.tanh, ALL),
    "sigmoid": (torch.sigmoid, ALL),
    "silu": (F.silu, FLOATS),
    "mish": (F.mish, FLOATS),
    "logsigmoid": (F.logsigmoid, FLOATS),
    "hardswish": (F.hardswish, FLOATS),
    "hardsigmoid": (F.hardsigmoid, FLOATS),
    "hardtanh": (F.hardtanh, FLOATS),
    "relu6": (F.relu6, FLOATS),
    # eager's vectorised float32 gives NaN for inf
    "gelu": (lambda x: F.gelu(x.clamp(max=100)), FLOATS),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), FLOATS),
    "softplus": (lambda x: F.softplus(x, 2, 3), FLOATS),
    "softsign": (F.softsign, FLOATS),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), FLOATS),
    "elu": (lambda x: F.elu(x, 0.7), FLOATS),
    "selu": (F.selu, FLOATS),
    "threshold": (lambda x: F.threshold(x, 0.1, 20), FLOATS),
    "isnan": (torch.isnan, ALL),
    "isinf": (torch.isinf, ALL),
    "isfinite": (torch.isfinite, ALL),
    "logical_not": (torch.logical_not, ALL),
    "bitwise_not": (torch.bitwise_not, (*INTS, torch.bool)),
    "add 1": (lambda x: x + 1, ALL),
    "add 0.1": (lambda x: x + 0.1, ALL),
    "sub alpha": (lambda x: torch.sub(x, 3, alpha=2), NUMBERS),
    "rsub": (lambda x: 1 - x, NUMBERS),
    "mul 0.1": (lambda x: x * 0.1, ALL),
    "mul 3": (lambda x: x * 3, ALL),
    "div 3": (lambda x: x / 3, ALL),
    "div 0": (lambda x: x / 0, FLOATS),
    "floordiv 3": (lambda x: x // 3, NUMBERS),
    "floordiv -2": (lambda x: x // -2, SIGNED),
    "truncdiv 3": (lambda x: torch.div(x, 3, rounding_mode="trunc"), NUMBERS),
    "remainder": (lambda x: x % 3, NUMBERS),
    "remainder -": (lambda x: x % -3, SIGNED),
    "fmod": (lambda x: torch.fmod(x, 3), NUMBERS),
    "pow 2": (lambda x: x**2, NUMBERS),
    "pow 3": (lambda x: x**3, NUMBERS),
    "pow 0": (lambda x: x**0, NUMBERS),
    "pow -1": (lambda x: x**-1, FLOATS),
    "pow -2": (lambda x: x**-2, FLOATS),
    "pow 0.5": (lambda x: x.abs() ** 0.5, FLOATS),
    "pow -0.5": (lambda x: x.abs() ** -0.5, FLOATS),
    "pow 1.5": (lambda x: x**1.5, FLOATS),
    "2 pow": (lambda x: 2**x, FLOATS),
    "clamp": (lambda x: torch.clamp(x, 1, 3), NUMBERS),
    "clamp_min": (lambda x: torch.clamp(x, min=0.1), FLOATS),
    "clamp_max": (lambda x: torch.clamp_max(x, 2), NUMBERS),
    "lt": (lambda x: x < 1, ALL),
    "le": (lambda x: x <= 1, ALL),
    "gt": (lambda x: x > 0.1, ALL),
    "ge": (lambda x: x >= 0.5, ALL),
    "eq": (lambda x: x == 0, ALL),
    "ne": (lambda x: x != 0.1, ALL),
    "lt 300": (lambda x: x < 300, ALL),
    "eq nan": (lambda x: x == math.nan, FLOATS),
    "to f32": (lambda x: x.float(), ALL),
    "to bool": (lambda x: x.bool(), ALL),
    "to bf16": (lambda x: x.to(torch.bfloat16), ALL),
    "where": (lambda x: torch.where(x > 0, x, 7), NUMBERS),
    "masked_fill": (lambda x: x.masked_fill(x > 1, 5), NUMBERS),
    "clone": (lambda x: x.clone(), ALL),
    "zeros_like": (torch.zeros_like, ALL),
    "full_like": (lambda x: torch.full_like(x, 1), ALL),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, ds) in UNARY.items() for d in ds], ids=str
)
def test_functions_of_one_tensor(name: str, dtype: torch.dtype) -> None:
    everywhere(UNARY[name][0], special(dtype))


BINARY = {
    "add": (torch.add, ALL),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=3), NUMBERS),
    "sub": (torch.sub, NUMBERS),
    "mul": (torch.mul, ALL),
    "div": (torch.div, ALL),
    "maximum": (torch.maximum, ALL),
    "minimum": (torch.minimum, ALL),
    "fmax": (torch.fmax, ALL),
    "fmin": (torch.fmin, ALL),
    "lt": (torch.lt, ALL),
    "le": (torch.le, ALL),
    "gt": (torch.gt, ALL),
    "ge": (torch.ge, ALL),
    "eq": (torch.eq, ALL),
    "ne": (torch.ne, ALL),
    "and": (torch.logical_and, ALL),
    "or": (torch.logical_or, ALL),
    "xor": (torch.logical_xor, ALL),
    "bitwise": (lambda x, y: (x & y) | (x ^ y), (torch.bool,)),
    "where": (lambda x, y: torch.where(x > 0, x, y), NUMBERS),
    "pow": (torch.pow, FLOATS),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), FLOATS),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), FLOATS),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.5), FLOATS),
    "clamp": (lambda x, y: torch.clamp(x, min=y), NUMBERS),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, x.new_ones(())), NUMBERS),
    "logaddexp": (torch.logaddexp, FLOATS),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, ds) in BINARY.items() for d in ds], ids=str
)
def test_functions_of_two_tensors(name: str, dtype: torch.dtype) -> None:
    x = special(dtype)
    everywhere(BINARY[name][0], x, x.roll(7))


DIVISIONS = {
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", [*INTS, torch.int16, torch.int8], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_division_is_exact(name: str, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    edges = [info.max, info.max - 1, info.min, info.min + 1, 1, 2, 3, 7, 10, info.max // 3]
    edges += [-e for e in (1, 2, 3, 7, 10)] if info.min < 0 else []
    x = torch.tensor(edges, dtype=dtype)
    a, b = (t.reshape(-1) for t in torch.meshgrid(x, x[x != 0], indexing="ij"))
    overflow = (a == info.min) & (b == -1)  # undefined, in C and in eager
    agrees(DIVISIONS[name], a[~overflow], b[~overflow])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_float_division_with_a_rounding(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, 1, 2, 3, 7, 49, -0.5, -1, -2, -3, -7, -49], dtype=dtype)
    a, b = (t.reshape(-1) for t in torch.meshgrid(x, x, indexing="ij"))
    agrees(DIVISIONS[name], a, b)


PAIRS = [
    (torch.int64, torch.float32),
    (torch.uint8, torch.int32),
    (torch.bool, torch.int64),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.bfloat16),
    (torch.int32, torch.bfloat16),
    (torch.bool, torch.float16),
    (torch.float64, torch.float32),
]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_dtypes_are_promoted_as_eager_does(a: torch.dtype, b: torch.dtype) -> None:
    x, y = special(a)[5:].clamp(max=9), special(b)[5:].clamp(max=9)

    def mixed(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        zero = y[0]  # a 0-d tensor counts less in promotion
        return [x + y, x * y, x / (y + 20), x < y, torch.where(x > y, x, y), x + zero,
                torch.maximum(x, y), y - x.to(torch.int32), x == zero]  # fmt: skip

    agrees(mixed, x, y, modes=("native",))  # where each result is rounded


def test_operands_broadcast() -> None:
    x, y, z = torch.randn(3, 1, 5), torch.randn(4, 1), torch.randn(())
    agrees(lambda x, y, z: [x + y, x * z, y - z, torch.where(x > y, x, z)], x, y, z)


def test_cosine_of_large_angles_keeps_its_precision() -> None:
    x = torch.arange(0, 4096, 7, dtype=torch.float32)
    hlir = agrees(torch.cos, x, modes=("float64",))
    assert "Sin" in {n.op for n in hlir.nodes}
    agrees(torch.cos, x, modes=("native",))


CREATIONS = {
    "arange": lambda x: torch.arange(7) + x.long(),
    "arange step": lambda x: torch.arange(3, 30, 4) + x.long(),
    "arange down": lambda x: torch.arange(9, -3, -5, dtype=torch.int32) + x.int(),
    "arange float": lambda x: torch.arange(0.5, 3.0, 0.3) + x,
    "arange f16": lambda x: torch.arange(0, 7, dtype=torch.float16) + x.half(),
    "linspace": lambda x: torch.linspace(-1, 2, 9) + x,
    "full": lambda x: torch.full((2, 3), 2.5) + x,
    "ones": lambda x: torch.ones(3, dtype=torch.int64) + x.long(),
    "eye": lambda x: torch.eye(3, 4) + x,
    "tril": lambda x: torch.tril(x.expand(4, 5), 1),
    "triu": lambda x: torch.triu(x.expand(2, 5, 4), -1),
    "tril bool": lambda x: torch.ones(4, 4, dtype=torch.bool).tril() & (x > 0),
    "new_zeros": lambda x: x.new_zeros(2, 2),
    "scalar": lambda x: torch.tensor(3.5) * x,
}


@pytest.mark.parametrize("name", CREATIONS)
def test_creation(name: str) -> None:
    agrees(CREATIONS[name], torch.tensor(2.0))
