"""Luminal Lab: search-based deep-learning compilation that you can see and steer.

Every stage is an object: `capture` → Hlir → `saturate` → EGraph → `search` → Candidate →
`build` → Executable → `profile` → Profile. `compile` does all of it.

    >>> import torch, luminal_lab as ll
    >>> fn = ll.compile(lambda x: torch.softmax(x, -1), (torch.randn(4, 8),))
    >>> fn(torch.ones(4, 8)).shape
    torch.Size([4, 8])

Importing it loads neither torch nor Jupyter: the functions import their stage when they are
called, and the classes are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Two functions share their name with a subpackage. Python binds a subpackage to its parent when
# it is first imported, so both are imported first and the functions are bound over them.
import luminal_lab.capture
import luminal_lab.search  # noqa: F401
from luminal_lab.api import (
    build,
    capture,
    check_rule,
    compile,
    load,
    profile,
    sample,
    saturate,
    search,
)
from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    from luminal_lab import nn
    from luminal_lab.egraph import EGraph, Limits
    from luminal_lab.hlir import Bucket, Hlir
    from luminal_lab.runtime import Buckets, Executable, Profile
    from luminal_lab.search import Budget, Candidate, Result
    from luminal_lab.session import Session
    from luminal_lab.tensor import Graph, Tensor, cat, custom_op, stack, where
    from luminal_lab.widgets import Workbench

__version__ = "0.1.0"

_HOME = {
    "Bucket": "hlir",
    "Buckets": "runtime",
    "Budget": "search",
    "Candidate": "search",
    "EGraph": "egraph",
    "Executable": "runtime",
    "Graph": "tensor",
    "Hlir": "hlir",
    "Limits": "egraph",
    "Profile": "runtime",
    "Result": "search",
    "Session": "session",
    "Tensor": "tensor",
    "Workbench": "widgets",
    "cat": "tensor",
    "custom_op": "tensor",
    "stack": "tensor",
    "where": "tensor",
}

__all__ = [
    "Bucket",
    "Buckets",
    "Budget",
    "Candidate",
    "EGraph",
    "Executable",
    "Graph",
    "Hlir",
    "Limits",
    "LuminalError",
    "Profile",
    "Result",
    "Session",
    "Tensor",
    "Workbench",
    "__version__",
    "build",
    "capture",
    "cat",
    "check_rule",
    "compile",
    "custom_op",
    "load",
    "nn",
    "profile",
    "sample",
    "saturate",
    "search",
    "stack",
    "where",
]


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext luminal_lab`: the magics `%%rules` and `%rules`."""
    import_module("luminal_lab.magics").load_ipython_extension(ipython)


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("luminal_lab.nn")
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
