"""Attributes of library kernels as JSON, and back: nothing is ever pickled."""

from __future__ import annotations

import math
from typing import Any

from luminal_lab.errors import SearchError
from luminal_lab.hlir.dtypes import DType, dtype
from luminal_lab.hlir.graph import ComplexRef, Ref, TorchName
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, Size, parse, symbol
from luminal_lab.hlir.view import View


def to_plain(value: Any) -> Any:
    """JSON data for an attribute; what JSON lacks becomes a one-entry object `{"$kind": …}`.

    Raises:
        SearchError: for a value of another kind.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, list):
        return [to_plain(v) for v in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(v) for v in value]}
    if isinstance(value, dict):
        return {"$dict": [[to_plain(k), to_plain(v)] for k, v in value.items()]}
    if isinstance(value, complex):
        return {"$number": [str(value.real), str(value.imag)]}
    if isinstance(value, DType):
        return {"$dtype": value.name}
    if isinstance(value, Size):
        bounds = {s.name: [s.low, s.high, s.hint] for s in sorted(value.free_symbols)}
        return {"$size": [str(value), bounds]}
    if isinstance(value, Index):
        return {"$index": str(value)}
    if isinstance(value, View):
        return {"$view": [to_plain(value.index), to_plain(value.guard), to_plain(value.fill)]}
    if isinstance(value, Ref):
        return {"$ref": value.operand}
    if isinstance(value, ComplexRef):
        return {"$complex": value.operand}
    if isinstance(value, TorchName):
        return {"$torch": value.name}
    raise SearchError(f"cannot write {type(value).__name__} {value!r} as plain data")


def _size(data: Any) -> Dim:
    text, bounds = data
    return parse(text, {n: symbol(n, *ends) for n, ends in bounds.items()})


_READERS = {
    "$size": _size,
    "$float": float,
    "$tuple": lambda v: tuple(from_plain(x) for x in v),
    "$dict": lambda v: {from_plain(k): from_plain(x) for k, x in v},
    "$dtype": dtype,
    "$index": Index.parse,
    "$view": lambda v: View(*(from_plain(x) for x in v)),
    "$ref": Ref,
    "$complex": ComplexRef,
    "$number": lambda v: complex(*map(float, v)),
    "$torch": TorchName,
}


def from_plain(data: Any) -> Any:
    """What `to_plain` was given.

    >>> from_plain(to_plain((1, [2.0, None], {"a": float("inf")})))
    (1, [2.0, None], {'a': inf})

    Raises:
        SearchError: on an object that `to_plain` does not write.
    """
    if isinstance(data, list):
        return [from_plain(v) for v in data]
    if isinstance(data, dict):
        if len(data) == 1:
            ((kind, inner),) = data.items()
            if kind in _READERS:
                return _READERS[kind](inner)
        raise SearchError(f"not plain data of a candidate: {data!r}")
    return data
