"""A C compiler may regroup sums and products; NaN, infinities and rounding stay as they are."""

from __future__ import annotations

import pytest
import torch

import luminal_lab as ll

CASES = {
    "times-zero": lambda x, y: x * 0 + y,
    "ratio-times-zero": lambda x, y: x / x * -0.0 + 1,
    "less-itself": lambda x, y: (x + y) - x,
    "less-itself-scaled": lambda x, y: (x + y) * 2 - x * 2,
    "multiples": lambda x, y: x * 3 + x * -3,
    "rounding": lambda x, y: (x + 12582912.0) - 12582912.0,
    "rounding-f64": lambda x, y: (x.double() + 2.0**52 * 1.5) - 2.0**52 * 1.5,
    "floor-divide": lambda x, y: torch.floor_divide(y, x),
    "floor-divide-by-zero": lambda x, y: torch.div(x, y * 0, rounding_mode="floor"),
    "trunc-divide-by-zero": lambda x, y: torch.div(x, y * 0, rounding_mode="trunc"),
}


class All(torch.nn.Module):
    def forward(self, x, y):
        return tuple(f(x, y) for f in CASES.values())


@pytest.mark.parametrize("n", [1, 19])
def test_as_pytorch(n: int) -> None:
    numbers = [float("inf"), 1.2345678, float("nan"), -2.7, 0.0, 1e8, 0.3, float("-inf")]
    x, y = torch.tensor(numbers * 3)[:n], torch.linspace(1, 2, n)
    best = ll.search(ll.saturate(ll.capture(All(), (x, y))), ll.Budget("none")).best
    for name, got, want in zip(CASES, ll.build(best)(x, y), All()(x, y), strict=True):
        assert torch.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True), name
