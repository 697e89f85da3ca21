"""Models of other kinds: recommenders, recurrent, diffusion, graphs; and three that train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.models import convolutional
from tests.models.cases import Case, Program
from tests.models.wake import wake


class DLRM(nn.Module):
    """Bags of embeddings and a dense network, joined by all products of two features."""

    def __init__(self, fields: int = 4, rows: int = 50, size: int = 8):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, size, mode="sum") for _ in range(fields)
        )
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, size), nn.ReLU())
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(nn.Linear(size + pairs, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        found = [table(bags[:, k]) for k, table in enumerate(self.tables)]
        features = torch.stack([x, *found], dim=1)
        products = features @ features.transpose(1, 2)
        return torch.sigmoid(
            self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))
        )


class DeepFM(nn.Module):
    """A factorisation machine beside a deep network."""

    def __init__(self, fields: int = 5, rows: int = 40, size: int = 6):
        super().__init__()
        self.register_buffer("offsets", torch.arange(fields) * rows)
        self.linear = nn.Embedding(fields * rows, 1)
        self.factors = nn.Embedding(fields * rows, size)
        self.deep = nn.Sequential(
            nn.Linear(fields * size, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(16, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.offsets
        v = self.factors(x)
        machine = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(x).sum(1) + machine + self.deep(v.flatten(1)))


class DCN(nn.Module):
    """Cross layers (the second version, of low rank) and a deep network."""

    def __init__(self, size: int = 12, rank: int = 4, layers: int = 3):
        super().__init__()
        self.embed = nn.Embedding(30, 4)
        self.u = nn.ModuleList(nn.Linear(size, rank, bias=False) for _ in range(layers))
        self.v = nn.ModuleList(nn.Linear(rank, size) for _ in range(layers))
        self.deep = nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 8))
        self.out = nn.Linear(size + 8, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        first = torch.cat([dense, self.embed(ids).flatten(1)], 1)
        x = first
        for u, v in zip(self.u, self.v):
            x = first * v(u(x)) + x
        return self.out(torch.cat([x, self.deep(first)], 1)).sigmoid().squeeze(-1)


class Recurrent(nn.Module):
    """A tagger: embedding, two recurrent layers in both directions, a head."""

    def __init__(self, cell: type[nn.Module], steps: int = 8):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.cell = cell(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(ids))[0])


class UNetBlock(nn.Module):
    """One level of a diffusion U-Net: time, residual blocks, attention, down and up."""

    def __init__(self, channels: int = 16, time: int = 32):
        super().__init__()
        c = channels
        self.time = nn.Sequential(nn.Linear(c, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, c, 3, padding=1)
        self.down = Residual(c, c, time)
        self.shrink = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.middle = Residual(2 * c, 2 * c, time)
        self.norm = nn.GroupNorm(8, 2 * c)
        self.qkv = nn.Conv2d(2 * c, 6 * c, 1)
        self.project = nn.Conv2d(2 * c, 2 * c, 1)
        self.grow = nn.Conv2d(2 * c, c, 3, padding=1)
        self.up = Residual(2 * c, c, time)
        self.last = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        half = self.time[0].in_features // 2
        rate = torch.exp(-9.2 * torch.arange(half, dtype=x.dtype) / half)
        angle = step.to(x.dtype)[:, None] * rate
        t = self.time(torch.cat([angle.cos(), angle.sin()], -1))
        skip = self.down(self.first(x), t)
        h = self.middle(self.shrink(skip), t)
        b, c, hh, ww = h.shape
        q, k, v = self.qkv(self.norm(h)).view(b, 3, 4, c // 4, hh * ww).unbind(1)
        seen = F.scaled_dot_product_attention(*(z.transpose(-1, -2) for z in (q, k, v)))
        h = h + self.project(seen.transpose(-1, -2).reshape(b, c, hh, ww))
        h = self.grow(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.last(self.up(torch.cat([h, skip], 1), t))


class Residual(nn.Module):
    """Two convolutions with the time added between them."""

    def __init__(self, inner: int, outer: int, time: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class GraphNetwork(nn.Module):
    """Attention over edges: softmax by node with `scatter_reduce`, sums with `index_add`."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.update = nn.GRUCell(size, size)
        self.out = nn.Linear(size, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for _ in range(2):
            score = (self.query(x)[target] * self.key(x)[source]).sum(-1)
            most = torch.full((x.shape[0],), -torch.inf, dtype=x.dtype)
            most = most.scatter_reduce(0, target, score, "amax")
            weight = (score - most[target]).exp()
            total = torch.zeros_like(most).scatter_add(0, target, weight)
            weight = weight / total[target]
            message = torch.zeros_like(x).index_add(
                0, target, weight[:, None] * self.value(x)[source]
            )
            x = self.update(message, x)
        return self.out(x)


def mlp() -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 5),
    )  # fmt: skip


def conv_net() -> nn.Module:
    """Convolutions with batch norm, whose statistics move while it trains."""
    return convolutional()


def llama() -> nn.Module:
    """Two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models.language import GROUPED

    return LlamaForCausalLM(LlamaConfig(**GROUPED, use_cache=False))


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def _edges() -> torch.Tensor:
    nodes = torch.arange(9)
    return torch.stack([torch.cat([_ids(9, 21), nodes]), torch.cat([_ids(9, 21), nodes])])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "DLRM": (DLRM, lambda: (torch.randn(6, 6), _ids(50, 6, 4, 3))),
    "DeepFM": (DeepFM, lambda: (_ids(40, 6, 5),)),
    "DCN": (DCN, lambda: (torch.randn(6, 4), _ids(30, 6, 2))),
    "GRU": (lambda: Recurrent(nn.GRU), lambda: (_ids(20, 2, 8),)),
    "LSTM": (lambda: Recurrent(nn.LSTM), lambda: (_ids(20, 2, 8),)),
    "UNetBlock": (UNetBlock, lambda: (torch.randn(2, 4, 16, 16), _ids(1000, 2))),
    "GraphNetwork": (GraphNetwork, lambda: (torch.randn(9, 8), _edges())),
    "mlp": (mlp, lambda: (torch.randn(16, 10),)),
    "conv_net": (conv_net, lambda: (torch.randn(4, 3, 32, 32),)),
    "llama": (llama, lambda: (_ids(64, 2, 8),)),
}
DTYPES = ("float32", "bfloat16")
TRAINED = ("mlp", "conv_net", "llama", "DLRM", "DeepFM", "GRU", "UNetBlock", "GraphNetwork")


def cases() -> Sequence[Case]:
    """Forward in two dtypes, and 50 steps of AdamW in double precision."""
    return [
        *(Case("layers", name, "forward", d) for name in MODELS for d in DTYPES),
        *(Case("layers", name, "train", "float64") for name in TRAINED),
    ]  # fmt: skip


def program(case: Case) -> Program:
    """A model and a batch."""
    torch.manual_seed(0)
    make, inputs = MODELS[case.model]
    dtype = getattr(torch, case.dtype)
    module = make().to(dtype).train(case.mode == "train")
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    args = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs())
    if case.mode != "train":
        wake(module, lambda: module(*args))
    return Program(module, args)
