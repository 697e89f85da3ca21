"""Run workloads: eager PyTorch, torch.compile, our compiler, in one process."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from luminal_lab.bench.timing import Comparison, compare
from luminal_lab.bench.workloads import Workload, sdpa
from luminal_lab.errors import LuminalError
from luminal_lab.runtime.allocator import warm_allocator
from luminal_lab.runtime.calibration import contradict, thread_count

PEERS = ("eager", "inductor", "sdpa", "luminal")


def run_workload(
    workload: Workload,
    *,
    peers: Sequence[str] = PEERS,
    effort: str = "quick",
    seconds: float | None = None,
    rounds: int = 15,
    seed: int = 0,
) -> Comparison:
    """Time one workload.

    Arguments:
        workload: A row of `WORKLOADS`.
        peers: Who takes part, of `PEERS`; `sdpa` only in the attention suite.
        effort: Of our search: none, quick or full.
        seconds: Of our search; None for the effort's own.
        rounds: Samples of each.
        seed: Of inputs, search and order.

    Returns:
        The comparison, with ours last.

    Raises:
        LuminalError: for an unknown peer, or when ours does not compile.
    """
    import torch

    if unknown := [p for p in peers if p not in PEERS]:
        raise LuminalError(f"unknown peer {unknown[0]!r}", fix=f"one of {', '.join(PEERS)}")
    warm_allocator()
    fn, args = workload.make(torch.Generator().manual_seed(seed))
    fns: dict[str, Callable[..., Any]] = {}
    prepare: dict[str, float] = {}
    with torch.no_grad():
        for peer in PEERS:
            if peer not in peers or (peer == "sdpa" and workload.suite != "attention"):
                continue
            start = time.perf_counter()
            fns[peer] = _contestant(peer, workload, fn, args, effort, seconds, seed)
            fns[peer](*args)
            prepare[peer] = 0.0 if peer in ("eager", "sdpa") else time.perf_counter() - start
    made = compare(
        fns,
        args,
        reference=lambda: in_float64(fn, args),
        rounds=rounds,
        seed=seed,
        name=workload.name,
        prepare=prepare,
    )
    made = replace(
        made, floor=floor(workload), tolerance=workload.tolerance, bars=workload.bars
    )
    if made.not_credible:  # perhaps the rates were measured while something disturbed them
        contradict(thread_count(), f"{made.not_credible[0]} beat the floor of {workload.name}")
        made = replace(made, floor=floor(workload))
    return made


def _contestant(
    peer: str,
    workload: Workload,
    fn: Callable[..., Any],
    args: Sequence[Any],
    effort: str,
    seconds: float | None,
    seed: int,
) -> Callable[..., Any]:
    import torch

    if peer == "sdpa":
        return partial(sdpa, causal="causal" in workload.name)
    if peer == "inductor":
        torch._dynamo.reset()
        return torch.compile(fn, dynamic=False)
    if peer == "eager":
        return fn
    import luminal_lab as ll

    budget = ll.Budget(effort=effort, seconds=seconds)  # type: ignore[arg-type]
    return ll.compile(fn, tuple(args), budget=budget, seed=seed)


def in_float64(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The same computation with every float in float64."""
    import torch

    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn).double()
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    return fn(*wide)


def floor(workload: Workload) -> float:
    """Seconds that the measured rates of the machine allow at best, call after call."""
    from luminal_lab.runtime.cpu import CpuTarget

    machine = CpuTarget().machine()
    return max(machine.least_seconds(workload.bytes), workload.flops / machine.dot_flops)
