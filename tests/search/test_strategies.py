"""Strategies behind one interface: all of them explore; enumeration misses nothing."""

import itertools
import random
import sys

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import SearchError
from luminal_lab.search import Budget, Search, search
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.enumeration import genomes
from luminal_lab.search.extract import Genome, Infeasible
from luminal_lab.search.machine import Machine
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.strategies import STRATEGIES, Strategy
from tests.search.models import saturated


def small_region(name: str = "products") -> RegionSearch:
    fns = {
        "products": (lambda x, a, b: (x @ a) @ b, [(4, 6), (6, 3), (3, 5)]),
        "mean": (lambda x: x - x.mean(0), [(6, 4)]),
        "two": (lambda x, y: (x + y) * x.sum(-1, keepdim=True), [(5, 4), (5, 4)]),
    }
    fn, shapes = fns[name]
    egraph = ll.saturate(ll.capture(fn, tuple(torch.ones(s) for s in shapes)))
    return RegionSearch(Assembler(egraph, Machine()).regions[0])


@pytest.mark.parametrize("name", ["products", "mean", "two"])
def test_enumeration_finds_what_a_product_of_all_genes_finds(name):
    region = small_region(name)
    space = region.space
    for genome in genomes(space):
        region.evaluate(genome)
    axes = []
    for c in range(len(space.part.classes)):
        axes.append(space.options[c] or (-1,))
    for t in range(len(space.part.classes)):
        axes.append((False, True) if space.holders.get(t) else (False,))
    for t in range(len(space.part.classes)):
        axes.append(space.producers[t] or (-1,))
    size = 1
    for values in axes:
        size *= len(values)
    n = len(space.part.classes)
    everything = (
        itertools.product(*axes)
        if size <= 20_000
        else ([random.Random(k).choice(v) for v in axes] for k in range(3000))
    )
    brute = set()
    for values in everything:
        genome = Genome(tuple(values[:n]), tuple(values[n : 2 * n]), tuple(values[2 * n :]))
        try:
            brute.add(space.genes(space.extract(genome)))
        except Infeasible:
            continue
    assert brute <= region.found.keys()
    if size <= 20_000:
        assert brute == region.found.keys()


def test_an_enumerated_individual_is_rebuilt_from_its_genome():
    region = small_region()
    for genome in genomes(region.space):
        region.evaluate(genome)
    for one in region.found.values():
        assert region.space.genes(region.space.extract(one.genome)) == one.genes


def test_exhaustive_search_says_that_it_is_complete():
    egraph = ll.saturate(ll.capture(lambda x: x - x.mean(0), (torch.ones(6, 4),)))
    result = search(egraph, Budget("none"), strategy="exhaustive")
    assert result.complete
    assert "all there are" in repr(result)
    assert not search(saturated("block"), Budget("none"), strategy="beam").complete


@pytest.mark.parametrize("strategy", ["beam", "genetic", "annealing"])
def test_strategies_come_near_the_optimum_by_prediction(strategy):
    region = small_region("two")
    for genome in genomes(region.space):
        region.evaluate(genome)
    best = region.best
    other = small_region("two")
    for n, _ in enumerate(STRATEGIES[strategy](other, random.Random(0))):
        if n >= 300:
            break
    assert best is not None
    assert other.best is not None
    assert other.best.seconds <= best.seconds * 1.05


def test_a_strategy_of_ones_own():
    def two_samples(region, rng):
        for seed in region.seeds()[:2]:
            region.evaluate(region.random_genome(rng, 1.0, seed.genome))
            yield

    assert isinstance(two_samples, Strategy)
    result = search(saturated("block"), Budget("none"), strategy=two_samples)
    assert result.best.kernels
    with pytest.raises(SearchError, match="or a function like those"):
        search(saturated("block"), Budget("none"), strategy="luck")


def test_grafts_are_candidates_like_any_other():
    region = RegionSearch(Assembler(saturated("block"), Machine()).regions[0])
    rng = random.Random(3)
    pool = region.seeds()
    for _ in range(60):
        made = region.grafted(rng.choice(pool), rng.choice(pool), rng)
        if made is not None:
            pool.append(made)
            assert region.space.genes(region.space.extract(made.genome)) == made.genes
    assert len({p.genes for p in pool}) > 10


def test_the_best_so_far_can_be_read_while_it_runs():
    seen = []

    def listener(event):
        if event.done == 320:
            seen.append(run.result())

    run = Search(saturated("block"), Budget("none"), progress=listener)
    with pytest.raises(SearchError, match="not found a candidate yet"):
        run.result()
    final = run.run()
    assert seen[0].best.seconds >= final.best.seconds
    assert seen[0].considered >= 320
    assert seen[0].best.kernels


def test_annealing_takes_a_first_temperature():
    egraph = saturated("attention")
    cold, hot = (
        search(egraph, Budget("none"), strategy=f"annealing:{t}").best for t in (0.001, 2.0)
    )
    assert cold.name == hot.name
    for heat in ("0", "-1", "nan", "warm", ""):
        with pytest.raises(SearchError, match="temperature"):
            search(egraph, Budget("none"), strategy=f"annealing:{heat}")


def test_the_steps_of_a_recurrence_are_not_one_kernel(monkeypatch):
    def steps(x, w):
        for _ in range(4):
            x = torch.tanh(x @ w)
        return x

    egraph = ll.saturate(ll.capture(steps, (torch.ones(2, 3), torch.ones(3, 3))))
    kernels = Assembler(egraph, Machine()).regions[0]

    def longest(region):
        list(zip(range(40), STRATEGIES["genetic"](region, random.Random(0))))
        return max(len(b.picks) for i in region.found.values() for b in i.extraction.bodies)

    free = longest(RegionSearch(kernels))
    monkeypatch.setattr(sys.modules[RegionSearch.__module__], "LONGEST", 20)
    bounded = RegionSearch(kernels)
    assert longest(bounded) < free
    assert bounded.rejected["over length"] > 0
