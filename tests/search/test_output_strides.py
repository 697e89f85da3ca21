"""Outputs lie as eager's do, and kernels write them so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import luminal_lab as ll

WEIGHT = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
PROGRAMS = {
    "transposed": (lambda x: x.t() + 1, (64, 40)),
    "a view of what was computed": (lambda x: (x * 2).t(), (64, 40)),
    "permuted": (lambda x: x.permute(0, 3, 1, 2) * 2, (2, 5, 6, 16)),
    "softmax of a transposed tensor": (lambda x: torch.softmax(x.t(), -1), (64, 40)),
    "read again": (lambda x: (x.t() + 1, (x.t() + 1).sum(0)), (64, 40)),
    "given twice": (lambda x: (x.t() + 1, x.t() + 1), (64, 40)),
    "in two orders": (lambda x: (x.t() + 1, x.t().contiguous() + 1), (64, 40)),
    "through a library": (lambda x: (x @ x.t()).t() + 1, (40, 40)),
    "through ATen": (lambda x: torch.linalg.qr(x)[0].t() + 0, (9, 9)),
    "made row-major": (lambda x: x.t().contiguous() * 2, (130, 77)),
}


def built(fn, x: torch.Tensor) -> ll.Executable:
    return ll.build(ll.search(ll.saturate(ll.capture(fn, (x,))), ll.Budget("none")).best)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_strides_are_eagers(name):
    fn, shape = PROGRAMS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    run, want = built(fn, x), fn(x)
    for _ in range(2):
        got = run(x)
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want))):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["transposed", "a view of what was computed", "permuted"])
def test_kernels_write_them_straight(name):
    fn, shape = PROGRAMS[name]
    run = built(fn, torch.randn(shape))
    assert run.program is not None
    assert run.program.direct == ("out0",)
    assert len(run.candidate.calls) == 1


def test_a_convolution_of_channels_last():
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    run = built(lambda x: F.relu(F.conv2d(x, WEIGHT)), x)
    want = F.relu(F.conv2d(x, WEIGHT))
    got = run(x)
    assert got.is_contiguous(memory_format=torch.channels_last) == want.is_contiguous(
        memory_format=torch.channels_last
    )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_finalists_of_such_a_program_are_right():
    x = torch.randn(64, 40)
    egraph = ll.saturate(ll.capture(lambda x: (x.t() + 1, x.t() + 1), (x,)))
    result = ll.search(egraph, ll.Budget("none", verify=True))
    assert not any("wrong" in why for why in result.rejected)
