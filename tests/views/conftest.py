"""Small real stage objects whose names would do harm if they were not escaped."""

from __future__ import annotations

import pytest

from luminal_lab.egraph.egraph import EGraph
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.graph import Hlir, Source
from luminal_lab.hlir.tensor import Graph, Tensor
from luminal_lab.search.budget import Budget
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.machine import Machine
from luminal_lab.search.result import Result

HOSTILE = "<script>alert('1')</script>&\"q"


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """(…, m, k) by (…, k, n), as the primitives say it."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    d = len(batch)
    left = a.unsqueeze(d + 1).expand((*batch, m, n, k))
    right = b.transpose(d, d + 1).unsqueeze(d).expand((*batch, m, n, k))
    return (left * right).sum(d + 2)


@pytest.fixture(scope="session")
def attention() -> Hlir:
    """Naive attention, 19 nodes, with hostile names."""
    g = Graph(HOSTILE)
    g.source = Source(f"{HOSTILE}.py:3 in forward", f"block.{HOSTILE}", "aten.matmul.default")
    q, k, v = (g.input(name, (1, 2, 32, 8), F32) for name in ("q", HOSTILE, "v"))
    scores = matmul(q, k.transpose(2, 3)) * 0.125
    return g.finish(matmul(F.softmax(scores, 3), v))


@pytest.fixture(scope="session")
def layers() -> Hlir:
    """Six equal layers and a head, enough to be folded."""
    g = Graph("layers")
    x = g.input("x", (4, 16), F32)
    for i in range(6):
        g.source = Source("", f"net.layer.{i}.linear", "aten.linear.default")
        w = g.input(f"net.layer.{i}.weight", (16, 16), F32, "weight")
        h = matmul(x, w.transpose(0, 1))
        g.source = Source("", f"net.layer.{i}.act", "aten.gelu.default")
        h = F.gelu(F.softmax(h, 1))
        g.source = Source("", f"net.layer.{i}", "aten.add.Tensor")
        x = x + h
    g.source = Source("", "head", "aten.softmax.int")
    return g.finish((F.softmax(x, 1), {"name": "probabilities"}))


@pytest.fixture(scope="session")
def egraph(attention: Hlir) -> EGraph:
    from luminal_lab.egraph.saturate import saturate

    return saturate(attention)


@pytest.fixture(scope="session")
def layers_egraph(layers: Hlir) -> EGraph:
    from luminal_lab.egraph.saturate import saturate

    return saturate(layers)


@pytest.fixture(scope="session")
def result(egraph: EGraph) -> Result:
    """A search by the cost model alone."""
    from luminal_lab.search.run import search

    return search(egraph, Budget("none", candidates=8))


@pytest.fixture(scope="session")
def one_pass(egraph: EGraph, result: Result) -> Candidate:
    """A candidate of one kernel with a one-pass form."""
    for candidate in result.candidates:
        ops = "\n".join(map(repr, (o.value for k in candidate.kernels for o in k.outputs)))
        if len(candidate.kernels) == 1 and "online" in ops:
            return candidate
    raise AssertionError("no candidate has the one-pass form")


@pytest.fixture(scope="session")
def profile():
    """A made-up profile: two kernels, one of them too fast to be true."""
    from luminal_lab.runtime.profiling import CallTime, KernelTime, Profile

    machine = Machine()
    calls = (
        CallTime(0, 0, "k0", HOSTILE, 0.0, (1e-3, 1.1e-3, 1.2e-3)),
        CallTime(1, 1, f"k1{HOSTILE}", "layer.0", 1.2e-3, (2e-6, 2e-6, 3e-6)),
        CallTime(2, 1, f"k1{HOSTILE}", "layer.1", 1.3e-3, (2e-6, 2e-6, 2e-6)),
    )
    kernels = (
        KernelTime(0, "k0", 1, calls[0].seconds, 1 << 20, 3e9, 1e-4, False),
        KernelTime(1, f"k1{HOSTILE}", 2, (4e-6, 4e-6, 5e-6), 1 << 30, 0.0, 1e-2, True),
    )
    return Profile(HOSTILE, machine, calls, kernels, (1.4e-3, 1.5e-3, 1.6e-3))
