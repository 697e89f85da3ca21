"""Finalists: whole programs that are built, verified and timed in a process of their own.

A sum of kernel times leaves out what kernels do to each other: caches that one leaves warm or
cold for the next, calls, the memory plan. So the last word is a race of a few whole programs,
in a fresh process, in turns. Each is compared with the program as it was written: the encoder's
own terms and no rule, evaluated in float64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from luminal_lab.hlir.interpreter import Reference
from luminal_lab.hlir.symbolic import specialize, symbols_of
from luminal_lab.search.execute import run_candidate, sized_candidate
from luminal_lab.search.extract import Genome, Infeasible
from luminal_lab.search.inputs import search_inputs
from luminal_lab.search.race import tied
from luminal_lab.search.region import Individual
from luminal_lab.search.seeds import encoder_choice, first_producers, reductions_stored
from luminal_lab.search.target import Expected, Measurement, Tolerance
from luminal_lab.search.verify import program_tolerance, scale_of

if TYPE_CHECKING:
    from torch import Tensor

    from luminal_lab.egraph.egraph import EGraph
    from luminal_lab.hlir.graph import Hlir
    from luminal_lab.search.assemble import Assembler
    from luminal_lab.search.candidate import Candidate
    from luminal_lab.search.database import Database
    from luminal_lab.search.measuring import Measurer
    from luminal_lab.search.target import Target

CLOSE = 1.05  # a region's candidates within so many times its best one may be finalists
DOUBT = 0.25  # of a time: spread up to so much makes a tie, as on a machine that is busy
LARGEST = 1 << 30  # bytes of a program's inputs in float64 for which it is still done
DEEPEST = 8.0  # errors of a chain of kernels add up like a random walk, to so much at most


@dataclass(frozen=True)
class Finalist:
    """A whole program that reached the final race.

    Arguments:
        name: Of the candidate.
        genomes: The digest of its individual in each region.
        kernels: Calls of kernels in one run.
        predicted: Seconds of one run, by the cost model.
        measurement: Of the whole program; None when there was no time for it.
        rule: The rule that is to blame when it is wrong.
    """

    name: str
    genomes: tuple[str, ...]
    kernels: int
    predicted: float
    measurement: Measurement | None = None
    rule: str = ""


@dataclass
class Entry:
    """A candidate on its way to the final race.

    Arguments:
        chosen: Its individual in each region.
        candidate: The program, with schedules.
        seconds: The sum of its kernels' measured times.
        measurement: Of the whole program.
        rule: The rule that is to blame when it is wrong.
    """

    chosen: list[Individual]
    candidate: Candidate
    seconds: float
    measurement: Measurement | None = None
    rule: str = field(default="")

    @property
    def calls(self) -> int:
        """Kernel calls of one run."""
        return sum(not c.at_build for c in self.candidate.calls)

    @property
    def key(self) -> str:
        """What the database knows it by."""
        return f"program {hashlib.sha256(self.candidate.text().encode()).hexdigest()}"


def combinations(leaders: Sequence[Sequence[tuple[float, Individual]]], count: int):
    """The first choices of all regions, then with one region's next best in turn.

    Arguments:
        leaders: For each region, seconds per run of the program and individual, best first.
        count: How many combinations at most.

    Returns:
        `(seconds, individuals)` by seconds.
    """
    base = [row[0] for row in leaders]
    total = sum(t for t, _ in base)
    out = [(total, [i for _, i in base])]
    for k, row in enumerate(leaders):
        for t, other in row[1:]:
            if t <= base[k][0] * CLOSE:
                chosen = [i for _, i in base]
                chosen[k] = other
                out.append((total - base[k][0] + t, chosen))
    out[1:] = sorted(out[1:], key=lambda c: (c[0], tuple(i.genes for i in c[1])))
    return out[:count]


def winner(entries: Sequence[Entry]) -> Entry | None:
    """The fastest entry that is right; of those that tie with it, the simplest one."""
    timed = [e for e in entries if e.measurement is not None and e.measurement.ok]
    timed = [e for e in timed if e.measurement.seconds]  # type: ignore[union-attr]
    if not timed:
        return None

    def time(e: Entry) -> tuple[float, float]:
        assert e.measurement is not None
        return (e.measurement.median or math.inf, e.measurement.iqr)

    best = min(timed, key=lambda e: (time(e)[0], e.candidate.name))
    ties = [e for e in timed if tied(*time(best), *time(e), DOUBT)]
    return min(ties, key=lambda e: (e.calls, e.candidate.seconds, e.candidate.name))


class Memo:
    """Remembers the times of whole programs.

    Times of one race are compared with each other, so all finalists must be known, or all are
    timed again.

    Arguments:
        database: Where.
        target: For the key.
        measurer: Knows whether the database can be written.
    """

    def __init__(self, database: Database, target: Target, measurer: Measurer):
        self.database, self.measurer = database, measurer
        self.place = (target.name, measurer.fingerprint)

    def recall(self, entries: Sequence[Entry]) -> bool:
        """Whether all were known; their measurements are then set."""
        found = [self.database.get(e.key, None, *self.place) for e in entries]
        if any(m is None for m in found):
            return False
        for e, m in zip(entries, found):
            e.measurement = m
        return True

    def remember(self, entries: Sequence[Entry]) -> None:
        """Keep what was measured."""
        for e in entries:
            if e.measurement is not None:
                self.measurer.keep(e.key, None, e.measurement)


def at_hints(hlir: Hlir) -> Hlir:
    """A program at the sizes for which it is tuned: those at which finalists are timed."""
    return specialize(hlir, {name: s.hint for name, s in symbols_of(hlir).items()})


def too_large(egraph: EGraph) -> bool:
    """Whether a program's inputs and weights are too large to be held in float64 besides."""
    hlir = at_hints(egraph.program.hlir)
    nodes = [hlir.nodes[s.node] for s in hlir.inputs]
    return 8 * sum(math.prod(n.shape) for n in nodes) > LARGEST


