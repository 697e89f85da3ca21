"""The prelude's own mathematics and conversions, against torch in float64."""

from __future__ import annotations

import ctypes

import pytest
import torch

from luminal_lab import codegen
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.native import native
from luminal_lab.search.machine import Machine
from tests.codegen.harness import MACHINE

WIDTHS = sorted({MACHINE.vector_bytes, 32, 16})
UNARY = ("exp2", "log2", "erf", "sin", "sqrt")


def library(width: int) -> ctypes.CDLL:
    native()
    text = codegen.prelude(Machine(vector_bytes=width))
    for f in UNARY:
        text += (
            f"void v_{f}(const float *x, float *y, long n) {{"
            f" for (long i = 0; i + W <= n; i += W)"
            f" ll_st_f32(y + i, ll_{f}(ll_ld_f32(x + i))); }}\n"
            f"void s_{f}(const float *x, float *y, long n) {{"
            f" for (long i = 0; i < n; ++i) y[i] = ll_{f}_s(x[i]); }}\n"
        )
    text += (
        "void maximum(const float *x, const float *y, float *z, long n) {"
        " for (long i = 0; i + W <= n; i += W)"
        " ll_st_f32(z + i, ll_max_f(ll_ld_f32(x + i), ll_ld_f32(y + i))); }\n"
    )
    for d, c in (("f16", "unsigned short"), ("bf16", "unsigned short"),
                 ("f8e4m3", "unsigned char"), ("f8e5m2", "unsigned char")):  # fmt: skip
        text += (
            f"void get_{d}(const {c} *x, float *y, long n) {{"
            f" for (long i = 0; i + W <= n; i += W) ll_st_f32(y + i, ll_ld_{d}(x + i)); }}\n"
            f"void put_{d}(const float *x, {c} *y, long n) {{"
            f" for (long i = 0; i + W <= n; i += W) ll_st_{d}(y + i, ll_ld_f32(x + i)); }}\n"
            f"void get1_{d}(const {c} *x, float *y, long n) {{"
            f" for (long i = 0; i < n; ++i) y[i] = ll_get_{d}(x + i); }}\n"
            f"void put1_{d}(const float *x, {c} *y, long n) {{"
            f" for (long i = 0; i < n; ++i) ll_put_{d}(y + i, x[i]); }}\n"
        )
    return cc.load(cc.shared_library([cc.Unit("math", text)]))


def run(lib: ctypes.CDLL, name: str, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    getattr(lib, name)(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(x.numel())
    )
    return out


def samples(f: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    special = torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-40]
    )
    wide = {"exp2": 160.0, "erf": 6.0, "sin": 3e4, "log2": 1e30, "sqrt": 1e30}[f]
    near = torch.randn(1 << 14, generator=g) * (0.3 if f != "sin" else 8)
    far = (torch.rand(1 << 14, generator=g) * 2 - 1) * wide
    tiny = torch.exp2(torch.rand(1 << 14, generator=g) * 276 - 149).float()
    x = torch.cat(
        [special.repeat(2), near, far, tiny if f in ("log2", "sqrt", "erf") else near]
    )
    return x.abs() if f == "sqrt" else x


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("f", UNARY)
def test_functions_are_within_a_few_ulps(f: str, width: int):
    lib, x = library(width), samples(f)
    x = x[: x.numel() // 16 * 16].contiguous()
    want = getattr(torch, "erf" if f == "erf" else f)(x.double())
    for prefix in "vs":
        got = run(lib, f"{prefix}_{f}", x, torch.empty_like(x)).double()
        same = torch.isnan(want) == torch.isnan(got)
        assert same.all(), x[~same][:5]
        finite = torch.isfinite(want.float())
        assert torch.equal(
            got[~finite & ~want.isnan()], want.float().double()[~finite & ~want.isnan()]
        )
        ulp = torch.exp2(torch.floor(torch.log2(want.abs().clamp(min=2.0**-126))) - 23)
        error = ((got - want).abs() / ulp)[finite]
        limit = {"exp2": 2.0, "log2": 4.0, "erf": 4.0, "sin": 3.0, "sqrt": 1.0}[f]
        if f in ("sin", "log2"):  # near a zero of the function, absolute error counts
            error = torch.minimum(error, ((got - want).abs() / 2e-7)[finite])
        assert error.max() < limit, (error.max(), x[finite][error.argmax()])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_every_narrow_float_converts_as_torch_does(name: str, width: int):
    lib = library(width)
    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
            "f8e5m2": torch.float8_e5m2}[name]  # fmt: skip
    bits = 16 if name in ("f16", "bf16") else 8
    store = torch.int16 if bits == 16 else torch.uint8
    every = torch.arange(1 << bits).to(torch.int32)
    packed = every.to(torch.int16) if bits == 16 else every.to(torch.uint8)
    want = packed.view(kind).float()
    for get in ("get", "get1"):
        got = run(lib, f"{get}_{name}", packed, torch.empty(1 << bits))
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    g = torch.Generator().manual_seed(1)
    x = torch.cat([want, torch.randn(1 << 14, generator=g) * torch.exp2(
        torch.randint(-30, 20, (1 << 14,), generator=g).float())])  # fmt: skip
    finite = torch.nextafter(want.nan_to_num(0, 0, 0), torch.tensor(1e30))
    x = torch.cat([x, finite, want.nan_to_num(0, 0, 0) * 1.03125])
    x = x[: x.numel() // 16 * 16].contiguous()
    if name == "f8e4m3":  # torch saturates to NaN beyond 464; stay where rounding decides
        x = x.clamp(-460, 460)
    for put in ("put", "put1"):
        got = (
            run(lib, f"{put}_{name}", x, torch.zeros(x.numel(), dtype=store)).view(kind).float()
        )
        torch.testing.assert_close(got, x.to(kind).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_larger_of_two_keeps_nan(width: int) -> None:
    some = torch.tensor(
        [0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38]
    )
    x, y = (t.contiguous() for t in torch.cartesian_prod(some, some).T)
    got = torch.empty_like(x)
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, y, got))
    library(width).maximum(*pointers, ctypes.c_long(x.numel()))
    torch.testing.assert_close(got, torch.maximum(x, y), rtol=0, atol=0, equal_nan=True)
