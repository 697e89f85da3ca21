"""Generated C against float64: shapes, layouts, masks, products, edges, hostile values."""

from __future__ import annotations

import pytest
import torch

from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.search.machine import Machine
from tests.codegen import gpu_kernels
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, expected, random_inputs
from tests.codegen.random_kernels import make

INF, NAN = float("inf"), float("nan")


def verified(kernel, seed: int = 0, machine=MACHINE, schedule=None) -> float:
    compiled, inputs = Compiled(kernel, schedule, machine), random_inputs(kernel, seed)
    return check(kernel, inputs, compiled(inputs))


@pytest.mark.parametrize("name", gpu_kernels.KERNELS)
def test_every_form_of_kernel(name: str):
    verified(gpu_kernels.KERNELS[name]())


SIZES = [(1, 1), (1, 5), (5, 1), (3, 31), (31, 33), (37, 100), (2, 1003), (64, 64), (130, 16)]


@pytest.mark.parametrize("form", ["pointwise", "softmax", "layernorm", "rmsnorm"])
def test_row_kernels_at_odd_sizes(form: str):
    for m, n in SIZES:
        verified(getattr(K, form)(m, n))


@pytest.mark.parametrize("kind", ["add", "max"])
def test_reductions_at_odd_sizes(kind: str):
    for m, n in SIZES:
        verified(K.reduce_rows(m, n, kind))
        verified(K.reduce_columns(m, n, kind))
    verified(K.total(37, 53))


@pytest.mark.parametrize("computed", [False, True])
def test_places_at_odd_sizes(computed: bool):
    for m, n in (*SIZES, (3, 9001), (700, 37)):
        verified(K.place_in_rows(m, n, computed=computed))
        verified(K.place_in_columns(m, n, computed=computed))
    verified(K.place_in_rows(1, 600_000, computed=computed))  # in parts, one for each task
    verified(K.place_in_columns(33, 70, DTYPES["f64"], computed))


@pytest.mark.parametrize("name", ["i64", "i32", "i8", "u8", "bool", "bf16", "f16", "f64"])
def test_places_among_numbers_of_every_dtype(name: str):
    for m, n in ((5, 100), (40, 17)):
        verified(K.place_in_rows(m, n, DTYPES[name]))
        verified(K.place_in_columns(m, n, DTYPES[name]))


def shifted(kernel, by: float) -> float:
    """Deviations from a mean far from 0, under weights that are positive."""
    inputs = random_inputs(kernel)
    inputs["x"] += by
    if "w" in inputs:
        inputs["w"].abs_().add_(0.1)
    return check(kernel, inputs, Compiled(kernel)(inputs))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("axis", ["i", "j"])
def test_deviations_from_a_mean_at_odd_sizes(axis: str, weighted: bool):
    for m, n in (*SIZES, (700, 37), (3, 300_001)):
        shifted(K.deviations(m, n, axis, weighted), 50.0)
    shifted(K.deviations(33, 70, axis, weighted, DTYPES["f64"]), 1e5)


def test_deviations_wait_for_what_they_share():
    """An `erf` that is kept in the result's own memory is there before it is read."""
    verified(K.kept_deviations(3, 96))  # one block
    verified(K.kept_deviations(2, 40_000))  # in parts


def test_deviations_do_not_cancel():
    """Of numbers near 10,000: the sum of squares less a squared mean would be noise."""
    kernel = K.deviations(4000, 40, "i")
    inputs = random_inputs(kernel)
    inputs["x"] += 1e4
    got, want = Compiled(kernel)(inputs)["y"], expected(kernel, inputs)["y"]
    torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=0)


@pytest.mark.parametrize("m", [1, 2, 5, 12, 31, 33, 100, 137])
@pytest.mark.parametrize("constant", [True, False])
def test_linears_at_odd_sizes(m: int, constant: bool):
    for k, n in ((1, 33), (37, 5), (65, 100), (300, 48)):
        verified(K.linear(m, k, n, constant=constant, residual=m % 2 == 0))
    verified(K.linear(m, 40, 70, constant=constant, rows_first=False, act=False))


