"""The search within one region: genomes, their predicted cost, what was rejected and why."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from luminal_lab.hlir.sizes import hint
from luminal_lab.search.assemble import RegionKernels
from luminal_lab.search.extract import Extraction, Genome, Infeasible
from luminal_lab.search.seeds import (
    Weights,
    encoder_choice,
    everything_stored,
    first_producers,
    reductions_stored,
    seed_genomes,
)

BUILD_TIME = 1e-3  # a second at build time, in seconds of a call
LONGEST = 1024  # values of a kernel; as many as the longest has when all sums are stored


@dataclass(frozen=True)
class Individual:
    """One way to run a region.

    Arguments:
        genome: What it was extracted from.
        extraction: Its kernels.
        genes: The part of the genome that counts: its identity.
        seconds: Predicted for one call of the region.
        memory: Bytes of temporaries that live at once.
    """

    genome: Genome = field(compare=False, repr=False)
    extraction: Extraction = field(compare=False, repr=False)
    genes: tuple
    seconds: float = field(compare=False)
    memory: int = field(compare=False)


class RegionSearch:
    """Evaluates genomes of one region and remembers every distinct individual.

    Arguments:
        kernels: Makes the region's kernels.
        memory: Individuals whose temporaries take more bytes are rejected; None for no bound.
    """

    def __init__(self, kernels: RegionKernels, memory: int | None = None):
        self.kernels, self.space = kernels, kernels.space
        self.memory = memory
        self.weights = Weights(self.space)
        self.found: dict[tuple, Individual] = {}
        self._sizes: dict[int, int] = {}
        self._best: Individual | None = None
        self.rejected: dict[str, int] = {}
        self.considered = 0
        self.complete = False  # whether it is known that no other individual exists
        self._longest = max(LONGEST, self._longest_written())
        self._moves = self._all_moves()
        self._stops = {t for t, stop in enumerate(reductions_stored(self.space)) if stop}
        self._near = self._neighbours()

    @property
    def best(self) -> Individual | None:
        """The individual with the least predicted time."""
        return self._best

    def ranked(self) -> list[Individual]:
        """All distinct individuals by predicted time; ties by genes."""
        return sorted(self.found.values(), key=_by_cost)

    def seeds(self) -> list[Individual]:
        """The starting points that are feasible."""
        made = [self.evaluate(g) for g in seed_genomes(self.space, self.weights)]
        return [m for m in made if m is not None]

    def evaluate(
        self, genome: Genome, parent: Individual | None = None, changed: int = -1
    ) -> Individual | None:
        """The individual of a genome, or None (and one more rejection) when it has none.

        Arguments:
            genome: What to evaluate.
            parent: An individual whose genome differs only at the classes in `changed`.
            changed: Bit mask of classes.
        """
        self.considered += 1
        try:
            base = parent.extraction if parent else None
            extraction = self.space.extract(genome, base, changed)
        except Infeasible as error:
            self.reject(error.reason)
            return None
        genes = self.space.genes(extraction)
        known = self.found.get(genes)
        if known is not None:
            self.reject("duplicate")
            return known
        if any(len(body.picks) > self._longest for body in extraction.bodies):
            self.reject("over length")
            return None
        memory = self._peak(extraction)
        if self.memory is not None and memory > self.memory:
            self.reject("over memory")
            return None
        made = Individual(genome.settled(), extraction, genes, self.seconds(extraction), memory)
        self.found[genes] = made
        if self._best is None or _by_cost(made) < _by_cost(self._best):
            self._best = made
        return made

    def _longest_written(self) -> int:
        """Values of the longest kernel of the program as it was written, its sums stored.

        Without a bound all steps of a recurrence would be one kernel, which takes minutes to
        generate and to compile.
        """
        space = self.space
        written = Genome(
            encoder_choice(space), reductions_stored(space), first_producers(space)
        )
        try:
            return max((len(b.picks) for b in space.extract(written).bodies), default=0)
        except Infeasible:
            return 0

    def _neighbours(self) -> dict[int, tuple[int, ...]]:
        """For each tensor, those before and after it in the program, up to a reduction."""
        space = self.space
        written = Genome(
            encoder_choice(space), everything_stored(space), first_producers(space)
        )
        try:
            bodies = space.extract(written).bodies
        except Infeasible:
            return {}
        stops = self._stops
        after: dict[int, list[int]] = {}
        for body in bodies:
            for r in body.reads:
                after.setdefault(r, []).append(body.tensor)
        near: dict[int, dict[int, None]] = {}
        for body in bodies:
            t = body.tensor
            todo, seen = list(after.get(t, ())), dict[int, None]()
            while todo:
                u = todo.pop(0)
                if u in seen:
                    continue
                seen[u] = None
                if u not in stops:
                    todo += after.get(u, ())
            for u in seen:
                near.setdefault(t, {})[u] = None
                near.setdefault(u, {})[t] = None
        return {t: tuple(sorted(u)) for t, u in near.items()}

    @property
    def n_moves(self) -> int:
        """How many single moves there are at all."""
        return len(self._moves)

    def rules_of(self, one: Individual) -> frozenset[str]:
        """The rules that made an individual's e-nodes."""
        classes = self.space.part.classes
        picked = {classes[c].nodes[k].rule for b in one.extraction.bodies for c, k in b.picks}
        made = {classes[b.tensor].nodes[b.producer].rule for b in one.extraction.bodies}
        return frozenset(picked | made)

    def has_online(self, one: Individual) -> bool:
        """Whether some kernel of an individual contains an online reduction."""
        classes = self.space.part.classes
        return any(
            classes[c].nodes[k].op == "online"
            for b in one.extraction.bodies
            for c, k in b.picks
        )

    def calls_library(self, one: Individual) -> bool:
        """Whether some tensor is made by a call: of a library, or of hand-written code."""
        classes = self.space.part.classes
        return any(
            classes[b.tensor].nodes[b.producer].op == "library" for b in one.extraction.bodies
        )

    def reject(self, reason: str) -> None:
        """Count one rejection."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def seconds(self, extraction: Extraction) -> float:
        """Predicted seconds of one call of the region."""
        return sum(self.body_seconds(extraction))

    def body_seconds(self, extraction: Extraction) -> list[float]:
        """Predicted seconds of each kernel; next to nothing when it runs at build time."""
        constants = self.kernels.constants(extraction)
        return [
            s * (BUILD_TIME if b.tensor in constants else 1.0)
            for s, b in zip(self.kernels.seconds(extraction), extraction.bodies, strict=True)
        ]

    def _peak(self, extraction: Extraction) -> int:
        last: dict[int, int] = {}
        for k, body in enumerate(extraction.bodies):
            for r in body.reads:
                last[r] = k
        live = peak = 0
        sizes: dict[int, int] = {}
        for k, body in enumerate(extraction.bodies):
            size = sizes[body.tensor] = self._nbytes(body.tensor)
            live += size
            if live > peak:
                peak = live
            for r in body.reads:
                if last[r] == k:
                    live -= sizes.get(r, 0)
        return peak

    def _nbytes(self, t: int) -> int:
        found = self._sizes.get(t)
        if found is None:
            found = self._sizes[t] = hint(self.kernels.buffer(t, False).nbytes)
        return found

    # ------------------------------------------------------------------------------ moves

    def _all_moves(self) -> list[tuple[str, int, int]]:
        """`("place", tensor, _)`, `("choice", class, e-node)` and `("producer", tensor, …)`."""
        space = self.space
        moves = [("place", t, 0) for t in space.tensors if space.holders[t]]
        for t in space.tensors:
            if len(space.producers[t]) > 1:
                moves += [("producer", t, k) for k in space.producers[t]]
        for c, options in enumerate(space.options):
            if len(options) > 1:
                moves += [("choice", c, k) for k in options]
        return moves

    def moves(self, one: Individual) -> Iterator[tuple[str, int, int]]:
        """The moves that change what an individual computes."""
        touched = 0
        for body in one.extraction.bodies:
            touched |= body.mask
        stored = {b.tensor for b in one.extraction.bodies}
        for kind, c, k in self._moves:
            if kind == "place":
                if c in stored or self.space.holders[c] & touched:
                    yield kind, c, k
            elif kind == "producer":
                if c in stored and one.genome.producer[c] != k:
                    yield kind, c, k
            elif touched >> c & 1 and one.genome.choice[c] != k:
                yield kind, c, k

    def swaps(self, one: Individual) -> Iterator[tuple[str, int, int]]:
        """`("swap", stored, other)`: store a tensor on the way to a reader of another instead.

        Of a product with an elementwise epilogue, say, either the product or the epilogue's
        result is stored; neither single flip between the two is an improvement. With `stored`
        -1 the other tensor takes the place of all reductions right before it: of both products
        of a gated unit, say.
        """
        stored = {b.tensor for b in one.extraction.bodies}
        for t in sorted(stored):
            for other in self._near.get(t, ()):
                if other not in stored:
                    yield "swap", t, other
        for other in self.space.tensors:
            if other not in stored and len(self._absorbed(other, stored)) > 1:
                yield "swap", -1, other

    def _absorbed(self, other: int, stored: set[int]) -> list[int]:
        rank = self.space.rank
        return [
            t
            for t in self._near.get(other, ())
            if t in stored and t in self._stops and rank[t] < rank[other]
        ]

    def moved(self, one: Individual, move: tuple[str, int, int]) -> Individual | None:
        """The individual after one move."""
        genome, changed = self.applied(one, move)
        return self.evaluate(genome, one, changed)

    def applied(self, one: Individual, move: tuple[str, int, int]) -> tuple[Genome, int]:
        """The genome after one move, and the mask of classes that it changes."""
        kind, c, k = move
        g = one.genome
        if kind == "choice":
            return Genome(_put(g.choice, c, k), g.place, g.producer), 1 << c
        if kind == "producer":
            return Genome(g.choice, g.place, _put(g.producer, c, k)), 1 << c
        place = list(one.extraction.place)
        if kind == "swap":
            stored = {b.tensor for b in one.extraction.bodies}
            changed = 1 << k | self.space.holders[k]
            place[k] = True
            for t in self._absorbed(k, stored) if c < 0 else (c,):
                place[t] = False
                changed |= 1 << t | self.space.holders[t]
            return Genome(g.choice, tuple(place), g.producer), changed
        place[c] = not place[c]
        return Genome(g.choice, tuple(place), g.producer), 1 << c | self.space.holders[c]

    def dearest(self, one: Individual) -> Callable[[int], float]:
        """Of a class, the seconds of the dearest kernel of an individual that depends on it."""
        each = self.body_seconds(one.extraction)
        bodies = [(s, b.mask) for s, b in zip(each, one.extraction.bodies, strict=True)]
        bodies.sort(reverse=True)
        return lambda c: next((s for s, mask in bodies if mask >> c & 1), 0.0)

    def settled(
        self, one: Individual, move: tuple[str, int, int], online: bool = False
    ) -> Individual | None:
        """The individual after a placement is flipped and the members chosen anew for it.

        Arguments:
            one: Where to start.
            move: A move of a placement.
            online: Whether online reductions are preferred.
        """
        genome, _ = self.applied(one, move)
        choice = self.weights.cheapest(genome.place, online=online)
        return self.evaluate(Genome(choice, genome.place, genome.producer))

    def onlined(self, one: Individual) -> Individual | None:
        """The individual that stores the same tensors, with online reductions preferred."""
        g = one.genome
        choice = self.weights.cheapest(one.extraction.place, online=True)
        return self.evaluate(Genome(choice, g.place, g.producer))

    def grafted(
        self, one: Individual, other: Individual, rng: random.Random
    ) -> Individual | None:
        """An individual that makes one to three tensors as another one does.

        What a graft brings are whole kernels, which have been built and priced already.
        """
        choice, place = list(one.genome.choice), list(one.extraction.place)
        producer = list(one.genome.producer)
        changed = 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            body = rng.choice(other.extraction.bodies)
            for c, _ in body.picks:
                if choice[c] != other.genome.choice[c]:
                    choice[c] = other.genome.choice[c]
                    changed |= 1 << c
            producer[body.tensor] = other.genome.producer[body.tensor]
            for t, held in self.space.holders.items():
                wanted = t == body.tensor or other.extraction.place[t]
                if place[t] != wanted and (held & body.mask or t == body.tensor):
                    place[t] = wanted
                    changed |= held | 1 << t
        return self.evaluate(Genome(tuple(choice), tuple(place), tuple(producer)), one, changed)

    def random_genome(self, rng: random.Random, sigma: float, near: Genome) -> Genome:
        """A genome by perturbed work, with some placements of `near` flipped."""
        place = list(near.place)
        share = rng.choice((0.0, 0.05, 0.2, 0.5))
        for t in self.space.tensors:
            if self.space.holders[t] and rng.random() < share:
                place[t] = not place[t]
        producer = list(near.producer)
        for t in self.space.tensors:
            if len(self.space.producers[t]) > 1 and rng.random() < 0.3:
                producer[t] = rng.choice(self.space.producers[t])
        seen = place if rng.random() < 0.5 else [False] * len(place)
        choice = self.weights.cheapest(seen, rng, sigma, online=rng.random() < 0.5)
        return Genome(choice, tuple(place), tuple(producer))


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return values[:at] + (value,) + values[at + 1 :]


def _by_cost(one: Individual) -> tuple:
    return (one.seconds, one.genes)
