"""One test per patch of Triton's interpreter: a new Triton must fail here, not in silence."""

from __future__ import annotations

import sys

import pytest
import torch

from luminal_lab.errors import CompilerError
from luminal_lab.runtime import triton_tools
from luminal_lab.runtime.triton_interpreter import OutOfBoundsError

pytest.importorskip("triton")

HEAD = """
import triton
import triton.language as tl

"""
LOW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
SPELLED = {
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.float32: "tl.float32",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}


def run(body: str, *args, grid=(1,), head: str = "", in_process: bool = True) -> None:
    names = [f"a{i}" for i in range(len(args))]
    lines = "\n    ".join(body.strip().splitlines())
    source = f"{HEAD}{head}\n@triton.jit\ndef k({', '.join(names)}):\n    {lines}\n"
    triton_tools.run_interpreted(source, "k", grid, args, in_process=in_process)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    nan = a.isnan() & b.isnan()
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return bool(((a.view(view) == b.view(view)) | nan).all())


def numbers(n: int = 4096) -> torch.Tensor:
    """Every exponent, ties, denormals, ±0, ±inf and NaN."""
    bits = torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int64).int()
    out = bits.view(torch.float32).clone()
    out[: n // 2] = torch.randn(n // 2)
    out[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    out[6:10] = torch.tensor([1.00390625, 1.01171875, 1.94, 3.3e38])  # two bf16 ties, a carry
    return out


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_cast_to_a_low_precision_type_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    x, out = numbers(), torch.zeros(4096, dtype=dtype)
    run(
        f"""i = tl.arange(0, 4096)
tl.store(a1 + i, tl.load(a0 + i).to({SPELLED[dtype]}))""",
        x,
        out,
    )
    top = torch.finfo(dtype).max
    expected = x.to(dtype) if dtype == torch.bfloat16 else x.clamp(-top, top).to(dtype)
    assert same_bits(out, expected)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_cast_from_a_low_precision_type_is_exact(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    x = bits.view(dtype) if dtype != torch.bfloat16 else numbers(256).to(dtype)
    out = torch.zeros(256)
    run("i = tl.arange(0, 256)\ntl.store(a1 + i, tl.load(a0 + i).to(tl.float32))", x, out)
    assert same_bits(out, x.float())


def test_bf16_arithmetic_uses_numbers_not_bit_patterns() -> None:
    x, y = torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
    out = torch.zeros(256, dtype=torch.bfloat16)
    less = torch.zeros(256, dtype=torch.bool)
    run(
        """i = tl.arange(0, 256)
x = tl.load(a0 + i)
y = tl.load(a1 + i)
tl.store(a2 + i, -(x * y + x))
tl.store(a3 + i, x < y)""",
        x,
        y,
        out,
        less,
    )
    assert torch.allclose(
        out.float(), -(x.float() * y.float() + x.float()), rtol=2e-2, atol=1e-2
    )
    assert torch.equal(less, x < y)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_dot_of_low_precision_operands(dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 32).to(dtype), torch.randn(32, 16).to(dtype)
    out = torch.zeros(16, 16)
    run(
        """i = tl.arange(0, 16)
k = tl.arange(0, 32)
a = tl.load(a0 + i[:, None] * 32 + k[None, :])
b = tl.load(a1 + k[:, None] * 16 + i[None, :])
tl.store(a2 + i[:, None] * 16 + i[None, :], tl.dot(a, b))""",
        a,
        b,
        out,
    )
    torch.testing.assert_close(out, a.float() @ b.float())


def test_sum_and_maximum_of_bf16() -> None:
    x = -torch.rand(64).bfloat16() - 1
    out = torch.zeros(2)
    run(
        """x = tl.load(a0 + tl.arange(0, 64))
tl.store(a1, tl.max(x).to(tl.float32))
tl.store(a1 + 1, tl.sum(x.to(tl.float32)))""",
        x,
        out,
    )
    assert out[0] == x.float().max()
    torch.testing.assert_close(out[1], x.float().sum())


MAX = """
@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_with_an_own_combiner_keeps_nan_and_is_not_slow(axis: int) -> None:
    x = torch.randn(64, 128)
    x[3, 5] = torch.nan
    out = torch.zeros(64 if axis else 128)
    run(
        f"""i = tl.arange(0, 64)
j = tl.arange(0, 128)
x = tl.load(a0 + i[:, None] * 128 + j[None, :])
tl.store(a1 + tl.arange(0, {out.numel()}), tl.reduce(x, {axis}, _max))""",
        x,
        out,
        head=MAX,
    )
    assert torch.equal(out.isnan(), x.amax(axis).isnan())
    assert torch.equal(out.nan_to_num(), x.amax(axis).nan_to_num())


@pytest.mark.parametrize(
    ("what", "in_process"),
    [("load", True), ("store", True), ("atomic", True), ("load", False)],
)
def test_an_access_out_of_bounds_names_the_argument(what: str, in_process: bool) -> None:
    body = {
        "load": "tl.store(a1 + tl.arange(0, 16), tl.load(a0 + tl.arange(0, 16)))",
        "store": "tl.store(a0 + tl.arange(0, 16), tl.load(a1 + tl.arange(0, 16)))",
        "atomic": "tl.atomic_add(a0 + tl.arange(0, 16), tl.load(a1 + tl.arange(0, 16)))",
    }[what]
    with pytest.raises(OutOfBoundsError, match=r"a0.*10 elements"):
        run(body, torch.zeros(10), torch.zeros(16), in_process=in_process)


def test_a_mask_keeps_an_access_in_bounds() -> None:
    x, out = torch.randn(10), torch.zeros(10)
    run(
        """i = tl.arange(0, 16)
tl.store(a1 + i, tl.load(a0 + i, mask=i < 10, other=0.0), mask=i < 10)""",
        x,
        out,
        in_process=False,
    )
    assert torch.equal(x, out)


def test_nothing_is_left_behind() -> None:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    def state() -> list:
        builder = interpreter.InterpreterBuilder
        owners = [tl, tl.core, tl.tensor, tl.math, builder, interpreter.ReduceOps, JITFunction]
        return [dict(vars(o)) for o in owners] + [triton.knobs.runtime.interpret]

    before = state()
    run("tl.store(a0, tl.sum(tl.zeros([16], tl.float32)))", torch.zeros(1))
    with pytest.raises(CompilerError):
        run("tl.store(a0, tl.no_such_function())", torch.zeros(1))
    assert state() == before


def test_an_error_names_the_line_of_the_source() -> None:
    with pytest.raises(CompilerError, match=r"<luminal:\w+>:9"):
        run("x = 1\ntl.store(a0, tl.no_such_function())", torch.zeros(1))


def test_a_child_that_does_not_end_is_stopped() -> None:
    source = HEAD + "@triton.jit\ndef k(x):\n    while True:\n        x = x\n"
    with pytest.raises(CompilerError, match="was stopped"):
        triton_tools.run_interpreted(source, "k", (1,), [torch.zeros(1)], timeout=2)


def test_a_missing_triton_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(CompilerError, match="not installed"):
        triton_tools.load_module("x = 1")


COPY = HEAD + (
    "@triton.jit\ndef k(x, y, n, B: tl.constexpr):\n"
    "    i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)\n"
)
SIGNATURE = {"x": "*fp32", "y": "*fp32", "n": "i32", "B": "constexpr"}


@pytest.mark.parametrize("arch", list(triton_tools.ARCHS))
def test_compile_ahead_reports_what_bounds_a_launch(arch: str, fresh_cache) -> None:
    report = triton_tools.compile_ahead(COPY, "k", SIGNATURE, {"B": 1024}, arch)
    assert 0 < report.registers < 64
    assert report.spill_bytes == 0
    assert 0 < report.occupancy <= 1
    assert {"ttir", "ttgir"} < set(report.stages)
    assert ("ptx" in report.stages and "sass" in report.stages) or "amdgcn" in report.stages
    assert (fresh_cache / "triton").is_dir()


def test_compile_ahead_after_an_interpreted_run_and_a_wrong_kernel(fresh_cache) -> None:
    triton_tools.run_interpreted(
        COPY, "k", (1,), [torch.zeros(4), torch.zeros(4), 4, 16], in_process=True
    )
    triton_tools.compile_ahead(COPY, "k", SIGNATURE, {"B": 1024})
    with pytest.raises(CompilerError, match="cannot compile k for sm_90"):
        triton_tools.compile_ahead(COPY.replace("tl.load", "tl.lod"), "k", SIGNATURE, {"B": 16})
    with pytest.raises(CompilerError, match="unknown architecture"):
        triton_tools.compile_ahead(COPY, "k", SIGNATURE, {"B": 16}, "sm_1")
