"""One model of the superoptimization table, in a process of its own.

`python -m luminal_lab.bench.one_model NAME FILE [options]` writes what it knows so far into a
JSON file after every stage, so that whoever started it can end it at any moment, and knows how
far it came.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.bench.runner import in_float64
from luminal_lab.bench.timing import compare, warm_allocator

if TYPE_CHECKING:
    from luminal_lab.egraph import EGraph
    from luminal_lab.search import Result

OPTIONAL = ("stacking", "winograd")  # opt-in themes of laws that take part
ITERATIONS = 7  # of a saturation: later ones only reorder what there is
PLAIN = ("fusion", "gemm", "layout")  # themes that say where a value is, not how it is computed
ROWS = ("fusion", "gemm")  # of these, those that leave all tensors row-major


class OutOfTime(Exception):
    """A stage took longer than it was given."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End a stage by an exception after some seconds (main thread, POSIX)."""

    def end(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Record:
    """What is known so far: a dict that is written to a file whenever it grows."""

    def __init__(self, file: Path):
        self.file, self.data, self.start = file, dict[str, Any](), time.monotonic()

    def stage(self, name: str) -> None:
        """A stage begins."""
        self.add(stage=name)

    def add(self, **found: Any) -> None:
        """Something more is known."""
        self.data |= found | {"total_s": time.monotonic() - self.start}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.data))
        part.replace(self.file)


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """The largest resident size so far in MiB."""
    return resource.getrusage(who).ru_maxrss / 1024


def laws(themes: tuple[str, ...] | None) -> dict[str, Any]:
    """Arguments of `saturate` for all laws (None), or for some themes alone."""
    import luminal_lab as ll

    if themes is not None:
        return {"limits": ll.Limits(themes=themes)}
    return {"rules": list(OPTIONAL), "limits": ll.Limits(iterations=ITERATIONS)}


def warm() -> None:
    """Import everything: that is not part of a search."""
    import torch

    import luminal_lab as ll

    example = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    hlir = ll.capture(example, (torch.ones(4, 8),))
    ll.search(ll.saturate(hlir, **laws(None)), ll.Budget("none"))


def run(name: str, options: argparse.Namespace, record: Record) -> None:
    """Search, build, time and check one model; every figure goes into the record."""
    import torch

    import luminal_lab as ll
    from luminal_lab.bench.tensat import model

    warm_allocator()
    clock = time.perf_counter
    record.stage("import")
    warm()
    record.stage("make")
    module, args = model(name, options.seed)
    with torch.no_grad():
        record.stage("capture")
        start = clock()
        hlir = ll.capture(module, args)
        record.add(capture_s=clock() - start)
        fns: dict[str, Callable[..., Any]] = {}
        for label, themes in (("luminal", None), ("plain", PLAIN), ("rows", ROWS)):
            record.stage(f"saturate {label}")
            begin = clock()
            egraph = ll.saturate(hlir, **laws(themes))
            saturated = clock() - begin
            record.stage(f"search {label}")
            begin, busy = clock(), time.process_time()
            found = ll.search(egraph, ll.Budget("none"), seed=options.seed)
            times = {"saturate_s": saturated, "search_s": clock() - begin}
            times["search_cpu_s"] = time.process_time() - busy
            record.add(**{label: times | facts(egraph, found)})
            if options.effort != "none":
                budget = ll.Budget(options.effort, seconds=options.search)
                found = ll.search(egraph, budget, seed=options.seed)
            record.stage(f"build {label}")
            start = clock()
            fns[label] = ll.build(found.best)
            record.data[label] |= {"build_s": clock() - start, "peak_mib": peak()}
            record.add(children_mib=peak(resource.RUSAGE_CHILDREN))
        record.stage("inductor")
        start = clock()
        contestants = {"eager": module} | _compiled(module, args, options.compile)
        record.add(inductor_s=clock() - start)
        fns = contestants | dict(reversed(fns.items()))  # ours comes last
    record.stage("time")
    made = compare(
        fns,
        args,
        reference=lambda: in_float64(module, args),
        rounds=options.rounds,
        seconds=options.seconds,
        seed=options.seed,
        name=name,
    )
    with torch.no_grad():
        scale = max(float(module(*args).abs().max()), 1.0)
    record.add(
        seconds={c.name: c.seconds for c in made.contestants},
        error={c.name: (c.error or 0.0) / scale for c in made.contestants},
        stage="done",
    )


def facts(egraph: EGraph, found: Result) -> dict[str, Any]:
    """What a saturation and a search without measuring came to."""
    return {
        "e_nodes": sum(p.size for p in egraph.parts),
        "regions": len(egraph.parts),
        "considered": found.considered,
        "kernels": len(found.best.kernels),
        "calls": sum(not c.at_build for c in found.best.calls),
    }


def _compiled(module: Any, args: Sequence[Any], seconds: float) -> dict[str, Any]:
    """`torch.compile`, unless it takes too long."""
    import torch

    torch._dynamo.reset()
    made = torch.compile(module, dynamic=False)
    try:
        with at_most(seconds):
            made(*args)
    except OutOfTime:
        return {}
    return {"inductor": made}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that the command and its children share."""
    add = parser.add_argument
    add(
        "--effort",
        default="none",
        choices=["none", "quick", "full"],
        help="of the timed search",
    )
    add("--search", type=float, default=20.0, help="seconds of each search that measures")
    add("--compile", type=float, default=150.0, help="seconds that torch.compile may take")
    add("--rounds", type=int, default=200, help="samples of each contestant at most")
    add("--seconds", type=float, default=10.0, help="of timing per model")
    add("--seed", type=int, default=0)
    add("--threads", type=int, help="threads for everybody (default: PyTorch's)")


def main() -> int:
    """Run one model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    add_options(parser)
    options = parser.parse_args()
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    run(options.name, options, Record(options.file))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
