"""Products and running operations, in steps that double their reach."""

from __future__ import annotations

from collections.abc import Callable

from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import Scalar


def product_over(x: Tensor, dim: int, extent: int, keepdim: bool = False) -> Tensor:
    """The product over a dim of fixed extent: halves are multiplied until one is left."""
    dim = x.dim(dim)
    if not extent:
        shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
        out = x.graph.full(shape, True if x.dtype == BOOL else 1, x.dtype)
        return out if keepdim else out.squeeze(dim)
    while extent > 1:
        half = (extent + 1) // 2
        rest = x.slice(dim, half, extent)
        if rest.shape[dim] < half:  # a factor of 1 for the middle one
            pads = [(0, half - rest.shape[dim] if d == dim else 0) for d in range(x.rank)]
            rest = rest.pad(pads, True if x.dtype == BOOL else 1)
        x, extent = x.slice(dim, 0, half) * rest, half
    return x if keepdim else x.squeeze(dim)


def running(
    x: tuple[Tensor, ...],
    dim: int,
    extent: int,
    join: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Tensor, ...]],
    fills: tuple[Scalar, ...],
) -> tuple[Tensor, ...]:
    """An inclusive scan of an associative operation, in steps that double their reach.

    Arguments:
        x: Tensors of one shape that are scanned together.
        dim: Along which.
        extent: Its size.
        join: (earlier, later) -> joined.
        fills: The neutral element.
    """
    reach = 1
    while reach < extent:
        earlier = []
        for t, fill in zip(x, fills):
            front = t.slice(dim, 0, extent - reach)
            pads = [(reach if d == t.dim(dim) else 0, 0) for d in range(t.rank)]
            earlier.append(front.pad(pads, fill))
        x = join(tuple(earlier), x)
        reach *= 2
    return x
