"""Views, indexing, reductions and products of the Tensor API against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import luminal_lab as ll
from luminal_lab.errors import TensorError
from luminal_lab.hlir import run
from tests.capture.eager import special
from tests.tensor.both import FLOATS, agree

X = torch.arange(120.0).reshape(2, 3, 4, 5)
I = torch.tensor([[2, 0], [1, 1]])  # noqa: E741
Pair = tuple[Callable[..., Any], Callable[..., Any] | None]

VIEWS: dict[str, Pair] = {
    "expand": (lambda x: x[:, :1].expand(7, 2, 3, 4, -1),
               lambda x: x[:, :1].expand(7, 2, 3, 4, 5)),
    "permute": (lambda x: x.permute(2, 0, -1, 1), None),
    "transpose": (lambda x: (x.transpose(0, -1), x.mT), None),
    "reshape": (lambda x: (x.reshape(6, -1), x.reshape(-1), x.view(2, 12, 5)), None),
    "flatten": (lambda x: (x.flatten(1, 2), x.flatten()), None),
    "split and merge": (
        lambda x: (x.split_dims(2, 2), x.merge_dims(1, 2)),
        lambda x: (x.unflatten(2, (2, 2)), x.flatten(1, 2)),
    ),
    "squeeze": (lambda x: (x[:1].squeeze(0), x.unsqueeze(-1), x[:1].squeeze()), None),
    "slices": (lambda x: (x[1:], x[:, -2:, ::2], x[..., 1:100], x[:, 5:]), None),
    "picks": (lambda x: (x[1], x[..., -1], x[0, :, 2], x[None, :, None, 0],
                          x[:, ..., 3]), None),
    "flip": (lambda x: x.flip(1, 3), None),
    "roll": (lambda x: (x.roll(2, 1), x.roll(-1, 3)), None),
    "repeat": (lambda x: x.repeat(2, 1, 3, 1, 2), None),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), None),
    "unfold": (lambda x: (x.unfold(3, 2, 2), x.unfold(1, 3)),
               lambda x: (x.unfold(3, 2, 2), x.unfold(1, 3, 1))),
    "pad": (
        lambda x: (x.pad((1, 2), (0, 3), value=7), x.pad((-1, 1))),
        lambda x: (TF.pad(x, (0, 3, 1, 2), value=7), TF.pad(x, (-1, 1))),
    ),
    "split": (lambda x: (*x.split(2, 1), *x.split([1, 4], 3), *x.chunk(2, 3)), None),
    "unbind": (lambda x: (*x.unbind(1), *x), None),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), None),
    "diagonal": (
        lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-2)),
        lambda x: tuple(x.diagonal(k, -2, -1) for k in (0, 1, -2)),
    ),
    "cat": (
        lambda x: (ll.cat([x, x[:, :1]], 1), ll.stack([x, x * 2], -1), ll.cat([x, x > 3])),
        lambda x: (torch.cat([x, x[:, :1]], 1),
                   torch.stack([x, x * 2], -1), torch.cat([x, x > 3])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, dtype: torch.dtype) -> None:
    ours, theirs = VIEWS[name]
    x = X.to(dtype) if dtype != torch.bool else X % 3 == 0
    if name in ("pad", "cat") and dtype == torch.bool:
        return  # PyTorch pads bools with bools, and multiplies no bool by 2
    hlir = agree(ours, x, torch_fn=theirs)
    if name not in ("cat", "triangles", "split"):
        assert [n.op for n in hlir.nodes] == ["Input"]


INDEXING: dict[str, Pair] = {
    "rows": (lambda x, i: (x[i], x[:, i], x[0, i, ..., 1]), None),
    "two": (lambda x, i: (x[:, i, i], x[i, :, i], x[:, i, 1:, i]), None),
    "select": (
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: torch.index_select(x, 1, i[0]),
    ),
    "gather": (
        lambda x, i: x[0, 0].gather(1, i),
        lambda x, i: torch.gather(x[0, 0], 1, i),
    ),
    "take": (lambda x, i: x.take(i * 7 - 20), None),
    "embedding": (
        lambda x, i: x[0, 0].embedding(i),
        lambda x, i: TF.embedding(i, x[0, 0]),
    ),
    "scatter": (
        lambda x, i: (x[0, 0].scatter(1, i, x[1, 1, :2, :2]), x[0, 0].scatter(0, i, 3)),
        lambda x, i: (
            torch.scatter(x[0, 0], 1, i, x[1, 1, :2, :2]),
            torch.scatter(x[0, 0], 0, i, 3),
        ),
    ),
    "scatter_add": (
        lambda x, i: x[0, 0].scatter_add(0, i, x[1, 1]),
        lambda x, i: torch.scatter_add(x[0, 0], 0, i, x[1, 1]),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("index", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str, index: torch.dtype, dtype: torch.dtype) -> None:
    ours, theirs = INDEXING[name]
    i = I.to(index)

    def reference(x: torch.Tensor, i: torch.Tensor) -> Any:
        return (theirs or ours)(x, i.long())

    if name == "scatter":  # several values for one place: PyTorch promises no order
        i = torch.tensor([[2, 0], [0, 1]]).to(index)
    if name == "take" and index != torch.int64:
        return
    agree(ours, torch.arange(180.0).reshape(3, 3, 4, 5).to(dtype), i, torch_fn=reference)


def rows(dtype: torch.dtype) -> torch.Tensor:
    return special(dtype).reshape(4, 6)


REDUCTIONS: dict[str, Pair] = {
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), x.sum(-1, dtype="f64")),
            lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True),
                       x.sum(-1, dtype=torch.float64))),
    "max": (lambda x: (x.max(), x.max(0), x.max((0, 1)), x.min(), x.min(1, keepdim=True)),
            lambda x: (x.max(), x.amax(0), x.amax((0, 1)), x.min(), x.amin(1, keepdim=True))),
    "argmax": (lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True)), None),
    "any": (lambda x: (x.any(), x.all(1), x.any((0, 1)), x.all(0, keepdim=True)), None),
}  # fmt: skip
FLOAT_REDUCTIONS: dict[str, Pair] = {
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean((0, 1), keepdim=True)), None),
    "var": (lambda x: (x.var(1), x.std(0, correction=0), x.var(keepdim=True)),
            lambda x: (x.var(1), x.std(0, correction=0), x.var((0, 1), keepdim=True))),
    "norm": (lambda x: (x.norm(), x.norm(1, 1), x.norm(float("inf"), 0)),
             lambda x: (x.norm(), x.norm(1, 1), x.norm(float("inf"), 0))),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), None),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)), None),
    "layer_norm": (lambda x: x.layer_norm(), lambda x: TF.layer_norm(x, x.shape[-1:])),
    "rms_norm": (lambda x: (x.rms_norm(eps=1e-6), x[:3].rms_norm(2)),
                 lambda x: (TF.rms_norm(x, (6,), eps=1e-6), TF.rms_norm(x[:3], (3, 6)))),
    "group_norm": (lambda x: x.group_norm(3), lambda x: TF.group_norm(x, 3)),
}  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: torch.dtype) -> None:
    ours, theirs = REDUCTIONS[name]
    x = rows(dtype)
    if name == "argmax":
        if dtype == torch.bool:
            return  # PyTorch has none
        x = x.nan_to_num(0.5)
    if dtype == torch.bool and name == "max":
        theirs = lambda x: (x.max(), x.amax(0), x.amax((0, 1)), x.min(), x.amin(1, True))  # noqa: E731
    agree(ours, x, torch_fn=theirs)
    agree(ours, torch.arange(24).reshape(4, 6).to(dtype), torch_fn=theirs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_REDUCTIONS)
def test_float_reductions(name: str, dtype: torch.dtype) -> None:
    ours, theirs = FLOAT_REDUCTIONS[name]
    agree(ours, rows(dtype)[1:], torch_fn=theirs)
    x = rows(dtype)
    x[2] = -float("inf") if name != "var" else 0
    agree(ours, x.nan_to_num(0.0, 9.0, -9.0) if "norm" in name or name == "var" else x,
          torch_fn=theirs)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32, torch.bool])
def test_scans_and_products(dtype: torch.dtype) -> None:
    x = (torch.arange(24) % 5 - 1).reshape(4, 6).to(dtype)
    agree(lambda x: (x.cumsum(0), x.cumsum(1), x.prod(), x.prod(1, keepdim=True)), x)


def test_what_aten_computes() -> None:
    x = torch.randn(4, 6)
    agree(lambda x: (x * 2).argmax(1), x)
    agree(lambda x: x.cumsum(1), x.half(), fallbacks=1)
    agree(
        lambda x: (*x.sort(0), x.argsort(descending=True), *x.topk(3), *x.topk(2, 0, False)),
        x,
        torch_fn=lambda x: (
            *x.sort(0),
            x.argsort(descending=True),
            *x.topk(3),
            *x.topk(2, 0, largest=False),
        ),
        fallbacks=4,
    )


PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, list[tuple]]] = {
    "matmul": (lambda a, b: a @ b, None,
               [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
                ((3, 4), (4,)), ((0, 4), (4, 5)), ((3, 0), (0, 5))]),
    "linear": (lambda x, w, b: x.linear(w, b), TF.linear, [((2, 3, 4), (5, 4), (5,))]),
    "conv1d": (lambda x, w, b: x.conv(w, b, 2, 1), lambda x, w, b: TF.conv1d(x, w, b, 2, 1),
               [((2, 4, 9), (6, 4, 3), (6,)), ((4, 9), (6, 4, 3), (6,))]),
    "conv2d": (lambda x, w, b: x.conv(w, b, padding=(1, 0), dilation=2, groups=2),
               lambda x, w, b: TF.conv2d(x, w, b, padding=(1, 0), dilation=2, groups=2),
               [((2, 4, 7, 9), (6, 2, 3, 3), (6,))]),
    "attention": (lambda q, k, v: (q.attention(k, v),
                                   q.attention(k, v, causal=True, scale=0.3)),
                  lambda q, k, v: (TF.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                                   TF.scaled_dot_product_attention(
                                       q, k, v, is_causal=True, scale=0.3, enable_gqa=True)),
                  [((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6))]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs, cases = PRODUCTS[name]
    for shapes in cases:
        agree(ours, *(torch.randn(s).to(dtype) for s in shapes), torch_fn=theirs)


def test_masked_attention() -> None:
    q, k, v = (torch.randn(1, 2, n, 8) for n in (3, 5, 5))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    agree(lambda q, k, v, m: q.attention(k, v, m), q, k, v, mask,
          torch_fn=TF.scaled_dot_product_attention)  # fmt: skip


def test_empty_tensors() -> None:
    x = torch.ones(0, 3)
    agree(lambda x: (x + 1, x.sum(), x.sum(0), x.mean(), x.softmax(0), x.reshape(3, 0)), x)
    agree(lambda x: (ll.cat([x, x + 1]), x.prod(0)), x,
          torch_fn=lambda x: (torch.cat([x, x + 1]), x.prod(0)))  # fmt: skip


def test_created() -> None:
    g = ll.Graph()
    s = g.dim("s", 1, 9)
    made = [
        g.arange(5), g.arange(2, 9, 3), g.arange(5, 0, -2), g.arange(0.5, 2, 0.5),
        g.arange(3, 3),
        g.iota((2, 3), 0) * 3 + g.iota((2, 3), 1), g.full((2,), 7, "i8"), g.constant([[1, 2]]),
        g.constant(2.5), g.constant(True), g.zeros((2, 0)), g.constant(torch.ones(2, 2).half()),
    ]  # fmt: skip
    want = [
        torch.arange(5), torch.arange(2, 9, 3), torch.arange(5, 0, -2),
        torch.arange(0.5, 2, 0.5),
        torch.arange(3, 3), torch.arange(6).reshape(2, 3),
        torch.full((2,), 7, dtype=torch.int8),
        torch.tensor([[1, 2]]), torch.tensor(2.5), torch.tensor(True), torch.zeros(2, 0),
        torch.ones(2, 2).half(),
    ]  # fmt: skip
    x = g.tensor("x", (s,))
    made += [g.arange(s), g.arange(s - 1, 2 * s), g.constant(s)]
    want += [torch.arange(4), torch.arange(3, 8), torch.tensor(4)]
    (x + 1).output()
    for y in made:
        y.output()
    got = run(g.hlir(), [torch.zeros(4)], compute="native")[1:]
    for y, w in zip(got, want, strict=True):
        torch.testing.assert_close(y, w, rtol=0, atol=0)


def test_symbolic_views() -> None:
    g = ll.Graph()
    s = g.dim("s", 2, 32, hint=8)
    x = g.tensor("x", (s, 4))
    results = {
        "rest": x[1:], "last": x[-1], "tail": x[-2:], "flat": x.reshape(-1),
        "heads": x.flatten(),
        "half": x[: s // 2], "doubled": ll.cat([x, x]), "joined": ll.cat([x, x[:1]]),
        "windows": x.unfold(0, 2), "padded": x.pad((1, 0), (0, 0)), "roll": x.roll(1, 0),
        "two": ll.stack([x, x]),
        "mean": x.mean(0), "variance": x.var(0), "cumulated": x.cumsum(0), "soft": x.softmax(0),
    }  # fmt: skip
    for name, y in results.items():
        y.output(name)
    hlir = g.hlir()
    for n in (2, 5, 32):
        a = torch.randn(n, 4, dtype=torch.float64).float()
        want = [
            a[1:], a[-1], a[-2:], a.reshape(-1), a.flatten(), a[: n // 2], torch.cat([a, a]),
            torch.cat([a, a[:1]]), a.unfold(0, 2, 1), TF.pad(a, (0, 0, 1, 0)), a.roll(1, 0),
            torch.stack([a, a]), a.mean(0), a.var(0), a.cumsum(0), a.softmax(0),
        ]  # fmt: skip
        for y, w in zip(run(hlir, [a], compute="native"), want, strict=True):
            torch.testing.assert_close(y, w)


REFUSED: dict[str, Callable[[Any, Any], object]] = {
    r"reshape: cannot reshape": lambda x, i: x.reshape(5, -1),
    r"expand: cannot expand": lambda x, i: x.expand(2, 4, 7),
    "getitem: index 4 is out of bounds": lambda x, i: x[4],
    "getitem: 4 indices": lambda x, i: x[0, 0, 0, 0],
    "getitem: a bool index": lambda x, i: x[x > 0],
    "getitem: an index of f32": lambda x, i: x[x],
    "getitem: an index of type str": lambda x, i: x["a"],
    "merge_dims: dims 0 and 2": lambda x, i: x.reshape(2, 2, 6).merge_dims(0, 2),
    "split_dims: dim 1 of size 6": lambda x, i: x.split_dims(1, 4),
    "split: parts of sizes": lambda x, i: x.split([2, 3], 1),
    "unfold: a window": lambda x, i: x.unfold(0, 5),
    "sum: no dim 2": lambda x, i: x.sum(2),
    "sum: a dim occurs twice": lambda x, i: x.sum((0, -2)),
    "softmax: softmax of i64": lambda x, i: i.softmax(0),
    "mean: the mean of i64": lambda x, i: i.mean(),
    "max: the extreme over a dim of size 0": lambda x, i: x[:0].max(0),
    "matmul: f32.4, 6. and f32.4, 6.: the inner dims 6 and 4": lambda x, i: x @ x,
    "matmul: a product of f32": lambda x, i: x @ i,
    "linear: a weight of shape": lambda x, i: x.linear(x[0]),
    "conv: 4 channels": lambda x, i: x.conv(x.reshape(4, 3, 2)),
    "gather: an index of shape": lambda x, i: x.gather(0, i[0]),
    "scatter: i64.1, 2. into f32": lambda x, i: x.scatter(0, i[:1], i[:1]),
    "topk: 9 elements": lambda x, i: x.topk(9),
    "cat: f32.4, 6., f32.6. do not join": lambda x, i: ll.cat([x, x[0]]),
    "arange: a step of 0": lambda x, i: x.graph.arange(1, 2, 0),
    "dim: the dim 's' is used already": lambda x, i: (x.graph.dim("s"), x.graph.dim("s", 2)),
    "tensor: two inputs are called 'x'": lambda x, i: x.graph.tensor("x", 3),
    "tensor: -1 is no size": lambda x, i: x.graph.tensor("z", (-1,)),
    "prod: the product over the symbolic": lambda x, i: x.graph.tensor("z", "n").prod(),
    "slice: whether": lambda x, i: x.graph.tensor("z", "n").slice(
        0, x.graph.dim("m", 1, 9) - 4
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_told_at_once(message: str) -> None:
    g = ll.Graph()
    x, i = g.tensor("x", (4, 6)), g.tensor("i", (2, 2), "i64")
    with pytest.raises(TensorError, match=message) as caught:
        REFUSED[message](x, i)
    assert "test_shapes.py:" in (caught.value.where or "")
    (x + 1).output()  # the graph goes on
    assert [n.op for n in g.hlir().nodes][-1] == "Add"
