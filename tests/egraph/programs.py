"""Small programs that the e-graph tests share, and random candidates of them."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from luminal_lab.capture.export import capture
from luminal_lab.egraph.audit import gemm, scattered, store
from luminal_lab.egraph.egraph import EGraph, ENode, Part
from luminal_lab.egraph.evaluate import align, evaluate, hold
from luminal_lab.egraph.library import reference
from luminal_lab.egraph.values import Value
from luminal_lab.hlir import apply
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.interpreter import run

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Attention(nn.Module):
    def __init__(self, causal: bool = False, window: int | None = None):
        super().__init__()
        self.causal, self.window = causal, window

    def forward(self, q, k, v, mask=None):
        s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        if mask is not None:
            s = s + mask
        i = torch.arange(s.shape[-2])[:, None]
        j = torch.arange(s.shape[-1])[None, :]
        if self.causal:
            s = s.masked_fill(j > i, float("-inf"))
        if self.window is not None:
            s = torch.where(i - j < self.window, s, float("-inf"))
        return torch.softmax(s, -1) @ v


class RMSNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions and a causal mask, SwiGLU."""

    def __init__(self, dim: int, heads: int, kv: int, hidden: int):
        super().__init__()
        self.heads, self.kv, self.size = heads, kv, dim // heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv * self.size, bias=False)
        self.v = nn.Linear(dim, kv * self.size, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        inverse = 10000 ** (-torch.arange(0, self.size, 2) / self.size)
        angle = torch.arange(32)[:, None] * inverse[None].repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rope(self, x):
        a, b = x.chunk(2, -1)
        n = x.shape[-2]
        return x * self.cos[:n] + torch.cat([-b, a], -1) * self.sin[:n]

    def forward(self, x):
        b, s, dim = x.shape
        y = self.norm1(x)
        q = self.rope(self.q(y).view(b, s, self.heads, self.size).transpose(1, 2))
        k = self.rope(self.k(y).view(b, s, self.kv, self.size).transpose(1, 2))
        v = self.v(y).view(b, s, self.kv, self.size).transpose(1, 2)
        k, v = (
            t[:, :, None]
            .expand(b, self.kv, self.heads // self.kv, s, self.size)
            .reshape(b, self.heads, s, self.size)
            for t in (k, v)
        )
        o = Attention(causal=True)(q, k, v).transpose(1, 2).reshape(b, s, dim)
        x = x + self.o(o)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class BertLayer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.a, self.b = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, mask):
        b, s, dim = x.shape
        q, k, v = (
            f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        a = Attention()(q, k, v, mask).transpose(1, 2).reshape(b, s, dim)
        x = self.norm1(x + self.o(a))
        return self.norm2(x + self.b(F.gelu(self.a(x))))


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.layer = nn.ModuleList(layers)

    def forward(self, x, *args):
        for layer in self.layer:
            x = layer(x, *args)
        return x


class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.b = nn.Conv2d(8, 4, 3, stride=2, padding=1)

    def forward(self, x):
        return self.b(F.silu(self.norm(self.a(x))))


class NormLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = RMSNorm(8), nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


class Embed(nn.Module):
    """Gathers, integer arithmetic, and a scatter."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)

    def forward(self, ids, index):
        x = self.norm(self.words(ids) * 2.0)
        picked = x.gather(1, index[:, :, None].expand(-1, -1, 8))
        return (
            x.scatter_add(1, index[:, :, None].expand(-1, -1, 8), picked)
            + (ids % 3)[:, :, None]
        )


class Pieces(nn.Module):
    """Concatenations of unequal parts, flips, padding, repeats, outputs that are broadcasts."""

    def forward(self, x, y):
        z = torch.cat([x[:, 1:], y * 2, x[:, :1]], 1)
        w = F.pad(z.flip(1), (1, 2)).reshape(z.shape[0], -1)
        return w.exp2().cumsum(1), x.mean().expand(3, 2), (z > 0).any(1), z.t().reshape(-1)


class LogSumExp(nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, -1), torch.log_softmax(x * 2, -1)


class SplitKeys(nn.Module):
    """Keys over two axes, with windows that leave whole blocks of them masked."""

    def forward(self, q, k, v):
        k, v = k * 2, v + 1  # (b, h, rows, columns, d)
        return Attention(causal=True, window=3)(q, k.flatten(2, 3), v.flatten(2, 3))


class KeyCache(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x, old_k, old_v):
        b, s, dim = x.shape
        qkv = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        past = old_k.shape[2]
        seen = torch.arange(past + s)[None] <= torch.arange(s)[:, None] + past
        a = (q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf"))
        return (torch.softmax(a, -1) @ v).transpose(1, 2).reshape(b, s, dim), k, v


class PatchTokens(nn.Module):
    """Patches, a class token that makes an axis of unequal parts, one read of it."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(x)
        return (torch.softmax(x @ x.transpose(-1, -2), -1) @ x)[:, 0]


class Integers(nn.Module):
    def forward(self, x, y):
        m = ((x % 3 == 0) & ~(y > 2)) | (x < y)
        halves = (x.float() * 0.5).to(torch.int32).max(1).values
        return torch.where(m, x * 2 + y, x // 2), m.sum(1), x.to(torch.uint8) + 200, halves


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(4, 6, 3, dilation=2, groups=2, padding=2)
        self.b = nn.ConvTranspose1d(6, 3, 4, 2, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))), x.unfold(2, 3, 2).sum(-1)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.a(x))), 3, 2, 1)
        return F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 5), F.pixel_shuffle(x, 2)


