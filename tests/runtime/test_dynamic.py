"""Programs with symbolic sizes: one compile, right at every size, clear errors out of range."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import luminal_lab as ll
from luminal_lab.errors import CallError
from luminal_lab.hlir import Hlir, run, specialize
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.execute import run_candidate, sized_candidate
from luminal_lab.search.inputs import search_inputs

B, S = Dim("b", min=1, max=8), Dim("s", min=1, max=200)


class Attention(nn.Module):
    """Pre-norm causal attention with a residual."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = (
            y.view(b, s, self.heads, d // self.heads).transpose(1, 2)
            for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, s, d))


def concatenated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.cat([x, y], 1), 1)


def halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return torch.cat([x[:, half:] * 2, x], 1) + x.mean(1, keepdim=True)


def scattered(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, i, y) * x.shape[0]


X = torch.randn(3, 9, 32)
PROGRAMS: dict[str, tuple[Any, tuple[torch.Tensor, ...], Any]] = {
    "pointwise": (lambda x: F.gelu(x * 2) + 1, (X,), ({0: B, 1: S},)),
    "column sums": (lambda x: x.sum((0, 1)), (X,), ({0: B, 1: S},)),
    "softmax": (lambda x: torch.softmax(x, 1), (X,), ({0: B, 1: S},)),
    "places": (lambda x: (x.argmax(1), (x * 3).min(2)[1]), (X,), ({0: B, 1: S},)),
    "linear": (nn.Linear(32, 40), (X,), ({0: B, 1: S},)),
    "product": (lambda x: x @ x.transpose(1, 2), (X,), ({0: B, 1: S},)),
    "attention": (Attention(), (X,), ({0: B, 1: S},)),
    "flat": (lambda x: x.reshape(-1, 32).var(0), (X,), ({0: B, 1: Dim("s", min=2, max=99)},)),
    "cat": (
        concatenated,
        (X, X[:, :5].clone()),
        ({0: B, 1: S}, {0: B, 1: Dim("t", min=1, max=40)}),
    ),
    "halves": (halves, (X,), ({0: B, 1: Dim.DYNAMIC(max=150)},)),
    "scatter": (
        scattered,
        (X[0].clone(), torch.tensor([1, 3, 1]), X[0, :3].clone()),
        ({0: Dim("n", min=2, max=90)}, {0: S}, {0: S}),
    ),
    "embedding": (nn.Embedding(50, 8), (torch.arange(6).view(2, 3),), ({0: B, 1: S},)),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def captured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Hlir, list[Candidate]]:
    """A program, and candidates from its e-graph, which went through a file."""
    torch.manual_seed(0)
    module, args, shapes = PROGRAMS[request.param]
    hlir = ll.capture(module, args, dynamic_shapes=shapes)
    assert hlir.symbols
    egraph = ll.saturate(hlir)
    path = tmp_path_factory.mktemp("sized") / "x.egraph"
    egraph.save(path)
    loaded = ll.load(path)
    for part, read in zip(egraph.parts, loaded.parts, strict=True):
        assert read.classes == part.classes
        assert dict(read.extents) == dict(part.extents)
    return hlir, ll.sample(loaded, 3)


def sizes_of(hlir: Hlir, count: int, top: int = 1 << 30) -> Iterator[dict[str, int]]:
    """Least and greatest sizes, then random ones."""
    yield {n: low for n, (low, _) in hlir.symbols.items()}
    yield {n: min(high, top) for n, (_, high) in hlir.symbols.items()}
    rng = random.Random(0)
    for _ in range(count - 2):
        yield {n: rng.randint(low, min(high, top)) for n, (low, high) in hlir.symbols.items()}


def inputs_at(hlir: Hlir, sizes: dict[str, int]) -> tuple[list[torch.Tensor], list[Any], dict]:
    fixed = specialize(hlir, sizes)
    made = search_inputs(fixed, hlir.weights)
    args = [made[s.name] for s in fixed.inputs if s.kind == "arg"]
    return args, run(fixed, args), made


def test_candidates_are_right_in_float64(captured: tuple[Hlir, list[Candidate]]) -> None:
    hlir, candidates = captured
    for sizes in sizes_of(hlir, 4, 11):
        _, want, made = inputs_at(hlir, sizes)
        for candidate in candidates:
            got = run_candidate(sized_candidate(candidate, sizes), made)
            for spec, y in zip(hlir.outputs, want):
                torch.testing.assert_close(
                    got[spec.name].double(), y.double(), rtol=1e-6, atol=1e-6
                )
    for candidate in candidates:
        assert Candidate.parse(candidate.text(), hlir).text() == candidate.text()


def test_one_library_is_right_at_twenty_sizes(
    captured: tuple[Hlir, list[Candidate]], c_compiler: object
) -> None:
    hlir, candidates = captured
    for candidate in candidates:
        exe = ll.build(candidate)
        for sizes in sizes_of(hlir, 20):
            args, want, _ = inputs_at(hlir, sizes)
            got = exe(*args)
            for g, y in zip(got if isinstance(got, tuple) else [got], want):
                assert g.shape == y.shape
                torch.testing.assert_close(g.double(), y.double(), rtol=2e-4, atol=2e-5)


def compiled() -> Callable[..., torch.Tensor]:
    return ll.compile(
        Attention(), (X,), dynamic_shapes={"x": {0: B, 1: S}}, budget=ll.Budget("none")
    )


def test_sizes_out_of_range_are_told(c_compiler: object) -> None:
    exe = compiled()
    for shape, message in (
        ((9, 4, 32), r"dim 0 of 'x' is 9, outside of the bounds \[1, 8\]"),
        ((2, 201, 32), r"dim 1 of 'x' is 201, outside of the bounds \[1, 200\]"),
        ((2, 0, 32), r"dim 1 of 'x' is 0, outside"),
        ((2, 4, 31), "dim 2 of 'x' is 31, expected 32"),
        ((2, 4), "has shape"),
    ):
        with pytest.raises(CallError, match=message):
            exe(torch.randn(shape))
    with pytest.raises(CallError, match="a tensor is expected"):
        exe("x")
    assert exe(torch.randn(2, 4, 32)).shape == (2, 4, 32)


def test_threads_call_with_sizes_of_their_own(c_compiler: object) -> None:
    torch.manual_seed(0)
    module = Attention()
    exe = ll.compile(module, (X,), dynamic_shapes={"x": {0: B, 1: S}}, budget=ll.Budget("none"))
    wrong: list[tuple[int, int]] = []

    def calls(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(15):
            shape = rng.randint(1, 8), rng.randint(1, 50)
            x = torch.randn(*shape, 32)
            with torch.no_grad():
                if not torch.allclose(exe(x), module(x), rtol=1e-3, atol=1e-4):
                    wrong.append(shape)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_saved_executable_takes_sizes(tmp_path: Any, c_compiler: object) -> None:
    exe = compiled()
    exe.save(tmp_path / "exe")
    back = ll.load(tmp_path / "exe")
    x = torch.randn(2, 13, 32)
    torch.testing.assert_close(back(x), exe(x))


def test_strides_follow_eager_at_every_size(c_compiler: object) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).transpose(0, 1)

    exe = ll.compile(fn, (X,), dynamic_shapes=({0: B, 1: S},), budget=ll.Budget("none"))
    for b, s in itertools.product((2, 5), (3, 70)):
        x = torch.randn(b, s, 32)
        assert exe(x).stride() == fn(x).stride()
        torch.testing.assert_close(exe(x), fn(x))
