"""The text form is golden, reads back to an equal program, and refuses anything else."""

from __future__ import annotations

import math
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
    TorchName,
    View,
    literals,
    load,
    parse,
    run,
)
from luminal_lab.hlir.dtypes import BF16, BOOL, F32, I64, dtype
from luminal_lab.hlir.sizes import symbol
from luminal_lab.hlir.structure import Structure

GOLDEN = r"""
hlir 'tour'
%0 f32[2, 3] = Input {name='x'}
%1 bf16[3] = Input {name='head.bias'}
%2 f32[] = Constant {value=-inf} @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%3 f32[3] = Cast %1[i0] @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%4 f32[2, 3] = Add %0[i0, i1], %3[i1] @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%5 bool[4, 3] = LessThan %4[i0-1, i1] if i0-1>=0 & -i0+2>=0 else nan, %2[] @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%6 i64[6] = Iota {index=Index('i0%2*3+i0//2')} @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%7 f32[2] = SumReduce %4[i0, r] {extent=3} @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
%8 f32[2] = Custom %7[i0] {call=0, result=0, target='aten.sort.stable', template=((Ref(0),), {'stable': True, 'dim': -1})} @ 'model.py:7 in forward', 'head', 'aten.add.Tensor'
input 'x' %0 arg 0
input 'head.bias' %1 weight
output 'out0' %4[i0, i1] [2, 3] stride=(1, 2) mutates='x'
output 'out1' %5[i0, i1] [4, 3]
output 'out2' %6[i0] [6]
output 'out3' %8[i0] [2]
""".lstrip()  # noqa: E501


def tour() -> Hlir:
    g = Graph("tour")
    x = g.input("x", (2, 3), F32)
    b = g.input("head.bias", (3,), BF16, "weight", value=torch.ones(3).bfloat16())
    g.source = Source("model.py:7 in forward", "head", "aten.add.Tensor")
    low = g.constant(-math.inf, F32)
    y = x + b.cast(F32)
    mask = y.pad(((1, 1), (0, 0)), math.nan) < low
    order = g.iota(Index.parse("i0%2*3+i0//2"), (6,))
    template = ((Ref(0),), {"stable": True, "dim": -1})
    results = [((2,), F32), ((2,), I64)]
    values, _ = g.custom("aten.sort.stable", template, [y.sum(1)], results, single=False)
    return g.finish((y, {"mutates": "x", "stride": (1, 2)}), mask, order, values)


def test_the_text_form_is_golden_and_reads_back():
    hlir = tour()
    assert hlir.text() == GOLDEN
    back = parse(GOLDEN, {"head.bias": hlir.weights["head.bias"], "unknown": 1})
    assert back == hlir
    assert back.text() == GOLDEN
    assert [n.source for n in back.nodes] == [n.source for n in hlir.nodes]
    assert back.weights["head.bias"] is hlir.weights["head.bias"]
    assert list(back.weights) == ["head.bias"]
    assert parse(GOLDEN).weights == {}
    bare = hlir.text(sources=False)
    assert "@" not in bare
    assert parse(bare) == hlir  # sources do not take part in equality


def test_equality_tells_what_numbers_alone_do_not():
    def constant(value, dtype):
        g = Graph()
        return g.finish(g.constant(value, dtype))

    assert constant(0.0, F32) != constant(-0.0, F32)
    assert constant(1, I64) != constant(True, BOOL)
    assert constant(math.nan, F32) == constant(math.nan, F32)
    assert len({constant(math.nan, F32), constant(float("nan"), F32)}) == 1
    assert constant(1.0, F32) != "hlir"


def test_symbolic_dims_read_back():
    s = symbol("s0", 2, 64, hint=16)
    shape = (s, 2 * s + 1, 3)
    nodes = (
        Node("Input", (), shape, F32, {"name": "x"}),
        Node(
            "SumReduce",
            (Operand(0, View((Index.axis("i0"), Index.axis("r"), Index.axis("i1")))),),
            (s, 3),
            F32,
            {"extent": 2 * s + 1},
        ),
    )
    out = OutputSpec(Operand(1, View.identity(2)), (s, 3), "out", (3, 1))
    hlir = Hlir(nodes, (InputSpec(0, "x", "arg", 0),), (out,), {}, {"s0": (2, 64)}).check()
    assert "symbol s0 [2, 64] tuned at 16" in hlir.text()
    back = parse(hlir.text())
    assert back == hlir
    assert back.nodes[0].shape == shape
    x = torch.randn(4, 9, 3)
    torch.testing.assert_close(run(back, [x])[0], x.double().sum(1))
    floor = literals.read("[s0//2, s0-4*(s0//4), (s0+1)*(s0+1), max(s0, 3)]", {"s0": s})
    assert literals.read(literals.show_shape(floor), {"s0": s}) == floor


