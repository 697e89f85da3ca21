"""The reference interpreter against torch, in both modes."""

from __future__ import annotations

import math

import pytest
import torch

from luminal_lab.errors import CallError, HlirError
from luminal_lab.hlir import (
    Graph,
    Hlir,
    Index,
    Node,
    Operand,
    Reference,
    Source,
    View,
    interpreter,
    run,
)
from luminal_lab.hlir.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8
from luminal_lab.hlir.graph import InputSpec, OutputSpec, Ref

INF, NAN = math.inf, math.nan
A = Index.axis


def pointwise(op: str, *dtypes, shape=(5,), out=None) -> Hlir:
    g = Graph()
    xs = [g.input(f"x{k}", shape, d) for k, d in enumerate(dtypes)]
    result = out or (BOOL if op == "LessThan" else dtypes[-1])
    return g.finish(g.emit(op, [x.operand for x in xs], shape, result))


def same(a: torch.Tensor, b: torch.Tensor, **tolerance) -> None:
    torch.testing.assert_close(a, b, equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0}))


def product(m: int, k: int, n: int) -> Hlir:
    g = Graph()
    x, w = g.input("x", (m, k), F32), g.input("w", (k, n), F32)
    a = x.unsqueeze(1).expand((m, n, k))
    b = w.permute(1, 0).expand((m, n, k))
    return g.finish((a * b).sum(2))


HOSTILE = torch.tensor([0.0, -0.0, 1.5, -2.0, INF, -INF, NAN, 1e-40, 3e38])


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("op", "torch_op"),
    [
        ("Exp2", torch.exp2),
        ("Log2", torch.log2),
        ("Sin", torch.sin),
        ("Sqrt", torch.sqrt),
        ("Recip", torch.reciprocal),
        ("Erf", torch.erf),
    ],
)
def test_unary_ops_agree_with_torch(name, op, torch_op):
    d = DTYPES[name]
    x = HOSTILE.to(getattr(torch, d.torch_name))
    hlir = pointwise(op, d, shape=(9,))
    same(run(hlir, [x], compute="native")[0], torch_op(x))
    same(run(hlir, [x])[0], torch_op(x.double()))


@pytest.mark.parametrize("name", ["f32", "bf16", "i64", "i32", "i8", "u8", "bool"])
@pytest.mark.parametrize(
    ("op", "torch_op"),
    [("Add", torch.add), ("Mul", torch.mul), ("LessThan", torch.lt), ("Mod", torch.remainder)],
)
def test_binary_ops_agree_with_torch(name, op, torch_op):
    d = DTYPES[name]
    kind = getattr(torch, d.torch_name)
    if op == "Mod" and d is BOOL:
        pytest.skip("torch has no remainder of bools")
    a = torch.tensor([100, 77, 3, 1, 0]).to(kind)
    b = torch.tensor([100, 2, 77, 1, 5]).to(kind)
    if d.kind in ("int", "float"):
        b = b * torch.tensor([1, -1, 1, -1, 1]).to(kind)
    hlir = pointwise(op, d, d)
    expected = torch_op(a, b)
    if d is BOOL and op in ("Add", "Mul"):
        expected = a | b if op == "Add" else a & b
    same(run(hlir, [a, b], compute="native")[0], expected)
    if not d.is_float:
        same(run(hlir, [a, b])[0], expected)  # integers wrap in their own width in both modes


def test_comparison_and_select_keep_nan_and_infinity():
    g = Graph()
    x = g.input("x", (9,), F32)
    zero = g.constant(0.0, F32).expand((9,))
    hlir = g.finish((x < zero).where(zero, x))
    expected = torch.where(HOSTILE < 0, 0.0, HOSTILE)
    same(run(hlir, [HOSTILE], compute="native")[0], expected)
    out = run(hlir, [HOSTILE])[0]
    same(out, expected.double())
    assert math.copysign(1, out[1]) == -1  # -0.0 < 0 is false


