"""Inverse and hyperbolic functions, products and scans, against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from luminal_lab.errors import CaptureError
from tests.capture.eager import agrees, everywhere, lower, special

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    "fn",
    [torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh, torch.asinh, torch.acosh,
     torch.atanh, torch.tan, torch.angle],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_functions(fn) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        everywhere(fn, special(dtype))
    everywhere(fn, torch.logspace(-6, 1.5, 24))
    everywhere(fn, -torch.logspace(-6, 1.5, 24))


@pytest.mark.parametrize("fn", [torch.asinh, torch.acosh, torch.cosh], ids=lambda f: f.__name__)
def test_functions_of_large_numbers(fn) -> None:
    everywhere(fn, torch.tensor([8.8e1, 8.9e1, 1e5, 1e18, 1e20, 3e38] * 4))


@pytest.mark.parametrize("fn", [torch.atan2, torch.hypot], ids=lambda f: f.__name__)
def test_functions_of_two(fn) -> None:
    inf, nan = math.inf, math.nan
    values = torch.tensor([0.0, -0.0, 1.5, -2.5, inf, -inf, nan, 1e30])
    y, x = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    agrees(fn, y, x, simple=True)
    for dtype in (torch.float64, torch.bfloat16):
        agrees(fn, y[:40].to(dtype), x[:40].to(dtype), simple=True)


def test_tangent_near_its_poles() -> None:
    x = torch.tensor([math.pi / 2, 1.5709, 1.5706, -1.57079, 4.7124, 100.53])
    agrees(torch.tan, x, simple=True)


@pytest.mark.parametrize("decimals", [0, 2, -2])
def test_round_to_decimals(decimals: int) -> None:
    x = torch.randn(50) * 1000
    agrees(lambda x: torch.round(x, decimals=decimals), x, simple=True)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_products_and_scans(n: int) -> None:
    x = torch.randn(3, n, 2)
    agrees(lambda x: (x.prod(1), x.prod(1, keepdim=True), x.prod(), x.cumprod(1)), x)
    i = torch.randint(-3, 4, (4, n))
    agrees(lambda i: (i.prod(1), i.cumprod(1), (i > 0).prod(1)), i)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_running_extremes(dtype: torch.dtype) -> None:
    x = torch.randint(0, 4, (5, 9)).to(dtype)
    if dtype.is_floating_point:
        x[0, 3], x[1, 0], x[2] = math.nan, -math.inf, math.inf
    agrees(lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1)), x, fallbacks=2)


def test_empty_products() -> None:
    agrees(lambda x: (x.prod(1), x.prod(), x.cumprod(1)), torch.ones(3, 0))
    agrees(lambda x: x.prod(0), torch.tensor(3.0))


@pytest.mark.parametrize("p", [0, 1, 2, 3, math.inf])
def test_distances(p: float) -> None:
    x, y = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    agrees(lambda x, y: (torch.cdist(x, y, p), torch.dist(x[:, :4], y, p)), x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adaptive_pooling(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 7, 5).to(dtype)
    agrees(lambda x: (F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool2d(x, (7, 1))), x)
    agrees(lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), x)
    agrees(lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 8), x)
    agrees(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), x)


def test_products_of_several_tensors() -> None:
    a, b, c = torch.randn(4, 2, 3), torch.randn(4, 3, 5), torch.randn(2, 5)
    agrees(lambda c, a, b: torch.addbmm(c, a, b, beta=0.5, alpha=2), c, a, b)
    w = torch.randn(6, 3, 5)
    agrees(lambda x, y, w: F.bilinear(x, y, w), torch.randn(4, 3), torch.randn(4, 5), w)


def test_writes_to_places() -> None:
    x, diagonal = torch.randn(4, 5), torch.randn(3)
    agrees(lambda x, d: torch.diagonal_scatter(x, d, 2), x, diagonal)
    agrees(lambda x, d: torch.diagonal_scatter(x, d, -1, 1, 0), x, diagonal.repeat(2)[:4])
    index, source = torch.tensor([[1, -1], [7, 0]]), torch.randn(2, 2)
    for add in (True, False):
        agrees(lambda x, i, s, add=add: x.put(i, s, accumulate=add), x, index, source)
    one, at = torch.tensor(1.0), torch.tensor([0])
    agrees(lambda x, i, s: x.index_add(0, i, s), one, at, torch.tensor(2.0))


def test_low_bits() -> None:
    x = torch.arange(-9, 9)
    agrees(lambda x: x & 7, x, simple=True)
    agrees(lambda x: (x + 20).to(torch.uint8) & 15, x, simple=True)


def test_roll_of_nothing() -> None:
    agrees(lambda x: torch.roll(x, 1, 0), torch.ones(0, 3))


def test_ranges_of_integers_from_floats() -> None:
    agrees(lambda x: x + torch.arange(-3.7, 2.2, 1.9, dtype=torch.int64), torch.tensor(0))
    agrees(
        lambda x: x + torch.logspace(0, 2, 3, dtype=torch.int64), torch.tensor(0), fallbacks=1
    )


def test_strides_over_memory() -> None:
    x = torch.randn(4, 6)
    agrees(lambda x: torch.as_strided(x, (2, 3), (6, 2), 1), x)
    agrees(lambda x: torch.as_strided(x.t() + 1, (5, 2), (4, 1)), x)  # a transposed layout
    with pytest.raises(CaptureError, match="memory around"):
        lower(lambda x: torch.as_strided(x, (4,), (6,), 0), [torch.randn(9, 6)[2:4]])
