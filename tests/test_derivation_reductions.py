"""What the laws of reductions, casts, choices and scatters derive, by cost alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import luminal_lab as ll
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.search.run import search

from .test_derivation import LlamaBlock, compiled, naive, ops, tril_mask


class Decode(torch.nn.Module):
    """Attention of one new token over a cache, which is updated first."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("keys", torch.randn(1, 8, 1024, 64).to(dtype))
        self.register_buffer("values", torch.randn(1, 8, 1024, 64).to(dtype))

    def forward(self, q, k, v, at):
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        s = q @ self.keys.transpose(-1, -2) * 0.125
        seen = torch.arange(self.keys.shape[2]) <= at
        return torch.softmax(s.masked_fill(~seen, float("-inf")), -1) @ self.values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_with_a_cache_is_two_kernels(dtype):
    torch.manual_seed(0)
    module = Decode(dtype).eval()
    exact = copy.deepcopy(module).double()
    args = [torch.randn(1, 8, 1, 64).to(dtype) for _ in range(3)]
    best, found = compiled(module, (*args, torch.tensor([700])))
    put, *rest = (best.kernels[c.kernel] for c in best.calls)
    assert len(put.outputs) == 2, "both rows in one pass"
    assert all(o.scatter is not None for o in put.outputs)
    if dtype == torch.float32:
        (attend,) = rest
        assert len({v.attrs for v in ops(attend) if v.op == "online"}) == 1
    with torch.no_grad():
        want = exact(*[x.double() for x in args], torch.tensor([700]))
    assert (found - want).abs().max() < (1e-4 if dtype == torch.float32 else 2e-2)
    assert torch.equal(module.keys.double(), exact.keys)


def padded(q, k, v, mask):
    s = q @ k.transpose(-1, -2) * 0.125
    return torch.softmax(s.masked_fill(~mask[:, None, None, :], float("-inf")), -1) @ v


def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


@pytest.mark.parametrize("attention", [padded, masked])
def test_attention_with_masked_keys_is_one_kernel(attention):
    """The second of the sequences has no key at all: NaN by hand, 0 from PyTorch's operator."""
    torch.manual_seed(0)
    args = [torch.randn(2, 4, 512, 64) for _ in range(3)]
    mask = torch.arange(512)[None] < torch.tensor([300, 0])[:, None]
    best, found = compiled(attention, (*args, mask))
    assert len(best.calls) == 1
    assert any(v.op == "online" for v in ops(best.kernels[0]))
    exact = attention(*[x.double() for x in args], mask)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4, equal_nan=True)


ENTROPY = {
    "mean": lambda x, t: F.cross_entropy(x, t),
    "with an ignored target": lambda x, t: F.cross_entropy(x, t, ignore_index=3),
    "per row": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "log-softmax and NLL": lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),
}


@pytest.mark.parametrize("name", ENTROPY)
def test_softmax_cross_entropy_is_two_kernels_at_most(name):
    torch.manual_seed(0)
    x, target = torch.randn(128, 1000), torch.randint(0, 8, (128,))
    best, found = compiled(ENTROPY[name], (x, target))
    assert len(best.calls) <= 2
    exact = ENTROPY[name](x.double(), target)
    assert (found - exact).abs().max() < 1e-4