def _qkv(
    b: int, h: int, s: int, d: int, dtype: Any = torch.float32
) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(b, h, s, d, dtype=dtype) for _ in range(3))


def _padding_mask() -> torch.Tensor:
    mask = torch.zeros(2, 1, 1, 6)
    mask[1, ..., 4:] = torch.finfo(torch.float32).min
    return mask


PROGRAMS: Mapping[str, Callable[[], Made]] = {
    "attention": lambda: (Attention(), _qkv(1, 2, 6, 4)),
    "causal": lambda: (Attention(causal=True), _qkv(1, 2, 6, 4)),
    "window": lambda: (Attention(causal=True, window=3), _qkv(1, 2, 7, 4)),
    "masked": lambda: (Attention(), (*_qkv(2, 2, 6, 4), _padding_mask())),
    "bf16": lambda: (Attention(causal=True), _qkv(1, 2, 6, 4, torch.bfloat16)),
    "llama": lambda: (LlamaBlock(16, 4, 2, 24), (torch.randn(2, 6, 16),)),
    "bert": lambda: (BertLayer(16, 4, 32), (torch.randn(2, 5, 16), torch.zeros(2, 1, 1, 5))),
    "layernorm": lambda: (nn.LayerNorm(8), (torch.randn(5, 8),)),
    "rmsnorm-linear": lambda: (NormLinear(), (torch.randn(5, 8),)),
    "softmax": lambda: (nn.Softmax(-1), (torch.randn(5, 8),)),
    "split-keys": lambda: (
        SplitKeys(),
        (torch.randn(1, 2, 8, 4), torch.randn(1, 2, 4, 2, 4), torch.randn(1, 2, 4, 2, 4)),
    ),
    "key-cache": lambda: (KeyCache(8, 2), (torch.randn(1, 2, 8), *_qkv(1, 2, 4, 4)[:2])),
    "patches": lambda: (PatchTokens(), (torch.randn(2, 3, 12, 12),)),
    "integers": lambda: (
        Integers(),
        (torch.arange(12).view(3, 4), torch.arange(12, 0, -1).view(3, 4)),
    ),
    "windows": lambda: (Windows(), (torch.randn(2, 4, 9),)),
    "images": lambda: (Images(), (torch.randn(1, 3, 18, 18),)),
    "logsumexp": lambda: (LogSumExp(), (torch.randn(5, 8),)),
    "conv": lambda: (ConvNorm(), (torch.randn(2, 4, 6, 6),)),
    "embed": lambda: (
        Embed(),
        (torch.randint(0, 11, (2, 5)), torch.tensor([[0, 4, 4], [1, 0, 2]])),
    ),
    "pieces": lambda: (Pieces(), (torch.randn(2, 5), torch.randn(2, 3))),
}


@cache
def program(name: str) -> tuple[Hlir, tuple[torch.Tensor, ...]]:
    """A captured program of the table, and its inputs."""
    torch.manual_seed(0)
    module, args = PROGRAMS[name]()
    return capture(module.eval(), args), args


