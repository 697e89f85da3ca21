"""The programs of which every candidate must agree: the forms that models are made of.

Each is built for a dtype and a size. `"small"` has extents that tell axes apart, `"odd"` mostly
primes, `"one"` a batch, a head and a sequence of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module | Callable[..., Any], tuple[torch.Tensor, ...]]
SIZES: Mapping[str, Mapping[str, int]] = {
    "small": {"b": 2, "s": 6, "t": 7, "h": 4, "g": 2, "d": 4, "f": 24},
    "odd": {"b": 3, "s": 5, "t": 11, "h": 2, "g": 1, "d": 6, "f": 17},
    "one": {"b": 1, "s": 1, "t": 3, "h": 1, "g": 1, "d": 2, "f": 1},
}
# No batch, and no keys: PyTorch computes most programs at these sizes too.
EMPTY: Mapping[str, Mapping[str, int]] = {
    "no-batch": {"b": 0, "s": 6, "t": 7, "h": 4, "g": 2, "d": 4, "f": 24},
    "no-keys": {"b": 2, "s": 6, "t": 0, "h": 4, "g": 2, "d": 4, "f": 24},
}


@dataclass(frozen=True)
class Size:
    """Extents: batch, queries, keys, heads, key heads, head size, hidden width, float dtype."""

    b: int
    s: int
    t: int
    h: int
    g: int
    d: int
    f: int
    dtype: torch.dtype

    @property
    def e(self) -> int:
        """Model width."""
        return self.h * self.d

    def draw(self, *shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(shape).to(self.dtype)

    def heads(self, n: int, h: int | None = None) -> torch.Tensor:
        """`(b, h, n, d)`."""
        return self.draw(self.b, h or self.h, n, self.d)


class RMSNorm(nn.Module):
    """As Llama writes it: in float32, whatever the dtype."""

    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(n))

    def forward(self, x):
        """Over the last dim."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


def rotated(x):
    """The halves of the last dim, swapped and one negated."""
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rope(x):
    """Rotary positions for `(…, s, d)`."""
    s, d = x.shape[-2:]
    inverse = 10000.0 ** (-torch.arange(0, d, 2) / d)
    angle = (torch.arange(s)[:, None] * inverse[None]).repeat(1, 2)
    return x * angle.cos().to(x.dtype) + rotated(x) * angle.sin().to(x.dtype)


def scores(q, k):
    """Scaled products of queries and keys."""
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def attend(q, k, v, mask=None):
    """Attention written out; `mask` is added, or says (as bools) what is seen."""
    s = scores(q, k)
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else s + mask
    return torch.softmax(s.float(), -1).to(v.dtype) @ v


def offsets(s: int, t: int):
    """How far each key lies behind each query."""
    return torch.arange(s)[:, None] - torch.arange(t)[None]


