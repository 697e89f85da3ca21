"""Symbolic dims are bound to what is given, and refused where nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from luminal_lab.errors import CallError, HlirError
from luminal_lab.hlir import Graph, Hlir, bind_symbols, check, run, specialize
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.sizes import symbol

S, T = symbol("s", 1, 8), symbol("t", 2, 16)


def program() -> Hlir:
    """x (s, 2t+1) reduced over its second dim, times y (s,)."""
    g = Graph()
    x, y = g.input("x", (S, 2 * T + 1), F32), g.input("y", (S,), F32)
    return check(g.finish(x.sum(1) * y))


def test_symbols_are_bound_to_shapes():
    hlir = program()
    assert bind_symbols(hlir, {"x": (3, 7), "y": (3,)}) == {"s": 3, "t": 3}
    x, y = torch.randn(3, 7), torch.randn(3)
    torch.testing.assert_close(run(hlir, [x, y])[0], x.double().sum(1) * y.double())
    fixed = specialize(hlir, {"s": 3, "t": 3})
    assert fixed.nodes[0].shape == (3, 7)
    assert fixed.symbols == {}
    assert check(fixed).outputs[0].shape == (3,)
    assert specialize(fixed, {}) is fixed
    with pytest.raises(HlirError, match="no value for the symbolic dims t"):
        specialize(hlir, {"s": 1})


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((3, 7), (4,), "dim 0 of 'y' is 4, but dim 0 of 'x', the same s, is 3"),
        ((9, 7), (9,), r"dim 0 of 'x' is 9, outside of the bounds \[1, 8\] of s"),
        ((3, 6), (3,), r"dim 1 of 'x' is 6, which no value of 2\*t\+1 gives"),
        ((3, 3), (3,), r"dim 1 of 'x' is 3, outside|is 1, outside"),
        ((3, 7, 1), (3,), r"'x' has shape \(3, 7, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(x, y, message):
    with pytest.raises(CallError, match=message):
        run(program(), [torch.ones(x), torch.ones(y)])


def test_a_symbol_that_no_input_determines():
    hlir = replace(program(), symbols={"s": (1, 8), "t": (2, 16), "u": (1, 2)})
    with pytest.raises(CallError, match="no input determines the symbolic dim u"):
        bind_symbols(hlir, {"x": (3, 7), "y": (3,)})
