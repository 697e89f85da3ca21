"""How good the search is, against the whole truth: `python -m luminal_lab.bench search`.

Each graph is small enough that every candidate can be enumerated, with the proof that there is
no other. All kernels of all candidates are measured under all their schedules, into one
database. The optimum is then known: the candidate whose kernels, each under its best schedule,
sum to the least. The searches that are judged draw on the same measurements, so what is judged
is the search and not the noise of the machine: which candidates it lists, which kernels and
schedules it asks for, and what it chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from luminal_lab.errors import LuminalError
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.budget import EFFORTS, Budget
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.clock import Clock
from luminal_lab.search.database import Database
from luminal_lab.search.measuring import Measurer
from luminal_lab.search.progress import Progress
from luminal_lab.search.race import Explored, Race
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.run import search
from luminal_lab.search.strategies import exhaustive

MOST = 5000  # individuals of a graph at most
NEAR = 1.05  # within 5 % of the optimum
SEEDS = 5
RANKED = 0.85  # rank correlation that the cost model is to reach

Graph = tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Quality:
    """What came out for one graph.

    Arguments:
        graph: Its name.
        candidates: How many there are at all.
        kernels: How many distinct ones they are made of.
        measured: Kernels times schedules.
        optimum: Seconds of the best candidate under its best schedules.
        found: Seconds of what `quick` chose, for each seed.
        timings: Measurements that `quick` asked for.
        pairs: Predicted and measured seconds of each kernel.
        rejected: What became of the genomes of the first search, by reason.
        adds_up: Whether its table of outcomes sums to the genomes that it considered.
        seconds: What measuring everything took.
    """

    graph: str
    candidates: int
    kernels: int
    measured: int
    optimum: float
    found: tuple[float, ...]
    timings: int
    pairs: tuple[tuple[float, float], ...]
    rejected: dict[str, int]
    adds_up: bool
    seconds: float

    @property
    def ratio(self) -> float:
        """How many times the optimum the first seed's choice takes."""
        return self.found[0] / self.optimum

    @property
    def spread(self) -> float:
        """The slowest seed's choice over the fastest one's."""
        return max(self.found) / min(self.found)

    def text(self) -> str:
        """One line."""
        return (
            f"{self.graph:<14} {self.candidates:>5} candidates {self.kernels:>4} kernels"
            f" {self.measured:>4} measured  optimum {self.optimum * 1e6:>8.1f} us"
            f"  quick {self.ratio:>6.3f}x ({self.timings} measurements)"
            f"  seeds {self.spread:>6.3f}x  rank {spearman(self.pairs):>5.2f}"
            f"  {self.seconds:>5.1f} s"
        )