class MultiHead(nn.Module):
    """Attention with its four linear layers, over itself or over another sequence."""

    def __init__(self, size: Size, groups: int | None = None, causal: bool = False,
                 rotary: bool = False, normed: bool = False, bias: bool = True):  # fmt: skip
        super().__init__()
        self.h, self.g, self.d = size.h, groups or size.h, size.d
        e, kv = size.e, self.g * size.d
        self.q, self.k = nn.Linear(e, e, bias=bias), nn.Linear(e, kv, bias=bias)
        self.v, self.o = nn.Linear(e, kv, bias=bias), nn.Linear(e, e, bias=bias)
        self.causal, self.rotary = causal, rotary
        self.q_norm = RMSNorm(size.d) if normed else None
        self.k_norm = RMSNorm(size.d) if normed else None

    def forward(self, x, y=None, mask=None):
        """`x` (b, s, e) looks at `y` (b, t, e), itself when None."""
        b, s, e = x.shape
        y = x if y is None else y
        q = self.q(x).view(b, s, self.h, self.d).transpose(1, 2)
        k = self.k(y).view(b, y.shape[1], self.g, self.d).transpose(1, 2)
        v = self.v(y).view(b, y.shape[1], self.g, self.d).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            q, k = rope(q), rope(k)
        if self.g != self.h:
            k, v = (t.repeat_interleave(self.h // self.g, 1) for t in (k, v))
        if self.causal:
            mask = offsets(s, k.shape[2]) >= 0
        return self.o(attend(q, k, v, mask).transpose(1, 2).reshape(b, s, e))


class SwiGlu(nn.Module):
    """The gated unit of Llama."""

    def __init__(self, e: int, f: int):
        super().__init__()
        self.gate, self.up = nn.Linear(e, f, bias=False), nn.Linear(e, f, bias=False)
        self.down = nn.Linear(f, e, bias=False)

    def forward(self, x):
        """Over the last dim."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(self, e: int, f: int, act: Callable[..., Any]):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(e, f), nn.Linear(f, e), act

    def forward(self, x):
        """Over the last dim."""
        return self.down(self.act(self.up(x)))


class LlamaLayer(nn.Module):
    """Pre-norm: grouped rotary causal attention, then a gated unit."""

    def __init__(self, size: Size):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.e), RMSNorm(size.e)
        self.attention = MultiHead(size, size.g, causal=True, rotary=True, bias=False)
        self.mlp = SwiGlu(size.e, size.f)

    def forward(self, x):
        """`(b, s, e)`."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class BertLayer(nn.Module):
    """Post-norm, with a padding mask."""

    def __init__(self, size: Size):
        super().__init__()
        self.attention, self.mlp = MultiHead(size), Mlp(size.e, size.f, F.gelu)
        self.norm1, self.norm2 = nn.LayerNorm(size.e), nn.LayerNorm(size.e)

    def forward(self, x, mask):
        """`(b, s, e)`, and a mask to add `(b, 1, 1, s)`."""
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.mlp(x))


class Unit(nn.Module):
    """The normalised transformer's block: every vector stays on the sphere."""

    def __init__(self, size: Size):
        super().__init__()
        self.attention = MultiHead(size, causal=True, bias=False)
        self.mlp = SwiGlu(size.e, size.f)
        self.a, self.b = (nn.Parameter(torch.rand(size.e)) for _ in range(2))

    def forward(self, x):
        """`(b, s, e)`."""
        for layer, rate in ((self.attention, self.a), (self.mlp, self.b)):
            y = F.normalize(layer(x), dim=-1)
            x = F.normalize(x + rate * (y - x), dim=-1)
        return x


class Experts(nn.Module):
    """Top-2 of four experts, gates by softmax over the chosen ones."""

    def __init__(self, size: Size, n: int = 4):
        super().__init__()
        self.router = nn.Linear(size.e, n, bias=False)
        self.up = nn.Parameter(torch.randn(n, size.e, size.f) / math.sqrt(size.e))
        self.down = nn.Parameter(torch.randn(n, size.f, size.e) / math.sqrt(size.f))

    def forward(self, x):
        """`(b, s, e)`."""
        weight, chosen = torch.topk(self.router(x), 2, -1)
        gates = torch.zeros_like(self.router(x)).scatter(-1, chosen, torch.softmax(weight, -1))
        y = F.silu(torch.einsum("bse,nef->bsnf", x, self.up))
        y = torch.einsum("bsnf,nfe->bsne", y, self.down)
        return (gates.unsqueeze(-1) * y).sum(2)


class Chosen(nn.Module):
    """One expert for each token, its weights gathered."""

    def __init__(self, size: Size, n: int = 4):
        super().__init__()
        self.router = nn.Linear(size.e, n, bias=False)
        self.weight = nn.Parameter(torch.randn(n, size.e, size.e) / math.sqrt(size.e))

    def forward(self, x):
        """`(b, s, e)`."""
        gate = torch.softmax(self.router(x), -1)
        best, which = gate.max(-1)
        y = (x.unsqueeze(-2) @ self.weight[which]).squeeze(-2)
        return best.unsqueeze(-1) * y


class ConvBlock(nn.Module):
    """Two convolutions with batch norms, and a residual."""

    def __init__(self, size: Size):
        super().__init__()
        c = size.e
        self.a, self.b = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        for norm in (self.norm1, self.norm2):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        """`(b, c, h, w)`."""
        y = F.relu(self.norm1(self.a(x)))
        return F.relu(x + self.norm2(self.b(y)))


class BatchNorms(nn.Module):
    """Normalised by the batch's own statistics, over images and over their columns."""

    def __init__(self, size: Size):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size.e))

    def forward(self, x):
        """`(b, c, h, w)`."""
        y = F.batch_norm(x, None, None, self.scale, training=True)
        return y, torch.var_mean(y * y, (0, 3)), y.std(2)


