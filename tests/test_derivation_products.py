"""Laws of products, by cost and in as few kernels as the literature; nothing says how."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import luminal_lab as ll
from luminal_lab.egraph.values import postorder
from luminal_lab.views.derivation import derivation
from luminal_lab.views.steps import derive

from .test_derivation import EFFORT, compiled, grouped, ops


class Block(torch.nn.Module):
    """A function of `x` and of parameters, which are weights to the compiler."""

    def __init__(self, fn, **weights):
        super().__init__()
        self.fn = fn
        self.weights = torch.nn.ParameterDict(weights)

    def forward(self, *x):
        return self.fn(*x, **self.weights)


def gated(x, gate, up):
    return F.silu(x @ gate) * (x @ up)


def lora(x, w, a, b):
    return x @ w + (x @ a) @ b


def normalised(h, x, alpha):
    def norm(v):
        return v / v.square().sum(-1, keepdim=True).sqrt()

    return norm(h + alpha * (norm(x) - h))


def qk_norm(q, k, v):
    q, k = (F.rms_norm(x, (64,), eps=1e-6) for x in (q, k))
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def rms_linear(x, g, w):
    return F.linear(F.rms_norm(x, (256,), g, 1e-6), w)


def scaled(x, w, s, b):
    return (x @ w + b) * s


# A function, what it is given at each call, and its weights.
X = (64, 256)
LORA = {"w": (256, 512), "a": (256, 16), "b": (16, 512)}
# The programs of the Mirage paper: GQA, QKNorm, RMSNorm, LoRA, GatedMLP, nTrans.
MIRAGE = {
    "grouped queries": (grouped, [(1, 8, 512, 64), *[(1, 2, 512, 64)] * 2], {}),
    "QK-norm attention": (qk_norm, [(1, 4, 512, 64)] * 3, {}),
    "RMSNorm then linear": (rms_linear, [X], {"g": (256,), "w": (512, 256)}),
    "LoRA": (lora, [X], LORA),
    "gated MLP": (gated, [X], {"gate": (256, 512), "up": (256, 512)}),
    "normalised block": (normalised, [X, X], {"alpha": (256,)}),
}
PROGRAMS = {
    **MIRAGE,
    "LoRA, all given": (lora, [X, *LORA.values()], {}),
    "scale of a linear layer": (scaled, [X], {"w": (256, 512), "s": (512,), "b": (512,)}),
}


def program(name, dtype):
    """A module and its arguments."""
    torch.manual_seed(0)
    fn, given, shapes = PROGRAMS[name]
    args = [(torch.randn(*s) / (1 if shapes else 16)).to(dtype) for s in given]
    block = Block(fn, **{n: torch.randn(*s) / 16 for n, s in shapes.items()})
    return block.to(dtype), args


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_as_in_the_literature(name, dtype):
    block, args = program(name, dtype)
    best, found = compiled(block, args)
    assert len([c for c in best.calls if not c.at_build]) == 1
    assert found.dtype == dtype
    with torch.no_grad():
        exact = block.double()(*[x.double() for x in args])
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found - exact).abs().max() < tolerance * exact.abs().max()


@pytest.mark.parametrize("name", MIRAGE)
def test_the_derivation_of_the_kernel_is_told(name):
    """Each step from the program to the kernel is a law, and the view names it."""
    block, args = program(name, torch.float32)
    egraph = ll.saturate(ll.capture(block, args))
    best = ll.search(egraph, EFFORT).best
    (kernel,) = [c.kernel for c in best.calls if not c.at_build]
    laws = {rule.name for rule in egraph.rules}
    why = egraph.explain(egraph.hlir.outputs[0].name, best.kernels[kernel])
    assert why.links
    assert {link.rule for link in why.links} <= laws | {"copy"}
    told = str(derivation(egraph, best, kernel))
    steps = derive(egraph, best, kernel).steps
    assert bool(steps) == bool(best.kernels[kernel].rules)
    assert all(f"{step.rule}: " in told for step in steps)


def test_weights_that_add_to_a_layer_are_merged_into_it():
    block, args = program("LoRA", torch.float32)
    best, _ = compiled(block, args)
    (call,) = [c for c in best.calls if not c.at_build]
    assert "product-of-product" in best.kernels[call.kernel].rules
    plain, _ = compiled(Block(lambda x, w: x @ w, w=torch.randn(256, 512)), args)
    assert sum(best.predicted) < 1.05 * sum(plain.predicted)


class Attention(torch.nn.Module):
    """Self-attention with separate projections."""

    def __init__(self, dim, heads, kv_heads, bias):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        wide = kv_heads * self.size
        self.q, self.o = (torch.nn.Linear(dim, dim, bias) for _ in "qo")
        self.k, self.v = (torch.nn.Linear(dim, wide, bias) for _ in "kv")

    def forward(self, x):
        n, t, dim = x.shape
        q = self.q(x).view(n, t, self.heads, self.size).transpose(1, 2)
        k, v = (
            p(x).view(n, t, self.kv_heads, self.size).transpose(1, 2) for p in (self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.kv_heads)
        return self.o(out.transpose(1, 2).reshape(n, t, dim))


@pytest.mark.parametrize(
    ("kv_heads", "bias", "dtype"),
    [(6, False, torch.float32), (6, True, torch.float32), (2, False, torch.float32),
     (6, False, torch.bfloat16)],
)  # fmt: skip
def test_projections_of_one_operand_are_one_product(kv_heads, bias, dtype):
    torch.manual_seed(0)
    block = Attention(384, 6, kv_heads, bias).eval().to(dtype)
    x = torch.randn(1, 32, 384, dtype=dtype)
    best, found = compiled(block, (x,), "stacking")
    assert len([c for c in best.calls if not c.at_build]) == 3  # q/k/v, attention, output
    wide = 384 + 2 * kv_heads * 64
    assert any(b.shape == (1, 32, wide) for b in best.buffers.values())
    with torch.no_grad():
        exact = block.double()(x.double())
    assert (found - exact).abs().max() < (1e-5 if dtype is torch.float32 else 2e-2)


def test_what_depends_on_weights_alone_is_done_at_build_time():
    def fn(x, w, s, b):
        return torch.relu(x * (w.exp() @ s).sqrt()) + (b * 2).sum(0)

    shapes = {"w": (8, 16), "s": (16, 32), "b": (4, 32)}
    block = Block(fn, **{n: torch.rand(*s) for n, s in shapes.items()})
    best, _ = compiled(block, (torch.randn(8, 32),))
    (call,) = [c for c in best.calls if not c.at_build]
    (kernel,) = [best.kernels[call.kernel]]
    assert not ops(kernel)
    assert not any(v.op in ("exp2", "sqrt") for v in postorder(o.value for o in kernel.outputs))


def test_a_product_whose_weights_are_summed_first():
    """The sum over copies of a row is one of the weights, within the kernel of the product."""

    def copies(x, b, w):
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return (x.repeat(1, 4) * (1 + b)) @ w.T

    args = (torch.randn(16, 32), torch.randn(128), torch.randn(320, 128))
    best = ll.search(ll.saturate(ll.capture(Block(copies), args)), ll.Budget("none")).best
    assert any("sum-exchange" in k.rules for k in best.kernels)
    want = copies(*[a.double() for a in args])
    assert (ll.build(best)(*args) - want).abs().max() < 1e-4