def graphs() -> tuple[Graph, ...]:
    """Ten graphs: a name, a function, and the shapes of its arguments."""
    import torch
    from torch.nn import functional as F

    def rms_norm(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    return (
        ("softmax", lambda x: torch.softmax(x, -1), ((512, 512),)),
        ("rms norm", rms_norm, ((512, 512), (512,))),
        ("linear, gelu", lambda x, w, b: F.gelu(x @ w + b), ((128, 256), (256, 128), (128,))),
        ("variance", lambda x: x.var(-1, unbiased=False), ((512, 512),)),
        ("two products", lambda x, a, b: (x @ a) @ b, ((256, 128), (128, 64), (64, 256))),
        ("centre columns", lambda x: x - x.mean(0), ((512, 512),)),
        ("normalise", lambda x: x / x.norm(dim=-1, keepdim=True), ((512, 512),)),
        ("residual", lambda x, y, b: (x + y * b).relu() + x, ((512, 512), (512, 512), (512,))),
        ("gate", lambda x, w: torch.sigmoid(x @ w) * x, ((256, 128), (128, 128))),
        ("energy", lambda x, w: (x @ w).square().sum(-1), ((256, 128), (128, 128))),
    )  # fmt: skip


def judge(graph: Graph, target: Any, database: Database) -> Quality:
    """Enumerate and measure everything, then search.

    Arguments:
        graph: A row of `graphs()`.
        target: Where to measure.
        database: What is known; everything that is measured is kept there.

    Raises:
        LuminalError: when the graph has more candidates than can be enumerated.
    """
    import random

    import torch

    import luminal_lab as ll

    name, fn, shapes = graph
    args = tuple(torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in shapes)
    egraph = ll.saturate(ll.capture(fn, args))
    assembler = Assembler(egraph, target.machine())
    regions = []
    for kernels in assembler.regions:
        region = RegionSearch(kernels)
        for n, _ in enumerate(exhaustive(region, random.Random(0))):
            if n > MOST:
                break
        if not region.complete:
            raise LuminalError(f"{name} has more than {MOST} candidates")
        regions.append(Explored(region, region.ranked()))
    start = time.monotonic()
    measurer = Measurer(egraph, assembler, target, database)
    everything = replace(EFFORTS["full"], schedules=50, timings=10**9)
    race = Race(regions, measurer, everything, Clock(), Progress(False))
    for k, r in enumerate(regions):
        measurer.add(k, r.listed)
    measurer.run(None, Progress(False))
    texts = [t for t in measurer.known if not _library(measurer, t)]
    while measurer.tune(texts, everything, 50, None, Progress(False)):
        pass
    race.judge()
    seconds = time.monotonic() - start
    optimum = 0.0
    for k, (r, count) in enumerate(zip(regions, assembler.instances_of)):
        optimum += count * min(measurer.seconds(k, i)[0] for i in r.left)  # type: ignore[index]
    results = [
        search(egraph, Budget("quick"), seed, target, database=database)
        for seed in range(SEEDS)
    ]
    records = measurer.records
    pairs = [
        (k.step.seconds, m)
        for t, k in measurer.known.items()
        if (m := records[t].measurement.median) is not None and not k.step.constant  # type: ignore[union-attr]
    ]
    outcomes = results[0].rejections().table()["count"].to_list()
    return Quality(
        name,
        sum(len(r.listed) for r in regions),
        len(measurer.known),
        sum(len(k.tried) for k in measurer.known.values()),
        optimum,
        tuple(_measured(r) for r in results),
        sum(k.tried for k in results[0].records.values()),
        tuple(pairs),
        dict(results[0].rejected),
        sum(outcomes) == results[0].considered,
        seconds,
    )


def _library(measurer: Measurer, text: str) -> bool:
    return isinstance(measurer.known[text].step.kernel, LibraryKernel)


def _measured(result: Any) -> float:
    """The sum of the measured times of what a search chose, one run of the program."""
    chosen = [r for r in result.rows if r.chosen]
    return sum(r.instances * r.measured for r in chosen)


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """The rank correlation of pairs; ties share their mean rank.

    >>> spearman([(1, 10), (2, 20), (3, 30)]), spearman([(1, 3), (2, 2), (3, 1)])
    (1.0, -1.0)
    """
    a, b = _ranks([p for p, _ in pairs]), _ranks([m for _, m in pairs])
    mean = (len(pairs) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    below = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return round(top / below**0.5, 12) if below else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda k: values[k])
    out = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for k in order[start : end + 1]:
            out[k] = (start + end) / 2
        start = end + 1
    return out


def run(names: Sequence[str] = (), database: str | None = None) -> dict[str, Any]:
    """Judge the graphs and print a line each, then a line per bar.

    Arguments:
        names: Parts of the names of graphs; all when empty.
        database: A file to keep measurements in; a fresh one in memory when None.

    Returns:
        The bars by name, with `ok`, and the qualities.
    """
    from luminal_lab.runtime.cpu import CpuTarget

    target = CpuTarget()
    picked = [g for g in graphs() if not names or any(n in g[0] for n in names)]
    done: list[Quality] = []
    with target, Database(database or ":memory:") as known:
        for graph in picked:
            done.append(judge(graph, target, known))
            print(done[-1].text(), flush=True)
    near = sum(q.ratio <= NEAR for q in done)
    pairs = [p for q in done for p in q.pairs]
    worst = max(q.spread for q in done)
    bars = {
        "quick within 5 % of the optimum": (near, near >= 0.9 * len(done), f"of {len(done)}"),
        "rank correlation of all kernels": (
            spearman(pairs),
            spearman(pairs) >= RANKED,
            f"over {len(pairs)} kernels; at least {RANKED}",
        ),
        f"slowest of {SEEDS} seeds over the fastest": (worst, worst <= NEAR, f"at most {NEAR}"),
        "tables that sum to their total": (
            sum(q.adds_up for q in done),
            all(q.adds_up for q in done),
            f"of {len(done)}",
        ),
    }
    for name, (value, ok, of) in bars.items():
        number = f"{value}" if isinstance(value, int) else f"{value:.3f}"
        print(f"{'reached' if ok else 'MISSED':<8}{name}: {number} ({of})")
    return {"ok": all(ok for _, ok, _ in bars.values()), "bars": bars, "graphs": done}
