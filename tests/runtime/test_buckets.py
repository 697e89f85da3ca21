"""Buckets: one capture, kernels per range of sizes, dispatch at the call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim

import luminal_lab as ll
from luminal_lab.errors import CallError, HlirError, LuminalError

QUICK = ll.Budget("none")
S, B = Dim("s", min=1, max=64), Dim("b", min=1, max=8)


@pytest.fixture(scope="module")
def layer() -> tuple[torch.nn.Module, ll.Buckets]:
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    exe = ll.compile(
        module,
        (torch.randn(2, 5, 16),),
        dynamic_shapes=({1: S},),
        buckets={"s": [ll.Bucket(8, 48, tune_at=16), ll.Bucket(1, 1), ll.Bucket(2, 7)]},
        budget=QUICK,
    )
    return module, exe


def test_each_size_runs_in_its_bucket(layer: tuple[torch.nn.Module, ll.Buckets]) -> None:
    module, exe = layer
    assert [p.label for p in exe] == ["s=1", "s=2…7", "s=8…48"]
    for n, part in ((1, 0), (2, 1), (7, 1), (8, 2), (48, 2), (1, 0), (5, 1)):
        x = torch.randn(2, n, 16)
        assert exe.part(x) is exe.parts[part]
        torch.testing.assert_close(exe(x), module(x), rtol=1e-4, atol=1e-5)
    hints = [
        {n: s.hint for n, s in ll.hlir.symbolic.symbols_of(p.executable.hlir).items()}
        for p in exe
    ]
    assert hints == [{}, {"s": 7}, {"s": 16}]


def test_out_of_range_is_told(layer: tuple[torch.nn.Module, ll.Buckets]) -> None:
    _, exe = layer
    with pytest.raises(CallError, match=r"the size s is 50, in none of the buckets s=1, s=2…7"):
        exe(torch.randn(2, 50, 16))
    with pytest.raises(CallError, match=r"65, outside of the bounds \[1, 64\] of s"):
        exe(torch.randn(2, 65, 16))
    with pytest.raises(CallError, match=r"is 0, outside"):
        exe(torch.randn(2, 0, 16))
    with pytest.raises(CallError, match="got int where a tensor"):
        exe(3)
    with pytest.raises(CallError, match="expected 1 positional"):
        exe()


def test_profiles_and_looks(layer: tuple[torch.nn.Module, ll.Buckets], tmp_path: Path) -> None:
    _, exe = layer
    assert list(exe.profiles(repeats=2, warmup=1)) == [p.label for p in exe]
    x = torch.randn(2, 9, 16)
    assert len(ll.profile(exe, (x,), repeats=2, warmup=1).table())
    assert list(exe.table()["tuned at"]) == ["s=1", "s=7", "s=16"]
    assert "3 parts" in repr(exe)
    assert "s=2…7\n" in exe.text()
    assert exe.diff(exe) == ""
    assert exe._repr_mimebundle_()["text/html"].count("<h4>") == 3
    exe.save(tmp_path / "exe")
    again = ll.load(tmp_path / "exe")
    assert torch.equal(again(x), exe(x))
    assert [p.buckets for p in again] == [p.buckets for p in exe]


def test_a_written_program_with_two_bucketed_dims() -> None:
    g = ll.Graph("two")
    b, s = g.dim("b", 1, 8), g.dim("s", 1, 32)
    x = g.tensor("x", (b, s, 8), "bf16")
    w = g.weight("w", torch.randn(8, 8).bfloat16())
    (x @ w).softmax(1).output("y")
    exe = ll.compile(
        g,
        budget=QUICK,
        buckets={"b": ll.Bucket(1, 1), "s": [ll.Bucket(1, 4), ll.Bucket(5, 32, tune_at=8)]},
    )
    assert [p.label for p in exe] == ["b=1, s=1…4", "b=1, s=5…32"]
    held = g.builder.weights["w"]
    for n in (1, 4, 5, 32):
        a = torch.randn(1, n, 8).bfloat16()
        torch.testing.assert_close(exe(a), (a @ held).softmax(1), rtol=2e-2, atol=1e-2)
    held.mul_(2)
    torch.testing.assert_close(exe(a), (a @ held).softmax(1), rtol=2e-2, atol=1e-2)
    with pytest.raises(CallError, match="the size b is 2, in none of the buckets b=1"):
        exe(torch.zeros(2, 3, 8).bfloat16())


def test_wrong_buckets_are_told() -> None:
    def compile_with(**buckets: object) -> object:
        return ll.compile(
            torch.nn.Identity(),
            (torch.ones(3, 4),),
            dynamic_shapes=({0: S},),
            buckets=buckets,  # type: ignore[arg-type]
            budget=QUICK,
        )

    with pytest.raises(LuminalError, match=r"Bucket\(1\) and Bucket\(1, 4, .*of s overlap"):
        compile_with(s=[ll.Bucket(1, 4), ll.Bucket(1, 1)])
    with pytest.raises(HlirError, match="no symbolic dim 'n'"):
        compile_with(n=[ll.Bucket(1, 4)])
    with pytest.raises(HlirError, match=r"beyond the bounds \[1, 64\]"):
        compile_with(s=ll.Bucket(1, 100))
    with pytest.raises(LuminalError, match="no buckets for 's'"):
        compile_with(s=[])


def test_dims_keep_their_names() -> None:
    def f(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + y

    hlir = ll.capture(
        f,
        (torch.ones(3, 4),),
        {"y": torch.ones(2, 4)},
        dynamic_shapes={"x": {0: B}, "y": (S, None)},
    )
    assert hlir.symbols == {"b": (1, 8), "s": (1, 64)}
    assert hlir.nodes[hlir.inputs[0].node].shape[0].name == "b"
