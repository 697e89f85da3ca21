"""Symbolic dims: bound to the shapes of actual arguments, and replaced by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from luminal_lab.errors import CallError, HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.graph import Dim, Hlir, Node, Operand, OutputSpec
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Size, Symbol
from luminal_lab.hlir.view import View


def is_static(hlir: Hlir) -> bool:
    """Whether every dim of the program is a number."""
    return not hlir.symbols


def bind_symbols(hlir: Hlir, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The value of each symbolic dim, from the shapes of the inputs.

    Arguments:
        hlir: The program.
        shapes: The actual shape of each input, by name.

    Raises:
        CallError: when a rank differs, two inputs disagree, or a value is out of its bounds.
    """
    if not hlir.symbols:
        return {}
    found: dict[str, tuple[int, str]] = {}
    pending: list[tuple[Any, int, str]] = []
    for spec in hlir.inputs:
        declared, actual = hlir.nodes[spec.node].shape, tuple(shapes[spec.name])
        if len(declared) != len(actual):
            raise CallError(f"input {spec.name!r} has shape {actual}, expected {declared}")
        for d, (dim, size) in enumerate(zip(declared, actual)):
            where = f"dim {d} of {spec.name!r}"
            if isinstance(dim, int):
                if dim != size:
                    raise CallError(f"{where} is {size}, expected {dim}")
            elif (name := dim.name) is not None:
                value, first = found.setdefault(name, (size, where))
                if value != size:
                    raise CallError(
                        f"{where} is {size}, but {first}, the same {dim}, is {value}"
                    )
            else:
                pending.append((dim, size, where))
    for dim, size, where in pending:
        _solve(dim, size, where, found)
    for name, (low, high) in hlir.symbols.items():
        if name not in found:
            raise CallError(f"no input determines the symbolic dim {name}")
        value, where = found[name]
        if not low <= value <= high:
            raise CallError(
                f"{where} is {value}, outside of the bounds [{low}, {high}] of {name}"
            )
    return {name: value for name, (value, _) in found.items()}


def _solve(dim: Size, size: int, where: str, found: dict[str, tuple[int, str]]) -> None:
    """Check a dim that is an expression, or solve it for its one unknown symbol."""
    known = {s.name: found[s.name][0] for s in dim.free_symbols if s.name in found}
    unknown = sorted(s for s in dim.free_symbols if s.name not in known)
    if not unknown:
        if sizes.value(dim, known) != size:
            raise CallError(f"{where} is {size}, expected {dim} = {sizes.value(dim, known)}")
        return
    if len(unknown) == 1:
        symbol = unknown[0]

        def at(n: int) -> int:
            return sizes.value(dim, {**known, symbol.name: n})

        # dims grow with their symbols; one out of bounds is told later, by its name
        low, high = 0, max(symbol.high, size) + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if at(middle) < size else (low, middle)
        if at(low) == size:
            found[symbol.name] = (low, where)
            return
    raise CallError(f"{where} is {size}, which no value of {dim} gives")


def specialize(hlir: Hlir, symbols: Mapping[str, int]) -> Hlir:
    """The program with its symbolic dims replaced by numbers.

    Raises:
        HlirError: when a symbol has no value, or a dim becomes something else than an integer.
    """
    if not hlir.symbols:
        return hlir
    missing = [s for s in hlir.symbols if s not in symbols]
    if missing:
        raise HlirError(f"no value for the symbolic dims {', '.join(missing)}")
    nodes = tuple(_node(n, symbols) for n in hlir.nodes)
    outputs = tuple(_output(o, symbols) for o in hlir.outputs)
    return replace(hlir, nodes=nodes, outputs=outputs, symbols={})


def number(dim: Dim, symbols: Mapping[str, int]) -> int:
    """The value of a dim.

    Raises:
        HlirError: when one of its symbols has no value.
    """
    return sizes.value(dim, symbols)


def symbols_of(hlir: Hlir) -> dict[str, Symbol]:
    """The size symbols that a program mentions, by name, in the order of their names."""
    found: set[Symbol] = set()
    for node in hlir.nodes:
        found |= mentioned((node.shape, dict(node.attrs)))
        for operand in node.operands:
            found |= mentioned((operand.view.index, operand.view.guard))
    for out in hlir.outputs:
        found |= mentioned((out.shape, out.stride, out.value.view.index, out.value.view.guard))
    return {s.name: s for s in sorted(found)}


def mentioned(value: Any) -> frozenset[Symbol]:
    """The symbols that occur in plain data: sizes, indices, dataclasses, and nests of them."""
    if isinstance(value, Size):
        return value.free_symbols
    if isinstance(value, Index):
        return value.symbols
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return frozenset[Symbol]().union(*map(mentioned, value))
    return frozenset()


def _node(node: Node, symbols: Mapping[str, int]) -> Node:
    shape = tuple(number(d, symbols) for d in node.shape)
    operands = tuple(_operand(o, symbols) for o in node.operands)
    attrs = {k: _attr(v, symbols) for k, v in node.attrs.items()}
    return replace(node, shape=shape, operands=operands, attrs=attrs)


def _output(spec: OutputSpec, symbols: Mapping[str, int]) -> OutputSpec:
    stride = None if spec.stride is None else tuple(number(s, symbols) for s in spec.stride)
    shape = tuple(number(d, symbols) for d in spec.shape)
    return replace(spec, value=_operand(spec.value, symbols), shape=shape, stride=stride)


def _operand(operand: Operand, symbols: Mapping[str, int]) -> Operand:
    view = operand.view
    index = tuple(_index(i, symbols) for i in view.index)
    guard = tuple(_index(g, symbols) for g in view.guard)
    return Operand(operand.node, View(index, guard, view.fill))


def _attr(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, Index):
        return _index(value, symbols)
    if isinstance(value, (tuple, list)):
        return type(value)(_attr(v, symbols) for v in value)
    if isinstance(value, dict):
        return {k: _attr(v, symbols) for k, v in value.items()}
    if isinstance(value, Size):
        return number(value, symbols)
    return value


def _index(index: Index, symbols: Mapping[str, int]) -> Index:
    return index.resize(lambda n: number(n, symbols)) if index.symbols else index