def test_fused_products():
    verified(K.rms_linear(37, 65, 100))
    verified(K.rms_linear(40, 64, 33, constant=False))
    verified(K.swiglu(37, 65, 100))
    verified(K.swiglu(9, 65, 40, constant=False))
    verified(K.mlp(37, 48, 65, 48))
    verified(K.mlp(20, 33, 65, 50))
    verified(K.out_projection(3, 4, 37, 16, 50))
    verified(K.linear_layernorm(37, 65, 100))
    verified(K.gemv(100, 333))
    verified(K.embedding(37, 11, 100))


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (1, 16, 20, 17), (2, 5, 3, 40)])
def test_convolutions(shape):
    b, c, y, x = shape
    verified(K.conv(b, c, 12, y, x))
    verified(K.conv(b, c, 7, y, x, pad=0))
    verified(K.conv(b, c, 7, y, x, pad=2, k=5))


@pytest.mark.parametrize(
    ("s", "t"), [(1, 1), (1, 300), (5, 37), (37, 5), (50, 128), (130, 129), (64, 400)]
)
def test_attention_at_odd_sizes(s: int, t: int):
    verified(K.attention(2, 3, s, t, 16))
    verified(K.attention(1, 2, s, t, 40, mask=True, layout="bshd"))


@pytest.mark.parametrize("s", [3, 33, 128, 200, 385])
def test_causal_attention(s: int):
    for causal in ("select", "add"):
        verified(K.attention(1, 2, s, s, 16, causal=causal))
    for window in (1, 5, 64, 150):
        verified(K.attention(1, 2, s, s, 16, causal="select", window=window))


def test_attention_with_its_projections_inside():
    verified(K.attention_with_projections(37, 50, 3, 16, 24))
    verified(K.attention_with_projections(70, 200, 4, 32, 48, groups=2))


@pytest.mark.parametrize("width", [16, 32])
def test_narrower_vectors(width: int):
    machine = Machine(vector_bytes=width, registers=16)
    for kernel in (
        K.softmax(5, 37),
        K.layernorm(4, 100),
        K.linear(37, 33, 50),
        K.attention(1, 2, 50, 200, 16, causal="select"),
        K.reduce_columns(33, 70),
    ):
        verified(kernel, machine=machine)


@pytest.mark.parametrize("shape", [(512, 1024), (1, 600_000), (3, 400_000), (700, 1100)])
def test_long_reductions_to_few_results(shape):
    m, n = shape
    verified(K.total(m, n))
    for kind in ("add", "max"):
        verified(K.reduce_rows(m, n, kind))
    if m < 5:
        verified(K.softmax(m, n))
        verified(K.layernorm(m, n))


def test_one_thread_and_many():
    kernel = K.linear(137, 33, 100)
    for threads in (1, 2, 7):
        machine = Machine(vector_bytes=MACHINE.vector_bytes, registers=MACHINE.registers,
                          threads=threads)  # fmt: skip
        verified(kernel, machine=machine)


def test_a_second_call_gives_the_same():
    kernel = K.attention(1, 2, 70, 300, 16)
    compiled, inputs = Compiled(kernel), random_inputs(kernel)
    first = compiled(inputs)["y"]
    compiled.call()
    memory, at, _ = compiled.memories["y"]
    again = memory[at - memory.data_ptr() :][: first.numel() * 4].view(torch.float32)
    assert torch.equal(again, first.reshape(-1))


@pytest.mark.parametrize("zero", ["i", "j"])
def test_zero_size(zero: str):
    sizes = {"i": 4, "j": 5, zero: 0}
    for kernel in (K.reduce_rows(sizes["i"], sizes["j"]), K.softmax(sizes["i"], sizes["j"])):
        compiled, inputs = Compiled(kernel), random_inputs(kernel)
        got = compiled(inputs)["y"]
        want = expected(kernel, inputs)["y"]
        torch.testing.assert_close(got.double(), want.double())