def test_float64_mode_rounds_at_low_precision_casts_only():
    g = Graph()
    x = g.input("x", (4,), F32)
    third = g.constant(1 / 3, F32).expand((4,))
    y = x * third
    hlir = g.finish(y, y.cast(BF16), y.cast(F16).cast(F32), y.cast(F64))
    copied = run(g.finish((x.cast(BF16) * 3.0).copy()), [torch.full((4,), 1.1)])[0]
    same(copied, torch.full((4,), 1.1).bfloat16().double() * 3)  # a copy is no rounding
    x = torch.tensor([1.0, 2.0, 1e6, -3.0])
    exact = x.double() * (1 / 3)
    outs = run(hlir, [x])
    assert all(o.dtype == torch.float64 for o in outs)
    same(outs[0], exact)
    same(outs[1], exact.bfloat16().double())
    same(outs[2], exact.half().double())
    same(outs[3], exact)
    native = run(hlir, [x], compute="native")
    kinds = [torch.float32, torch.bfloat16, torch.float32, torch.float64]
    assert [o.dtype for o in native] == kinds


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_eight_bit_floats(name):
    d = DTYPES[name]
    kind = getattr(torch, d.torch_name)
    x = torch.tensor([0.5, 1.75, -3.0, 0.0, 2.0]).to(kind)
    hlir = pointwise("Add", d, d)
    same(run(hlir, [x, x], compute="native")[0].float(), (x.float() * 2).to(kind).float())
    g = Graph()
    big = g.input("x", (5,), d)
    hlir = g.finish(big.sum(0))
    same(run(hlir, [x], compute="native")[0].float(), x.float().sum().to(kind).float())
    cast = pointwise("Cast", F32, out=d)
    y = torch.tensor([0.3, 100.0, -1e-3, 7.7, 0.0])
    same(run(cast, [y])[0], y.double().to(kind).double())


@pytest.mark.parametrize("compute", ["float64", "native"])
def test_a_large_product_is_never_materialised(compute, monkeypatch):
    stored = []
    store = Reference._store

    def spy(self, n):
        store(self, n)
        stored.append(self.hlir.nodes[n].op)

    monkeypatch.setattr(Reference, "_store", spy)
    x, w = torch.randn(150, 96), torch.randn(96, 130)
    out = run(product(150, 96, 130), [x, w], compute=compute)[0]
    assert "Mul" not in stored
    torch.testing.assert_close(out.double(), x.double() @ w.double(), rtol=1e-4, atol=1e-4)


def test_blocks_cover_every_output_element(monkeypatch):
    monkeypatch.setattr(interpreter, "_STORED", 8)
    for block in (1, 7, 40, 1000):
        monkeypatch.setattr(interpreter, "_BLOCK", block)
        x, w = torch.randn(7, 5), torch.randn(5, 11)
        out = run(product(7, 5, 11), [x, w])[0]
        same(out, x.double() @ w.double(), rtol=1e-12, atol=1e-12)


