"""Axis atoms, names, bodies and renamed copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from luminal_lab.capture.export import capture
from luminal_lab.egraph.atoms import digits, guarded_index, name_atoms
from luminal_lab.egraph.encode import Encoding, encode
from luminal_lab.egraph.program import commands, free_axes
from luminal_lab.egraph.steps import steps_of
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.graph import Hlir, InputSpec, Node, Operand, OutputSpec
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.view import View
from tests.egraph.programs import program

A = Index.axis


def traced(fn: Callable[..., Any], *args: torch.Tensor) -> Hlir:
    """A function as a program."""

    class Module(nn.Module):
        def forward(self, *xs):
            return fn(*xs)

    return capture(Module(), args)


def ops(encoding: Encoding) -> list[str]:
    return [t.op for t in encoding.values]


def loads(encoding: Encoding) -> list[tuple[int, str]]:
    return [(t.children[0], t.attrs[0]) for t in encoding.values if t.op == "Load"]


# ---------------------------------------------------------------------- atoms


def test_digits_of_an_index() -> None:
    extents = {"i0": 4, "i1": 64}
    found = digits(A("i0") * 64 + A("i1"), extents)
    assert found is not None
    assert [(d.axis, d.start, d.length, d.coef) for d in found] == [
        ("i1", 1, 64, 1),
        ("i0", 1, 4, 64),
    ]
    half = A("i1").floordiv(32, extents)
    assert [(d.start, d.length) for d in digits(half, extents) or []] == [(32, 2)]
    assert digits(-A("i1"), extents) is None


def test_a_guard_that_pins_an_axis_simplifies_the_index() -> None:
    extents = {"h": 2, "d": 32}
    i = A("h") * 32 + A("d")
    view = View((A("i0") - 32,), (A("i0") - 32,), 0)
    guard, index = guarded_index(view, {"i0": i}, extents)
    assert index == (A("d"),)
    assert guard == (A("h") * 32 + A("d") - 32,)
    assert guarded_index(View((A("i0"),), (A("i0") - 64,)), {"i0": i}, extents)[0] is None
    assert guarded_index(View((A("i0"),), (A("i0"),)), {"i0": i}, extents)[0] == ()


def test_heads_split_their_dim_everywhere() -> None:
    # (b, s, h*d) viewed as heads: the linear's output is cut where the heads are.
    hlir = traced(
        lambda x, w: (x @ w.t()).view(2, 5, 3, 4).transpose(1, 2) * 2.0,
        torch.randn(2, 5, 8),
        torch.randn(12, 8),
    )
    encoding = encode(hlir)
    assert encoding.counts.copies == 0
    assert encoding.counts.divmods == 0
    assert any("*4+" in text for _, text in loads(encoding))


def test_sizes_that_do_not_divide_keep_div_and_mod() -> None:
    encoding = encode(traced(lambda x: x.exp2().reshape(6, 4).exp2(), torch.randn(4, 6)))
    assert encoding.counts.divmods > 0


def test_equal_parts_of_a_concatenation_split_the_axis() -> None:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    encoding = encode(traced(rotate, torch.randn(3, 8)))
    assert encoding.counts.divmods == 0
    assert sorted(encoding.extents.values()).count(4) >= 1
    # Both halves are read through names and a constant: a permutation, not a shifted index.
    (own,) = {axis for axis, n in encoding.extents.items() if n == 4}
    assert {f"a, {own}", f"a, {own}+4"} >= {text for t, text in loads(encoding) if t == 0}


def test_interleaved_pairs_split_the_axis() -> None:
    def rope(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[..., 1::2], x[..., ::2]], -1).flatten(-2)

    encoding = encode(traced(rope, torch.randn(3, 8)))
    assert encoding.counts.divmods == 0


def test_no_node_has_two_atoms_of_one_name() -> None:
    for name in ("llama", "conv", "key-cache", "patches", "embed"):
        steps, _ = steps_of(program(name)[0])
        atoms = name_atoms(steps)
        for s, step in enumerate(steps):
            names = [n for axis in step.axes for n, _ in atoms.names[s, axis]]
            assert len(names) == len(set(names))
            for axis, extent in step.axes.items():
                assert math.prod(atoms.extents[n] for n, _ in atoms.names[s, axis]) == extent


def test_softmax_reduces_one_axis_by_name() -> None:
    hlir, _ = program("attention")
    encoding = encode(hlir)
    reduced = [t.attrs for t in encoding.values if t.op == "Red"]
    keys = next(axis for op, axis in reduced if op == "max")
    assert [axis for op, axis in reduced if op == "add"].count(keys) == 2
    assert encoding.counts.copies == 0


# ---------------------------------------------------------------------- bodies and copies


def test_a_tensor_read_as_query_and_key_is_copied_once() -> None:
    encoding = encode(traced(lambda x: (x * 2) @ (x * 2).t(), torch.randn(5, 4)))
    assert encoding.counts.copies == 1
    ((load, body),) = encoding.unions
    assert encoding.values[load].op == "Load"
    assert encoding.values[body].op == "Mul"


def test_a_captured_bound_axis_is_renamed() -> None:
    # The sums of columns are read along rows, whose axis is summed next: a capture.
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.exp2()
        return (y.sum(0)[:, None] * y).sum(1)

    encoding = encode(traced(fn, torch.randn(4, 4)))
    bodies = {axis for t in encoding.values if t.op == "Red" for axis in t.attrs[1:]}
    for load, body in encoding.unions:
        assert free_axes(encoding, load) == free_axes(encoding, body)
    assert encoding.counts.captures == sum(axis.endswith("'") for axis in bodies)


def test_windows_of_a_sum_are_not_recomputed() -> None:
    hlir, _ = program("conv")
    assert encode(hlir).counts.stopped > 0


def test_the_copy_limit_is_counted() -> None:
    hlir, _ = program("llama")
    counts = encode(hlir, max_copies=3).counts
    assert counts.copies == 3
    assert counts.skipped > 0


def test_a_kernel_stores_the_axes_that_its_value_depends_on() -> None:
    hlir = traced(lambda x: x.exp2()[:, None].expand(3, 5).exp2() + 1, torch.randn(3))
    encoding = encode(hlir)
    shapes = {t.shape for t in encoding.tensors if t.term.op == "Kernel"}
    assert (3, 5) in shapes  # the output
    assert (3, 1) in shapes  # what is broadcast
    output = dict(encoding.outputs)["out0"]
    assert encoding.tensors[output].shape == (3, 5)


def test_constants_and_iotas_are_never_stored() -> None:
    hlir = traced(lambda x: torch.arange(4) * 2 + x, torch.randn(4))
    encoding = encode(hlir)
    stored = {node for node, _ in encoding.node_tensor.items()}
    constant = {n for n, node in enumerate(hlir.nodes) if node.op in ("Constant", "Iota")}
    assert not stored & constant


def test_minus_zero_and_nan_are_kept() -> None:
    spec = (InputSpec(0, "x", "arg", 0),)
    view = View((A("i0"),))

    def with_constant(value: float) -> Encoding:
        nodes = (
            Node("Input", (), (3,), F32, {"name": "x"}),
            Node("Constant", (), (), F32, {"value": value}),
            Node("Add", (Operand(0, view), Operand(1, View(()))), (3,), F32),
        )
        return encode(Hlir(nodes, spec, (OutputSpec(Operand(2, view), (3,), "y"),)))

    assert "NegZero" in ops(with_constant(-0.0))
    assert "NegZero" not in ops(with_constant(0.0))
    assert any("(Const NaN " in c for c in commands(with_constant(math.nan)))
    assert any("(Const -inf " in c for c in commands(with_constant(-math.inf)))


def test_an_input_as_output_is_copied() -> None:
    encoding = encode(traced(lambda x: (x, x.t()), torch.randn(3, 4)))
    outputs = dict(encoding.outputs)
    assert all(encoding.tensors[t].term.op == "Kernel" for t in outputs.values())
    assert encoding.tensors[outputs["out1"]].shape == (4, 3)


def test_a_scatter_keeps_what_is_no_data_in_its_index() -> None:
    hlir, _ = program("embed")
    encoding = encode(hlir)
    (scatter,) = [t for t in encoding.tensors if t.term.op == "Scatter"]
    into, value, at = scatter.term.children
    assert encoding.tensors[into].shape == scatter.shape
    mode, points, index = scatter.term.attrs
    assert mode == "add"
    first, second, third = index.split(", ")
    assert second == "@0"
    assert {first, third} < set(points.split(", "))
    assert free_axes(encoding, value) == set(points.split(", "))
    assert third not in free_axes(encoding, at)


def test_the_destination_of_a_scatter_is_not_copied() -> None:
    def put(cache, row, at):
        return cache.index_copy(2, at, row)

    hlir = traced(put, torch.randn(1, 4, 8, 3), torch.randn(1, 4, 1, 3), torch.tensor([5]))
    (scatter,) = [t for t in encode(hlir).tensors if t.term.op == "Scatter"]
    assert encode(hlir).tensors[scatter.term.children[0]].term.op == "Input"


def test_every_child_comes_before_its_user() -> None:
    for name in ("llama", "conv", "embed", "pieces"):
        encoding = encode(program(name)[0])
        for v, term in enumerate(encoding.values):
            children = term.children[term.op in ("Load", "LoadAt") :]
            assert all(c < v for c in children)
        assert len(commands(encoding)) > len(encoding.values)


@pytest.mark.parametrize("text", ['we"ird', "back\\slash", "a b"])
def test_names_of_inputs_are_quoted(text: str) -> None:
    nodes = (
        Node("Input", (), (3,), F32, {"name": text}),
        Node("Exp2", (Operand(0, View.identity(1)),), (3,), F32),
    )
    out = OutputSpec(Operand(1, View.identity(1)), (3,), "y")
    hlir = Hlir(nodes, (InputSpec(0, text, "arg", 0),), (out,))
    from luminal_lab.egraph.saturate import saturate

    (part,) = saturate(hlir).parts
    assert any(n.op == "input" for c in part.classes for n in c.nodes)
