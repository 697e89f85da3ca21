"""Does every candidate compute the program? Evaluated in float64, or compiled and run.

In float64 there are two runs per candidate in a low precision: with the roundings to it, at the
dtype's tolerance, and without, where every law must hold to 1e-9.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from luminal_lab.egraph import evaluate
from luminal_lab.egraph.egraph import EGraph
from luminal_lab.egraph.values import Kernel
from luminal_lab.hlir import apply, run
from luminal_lab.hlir.dtypes import DType
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.execute import run_kernel
from luminal_lab.search.kernel_text import kernel_text

# By dtype: the largest error, relative to the largest magnitude of an output.
ROUNDED = {torch.float64: 1e-9, torch.float32: 1e-9, torch.float16: 1e-2, torch.bfloat16: 6e-2}
COMPILED = {torch.float64: 1e-9, torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Disagreement:
    """A candidate that differs from the program.

    Arguments:
        candidate: Which one, in the order of sampling.
        output: Which output.
        error: As `error` has it.
        rules: The rules that made the candidate's kernels.
    """

    candidate: int
    output: str
    error: float
    rules: tuple[str, ...]


@contextmanager
def unrounded():
    """Casts to narrow floats keep every digit: what is left of a candidate is its algebra."""
    rounds, cast = evaluate._rounds, apply.cast

    def exact(x: Any, dtype: DType, compute: Any) -> Any:
        return x.to(torch.float64) if dtype.is_float else cast(x, dtype, compute)

    evaluate._rounds = lambda dtype: False
    apply.cast = exact
    try:
        yield
    finally:
        evaluate._rounds, apply.cast = rounds, cast


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference against the largest magnitude; inf for unlike NaN or inf."""
    if got.shape != want.shape:
        return math.inf
    if not want.dtype.is_floating_point:
        return 0.0 if bool((got == want).all()) else math.inf
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    finite = want[want.isfinite()].abs()
    scale = max(1e-6, float(finite.max())) if finite.numel() else 1.0
    off = torch.where(same, 0.0, (got - want).abs() / scale)
    return float(torch.where(off.isnan(), math.inf, off).max()) if off.numel() else 0.0


@dataclass
class Evaluated:
    """Candidates in float64; kernels that several share are run once.

    Arguments:
        egraph: What the candidates come from.
        args: The program's arguments.
    """

    egraph: EGraph
    args: Sequence[Any]
    _known: dict[Any, tuple[int, dict[str, torch.Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hlir = self.egraph.hlir
        self.inputs = dict(hlir.weights)
        for spec in hlir.inputs:
            if spec.position is not None:
                self.inputs[spec.name] = self.args[spec.position]
        self.want = dict(zip((o.name for o in hlir.outputs), run(hlir, self.args), strict=True))

    def region_inputs(self) -> dict[str, torch.Tensor]:
        """The inputs of the only region of a program, by its own names."""
        (instance,) = self.egraph.program.instances
        names = (s.name for s in self.egraph.parts[0].hlir.inputs)
        return {n: self.inputs[instance.bind[n]] for n in names}

    def run(self, candidate: Candidate) -> dict[str, torch.Tensor]:
        """The outputs by name."""
        keys: dict[str, Any] = {}
        values: dict[str, torch.Tensor] = {}
        for name, kind in candidate.kinds.items():
            if kind in ("arg", "weight", "constant"):
                keys[name], values[name] = name, self.inputs[name]
        for call in candidate.calls:
            kernel = candidate.kernels[call.kernel]
            reads = {own: name for own, name in call.bind.items() if name in values}
            key = (identity(kernel), tuple((own, keys[name]) for own, name in reads.items()))
            if key not in self._known:
                given = {own: values[name] for own, name in reads.items()}
                self._known[key] = (len(self._known), run_kernel(kernel, given))
            number, outs = self._known[key]
            for own, out in outs.items():
                values[call.bind[own]] = out
                keys[call.bind[own]] = (number, own)
        return {n: values[n] for n in self.want if n in values}

    def disagreements(
        self, candidates: Sequence[Candidate], tolerance: float
    ) -> list[Disagreement]:
        """Every output of every candidate that is off by more than the tolerance."""
        out = []
        for k, candidate in enumerate(candidates):
            for name, got in self.run(candidate).items():
                off = error(got, self.want[name])
                if off > tolerance:
                    out.append(Disagreement(k, name, off, rules_of(candidate)))
        return out


def identity(kernel: Kernel | LibraryKernel) -> Any:
    """What tells kernels apart that compute different things."""
    if isinstance(kernel, Kernel):
        return kernel.outputs, tuple(sorted(kernel.extents.items()))
    return kernel_text(kernel)


def rules_of(candidate: Candidate) -> tuple[str, ...]:
    """The rules that made a candidate."""
    return tuple(sorted({rule for k in candidate.kernels for rule in k.rules}))


def scheduled(candidate: Candidate, target: Any, rng: random.Random) -> Candidate:
    """A candidate with random schedules, the default one for one kernel in four."""
    chosen = []
    for kernel in candidate.kernels:
        space = target.schedules(kernel) if isinstance(kernel, Kernel) else [None]
        chosen.append(None if rng.random() < 0.25 else rng.choice(space))
    return replace(candidate, schedules=tuple(chosen))


def compiled_disagreements(
    egraph: EGraph,
    args: Sequence[Any],
    candidates: Sequence[Candidate],
    tolerance: float,
    seed: int = 0,
) -> list[Disagreement]:
    """Build and run candidates under random schedules, and compare their outputs."""
    from luminal_lab.runtime.building import build
    from luminal_lab.runtime.cpu import CpuTarget

    target, rng = CpuTarget(), random.Random(seed)
    want = run(egraph.hlir, args)
    out = []
    for k, candidate in enumerate(candidates):
        executable = build(scheduled(candidate, target, rng))
        got = torch.utils._pytree.tree_leaves(executable(*args))
        for spec, mine, ours in zip(egraph.hlir.outputs, got, want, strict=True):
            off = error(mine, ours)
            if off > tolerance:
                out.append(Disagreement(k, spec.name, off, rules_of(candidate)))
    return out
