"""Inputs of verification, tolerances and what they catch."""

import torch

import luminal_lab as ll
from luminal_lab.search.inputs import index_bounds, search_inputs
from luminal_lab.search.target import Expected, Measurement, Tolerance


def embedding():
    class Lookup(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(11, 6)

        def forward(self, ids, mask, x):
            return self.table(ids) * mask[..., None] + x.to(torch.float32)

    args = (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool),
            torch.zeros(2, 3, 6, dtype=torch.bfloat16))  # fmt: skip
    return ll.capture(Lookup(), args)


def test_inputs_are_small_finite_and_never_zero():
    hlir = embedding()
    inputs = search_inputs(hlir)
    assert inputs.keys() == {s.name for s in hlir.inputs}
    for spec in hlir.inputs:
        tensor, node = inputs[spec.name], hlir.nodes[spec.node]
        assert tuple(tensor.shape) == node.shape
        if node.dtype.is_float:
            assert bool(torch.isfinite(tensor).all())
            assert bool((tensor != 0).all())
            assert float(tensor.abs().max()) < 4
    again = search_inputs(hlir)
    assert all(torch.equal(inputs[n], again[n]) for n in inputs)
    assert any(not torch.equal(inputs[n], t) for n, t in search_inputs(hlir, seed=1).items())


def test_integers_that_index_stay_in_bounds():
    hlir = embedding()
    (name,) = [s.name for s in hlir.inputs if hlir.nodes[s.node].dtype.name == "i64"]
    assert index_bounds(hlir)[name] == 11
    for seed in range(5):
        ids = search_inputs(hlir, seed=seed)[name]
        assert 0 <= int(ids.min()) <= int(ids.max()) < 11


def test_real_weights_are_used_unless_they_are_not_finite():
    hlir = embedding()
    (name,) = [s.name for s in hlir.inputs if s.kind == "weight"]
    real = hlir.weights[name].detach()
    assert torch.equal(search_inputs(hlir, hlir.weights)[name], real)
    spoiled = real.clone()
    spoiled[0, 0] = float("nan")
    made = search_inputs(hlir, {name: spoiled})[name]
    assert bool(torch.isfinite(made).all())


def expected(values, points=None, absolute=1e-6, relative=1e-6) -> Expected:
    return Expected(points, torch.as_tensor(values), Tolerance(absolute, relative))


def test_a_result_is_judged_by_its_tolerance():
    want = expected([1.0, 2.0, 4.0])
    assert want.check(torch.tensor([1.0, 2.0, 4.0]))[0] == ""
    reason, error, message = want.check(torch.tensor([1.0, 2.5, 4.0]))
    assert (reason, error) == ("wrong", 0.5)
    assert "element 1: got 2.5, want 2" in message
    assert expected([1.0, 2.0], absolute=0.6).check(torch.tensor([1.5, 2.5]))[0] == ""


def test_only_the_points_are_compared():
    want = expected([1.0, 3.0], torch.tensor([0, 2]))
    assert want.check(torch.tensor([1.0, 9.0, 3.0]))[0] == ""
    assert "element 2" in want.check(torch.tensor([1.0, 2.0, 4.0]))[2]


def test_nan_and_infinity_must_be_where_they_belong():
    nan, inf = float("nan"), float("inf")
    want = expected([1.0, nan, inf, -inf])
    assert want.check(torch.tensor([1.0, nan, inf, -inf]))[0] == ""
    assert want.check(torch.tensor([nan, nan, inf, -inf]))[0] == "nan"
    assert want.check(torch.tensor([1.0, 2.0, inf, -inf]))[0] == "wrong"
    assert want.check(torch.tensor([1.0, nan, -inf, -inf]))[0] == "wrong"


def test_integers_must_be_equal():
    want = expected([1, 2, 3])
    assert want.check(torch.tensor([1, 2, 3]))[0] == ""
    assert want.check(torch.tensor([1, 2, 4]))[0] == "wrong"
    assert expected([True, False]).check(torch.tensor([True, True]))[0] == "wrong"


def test_median_and_spread():
    m = Measurement(True, (1.0, 2.0, 3.0, 4.0, 100.0))
    assert m.median == 3.0
    assert m.iqr == 2.0
    assert Measurement(True).median is None
    assert Measurement(True, (1.0,)).iqr == 0.0
