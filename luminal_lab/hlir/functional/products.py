"""Matrix products, attention, and joining tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.functional.elementary import log
from luminal_lab.hlir.functional.logic import INF
from luminal_lab.hlir.functional.precision import finfo_min, wide
from luminal_lab.hlir.functional.reductions import softmax_parts
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Size
from luminal_lab.hlir.tensor import Tensor
from luminal_lab.hlir.view import out_axis


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product over the last two dims, batch dims broadcast, in a float32 accumulator.

    Arguments:
        a: (…, m, k)
        b: (…, k, n), of the same dtype.

    Returns:
        (…, m, n); float32 for 16-bit floats, to be cast by the caller.
    """
    a, b = wide(a), wide(b)
    return (a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3)).sum(-1)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul`: vectors, matrices, and batches of them."""
    x = a.unsqueeze(0) if a.rank == 1 else a
    y = b.unsqueeze(1) if b.rank == 1 else b
    out = product(x, y)
    if b.rank == 1:
        out = out.squeeze(-1)
    if a.rank == 1:
        out = out.squeeze(-1 if b.rank == 1 else -2)
    return out.cast(a.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X weightᵀ + bias for x (…, k) and weight (n, k); wide, to be cast by the caller."""
    out = (wide(x).unsqueeze(-2) * wide(weight)).sum(-1)  # (…, n, k) -> (…, n)
    return out if bias is None else out + wide(bias)


def grouped(kv: Tensor, q: Tensor) -> Tensor:
    """Keys or values of grouped-query attention, each head repeated for its queries."""
    heads, groups = q.shape[-3], kv.shape[-3]
    if heads == groups:
        return kv
    lead, rest = kv.shape[:-3], kv.shape[-2:]
    wide = kv.unsqueeze(-3).expand((*lead, groups, heads // groups, *rest))
    return wide.reshape((*lead, heads, *rest))


def below(x: Tensor, offset: int) -> Tensor:
    """Where column <= row + offset, over the last two dims of `x`."""
    rows, cols = x.shape[-2:]
    row = x.graph.iota(Index.axis("i0") + (offset + 1), (rows, cols))
    col = x.graph.iota(Index.axis("i1"), (rows, cols))
    return col < row


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ scale + mask) v, in float32, with one cast at the end.

    Arguments:
        q: (…, l, d)
        k: (…, s, d)
        v: (…, s, e)
        mask: Broadcasts to (…, l, s): a bool (True takes part) or what is added to the scores.
        causal: Query i sees keys 0…i.
        scale: 1/sqrt(d) when None.

    Returns:
        (…, l, e), and the log of the sum of exponentials (…, l), float32. A row whose keys are
        all masked gives 0, as PyTorch does.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = product(q, k.transpose(-1, -2)) * scale  # (…, l, s)
    if causal:
        scores = below(scores, 0).where(scores, -INF)
    if mask is not None and mask.dtype == BOOL:
        scores = mask.where(scores, -INF)
    elif mask is not None:
        scores = scores + mask.cast(scores.dtype)
    e, s, m = softmax_parts(scores, -1)
    out = product(e * s.unary("Recip"), wide(v))
    if mask is not None:
        out = (m < finfo_min(m.dtype)).where(0.0, out)  # only -inf is below the lowest number
    return out.cast(q.dtype), (log(s) + m).squeeze(-1)


def cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Joined along a dim: a Select over where each part ends.

    Parts of equal size n are all read at `i % n`, which needs no guard; others are padded.
    """
    first = parts[0]
    dim = first.dim(dim)
    sizes = [p.shape[dim] for p in parts]
    shape = (*first.shape[:dim], sum(sizes), *first.shape[dim + 1 :])
    if len(parts) == 1:
        return first
    axis, extents = Index.axis(out_axis(dim)), first.graph.extents(shape)
    reads: list[Tensor] = []
    ends: list[tuple[Index, int]] = []
    if len(set(sizes)) == 1 and sizes[0]:
        n = sizes[0]
        for k, part in enumerate(parts):
            at = [Index() if m == 1 else Index.axis(out_axis(d)) for d, m in enumerate(shape)]
            at[dim] = axis.mod(n, extents)
            reads.append(part.viewed(shape, at))
            ends.append((axis.floordiv(n, extents), k + 1))
    else:
        start = 0
        for part, n in zip(parts, sizes):
            pads = [(0, 0)] * part.rank
            pads[dim] = (start, shape[dim] - start - n)
            start += n
            if n:
                reads.append(part.pad(pads, 0))
                ends.append((axis, start))
        if not reads:
            return first.expand(shape)
    out = reads[-1]
    for read, (index, end) in reversed(list(zip(reads[:-1], ends))):
        before = first.graph.iota(index, shape) < end
        if isinstance(end, Size):
            before = first.graph.iota(index - end, shape) < 0
        out = before.where(read, out)
    return out
