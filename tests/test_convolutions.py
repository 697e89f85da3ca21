"""Convolutions and pooling of every kind, from PyTorch to generated code, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import luminal_lab as ll
from luminal_lab.codegen.windows import windows
from luminal_lab.egraph.planes import strides_of, window_axes
from luminal_lab.egraph.values import Kernel
from luminal_lab.hlir.index import Index
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.layouts import image_layouts

KINDS = {
    "plain": (lambda: nn.Conv2d(3, 8, 3), (1, 3, 9, 10)),
    "padded": (lambda: nn.Conv2d(16, 32, 3, padding=1), (1, 16, 14, 14)),
    "odd": (lambda: nn.Conv2d(5, 19, (3, 5), padding=(1, 2)), (1, 5, 11, 13)),
    "batch": (lambda: nn.Conv2d(6, 17, 3, padding=1), (3, 6, 7, 9)),
    "strided": (lambda: nn.Conv2d(8, 24, 3, stride=2, padding=1), (2, 8, 15, 17)),
    "stem": (lambda: nn.Conv2d(3, 32, 7, stride=2, padding=3), (1, 3, 33, 35)),
    "dilated": (lambda: nn.Conv2d(8, 16, 3, padding=2, dilation=2), (1, 8, 12, 11)),
    "strided and dilated": (
        lambda: nn.Conv2d(4, 9, 3, stride=3, padding=2, dilation=2), (1, 4, 19, 18),
    ),
    "pointwise": (lambda: nn.Conv2d(24, 40, 1), (1, 24, 9, 9)),
    "pointwise, strided": (lambda: nn.Conv2d(24, 40, 1, stride=2), (1, 24, 9, 9)),
    "grouped": (lambda: nn.Conv2d(32, 64, 3, padding=1, groups=8), (1, 32, 10, 10)),
    "groups of few channels": (
        lambda: nn.Conv2d(64, 64, 3, padding=1, groups=16), (1, 64, 12, 17),
    ),
    "groups of few, strided": (
        lambda: nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=16), (1, 64, 23, 34),
    ),
    "depthwise": (lambda: nn.Conv2d(20, 20, 3, padding=1, groups=20), (1, 20, 14, 14)),
    "depthwise, strided": (
        lambda: nn.Conv2d(20, 40, 5, stride=2, padding=2, groups=20), (1, 20, 13, 14),
    ),
    "long kernel": (lambda: nn.Conv2d(12, 20, (1, 7), padding=(0, 3)), (1, 12, 17, 17)),
    "1d": (lambda: nn.Conv1d(7, 18, 5, padding=2), (2, 7, 23)),
    "3d": (lambda: nn.Conv3d(3, 10, 3, padding=1), (1, 3, 5, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 10, 3, padding=1), (1, 6, 8, 9)),
    "transposed, strided": (
        lambda: nn.ConvTranspose2d(6, 10, 4, stride=2, padding=1, groups=2), (1, 6, 7, 6),
    ),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), (2, 5, 13, 14)),
    "max pool, ceil": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), (1, 5, 14, 14)),
    "average pool": (lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False), (1, 5, 9, 8)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (1, 5, 9, 8)),
    "no batch": (lambda: nn.Conv2d(4, 6, 3, padding=1), (4, 8, 8)),
    "nothing": (lambda: nn.Conv2d(4, 6, 3, padding=1), (0, 4, 8, 8)),
}  # fmt: skip


def error(module: nn.Module, x: torch.Tensor, candidate) -> float:
    got = ll.build(candidate)(x)
    want = copy.deepcopy(module).double()(x.double())
    assert got.shape == want.shape
    assert got.dtype == x.dtype
    if not want.numel():
        return 0.0
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_kind(kind):
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    module, x = make().eval(), torch.randn(*shape)
    hlir = ll.capture(module, (x,))
    best = ll.search(ll.saturate(hlir), ll.Budget("none")).best
    assert error(module, x, best) < 2e-5
    assert hlir.fallbacks().empty


@pytest.mark.parametrize("kind", ["padded", "strided", "grouped", "depthwise"])
@torch.no_grad()
def test_bf16(kind):
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    module, x = make().eval().bfloat16(), torch.randn(*shape).bfloat16()
    best = ll.search(ll.saturate(ll.capture(module, (x,))), ll.Budget("none")).best
    assert error(module, x, best) < 2e-2


class Block(nn.Module):
    """Convolutions, normalisation, a depthwise one, a residual sum, pooling, a branch."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.two = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.head = nn.Linear(32 * 4 * 4, 10)
        self.one[1].running_mean.normal_()
        self.one[1].running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.one(x))
        x = torch.cat([self.deep(torch.relu(self.two(x))) + x, x], 1)
        return self.head(torch.max_pool2d(x, 2).flatten(1))


@torch.no_grad()
def test_candidates_agree():
    torch.manual_seed(0)
    module, x = Block().eval(), torch.randn(1, 3, 16, 16)
    egraph = ll.saturate(ll.capture(module, (x,)))
    for candidate in ll.sample(egraph, 12, seed=1):
        assert error(module, x, candidate) < 2e-5