# ------------------------------------------------------------------------------ hostile values


def hostile(kernel, **values):
    inputs = random_inputs(kernel)
    for name, change in values.items():
        change(inputs[name])
    got = Compiled(kernel)(inputs)
    want = expected(kernel, inputs)
    for name in want:
        torch.testing.assert_close(
            got[name].double(), want[name].double(), rtol=1e-5, atol=1e-5, equal_nan=True
        )


def set_at(*places):
    def change(x: torch.Tensor) -> None:
        for at, value in places:
            x[at] = value

    return change


def test_softmax_keeps_nan_and_infinity():
    change = set_at((0, -INF), ((1, 3), NAN), ((2, 7), INF), ((3, 30), -INF), (4, INF))
    hostile(K.softmax(6, 37), x=change)


def test_maximum_keeps_nan():
    hostile(K.reduce_rows(6, 70, "max"), x=set_at(((1, 69), NAN), (2, -INF), ((3, 0), INF)))
    hostile(K.reduce_columns(70, 37, "max"), x=set_at(((69, 1), NAN), ((slice(None), 2), -INF)))


def test_the_first_of_equals_wins_and_nan_over_all():
    change = set_at(
        (0, -INF), ((1, 65), NAN), ((1, 3), INF), ((2, (8, 60)), 9.0), ((3, 5), NAN),
        ((3, 69), NAN), (4, 0.0), ((4, 0), -0.0), ((5, 1), INF), ((5, 2), INF),
    )  # fmt: skip
    hostile(K.place_in_rows(6, 70), x=change)
    hostile(K.place_in_columns(6, 70), x=change)
    hostile(K.place_in_columns(200, 70), x=set_at((slice(40, 80), NAN), ((0, 3), NAN)))
    hostile(
        K.place_in_rows(2, 9000), x=set_at(((0, (17, 8000)), 99.0), ((1, (5000, 8999)), NAN))
    )


def test_deviations_of_nan_and_infinity():
    change = set_at((0, INF), ((1, 65), NAN), ((2, 3), -INF), (3, 5.0))
    hostile(K.deviations(6, 70, "j"), x=change)
    hostile(K.deviations(200, 70, "i"), x=change)
    hostile(K.deviations(2, 300_000, "j"), x=set_at(((0, 7), INF), ((1, 299_999), NAN)))


def test_online_with_masked_rows_and_blocks():
    kernel = K.attention(1, 1, 40, 300, 16, mask=True)
    hostile(kernel, mask=set_at((0, -INF)))  # no key at all: NaN, as the reference
    hostile(kernel, mask=set_at(((0, slice(0, 290)), -INF)))  # the first blocks are masked
    hostile(kernel, mask=set_at(((0, slice(5, 300)), -INF)))
    hostile(kernel, q=set_at(((0, 0, 3, 2), NAN), ((0, 0, 4, 2), INF)))
    far = K.attention(1, 1, 140, 300, 16, window=20)  # rows beyond the window see no keys
    hostile(far)


def test_large_arguments_of_exp_do_not_overflow_to_nan():
    hostile(K.softmax(4, 40), x=set_at(((0, 3), 3e38), ((1, 2), -3e38), (2, 88.7)))


def test_negative_zero_and_denormals():
    x = K.load("x", "i", "j")
    kernel = K.rows(K.mul(K.op("recip", x), K.const(1e-30)), 2, 37)
    hostile(kernel, x=set_at((0, -0.0), ((1, slice(0, 20)), 5e-39)))  # 1/x is finite in f32


# ------------------------------------------------------------------------------ anything at all


@pytest.mark.parametrize("block", range(8))
def test_random_kernels(block: int):
    for seed in range(block * 20, block * 20 + 20):
        kernel = make(seed)
        try:
            verified(kernel)
        except AssertionError as error:
            raise AssertionError(f"random kernel {seed}: {error}") from error
