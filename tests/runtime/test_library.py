from dataclasses import asdict

import pytest
import torch

from luminal_lab.egraph.gemm import GemmForm, activate
from luminal_lab.egraph.values import Buffer
from luminal_lab.errors import LuminalError
from luminal_lab.hlir.dtypes import BF16, BOOL, F32, F64, I64
from luminal_lab.hlir.graph import Ref
from luminal_lab.runtime import library
from luminal_lab.runtime.library import library_code
from luminal_lab.runtime.program import KernelCode, Routine
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.target import Expected, Job, Tolerance
from tests.runtime.programs import run_code

pytestmark = pytest.mark.usefixtures("c_compiler")


def product(form: GemmForm, dtype, shapes) -> LibraryKernel:
    names = [f"b{k}" for k in range(len(shapes))]
    buffers = {n: Buffer(n, tuple(s), dtype) for n, s in zip(names, shapes)}
    return LibraryKernel("gemm", tuple(names[:-1]), (names[-1],), buffers, asdict(form))


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (1, 4, 6), (6, 1, 2), (2, 3, 1)])
def test_products(turn_a, turn_b, biased, dtype, batch, m, n, k):
    kind = getattr(torch, dtype.torch_name)
    a = torch.randn(*batch, *((k, m) if turn_a else (m, k)), dtype=kind)
    b = torch.randn(*batch, *((n, k) if turn_b else (k, n)), dtype=kind)
    a, b = a.mT if turn_a else a, b.mT if turn_b else b
    bias = torch.randn(n, dtype=kind)
    out = torch.full((*batch, m, n), float("nan"), dtype=kind)
    rows = zip(batch, a.stride(), b.stride(), out.stride())
    form = GemmForm(
        tuple(rows), m, n, k, a.stride()[-2:], b.stride()[-2:], out.stride()[-2:],
        (*(0 for _ in batch), 0, 1) if biased else None,
    )  # fmt: skip
    shapes = [(a.mT if turn_a else a).shape, (b.mT if turn_b else b).shape]
    operands = [a, b]
    if biased:
        operands.append(bias)
        shapes.append((n,))
    kernel = product(form, dtype, [*shapes, out.shape])
    code = library_code(kernel)
    assert isinstance(code, KernelCode) == (dtype is F32)
    run_code(code, [*operands, out])
    want = a.double() @ b.double() + (bias.double() if biased else 0)
    error = 2e-2 if dtype is BF16 else 1e-5
    torch.testing.assert_close(out.double(), want, rtol=error, atol=error)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("act", ["", "relu", "gelu"])
@pytest.mark.parametrize("along", ["matrix", "rows", "columns", "batch"])
def test_scaled_products_plus_a_scaled_matrix_with_an_activation(dtype, act, along):
    kind = getattr(torch, dtype.torch_name)
    a, b = torch.randn(3, 5, 7, dtype=kind), torch.randn(3, 7, 37, dtype=kind)
    a[0, 0, 0] = float("nan")
    shape = {"matrix": (3, 5, 37), "rows": (5, 1), "columns": (37,), "batch": (3, 1, 1)}[along]
    d = torch.randn(shape, dtype=kind)
    spread = d.expand(3, 5, 37)
    out = torch.empty(3, 5, 37, dtype=kind)
    form = GemmForm(
        ((3, 35, 259, 185),), 5, 37, 7, (7, 1), (37, 1), (37, 1),
        spread.stride(), alpha=-0.5, beta=2.0, act=act,
    )  # fmt: skip
    code = library_code(product(form, dtype, [a.shape, b.shape, d.shape, out.shape]))
    assert isinstance(code, KernelCode) == (dtype is F32)
    run_code(code, [a, b, d, out])
    want = activate(act, -0.5 * (a.double() @ b.double()) + 2.0 * d.double())
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_broadcast_operand_has_stride_zero():
    a, b = torch.randn(3, 4, 5), torch.randn(5, 6)
    out = torch.empty(3, 4, 6)
    form = GemmForm(((3, 20, 0, 24),), 4, 6, 5, (5, 1), (6, 1), (6, 1))
    run_code(library_code(product(form, F32, [a.shape, b.shape, out.shape])), [a, b, out])
    torch.testing.assert_close(out, a @ b)


def test_without_an_exported_blas(monkeypatch):
    monkeypatch.setattr(type(library.native()), "bind_blas", lambda self: False)
    form = GemmForm((), 4, 6, 5, (5, 1), (6, 1), (6, 1))
    a, b, out = torch.randn(4, 5), torch.randn(5, 6), torch.empty(4, 6)
    code = library_code(product(form, F32, [a.shape, b.shape, out.shape]))
    assert isinstance(code, Routine)
    run_code(code, [a, b, out])
    torch.testing.assert_close(out, a @ b)


def test_a_custom_call_with_several_results():
    buffers = {n: Buffer(n, (4,), t) for n, t in (("x", F32), ("v", F32), ("i", I64))}
    attrs = {"target": "aten.sort.default", "template": ((Ref(0),), {}), "result": (0, 1)}
    kernel = LibraryKernel("custom", ("x",), ("v", "i"), buffers, attrs)
    x, v, i = torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.empty(4), torch.zeros(4).long()
    run_code(library_code(kernel), [x, v, i], 2)
    assert v.tolist() == [0, 1, 2, 3]
    assert i.tolist() == [3, 1, 2, 0]
    one = LibraryKernel("custom", ("x",), ("i",), buffers, {**attrs, "result": 1})
    run_code(library_code(one), [x, i])
    assert i.tolist() == [3, 1, 2, 0]


def test_an_unknown_routine():
    kernel = LibraryKernel("fft", ("x",), ("y",), {"x": Buffer("x", (2,), BOOL)})
    with pytest.raises(LuminalError, match="no library routine 'fft'"):
        library_code(kernel)


def test_library_kernels_are_measured_too():
    from luminal_lab.runtime.cpu import CpuTarget

    a, b = torch.randn(64, 32), torch.randn(32, 48)
    form = GemmForm((), 64, 48, 32, (32, 1), (48, 1), (48, 1))
    want = Expected(None, (a.double() @ b.double()).reshape(-1), Tolerance(1e-4, 1e-4))
    gemm = product(form, F32, [a.shape, b.shape, (64, 48)])
    buffers = {"b0": Buffer("b0", (64,), F32), "b1": Buffer("b1", (64,), F32)}
    attrs = {"target": "aten.relu.default", "template": ((Ref(0),), {}), "result": None}
    relu = LibraryKernel("custom", ("b0",), ("b1",), buffers, attrs)
    x = torch.randn(64)
    same = Expected(None, x.relu().double(), Tolerance(0, 0))
    jobs = [
        Job(gemm, None, {"b0": a, "b1": b}, {"b2": want}),
        Job(relu, None, {"b0": x}, {"b1": same}),
    ]
    with CpuTarget() as target:
        for m in target.measure(jobs):
            assert m.ok, m
            assert m.median > 0
