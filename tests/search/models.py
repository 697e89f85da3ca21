"""Small programs that the search is tested on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import luminal_lab as ll
from luminal_lab.egraph import EGraph


def attention(q, k, v):
    """Naive attention."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    return torch.matmul(torch.softmax(scores, -1), v)


def causal(q, k, v):
    """Naive attention that looks back only."""
    t = q.shape[-2]
    scores = torch.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    scores = scores.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


class Block(nn.Module):
    """A post-norm transformer block with biases and GELU."""

    def __init__(self, d: int = 16, heads: int = 2, hidden: int = 32):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def forward(self, x, mask):
        """One layer."""
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads) + mask
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, d)
        x = self.norm1(x + self.o(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def tensors(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Normal tensors, the same each time."""
    rng = torch.Generator().manual_seed(7)
    return tuple(torch.randn(s, generator=rng) for s in shapes)


def small(name: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A program with its arguments, at small extents."""
    torch.manual_seed(0)
    if name == "block":
        return Block().eval(), (*tensors((2, 6, 16)), torch.zeros(2, 1, 1, 6))
    if name == "layernorm":
        return nn.LayerNorm(12), tensors((5, 12))
    if name == "gelu":
        return lambda x, w: F.gelu(x * w + 1.0), tensors((6, 8), (8,))
    return {"attention": attention, "causal": causal}[name], tensors(*[(1, 2, 7, 4)] * 3)


def saturated(name: str, **options: Any) -> EGraph:
    """The e-graph of a small program."""
    from luminal_lab.egraph.saturate import saturate

    fn, args = small(name)
    with torch.no_grad():
        return saturate(ll.capture(fn, args), **options)
