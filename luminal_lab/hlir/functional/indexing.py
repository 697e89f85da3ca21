"""Reading and storing where integer tensors say: Gather and Scatter in PyTorch's forms."""

from __future__ import annotations

from collections.abc import Sequence

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.graph import Dim
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import Shape, axes_of, broadcast_shapes
from luminal_lab.hlir.sizes import at_least
from luminal_lab.hlir.tensor import Tensor


def in_bounds(index: Tensor, n: Dim) -> Tensor:
    """Negative indices counted from the end; indices known not to be negative as they are."""
    known = index.known
    if known is not None and at_least(known.bounds(index.graph.extents(index.shape))[0], 0):
        return index
    if index.dtype.kind == "uint":
        return index
    return (index < 0).where(index + n, index)


def trailing(x: Tensor, n: int) -> Tensor:
    """With `n` dims of size 1 at the end."""
    return x.reshape((*x.shape, *(1,) * n))


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    """Row `ids` of a table (n, …), for every id: (*ids.shape, …)."""
    shape = (*ids.shape, *table.shape[1:])
    at = [Index.axis("@0"), *axes_of(shape)[ids.rank :]]
    return table.gather(shape, at, [trailing(ids, table.rank - 1)])


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at `index` (a vector, not negative) of one dim."""
    if not x.rank:
        return x
    dim = x.dim(dim)
    index = index.reshape((1,)) if not index.rank else index
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    at = list(axes_of(shape))
    at[dim] = Index.axis("@0")
    return x.gather(shape, at, [trailing(index, x.rank - 1 - dim)])


def gather_along(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`torch.gather`: one element of a dim at each point of `index`."""
    if not x.rank:
        return x.expand(index.shape)
    shape = index.shape
    if not index.rank:
        index = index.reshape((1,))
    at = list(axes_of(index.shape))
    at[x.dim(dim)] = Index.axis("@0")
    return x.gather(index.shape, at, [index]).reshape(shape)


def scatter_along(x: Tensor, dim: int, index: Tensor, src: Tensor, mode: str) -> Tensor:
    """`torch.scatter` (mode `"set"`) and `scatter_add` (`"add"`); `src` is cast to x's dtype.

    Raises:
        HlirError: when `src` is larger than `index` in a symbolic dim.
    """
    shape = x.shape
    if not x.rank:
        x, dim = x.reshape((1,)), 0
    if not index.rank:
        index = index.reshape((1,))
    src = src.expand(index.shape) if src.rank != index.rank else src
    for d, n in enumerate(index.shape):
        if src.shape[d] != n:
            if not isinstance(n, int):
                raise HlirError(f"a dim of the index depends on the symbolic dim {n}")
            src = src.slice(d, 0, n)
    at = [
        index if d == x.dim(dim) else x.graph.iota(i, index.shape)
        for d, i in enumerate(axes_of(index.shape))
    ]
    return x.scatter(src.cast(x.dtype), at, mode).reshape(shape)


def advanced(
    x: Tensor, indices: Sequence[Tensor | None], shape: Shape
) -> tuple[list[Index], list[Tensor]]:
    """Where `x[indices]` of `shape` reads each dim, and the index tensors over `shape`.

    The dims of the index tensors stand where the first of them is, or in front when a full
    slice separates two of them.

    Raises:
        HlirError: for a bool index.
    """
    if any(i is not None and i.dtype == BOOL for i in indices):
        raise HlirError("a bool index, whose result has a size that depends on data")
    given = [d for d, i in enumerate(indices) if i is not None]
    if not given:
        return list(axes_of(shape)), []
    start = place_of(given)
    common = broadcast_shapes(*(i.shape for i in indices if i is not None))
    axes = axes_of(shape)
    rest = iter(axes[:start] + axes[start + len(common) :])
    after = len(shape) - start - len(common)
    at: list[Index] = []
    reads: list[Tensor] = []
    for d in range(x.rank):
        index = indices[d] if d < len(indices) else None
        if index is None:
            at.append(next(rest))
        else:
            at.append(Index.axis(f"@{len(reads)}"))
            index = index.expand(common)
            reads.append(trailing(in_bounds(index, x.shape[d]), after))
    return at, reads


def indexed_shape(x: Tensor, indices: Sequence[Tensor | None]) -> Shape:
    """The shape of `x[indices]`, or of the values that `x[indices] = …` stores."""
    given = [d for d, i in enumerate(indices) if i is not None]
    if not given:
        return x.shape
    common = broadcast_shapes(*(i.shape for i in indices if i is not None))
    kept = [n for d, n in enumerate(x.shape) if d not in given]
    start = place_of(given)
    return (*kept[:start], *common, *kept[start:])


def place_of(given: Sequence[int]) -> int:
    """Where the dims of index tensors at dims `given` stand in the result."""
    adjacent = list(given) == list(range(given[0], given[-1] + 1))
    return given[0] if adjacent else 0


def take(x: Tensor, index: Tensor) -> Tensor:
    """The elements at flat indices, which may count from the end."""
    n = 1
    for extent in x.shape:
        n = n * extent
    flat = x.reshape((n,))
    return flat.gather(index.shape, [Index.axis("@0")], [in_bounds(index, n)])