def test_pytree_structures_read_back():
    from torch.utils import _pytree

    spec = _pytree.tree_structure(((1, {"mask": 2}), {}))
    hlir = tour()
    with_spec = Hlir(hlir.nodes, hlir.inputs, hlir.outputs, in_spec=spec)
    assert parse(with_spec.text()).in_spec == spec
    partly = Structure(spec, {1: None, 0: 2.5})
    again = replace(with_spec, out_spec=partly)
    assert parse(again.text()).out_spec == partly


@pytest.mark.parametrize(
    "value",
    [
        (),
        (1,),
        [None, True, -3, 1e-30, "a'\"\n"],
        {"memory_format": TorchName("preserve_format"), "dtype": BF16},
        (Ref(0), [Ref(1), Ref(2)]),
        Index.parse("i0*4+i1//2-3"),
        math.inf,
        -math.inf,
        -0.0,
    ],
)
def test_literals_round_trip(value):
    text = literals.show(value)
    back = literals.read(text)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "f32.bits",
        "lambda: 1",
        "[x for x in y]",
        "1 +",
        "Ref('a')",
        "1j",
        "a",
    ],
)
def test_only_literals_are_read(text):
    with pytest.raises(HlirError, match="not a literal"):
        literals.read(text)


def test_what_cannot_be_printed_is_refused():
    with pytest.raises(HlirError, match="object has no text form"):
        literals.show(object())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hlir 'tour'", "module @main", r"(?s)starts with: hlir.*line 1"),
        (GOLDEN, "", "is empty"),
        ("%1 bf16", "%7 bf16", r"(?s)expected node %1.*line 3: %7"),
        ("bf16[3]", "bf17[3]", "there is no dtype 'bf17'"),
        ("%0 f32[2, 3]", "%0 f32[2, s0]", "not a literal"),
        ("SumReduce %4[i0, r]", "SumReduce %4[i0, r", "not an index|not closed"),
        ("%3[i1]", "%3[i1*i0]", "product of two axes"),
        ("{extent=3}", "{extent=3", "not closed"),
        ("{extent=3}", "{extent=open('x')}", "not a literal"),
        ("input 'x' %0 arg 0", "input 'x' %0 argument 0", "not a 'argument'"),
        ("mutates='x'", "mutates=x", "cannot read"),
        ("'head', 'aten.add.Tensor'", "'head'", "a source is three strings"),
        ("output 'out3' %8[i0] [2]", "return %8", "not a line of an Hlir"),
        ("output 'out3' %8[i0] [2]", "output 'out3' %8[i0] [2]]", "unexpected ']'"),
    ],
)
def test_bad_text_names_the_line(old, new, message):
    assert old in GOLDEN
    with pytest.raises(HlirError, match=message):
        parse(GOLDEN.replace(old, new, 1))


def test_files_keep_weights_bit_by_bit(tmp_path):
    g = Graph("saved")
    values = {
        "a": torch.tensor([[1.0, -0.0], [math.nan, math.inf]]).t(),
        "b": torch.randn(3).bfloat16(),
        "c": torch.tensor([True, False]),
        "d": torch.empty(0, 4),
        "e": torch.tensor(3.5),
        "f": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
    }
    values["tied"] = values["b"]
    names = {torch.float32: F32, torch.bfloat16: BF16, torch.bool: BOOL}
    inputs = [
        g.input(k, v.shape, names.get(v.dtype, dtype(v.dtype)), "weight", value=v)
        for k, v in values.items()
    ]
    hlir = g.finish(*inputs)
    path = tmp_path / "model.hlir"
    hlir.save(path)
    back = load(path)
    assert back == hlir
    assert list(back.weights) == list(hlir.weights)
    for name, tensor in values.items():
        read = back.weights[name]
        assert read.dtype == tensor.dtype
        assert read.shape == tensor.shape
        bits = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (read, tensor)]
        assert bits[0] == bits[1]
    assert back.weights["tied"] is back.weights["b"]
    first = path.read_bytes()
    hlir.save(path)
    assert path.read_bytes() == first  # deterministic, and written over itself
    assert [p.name for p in tmp_path.iterdir()] == ["model.hlir"]


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(HlirError, match="there is no such file"):
        load(tmp_path / "none")
    path = tmp_path / "bad"
    path.write_bytes(b"not a zip")
    with pytest.raises(HlirError, match="not a readable saved hlir"):
        load(path)
    tour().save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(HlirError, match="not a readable saved hlir"):
        load(path)
    with pytest.raises(HlirError, match="cannot write"):
        tour().save(tmp_path / "missing" / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad"]
