"""What the laws must derive, by cost alone: no test gives a hint, and no rule knows a name.

Each test goes the whole way, from PyTorch to a run on the CPU, and looks at what won.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import luminal_lab as ll
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.values import Kernel, Value, postorder
from luminal_lab.resources import rules_dir

EFFORT = ll.Budget("none")


def compiled(fn, args, rules=None):
    """The best candidate by predicted cost, and what it returns for `args`."""
    result = ll.search(ll.saturate(ll.capture(fn, args), rules=rules), EFFORT)
    with torch.no_grad():
        return result.best, ll.build(result.best)(*args)


def ops(kernel) -> list[Value]:
    """The reductions of a kernel, online ones included."""
    assert isinstance(kernel, Kernel)
    values = postorder(o.value for o in kernel.outputs)
    return [v for v in values if v.op in ("red", "carry", "online")]


def naive(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def tril_mask(q, k, v):
    s = q @ k.transpose(-1, -2) * 0.125
    mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(s.masked_fill(~mask, float("-inf")), -1) @ v


def additive_mask(q, k, v):
    s = q @ k.transpose(-1, -2) * 0.125
    mask = torch.full(s.shape[-2:], float("-inf")).triu(1)
    return torch.softmax(s + mask, -1) @ v


def where_mask(q, k, v):
    s = q @ k.transpose(-1, -2) * 0.125
    i = torch.arange(s.shape[-2])
    return torch.softmax(torch.where(i[None, :] <= i[:, None], s, float("-inf")), -1) @ v


def window(q, k, v):
    s = q @ k.transpose(-1, -2) * 0.125
    i = torch.arange(s.shape[-2])
    near = (i[None, :] <= i[:, None]) & (i[None, :] > i[:, None] - 48)
    return torch.softmax(s.masked_fill(~near, float("-inf")), -1) @ v


def grouped(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return naive(q, k, v)


@pytest.mark.parametrize(
    ("attention", "kv_heads"),
    [
        (naive, 4),
        (tril_mask, 4),
        (additive_mask, 4),
        (where_mask, 4),
        (window, 4),
        (grouped, 2),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_attention_is_one_kernel_with_one_pass(attention, kv_heads):
    torch.manual_seed(0)
    args = [torch.randn(1, h, 1024, 64) for h in (4, kv_heads, kv_heads)]
    best, found = compiled(attention, args)
    (kernel,) = best.kernels
    online = [v for v in ops(kernel) if v.op == "online"]
    assert online, f"no online reduction in {kernel}"
    # All online reductions share one axis and one state: a single pass over the keys.
    assert len({(v.attrs, v.args[0], v.args[1]) for v in online}) == 1
    assert sum(v.op == "red" for v in ops(kernel)) == 1  # the product of queries and keys
    exact = attention(*[x.double() for x in args])
    assert (found - exact).abs().max() < 1e-4


def test_saturation_of_attention_is_small():
    args = [torch.randn(1, 12, 1024, 64) for _ in range(3)]
    assert ll.saturate(ll.capture(tril_mask, args)).size < 2000


ONE_KERNEL = {
    "softmax": lambda x, w, g: torch.softmax(x, -1),
    "log-sum-exp": lambda x, w, g: torch.logsumexp(x, -1),
    "log-sum-exp by hand": lambda x, w, g: (
        (x - x.amax(-1, keepdim=True)).exp().sum(-1).log() + x.amax(-1)
    ),
    "layernorm": lambda x, w, g: F.layer_norm(x, (256,), g, g),
    "rmsnorm": lambda x, w, g: F.rms_norm(x, (256,), g, 1e-6),
    "rmsnorm then linear": lambda x, w, g: F.linear(F.rms_norm(x, (256,), g, 1e-6), w),
    "linear, bias and GELU": lambda x, w, g: F.gelu(F.linear(x, w) + 1.5),
    "two products with a fused epilogue": lambda x, w, g: (
        F.silu(F.linear(x, w)) * F.linear(x, w.flip(0))
    ),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    torch.manual_seed(0)
    args = (torch.randn(128, 256), torch.randn(512, 256) / 16, torch.randn(256))
    best, found = compiled(ONE_KERNEL[name], args)
    assert len(best.calls) == 1
    exact = ONE_KERNEL[name](*[x.double() for x in args])
    assert (found - exact).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["softmax", "log-sum-exp", "log-sum-exp by hand"])
def test_the_one_pass_form_is_among_the_alternatives(name):
    args = (torch.randn(128, 256), torch.randn(512, 256) / 16, torch.randn(256))
    egraph = ll.saturate(ll.capture(ONE_KERNEL[name], args))
    assert any(n.op == "online" for part in egraph.parts for c in part.classes for n in c.nodes)


class LlamaBlock(torch.nn.Module):
    """A real Llama layer: RMSNorm, grouped queries, RoPE, a causal mask, SwiGLU."""

    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=1,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=32,
            attn_implementation="eager",
        )
        model = transformers.LlamaModel(config)
        self.layer, self.rope = model.layers[0], model.rotary_emb

    def forward(self, x):
        n = x.shape[1]
        position = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        out = self.layer(
            x,
            attention_mask=mask,
            position_embeddings=self.rope(x, position),
            position_ids=position,
        )
        return out[0] if isinstance(out, tuple) else out


def test_attention_inside_a_llama_block_is_one_kernel():
    torch.manual_seed(0)
    block, x = LlamaBlock().eval(), torch.randn(1, 1024, 512)
    best, found = compiled(block, (x,))
    online = [k for k in best.kernels if any(v.op == "online" for v in ops(k))]
    assert len(online) == 1, "queries to head outputs must be one kernel"
    (scores, *_) = [v for v in ops(online[0]) if v.op == "online"]
    # It reads no stored scores: the product of queries and keys is computed in place.
    key_axis = scores.attrs[0]
    assert any(v.op == "red" and key_axis in v.free for v in postorder([scores.args[0]]))
    assert online[0].buffers[online[0].writes()[0]].shape == (1, 8, 1024, 64)
    with torch.no_grad():
        exact = block.double()(x.double())
    assert (found - exact).abs().max() < 1e-4


def test_twelve_layers_are_saturated_as_one():
    def encoder(layers):
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()

    x = torch.randn(2, 16, 64)
    one, twelve = (ll.saturate(ll.capture(encoder(n), (x,))) for n in (1, 12))
    assert one.size == twelve.size
    assert len(twelve.program.instances) == 12


def test_attention_is_derived_without_the_rules_that_call_kernels():
    """`rules/targets` knows PyTorch's attention as a call; nothing here comes from it."""
    laws = tuple(p.stem for p in sorted(rules_dir().glob("*.egg")) if p.stem != "language")
    args = [torch.randn(1, 12, 1024, 64) for _ in range(3)]
    for attention in (naive, tril_mask):
        egraph = ll.saturate(ll.capture(attention, args), limits=Limits(themes=laws))
        assert "library-attention" not in {r.name for r in egraph.rules}
        (kernel,) = ll.search(egraph, EFFORT).best.kernels
        assert any(v.op == "online" for v in ops(kernel))
