"""How lowerings are compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx.experimental.proxy_tensor import make_fx

from luminal_lab.capture.dynamo import decompositions, lower_graph
from luminal_lab.hlir import Hlir, check, run

# (relative, absolute) error against eager of the same dtype
TOLERANCE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (2e-5, 2e-6),
    torch.float16: (2e-3, 2e-4),
    torch.bfloat16: (1.6e-2, 2e-3),
}
_TABLE = decompositions()


def lower(fn: Callable[..., Any], args: Sequence[torch.Tensor], simple: bool = False) -> Hlir:
    """The Hlir of a function, from the graph that AOTAutograd gives the backend."""

    def flat(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = fn(*args)
        out = out if isinstance(out, (tuple, list)) else (out,)
        return tuple(o.clone() for o in out)  # views of inputs are not results here

    if simple:  # a tenth of the time, for what PyTorch decomposes into functional calls
        traced = make_fx(fn, decomposition_table=_TABLE, tracing_mode="fake")(*args)
    else:
        traced = aot_export_joint_simple(flat, args, trace_joint=False, decompositions=_TABLE)
    hlir, constants = lower_graph(traced, {})
    assert not constants
    return check(hlir)


def close(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None = None) -> None:
    """Within the dtype's tolerance of eager, or as near to the exact result as eager is.

    Arguments:
        got: What is checked; float64 stands for any float.
        want: Eager's result.
        exact: What eager gives for the same inputs in float64.
    """
    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
    assert got.dtype == want.dtype or (got.is_floating_point() and want.is_floating_point())
    assert got.shape == want.shape
    got = got.to(want.dtype)
    if exact is not None and exact.is_floating_point() and want.numel():
        fine = torch.isfinite(exact) & torch.isfinite(want) & torch.isfinite(got)
        limit = 2 * (want.double() - exact)[fine].abs().amax() if fine.any() else 0
        near = (got.double() - exact).abs() <= limit
        got = torch.where(fine & near, want, got)
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
    )


def agrees(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    fallbacks: int = 0,
    simple: bool = False,
    modes: Sequence[str] = ("native", "float64"),
) -> Hlir:
    """A function's Hlir computes what eager does, with no (or so many) fallbacks."""
    hlir = lower(fn, args, simple)
    missing = hlir.fallbacks()
    assert len(missing) == fallbacks, missing.to_string()
    want = fn(*args)
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    exact = in_float64(fn, args, want)
    for mode in modes:
        got = run(hlir, list(args), compute=mode)
        assert len(got) == len(want)
        for g, w, e, spec in zip(got, want, exact, hlir.outputs):
            assert tuple(spec.shape) == tuple(w.shape)
            close(g, w, e)
    return hlir


def in_float64(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], want: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Results for inputs in float64, where inputs are floats and it can be computed."""
    if not any(a.is_floating_point() and a.dtype != torch.float64 for a in args):
        return [None] * len(want)
    try:
        exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    except RuntimeError:  # a dtype that the function itself fixes
        return [None] * len(want)
    exact = list(exact) if isinstance(exact, (tuple, list)) else [exact]
    return [e if e.shape == w.shape else None for e, w in zip(exact, want)]


def everywhere(fn: Callable[..., torch.Tensor], *args: torch.Tensor, **options: Any) -> Hlir:
    """`agrees` for an elementwise function, on all layouts of its arguments at once."""
    sets = list(zip(*(layouts(a) for a in args)))

    def each(*flat: torch.Tensor) -> list[torch.Tensor]:
        n = len(args)
        return [fn(*flat[k : k + n]) for k in range(0, len(flat), n)]

    return agrees(each, *(x for group in sets for x in group), simple=True, **options)


def special(dtype: torch.dtype) -> torch.Tensor:
    """24 values of a dtype: the awkward ones, then ordinary ones."""
    if dtype == torch.bool:
        return torch.arange(24) % 3 == 0
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        awkward = [0, 1, info.max, info.min, 2, 3, max(-1, info.min), max(-7, info.min)]
        rest = torch.arange(16) - (8 if info.min < 0 else 0)
        return torch.cat([torch.tensor(awkward), rest]).to(dtype)
    inf, nan = float("inf"), float("nan")
    awkward = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-3, -1e-3]
    rest = torch.linspace(-4, 4, 10, dtype=torch.float64)
    return torch.cat([torch.tensor(awkward, dtype=torch.float64), rest]).to(dtype)


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """24 values as a matrix, its transpose, slices, expanded, 0-d and empty."""
    square = x.reshape(4, 6)
    return [
        square,
        square.t(),
        square[:, ::2],
        x[:4].reshape(4, 1).expand(4, 3),
        x[2],
        x[:0].reshape(0, 3),
    ]
