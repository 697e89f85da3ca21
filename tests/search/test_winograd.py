"""Convolutions by fewer multiplications: found by laws, right at all sizes, chosen by cost."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import luminal_lab as ll
from luminal_lab.codegen.schedule import body_of
from luminal_lab.egraph.audit import audit
from luminal_lab.search.kernel_text import kernel_text
from tests.egraph.programs import inputs_of

LAWS = {"winograd-2", "winograd-4"}


def _rules(egraph: ll.EGraph) -> set[str]:
    return {n.rule for p in egraph.parts for c in p.classes for n in c.nodes} & LAWS


def _net(cin: int, cout: int, **options) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(cin, cout, 3, **options), nn.ReLU(), nn.Conv2d(cout, 5, 1))


SHAPES = [(1, 6, 6, 1), (3, 7, 9, 1), (1, 9, 6, 0), (2, 11, 8, 0), (1, 4, 13, 1)]


@pytest.mark.parametrize(("batch", "height", "width", "padding"), SHAPES)
def test_all_forms_agree(batch, height, width, padding):
    net = _net(4, 3, padding=padding).eval()
    x = torch.randn(batch, 4, height, width)
    hlir = ll.capture(net, (x,))
    egraph = ll.saturate(hlir, rules="winograd", regions=False)
    assert _rules(egraph) == LAWS
    assert not audit(egraph.parts[0], inputs_of(egraph, (x,)), 1e-9)


@pytest.mark.parametrize(("batch", "height", "width", "padding"), SHAPES)
def test_compiled_candidates_are_right(batch, height, width, padding):
    net = _net(16, 32, padding=padding).eval()
    x = torch.randn(batch, 16, height, width)
    found = ll.sample(ll.saturate(ll.capture(net, (x,)), rules="winograd"), n=24, seed=0)
    some = [c for c in found if any(LAWS & set(k.rules) for k in c.kernels)][:4]
    assert some
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(x.double())
        for candidate in some:
            error = (ll.build(candidate)(x) - exact).abs().max()
            assert error < 2e-5 * exact.abs().max()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"stride": 2}, (1, 4, 9, 9)),
        ({"dilation": 2}, (1, 4, 9, 9)),
        ({"groups": 4}, (1, 4, 9, 9)),  # nothing is summed beside the taps
        ({}, (1, 4, 5, 5)),  # three places: a tile would be larger
    ],
    ids=["stride", "dilation", "depthwise", "small"],
)
def test_the_laws_stay_out(options, shape):
    net = nn.Conv2d(4, 4, 3, **options).eval()
    egraph = ll.saturate(ll.capture(net, (torch.randn(shape),)), rules="winograd")
    assert not _rules(egraph)


def test_chosen_where_it_pays_with_three_kernels():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.MaxPool2d(2)).eval()
    egraph = ll.saturate(ll.capture(net, (torch.randn(1, 3, 56, 56),)), rules="winograd")
    plain = ll.saturate(egraph.program.hlir)
    best, other = (ll.search(e, ll.Budget("none")).best for e in (egraph, plain))
    calls = [c.kernel for c in best.calls if not c.at_build]
    made = [k for k in calls if LAWS & set(best.kernels[k].rules)]
    assert len(made) == 3  # the image by tiles, products, and results
    assert sum(c.at_build for c in best.calls) == 1  # the weights
    assert not any(LAWS & set(k.rules) for k in other.kernels)
    assert best.seconds < other.seconds


def test_sums_with_tables_are_written_out():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()).eval()
    egraph = ll.saturate(ll.capture(net, (torch.randn(1, 16, 10, 9),)), rules="winograd")
    found = ll.sample(egraph, n=16, seed=0)
    kernels = {
        str(k.outputs[0].buffer): k
        for c in found
        for k in c.kernels
        if "table" in kernel_text(k)
    }
    assert kernels
    for kernel in kernels.values():
        written, block = body_of(kernel, True), body_of(kernel)
        assert len(written.stores()) > len(block.stores())
        for body in (written, block):
            text = " ".join(repr(v) for s in body.stmts for v in s.values)
            assert "table" not in text