def inputs_of(egraph: EGraph, args: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """The tensors of a one-region program, by the region's names."""
    hlir = egraph.hlir
    by_name = dict(hlir.weights)
    for spec in hlir.inputs:
        if spec.position is not None:
            by_name[spec.name] = args[spec.position]
    (instance,) = egraph.program.instances
    part = egraph.parts[0]
    return {s.name: by_name[instance.bind[s.name]] for s in part.hlir.inputs}


def expected_of(egraph: EGraph, args: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """What the outputs of a one-region program should be, by the region's names."""
    outputs = run(egraph.hlir, args, compute="float64")
    by_name = {o.name: x for o, x in zip(egraph.hlir.outputs, outputs, strict=True)}
    (instance,) = egraph.program.instances
    return {name: by_name[instance.bind[name]] for name, _ in egraph.parts[0].outputs}


def random_candidate(part: Part, seed: int) -> Candidate:
    """A random program that the e-graph contains."""
    return Candidate(part, random.Random(seed))


class Candidate:
    """Random placements and choices; a tensor is computed when it is met in program order."""

    def __init__(self, part: Part, rng: random.Random):
        self.part, self.rng = part, rng
        self.steps: list[tuple[int, ENode, tuple[Value, ...]]] = []
        self.done = {c.id for c in part.classes if any(n.op == "input" for n in c.nodes)}
        self.weights = {
            (c.id, k): rng.lognormvariate(0, 2)
            for c in part.classes
            for k in range(len(c.nodes))
        }
        stored = rng.choice((0.0, 0.1, 0.4, 1.0))
        wanted = {c for _, c in part.outputs} | self._needed()
        for c in part.classes:
            if c.sort == "T" and c.id not in self.done:
                if c.id in wanted or rng.random() < stored:
                    self._produce(c.id)

    def _needed(self) -> set[int]:
        """Tensors that cannot be inlined: opaque ones, their operands, and those only read."""
        out = set()
        for c in self.part.classes:
            for n in c.nodes:
                if n.op == "scatter":
                    out |= {c.id, n.children[0]}
                if n.op == "custom":
                    out |= {c.id, *n.children}
            loads = [n for n in c.nodes if n.op == "load"]
            if c.sort == "V" and len(loads) == len(c.nodes):
                out |= {n.children[0] for n in loads}
            out |= {n.children[0] for n in loads if len(n.children) > 1}
        return out

    def _produce(self, c: int) -> None:
        nodes = list(self.part.classes[c].nodes)
        self.rng.shuffle(nodes)
        for node in nodes:
            parts = self.part.classes
            if all(x in self.done for x in node.children if parts[x].sort == "T"):
                wanted = [x for x in node.children if parts[x].sort == "V"]
                values = [self._extract(x) for x in wanted]
                found = tuple(v for v in values if v is not None)
                if len(found) == len(wanted):
                    self.steps.append((c, node, found))
                    self.done.add(c)
                    return
        raise AssertionError(f"tensor {c} cannot be produced")

    def _extract(self, root: int) -> Value | None:
        """The cheapest term of a class under random weights; acyclic by construction."""
        classes = self.part.classes
        cost: dict[int, float] = {}
        value: dict[int, Value] = {}
        users: dict[int, list[tuple[int, int]]] = {}
        waits: dict[tuple[int, int], int] = {}
        heap: list[tuple[float, int, int]] = []
        for c in classes:
            for k, n in enumerate(c.nodes):
                if c.sort != "V" or (n.op == "load" and n.children[0] not in self.done):
                    continue
                below = n.children[1:] if n.op == "load" else n.children
                waits[c.id, k] = len(set(below))
                for x in set(below):
                    users.setdefault(x, []).append((c.id, k))
                if not below:
                    heapq.heappush(heap, (self.weights[c.id, k], c.id, k))
        while heap:
            d, c, k = heapq.heappop(heap)
            if c in cost:
                continue
            cost[c], value[c] = d, self._value(c, classes[c].nodes[k], value)
            if c == root:
                return value[c]
            for p, j in users.get(c, ()):
                waits[p, j] -= 1
                if waits[p, j] == 0 and p not in cost:
                    below = set(classes[p].nodes[j].children) & cost.keys()
                    total = self.weights[p, j] + sum(cost[x] for x in below)
                    heapq.heappush(heap, (total, p, j))
        return None

    def _value(self, c: int, n: ENode, value: Mapping[int, Value]) -> Value:
        dtype = self.part.classes[c].dtype
        if n.op == "load":
            t, *at = n.children
            attrs = (f"t{t}", *n.attrs)
            return Value("load", tuple(value[x] for x in at), attrs, dtype=dtype)
        return Value(n.op, tuple(value[x] for x in n.children), n.attrs, dtype=dtype)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The region's outputs by name, in float64."""
        part = self.part
        memory: dict[int, torch.Tensor] = {}
        for c in part.classes:
            for n in c.nodes:
                if n.op == "input":
                    memory[c.id] = hold(inputs[n.attrs[0]])
        for c, node, values in self.steps:
            shape = part.classes[c].shape
            dtype = part.classes[c].dtype
            args = [memory[x] for x in node.children if x in memory]
            buffers = {f"t{t}": x for t, x in memory.items()}
            if node.op == "scatter":
                mode, points, index = node.attrs
                names = [a for i in points for a in sorted(i.axes)]
                found = evaluate(values, part.extents, buffers)
                value, *at = (align(x, order, sorted(names)) for x, order in found)
                memory[c] = scattered(args[0], value, at, index, names, part.extents, mode)
            elif node.op in ("kernel", "planes"):
                ((out, order),) = evaluate(values, part.extents, buffers)
                axes = sorted(frozenset().union(*(i.axes for i in node.attrs[0])))
                sizes = dict(zip(order, out.shape))
                full = out.reshape([sizes.get(a, 1) for a in axes])
                memory[c] = store(full, node.attrs[0], axes, shape, part.extents)
            elif node.op == "gemm":
                memory[c] = apply.cast(gemm(node.attrs[0], args, shape), dtype, "float64")
            elif node.op == "library":
                memory[c] = apply.cast(reference(node.attrs[0], args, shape), dtype, "float64")
            else:
                raise AssertionError(node.op)
        return {name: memory[c] for name, c in part.outputs}

    @property
    def genome(self) -> tuple:
        """What was chosen."""
        return tuple((c, n.op, repr(v)) for c, n, v in self.steps)


def all_ops(value: Value) -> list[str]:
    """The ops of a value, with repetition."""
    return list(itertools.chain([value.op], *(all_ops(a) for a in value.args)))


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference relative to the larger magnitude; infinite for unlike NaNs."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp(min=1.0)
    error = torch.where(same, 0.0, error)
    return float(torch.where(error.isnan(), math.inf, error).max()) if error.numel() else 0.0
