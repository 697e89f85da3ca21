"""Gather and Scatter: embedding, advanced indexing, scatter, masks, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from luminal_lab.capture import capture
from luminal_lab.errors import CaptureError
from tests.capture.eager import agrees

X = torch.randn(4, 5, 6)
I = torch.tensor([[0, 3, -1], [2, -4, 1]])  # noqa: E741
J = torch.tensor([[1, -5, 4], [0, 0, 2]])
READS = {
    "first": lambda x, i, j: x[i],
    "second": lambda x, i, j: x[:, j],
    "last": lambda x, i, j: x[..., i],
    "adjacent": lambda x, i, j: x[i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "tail": lambda x, i, j: x[:, i, j],
    "all": lambda x, i, j: x[i, j, i],
    "with a number": lambda x, i, j: x[i, 2],
    "vector": lambda x, i, j: x[i[0], j[1]],
    "of a view": lambda x, i, j: x.transpose(0, 1)[::2, i],
    "outer": lambda x, i, j: x[i[:1].t(), j[1]],
    "arange": lambda x, i, j: x[torch.arange(3), j[0]],
    "index_select": lambda x, i, j: x.index_select(1, i[0].abs()),
    "gather": lambda x, i, j: x.gather(1, i.abs()[:, None].expand(2, 2, 3)),
    "take": lambda x, i, j: x.take(i * 3),
    "take_along_dim": lambda x, i, j: x[0, :2].take_along_dim(j.abs(), 1),
    "embedding": lambda x, i, j: F.embedding(i.abs(), x[0]),
    "one_hot": lambda x, i, j: F.one_hot(i.abs(), 5) + j[..., None],
    "int32": lambda x, i, j: x[i.int()],
}


@pytest.mark.parametrize("name", READS)
def test_reading_at_tensors(name: str) -> None:
    agrees(READS[name], X, I, J)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16], ids=str
)
def test_reading_keeps_any_dtype(dtype: torch.dtype) -> None:
    agrees(lambda x, i: [x[i], x[:, i.abs()]], (X * 3).abs().to(dtype), I)


WRITES = {
    "scatter": lambda x, i, s: x.scatter(1, i[:, None].expand(2, 1, 3).abs(), s[:2, :1, :3]),
    "scatter value": lambda x, i, s: x.scatter(2, i[:, None].abs(), 7.0),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i[:, None].abs(), s[:2, :1, :3]),
    "scatter_add dup": lambda x, i, s: x.scatter_add(0, i[:, None] * 0, s[:2, :1, :3]),
    "index_put": lambda x, i, s: x.index_put((i,), s[0, 0, 0]),
    "index_put 2": lambda x, i, s: x.index_put((i[0], i[1] + 1), s[:3, 0]),
    "index_put add": lambda x, i, s: x.index_put((i * 0,), s[0, 0], accumulate=True),
    "index_add": lambda x, i, s: x.index_add(1, i[0].abs(), s[:, :3], alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(1, i[0].abs(), s[:, :3]),
    "masked": lambda x, i, s: torch.where(x > 0, s, x),
    "bool number": lambda x, i, s: x.index_put((x > 0,), torch.tensor(5.0)),
    "bool rows": lambda x, i, s: x.index_put((x[:, 0, 0] > 0,), torch.tensor(0.0)),
    "bool add": lambda x, i, s: x.index_put((x > 0,), torch.tensor(5.0), accumulate=True),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_writing_at_tensors(name: str) -> None:
    agrees(WRITES[name], X, I, torch.randn(4, 5, 6))


def test_in_place_writes_are_functionalised() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1] = 3.0
        y[0, :, ::2] += 1
        y[x > 1] = -1
        y[..., -1].mul_(2)
        return y

    agrees(fn, X)


def test_a_result_whose_size_depends_on_data_is_refused() -> None:
    with pytest.raises(CaptureError, match="depends on data"):
        capture(lambda x: x[x > 0], (X,))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_one_size_are_a_gather_and_a_sum(mode, weighted):
    if weighted and mode == "mean":
        pytest.skip("PyTorch weighs sums only")
    table, bags = torch.randn(10, 4), torch.randint(0, 10, (3, 5))
    weights = torch.rand(3, 5) if weighted else None

    def bag(w, i, s=None):
        return torch.nn.functional.embedding_bag(i, w, mode=mode, per_sample_weights=s)

    args = (table, bags) if weights is None else (table, bags, weights)
    hlir = capture(bag, args)
    assert not len(hlir.fallbacks())
    agrees(bag, *args)


def test_bags_of_other_sizes_go_to_aten():
    table, ids = torch.randn(10, 4), torch.randint(0, 10, (9,))

    def bag(w, i, o):
        return torch.nn.functional.embedding_bag(i, w, o, mode="sum")

    hlir = capture(bag, (table, ids, torch.tensor([0, 4, 5])))
    assert len(hlir.fallbacks())


def test_a_fallback_gets_contiguous_operands() -> None:
    weight, pairs = torch.randn(10, 5), torch.randint(0, 10, (6, 2))
    agrees(
        lambda w, pairs, offsets: F.embedding_bag(pairs[:, 0], w, offsets, mode="sum"),
        weight, pairs, torch.tensor([0, 4]), fallbacks=1,
    )  # fmt: skip
    agrees(
        lambda w, i, offsets: F.embedding_bag(i, w, offsets, mode="sum"),
        weight, pairs[:, 1], torch.tensor([0, 4]), fallbacks=1,
    )  # fmt: skip
