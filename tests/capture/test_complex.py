"""Complex numbers as Customs over their parts, and operators that check their results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import luminal_lab as ll
from luminal_lab.errors import CaptureError, HlirError
from luminal_lab.hlir import check, parse, run


def compiled(fn, *args: torch.Tensor, **options) -> object:
    torch._dynamo.reset()
    made = torch.compile(fn, backend="luminal_lab", options={"effort": "none"}, fullgraph=True)
    return made(*args)


def filtered(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j)) + 1


class Rotary(nn.Module):
    """Rotary embedding as the reference Llama has it: a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(16.0).reshape(8, 2)
        self.register_buffer("turns", torch.polar(torch.ones(8, 2), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(8, 2, 2))
        return torch.view_as_real(pairs * self.turns).flatten(1)


@pytest.mark.parametrize(
    ("fn", "shape"), [(filtered, (3, 8)), (Rotary(), (8, 4))], ids=["fft", "rotary"]
)
def test_complex_numbers_between_real_ones(fn, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    hlir = check(ll.capture(fn, (x,)))
    assert set(hlir.fallbacks()["reason"]) == {"complex numbers"}
    again = parse(hlir.text())
    assert again.text() == hlir.text()
    torch.testing.assert_close(run(hlir, [x], compute="native")[0], fn(x))
    torch.testing.assert_close(compiled(fn, x), fn(x))


def test_complex_results_and_inputs() -> None:
    x = torch.randn(3, 8)
    exe = ll.compile(lambda x: (torch.fft.fft(x), None), (x,), budget=ll.Budget("none"))
    torch.testing.assert_close(exe(x), (torch.fft.fft(x), None))

    def turned(z: torch.Tensor) -> torch.Tensor:
        return (z * 1j).conj().mT + 1

    z = torch.randn(3, 4, dtype=torch.complex64)
    for given in (z, z.conj(), z.t().contiguous().t()):
        torch.testing.assert_close(compiled(turned, given), turned(given))
    z.requires_grad_()
    (ours,) = torch.autograd.grad(compiled(lambda z: (z * (1 + 2j)).abs().sum(), z), z)
    (eager,) = torch.autograd.grad((z * (1 + 2j)).abs().sum(), z)
    torch.testing.assert_close(ours, eager)
    with pytest.raises(CaptureError, match="complex64"):
        ll.capture(turned, (z.detach(),))


def spd(n: int) -> torch.Tensor:
    x = torch.randn(n, n)
    return x @ x.T + torch.eye(n)


def test_a_solver_that_checks_its_result() -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(a, b) + torch.linalg.cholesky(a)

    a, b = spd(3), torch.randn(3, 3)
    hlir = ll.capture(solve, (a, b))
    names = sorted(hlir.fallbacks()["op"])
    assert names == ["aten._linalg_solve_ex.default", "aten.linalg_cholesky_ex.default"]
    torch.testing.assert_close(run(hlir, [a, b], compute="native")[0], solve(a, b))
    torch.testing.assert_close(compiled(solve, a, b), solve(a, b))
    with pytest.raises(HlirError, match="singular"):
        run(hlir, [torch.zeros(3, 3), b])
    torch._dynamo.reset()


def test_a_solver_that_does_not_check_its_result() -> None:
    hlir = ll.capture(lambda a: torch.linalg.inv_ex(a), (spd(3),))
    inverse, info = run(hlir, [torch.zeros(3, 3)])
    assert info.item() != 0
    assert inverse.shape == (3, 3)


def test_a_custom_may_read_more_dims_than_it_gives() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x * 2).exp()

    x = torch.randn(2, 3, 3)
    exe = ll.compile(f, (x,), budget=ll.Budget("none"))
    torch.testing.assert_close(exe(x), f(x))
