"""Random programs: they check, print, hash, save and partition, and both modes agree."""

from __future__ import annotations

import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.hlir import Hlir, check, interpreter, parse, partition, run
from luminal_lab.hlir.dtypes import BY_TORCH_NAME, DTYPES, dtype
from tests.hlir.strategies import programs


def inputs(hlir: Hlir, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for spec in hlir.inputs:
        node = hlir.nodes[spec.node]
        x = torch.randn(node.shape, generator=generator).mul(3)
        out.append(x.clamp(0 if node.dtype.kind == "uint" else -100).to(dtype_of(node.dtype)))
    return out


def dtype_of(d) -> torch.dtype:
    return getattr(torch, d.torch_name)


@given(programs())
def test_programs_check_print_and_read_back(hlir):
    check(hlir)
    back = parse(hlir.text())
    assert back == hlir
    assert back.key == hlir.key
    assert not hlir.diff(back)
    assert len(hlir.table()) == len(hlir.nodes)
    assert len(repr(hlir).splitlines()) < 30


@given(programs(), st.integers(0, 3))
def test_results_do_not_depend_on_how_they_are_computed(hlir, seed):
    """Stored or in place, in blocks of any size, whole or in regions: bit for bit the same."""
    args = inputs(hlir, seed)
    whole = run(hlir, args)
    for spec, out in zip(hlir.outputs, whole):
        assert out.shape == spec.shape
        kind = hlir.nodes[spec.value.node].dtype
        assert out.dtype == (torch.float64 if kind.is_float else dtype_of(kind))
    stored, block = interpreter._STORED, interpreter._BLOCK
    try:
        interpreter._STORED, interpreter._BLOCK = 1, 3
        blocked = run(hlir, args)
    finally:
        interpreter._STORED, interpreter._BLOCK = stored, block
    for a, b, c in zip(whole, blocked, partition(hlir).run(args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(a, c, rtol=0, atol=0, equal_nan=True)


@given(programs(), st.integers(0, 3))
def test_native_mode_gives_the_declared_dtypes(hlir, seed):
    for spec, out in zip(hlir.outputs, run(hlir, inputs(hlir, seed), compute="native")):
        assert out.dtype == dtype_of(hlir.nodes[spec.value.node].dtype)
        assert out.shape == spec.shape


def test_the_dtype_table_is_torchs():
    for name, d in DTYPES.items():
        kind = dtype_of(d)
        assert d.bytes == kind.itemsize
        assert d.is_float == kind.is_floating_point
        assert dtype(name) is dtype(kind) is dtype(str(kind)) is BY_TORCH_NAME[d.torch_name]
        assert pickle.loads(pickle.dumps(d)) is d
