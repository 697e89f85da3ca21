"""Vectors across the lines of an operand: blocks are transposed in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luminal_lab import codegen
from luminal_lab.egraph.values import Buffer, Kernel
from luminal_lab.hlir.dtypes import BF16, BOOL, DTYPES, F32, F64, I8, I32, I64, DType
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs


def transposed(m: int, n: int, dtype: DType = F32) -> Kernel:
    """y[i, j] = x[j, i] + x[j, i], or x itself for bool."""
    x = K.load("x", "j", "i", dtype=dtype)
    value = x if dtype is BOOL else K.add(x, x)
    buffers = [Buffer("x", (n, m), dtype), Buffer("y", (m, n), dtype)]
    return K.kernel([("y", ("i", "j"), value)], {"i": m, "j": n}, buffers)


def verified(kernel: Kernel, **changes) -> str:
    """Run a kernel against float64; its text."""
    schedule = replace(codegen.default_schedule(kernel, MACHINE), **changes)
    compiled, inputs = Compiled(kernel, schedule, MACHINE), random_inputs(kernel)
    check(kernel, inputs, compiled(inputs))
    return compiled.source.text


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_with_tails(dtype):
    for m, n in ((67, 133), (96, 64)):
        text = verified(transposed(m, n, dtype))
        assert ("ll_transpose_" in text) == (dtype not in (F64, I64, BOOL))


@pytest.mark.parametrize(("m", "n"), [(16, 300), (17, 400), (300, 16), (5, 1003), (1003, 5)])
def test_blocks_that_are_not_whole(m, n):
    for dtype in (F32, BF16, I32, I8):
        verified(transposed(m, n, dtype))
    verified(transposed(m, n), stream=True)


def test_an_operand_that_lies_along_and_one_that_lies_across():
    x, z = K.load("x", "j", "i"), K.load("z", "i", "j")
    buffers = [Buffer(name, (96, 96), F32) for name in ("x", "y", "z")]
    value = K.mul(K.add(x, z), K.add(z, K.load("x", "i", "j")))
    text = verified(K.kernel([("y", ("i", "j"), value)], {"i": 96, "j": 96}, buffers))
    assert text.count("ll_transpose_f(") == 1


def test_batches_and_inner_dims():
    x = K.load("x", "b", "j", "i", "k")
    extents = {"b": 3, "i": 40, "j": 70, "k": 2}
    buffers = [Buffer("x", (3, 70, 40, 2), F32), Buffer("y", (3, 40, 2, 70), F32)]
    verified(K.kernel([("y", ("b", "i", "k", "j"), K.add(x, x))], extents, buffers))


def test_small_operands_and_reductions_are_as_they_were():
    assert "ll_transpose_" not in verified(transposed(32, 32))
    x = K.load("x", "j", "i")
    buffers = [Buffer("x", (300, 200), F32), Buffer("y", (200,), F32)]
    total = K.red("add", "j", x)
    text = verified(K.kernel([("y", ("i",), total)], {"i": 200, "j": 300}, buffers))
    assert "ll_transpose_" not in text
