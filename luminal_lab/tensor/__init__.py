"""Programs that are written directly: `Graph`, `Tensor`, and what joins Tensors.

Names are imported when they are first used; nothing here loads torch by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Graph": "graph",
    "Tensor": "tensor",
    "CustomOp": "custom",
    "cat": "tensor",
    "custom_op": "custom",
    "promote": "promotion",
    "stack": "tensor",
    "where": "tensor",
}

__all__ = ["CustomOp", "Graph", "Tensor", "cat", "custom_op", "promote", "stack", "where"]

if TYPE_CHECKING:
    from luminal_lab.tensor.custom import CustomOp, custom_op
    from luminal_lab.tensor.graph import Graph
    from luminal_lab.tensor.promotion import promote
    from luminal_lab.tensor.tensor import Tensor, cat, stack, where


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.tensor.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.tensor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
