"""The form of a library product: what a BLAS call needs to know, read off three index maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, at_least, hint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GemmForm:
    """C[b, m, n] = act(alpha * sum over k of A[b, m, k] * B[b, k, n] + beta * D[b, m, n]).

    All strides are in elements.

    Arguments:
        batch: `(extent, stride in A, in B, in C)` of each batch loop, outermost first.
        m, n, k: Extents.
        a: Strides of A over (m, k).
        b: Strides of B over (k, n).
        c: Strides of C over (m, n); the second is 1 (or n is 1).
        plus: Strides of D over (*batch, m, n), 0 where it does not vary; None without D.
        alpha, beta: Factors of the product and of D.
        act: Activation of the result: one of `ACTIVATIONS`.
    """

    batch: tuple[tuple[Dim, Dim, Dim, Dim], ...]
    m: Dim
    n: Dim
    k: Dim
    a: tuple[Dim, Dim]
    b: tuple[Dim, Dim]
    c: tuple[Dim, Dim]
    plus: tuple[Dim, ...] | None = None
    alpha: float = 1.0
    beta: float = 1.0
    act: str = ""


ACTIVATIONS = ("", "relu", "gelu")


def activate(act: str, x: Tensor) -> Tensor:
    """An activation of a library product, in the dtype of its argument."""
    import torch

    if not act:
        return x
    return torch.relu(x) if act == "relu" else torch.nn.functional.gelu(x)


@dataclass(frozen=True)
class Stored:
    """A tensor with the index map at which it is read or written."""

    shape: tuple[Dim, ...]
    index: tuple[Index, ...]

    def strides(self) -> dict[str, Dim] | None:
        """Elements that one step along each axis moves; None when the map is not linear."""
        out: dict[str, Dim] = {}
        step: Dim = 1
        for n, i in zip(reversed(self.shape), reversed(self.index)):
            if i.const != 0 or not i.is_affine:
                return None
            for axis in sorted(i.axes):
                out[axis] = out.get(axis, 0) + i.coef(axis) * step
            step *= n
        return out


def gemm_form(
    a: Stored,
    b: Stored,
    c: Stored,
    reduced: Collection[str],
    extents: Mapping[str, Dim],
    plus: Stored | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    act: str = "",
) -> GemmForm | None:
    """The library's view of a product; None when no BLAS takes these strides.

    m, n and k must each have one stride in each matrix, one of the two strides of A and of B
    must be 1, and C must be row-major (its transpose is another e-node, with A and B
    exchanged).
    """
    sa, sb, sc = a.strides(), b.strides(), c.strides()
    if sa is None or sb is None or sc is None:
        return None
    kept = {*sa, *sb} - {*reduced}
    if not {*reduced} <= sa.keys() & sb.keys() or kept != sc.keys():
        return None
    batch = [x for x in sa if x in sb and x in sc]
    ms = [x for x in sa if x not in sb]
    ns = [x for x in sb if x not in sa]
    ks = [x for x in sa if x in reduced]
    m = merge_axes(ms, (sa, sc), extents)
    n = merge_axes(ns, (sb, sc), extents)
    k = merge_axes(ks, (sa, sb), extents)
    if m is None or n is None or k is None:
        return None
    (m_extent, (am, cm)), (n_extent, (bn, cn)), (k_extent, (ak, bk)) = m, n, k
    if n_extent not in (0, 1) and cn != 1:
        return None
    if not _dense(am, ak, m_extent, k_extent) or not _dense(bk, bn, k_extent, n_extent):
        return None
    loops = sorted(batch, key=lambda x: (-hint(sc[x]), x))
    added: tuple[Dim, ...] | None = None
    if plus is not None:
        sd = plus.strides()
        if sd is None or not sd.keys() <= sc.keys():
            return None
        sd = dict.fromkeys(sc, 0) | sd
        rows, columns = merge_axes(ms, (sa, sd), extents), merge_axes(ns, (sb, sd), extents)
        if rows is None or columns is None:
            return None
        added = (*(sd[x] for x in loops), rows[1][1], columns[1][1])
    return GemmForm(
        tuple((extents[x], sa[x], sb[x], sc[x]) for x in loops),
        m_extent,
        n_extent,
        k_extent,
        (am, ak),
        (bk, bn),
        (cm, cn),
        added,
        alpha,
        beta,
        act,
    )


def merge_axes(
    axes: Sequence[str], strides: Sequence[Mapping[str, Dim]], extents: Mapping[str, Dim]
) -> tuple[Dim, tuple[Dim, ...]] | None:
    """Several axes as one, with one stride in each tensor; None if they are not contiguous."""
    order = sorted(axes, key=lambda x: (-hint(strides[0][x]), x))
    for outer, inner in itertools.pairwise(order):
        if any(s[outer] != s[inner] * extents[inner] for s in strides):
            return None
    total = math.prod(extents[x] for x in order)
    return total, tuple(s[order[-1]] if order else 0 for s in strides)


def _dense(outer: Dim, inner: Dim, outer_extent: Dim, inner_extent: Dim) -> bool:
    """Whether a matrix has a unit stride and rows (or columns) that do not overlap."""
    rows = inner == 1 or inner_extent == 1
    columns = outer == 1 or outer_extent == 1
    return (rows and (at_least(outer - inner_extent, 0) or outer_extent == 1)) or (
        columns and (at_least(inner - outer_extent, 0) or inner_extent == 1)
    )
