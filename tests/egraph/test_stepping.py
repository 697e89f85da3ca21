"""One iteration at a time comes to the same e-graph."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

import luminal_lab as ll
from luminal_lab.egraph.saturate import saturate
from tests.egraph.programs import program


def same(a: ll.EGraph, b: ll.EGraph) -> bool:
    """Whether two e-graphs are equal, their times aside."""
    return all(
        x.classes == y.classes
        and x.node_class == y.node_class
        and x.outputs == y.outputs
        and x.report.stopped == y.report.stopped
        and [(i.number, i.rows, i.classes, i.matches) for i in x.report.iterations]
        == [(i.number, i.rows, i.classes, i.matches) for i in y.report.iterations]
        for x, y in zip(a.parts, b.parts, strict=True)
    )


@pytest.mark.parametrize("name", ["attention", "split-keys", "conv", "llama"])
def test_stepping_ends_where_saturation_does(name: str) -> None:
    hlir, _ = program(name)
    whole = ll.saturate(hlir)
    steps = list(stepping := ll.saturate(hlir, step=True))
    assert same(stepping.egraph, whole)
    assert same(steps[-1].egraph, whole)
    assert [s.number for s in steps] == list(range(len(steps)))
    assert [bool(s.stopped) for s in steps] == [False] * (len(steps) - 1) + [True]
    born = [(a.eclass, a.enode) for a in steps[-1].added]
    last = [(c.id, n) for c in whole.parts[0].classes for n in c.nodes
            if n.iteration == steps[-1].number]  # fmt: skip
    assert born == last
    for before, after in itertools.pairwise(steps):
        assert all(len(m.before) > 1 for m in after.merged)
        fewer = after.iteration.classes < before.iteration.classes
        assert after.merged or not fewer
        assert after.table().shape[0] == len(after.added)
    assert stepping.table()["iteration"].tolist() == [s.number for s in steps]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(4))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(self.head(x), -1)


def test_regions_are_stepped_one_after_the_other() -> None:
    hlir = ll.capture(Layers(), (torch.randn(2, 8),))
    whole = ll.saturate(hlir)
    stepping = ll.saturate(hlir, step=True)
    first = next(stepping)
    assert first.number == 0
    assert len(first.egraph.parts) == len(whole.parts) > 1
    assert ll.search(first.egraph, ll.Budget("none")).best.kernels  # it can be used as it is
    regions = [first.region, *(s.region for s in stepping)]
    assert regions == sorted(regions)
    assert same(stepping.egraph, whole)


def test_it_can_be_stopped_early() -> None:
    hlir, _ = program("llama")
    stepping = ll.saturate(hlir, step=True)
    next(stepping)
    step = next(stepping)
    found = stepping.stop()
    assert found.parts[0].classes == step.egraph.parts[0].classes
    assert found.parts[0].report.stopped == "stopped by the caller"
    assert list(stepping) == []
    with ll.saturate(hlir, step=True) as other:
        next(other)
    assert list(other) == []


def test_limits_are_the_same() -> None:
    hlir, _ = program("llama")
    for limits in (ll.Limits(iterations=3), ll.Limits(rows=900)):
        whole = saturate(hlir, limits=limits)
        stepping = ll.saturate(hlir, limits=limits, step=True)
        assert same(stepping.run(), whole)
        assert stepping.egraph.parts[0].report.stopped in ("iteration limit", "row limit")


def test_the_time_that_the_user_takes_does_not_count() -> None:
    hlir, _ = program("softmax")
    stepping = ll.saturate(hlir, limits=ll.Limits(seconds=1.5), step=True)
    next(stepping)
    time.sleep(1.6)
    assert stepping.run().parts[0].report.stopped == "saturated"


def test_it_shows_itself() -> None:
    hlir, _ = program("attention")
    stepping = ll.saturate(hlir, step=True)
    assert "no step" in repr(stepping)
    some = [next(stepping), next(stepping)]
    assert "the program as captured" in repr(some[0])
    assert "mul-commutes" in repr(some[1])
    assert "iteration 1" in repr(stepping)
    for shown in (*some, stepping):
        assert set(shown._repr_mimebundle_()) == {"text/plain", "text/html"}
    heard = []
    stepping = ll.saturate(hlir, step=True, progress=lambda k, record: heard.append(record))
    stepping.run()
    assert [r.number for r in heard] == list(range(len(heard)))
