"""How a region's genomes are explored, behind one interface: `Strategy`.

A strategy is a generator function. Each `yield` says that one more genome was looked at, so the
caller can count, show progress and stop at any moment; what was found is in the `RegionSearch`
(`search.best`, `search.found`), which can be read between two steps. Strategies see predicted
costs only: measured times never decide which candidates are looked at, so the same seed gives
the same candidates on a busy machine too.

Schedules are searched jointly without being genes. A candidate's time is the sum over its
kernels, and a schedule changes the time of its own kernel only. So under any choice of kernels
the best schedules are each kernel's own best one, and the best candidate with its schedules is
the one whose kernels, each under its best schedule, sum to the least. That is what measuring
ranks by (see `race`): the joint optimum, at the price of a sum of spaces and not of their
product.

A strategy of your own:

    >>> def seeds_only(search, rng):
    ...     search.seeds()
    ...     yield
    >>> import torch, luminal_lab as ll
    >>> egraph = ll.saturate(ll.capture(torch.nn.GELU(), (torch.ones(8),)))
    >>> ll.search(egraph, ll.Budget("none"), strategy=seeds_only).considered > 1
    True
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Protocol, TypeGuard, runtime_checkable

from luminal_lab.errors import SearchError
from luminal_lab.search.enumeration import genomes
from luminal_lab.search.extract import Genome
from luminal_lab.search.region import Individual, RegionSearch


@runtime_checkable
class Strategy(Protocol):
    """A way to explore; any function like this can be passed as `strategy=`."""

    def __call__(self, search: RegionSearch, rng: random.Random, /) -> Iterator[None]:
        """Explore one region.

        Arguments:
            search: What can be done: `seeds`, `moves` and `swaps` of an individual, `moved`,
                `settled`, `grafted`, `random_genome`, `evaluate`. It remembers every distinct
                individual and counts what was rejected.
            rng: The only source of chance; seeded from the search's seed and the region.

        Yields:
            After each genome that was looked at. Ending means that there is nothing to add.
        """
        ...


SIGMAS = (0.2, 0.5, 1.0, 1.5)
SETTLED = 3000  # e-nodes up to which members are chosen anew for each placement
FRESH = 64  # samples that are independent of each other
WIDTH = 8  # individuals of the first beam
RARELY = 64  # of the later ones, one in so many: they share few kernels with the others


def descent(search: RegionSearch, rng: random.Random) -> Iterator[None]:
    """From the best seeds, take any single move that lowers the cost until none does.

    Placements are flipped with the members chosen anew for them, and alone; then members. Where
    there are online reductions, the descent is made first with a preference for them.
    """
    started: set[tuple] = set()
    seeds = search.seeds()
    yield
    passes = (True, False) if search.weights.online else (False,)
    for seed in sorted(seeds, key=lambda s: s.seconds)[:2]:
        for online in passes:
            start = search.onlined(seed) if online else seed
            yield
            if start is not None and (start.genes, online) not in started:
                started.add((start.genes, online))
                yield from _descend(search, start, online)


def _descend(search: RegionSearch, start: Individual, online: bool) -> Iterator[None]:
    """Take improving moves: of what is stored until none is left, then of members; repeat.

    Moves that touch the dearest kernels come first.
    """
    current = start
    while True:
        before = current
        for kinds in (("place", "swap"), ("choice", "producer")):
            improved = True
            while improved:
                improved = False
                for move in _moves_of(search, current, kinds):
                    attempts = [search.moved(current, move)]
                    yield
                    if move[0] in ("place", "swap") and search.space.part.size <= SETTLED:
                        attempts.append(search.settled(current, move, online))
                        yield
                    for other in attempts:
                        if _better(other, current):
                            current, improved = other, True
                improved = improved and "place" in kinds
        if current is before:
            return


def _better(other: Individual | None, than: Individual) -> TypeGuard[Individual]:
    return other is not None and other.seconds < than.seconds * (1 - 1e-9)


def _moves_of(
    search: RegionSearch, one: Individual, kinds: tuple[str, ...]
) -> list[tuple[str, int, int]]:
    moves = [m for m in [*search.moves(one), *search.swaps(one)] if m[0] in kinds]
    dear = search.dearest(one)
    return sorted(moves, key=lambda m: -dear(m[2] if m[0] == "swap" else m[1]))


def sampling(search: RegionSearch, rng: random.Random) -> Iterator[None]:
    """Genomes by perturbed work, around the seeds and the best so far; endless.

    The first ones are independent. After that most are grafts among what was found, or random
    moves of it: they vary as much, and share their kernels.
    """
    seeds = search.seeds()
    turn = 0
    pool: list[Individual] = []
    while True:
        best = search.best
        around = [*seeds, best] if best is not None else seeds
        if not around:
            return
        if turn < FRESH or turn % RARELY == 0:
            near = around[turn % len(around)]
            sigma = SIGMAS[turn % len(SIGMAS)]
            made = search.evaluate(search.random_genome(rng, sigma, near.genome))
        elif rng.random() < 0.75:
            made = search.grafted(rng.choice(pool), rng.choice(pool), rng)
        else:
            made = _walked(search, rng.choice(pool), rng)
        if made is not None:
            pool.append(made)
        turn += 1
        yield


def _walked(search: RegionSearch, one: Individual, rng: random.Random) -> Individual | None:
    moves = list(search.moves(one))
    return search.moved(one, rng.choice(moves)) if moves else None


def genetic(search: RegionSearch, rng: random.Random) -> Iterator[None]:
    """Mutation and crossover within a population of the best individuals; endless."""
    size = 24
    sampler = sampling(search, rng)
    for _ in range(size):
        if next(sampler, False) is False:
            return
        yield
    while search.found:
        parents = search.ranked()[:size]
        for _ in range(size):
            a = _tournament(parents, rng)
            if rng.random() < 0.3:
                b = _tournament(parents, rng)
                search.evaluate(_crossed(a.genome, b.genome, rng))
            else:
                _mutated(search, a, rng)
            yield


def annealing(
    search: RegionSearch, rng: random.Random, temperature: float = 0.05
) -> Iterator[None]:
    """Random moves from the best seed, accepted when better or by a falling chance; endless.

    Arguments:
        search: Of a region.
        rng: Where chances come from.
        temperature: How much slower a move may be, as a share, to be accepted half of the time
            at first; it falls by 3 % with each accepted move.
    """
    seeds = search.seeds()
    if not seeds:
        return
    current = min(seeds, key=lambda s: s.seconds)
    heat = temperature
    while True:
        moves = list(search.moves(current))
        if not moves:
            return
        for _ in range(len(moves)):
            move = rng.choice(moves)
            both = move[0] == "place" and rng.random() < 0.5
            other = (search.settled if both else search.moved)(current, move)
            yield
            if other is None or other.genes == current.genes:
                continue
            worse = (other.seconds - current.seconds) / max(current.seconds, 1e-12)
            if worse <= 0 or rng.random() < 2.0 ** (-worse / heat):
                current = other
                break
        heat = max(heat * 0.97, 1e-3)


def beam(search: RegionSearch, rng: random.Random) -> Iterator[None]:
    """The best individuals, all their single moves, the best of these, and so on.

    Wider than the descent: a move that loses at first stays when few others win. When a beam
    brings nothing new, the next one is twice as wide; ends when a beam holds everything.
    """
    width = WIDTH
    expanded: set[tuple] = set()
    search.seeds()
    yield
    while True:
        before = len(search.found)
        fresh = [i for i in search.ranked()[:width] if i.genes not in expanded]
        for one in fresh:
            expanded.add(one.genes)
            for move in _moves_of(search, one, ("place", "swap", "choice", "producer")):
                search.moved(one, move)
                yield
                if move[0] in ("place", "swap"):
                    search.settled(one, move)
                    yield
        if len(search.found) == before:
            if width >= len(search.found):
                return
            width *= 2


def exhaustive(search: RegionSearch, rng: random.Random) -> Iterator[None]:
    """Every individual there is; when it ends, `search.complete` is True.

    See `enumeration` for why nothing is missed.
    """
    for genome in genomes(search.space):
        search.evaluate(genome)
        yield
    search.complete = True


STRATEGIES: dict[str, Strategy] = {
    "descent": descent,
    "sampling": sampling,
    "genetic": genetic,
    "annealing": annealing,
    "beam": beam,
    "exhaustive": exhaustive,
}


def strategy_of(given: str | Strategy) -> Strategy:
    """The strategy of a name; a strategy itself is taken as it is.

    Arguments:
        given: A name of `STRATEGIES`, `"annealing:0.2"` for another first temperature, or a
            strategy.

    Raises:
        SearchError: when it is neither, or the temperature is no positive number.
    """
    if not isinstance(given, str) and callable(given):
        return given
    name, colon, heat = str(given).partition(":")
    if name == "annealing" and colon:
        try:
            temperature = float(heat)
        except ValueError:
            temperature = math.nan
        if not 0.0 < temperature < math.inf:
            raise SearchError(
                f"the temperature of annealing must be a positive number, got {heat!r}",
                fix='write "annealing:0.2"',
            )
        return partial(annealing, temperature=temperature)
    if given not in STRATEGIES:
        raise SearchError(
            f"unknown strategy {given!r}",
            fix=f"one of {', '.join(STRATEGIES)}, or a function like those",
        )
    return STRATEGIES[given]


def _tournament(population: list[Individual], rng: random.Random) -> Individual:
    picked = [rng.randrange(len(population)) for _ in range(3)]
    return population[min(picked)]


def _mutated(search: RegionSearch, one: Individual, rng: random.Random) -> None:
    current: Individual | None = one
    for _ in range(rng.choice((1, 1, 2, 3))):
        if current is None:
            return
        moves = [*search.moves(current), *search.swaps(current)]
        if not moves:
            return
        move = rng.choice(moves)
        both = move[0] in ("place", "swap") and rng.random() < 0.5
        current = (search.settled if both else search.moved)(current, move)


def _crossed(a: Genome, b: Genome, rng: random.Random) -> Genome:
    n = len(a.choice)
    low, high = sorted((rng.randrange(n + 1), rng.randrange(n + 1)))

    def mix(x: tuple, y: tuple) -> tuple:
        return x[:low] + y[low:high] + x[high:]

    return Genome(mix(a.choice, b.choice), mix(a.place, b.place), mix(a.producer, b.producer))
