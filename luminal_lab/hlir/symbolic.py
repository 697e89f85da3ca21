"""Symbolic dims: bound to the shapes of actual arguments, and replaced by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from luminal_lab.errors import CallError, HlirError
from luminal_lab.hlir.graph import Dim, Hlir, Node, Operand, OutputSpec
from luminal_lab.hlir.index import DivMod, Index
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
            elif dim.is_Symbol:
                value, first = found.setdefault(str(dim), (size, where))
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


def _solve(dim: Any, size: int, where: str, found: dict[str, tuple[int, str]]) -> None:
    """Check a dim that is an expression, or solve it for its one unknown symbol."""
    import sympy

    known = {s: found[str(s)][0] for s in dim.free_symbols if str(s) in found}
    left = dim.subs(known)
    unknown = sorted(left.free_symbols, key=str)
    if not unknown:
        if int(left) != size:
            raise CallError(f"{where} is {size}, expected {dim} = {int(left)}")
        return
    solutions = sympy.solve(left - size, unknown[0]) if len(unknown) == 1 else []
    if len(solutions) != 1 or not solutions[0].is_Integer:
        raise CallError(f"{where} is {size}, which no value of {dim} gives")
    found[str(unknown[0])] = (int(solutions[0]), where)


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
        HlirError: when it is not an integer once its symbols are replaced.
    """
    if isinstance(dim, int):
        return dim
    value = dim.subs({s: symbols[str(s)] for s in dim.free_symbols if str(s) in symbols})
    if not value.is_Integer:
        raise HlirError(f"the dim {dim} is {value}, not an integer, for {dict(symbols)}")
    return int(value)


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
    if hasattr(value, "free_symbols"):
        return number(value, symbols)
    return value


def _index(index: Index, symbols: Mapping[str, int]) -> Index:
    out = Index.num(number(index.const, symbols))
    for atom, coef in index.terms:
        if isinstance(atom, DivMod):
            by = number(atom.by, symbols)
            atom = DivMod(atom.op, _index(atom.inner, symbols), by)
        out = out + Index(((atom, 1),)) * number(coef, symbols)
    return out
