"""Layers and attention against the modules of PyTorch, with their own weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import luminal_lab as ll
from luminal_lab.errors import TensorError
from luminal_lab.hlir import run

NONE = ll.Budget("none")
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}

LAYERS: dict[
    str, tuple[Callable[[], ll.nn.Module], Callable[[], nn.Module], tuple[int, ...]]
] = {
    "linear": (lambda: ll.nn.Linear(8, 5), lambda: nn.Linear(8, 5), (3, 8)),
    "linear without bias": (
        lambda: ll.nn.Linear(8, 5, bias=False),
        lambda: nn.Linear(8, 5, bias=False),
        (2, 3, 8),
    ),
    "layer norm": (lambda: ll.nn.LayerNorm(8), lambda: nn.LayerNorm(8), (2, 3, 8)),
    "layer norm of two dims": (
        lambda: ll.nn.LayerNorm((3, 8), eps=1e-3),
        lambda: nn.LayerNorm((3, 8), eps=1e-3),
        (2, 3, 8),
    ),
    "rms norm": (lambda: ll.nn.RMSNorm(8), lambda: nn.RMSNorm(8), (2, 3, 8)),
    "convolution": (
        lambda: ll.nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), groups=2),
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), groups=2),
        (2, 4, 9, 7),
    ),
    "sequential": (
        lambda: ll.nn.Sequential(ll.nn.Linear(8, 6), ll.Tensor.gelu, ll.nn.Linear(6, 4)),
        lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4)),
        (3, 8),
    ),
}


def program(module: ll.nn.Module, *args: torch.Tensor) -> ll.Graph:
    g = ll.Graph()
    names = [g.tensor(f"x{k}", tuple(a.shape), a.dtype) for k, a in enumerate(args)]
    module(*names).output()
    return g


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, theirs, shape = LAYERS[name]
    ours, reference = make(), theirs().to(dtype)
    for p in reference.parameters():
        nn.init.normal_(p)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(shape).to(dtype)
    (got,) = run(program(ours, x).hlir(), [x], compute="native")
    tol = TOLERANCE[dtype]
    torch.testing.assert_close(got, reference(x).detach(), rtol=tol, atol=tol)
    assert list(ours.state_dict()) == list(reference.state_dict())


def test_embedding() -> None:
    ours, reference = ll.nn.Embedding(10, 4), nn.Embedding(10, 4)
    ours.load_state_dict(reference.state_dict())
    ids = torch.tensor([[1, 9, 0]])
    exe = ll.compile(program(ours, ids), budget=NONE)
    assert torch.equal(exe(ids), reference(ids))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_torch(causal: bool) -> None:
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    nn.init.normal_(reference.in_proj_bias)
    state = reference.state_dict()
    packed = [state[f"in_proj_{p}"].chunk(3) for p in ("weight", "bias")]
    ours = ll.nn.MultiHeadAttention(16, 4, bias=True, causal=causal)
    values = {
        f"{n}_proj.{p}": part[k]
        for k, n in enumerate("qkv")
        for p, part in zip(("weight", "bias"), packed)
    }
    ours.load_state_dict(
        {
            **values,
            "o_proj.weight": state["out_proj.weight"],
            "o_proj.bias": state["out_proj.bias"],
        }
    )
    x = torch.randn(2, 7, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    want = reference(x, x, x, attn_mask=mask, need_weights=False, is_causal=causal)[0]
    (got,) = run(program(ours, x).hlir(), [x], compute="native")
    torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-5)


def test_masks_and_grouped_heads() -> None:
    ours = ll.nn.MultiHeadAttention(16, 4, kv_heads=2, causal=False)
    ours.reset(1)
    x, mask = torch.randn(2, 5, 16), torch.rand(5, 5) < 0.7
    (got,) = run(program(ours, x, mask).hlir(), [x, mask], compute="native")
    w = {n.split("_")[0]: v for n, v in ours.state_dict().items()}
    q, k, v = ((x @ w[n].T).unflatten(-1, (-1, 4)).transpose(1, 2) for n in "qkv")
    want = nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    torch.testing.assert_close(got, want.transpose(1, 2).flatten(2) @ w["o"].T)


def test_a_module_belongs_to_no_graph_and_shares_its_weights() -> None:
    layer = ll.nn.Linear(4, 4)
    layer.reset()
    g = ll.Graph()
    x = g.tensor("x", (2, 4))
    layer(layer(x)).output()  # twice: one weight
    hlir = g.hlir()
    assert [s.name for s in hlir.inputs] == ["x", "weight", "bias"]
    exe = ll.compile(g, budget=NONE)
    a = torch.randn(2, 4)
    before = exe(a)
    layer.weight.value.mul_(2)
    assert not torch.allclose(exe(a), before)
    other = program(layer, a).hlir()
    assert other.weights["weight"] is layer.weight.value


def test_what_does_not_fit_is_told() -> None:
    layer = ll.nn.Sequential(ll.nn.Linear(4, 3), ll.nn.Linear(3, 2))
    assert [p.path for p in layer.parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with pytest.raises(TensorError, match=r"no value for 0.weight.*; no parameter called w"):
        layer.load_state_dict({"w": torch.ones(3)})
    with pytest.raises(TensorError, match=r"'0.weight' has shape \(3, 4\), its value \(4, 3\)"):
        layer.load_state_dict({"0.weight": torch.ones(4, 3)}, strict=False)
    g = ll.Graph()
    with pytest.raises(TensorError, match=r"linear: .* inner dims 5 and 4 differ"):
        layer(g.tensor("x", (1, 5)))
    layer(g.tensor("y", (1, 4))).output()
    with pytest.raises(TensorError, match=r"no value for the weights 0.weight"):
        g.hlir()
    with pytest.raises(TensorError, match="is called on Tensors"):
        layer(torch.ones(1, 4))
    with pytest.raises(TensorError, match="3 query heads in 2 groups"):
        ll.nn.MultiHeadAttention(12, 3, kv_heads=2)
    two: list[Any] = [ll.nn.Linear(4, 4), ll.nn.Linear(4, 4)]
    for part in two:
        part.reset()
    x = g.tensor("z", (1, 4))
    with pytest.raises(TensorError, match="two weights are called 'weight'"):
        two[1](two[0](x))
