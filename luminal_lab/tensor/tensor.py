"""The Tensor that users compute with, and the functions of several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from luminal_lab.errors import TensorError
from luminal_lab.tensor.arithmetic import Arithmetic
from luminal_lab.tensor.base import Base, Operand
from luminal_lab.tensor.calls import calling, op, shown
from luminal_lab.tensor.indexing import Indexing, join
from luminal_lab.tensor.math import Math
from luminal_lab.tensor.reductions import Reductions


class Tensor(Arithmetic, Math, Reductions, Indexing):
    """A value of a `Graph`; operations on it add to the graph and compute nothing yet.

    Made by `g.tensor`, `g.weight`, `g.constant` and by operations. Meaning, promotion and
    broadcasting are PyTorch's; what does not fit raises a `TensorError` with your line.

        >>> import luminal_lab as ll
        >>> g = ll.Graph()
        >>> x = g.tensor("x", ("s", 64), "bf16")
        >>> (x * 2.0).softmax(-1).sum(0)
        Tensor(bf16[64])
    """

    @op
    def output(self, name: str | None = None) -> Self:
        """Mark it as a result of the program; results come in the order of their marking."""
        self.graph.add_output(self, name)
        return self

    @op
    def persist(self, value: Any = None) -> Self:
        """Make this input a weight: it is given once, here or by `g.load`, not at each call.

        Arguments:
            value: A torch tensor (kept by reference) or an array.

        Raises:
            TensorError: when it is no input, or the value has another shape or dtype.
        """
        self.graph.make_weight(self, value)
        return self

    @op
    def assign(self, value: Operand) -> Self:
        """After each call this input or weight is overwritten with `value`, a state's new one.

        Raises:
            TensorError: when it is no input, or the value has another shape or dtype.
        """
        self.graph.add_update(self, self._tensor(value))
        return self

    def __repr__(self) -> str:
        return f"Tensor({shown(self)})"


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined along a dim; dtypes are promoted.

    >>> import luminal_lab as ll
    >>> g = ll.Graph()
    >>> ll.cat([g.tensor("a", (2, 3)), g.tensor("b", (4, 3))])
    Tensor(f32[6, 3])
    """
    return _joined("cat", tensors, dim, new=False)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined along a new dim; dtypes are promoted.

    >>> import luminal_lab as ll
    >>> g = ll.Graph()
    >>> ll.stack([g.tensor("a", (3,)), g.tensor("b", (3,))], dim=1)
    Tensor(f32[3, 2])
    """
    return _joined("stack", tensors, dim, new=True)


def _joined(name: str, tensors: Sequence[Tensor], dim: int, new: bool) -> Tensor:
    if not tensors or not isinstance(tensors[0], Base):
        raise TensorError(f"{name} takes one tensor or more, not {tensors!r}")
    with calling(tensors[0].graph, name):
        return join(tensors, dim, new)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """`a` where `condition` holds, `b` elsewhere; the same as `condition.where(a, b)`.

    >>> import luminal_lab as ll
    >>> x = ll.Graph().tensor("x", (4,))
    >>> ll.where(x > 0, x, 0.0)
    Tensor(f32[4])
    """
    return condition.where(a, b)