class Cells(nn.Module):
    """An LSTM cell and a GRU cell, written out."""

    def __init__(self, size: Size):
        super().__init__()
        e, f = size.e, size.f
        self.x, self.hidden = nn.Linear(e, 4 * f), nn.Linear(f, 4 * f)
        self.gx, self.gh = nn.Linear(e, 3 * f), nn.Linear(f, 3 * f)

    def forward(self, x, hidden, cell):
        """`x` (b, e), hidden state and cell (b, f)."""
        i, f, g, o = (self.x(x) + self.hidden(hidden)).chunk(4, -1)
        new = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        out = torch.sigmoid(o) * torch.tanh(new)
        (a, b, c), (p, q, r) = self.gx(x).chunk(3, -1), self.gh(hidden).chunk(3, -1)
        z = torch.sigmoid(b + q)
        return out, new, (1 - z) * torch.tanh(c + torch.sigmoid(a + p) * r) + z * hidden


class Bag(nn.Module):
    """Sums and means of embeddings, with padding, and weighted ones."""

    def __init__(self, size: Size):
        super().__init__()
        self.words = nn.Embedding(9, size.e, padding_idx=0)

    def forward(self, ids, weight):
        """`ids`, `weight` (b, t)."""
        x = self.words(ids)
        seen = (ids != 0).unsqueeze(-1)
        mean = (x * seen).sum(1) / seen.sum(1).clamp(min=1)
        return mean, (x * weight.unsqueeze(-1)).sum(1), x.max(1).values


class Lora(nn.Module):
    """A linear layer with a low-rank correction."""

    def __init__(self, size: Size):
        super().__init__()
        self.base = nn.Linear(size.e, size.f)
        self.a = nn.Parameter(torch.randn(size.e, 2))
        self.b = nn.Parameter(torch.randn(2, size.f))

    def forward(self, x):
        """Over the last dim."""
        return self.base(x) + (x @ self.a) @ self.b * 0.5


class Decode(nn.Module):
    """One new token, and a cache of keys and values in which `past` places are filled."""

    def __init__(self, size: Size):
        super().__init__()
        self.h, self.d = size.h, size.d
        self.qkv, self.o = nn.Linear(size.e, 3 * size.e), nn.Linear(size.e, size.e)

    def forward(self, x, keys, values, past):
        """`x` (b, 1, e), the cache (b, h, t, d), `past` a 0-d int64."""
        b, _, e = x.shape
        q, k, v = self.qkv(x).view(b, 1, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)
        keys = torch.index_copy(keys, 2, past.view(1), k)
        values = torch.index_copy(values, 2, past.view(1), v)
        mask = torch.arange(keys.shape[2])[None] <= past
        return self.o(attend(q, keys, values, mask).transpose(1, 2).reshape(b, 1, e)), keys


class Growing(nn.Module):
    """New tokens behind a cache that grows: keys are a concatenation."""

    def __init__(self, size: Size):
        super().__init__()
        self.h, self.d, self.qkv = size.h, size.d, nn.Linear(size.e, 3 * size.e)

    def forward(self, x, keys, values):
        """`x` (b, s, e), the cache (b, h, t, d)."""
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        seen = offsets(s, k.shape[2]) + keys.shape[2] >= 0
        return attend(q, k, v, seen).transpose(1, 2).reshape(b, s, e)


class TwoSided(nn.Module):
    """Two encoder layers, and two decoder layers that look at what the encoder made."""

    def __init__(self, size: Size):
        super().__init__()
        self.encoder = nn.ModuleList(BertLayer(size) for _ in range(2))
        self.own = nn.ModuleList(MultiHead(size, causal=True) for _ in range(2))
        self.other = nn.ModuleList(MultiHead(size) for _ in range(2))

    def forward(self, x, y, mask):
        """`x` (b, t, e), `y` (b, s, e), `mask` (b, 1, 1, t)."""
        for layer in self.encoder:
            x = layer(x, mask)
        for own, other in zip(self.own, self.other):
            y = y + own(y)
            y = y + other(y, x)
        return y


