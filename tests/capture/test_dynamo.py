"""The torch.compile backend: forward, backward, mutation, options, frozen weights, sizes.

The pipeline behind it is replaced by the reference interpreter: these tests are about capture.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from luminal_lab.capture import dynamo
from luminal_lab.capture.dynamo import Options, backend
from luminal_lab.errors import CallError
from luminal_lab.hlir import Hlir, check, run
from tests.capture import models


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Hlir]]:
    """The graphs that were compiled, each executed by the interpreter."""
    seen: list[Hlir] = []

    def compile_(self: Options, hlir: Hlir) -> Callable[..., tuple[torch.Tensor, ...]]:
        seen.append(check(hlir))
        names = {s.name: s.position for s in hlir.inputs if s.kind == "arg"}

        def call(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            got = run(hlir, list(args), compute="native")
            return tuple(
                args[names[s.aliases]] if s.aliases in names
                else hlir.weights[s.aliases] if s.aliases
                else g.clone()
                for g, s in zip(got, hlir.outputs)
            )  # fmt: skip

        return call

    monkeypatch.setattr(Options, "compile", compile_)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def compiled(fn: Callable, **options: object) -> Callable:
    return torch.compile(fn, backend=backend, options=options or None, fullgraph=True)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_backend_is_an_entry_point() -> None:
    from importlib.metadata import entry_points

    found = entry_points(group="torch_dynamo_backends", name="luminal_lab")
    if not found:
        pytest.skip("the package is not installed")
    (point,) = found
    assert point.load() is backend


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (2, 3)).transpose(1, 2) for t in self.project(x).chunk(3, -1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 6)),
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0),
        lambda: models.LlamaBlock(6, 1, 1, 8),
        lambda: CausalSelfAttention(),
    ],
    ids=["mlp", "encoder", "llama", "causal"],
)
def test_forward_and_backward(make: Callable[[], nn.Module], graphs: list[Hlir]) -> None:
    module = make()
    twin = copy.deepcopy(module)
    x = torch.randn(2, 4, 6, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    got, want = compiled(module)(x), twin(y)
    close(got, want)
    weights = torch.randn_like(want)
    (got * weights).sum().backward()
    (want * weights).sum().backward()
    close(x.grad, y.grad)
    for a, b in zip(module.parameters(), twin.parameters()):
        close(a.grad, b.grad)
    assert len(graphs) == 2
    assert all(not len(g.fallbacks()) for g in graphs)


def test_training_follows_eager() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    twin = copy.deepcopy(module)
    step = compiled(module)
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    losses: dict[bool, list[float]] = {True: [], False: []}
    for ours, net, fn in ((True, module, step), (False, twin, twin)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(8):
            optimizer.zero_grad()
            loss = F.cross_entropy(fn(x), y)
            loss.backward()
            optimizer.step()
            losses[ours].append(loss.item())
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


def test_inference_under_no_grad(graphs: list[Hlir]) -> None:
    module = models.convolutional().eval()
    x = torch.randn(1, 3, 32, 32)
    fn = compiled(module)
    with torch.no_grad():
        close(fn(x), module(x))
    with torch.inference_mode():
        close(fn(x), module(x))
    assert all(not len(g.fallbacks()) for g in graphs)
    assert all(s.kind == "arg" for s in graphs[0].inputs)


def test_mutation_aliases_none_and_numbers() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple:
        x.add_(1)
        return x, y.t(), None, 3, y[0]

    x, y = torch.zeros(2, 3), torch.randn(2, 4)
    got = compiled(fn)(x, y)
    assert got[0] is x
    close(x, torch.ones(2, 3))
    assert got[1].data_ptr() == y.data_ptr()
    assert got[2:4] == (None, 3)
    close(got[4], y[0])


def test_batch_norm_statistics_are_written_back() -> None:
    module, twin = nn.BatchNorm1d(4).train(), nn.BatchNorm1d(4).train()
    x = torch.randn(5, 4)
    close(compiled(module)(x), twin(x))
    close(module.running_mean, twin.running_mean)
    close(module.running_var, twin.running_var)
    assert module.num_batches_tracked == 1


def test_frozen_weights_are_constants_and_changes_are_seen(graphs: list[Hlir]) -> None:
    module = nn.Linear(4, 3)
    fn = compiled(module, freeze=True)
    x = torch.randn(2, 4)
    with torch.no_grad():
        close(fn(x), module(x))
        assert sorted(s.kind for s in graphs[-1].inputs) == ["arg", "weight", "weight"]
        assert any(w is module.weight for w in graphs[-1].weights.values())
        module.weight.mul_(2)
        close(fn(x), module(x))
        module.weight = nn.Parameter(torch.randn(3, 4))
        close(fn(x), module(x))


def test_freeze_is_for_inference_only(graphs: list[Hlir]) -> None:
    module = nn.Linear(4, 3)
    compiled(module, freeze=True)(torch.randn(2, 4)).sum().backward()
    assert all(s.kind == "arg" for g in graphs for s in g.inputs)


def test_symbolic_sizes_are_compiled_once(graphs: list[Hlir]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(0) * x.shape[0]

    program = torch.compile(fn, backend=backend, dynamic=True)
    for n in (4, 6, 8, 4, 6, 101):
        x = torch.randn(n, 3, 2)
        close(program(x), fn(x))
    assert len(graphs) == 1


def test_a_marked_dim_is_compiled_once(graphs: list[Hlir]) -> None:
    module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(1))
    program = torch.compile(module, backend=backend)
    with torch.no_grad():
        for b, n in ((2, 4), (3, 6), (5, 9)):
            x = torch.randn(b, n, 8)
            for d in (0, 1):
                torch._dynamo.mark_dynamic(x, d, min=2, max=64)
            close(program(x), module(x))
    (graph,) = graphs
    assert set(graph.symbols.values()) == {(2, 64)}


def test_a_growing_cache_is_compiled_three_times_at_most(graphs: list[Hlir]) -> None:
    def step(
        x: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        k, v = torch.cat([k, x], 1), torch.cat([v, x * 2], 1)
        return F.scaled_dot_product_attention(x, k, v), k, v

    program = torch.compile(step, backend=backend, fullgraph=True)
    k = v = torch.randn(2, 5, 4)
    for _ in range(8):
        x = torch.randn(2, 1, 4)
        want = step(x, k, v)
        y, k, v = program(x, k, v)
        close(y, want[0])
        close(k, want[1])
    assert len(graphs) <= 3


def test_what_needs_numbers_is_compiled_per_size(
    graphs: list[Hlir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "SHAPES", 3)

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n + x.shape[0]

    program = torch.compile(fn, backend=backend, dynamic=True)
    for n in (4, 6, 8, 4, 6):
        x = torch.randn(n, 3)
        close(program(x, n + 1), fn(x, n + 1))
    assert all(isinstance(d, int) for g in graphs[-3:] for n in g.nodes for d in n.shape)
    with pytest.raises(CallError, match="more than 3 sizes"):
        program(torch.randn(10, 3), 11)


def test_a_number_is_an_input() -> None:
    program = torch.compile(lambda x, n: x * n + n, backend=backend, dynamic=True)
    for n in (2, 3, 5):
        close(program(torch.ones(3), n), torch.ones(3) * n + n)


def test_graph_breaks_and_autocast() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    program = torch.compile(fn, backend=backend)
    for x in (torch.ones(3), -torch.ones(3)):
        close(program(x), fn(x))
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = torch.compile(module, backend=backend)(x), module(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_kernels_are_verified_on_request() -> None:
    x = torch.randn(8, 16)
    close(compiled(lambda x: x.softmax(-1), effort="none", verify=True)(x), x.softmax(-1))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match="no option 'speed'"):
        compiled(lambda x: x + 1, speed=9)(torch.ones(2))


def test_zero_sized_and_scalar_inputs() -> None:
    fn = compiled(lambda x, s: (x * s).sum(0) + s)
    close(fn(torch.ones(0, 3), torch.tensor(2.0)), torch.full((3,), 2.0))
    close(compiled(lambda x: x.flip(0) + 1)(torch.tensor(2.0)), torch.tensor(3.0))


def test_a_tensor_literal_of_the_function() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.tensor(1.5)) * torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(4, 3)
    made = torch.compile(fn, backend="luminal_lab", options={"effort": "none"}, fullgraph=True)
    torch.testing.assert_close(made(x), fn(x))


def test_sums_of_nothing() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vecdot(x, y)

    x, y = torch.ones(0), torch.ones(0)
    made = torch.compile(fn, backend="luminal_lab", options={"effort": "none"}, fullgraph=True)
    torch.testing.assert_close(made(x, y), fn(x, y))


def test_gradients_that_nobody_asks_for_are_left_out() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 1))
    twin = copy.deepcopy(module)
    x = torch.randn(2, 2, 4, 4)  # has no gradient: the convolution's backward gives None for it
    close(compiled(module)(x), twin(x))
    compiled(module)(x).sum().backward()
    twin(x).sum().backward()
    for a, b in zip(module.parameters(), twin.parameters()):
        close(a.grad, b.grad)
