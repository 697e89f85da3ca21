"""Programs in the Tensor API through all stages: weights, states, sizes, repeated blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import CallError, LuminalError, TensorError
from luminal_lab.hlir import run

QUICK = ll.Budget("none")


def mlp(g: ll.Graph, x: ll.Tensor, layers: int) -> ll.Tensor:
    for k in range(layers):
        with g.module(f"layers.{k}"):
            w = g.weight(f"layers.{k}.weight", shape=(16, 16))
            x = x + x.linear(w).gelu()
    return x


def test_compiled_at_many_sizes() -> None:
    g = ll.Graph("mlp")
    x = g.tensor("x", (g.dim("n", 1, 40, hint=8), 16))
    mlp(g, x, 2).softmax(-1).output("y")
    torch.manual_seed(0)
    state = {f"layers.{k}.weight": torch.randn(16, 16) for k in range(2)}
    g.load(state)
    exe = ll.compile(g, budget=QUICK)
    for n in (1, 8, 40, 8):
        a = torch.randn(n, 16)
        want = a
        for w in state.values():
            want = want + torch.nn.functional.gelu(want @ w.T)
        torch.testing.assert_close(exe(a), want.softmax(-1), rtol=1e-4, atol=1e-5)
    with pytest.raises(CallError, match=r"41, outside of the bounds \[1, 40\]"):
        exe(torch.zeros(41, 16))


def test_repeated_blocks_are_one_region() -> None:
    g = ll.Graph()
    mlp(g, g.tensor("x", (4, 16)), 6).output()
    g.load({f"layers.{k}.weight": torch.randn(16, 16) for k in range(6)})
    egraph = ll.saturate(g.hlir())
    assert len(egraph.parts) == 1


def test_every_stage_takes_it(tmp_path: Path) -> None:
    g = ll.Graph("stages")
    x, i = g.tensor("x", (4, 8), "bf16"), g.tensor("i", (3,), "i32")
    (x[i].sum(-1) * 2).output("picked")
    (x > 1).any(0).output("any")
    hlir = ll.capture(g)
    assert ll.hlir.parse(hlir.text()) == hlir
    assert hlir.nodes[2].source.line.startswith(__file__)
    assert hlir.nodes[2].source.aten == "getitem"
    hlir.save(tmp_path / "program")
    assert ll.load(tmp_path / "program") == hlir
    exe = ll.build(ll.search(ll.saturate(hlir), QUICK).best)
    a, at = torch.randn(4, 8).bfloat16(), torch.tensor([3, 0, 3], dtype=torch.int32)
    picked, positive = exe(a, at)
    torch.testing.assert_close(picked, a[at].sum(-1) * 2)
    assert torch.equal(positive, (a > 1).any(0))
    exe.save(tmp_path / "exe")
    assert torch.equal(ll.load(tmp_path / "exe")(a, at)[0], picked)


def test_a_weight_is_shared_and_a_change_is_seen() -> None:
    w = torch.randn(8, 4)
    g = ll.Graph()
    x = g.tensor("x", (2, 4))
    g.tensor("w", (8, 4)).persist(w)
    x.linear(g._inputs["w"]).output()
    exe = ll.compile(g, budget=QUICK)
    a = torch.randn(2, 4)
    torch.testing.assert_close(exe(a), a @ w.T)
    w.mul_(2)
    torch.testing.assert_close(exe(a), a @ w.T)


def test_a_state_is_written_back() -> None:
    g = ll.Graph("counter")
    step = g.tensor("step", (2,))
    total = g.weight("total", torch.zeros(2))
    total.assign(total + step)
    (total * 2).output("before")
    exe = ll.compile(g, budget=QUICK)
    held = g.builder.weights["total"]
    for k in range(3):
        torch.testing.assert_close(exe(torch.ones(2)), torch.full((2,), 2.0 * k))
        torch.testing.assert_close(held, torch.full((2,), k + 1.0))


def test_a_cache_that_is_an_argument() -> None:
    g = ll.Graph("cache")
    cache, row = g.tensor("cache", (4, 3)), g.tensor("row", (1, 3))
    at = g.tensor("at", (1,), "i64")
    new = cache.scatter(0, at.reshape(1, 1).expand(1, 3), row)
    cache.assign(new)
    new.sum(0).output()
    exe = ll.compile(g, budget=QUICK)
    held, want = torch.zeros(4, 3), torch.zeros(4, 3)
    for k in range(4):
        r = torch.randn(1, 3)
        want[k] = r
        torch.testing.assert_close(exe(held, r, torch.tensor([k])), want.sum(0))
        torch.testing.assert_close(held, want)


def test_arrays_of_numpy() -> None:
    import numpy as np

    g = ll.Graph()
    w = g.weight("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    table = g.constant(np.array([1, 2, 3]))
    (w * table).output()
    (got,) = run(g.hlir(), [])
    assert got.tolist() == [[0, 2, 6], [3, 8, 15]]


def test_what_is_missing_is_told() -> None:
    g = ll.Graph()
    x = g.tensor("x", 4)
    with pytest.raises(TensorError, match="no outputs"):
        g.hlir()
    w = g.weight("w", shape=4)
    (x * w).output("y")
    with pytest.raises(TensorError, match="no value for the weight w"):
        ll.capture(g)
    with pytest.raises(TensorError, match=r"is f32\[4\], its value f32\[5\]"):
        g.load({"w": torch.ones(5)})
    with pytest.raises(TensorError, match="no weight called v"):
        g.load({"w": torch.ones(4), "v": torch.ones(1)})
    with pytest.raises(TensorError, match="is computed, not an input"):
        (x + 1).persist()
    with pytest.raises(TensorError, match="two outputs are called 'y'"):
        x.output("y")
    with pytest.raises(TensorError, match=r"assign: f32\[1\] into f32\[4\]"):
        x.assign(x[:1])
    with pytest.raises(TensorError, match="needs a value or a shape"):
        g.weight("u")
    with pytest.raises(LuminalError, match="declares its own inputs"):
        ll.compile(g, (torch.ones(4),))
    assert repr(g) == "Graph(graph: (x: f32[4], w: f32[4]) -> y: f32[4]; 5 nodes)"


def test_an_input_that_is_an_output() -> None:
    g = ll.Graph()
    x = g.tensor("x", (3,))
    x.output("same")
    x.flip(0).output("turned")
    exe = ll.compile(g, budget=QUICK)
    a = torch.randn(3)
    same, turned = exe(a)
    assert torch.equal(same, a)
    assert torch.equal(turned, a.flip(0))
    assert same.data_ptr() != a.data_ptr()


def test_the_last_row_of_a_product_over_a_size_of_the_call() -> None:
    """It is read at `s-1`, which is no number: no library product may be made of it."""
    g = ll.Graph()
    x, w = g.tensor("x", (2, g.dim("s", 1, 16, hint=8), 8)), g.weight("w", torch.randn(8, 8))
    (x.relu() @ w)[:, -1].output("rows")
    ((x[:, -1] + 1) @ w).output("row")
    exe = ll.compile(g, budget=QUICK)
    held = g.builder.weights["w"]
    for n in (1, 5, 16):
        a = torch.randn(2, n, 8)
        rows, row = exe(a)
        torch.testing.assert_close(rows, (a.relu() @ held)[:, -1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(row, (a[:, -1] + 1) @ held, rtol=1e-4, atol=1e-5)