def alibi(q, k, v):
    """Causal attention with a bias by distance, steeper from head to head."""
    h, s, t = q.shape[1], q.shape[2], k.shape[2]
    slope = 2.0 ** (-8.0 / h * torch.arange(1, h + 1))
    behind = offsets(s, t)
    bias = -slope[:, None, None] * behind
    return attend(q, k, v, bias.masked_fill(behind < 0, float("-inf")).to(q.dtype))


def softcapped(q, k, v):
    """Attention whose scores are bent by a tanh, as Gemma does."""
    s = 5.0 * torch.tanh(scores(q, k).float() / 5.0)
    return torch.softmax(s, -1).to(v.dtype) @ v


def windowed(q, k, v):
    """Each query sees itself and the two keys before it."""
    behind = offsets(q.shape[2], k.shape[2])
    return attend(q, k, v, (behind >= 0) & (behind < 3))


def sinks(q, k, v, sink):
    """Attention with a learned logit per head that takes some of the weight."""
    s = torch.cat([scores(q, k), sink[None, :, None, None].expand(*q.shape[:3], 1)], -1)
    return torch.softmax(s, -1)[..., :-1] @ v


def sdpa(q, k, v):
    """PyTorch's own operator."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(x, w, target):
    """Of logits that a product makes: per row, and their mean."""
    logits = x @ w.t()
    return F.cross_entropy(logits, target, reduction="none"), F.cross_entropy(logits, target)


def smoothed(x, target):
    """Cross-entropy with label smoothing and a target that is ignored."""
    return F.cross_entropy(x, target, ignore_index=1, label_smoothing=0.1)


def contrastive(x, y):
    """Both ways over the similarities of a batch, as CLIP does."""
    s = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() * 14.0
    return torch.log_softmax(s, 0), torch.log_softmax(s, 1), torch.logsumexp(s, 1)


def statistics(x):
    """Moments, and what is made of them."""
    mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt(), x.std(0), (x * x).sum(1), x.amax(1) - x.amin(1)


def padding(size: Size, masked_rows: bool = False) -> torch.Tensor:
    """`(b, 1, 1, t)` of bools: the last batch entry sees less, or nothing."""
    seen = torch.ones(size.b, 1, 1, size.t, dtype=torch.bool)
    seen[-1:, ..., 0 if masked_rows else (size.t + 1) // 2 :] = False
    return seen


def _added(seen: torch.Tensor, size: Size, n: int) -> torch.Tensor:
    lowest = torch.finfo(size.dtype).min
    return torch.zeros_like(seen, dtype=size.dtype).masked_fill(~seen, lowest)[..., :n]


def _targets(size: Size, n: int) -> torch.Tensor:
    return torch.arange(size.b * size.s) % n


ZOO: Mapping[str, Callable[[Size], Made]] = {
    "attention": lambda z: (attend, (z.heads(z.s), z.heads(z.t), z.heads(z.t))),
    "multi-head": lambda z: (MultiHead(z), (z.draw(z.b, z.s, z.e),)),
    "cross": lambda z: (MultiHead(z), (z.draw(z.b, z.s, z.e), z.draw(z.b, z.t, z.e))),
    "grouped": lambda z: (MultiHead(z, z.g, bias=False), (z.draw(z.b, z.s, z.e),)),
    "causal": lambda z: (
        lambda q, k, v: attend(q, k, v, offsets(q.shape[2], k.shape[2]) >= 0),
        (z.heads(z.t), z.heads(z.t), z.heads(z.t)),
    ),
    "sdpa": lambda z: (sdpa, (z.heads(z.t), z.heads(z.t), z.heads(z.t))),
    "window": lambda z: (windowed, (z.heads(z.t), z.heads(z.t), z.heads(z.t))),
    "padded": lambda z: (attend, (z.heads(z.s), z.heads(z.t), z.heads(z.t), padding(z))),
    "masked-rows": lambda z: (
        attend,
        (z.heads(z.s), z.heads(z.t), z.heads(z.t), padding(z, masked_rows=True)),
    ),
    "alibi": lambda z: (alibi, (z.heads(z.t), z.heads(z.t), z.heads(z.t))),
    "rotary": lambda z: (
        MultiHead(z, causal=True, rotary=True, bias=False),
        (z.draw(z.b, z.s, z.e),),
    ),
    "qk-norm": lambda z: (MultiHead(z, normed=True, bias=False), (z.draw(z.b, z.s, z.e),)),
    "soft-cap": lambda z: (softcapped, (z.heads(z.s), z.heads(z.t), z.heads(z.t))),
    "sinks": lambda z: (sinks, (z.heads(z.s), z.heads(z.t), z.heads(z.t), z.draw(z.h))),
    "decode": lambda z: (
        Decode(z),
        (z.draw(z.b, 1, z.e), z.heads(z.t), z.heads(z.t), torch.tensor(z.t // 2)),
    ),
    "growing": lambda z: (
        Growing(z), (z.draw(z.b, z.s, z.e), z.heads(z.t), z.heads(z.t))
    ),
    "mlp": lambda z: (Mlp(z.e, z.f, F.relu), (z.draw(z.b, z.s, z.e),)),
    "gelu": lambda z: (Mlp(z.e, z.f, F.gelu), (z.draw(z.b, z.s, z.e),)),
    "gelu-tanh": lambda z: (
        Mlp(z.e, z.f, lambda x: F.gelu(x, approximate="tanh")), (z.draw(z.b, z.s, z.e),)
    ),
    "swiglu": lambda z: (SwiGlu(z.e, z.f), (z.draw(z.b, z.s, z.e),)),
    "layer-norm": lambda z: (nn.LayerNorm(z.e), (z.draw(z.b, z.s, z.e),)),
    "residual-norm": lambda z: (
        lambda x, y: F.layer_norm(x + y, x.shape[-1:]), (z.draw(z.b, z.e), z.draw(z.b, z.e))
    ),
    "rms-linear": lambda z: (
        nn.Sequential(RMSNorm(z.e), nn.Linear(z.e, z.f, bias=False)),
        (z.draw(z.b, z.s, z.e),),
    ),
    "group-norm": lambda z: (nn.GroupNorm(z.g, z.e), (z.draw(z.b, z.e, z.s, z.t),)),
    "experts": lambda z: (Experts(z), (z.draw(z.b, z.s, z.e),)),
    "chosen": lambda z: (Chosen(z), (z.draw(z.b, z.s, z.e),)),
    "conv": lambda z: (ConvBlock(z), (z.draw(z.b, z.e, z.s, z.t),)),
    "batch-norm": lambda z: (BatchNorms(z), (z.draw(z.b, z.e, z.s, z.t),)),
    "cells": lambda z: (Cells(z), (z.draw(z.b, z.e), z.draw(z.b, z.f), z.draw(z.b, z.f))),
    "bag": lambda z: (
        Bag(z), (torch.arange(z.b * z.t).view(z.b, z.t) * 5 % 9, z.draw(z.b, z.t))
    ),
    "cross-entropy": lambda z: (
        cross_entropy, (z.draw(z.b * z.s, z.e), z.draw(z.f, z.e), _targets(z, z.f))
    ),
    "smoothed": lambda z: (smoothed, (z.draw(z.b * z.s, 5), _targets(z, 5))),
    "contrastive": lambda z: (contrastive, (z.draw(z.t, z.e), z.draw(z.t, z.e))),
    "statistics": lambda z: (statistics, (z.draw(z.t + 2, z.f + 2),)),
    "lora": lambda z: (Lora(z), (z.draw(z.b, z.s, z.e),)),
    "bert": lambda z: (
        BertLayer(z), (z.draw(z.b, z.s, z.e), _added(padding(z), z, z.s))
    ),
    "llama": lambda z: (LlamaLayer(z), (z.draw(z.b, z.s, z.e),)),
    "unit": lambda z: (Unit(z), (z.draw(z.b, z.s, z.e),)),
    "two-sided": lambda z: (
        TwoSided(z),
        (z.draw(z.b, z.t, z.e), z.draw(z.b, z.s, z.e), _added(padding(z), z, z.t)),
    ),
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float32, size: str = "small") -> Made:
    """A program and its arguments, the same each time."""
    torch.manual_seed(len(name))
    program, args = ZOO[name](Size(**{**SIZES, **EMPTY}[size], dtype=dtype))
    if isinstance(program, nn.Module):
        program = program.to(dtype).eval()
    return program, args
