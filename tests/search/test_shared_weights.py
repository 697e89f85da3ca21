"""Products of several operands with one weight: the weight is read once."""

import pytest
import torch

import luminal_lab as ll
from luminal_lab.search import search
from tests.search.agreement import ROUNDED, Evaluated, unrounded

WIDE, STEPS = 512, 4


class Recurrence(torch.nn.Module):
    """A gated recurrent cell over a few steps, unrolled."""

    def __init__(self, batch: int):
        super().__init__()
        self.batch = batch
        names = ("take", "keep")
        self.inputs = torch.nn.ModuleDict({n: torch.nn.Linear(WIDE, WIDE) for n in names})
        self.states = torch.nn.ModuleDict({n: torch.nn.Linear(WIDE, WIDE) for n in names})

    def forward(self, state, *steps):
        for x in steps:
            take, keep = (self.inputs[n](x) + self.states[n](state) for n in self.inputs)
            state = torch.sigmoid(keep) * state + torch.tanh(take)
        return state


def made(batch):
    torch.manual_seed(0)
    module = Recurrence(batch).eval()
    args = tuple(torch.randn(batch, WIDE) for _ in range(STEPS + 1))
    return (
        module,
        args,
        ll.saturate(
            ll.capture(module, args),
            rules="stacking",
            regions=False,  # steps are repeats
        ),
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_what_does_not_wait_for_the_state_is_one_product(batch):
    module, args, egraph = made(batch)
    result = search(egraph, ll.Budget("none"))
    shared = [b.shape for b in result.best.buffers.values() if b.shape[0] == STEPS]
    assert (STEPS, batch, WIDE) in shared
    with torch.no_grad():
        found = ll.build(result.best)(*args)
        exact = module.double()(*(x.double() for x in args))
    assert (found - exact).abs().max() < 1e-5


def test_all_candidates_agree():
    _, args, egraph = made(3)
    wide = [x.double() for x in args]
    with unrounded():
        seen = Evaluated(egraph, wide)
        assert not seen.disagreements(ll.sample(egraph, 40), ROUNDED[torch.float32])
