"""Movement: lazily composed views read what eager's views do, with no op but Select for cat."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

from luminal_lab.errors import HlirError
from luminal_lab.hlir import Graph, Index, check, dtype, run
from tests.capture.eager import agrees

X = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).reshape(2, 3, 4, 6)
VIEWS = {
    "permute": lambda x: x.permute(2, 0, 3, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "t": lambda x: x[0, 0].t(),
    "reshape split": lambda x: x.reshape(2, 3, 4, 2, 3),
    "reshape merge": lambda x: x.transpose(1, 2).reshape(2, 4, 18),
    "reshape odd": lambda x: x.permute(3, 1, 0, 2).reshape(9, 16),
    "flatten": lambda x: x.transpose(0, 3).flatten(1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "squeeze": lambda x: x[:1].unsqueeze(2).squeeze(),
    "expand": lambda x: x[:, :1].expand(2, 5, 4, 6),
    "slice": lambda x: x[1:, ::2, 1:-1, 4:],
    "slice empty": lambda x: x[:, 2:1],
    "select": lambda x: x[1, :, -1],
    "split": lambda x: x.split(4, dim=3),
    "chunk": lambda x: x.chunk(3, dim=1),
    "unbind": lambda x: x.unbind(2),
    "flip": lambda x: x.flip(0, 3),
    "roll": lambda x: x.roll((1, -2), (1, 3)),
    "roll flat": lambda x: x.roll(5),
    "repeat": lambda x: x.repeat(2, 1, 1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
    "pad crop": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "pad twice": lambda x: F.pad(F.pad(x, (1, 1), value=1.0), (2, 0), value=2.0),
    "pad same fill": lambda x: F.pad(F.pad(x, (1, 1)), (0, 1, 2, 0)),
    "pad then slice": lambda x: F.pad(x, (3, 3))[..., 2:5],
    "pad then reshape": lambda x: F.pad(x, (0, 2)).reshape(2, 3, 16, 2),
    "pad reflect": lambda x: F.pad(x[0], (2, 1, 1, 0), mode="reflect"),
    "pad replicate": lambda x: F.pad(x[0], (2, 1, 1, 0), mode="replicate"),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "diag_embed": lambda x: torch.diag_embed(x[0, 0], offset=1),
    "cat equal": lambda x: torch.cat([x[..., 3:], -x[..., :3]], dim=-1),
    "cat unequal": lambda x: torch.cat([x, x[:, :1], x[:, 1:]], dim=1),
    "cat empty": lambda x: torch.cat([x[:, :0], x, torch.empty(0)], dim=1),
    "stack": lambda x: torch.stack([x, x + 1, x * 2], dim=2),
    "tril": lambda x: x.tril(-1),
    "movedim": lambda x: x.movedim(0, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 6, 6), 2),
    "as_strided": lambda x: x.as_strided((2, 3), (6, 2), 1),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0], 1, -1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[..., :2], 3, 1, 3),
    "slice_scatter step": lambda x: torch.slice_scatter(x, x[..., :2], 3, 1, 6, 3),
    "swap heads": lambda x: x.view(2, 3, 4, 2, 3).transpose(1, 3).reshape(2, 24, 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_movement(name: str) -> None:
    agrees(VIEWS[name], X)


@pytest.mark.parametrize(
    "name",
    [n for n in VIEWS if not n.startswith(("cat", "stack", "pad", "tril", "diag_", "sl"))],
)
def test_movement_of_a_transposed_input_adds_no_op(name: str) -> None:
    if name == "as_strided" or name == "select_scatter":
        pytest.skip("reads the layout, or writes")
    x = torch.randn(6, 4, 3, 2).permute(3, 2, 1, 0)
    hlir = agrees(VIEWS[name], x)
    assert {n.op for n in hlir.nodes} <= {"Input", "Gather", "Constant"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_padding_keeps_its_fill_in_any_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    agrees(lambda x: [F.pad(x, (1, 2), value=1), F.pad(x, (0, 0, 1, 0))], x)


def test_nan_and_negative_zero_survive_cat_and_pad() -> None:
    x = torch.tensor([float("nan"), -0.0, float("inf")])
    hlir = agrees(lambda x: torch.cat([F.pad(x, (1, 0), value=float("-inf")), x]), x)
    out = run(hlir, [x], compute="native")[0]
    assert torch.signbit(out[2])
    assert torch.signbit(out[5])


def test_heads_are_split_and_merged_without_division_where_sizes_divide() -> None:
    x = torch.randn(2, 5, 12)
    hlir = agrees(lambda x: x.view(2, 5, 3, 4).transpose(1, 2) * 2, x)
    assert str(hlir.nodes[-1].operands[0].view) == "[i0, i2, i1*4+i3]"
    hlir = agrees(
        lambda x: (x.view(2, 5, 3, 4).transpose(1, 2).transpose(1, 2).reshape(2, 5, 12)) + x, x
    )
    assert str(hlir.nodes[-1].operands[0].view) == "[i0, i1, i2]"


def test_equal_parts_are_joined_without_a_guard() -> None:
    x = torch.randn(2, 8)
    hlir = agrees(lambda x: torch.cat([-x[:, 4:], x[:, :4]], -1), x)
    select = hlir.nodes[-1]
    assert select.op == "Select"
    assert [str(o.view) for o in select.operands[1:]] == ["[i0, i1%4]", "[i0, i1%4]"]


@st.composite
def movements(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple]]:
    """A shape, and a chain of movements of it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    steps: list[tuple] = []
    sizes = list(shape)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(["permute", "slice", "flip", "pad", "merge", "split", "repeat"])
        )
        d = draw(st.integers(0, len(sizes) - 1))
        if kind == "permute":
            order = draw(st.permutations(range(len(sizes))))
            steps.append((kind, tuple(order)))
            sizes = [sizes[k] for k in order]
        elif kind == "slice" and sizes[d] > 1:
            start = draw(st.integers(0, sizes[d] - 1))
            step = draw(st.integers(1, 2))
            steps.append((kind, d, start, sizes[d], step))
            sizes[d] = -(-(sizes[d] - start) // step)
        elif kind == "flip":
            steps.append((kind, d))
        elif kind == "pad":
            lo, hi = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            steps.append((kind, d, lo, hi, draw(st.sampled_from([0.0, 1.0]))))
            sizes[d] += lo + hi
        elif kind == "merge" and d + 1 < len(sizes):
            steps.append((kind, d))
            sizes[d : d + 2] = [sizes[d] * sizes[d + 1]]
        elif kind == "split" and sizes[d] % 2 == 0:
            steps.append((kind, d))
            sizes[d : d + 1] = [sizes[d] // 2, 2]
        elif kind == "repeat":
            steps.append((kind, d))
            sizes[d] *= 2
    return shape, steps


@given(movements())
def test_any_chain_of_movements_is_one_view(case: tuple) -> None:
    shape, steps = case
    want = torch.randn(shape)
    graph = Graph()
    got = graph.input("x", shape, dtype("f32"))
    x = want
    for step in steps:
        match step:
            case ("permute", order):
                want, got = want.permute(order), got.permute(*order)
            case ("slice", d, start, stop, by):
                index = [slice(None)] * want.dim()
                index[d] = slice(start, stop, by)
                want, got = want[tuple(index)], got.slice(d, start, stop, by)
            case ("flip", d):
                want, got = want.flip(d), got.flip(d)
            case ("pad", d, lo, hi, fill):
                pads = [0, 0] * (want.dim() - 1 - d) + [lo, hi]
                want = F.pad(want, pads, value=fill)
                got = got.pad([(lo, hi) if k == d else (0, 0) for k in range(got.rank)], fill)
            case ("merge", d):
                want = want.flatten(d, d + 1)
                got = got.reshape(tuple(want.shape))
            case ("split", d):
                want = want.unflatten(d, (-1, 2))
                got = got.reshape(tuple(want.shape))
            case ("repeat", d):
                times = [2 if k == d else 1 for k in range(want.dim())]
                want, got = want.repeat(times), got.repeat(times)
    hlir = check(graph.finish(got))
    assert torch.equal(run(hlir, [x], compute="native")[0], want)


def test_shape_errors_name_the_shapes() -> None:
    g = Graph()
    x = g.input("x", (2, 3), dtype("f32"))
    with pytest.raises(HlirError, match=r"cannot reshape \(2, 3\) into \(4,\)"):
        x.reshape((4,))
    with pytest.raises(HlirError, match="do not broadcast"):
        x + g.input("y", (2, 2), dtype("f32"))
    with pytest.raises(HlirError, match="f32 and i64"):
        x + g.input("z", (2, 3), dtype("i64"))
    with pytest.raises(HlirError, match="no dim 2"):
        x.sum(2)
    with pytest.raises(HlirError, match="two inputs are called 'x'"):
        g.input("x", (), dtype("f32"))


def test_index_arithmetic_on_iotas_stays_an_index() -> None:
    g = Graph()
    i = g.iota(Index.axis("i0"), (6,))
    table = g.input("t", (12,), dtype("f32"))
    read = table.gather((6,), [Index.axis("@0")], [i * 2 + 1])
    assert str(read.view) == "[i0*2+1]"
    assert (i < 6).known_bool is True
    assert (i < 0).known_bool is False
    assert (i < 3).known_bool is None


def test_nodes_are_shared_within_a_module_only() -> None:
    from luminal_lab.hlir import Source

    g = Graph()
    x = g.input("x", (3,), dtype("f32"))
    assert (x + 1.0).node == (x + 1.0).node
    g.source = Source(module="layer.0")
    first = (x * 2.0).node
    assert (x * 2.0).node == first
    g.source = Source(module="layer.1")
    assert (x * 2.0).node != first
