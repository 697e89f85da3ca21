"""Small models, written as their authors write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def causal_by_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v


def causal_by_triu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    scores = scores + torch.full(q.shape[-2:-1] * 2, float("-inf"), dtype=q.dtype).triu(1)
    return torch.softmax(scores, dim=-1) @ v


def causal_by_arange(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    i = torch.arange(q.shape[-2])
    seen = i[None, :] <= i[:, None]
    scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1) @ v


def sliding_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    i = torch.arange(q.shape[-2])
    gap = i[:, None] - i[None, :]
    scores = scores.masked_fill((gap < 0) | (gap >= 3), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


class RMSNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions and a causal mask, then SwiGLU."""

    def __init__(self, dim: int = 32, heads: int = 4, groups: int = 2, hidden: int = 48):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, groups * self.size, bias=False)
        self.v = nn.Linear(dim, groups * self.size, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        freq = 10000.0 ** (-torch.arange(0, self.size, 2).float() / self.size)
        angle = torch.outer(torch.arange(s).float(), freq)
        angle = torch.cat([angle, angle], dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        h = self.norm1(x)
        q = self.q(h).view(b, s, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(b, s, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(b, s, self.groups, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.heads // self.groups, dim=1)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.size)
        mask = torch.full((s, s), float("-inf"), dtype=x.dtype).triu(1)
        out = torch.softmax(scores + mask, dim=-1) @ v
        x = x + self.o(out.transpose(1, 2).reshape(b, s, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 16, 3, padding=1, groups=4),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