def written(egraph: EGraph, assembler: Assembler) -> Candidate | None:
    """The program as it was written, cut at its reductions, by no rule; None if there is none.

    Symbolic sizes are at their hints.

    A product and the sum over it stay together: evaluated apart they may not fit in memory.
    """
    extractions = []
    for region in assembler.regions:
        space = region.space
        genome = Genome(encoder_choice(space), reductions_stored(space), first_producers(space))
        try:
            extractions.append(space.extract(genome))
        except Infeasible:
            return None
    made = assembler.candidate(extractions)
    if any(k.rules for k in made.kernels):
        return None
    symbols = symbols_of(egraph.program.hlir)
    return sized_candidate(made, {n: s.hint for n, s in symbols.items()}) if symbols else made


def expected_outputs(
    egraph: EGraph, assembler: Assembler, entries: Sequence[Entry], seed: int = 0
) -> list[dict[str, Expected]]:
    """What each finalist must write, by the names of the program's outputs.

    Arguments:
        egraph: What was saturated.
        assembler: Of this e-graph.
        entries: The finalists; the tolerance of each follows from its own rules and dtypes.
        seed: Of the inputs.
    """
    hlir = at_hints(egraph.program.hlir)
    inputs = search_inputs(hlir, hlir.weights, seed)
    values = _values(hlir, written(egraph, assembler), inputs)
    rules = {r.name: r.tolerance for r in egraph.rules}
    out = []
    for e in entries:
        base = program_tolerance(e.candidate, rules) * min(DEEPEST, math.sqrt(max(1, e.calls)))
        out.append(
            {
                n: Expected(None, v.reshape(-1), Tolerance(base * scale_of(v), base))
                for n, v in values.items()
            }
        )
    return out


def _values(
    hlir: Hlir, plain: Candidate | None, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The outputs that a program makes, in float64; those that are inputs are left out."""
    made = [o for o in hlir.outputs if o.aliases is None]
    if plain is not None:
        values = run_candidate(plain, inputs)
        return {o.name: values[o.name].expand(o.shape) for o in made if o.name in values}
    reference = Reference(hlir, inputs)
    reference.evaluate()
    return {o.name: reference.output(k) for k, o in enumerate(hlir.outputs) if o in made}
