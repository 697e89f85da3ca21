"""Every way in which an Hlir can be ill-formed is refused, naming the node and the line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from luminal_lab.errors import HlirError
from luminal_lab.hlir import (
    Graph,
    Hlir,
    Index,
    InputSpec,
    Node,
    Operand,
    OutputSpec,
    Ref,
    Source,
    View,
    check,
)
from luminal_lab.hlir.dtypes import BOOL, F32, I8, I64, U8
from luminal_lab.hlir.sizes import symbol

A = Index.axis
LINE = Source(line="model.py:12 in forward", module="head", aten="aten.mul.Tensor")
X = Node("Input", (), (2, 3), F32, {"name": "x"})
I = Node("Input", (), (4,), I64, {"name": "i"})  # noqa: E741
SAME = View.identity(2)


def program(*nodes: Node, outputs=None, **fields) -> Hlir:
    inputs = tuple(
        InputSpec(k, n.attrs["name"], "arg", k) for k, n in enumerate(nodes) if n.op == "Input"
    )
    last = len(nodes) - 1
    value = Operand(last, View.identity(len(nodes[-1].shape)))
    outputs = outputs or (OutputSpec(value, nodes[-1].shape, "out"),)
    return replace(Hlir(nodes, inputs, outputs), **fields)


def node(op: str, *operands, shape=(2, 3), dtype=F32, **attrs) -> Node:
    return Node(op, tuple(Operand(n, v) for n, v in operands), shape, dtype, attrs, LINE)


def test_good_programs_pass():
    g = Graph()
    x = g.input("x", (2, 3), F32)
    pad = (x * x).pad(((1, 1), (0, 2)))
    hlir = g.finish(pad.sum(0), x.reshape((3, 2)), (x < 1.0).cast(I64))
    assert check(hlir) is hlir
    empty = Graph()
    e = empty.input("e", (0, 4), F32)
    check(empty.finish(e.reshape((4, 0)), e.sum(0)))
    s = symbol("s0", 1, 8)
    symbolic = replace(X, shape=(s, 3))
    check(
        program(
            symbolic, node("Mul", (0, SAME), (0, SAME), shape=(s, 3)), symbols={"s0": (1, 8)}
        )
    )


BAD = {
    "there is no op 'Gelu'": [X, node("Gelu", (0, SAME))],
    "takes 2 operands, has 1": [X, node("Mul", (0, SAME))],
    "lacks the attribute 'extent'": [X, node("SumReduce", (0, SAME))],
    "operand 1 is %1, which does not come before it": [X, node("Mul", (0, SAME), (1, SAME))],
    "operand 0 is %-1": [X, node("Sin", (-1, SAME))],
    "mixes the dtypes f32, i64": [X, I, node("Add", (0, SAME), (1, View((A("i0"),))))],
    "mixes the dtypes f32, bool": [X, node("Sin", (0, SAME), dtype=BOOL)],
    "LessThan gives bool": [X, node("LessThan", (0, SAME), (0, SAME))],
    "its condition is f32, not bool": [X, node("Select", (0, SAME), (0, SAME), (0, SAME))],
    "Exp2 i64.*takes floats, not i64": [
        I,
        node("Exp2", (0, View.identity(1)), shape=(4,), dtype=I64),
    ],
    "which has 1 indices for 2 dims": [X, node("Sin", (0, View((A("i0"),))))],
    "i2 is none of its axes i0, i1": [X, node("Sin", (0, View((A("i0"), A("i2")))))],
    r"is read at i1 in \[0, 2\], and dim 0 has size 2": [
        X,
        node("Sin", (0, View((A("i1"), A("i0"))))),
    ],
    r"is read at i0-1 in \[-1, 0\]": [X, node("Sin", (0, View((A("i0") - 1, A("i1")))))],
    "the value 'nan' is not a f32": [Node("Constant", (), (), F32, {"value": "nan"})],
    "the value True is not a i64": [Node("Constant", (), (), I64, {"value": True})],
    "the value 300 is not a u8": [Node("Constant", (), (), U8, {"value": 300})],
    "the value 1 is not a bool": [Node("Constant", (), (), BOOL, {"value": 1})],
    "its index r mentions the unknown axis r": [Node("Iota", (), (3,), I64, {"index": A("r")})],
    "an index is f32, not an integer": [
        X,
        node("Gather", (0, View((A("@0"), A("i1")))), (0, SAME), extents=(2,)),
    ],
    "has 1 indices and 2 extents": [
        X,
        I,
        node("Gather", (0, SAME), (1, View((A("i0"),))), extents=(2, 3)),
    ],
    "has 1 indices for 2 dims": [
        X,
        I,
        node("Scatter", (0, SAME), (0, SAME), (1, View((A("i0"),))), mode="set"),
    ],
    "its mode is 'mul'": [X, node("Scatter", (0, SAME), (0, SAME), mode="mul")],
    "mentions operand 1 of 1": [
        X,
        node(
            "Custom", (0, SAME), target="aten.abs.default", template=((Ref(1),), {}), result=0
        ),
    ],
    r"read through \[i1, i0\], not by identity": [
        X,
        node(
            "Custom",
            (0, View((A("i1"), A("i0")))),
            target="aten.abs.default",
            template=((Ref(0),), {}),
            result=0,
        ),
    ],
    "the dim -1 is negative": [replace(X, shape=(-1, 3))],
    "the dim 2.0 is a float": [replace(X, shape=(2.0, 3))],
    "mentions s1, which has no bounds": [replace(X, shape=(symbol("s1"), 3))],
    "the value 0.5 is not a i64": [
        I,
        node(
            "Add", *[(0, View((A("i0") - 1,), (A("i0") - 1,), 0.5))] * 2, shape=(4,), dtype=I64
        ),
    ],
}


@pytest.mark.parametrize("message", BAD)
def test_ill_formed_nodes_are_refused(message):
    with pytest.raises(HlirError, match=message):
        check(program(*BAD[message]))


def test_the_message_names_node_and_line():
    with pytest.raises(HlirError) as caught:
        check(program(X, node("Mul", (0, SAME))))
    text = str(caught.value)
    assert text.startswith("%1 Mul f32[2, 3]: takes 2 operands, has 1")
    assert "model.py:12 in forward, aten.mul.Tensor, head" in text


def test_names_inputs_and_outputs():
    good = program(X, node("Sin", (0, SAME)))
    out = good.outputs[0]
    twice = replace(good, outputs=(out, out))
    spec = good.inputs[0]
    bad = {
        "two outputs are called 'out'": twice,
        "two inputs are called 'x'": replace(good, inputs=(spec, spec)),
        "the Input %0 .*'x'.* is not among the program's inputs": replace(good, inputs=()),
        "the output 'out' is %7": replace(
            good, outputs=(replace(out, value=Operand(7, SAME)),)
        ),
        "the output 'out' is read at": replace(good, outputs=(replace(out, shape=(3, 3)),)),
        "2 dims and 1 strides": replace(good, outputs=(replace(out, stride=(1,)),)),
        "mutates 'cache', which is no input": replace(
            good, outputs=(replace(out, mutates="cache"),)
        ),
        r"the symbolic dim s has the bounds \[4, 2\]": replace(good, symbols={"s": (4, 2)}),
        r"the weight 'x' is \(3,\), not \(2, 3\)": replace(
            good, inputs=(replace(spec, kind="weight"),), weights={"x": torch.ones(3)}
        ),
        "the weight 'x' is torch.float64, not f32": replace(
            good,
            inputs=(replace(spec, kind="weight"),),
            weights={"x": torch.ones(2, 3).double()},
        ),
    }
    for message, hlir in bad.items():
        with pytest.raises(HlirError, match=message):
            check(hlir)


def test_an_input_spec_points_at_its_node():
    good = program(X, node("Sin", (0, SAME)))
    extra = InputSpec(1, "y", "arg", 1)
    with pytest.raises(HlirError, match="'y' is %1, which is not its Input node"):
        check(replace(good, inputs=(*good.inputs, extra)))


def test_two_arguments_need_two_positions():
    y = replace(X, attrs={"name": "y"})
    hlir = program(X, y, node("Mul", (0, SAME), (1, SAME)))
    clash = tuple(replace(s, position=0) for s in hlir.inputs)
    with pytest.raises(HlirError, match="same position"):
        check(replace(hlir, inputs=clash))


def test_a_program_with_int8_constants_is_good():
    check(program(Node("Constant", (), (), I8, {"value": -128})))
