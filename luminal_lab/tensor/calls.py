"""What all operations of the Tensor API share: provenance, and errors with the user's line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from luminal_lab.errors import HlirError, TensorError
from luminal_lab.hlir.dtypes import DTYPES, DType
from luminal_lab.hlir.dtypes import dtype as dtype_of
from luminal_lab.hlir.graph import Source

if TYPE_CHECKING:
    from luminal_lab.tensor.graph import Graph

P = ParamSpec("P")
R = TypeVar("R")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_line() -> str:
    """The innermost line outside of this package that led here, `"model.py:12 in block"`."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and os.path.basename(file) != "contextlib.py":
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


@contextmanager
def calling(graph: Graph, name: str) -> Iterator[None]:
    """Nodes that are added inside carry the user's line; errors name it and the operation."""
    if graph.busy:  # an operation that is part of another one
        yield
        return
    graph.busy = True
    line = user_line()
    graph.builder.source = Source(line, ".".join(graph.path), name)
    try:
        yield
    except HlirError as error:
        raise TensorError(f"{name}: {error.what}", where=line, fix=error.fix) from None
    except TensorError as error:
        raise TensorError(f"{name}: {error.what}", where=line, fix=error.fix) from None
    finally:
        graph.busy = False
        graph.builder.source = Source()


def op(f: Callable[P, R]) -> Callable[P, R]:
    """A method of a Tensor or a Graph, as an operation that the user calls."""
    name = f.__name__.strip("_")

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        owner: Any = args[0]
        with calling(getattr(owner, "graph", owner), name):
            return f(*args, **kwargs)

    return call


def known_dtype(spec: object) -> DType:
    """A dtype by its short name (`"bf16"`), torch name or `torch.dtype`.

    Raises:
        TensorError: when there is no such dtype.
    """
    try:
        return dtype_of(spec)
    except KeyError:
        raise TensorError(f"no dtype {spec!r}", fix=f"one of {', '.join(DTYPES)}") from None


def shown(x: Any) -> str:
    """`f32[2, s]` for anything with a dtype and a shape, else its repr."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{x.dtype}[{', '.join(map(str, x.shape))}]"
    return repr(x)
