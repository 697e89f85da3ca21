"""Places of maxima that hang on the last digits: there a kernel may rightly find another one.

A reference finds places among float64 numbers, a kernel among rounded ones. Where the runner-up
is within the tolerance of the winner, either is right, and a verifier looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import BOOL

if TYPE_CHECKING:
    from torch import Tensor


def close_calls(term: Value, axes: Sequence[str]) -> list[tuple[Value, Value]]:
    """The winner and the runner-up of each place among floats in a term.

    Arguments:
        term: What is computed.
        axes: Its axes; places that depend on others (bound ones) are left out.
    """
    out = []
    for v in postorder([term]):
        if v.op != "carry" or v.attrs[0] != "argmax" or not v.free <= frozenset(axes):
            continue
        (x, p), (_, axis) = v.args, v.attrs
        if not x.dtype.is_float:
            continue
        less, more = (Value("lessthan", pair, dtype=BOOL) for pair in ((p, v), (v, p)))
        other = Value("add", (less, more), dtype=BOOL)
        low = Value("const", (), (float("-inf"),), dtype=x.dtype)
        rest = Value("select", (other, x, low), dtype=x.dtype)
        tops = (Value("red", (t,), ("max", axis), dtype=x.dtype) for t in (x, rest))
        out.append((next(tops), next(tops)))
    return out


def is_close(winner: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """Where two extremes are equal up to rounding, as booleans."""
    import torch

    finite = winner[torch.isfinite(winner)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return winner - second <= tolerance * scale
