"""How saturation scales: Llama layers, with their repeats found and with the program whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

from luminal_lab.api import capture, saturate
from luminal_lab.egraph.egraph import EGraph
from luminal_lab.hlir.graph import Hlir

LAYERS = (1, 12, 32)


class _Norm(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


class _Layer(nn.Module):
    """As transformers writes it: rotary positions, grouped keys, a causal mask, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.input_layernorm, self.post_attention_layernorm = _Norm(width), _Norm(width)
        keys = groups * self.size
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        b, s, e = x.shape
        y = self.input_layernorm(x)
        q, k, v = (
            f(y).view(b, s, -1, self.size).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (t * cos + _rotated(t) * sin for t in (q, k))
        k, v = (_repeated(t, self.heads // self.groups) for t in (k, v))
        scores = q @ k.transpose(2, 3) * self.size**-0.5
        hidden = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        y = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype) @ v
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, s, e))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


def _rotated(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), -1)


def _repeated(x, n: int):
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)


class Llama(nn.Module):
    """The decoder of SmolLM-135M, without its embedding and its vocabulary.

    Arguments:
        layers: How many.
        width, heads, groups, hidden: Of each layer; `groups` of heads share keys and values.
    """

    def __init__(
        self, layers: int, width: int = 576, heads: int = 9, groups: int = 3, hidden: int = 1536
    ):
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.size = _Norm(width), width // heads

    def forward(self, x):
        """`(batch, sequence, width)`."""
        inverse = 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * inverse[None]
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


def llama(layers: int, sequence: int = 128, **extents: int) -> Hlir:
    """The program of a `Llama` (its weights are memory that nothing has written to)."""
    with torch.device("meta"):
        model = Llama(layers, **extents)
    model = model.to_empty(device="cpu").eval()
    with torch.no_grad():
        return capture(model, (torch.zeros(1, sequence, extents.get("width", 576)),))


@dataclass(frozen=True)
class Row:
    """One saturation.

    Arguments:
        layers: Of the program.
        regions: How many it was split into.
        wall: Milliseconds that `saturate` took, with the start of its process.
        inside: Milliseconds of processor time in the child: loading, iterations, handing over.
        start: The same for starting it and loading the rules.
        parent: The same in this process: regions, encoding, reading out.
        nodes: E-nodes at the end, of all regions.
        peak: Megabytes that the child held.
        stopped: How it ended.
    """

    layers: int
    regions: int
    wall: float
    inside: float
    start: float
    parent: float
    nodes: int
    peak: float
    stopped: str


def measure(hlir: Hlir, layers: int, regions: bool, repeats: int = 5) -> Row:
    """Saturate a program some times: medians."""
    rows = []
    for _ in range(repeats):
        begin = time.process_time()
        rows.append(_row(saturate(hlir, regions=regions), layers, begin))
    middle = {
        f: median(getattr(r, f) for r in rows) for f in ("wall", "inside", "start", "parent")
    }
    return Row(**{**asdict(rows[-1]), **middle})


def _row(egraph: EGraph, layers: int, begin: float) -> Row:
    seconds = egraph.seconds

    def spent(*stages: str) -> float:
        return 1e3 * sum(seconds[f"child {s}"] for s in stages)

    return Row(
        layers,
        len(egraph.parts),
        1e3 * seconds["total"],
        spent("load", "iterations", "hand over"),
        spent("start", "rules"),
        1e3 * (time.process_time() - begin),
        egraph.size,
        egraph.peak / 1e6,
        "; ".join(dict.fromkeys(p.report.stopped for p in egraph.parts)),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    names = [f.name for f in fields(Row)]
    heads = [f"{n} ms" if n in ("wall", "inside", "start", "parent") else n for n in names]
    heads[names.index("peak")] = "peak MB"
    lines = [heads]
    for row in rows:
        values = [getattr(row, n) for n in names]
        lines.append([f"{v:,.0f}" if isinstance(v, int | float) else v for v in values])
    wide = [max(len(line[k]) for line in lines) for k in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(line[:-1], wide)) + f"  {line[-1]}"
        for line in lines
    )


def rule_table(hlir: Hlir, count: int = 12) -> str:
    """Which rules cost most: seconds, matches and new e-nodes of one saturation."""
    found = saturate(hlir).table().sort_values("seconds", ascending=False, kind="stable")
    columns = ["rule", "seconds", "matches", "new e-nodes"]
    return found[columns].head(count).to_string(index=False)


def main(layers: Sequence[int] = LAYERS, repeats: int = 5) -> list[Row]:
    """Measure, and print the tables."""
    rows = []
    programs = {n: llama(n) for n in layers}
    for regions in (True, False):
        for n, program in programs.items():
            rows.append(measure(program, n, regions, repeats))
    print(table(rows))
    print()
    print(rule_table(programs[min(programs)]))
    return rows
