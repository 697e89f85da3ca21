"""PyTorch's symbolic sizes as ours: sympy expressions become `Size`s with bounds and a hint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.sizes import Dim

_KNOWN: ContextVar[Mapping[str, Dim]] = ContextVar("symbols")


@contextmanager
def known_symbols(symbols: Mapping[str, Dim]) -> Iterator[None]:
    """While lowering: the symbols of the program, whose bounds a caller knows, by name."""
    token = _KNOWN.set(symbols)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def size_of(n: torch.SymInt) -> Dim:
    """A SymInt as a size.

    Raises:
        HlirError: for an expression that has no such form.
    """
    known, env = _KNOWN.get({}), n.node.shape_env

    def read(e: Any) -> Dim:
        kind = type(e).__name__
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            name = str(e)
            if name not in known:
                return _symbol(name, env.var_to_range.get(e), env.backed_var_to_val.get(e))
            return known[name]
        if kind == "Mul":
            return _product(e, read)
        if kind == "Pow" and e.exp.is_Integer and e.exp > 0:
            return read(e.base) ** int(e.exp)
        args = [read(a) for a in e.args]
        if kind == "Add":
            return sum(args)
        if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            return args[0] // args[1]
        if kind in ("Mod", "PythonMod"):
            return args[0] % args[1]
        if kind == "ModularIndexing":
            return args[0] // args[1] % args[2]
        if kind == "CeilDiv":
            return sizes.ceildiv(args[0], args[1])
        if kind == "Max":
            return sizes.largest(*args)
        if kind == "Min":
            return sizes.smallest(*args)
        raise HlirError(f"the size {e} is not made of sums, products, quotients and extremes")

    return read(n.node.expr)


def _product(e: Any, read: Any) -> Dim:
    """A product; a rational factor is a division that comes out even."""
    out: Dim = 1
    below = 1
    for factor in e.args:
        if factor.is_Rational and not factor.is_Integer:
            out, below = out * int(factor.p), below * int(factor.q)
        else:
            out = out * read(factor)
    return out // below


def _symbol(name: str, bounds: Any, example: Any) -> Dim:
    low, high = _ends(bounds) if bounds is not None else (1, sizes.LARGEST)
    hint = None
    if example is not None and example.is_Integer:
        hint = min(max(int(example), low), high)
    return sizes.symbol(name, low, high, hint)


def _ends(bounds: Any) -> tuple[int, int]:
    """Inclusive bounds; a size is at least 1, and below 2^31."""
    low, high = bounds.lower, bounds.upper
    top = int(high) if high.is_Integer else sizes.LARGEST
    bottom = int(low) if low.is_Integer else 1
    return max(1, bottom), max(1, min(top, sizes.LARGEST))


def names_of(named: Iterable[tuple[Any, int, str]]) -> dict[str, str]:
    """The user's names of symbols, by PyTorch's.

    Arguments:
        named: FakeTensors, a dim of each, and its name; only dims that are one symbol count.
    """
    out: dict[str, str] = {}
    for value, dim, name in named:
        n = value.shape[dim]
        if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
            out.setdefault(str(n.node.expr), name)
    return out


def symbols_of(
    values: Iterable[Any],
    ranges: Mapping[Any, Any],
    names: Mapping[str, str] | None = None,
) -> dict[str, Dim]:
    """The symbols of a program's inputs, by PyTorch's name.

    Arguments:
        values: FakeTensors and SymInts.
        ranges: Bounds by sympy symbol, where they are known better than while tracing.
        names: The user's names, by PyTorch's.
    """
    names = names or {}
    out: dict[str, Dim] = {}
    for value in values:
        dims = value.shape if isinstance(value, torch.Tensor) else (value,)
        for n in dims:
            if not isinstance(n, torch.SymInt):
                continue
            env = n.node.shape_env
            for symbol in sorted(n.node.expr.free_symbols, key=str):
                bounds = ranges.get(symbol, env.var_to_range.get(symbol))
                example = env.backed_var_to_val.get(symbol)
                name = names.get(str(symbol), str(symbol))
                out.setdefault(str(symbol), _symbol(name, bounds, example))
    return out
