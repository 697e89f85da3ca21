"""`python -m luminal_lab.bench tensat [model ...]`: seven models, with and without algebra.

For each model of `luminal_lab.bench.tensat`: how long the search takes (saturation and search
without any measurement), and how fast the candidate that it finds is, against the same pipeline
with the rules of fusion and of library products alone, against `torch.compile`, and against
eager PyTorch. All run in one process, in turns (`timing.compare`), and are checked against
float64.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luminal_lab.bench.runner import in_float64
from luminal_lab.bench.timing import Comparison, compare, warm_allocator

PLAIN = ("fusion", "gemm")  # the themes of the pipeline without algebra
BAR = 5.0  # seconds for saturation and search


@dataclass(frozen=True)
class Entry:
    """One model's row.

    Arguments:
        name: The model.
        capture, saturate, search: Seconds; the search measures nothing.
        nodes: E-nodes of all regions.
        considered: Candidates of regions that the search looked at.
        kernels, calls: Of the candidate that it found.
        comparison: Timings of eager, inductor, plain (no algebra) and luminal.
        scale: Largest absolute value of the float64 result; errors are relative to it.
    """

    name: str
    capture: float
    saturate: float
    search: float
    nodes: int
    considered: int
    kernels: int
    calls: int
    comparison: Comparison
    scale: float

    @property
    def error(self) -> float:
        """Relative error of our result."""
        return (self.comparison["luminal"].error or 0.0) / self.scale

    @property
    def reference_error(self) -> float:
        """Relative error of eager PyTorch."""
        return (self.comparison["eager"].error or 0.0) / self.scale

    @property
    def right(self) -> bool:
        """Whether our error is small: 1e-4, or four times what eager's own is."""
        return self.error <= max(1e-4, 4 * self.reference_error)

    @property
    def passed(self) -> bool:
        """Whether the row reaches every bar."""
        c = self.comparison
        fast = all(c.ratio(n) > 1.0 for n in ("plain", "inductor", "eager") if n in c.names)
        return fast and self.right and self.saturate + self.search < BAR


def run_model(name: str, effort: str, rounds: int, seconds: float, seed: int) -> Entry:
    """Search, build and time one model.

    Arguments:
        name: A key of `luminal_lab.bench.tensat.MODELS`.
        effort: Of the search whose result is timed; the search that is reported is `none`.
        rounds: Samples of each contestant.
        seconds: No new round begins after so many.
        seed: Of weights, inputs, search, and order.
    """
    import torch

    import luminal_lab as ll
    from luminal_lab.bench.tensat import model

    module, args = model(name, seed)
    clock = time.perf_counter
    with torch.no_grad():
        t0 = clock()
        hlir = ll.capture(module, args)
        t1 = clock()
        egraph = ll.saturate(hlir)
        t2 = clock()
        found = ll.search(egraph, ll.Budget("none"), seed=seed)
        t3 = clock()
        if effort != "none":
            found = ll.search(egraph, ll.Budget(effort), seed=seed)  # type: ignore[arg-type]
        plain = ll.saturate(hlir, limits=ll.Limits(themes=PLAIN))
        base = ll.search(plain, ll.Budget(effort), seed=seed)  # type: ignore[arg-type]
        torch._dynamo.reset()
        fns: dict[str, Callable[..., Any]] = {
            "eager": module,
            "inductor": torch.compile(module, dynamic=False),
            "plain": ll.build(base.best),
            "luminal": ll.build(found.best),
        }
        fns["inductor"](*args)
        wide = in_float64(module, args)
    made = compare(
        fns, args, reference=lambda: wide, rounds=rounds, seconds=seconds, seed=seed, name=name
    )
    return Entry(
        name,
        t1 - t0,
        t2 - t1,
        t3 - t2,
        sum(p.size for p in egraph.parts),
        found.considered,
        len(found.best.kernels),
        sum(not c.at_build for c in found.best.calls),
        made,
        max(float(wide.abs().max()), 1.0),
    )


def table(entries: Sequence[Entry]) -> str:
    """The rows as a Markdown table, with the geometric means."""
    head = (
        "| model | saturate + search s | e-nodes | calls | luminal ms | no algebra ms "
        "| inductor ms | eager ms | over no algebra | over inductor | over eager "
        "| error (eager's) | bars |\n|" + "---|" * 13
    )
    lines = [head]
    for e in entries:
        c = e.comparison
        cells = [
            e.name,
            f"{e.saturate:.2f} + {e.search:.2f}",
            f"{e.nodes:,}",
            str(e.calls),
            *(_time(c, n) for n in ("luminal", "plain", "inductor", "eager")),
            *(f"{c.ratio(n):.2f}x" for n in ("plain", "inductor", "eager")),
            f"{e.error:.1e} ({e.reference_error:.1e})",
            "reached" if e.passed else "MISSED",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if entries:
        means = [
            math.exp(sum(math.log(e.comparison.ratio(n)) for e in entries) / len(entries))
            for n in ("plain", "inductor", "eager")
        ]
        cells = ["geometric mean", *[""] * 7, *(f"{m:.2f}x" for m in means), "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _time(c: Comparison, name: str) -> str:
    return f"{c[name].median * 1e3:.2f} ±{c[name].iqr * 1e3:.2f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="luminal-lab bench tensat",
        description="Models of the TENSAT paper against no algebra, torch.compile and eager.",
    )
    made.add_argument("what", nargs="*", help="parts of model names; all")
    made.add_argument("--effort", default="none", choices=["none", "quick", "full"])
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--seconds", type=float, default=20.0, help="of timing per model")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, metavar="FILE", help="also write every sample here")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; 1 when a bar is missed.

    Arguments:
        arguments: The command line, after `tensat`.
    """
    from luminal_lab.bench.tensat import names

    options = parser().parse_args(arguments)
    warm_allocator()
    entries: list[Entry] = []
    for name in names(options.what):
        entries.append(
            run_model(name, options.effort, options.rounds, options.seconds, options.seed)
        )
        print(table(entries[-1:]).splitlines()[2], flush=True)
    print("\n" + table(entries), flush=True)
    if options.json:
        options.json.write_text(json.dumps([_row(e) for e in entries], indent=1))
    return 0 if all(e.passed for e in entries) else 1


def _row(e: Entry) -> dict[str, Any]:
    return {
        "model": e.name,
        "capture_s": e.capture,
        "saturate_s": e.saturate,
        "search_s": e.search,
        "e_nodes": e.nodes,
        "considered": e.considered,
        "kernels": e.kernels,
        "calls": e.calls,
        "error": e.error,
        "seconds": {c.name: c.seconds for c in e.comparison.contestants},
    }
