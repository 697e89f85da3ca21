"""The table of ATen lowerings: how a row is written, and what it is told about its call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from luminal_lab.capture.symbols import size_of
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import F32, DType
from luminal_lab.hlir.dtypes import dtype as dtype_of
from luminal_lab.hlir.graph import Dim
from luminal_lab.hlir.shapes import Shape
from luminal_lab.hlir.sizes import Size
from luminal_lab.hlir.tensor import Graph, Tensor
from luminal_lab.hlir.view import Scalar

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}
"""ATen overload without its namespace (`"addmm.default"`) -> `lower(call, *args, **kwargs)`.

A lowering gets Tensors where ATen gets tensors, and returns a Tensor or a tuple of them (None
where a result is not computed). Device, layout and memory-format arguments are ignored.
"""


class NoLowering(Exception):
    """A lowering does not cover these arguments; the call becomes a Custom node.

    Arguments:
        reason: Why, for `hlir.fallbacks()`.
    """


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for ATen overloads."""

    def register(f: Lowering) -> Lowering:
        for name in names:
            assert name not in LOWERINGS, name
            LOWERINGS[name] = f
        return f

    return register


@dataclass(frozen=True)
class Call:
    """One call of an ATen operator while it is being lowered.

    Arguments:
        graph: Where nodes go.
        target: The overload, `"addmm.default"`.
        value: What PyTorch says the result is: a FakeTensor, or a tuple of them.
        given: The positional arguments as fx has them, for `fake`.
    """

    graph: Graph
    target: str
    value: Any
    given: tuple[Any, ...] = ()

    def fake(self, k: int) -> torch.Tensor | None:
        """The FakeTensor of positional argument `k`, which knows strides and offset."""
        node = self.given[k] if k < len(self.given) else None
        value = getattr(node, "meta", {}).get("val")
        return value if isinstance(value, torch.Tensor) else None

    @property
    def first(self) -> Any:
        """The FakeTensor of the first (or only) result."""
        return self.value[0] if isinstance(self.value, (tuple, list)) else self.value

    @property
    def dtype(self) -> DType:
        """Dtype of the first result."""
        return dtype_of(self.first.dtype)

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        return dims(self.first.shape)

    def tensor(self, x: Tensor | Scalar, dtype: DType | None = None) -> Tensor:
        """An argument as a Tensor of `dtype` (of the result's dtype when None)."""
        dtype = dtype or self.dtype
        return x.cast(dtype) if isinstance(x, Tensor) else self.graph.constant(x, dtype)

    def operands(self, *args: Tensor | Scalar, exact: bool = True) -> list[Tensor]:
        """Arguments of an arithmetic op in the dtype that PyTorch computes in.

        That is the result's dtype; float32 instead of a 16-bit one when that would round a
        number among the arguments (`exact`), or always (`exact=False`).
        """
        d = self.dtype
        low = d.is_float and d.bits < 32
        numbers = [a for a in args if not isinstance(a, Tensor)]
        if low and (not exact or not all(F.representable(n, d) for n in numbers)):
            d = F32
        return [self.tensor(a, d) for a in args]

    def common(self, *args: Tensor | Scalar) -> list[Tensor]:
        """Arguments of a comparison, promoted to their common dtype."""
        d = common_dtype(*args)
        return [self.tensor(a, d) for a in args]


def common_dtype(*args: Tensor | Scalar) -> DType:
    """PyTorch's type promotion, 0-d tensors and Python numbers counting less."""
    return _common(
        tuple(
            (a.dtype.torch_name, min(a.rank, 1)) if isinstance(a, Tensor) else type(a)
            for a in args
        )
    )


@functools.lru_cache(maxsize=4096)
def _common(kinds: tuple) -> DType:
    samples = [
        torch.empty((1,) * kind[1], dtype=getattr(torch, kind[0]), device="meta")
        if isinstance(kind, tuple)
        else kind(1)
        for kind in kinds
    ]
    _, result = elementwise_dtypes(
        *samples, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    return dtype_of(result)


def dims(shape: Sequence[Any]) -> Shape:
    """Ints, and symbolic sizes for SymInts."""
    return tuple(dim(n) for n in shape)


def dim(n: Any) -> Dim:
    """One dim, see `dims`."""
    if isinstance(n, torch.SymInt):
        return size_of(n)
    return n if isinstance(n, Size) else int(n)


def whole(n: Any, what: str) -> int:
    """An argument that must be a fixed integer.

    Raises:
        NoLowering: when it depends on a symbolic dim.
    """
    n = dim(n)
    if not isinstance(n, int):
        raise NoLowering(f"{what} depends on the symbolic dim {n}")
    return n


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