def test_a_chain_of_reductions_over_a_lazy_product(monkeypatch):
    """A convolution: the 6-dim product and its partial sums stay unstored."""
    monkeypatch.setattr(interpreter, "_STORED", 16)
    g = Graph()
    x, w = g.input("x", (2, 3, 6, 5), F32), g.input("w", (4, 3, 3, 3), F32)
    windows = x.pad(((0, 0), (0, 0), (1, 1), (1, 1))).windows(2, 3).windows(3, 3)
    shape = (2, 4, 6, 5, 3, 3, 3)  # (n, o, h, w, c, kh, kw)
    a = windows.permute(0, 2, 3, 1, 4, 5).unsqueeze(1).expand(shape)
    b = w.reshape((1, 4, 1, 1, 3, 3, 3)).expand(shape)
    hlir = g.finish((a * b).sum(4, 5, 6))
    x, w = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    same(run(hlir, [x, w])[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [F32, BF16, I32, I8, BOOL])
def test_reductions_of_empty_and_hostile_axes(d):
    kind = getattr(torch, d.torch_name)
    for n in (0, 1, 4):
        x = torch.tensor([[3, 0, 1, 1], [0, 0, 0, 0]]).to(kind)[:, :n]
        g = Graph()
        t = g.input("x", (2, n), d)
        hlir = g.finish(t.sum(1), t.max(1))
        total, top = run(hlir, [x], compute="native")
        assert total.dtype == top.dtype == kind
        if d is BOOL:
            same(total, x.any(1))
            same(top, x.any(1))
            continue
        same(total, x.sum(1, dtype=kind))
        if n:
            same(top, x.amax(1))
        else:
            lowest = -INF if d.is_float else torch.iinfo(kind).min
            assert top.tolist() == [lowest] * 2


def test_max_lets_nan_win_and_zero_sized_outputs_exist():
    g = Graph()
    x = g.input("x", (3, 2), F32)
    empty = g.input("e", (0, 4), F32)
    hlir = g.finish(x.max(1), empty.sum(1), empty.sum(0), empty * empty, empty.reshape((4, 0)))
    x = torch.tensor([[1.0, NAN], [-INF, -INF], [-0.0, 0.0]])
    top, none, zeros, e, r = run(hlir, [x, torch.empty(0, 4)])
    assert math.isnan(top[0])
    assert top[1] == -INF
    assert none.shape == (0,)
    assert zeros.tolist() == [0.0] * 4
    assert e.shape == (0, 4)
    assert r.shape == (4, 0)


def test_an_empty_axis_within_a_lazy_chain_of_reductions(monkeypatch):
    monkeypatch.setattr(interpreter, "_STORED", 1)
    g = Graph()
    hlir = g.finish(g.input("x", (0, 2), F32).sum(0).sum(0))
    assert run(hlir, [torch.empty(0, 2)])[0].item() == 0.0


def test_padding_reads_its_fill_and_nothing_out_of_bounds():
    g = Graph()
    x = g.input("x", (2, 3), F32)
    y = (x * x).pad(((1, 0), (2, 1)), -1.0)
    crop = x.pad(((-1, 0), (0, -1)))
    hlir = g.finish(y, y.flip(1), crop)
    x = torch.arange(6.0).view(2, 3)
    padded = torch.nn.functional.pad(x.double() ** 2, (2, 1, 1, 0), value=-1.0)
    a, b, c = run(hlir, [x])
    same(a, padded)
    same(b, padded.flip(1))
    same(c, x[1:, :2].double())


def test_views_that_divide_repeat_and_flip():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    hlir = g.finish(
        x.reshape((3, 8)),
        x.repeat((2, 1, 3)),
        x.permute(1, 0).reshape((24,)),
        x.flip(0, 1) * 1.0,
        x.slice(1, 1, 6, 2),
    )
    x = torch.randn(4, 6)
    outs = run(hlir, [x.t().contiguous().t()])  # strides of the input do not matter
    expected = [x.reshape(3, 8), x.repeat(2, 1, 3), x.t().reshape(24), x.flip(0, 1), x[:, 1::2]]
    for out, e in zip(outs, expected):
        same(out, e.double())


@pytest.mark.parametrize("d", [F32, I64, BF16])
def test_gather_reads_at_the_values_of_its_indices(d):
    kind = getattr(torch, d.torch_name)
    index = (A("@0"), A("i1") * 2 + A("@1"))
    nodes = (
        Node("Input", (), (5, 6), d, {"name": "table"}),
        Node("Input", (), (4,), I64, {"name": "rows"}),
        Node("Input", (), (4, 3), I32, {"name": "columns"}),
        Node(
            "Gather",
            (
                Operand(0, View(index)),
                Operand(1, View((A("i0"),))),
                Operand(2, View.identity(2)),
            ),
            (4, 3),
            d,
            {"extents": (5, 2)},
        ),
    )
    hlir = Hlir(
        nodes,
        tuple(InputSpec(k, nodes[k].attrs["name"], "arg", k) for k in range(3)),
        (OutputSpec(Operand(3, View.identity(2)), (4, 3), "out"),),
    )
    table = torch.randn(5, 6).mul(10).to(kind)
    rows = torch.tensor([4, 0, 4, 2])
    columns = torch.randint(0, 2, (4, 3), dtype=torch.int32)
    out = run(hlir, [table, rows, columns], compute="native")[0]
    same(out, table[rows[:, None], torch.arange(3) * 2 + columns])


def scatter(mode: str, d) -> Hlir:
    g = Graph()
    dest, src = g.input("dest", (4, 3), d), g.input("src", (5,), d)
    i, j = g.input("i", (5,), I64), g.input("j", (5,), I64)
    operands = [t.operand for t in (dest, src, i, j)]
    return g.finish(g.emit("Scatter", operands, (4, 3), d, {"mode": mode}))


@pytest.mark.parametrize("d", [F32, BF16, I8, BOOL])
def test_scatter_sets_the_last_and_adds_all_duplicates(d):
    kind = getattr(torch, d.torch_name)
    dest = torch.zeros(4, 3).to(kind)
    src = torch.tensor([1, 0, 3, 4, 0]).to(kind)
    i, j = torch.tensor([3, 1, 3, 0, 3]), torch.tensor([2, 1, 2, 0, 2])
    out = run(scatter("set", d), [dest, src, i, j], compute="native")[0]
    assert out[3, 2] == src[4]
    assert out[0, 0] == src[3]
    out = run(scatter("add", d), [dest, src, i, j], compute="native")[0]
    expected = torch.zeros(4, 3, dtype=torch.float64)
    expected.index_put_((i, j), src.double(), accumulate=True)
    same(out, expected.to(kind))
    assert dest.sum() == 0  # the destination itself is not written


def test_custom_calls_aten_once_for_all_results(monkeypatch):
    g = Graph()
    x = g.input("x", (3, 4), BF16)
    template = ((Ref(0),), {"dim": 1, "descending": True})
    values, order = g.custom(
        "aten.sort.default", template, [x], [((3, 4), BF16), ((3, 4), I64)], single=False
    )
    hlir = g.finish(values.cast(F32), order)
    calls = []
    monkeypatch.setattr(interpreter.apply, "call_aten", spy(interpreter.apply.call_aten, calls))
    x = torch.randn(3, 4).bfloat16()
    a, b = run(hlir, [x])
    expected = x.sort(dim=1, descending=True)
    same(a, expected.values.double())
    same(b, expected.indices)
    assert len(calls) == 1


def spy(function, calls):
    def call(*args):
        calls.append(args)
        return function(*args)

    return call


def test_a_failing_custom_names_operator_and_line():
    g = Graph()
    g.source = Source(line="model.py:3 in forward")
    x = g.input("x", (3,), F32)
    (bad,) = g.custom(
        "aten.mm.default", ((Ref(0), Ref(0)), {}), [x], [((3,), F32)], single=True
    )
    with pytest.raises(HlirError, match=r"(?s)aten\.mm\.default failed.*model\.py:3"):
        run(g.finish(bad), [torch.ones(3)])


def test_iota_constants_and_zero_dims():
    g = Graph()
    n = g.iota(A("i0") * 3 + A("i1") - 1, (2, 3), I32)
    c = g.constant(2.5, F32)
    m = g.iota(A("i0"), (4,), F32)
    hlir = g.finish(n, c, c * c, m)
    a, b, d, e = run(hlir, [])
    assert a.dtype == torch.int32
    assert a.tolist() == [[-1, 0, 1], [2, 3, 4]]
    assert b.shape == d.shape == ()
    assert d.item() == 6.25
    assert e.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_samples_equal_the_whole_value():
    """Points of softmax(x @ w): nested reductions, computed at the points or stored."""
    g = Graph()
    x, w = g.input("x", (40, 16), F32), g.input("w", (16, 30), F32)
    a, b = x.unsqueeze(1).expand((40, 30, 16)), w.permute(1, 0).expand((40, 30, 16))
    s = (a * b).sum(2)
    top = s.max(1).unsqueeze(1).expand((40, 30))
    e = (s + top * -1.0).unary("Exp2")
    y = e * e.sum(1).unary("Recip").unsqueeze(1).expand((40, 30))
    hlir = g.finish(y)
    inputs = {"x": torch.randn(40, 16), "w": torch.randn(16, 30)}
    whole = run(hlir, inputs)[0]
    i, j = torch.randint(0, 40, (6, 1)), torch.randint(0, 30, (5,))
    reference = Reference(hlir, inputs)
    out = reference.sample(y.node, [i, j])
    same(out, whole[i, j], rtol=1e-12, atol=1e-12)
    same(reference.value(y.node), whole)
    with pytest.raises(HlirError, match="2 dims"):
        reference.sample(y.node, [i])


def test_values_are_dropped_after_their_last_use():
    g = Graph()
    x = g.input("x", (8,), F32)
    a = x * 2.0
    b = a + 1.0
    hlir = g.finish(b.unary("Exp2"), a)
    reference = Reference(hlir, {"x": torch.ones(8)})
    reference.evaluate()
    assert b.node not in reference._values
    assert {a.node, hlir.outputs[0].value.node} <= set(reference._values)
    outs = run(hlir, [torch.ones(8)], keep=[b.node])
    same(outs[2], torch.full((8,), 3.0).double())


def test_long_chains_do_not_recurse():
    g = Graph()
    x = g.input("x", (2,), F32)
    y = x
    for _ in range(3000):
        y = y + 1.0
    assert run(g.finish(y), [torch.zeros(2)])[0].tolist() == [3000.0, 3000.0]


def test_weights_come_from_the_program_and_can_be_overridden():
    g = Graph()
    x = g.input("x", (2,), F32)
    w = g.input("lin.weight", (2,), F32, "weight", value=torch.tensor([2.0, 3.0]))
    hlir = g.finish(x * w)
    x = torch.ones(2)
    assert run(hlir, [x])[0].tolist() == [2.0, 3.0]
    assert run(hlir, {"x": x, "lin.weight": torch.zeros(2)})[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([torch.ones(3, 3)], r"got 1 inputs, and input 'w' is number 1"),
        ([torch.ones(3, 3), torch.ones(4, 2)], r"'x' has shape \(3, 3\), expected \(2, 3\)"),
        ([torch.ones(2, 3).int(), torch.ones(3, 2)], r"'x' has dtype torch.int32"),
        ([torch.ones(2, 3), [1.0]], r"'w' is a list, expected a tensor"),
        ([torch.ones(2, 3), torch.ones(3, 2, device="meta")], r"'w' is on meta"),
        ({"x": torch.ones(2, 3)}, r"no tensor was given for the arg 'w'"),
        ({"y": torch.ones(2, 3)}, r"no input 'y'; it has x, w"),
    ],
)
def test_wrong_inputs_are_named(args, message):
    with pytest.raises(CallError, match=message):
        run(product(2, 3, 2), args)


def test_uint8_and_int8_wrap():
    x = torch.tensor([200, 100], dtype=torch.uint8)
    out = run(pointwise("Add", U8, U8, shape=(2,)), [x, x])[0]
    assert out.tolist() == [144, 200]
    x = torch.tensor([100, -100], dtype=torch.int8)
    assert run(pointwise("Add", I8, I8, shape=(2,)), [x, x])[0].tolist() == [-56, 56]
    g = Graph()
    t = g.input("x", (3,), I8)
    out = run(g.finish(t.sum(0)), [torch.full((3,), 100, dtype=torch.int8)])[0]
    assert out.item() == 44
