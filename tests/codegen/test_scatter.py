"""Kernels that store where data say: order, duplicates, dtypes, and memory of their own."""

from __future__ import annotations

import itertools

import pytest
import torch

from luminal_lab.codegen import lower, source
from luminal_lab.codegen.body import meeting_axes
from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, ScatterTo, Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, DType
from luminal_lab.hlir.index import Index
from luminal_lab.search.canonical import canonical
from luminal_lab.search.kernel_text import kernel_text, parse_kernel

from .harness import MACHINE, Compiled, check

Axis = Index.axis


def rows(mode: str, n: int, m: int, d: int, dtype: DType) -> Kernel:
    """`y = x; y[at[i], j] = v[i, j] * 2` (or `+=`): m rows of d into n."""
    i, j = Axis("i"), Axis("j")
    v = Value("load", (), ("v", (i, j)), dtype=dtype)
    two = Value("const", (), (True if dtype is BOOL else 2,), dtype=dtype)
    at = Value("load", (), ("at", (i,)), dtype=I64)
    to = ScatterTo("x", mode, ("i", "j"), (at,))  # type: ignore[arg-type]
    doubled = Value("mul", (v, two), dtype=dtype)
    out = KernelOutput("y", (Axis("@0"), j), doubled, to)
    shapes = {"v": (m, d), "x": (n, d), "y": (n, d)}
    buffers = {name: Buffer(name, s, dtype) for name, s in shapes.items()}
    buffers["at"] = Buffer("at", (m,), I64)
    return Kernel((out,), buffers, {"i": m, "j": d})


def inputs(n: int, m: int, d: int, dtype: DType, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    kind = torch_dtype(dtype)

    def tensor(*shape):
        if dtype.is_float:
            return torch.randn(shape, generator=g).to(kind)
        return torch.randint(0, 2 if dtype is BOOL else 5, shape, generator=g).to(kind)

    at = torch.randint(0, n, (m,), generator=g)
    return {"v": tensor(m, d), "x": tensor(n, d), "at": at}


@pytest.mark.parametrize("mode", ["set", "add"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64, I8, I32, BOOL], ids=str)
def test_rows_into_a_tensor(mode, dtype):
    for n, m, d in ((7, 12, 5), (40, 9, 64), (3, 200, 17), (1, 1, 1)):
        kernel, given = rows(mode, n, m, d, dtype), inputs(n, m, d, dtype)
        # Sums in memory round at each addition, as PyTorch's do.
        narrow = mode == "add" and dtype in (BF16, F16)
        check(kernel, given, Compiled(kernel)(given), scale=5.0 if narrow else 1.0)


@pytest.mark.parametrize("mode", ["set", "add"])
def test_the_order_of_points_is_kept(mode):
    """Every permutation of the loops, both indices data: points meet along both axes."""
    i, j = Axis("i"), Axis("j")
    v = Value("load", (), ("v", (i, j)), dtype=F32)
    at = [Value("load", (), (name, (i, j)), dtype=I64) for name in ("a", "b")]
    for over in itertools.permutations("ij"):
        to = ScatterTo("x", mode, over, tuple(at))  # type: ignore[arg-type]
        out = KernelOutput("y", (Axis("@0"), Axis("@1")), v, to)
        sizes = {"v": (33, 20), "a": (33, 20), "b": (33, 20), "x": (3, 4), "y": (3, 4)}
        buffers = {n: Buffer(n, s, I64 if n in "ab" else F32) for n, s in sizes.items()}
        kernel = Kernel((out,), buffers, {"i": 33, "j": 20})
        g = torch.Generator().manual_seed(1)
        given = {
            "v": torch.randn(33, 20, generator=g),
            "x": torch.randn(3, 4, generator=g),
            "a": torch.randint(0, 3, (33, 20), generator=g),
            "b": torch.randint(0, 4, (33, 20), generator=g),
        }
        got = Compiled(kernel)(given)
        check(kernel, given, got)
        again = Compiled(kernel)(given)
        assert torch.equal(got["y"], again["y"])


def test_a_place_outside_is_left_out():
    kernel, given = rows("set", 5, 4, 16, F32), inputs(5, 4, 16, F32)
    given["at"] = torch.tensor([2, 5, -1, 1 << 40])
    got = Compiled(kernel)(given)["y"]
    want = given["x"].clone()
    want[2] = given["v"][0] * 2
    assert torch.equal(got, want)


def test_axes_along_which_points_may_meet():
    at = Value("load", (), ("at", (Axis("i"),)), dtype=I64)
    value = Value("const", (), (1.0,), dtype=F32)
    extents = {"h": 2, "i": 4, "j": 8}

    def meet(*index: str) -> tuple[str, ...]:
        to = ScatterTo("x", "set", ("h", "i", "j"), (at,))
        parsed = tuple(Index.parse(x) for x in index)
        return meeting_axes(KernelOutput("y", parsed, value, to), extents)

    assert meet("h", "@0", "j") == ("i",)
    assert meet("h*8+j", "@0") == ("i",)
    assert meet("h*4+j", "@0") == ("h", "i", "j")  # 4 < 8: they overlap
    assert meet("@0*2+h", "j") == ("h", "i")
    assert meet("h", "i*2", "j") == ()


def test_a_value_with_a_reduction_is_stored_in_order():
    i, j, k = Axis("i"), Axis("j"), Axis("k")
    x = Value("load", (), ("v", (i, j, k)), dtype=F32)
    total = Value("red", (x,), ("add", "k"), dtype=F32)
    at = Value("load", (), ("at", (i,)), dtype=I64)
    out = KernelOutput("y", (Axis("@0"), j), total, ScatterTo("x", "add", ("i", "j"), (at,)))
    shapes = {"v": (50, 6, 40), "x": (3, 6), "y": (3, 6)}
    buffers = {n: Buffer(n, s, F32) for n, s in shapes.items()}
    buffers["at"] = Buffer("at", (50,), I64)
    kernel = Kernel((out,), buffers, {"i": 50, "j": 6, "k": 40})
    g = torch.Generator().manual_seed(2)
    given = {
        "v": torch.randn(50, 6, 40, generator=g),
        "x": torch.randn(3, 6, generator=g),
        "at": torch.randint(0, 3, (50,), generator=g),
    }
    check(kernel, given, Compiled(kernel)(given))


def test_the_text_parses_back():
    kernel = rows("add", 7, 12, 5, F32)
    text = canonical(kernel)[1]
    assert "scatter add into b2 over a1 a0: b3[@0, a0]" in text
    assert kernel_text(parse_kernel(text)) == text


def test_blocks_refuse_a_scatter():
    with pytest.raises(ScheduleError, match="scatters"):
        source(rows("set", 7, 12, 5, F32), None, "triton")


def test_a_layout_that_differs_is_refused():
    kernel = rows("set", 4, 4, 4, F32)
    buffers = {**kernel.buffers, "x": Buffer("x", (4, 4), F32, (1, 4))}
    with pytest.raises(ScheduleError, match="another layout"):
        lower(Kernel(kernel.outputs, buffers, kernel.extents), None, MACHINE)