@torch.no_grad()
def test_images_lie_with_their_planes_outermost():
    module, x = Block().eval(), torch.randn(1, 3, 16, 16)
    best = ll.search(ll.saturate(ll.capture(module, (x,))), ll.Budget("none")).best
    temps = [b for n, b in best.buffers.items() if best.kinds[n] == "temp" and not b.constant]
    images = [b for b in temps if len(b.shape) == 4]
    assert images
    assert any(b.strides is not None and b.strides[1] == 1 for b in images)
    given = [b for n, b in best.buffers.items() if best.kinds[n] in ("arg", "output")]
    assert all(b.strides is None for b in given)


def interior(candidate) -> list:
    """The images between kernels."""
    temps = [b for n, b in candidate.buffers.items() if candidate.kinds[n] == "temp"]
    return [b for b in temps if not b.constant and len(b.shape) == 4 and b.shape[-1] > 1]


@torch.no_grad()
def test_windows_that_skip_points_make_images():
    module = nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(16, 8, 1)
    )
    x = torch.randn(1, 3, 17, 17)
    best = ll.search(ll.saturate(ll.capture(module, (x,))), ll.Budget("none")).best
    assert interior(best)
    assert all(b.strides is not None and b.strides[1] == 1 for b in interior(best))
    assert error(module, x, best) < 2e-6


@torch.no_grad()
def test_images_lie_alike_in_regions_without_windows():
    class Mixed(nn.Module):
        """Branches of one pixel and of windows, side by side."""

        def __init__(self, c: int):
            super().__init__()
            self.one, self.reduce = nn.Conv2d(c, 16, 1), nn.Conv2d(c, 8, 1)
            self.three = nn.Conv2d(8, 16, 3, padding=1)

        def forward(self, x):
            wide = torch.relu(self.three(torch.relu(self.reduce(x))))
            return torch.cat([torch.relu(self.one(x)), wide], 1)

    module = nn.Sequential(
        nn.Conv2d(3, 32, 3), *(Mixed(32) for _ in range(3)), nn.Conv2d(32, 4, 1)
    )
    x = torch.randn(1, 3, 18, 18)
    egraph = ll.saturate(ll.capture(module, (x,)))
    assert len(egraph.parts) > 2
    best = ll.search(egraph, ll.Budget("none")).best
    assert interior(best)
    assert all(b.strides is not None and b.strides[1] == 1 for b in interior(best))
    assert error(module, x, best) < 5e-6


def test_library_kernels_read_and_write_rows():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

        def forward(self, x):
            return torch.max_pool2d(torch.softmax(self.two(self.one(x)), -1), 3, 1)

    egraph = ll.saturate(ll.capture(Rows(), (torch.randn(1, 3, 6, 6),)))
    assert {"gemm", "library"} <= {e.op for c in egraph.parts[0].classes for e in c.nodes}
    for candidate in ll.sample(egraph, 60, seed=1):
        for kernel in candidate.kernels:
            if isinstance(kernel, LibraryKernel):
                assert all(b.strides is None for b in kernel.buffers.values())


def test_a_mask_makes_no_images_of_scores():
    class Causal(nn.Module):
        def forward(self, q, k):
            i = torch.arange(6)
            return (q @ k.mT).masked_fill(i - i[:, None] > 0, -1e30).softmax(-1)

    egraph = ll.saturate(ll.capture(Causal(), tuple(torch.randn(2, 4, 6, 4) for _ in "qk")))
    assert not any(image_layouts(egraph))


def test_what_is_scattered_into_lies_as_the_result_does():
    class Replaced(nn.Module):
        def forward(self, x):
            windows = torch.cummax(nn.functional.avg_pool1d(x, 2, 1), 0)[1]
            images = windows.repeat_interleave(2, 2)
            return images.index_copy(1, torch.tensor([0]), images.narrow(1, 2, 1))

    module, x = Replaced(), torch.randn(3, 3, 8)
    best = ll.search(ll.saturate(ll.capture(module, (x,))), ll.Budget("none")).best
    got = ll.build(best)(x)
    assert torch.equal(got[0] if isinstance(got, tuple) else got, module(x))


@torch.no_grad()
def test_normalisation_is_folded_when_built():
    module, x = Block().eval(), torch.randn(1, 3, 16, 16)
    best = ll.search(ll.saturate(ll.capture(module, (x,))), ll.Budget("none")).best
    roots = [
        c for c in best.calls
        if not c.at_build and isinstance(k := best.kernels[c.kernel], Kernel)
        and "sqrt" in k.source("c")
    ]  # fmt: skip
    assert not roots


def test_windows():
    assert window_axes(Index.parse("y + k - 1"), {"y": 8, "k": 3}) == {"y", "k"}
    assert window_axes(Index.parse("2*y + k"), {"y": 8, "k": 2}) == set()
    assert strides_of((1, 8, 4, 5), (0, 2, 3, 1)) == (160, 1, 40, 8)
    assert windows.__doc__
