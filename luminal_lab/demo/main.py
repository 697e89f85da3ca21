"""The main job: compile all-MiniLM-L6-v2, check it against eager PyTorch, time it, report.

Run it with `make demo`, `python -m luminal_lab demo` or `luminal-lab demo`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luminal_lab.demo.report import Check, Neighbour, Report, Stage, Timing, write_report

if TYPE_CHECKING:
    import torch

    from luminal_lab.search import Budget

TOLERANCE = 1e-4  # against eager float32, on unit vectors
ROUNDS = 15
SINGLE = 1  # the sentence that is encoded alone: 15 tokens, padded to 16


@dataclass
class _Run:
    """Stages as they happen: printed one by one, kept for the report."""

    stages: list[Stage] = field(default_factory=list)

    def stage(self, name: str, came_in: str, work: Callable[[], Any], describe) -> Any:
        """Do one stage, print its line, and return what it made."""
        start = time.perf_counter()
        made = work()
        seconds = time.perf_counter() - start
        came_out = describe(made)
        self.stages.append(Stage(name, came_in, came_out, seconds))
        print(f"{name:<26}{seconds:8.2f} s   {came_in} → {came_out}", flush=True)
        return made


def run(report: str = "demo-report.html", effort: str = "quick", seconds: float = 60.0) -> int:
    """Compile, check, time and report.

    Arguments:
        report: Where the HTML report goes.
        effort: Effort of the two searches.
        seconds: Budget of each search in seconds.

    Returns:
        The exit code: 0, or 1 when a result is wrong.
    """
    import torch

    import luminal_lab as ll
    from luminal_lab.demo.encoder import load_encoder, sentences, tokenize

    log = _Run()
    budget = ll.Budget(effort, seconds=seconds)  # type: ignore[arg-type]
    texts = sentences()
    encoder = log.stage("load weights", "all-MiniLM-L6-v2", load_encoder, _parameters)
    batch = log.stage(
        "tokenize",
        f"{len(texts)} sentences",
        lambda: tokenize(texts),
        lambda made: f"int64 {tuple(made[0].shape)}",
    )
    one = tokenize([texts[SINGLE]])
    stages = _compile(log, encoder, batch, budget, "")
    single = _compile(log, encoder, one, budget, ", 1 sentence")
    exe, exe_one = stages["executable"], single["executable"]

    with torch.no_grad():
        checks, ranking = _check(texts, encoder, batch, one, exe, exe_one, stages["hlir"])
        inductor = torch.compile(encoder)
        log.stage(
            "torch.compile",
            "the same module, both shapes (to compare)",
            lambda: (inductor(*batch), inductor(*one)),
            lambda _: "Inductor's kernels",
        )
        timings = [
            *_time(f"{len(texts)} sentences", encoder, inductor, exe, batch),
            *_time("1 sentence", encoder, inductor, exe_one, one),
        ]
        profile = ll.profile(exe, batch)
    for check in checks:
        mark = "ok   " if check.ok else "WRONG"
        print(f"{mark} {check.name}: {check.found} (wanted {check.wanted})")
    path = write_report(
        report,
        Report(
            title="all-MiniLM-L6-v2",
            intro="A sentence encoder (BERT, 6 layers, 22 M parameters) with its real weights, "
            "compiled by search and compared with PyTorch in the same process.",
            machine=_machine(torch),
            stages=log.stages,
            timings=timings,
            checks=checks,
            ranking=ranking,
            profile=profile,
            command="python -m luminal_lab demo",
            **stages,
        ),
    )
    print(f"report: {path}")
    return 0 if all(check.ok for check in checks) else 1


def _parameters(module: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in module.parameters()) / 1e6:.1f} M parameters"


def _compile(
    log: _Run, encoder: torch.nn.Module, args: tuple[Any, ...], budget: Budget, title: str
) -> dict[str, Any]:
    """All stages for one input shape, by the names that `Report` gives them."""
    import luminal_lab as ll

    shape = "×".join(map(str, args[0].shape))
    hlir = log.stage(
        f"capture{title}",
        f"module on {shape} tokens",
        lambda: ll.capture(encoder, args),
        lambda h: f"{len(h.nodes)} HLIR nodes, {len(h.fallbacks())} fallbacks",
    )
    egraph = log.stage(
        f"saturate{title}",
        f"{len(hlir.nodes)} HLIR nodes",
        lambda: ll.saturate(hlir, progress=True),
        lambda e: f"{e.size} e-nodes in {len(e.parts)} regions",
    )
    result = log.stage(
        f"search{title}",
        f"{egraph.size} e-nodes",
        lambda: ll.search(egraph, budget, seed=0, progress=True),
        lambda r: f"{len(r.best.kernels)} kernels in {len(r.best.calls)} calls",
    )
    exe = log.stage(
        f"build{title}",
        f"{len(result.best.kernels)} kernels",
        lambda: ll.build(result.best, progress=True),
        lambda e: f"one library, {e.stats.arena_bytes / 1e6:.1f} MB of buffers",
    )
    return {"hlir": hlir, "egraph": egraph, "result": result, "executable": exe}


def _check(
    texts: list[str],
    encoder: torch.nn.Module,
    batch: tuple[torch.Tensor, ...],
    one: tuple[torch.Tensor, ...],
    exe: Callable[..., torch.Tensor],
    exe_one: Callable[..., torch.Tensor],
    hlir: Any,
) -> tuple[list[Check], list[Neighbour]]:
    """Outputs and nearest sentences against eager PyTorch."""
    ours, reference = exe(*batch), encoder(*batch)
    ours_one, reference_one = exe_one(*one), encoder(*one)
    again = exe(*batch)
    order, wanted = _ranking(ours), _ranking(reference)
    differing = int((order != wanted).any(1).sum())
    checks = [
        _difference(f"{len(texts)} sentences, max abs difference", ours, reference),
        _difference("1 sentence, max abs difference", ours_one, reference_one),
        Check(
            "ranking of all sentences by similarity",
            f"{differing} of {len(texts)} rankings differ",
            "0 differ",
            differing == 0,
        ),
        Check(
            "second call",
            "identical" if again.equal(ours) else "different",
            "identical",
            again.equal(ours),
        ),
        Check("fallbacks to ATen", str(len(hlir.fallbacks())), "0", len(hlir.fallbacks()) == 0),
    ]
    similarity = ours @ ours.T  # (32, 32)
    ranking = [
        Neighbour(
            texts[i],
            texts[int(order[i, 0])],
            texts[int(wanted[i, 0])],
            float(similarity[i, int(order[i, 0])]),
        )
        for i in range(len(texts))
    ]
    return checks, ranking


def _difference(name: str, ours: torch.Tensor, reference: torch.Tensor) -> Check:
    # A NaN must fail, and NaN <= x is false.
    worst = float((ours - reference).abs().max())
    return Check(name, f"{worst:.2e}", f"<= {TOLERANCE:.0e}", worst <= TOLERANCE)


def _ranking(vectors: torch.Tensor) -> torch.Tensor:
    """For each sentence all others, the nearest first: int64 (n, n - 1)."""
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-2)  # below every cosine, so that each sentence comes last itself
    return similarity.argsort(dim=1, descending=True, stable=True)[:, :-1]


def _time(workload: str, encoder, inductor, exe, args) -> list[Timing]:
    from luminal_lab.bench import compare

    names = ("eager PyTorch", "torch.compile", "Luminal Lab")
    found = compare(
        dict(zip(names, (encoder, inductor, exe), strict=True)),
        args,
        reference=lambda: _float64(encoder, args),
        rounds=ROUNDS,
        name=workload,
    )
    print(found)
    best = min(found.ratio(name) for name in names[:2])
    print(f"  {best:.2f}x the better of the two")
    return [
        Timing(workload, c.name, c.seconds, ours=c.name == names[2]) for c in found.contestants
    ]


def _float64(encoder: torch.nn.Module, args: tuple[Any, ...]) -> torch.Tensor:
    import copy

    return copy.deepcopy(encoder).double()(*args)


def _machine(torch: Any) -> list[tuple[str, str]]:
    return [
        (str(torch.get_num_threads()), "threads"),
        (platform.machine(), platform.processor() or platform.system()),
        (torch.__version__, "torch"),
        (platform.python_version(), "Python"),
    ]
