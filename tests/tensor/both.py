"""How programs in the Tensor API are compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import luminal_lab as ll
from luminal_lab.hlir import Hlir, run
from tests.capture.eager import close, in_float64

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def written(f: Callable[..., Any], args: Sequence[torch.Tensor]) -> Hlir:
    """The program that `f` writes, of inputs like `args`."""
    g = ll.Graph()
    out = f(*(g.tensor(f"x{k}", tuple(a.shape), a.dtype) for k, a in enumerate(args)))
    for t in out if isinstance(out, (tuple, list)) else (out,):
        t.output()
    return g.hlir()


def agree(
    ours: Callable[..., Any],
    *args: torch.Tensor,
    torch_fn: Callable[..., Any] | None = None,
    fallbacks: int = 0,
    modes: Sequence[str] = ("native", "float64"),
) -> Hlir:
    """Values, shapes and dtypes are PyTorch's, for `ours` or its twin `torch_fn`."""
    theirs = torch_fn or ours
    hlir = written(ours, args)
    assert len(hlir.fallbacks()) == fallbacks, hlir.fallbacks().to_string()
    want = theirs(*args)
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    exact = in_float64(theirs, args, want)
    for mode in modes:
        got = run(hlir, list(args), compute=mode)
        assert len(got) == len(want)
        for spec, y, w, e in zip(hlir.outputs, got, want, exact):
            assert tuple(spec.shape) == tuple(w.shape)
            node = hlir.nodes[spec.value.node]
            assert node.dtype.torch_name == str(w.dtype).removeprefix("torch.")
            close(y, w, e)
    return hlir
