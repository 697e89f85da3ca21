"""Repeats in repeats, and unrolled loops: searched once, whatever their number, and right."""

import pytest
import torch

import luminal_lab as ll
from luminal_lab.hlir import check, partition, run
from luminal_lab.search import search
from tests.search.agreement import ROUNDED, Evaluated, unrounded


class Expert(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = (
            torch.nn.Linear(width, 2 * width),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Mixed(torch.nn.Module):
    """A layer: a gate of its own over equal experts."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.gate = torch.nn.Linear(width, experts)
        self.experts = torch.nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x):
        y = self.norm(x)
        share = torch.softmax(self.gate(y), -1)
        return x + sum(share[:, k : k + 1] * e(y) for k, e in enumerate(self.experts))


def mixed(layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Mixed(16, 4) for _ in range(layers))).eval(), torch.randn(
        5, 16
    )


def test_experts_in_layers_cost_what_one_layer_costs():
    sizes = {}
    for layers in (1, 3):
        module, x = mixed(layers)
        egraph = ll.saturate(ll.capture(module, (x,)))
        sizes[layers] = [p.size for p in egraph.parts]
    assert sizes[1] == sizes[3]
    assert len(egraph.program.instances) == 3 * (4 + 2)
    result = search(egraph, ll.Budget("none"))
    with torch.no_grad():
        found = ll.build(result.best)(x)
        exact = module.double()(x.double())
    assert (found - exact).abs().max() < 1e-5


# ------------------------------------------------------------------- steps at offsets
class Unrolled(torch.nn.Module):
    """A recurrent cell over the steps of a sequence, forwards or backwards."""

    def __init__(self, cell: torch.nn.Module, backwards: bool = False):
        super().__init__()
        self.cell, self.backwards = cell, backwards

    def forward(self, x):
        state = x.new_zeros(x.shape[0], self.cell.hidden_size)
        two = isinstance(self.cell, torch.nn.LSTMCell)
        state = (state, state) if two else state
        steps = range(x.shape[1])
        for t in reversed(steps) if self.backwards else steps:
            state = self.cell(x[:, t], state)
        return state


class Whole(torch.nn.Module):
    """A layer of PyTorch, which its decomposition unrolls; its last state."""

    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0][:, -1]


LOOPS = {
    "lstm-cell": lambda: Unrolled(torch.nn.LSTMCell(6, 8)),
    "lstm-cell-backwards": lambda: Unrolled(torch.nn.LSTMCell(6, 8), backwards=True),
    "rnn-cell": lambda: Unrolled(torch.nn.RNNCell(6, 8)),
    "gru-cell": lambda: Unrolled(torch.nn.GRUCell(6, 8)),
    "lstm": lambda: Whole(torch.nn.LSTM(6, 8, batch_first=True)),
    "lstm-of-two": lambda: Whole(torch.nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)),
}


def unrolled(kind: str, steps: int):
    torch.manual_seed(0)
    module, x = LOOPS[kind]().eval(), torch.randn(3, steps, 6)
    with torch.no_grad():
        return module, x, ll.capture(module, (x,))


QUICK = ("lstm-cell-backwards", "rnn-cell", "lstm-of-two")


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in LOOPS]
)
def test_an_unrolled_recurrence_is_one_step(kind):
    _, x, hlir = unrolled(kind, 32)
    program = partition(hlir)
    counts = [
        sum(i.region == k for i in program.instances) for k in range(len(program.regions))
    ]
    assert max(counts) >= 30
    assert max(len(r.hlir.nodes) for r in program.regions) < len(hlir.nodes) / 3
    for a, b in zip(run(hlir, (x,)), program.run((x,)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    for region in program.regions:
        check(region.hlir)
    assert [r.key for r in partition(hlir).regions] == [r.key for r in program.regions]


def test_steps_at_offsets_of_a_batch_of_any_size():
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    module = Unrolled(torch.nn.GRUCell(6, 8)).eval()
    with torch.no_grad():
        hlir = ll.capture(module, (torch.randn(3, 12, 6),), dynamic_shapes=({0: batch},))
    program = partition(hlir)
    assert max(sum(i.region == k for i in program.instances) for k in range(2)) >= 11


def test_saturation_of_a_recurrence_does_not_grow_with_its_steps():
    sizes = [
        sum(p.size for p in ll.saturate(unrolled("lstm-cell", steps)[2]).parts)
        for steps in (10, 30)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "kind",
    [
        "lstm-cell-backwards",
        "lstm",
        pytest.param("lstm-cell", marks=pytest.mark.slow),
        pytest.param("lstm-of-two", marks=pytest.mark.slow),
    ],
)
def test_an_unrolled_recurrence_is_right(kind):
    module, x, hlir = unrolled(kind, 9)
    egraph = ll.saturate(hlir)
    result = search(egraph, ll.Budget("none"))
    with torch.no_grad():
        found = ll.build(result.best)(x)
        exact = module.double()(x.double())
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, exact))):
        assert (a - b).abs().max() < 1e-5


def test_all_candidates_of_a_recurrence_agree():
    _, x, hlir = unrolled("lstm-cell", 9)
    with unrounded():
        seen = Evaluated(ll.saturate(hlir), [x.double()])
        assert not seen.disagreements(ll.sample(seen.egraph, 12), ROUNDED[torch.float32])


def test_weights_at_offsets_stay_where_they_are():
    """What reads a weight at an offset is packed at build time: no counter may stand there."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(9, 8, 8) / 3)

    class Stacked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            for k in range(9):
                x = torch.tanh(torch.nn.functional.linear(x, self.weight[k])) + x
            return x

    hlir = ll.capture(Stacked(), (torch.randn(3, 8),))
    nodes = [n for r in partition(hlir).regions for n in r.hlir.nodes]
    assert not any(n.op == "Gather" for n in nodes)