ONE_KERNEL = {
    "layernorm and residual": lambda x, y, w, g: F.layer_norm(x + y, (256,), g, g),
    "residual after layernorm": lambda x, y, w, g: x + F.layer_norm(y, (256,), g, g),
    "rmsnorm then linear": lambda x, y, w, g: F.linear(F.rms_norm(x, (256,), g, 1e-6), w),
    "gated unit": lambda x, y, w, g: F.silu(F.linear(x, w)) * F.linear(x, w.flip(0)),
    "masked softmax": lambda x, y, w, g: torch.softmax(x.masked_fill(y > 0, float("-inf")), -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel_in_both_dtypes(name, dtype):
    torch.manual_seed(0)
    shapes = ((128, 256), (128, 256), (512, 256), (256,))
    args = tuple((torch.randn(s) / (16 if s[0] == 512 else 1)).to(dtype) for s in shapes)
    best, found = compiled(ONE_KERNEL[name], args)
    assert len(best.calls) == 1
    exact = ONE_KERNEL[name](*[x.double() for x in args])
    scale = exact.abs().max().item()
    assert (found - exact).abs().max() < (1e-4 if dtype == torch.float32 else 2e-2) * scale


def test_a_bag_of_embeddings_is_one_kernel():
    torch.manual_seed(0)
    table, bags = torch.randn(512, 256), torch.randint(0, 512, (128, 20))
    best, found = compiled(lambda w, i: F.embedding(i, w).sum(1), (table, bags))
    assert len(best.calls) == 1
    torch.testing.assert_close(found, F.embedding(bags, table).sum(1))


@pytest.mark.parametrize("rate", ["bandwidth", "l3_bandwidth", "vector_flops", "launch"])
@pytest.mark.parametrize("part", [0.5, 2.0])
def test_a_bag_is_one_kernel_on_other_machines_too(rate, part):
    """Rows that are gathered lie as in the table: no folding of vectors, whatever it costs."""
    table, bags = torch.randn(512, 256), torch.randint(0, 512, (128, 20))
    egraph = ll.saturate(ll.capture(lambda w, i: F.embedding(i, w).sum(1), (table, bags)))
    here = CpuTarget().machine()
    other = replace(here, **{rate: getattr(here, rate) * part})
    best = search(egraph, ll.Budget("none"), target=CpuTarget(machine=other)).best
    assert len(best.calls) == 1


@pytest.mark.parametrize("attention", [naive, tril_mask], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_in_16_bits_is_one_kernel_too(attention, dtype):
    torch.manual_seed(0)
    args = [torch.randn(1, 4, 512, 64).to(dtype) for _ in range(3)]
    best, found = compiled(attention, args)
    assert len(best.calls) == 1
    assert any(v.op == "online" for v in ops(best.kernels[0]))
    exact = attention(*[x.double() for x in args])
    assert (found - exact).abs().max() < 2e-2


def test_attention_inside_a_block_in_16_bits_is_one_kernel():
    torch.manual_seed(0)
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        block = LlamaBlock().eval().to(dtype)
        best, _ = compiled(block, (torch.randn(1, 256, 512).to(dtype),))
        online = [k for k in best.kernels if any(v.op == "online" for v in ops(k))]
        assert len(online) == 1
        assert online[0].buffers[online[0].writes()[0]].shape == (1, 8, 256, 64)
        seconds.append(sum(best.predicted[c.kernel] for c in best.calls))
    assert seconds[1] < 1.1 * seconds[0]


def normalised(x):
    return F.batch_norm(x, None, None, training=True)


@pytest.mark.parametrize(
    ("program", "shape"), [(lambda x: x.var(0), (30_000, 256)), (normalised, (64, 4, 128, 128))]
)
def test_deviations_from_a_mean_are_summed_in_one_pass(program, shape):
    """Columns and channels that do not fit the cache are read once for mean and variance."""
    torch.manual_seed(0)
    x = torch.randn(shape) + 5
    best, found = compiled(program, (x,))
    assert len(best.calls) == 1
    carried = [v for v in ops(best.kernels[0]) if v.op == "carry"]
    assert {v.attrs[0] for v in carried} == {"spread"}
    torch.testing.assert_close(found.double(), program(x.double()), rtol=1e-4, atol=1e-4)


def under_weights(x, w):
    w = w.to(x.dtype)
    mean = (w * x).sum(0, keepdim=True) / w.sum(0, keepdim=True)
    return (w * (x - mean) ** 2).sum(0) / w.sum(0)


def test_deviations_under_weights_are_summed_in_one_pass():
    torch.manual_seed(0)
    x, w = torch.randn(20_000, 128) + 5, torch.rand(20_000, 1) < 0.7
    best, found = compiled(under_weights, (x, w))
    assert any(v.op == "carry" for k in best.kernels for v in ops(k))
    want = under_weights(x.double(), w)
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-4)


def test_the_place_of_a_computed_maximum_needs_no_other_kernel():
    torch.manual_seed(0)
    x = torch.randn(64, 1000)
    best, found = compiled(lambda x: (x * 3 - x * x).argmax(-1), (x,))
    assert [v.attrs[0] for k in best.kernels for v in ops(k)] == ["argmax"]
    assert torch.equal(found, (x * 3 - x * x).argmax(-1))


@pytest.mark.parametrize("signed", [False, True])
def test_one_pass_carries_deviations_under_weights_that_cannot_cancel(signed: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w = w if signed else w.float()
        m = (x * w).sum(0, keepdim=True) * (1 / w.sum(0, keepdim=True))
        return (w * ((x - m) * (x - m))).sum(0)

    x = torch.randn(8192, 16, generator=torch.Generator().manual_seed(0))
    w = torch.ones(8192, 1)
    w[1::2] = -1.0  # blocks of rows have no weight in all
    w[-1] = 2.0
    w = w if signed else w > 0
    egraph = ll.saturate(ll.capture(fn, (x, w)))
    ops = {n.op for c in egraph.parts[0].classes for n in c.nodes}
    assert ("carry" in ops) is not signed
    want = fn(x.double(), w.double() if signed else w)
    for candidate in [ll.search(egraph, ll.Budget("none")).best, *ll.sample(egraph, 12)]:
        got = ll.build(candidate)(x, w).double()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
