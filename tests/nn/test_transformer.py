"""A decoder with the weights of Hugging Face's Llama, whole prompts and token by token."""

from __future__ import annotations

import pytest
import torch

import luminal_lab as ll
from luminal_lab.hlir import run

transformers = pytest.importorskip("transformers")
NONE = ll.Budget("none")


@pytest.fixture(scope="module")
def llama() -> tuple[torch.nn.Module, ll.nn.Transformer]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = ll.nn.Transformer(50, 32, 4, 48, 3, kv_heads=2, eps=1e-5)
    ours.load_llama(theirs.state_dict())
    return theirs, ours


IDS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(3))


def test_logits_are_llamas(llama: tuple[torch.nn.Module, ll.nn.Transformer]) -> None:
    theirs, ours = llama
    g = ll.Graph("llama")
    ours(g.tensor("ids", (2, g.dim("s", 1, 32, hint=12)), "i64")).output("logits")
    hlir = g.hlir()
    want = theirs(IDS).logits.detach()
    torch.testing.assert_close(
        run(hlir, [IDS], compute="native")[0], want, rtol=1e-4, atol=1e-5
    )
    exe = ll.compile(g, budget=NONE)
    for n in (12, 1, 5):
        torch.testing.assert_close(exe(IDS[:, :n]), want[:, :n], rtol=1e-4, atol=1e-4)


def test_layers_are_one_region(llama: tuple[torch.nn.Module, ll.nn.Transformer]) -> None:
    _, ours = llama
    g = ll.Graph()
    ours(g.tensor("ids", (1, 8), "i64")).output()
    egraph = ll.saturate(g.hlir())
    assert max(len(p.hlir.nodes) for p in egraph.parts) < len(g.hlir().nodes)


def test_token_by_token_with_buckets(
    llama: tuple[torch.nn.Module, ll.nn.Transformer],
) -> None:
    """One program for prompts and single tokens, which share their caches."""
    theirs, ours = llama
    caches = ours.caches(batch=2, length=16)
    g = ll.Graph("cached")
    ids = g.tensor("ids", (2, g.dim("s", 1, 16)), "i64")
    position = g.tensor("position", (), "i64")
    ours(ids, caches, position)[:, -1].output("logits")
    step = ll.compile(
        g, budget=NONE, buckets={"s": [ll.Bucket(1, 1), ll.Bucket(2, 16, tune_at=8)]}
    )
    want = theirs(IDS).logits.detach()
    for _ in range(2):  # what an earlier prompt left in the caches is not seen
        got = step(IDS[:, :7], torch.tensor(0))
        torch.testing.assert_close(got, want[:, 6], rtol=1e-4, atol=1e-4)
        for k in range(7, 12):
            got = step(IDS[:, k : k + 1], torch.tensor(k))
            torch.testing.assert_close(got, want[:, k], rtol=1e-4, atol=1e-4)
    assert bool((caches[0].keys[:, :, 12:] == 0).all())
    assert bool((caches[0].keys[:, :, :12] != 0).all())
