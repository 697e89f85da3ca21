"""A Tensor's core: what it wraps, and how operands of one operation meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.hlir import functional as F
from luminal_lab.hlir.dtypes import F32, I64, DType
from luminal_lab.hlir.graph import Ref
from luminal_lab.hlir.shapes import Shape
from luminal_lab.hlir.sizes import Dim, Size, at_least
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.hlir.view import Scalar
from luminal_lab.tensor.promotion import Kind, promote

if TYPE_CHECKING:
    from luminal_lab.tensor.graph import Graph

Operand = Any  # a Tensor, a Python number, or a symbolic size


class Base:
    """A value of a Graph: a lazily viewed result of a node.

    Arguments:
        graph: The Graph that it belongs to.
        raw: The same value in the builder of the Hlir.
    """

    __array_ufunc__ = None  # numpy's operators leave theirs to ours

    def __init__(self, graph: Graph, raw: Raw):
        self.graph, self.raw = graph, raw

    @property
    def shape(self) -> Shape:
        """Its dims: ints and symbolic sizes."""
        return self.raw.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.raw.dtype

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    ndim = rank

    def size(self, dim: int | None = None) -> Any:
        """The size of a dim, or the shape."""
        return self.shape if dim is None else self.shape[self.raw.dim(dim)]

    def numel(self) -> Dim:
        """Number of elements."""
        return F.count(self.raw, range(self.rank))

    # ------------------------------------------------------------------ operands
    def _of(self, raw: Raw) -> Self:
        return type(self)(self.graph, raw)

    def _raw(self, x: Operand) -> Raw | Scalar:
        """An operand in the builder: a Raw, or a Python number.

        Raises:
            TensorError: for a Tensor of another Graph, and for what is neither.
        """
        if isinstance(x, Base):
            if x.graph is not self.graph:
                raise TensorError(
                    "two tensors belong to different graphs",
                    fix="make both with one ll.Graph()",
                )
            return x.raw
        if isinstance(x, Size):
            dtype = F32 if self.dtype.is_float else self.dtype if self.dtype.is_int else I64
            return self.graph.builder.constant(x, dtype)
        if isinstance(x, (bool, int, float)):
            return x
        item = getattr(x, "item", None)  # a number of numpy's or torch's
        if item is not None and getattr(x, "ndim", 1) == 0:
            return item()
        raise TensorError(
            f"a {type(x).__name__} is no operand",
            fix="a Tensor, a number, or g.constant(array)",
        )

    def _tensor(self, x: Operand) -> Raw:
        """An operand that must be a Tensor."""
        raw = self._raw(x)
        if not isinstance(raw, Raw):
            raise TensorError(f"a tensor is expected, not {x!r}", fix="g.constant(number)")
        return raw

    def _operands(
        self, *args: Operand, exact: bool = True, floats: bool = False
    ) -> tuple[DType, list[Raw]]:
        """The dtype of the result, and the operands in the dtype in which PyTorch computes.

        Arguments:
            *args: The operands.
            exact: Compute in a 16-bit dtype, unless it would round a number among them; else
                always in float32.
            floats: Integers and bools become float32.
        """
        raws = [self._raw(a) for a in args]
        out = promote(*map(_kind, raws))
        if floats and not out.is_float:
            out = F32
        dtype, low = out, out.is_float and out.bits < 32
        numbers = [r for r in raws if not isinstance(r, Raw)]
        if low and (not exact or not all(F.representable(n, out) for n in numbers)):
            dtype = F32
        builder = self.graph.builder
        return out, [
            r.cast(dtype) if isinstance(r, Raw) else builder.constant(r, dtype) for r in raws
        ]

    def _floats(self) -> Raw:
        """This tensor; integers and bools as float32."""
        return self.raw if self.dtype.is_float else self.raw.cast(F32)

    def _dims(self, dim: int | Sequence[int] | None) -> list[int]:
        """The dims of a reduction, from the front; None means all."""
        if dim is None:
            return list(range(self.rank))
        over = [dim] if isinstance(dim, int) else list(dim)
        found = [self.raw.dim(d) for d in over] if self.rank else []
        if len(set(found)) != len(found):
            raise TensorError(f"a dim occurs twice in {over}")
        return found

    def _aten(
        self,
        target: str,
        args: tuple,
        results: Sequence[tuple[Shape, DType]],
        reason: str,
        **kwargs: Any,
    ) -> list[Self]:
        """What has no lowering: a call of an ATen operator at run time.

        Arguments:
            target: `"aten.sort.stable"`.
            args: Its arguments; Tensors among them become operands.
            results: Shape and dtype of each; one result means that the call returns a tensor.
            reason: Why, for `hlir.fallbacks()`.
            **kwargs: Its keyword arguments.
        """
        operands: list[Raw] = []

        def hole(x: Any) -> Any:
            if isinstance(x, Base):
                operands.append(x.raw)
                return Ref(len(operands) - 1)
            return x

        template = (tuple(map(hole, args)), {k: hole(v) for k, v in kwargs.items()})
        made = self.graph.builder.custom(
            target, template, operands, results, single=len(results) == 1, reason=reason
        )
        return [self._of(raw) for raw in made]


def _kind(x: Raw | Scalar) -> Kind:
    return (x.dtype, x.rank) if isinstance(x, Raw) else type(x)


def not_empty(n: Dim, what: str) -> None:
    """Refuse what has no value over no elements.

    Raises:
        TensorError: for a dim of size 0.
    """
    if not at_least(n, 1):
        raise TensorError(f"{what} over a dim of size {n} has no value")
