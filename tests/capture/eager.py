"""How lowerings are compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import functionalize
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


def lower(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> Hlir:
    """The Hlir of a function, by the lowerings that the torch.compile backend uses."""
    traced = make_fx(functionalize(fn), decomposition_table=_TABLE, tracing_mode="fake")(*args)
    hlir, constants = lower_graph(traced, {})
    assert not constants
    return check(hlir)


def close(got: torch.Tensor, want: torch.Tensor, loosen: float = 1.0, what: str = "") -> None:
    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
    assert got.dtype == want.dtype or want.dtype.is_floating_point, what
    torch.testing.assert_close(
        got.to(want.dtype),
        want,
        rtol=rtol * loosen,
        atol=atol * loosen,
        equal_nan=True,
        check_stride=False,
        msg=lambda m: f"{what}: {m}",
    )


def agrees(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    fallbacks: int = 0,
    loosen: float = 1.0,
    modes: Sequence[str] = ("native", "float64"),
) -> Hlir:
    """A function's Hlir computes what eager does, with no (or so many) fallbacks."""
    hlir = lower(fn, args)
    missing = hlir.fallbacks()
    assert len(missing) == fallbacks, missing.to_string()
    want = fn(*args)
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    for mode in modes:
        got = run(hlir, list(args), compute=mode)
        assert len(got) == len(want)
        for g, w, spec in zip(got, want, hlir.outputs):
            assert tuple(spec.shape) == tuple(w.shape)
            close(g, w, loosen, f"{mode} {spec.name}")
    return hlir


def everywhere(fn: Callable[..., torch.Tensor], *args: torch.Tensor, **options: Any) -> Hlir:
    """`agrees` for an elementwise function, on all layouts of its arguments at once."""
    sets = list(zip(*(layouts(a) for a in args)))

    def each(*flat: torch.Tensor) -> list[torch.Tensor]:
        n = len(args)
        return [fn(*flat[k : k + n]) for k in range(0, len(flat), n)]

    return agrees(each, *(x for group in sets for x in group), **options)


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
