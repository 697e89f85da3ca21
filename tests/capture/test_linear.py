"""Products, attention, convolution, pooling, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from luminal_lab.capture import capture
from luminal_lab.hlir import check, run
from tests.capture.eager import agrees, close

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((3, 0), (0, 5)),
    ((0, 4), (4, 5)),
    ((1, 4), (4, 1)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matmul_of_any_ranks(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    agrees(torch.matmul, torch.randn(a), torch.randn(b))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
def test_products_of_all_dtypes(dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(s).mul(4).abs().to(dtype) for s in ((3, 4), (4, 5), (3, 5)))
    agrees(lambda a, b, c: [a @ b, torch.addmm(c, a, b), torch.mv(a, b[:, 0])], a, b, c)
    agrees(lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3), a, b, c)


def test_beta_zero_ignores_nan() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.full((5,), float("nan"))
    agrees(lambda a, b, c: torch.addmm(c, a, b, beta=0), a, b, c)
    agrees(lambda a, b, c: torch.baddbmm(c, a[None], b[None], beta=0, alpha=0.5), a, b, c)


def test_a_bf16_product_is_accumulated_in_f32_and_rounded_once() -> None:
    a, b = torch.ones(2, 1024, dtype=torch.bfloat16), torch.ones(1024, 2, dtype=torch.bfloat16)
    hlir = agrees(lambda a, b: a @ b + 1, a, b)
    assert {n.dtype.name for n in hlir.nodes if n.op == "SumReduce"} == {"f32"}
    assert [n.dtype.name for n in hlir.nodes if n.op == "Cast"] == ["f32", "f32", "bf16"]


def test_einsum_and_outer() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    agrees(lambda a, b: torch.einsum("bik,bjk->bij", a, b), a, b)
    agrees(lambda a, b: torch.einsum("bik,bjk->ij", a, b), a, b)
    agrees(lambda a, b: torch.outer(a[0, 0], b[0, :, 0]), a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear(dtype: torch.dtype) -> None:
    module = torch.nn.Linear(4, 5).to(dtype)
    for shape in ((3, 4), (4,), (2, 3, 4)):
        x = torch.randn(shape).to(dtype)
        hlir = check(capture(module, (x,)))
        close(run(hlir, [x], compute="native")[0], module(x).detach())
        assert len([n for n in hlir.nodes if n.op == "SumReduce"]) == 1


# ---------------------------------------------------------------------- attention
def heads(n: int, length: int, d: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, n, length, d).to(dtype)


def attends(dtype: torch.dtype = torch.float32, mask: torch.Tensor | None = None, keys: int = 7,
            groups: int = 4, **options: object) -> None:  # fmt: skip
    q, k, v = (
        heads(4, 5, 8, dtype),
        heads(groups, keys, 8, dtype),
        heads(groups, keys, 6, dtype),
    )
    args = (q, k, v) if mask is None else (q, k, v, mask)

    def fn(*args: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*args, **options)

    hlir = check(capture(fn, args))
    assert not len(hlir.fallbacks())
    close(run(hlir, args, compute="native")[0], fn(*args))
    agrees(fn, *args, modes=("native",))  # as AOTAutograd decomposes it


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention(dtype: torch.dtype) -> None:
    attends(dtype)


@pytest.mark.parametrize("keys", [3, 5, 7])
def test_causal_attention(keys: int) -> None:
    attends(keys=keys, is_causal=True)


def test_attention_with_a_scale_and_grouped_queries() -> None:
    attends(scale=0.3)
    attends(groups=2, enable_gqa=True, is_causal=True)
    attends(groups=1, enable_gqa=True)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 7), (2, 1, 5, 7)], ids=str)
def test_attention_with_a_mask(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) > 0.4
    attends(mask=mask)
    attends(mask=torch.randn(shape))
    attends(mask=torch.zeros(shape).masked_fill(mask, float("-inf")))


def test_a_row_whose_keys_are_all_masked_gives_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    attends(mask=mask)
    attends(mask=torch.zeros(5, 7).masked_fill(~mask, float("-inf")))


# ---------------------------------------------------------------------- convolution
CONVOLUTIONS = {
    "1d": (F.conv1d, (2, 3, 10), (4, 3, 3), {}),
    "1d stride": (F.conv1d, (2, 3, 10), (4, 3, 3), {"stride": 2, "padding": 1, "dilation": 2}),
    "1d same": (F.conv1d, (2, 3, 10), (4, 3, 3), {"padding": "same"}),
    "unbatched": (F.conv1d, (3, 10), (4, 3, 3), {"padding": 1}),
    "2d": (F.conv2d, (2, 3, 7, 6), (4, 3, 3, 2), {}),
    "2d pad": (F.conv2d, (2, 3, 7, 6), (4, 3, 3, 3), {"stride": (2, 1), "padding": (1, 2)}),
    "2d groups": (F.conv2d, (2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": (F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "dilation": 2}),
    "pointwise": (F.conv2d, (2, 4, 5, 5), (6, 4, 1, 1), {}),
    "patches": (F.conv2d, (2, 3, 8, 8), (6, 3, 4, 4), {"stride": 4}),
    "3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), {"padding": 1}),
    "transposed 1d": (F.conv_transpose1d, (2, 3, 5), (3, 4, 3), {}),
    "transposed stride": (
        F.conv_transpose2d, (2, 3, 4, 5), (3, 4, 3, 2),
        {"stride": (2, 3), "padding": 1, "output_padding": (1, 0)},
    ),
    "transposed groups": (
        F.conv_transpose1d, (2, 4, 5), (4, 3, 3), {"groups": 2, "dilation": 2, "stride": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    fn, x, w, options = CONVOLUTIONS[name]
    out = w[1] * options.get("groups", 1) if "transposed" in name else w[0]
    agrees(
        lambda x, w, b: [fn(x, w, b, **options), fn(x, w, **options)],
        torch.randn(x), torch.randn(w), torch.randn(out),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_convolution_dtypes(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(s).to(dtype) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (4,)))
    agrees(lambda x, w, b: F.conv2d(x, w, b, padding=1), x, w, b, modes=("native",))


# ---------------------------------------------------------------------- pooling
POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max overlap": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max dilated": lambda x: F.max_pool2d(x, 2, stride=1, dilation=2),
    "max ceil": lambda x: F.max_pool2d(x, 2, stride=2, ceil_mode=True),
    "max indices": lambda x: list(F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)),
    "max 1d": lambda x: F.max_pool1d(x[0], 3),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg pad": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "avg valid": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
    "avg ceil": lambda x: F.avg_pool2d(x, 2, stride=2, ceil_mode=True),
    "avg ceil pad": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
    "avg divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg 1d": lambda x: F.avg_pool1d(x[0], 3, padding=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
    "adaptive 3": lambda x: F.adaptive_avg_pool2d(x[..., :6, :6], (3, 2)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_pooling(name: str, dtype: torch.dtype) -> None:
    agrees(POOLS[name], torch.randn(2, 3, 7, 7).to(dtype), modes=("native",))


def test_max_pool_keeps_nan_and_ignores_padding() -> None:
    x = torch.full((1, 1, 4, 4), -5.0)
    x[0, 0, 1, 1] = float("nan")
    agrees(lambda x: F.max_pool2d(x, 3, stride=1, padding=1), x)
