"""HLIR: the graph of primitive ops that a program is captured into, and what reads it.

Names are imported when they are first used: neither torch nor pandas is loaded by this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "DType": "dtypes",
    "dtype": "dtypes",
    "Hlir": "graph",
    "InputSpec": "graph",
    "Node": "graph",
    "Operand": "graph",
    "OutputSpec": "graph",
    "ComplexRef": "graph",
    "Ref": "graph",
    "Source": "graph",
    "TorchName": "graph",
    "Bucket": "narrowing",
    "Index": "index",
    "Reference": "interpreter",
    "run": "interpreter",
    "Diff": "compare",
    "narrow": "narrowing",
    "OPS": "ops",
    "Op": "ops",
    "Instance": "regions",
    "Program": "regions",
    "Region": "regions",
    "partition": "regions",
    "bind_symbols": "symbolic",
    "specialize": "symbolic",
    "Graph": "tensor",
    "Tensor": "tensor",
    "check": "validate",
    "load": "storage",
    "parse": "text",
    "View": "view",
    "regroup": "view",
}

__all__ = [
    "OPS",
    "Bucket",
    "ComplexRef",
    "DType",
    "Diff",
    "Graph",
    "Hlir",
    "Index",
    "InputSpec",
    "Instance",
    "Node",
    "Op",
    "Operand",
    "OutputSpec",
    "Program",
    "Ref",
    "Reference",
    "Region",
    "Source",
    "Tensor",
    "TorchName",
    "View",
    "bind_symbols",
    "check",
    "dtype",
    "load",
    "narrow",
    "parse",
    "partition",
    "regroup",
    "run",
    "specialize",
]

if TYPE_CHECKING:
    from luminal_lab.hlir.compare import Diff
    from luminal_lab.hlir.dtypes import DType, dtype
    from luminal_lab.hlir.graph import (
        ComplexRef,
        Hlir,
        InputSpec,
        Node,
        Operand,
        OutputSpec,
        Ref,
        Source,
        TorchName,
    )
    from luminal_lab.hlir.index import Index
    from luminal_lab.hlir.interpreter import Reference, run
    from luminal_lab.hlir.narrowing import Bucket, narrow
    from luminal_lab.hlir.ops import OPS, Op
    from luminal_lab.hlir.regions import Instance, Program, Region, partition
    from luminal_lab.hlir.storage import load
    from luminal_lab.hlir.symbolic import bind_symbols, specialize
    from luminal_lab.hlir.tensor import Graph, Tensor
    from luminal_lab.hlir.text import parse
    from luminal_lab.hlir.validate import check
    from luminal_lab.hlir.view import View, regroup


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.hlir.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.hlir' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
