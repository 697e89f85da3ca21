"""`capture`: weights, mutations, aliases, structures, provenance, fallbacks, dynamic shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from luminal_lab.capture import capture
from luminal_lab.errors import CaptureError
from luminal_lab.hlir import check, run
from tests.capture.eager import close


def outputs(hlir, args, compute="native"):
    return run(check(hlir), list(args), compute=compute)


# ---------------------------------------------------------------------- weights
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids) * self.scale)


def test_weights_are_the_users_own_tensors_and_tied_ones_are_one() -> None:
    module, ids = Tied(), torch.tensor([1, 2])
    hlir = capture(module, (ids,))
    assert [(s.name, s.kind) for s in hlir.inputs] == [
        ("embed.weight", "weight"),
        ("scale", "weight"),
        ("ids", "arg"),
    ]
    assert hlir.weights["embed.weight"] is module.embed.weight
    assert hlir.weights["scale"] is module.scale
    with torch.no_grad():
        module.embed.weight.mul_(3)
    close(outputs(hlir, [ids])[0], module(ids).detach())


def test_an_unused_weight_is_left_out_and_an_unused_argument_stays() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.used(b)

    hlir = capture(Part(), (torch.randn(2), torch.randn(2)))
    names = [(s.name, s.position) for s in hlir.inputs if s.kind == "arg"]
    assert names == [("a", 0), ("b", 1)]
    assert sorted(hlir.weights) == ["used.bias", "used.weight"]


def test_a_tensor_that_a_function_closes_over_is_a_constant() -> None:
    table = torch.randn(3)
    hlir = capture(lambda x: x + table, (torch.ones(3),))
    (constant,) = [s for s in hlir.inputs if s.kind == "constant"]
    assert torch.equal(hlir.weights[constant.name], table)
    close(outputs(hlir, [torch.ones(3)])[0], table + 1)


# ---------------------------------------------------------------------- outputs
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum()
        cache[0] = x
        return x * self.seen


def test_mutations_come_before_user_outputs() -> None:
    module = Counter()
    x, cache = torch.tensor([1.0, 2.0]), torch.zeros(3, 2)
    hlir = capture(module, (x, cache))
    assert [s.mutates for s in hlir.outputs] == ["seen", "cache", None]
    seen, written, result = outputs(hlir, [x, cache])
    close(result, module(x, cache))
    close(seen, module.seen)
    close(written, cache)


def test_batch_norm_statistics_are_mutations() -> None:
    module = nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    hlir = capture(module, (x,))
    before = {s.mutates: o for s, o in zip(hlir.outputs, outputs(hlir, [x]))}
    want = module(x)
    close(before.pop(None), want.detach())
    for name, value in before.items():
        close(value, module.get_buffer(name))
    assert sorted(before) == ["num_batches_tracked", "running_mean", "running_var"]


def test_an_output_that_is_an_input_says_so() -> None:
    module = nn.Linear(2, 2)
    hlir = capture(lambda x, y: (x, y + 1, x), (torch.ones(2), torch.ones(2)))
    assert [s.aliases for s in hlir.outputs] == ["x", None, "x"]
    assert len({s.name for s in hlir.outputs}) == 3
    hlir = capture(_Returns(module), (torch.ones(2),))
    assert hlir.outputs[1].aliases == "inner.weight"


class _Returns(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), self.inner.weight


def test_strides_are_those_of_eager_where_dense() -> None:
    x = torch.randn(2, 3, 4)
    hlir = capture(lambda x: [x.transpose(0, 2), x + 1, x.expand(5, 2, 3, 4)], (x,))
    assert [s.stride for s in hlir.outputs] == [(1, 4, 12), None, None]
    hlir = capture(lambda x: x * 2, (x.transpose(0, 1),))
    assert hlir.outputs[0].stride == (4, 12, 1)


def test_structures_with_none_numbers_and_keywords() -> None:
    def fn(x, *, pair, scale=2, mode=None):
        a, b = pair["a"], pair["b"]
        return {"sum": x + a, "rest": (None, b * scale, 7, [x.shape[0]], mode)}

    x, pair = torch.ones(2), {"a": torch.ones(2), "b": torch.full((2,), 3.0)}
    hlir = capture(fn, (x,), {"pair": pair, "scale": 5, "mode": "fast"})
    assert [s.name for s in hlir.inputs] == ["x", "pair_a", "pair_b"]
    got = hlir.out_spec.unflatten(outputs(hlir, [x, *pair.values(), 5, "fast"]))
    assert got["rest"][0] is None
    assert got["rest"][2:] == (7, [2], "fast")
    close(got["sum"], x + 1)
    close(got["rest"][1], pair["b"] * 5)


def test_results_of_a_transformers_like_class_come_back_as_it() -> None:
    from collections import OrderedDict

    hlir = capture(lambda x: OrderedDict(last=x + 1, all=(x, x * 2)), (torch.ones(2),))
    got = hlir.out_spec.unflatten(outputs(hlir, [torch.ones(2)]))
    assert isinstance(got, OrderedDict)
    assert list(got) == ["last", "all"]


def test_the_same_tensor_passed_twice_is_two_arguments() -> None:
    x = torch.randn(3)
    hlir = capture(lambda a, b: a * 2 + b, (x, x))
    y = torch.randn(3)
    close(outputs(hlir, [x, y])[0], x * 2 + y)


def test_inputs_of_any_layout() -> None:
    x = torch.randn(4, 6)
    for view in (x.t(), x[:, ::2], x[:1].expand(3, 6), x[0, 0], x[:0]):
        hlir = capture(lambda v: v.flip(0).sum(-1) if v.dim() else v * 2, (view,))
        want = view.flip(0).sum(-1) if view.dim() else view * 2
        close(outputs(hlir, [view])[0], want)


# ---------------------------------------------------------------------- sources
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = helper(layer(x))
        return x


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


@pytest.mark.parametrize("file", ["<stdin>", "<ipython-input-3-0123>", "/tmp/ipykernel_7/9.py"])
def test_lines_of_code_without_a_file_are_the_users_too(file: str) -> None:
    names = dict[str, Any]()
    exec(compile("import torch\ndef fn(x):\n    return torch.exp(x)", file, "exec"), names)
    hlir = capture(names["fn"], (torch.ones(2),))
    assert hlir.nodes[-1].source.line == f"{file}:3 in fn"


def test_who_calls_capture_is_no_line_of_the_program() -> None:
    hlir = capture(nn.Sequential(nn.Linear(2, 2), nn.GELU()), (torch.ones(2),))
    assert not any("test_export" in n.source.line for n in hlir.nodes)
    assert {n.source.module for n in hlir.nodes if n.source.aten} == {"0", "1"}


def test_nodes_know_their_line_module_and_operator() -> None:
    hlir = capture(Block(), (torch.ones(2),))
    select = hlir.nodes[-1]
    assert select.op == "Select"
    assert select.source.aten == "aten.relu.default"
    assert "test_export.py" in select.source.line
    assert select.source.line.endswith("in helper")
    sums = [n.source.module for n in hlir.nodes if n.op == "SumReduce"]
    assert sums == ["layers.0", "layers.1"]


def test_repeated_layers_stay_repeats() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(torch.ones(3, 3).triu(1) > 0, 0.0)

    module = nn.Sequential(Masked(), Masked())
    hlir = capture(module, (torch.randn(3, 3),))
    compute = [n for n in hlir.nodes if n.op not in ("Input", "Constant", "Iota")]
    ops = {k: [n.op for n in compute if n.source.module == k] for k in ("0", "1")}
    assert ops["0"] == ops["1"]
    assert ops["0"]


# ---------------------------------------------------------------------- fallbacks
def test_what_has_no_lowering_is_called_at_run_time_and_listed() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x * 2, dim=-1)
        return values + 1, order

    x = torch.randn(3, 5)
    hlir = capture(fn, (x,))
    for got, want in zip(outputs(hlir, [x]), fn(x)):
        close(got, want)
    (row,) = hlir.fallbacks().to_dict("records")
    assert row["op"] == "aten.sort.default"
    assert row["reason"] == "no lowering"
    assert row["line"].endswith("in fn")
    calls = {n.attrs["call"] for n in hlir.nodes if n.op == "Custom"}
    assert len(calls) == 1


def test_arguments_that_a_lowering_does_not_cover_fall_back_with_a_reason() -> None:
    x = torch.arange(6)
    hlir = capture(lambda x: x & 6, (x,))
    assert hlir.fallbacks()["reason"].tolist() == ["bitwise operations on integers"]
    assert torch.equal(outputs(hlir, [x])[0], x & 6)
    y = torch.randn(2, 5, 7)
    hlir = capture(lambda y: F.adaptive_avg_pool1d(y, 3), (y,))
    close(outputs(hlir, [y])[0], F.adaptive_avg_pool1d(y, 3))


def test_a_fallback_of_a_view_gets_a_stored_tensor() -> None:
    x = torch.randn(4, 6)
    hlir = capture(lambda x: torch.logcumsumexp(x.t()[1:], 0), (x,))
    assert len(hlir.fallbacks()) == 1
    close(outputs(hlir, [x])[0], torch.logcumsumexp(x.t()[1:], 0))


def test_random_numbers_stay_atens() -> None:
    hlir = capture(nn.Dropout(0.5).train(), (torch.ones(100),))
    assert len(hlir.fallbacks()) == 1
    first, second = (outputs(hlir, [torch.ones(100)])[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert not len(capture(nn.Dropout(0.5).eval(), (torch.ones(100),)).fallbacks())


def test_a_fallback_survives_the_text_form() -> None:
    from luminal_lab.hlir import parse

    x = torch.randn(3, 5)
    hlir = capture(lambda x: x.to(torch.float64).cumprod(0).topk(2), (x,))
    again = parse(hlir.text())
    assert again.nodes == hlir.nodes


# ---------------------------------------------------------------------- other inputs, errors
def test_an_exported_program_is_captured_as_it_is() -> None:
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    program = torch.export.export(module, (x,))
    hlir = capture(program)
    close(outputs(hlir, [x])[0], module(x).detach())
    assert hlir.weights["weight"].data_ptr() == module.weight.data_ptr()


def test_errors_say_what_is_wrong() -> None:
    x = torch.ones(2)
    with pytest.raises(CaptureError, match="cannot trace"):
        capture(lambda x: x + 1 if x.sum() > 0 else x, (x,))
    with pytest.raises(CaptureError, match="sparse_coo"):
        capture(lambda x: x.to_sparse().to_dense(), (torch.ones(3, 2),))
    with pytest.raises(CaptureError, match="depends on data"):
        capture(lambda x: x.nonzero(), (x,))


def test_a_region_without_gradients_is_part_of_the_program() -> None:
    class Part(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = torch.exp(x)
            return x * y

    x = torch.randn(3)
    hlir = capture(Part(), (x,))
    close(outputs(hlir, [x])[0], x * x.exp())


# ---------------------------------------------------------------------- dynamic shapes
def test_dynamic_batch_and_sequence() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    module = Layer()
    b, s = torch.export.Dim("b", max=64), torch.export.Dim("s", min=2, max=128)
    hlir = capture(module, (torch.randn(2, 3, 8),), dynamic_shapes={"x": {0: b, 1: s}})
    assert set(hlir.symbols.values()) == {(2, 128), (1, 64)} or len(hlir.symbols) == 2
    for shape in ((2, 3, 8), (5, 17, 8), (1, 2, 8)):
        x = torch.randn(shape)
        close(outputs(hlir, [x])[0], module(x).detach())


def test_dynamic_attention_scores() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1)

    s, t = torch.export.Dim("s", max=64), torch.export.Dim("t", max=64)
    hlir = capture(
        fn, (torch.randn(2, 5, 4), torch.randn(2, 7, 4)), dynamic_shapes=({1: s}, {1: t})
    )
    q, k = torch.randn(2, 9, 4), torch.randn(2, 3, 4)
    close(outputs(hlir, [q, k])[0], fn(q, k))


def test_a_reshape_may_merge_and_split_symbolic_dims() -> None:
    s = torch.export.Dim("s", max=64)
    hlir = capture(lambda x: x.reshape(-1) * 2, (torch.randn(5, 4),), dynamic_shapes=({0: s},))
    assert hlir.fallbacks().empty
    x = torch.randn(9, 4)
    close(outputs(hlir, [x])[0], x.reshape(-1) * 2)
