"""Views read what torch's movement ops read."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.errors import HlirError
from luminal_lab.hlir import Graph, Index, View, regroup, run
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.view import out_axis
from tests.hlir.strategies import points, regroupings


def read(tensor: torch.Tensor, view: View, shape: tuple[int, ...]) -> torch.Tensor:
    """A view applied point by point."""
    extents = {out_axis(k): n for k, n in enumerate(shape)}
    out = []
    for p in points(extents):
        inside = all(g.evaluate(p) >= 0 for g in view.guard)
        place = tuple(i.evaluate(p) for i in view.index)
        out.append(tensor[place].item() if inside else view.fill)
    return torch.tensor(out, dtype=tensor.dtype).reshape(shape)


def count(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(float(math.prod(shape))).reshape(shape)


@given(regroupings())
def test_regroup_is_reshape(shapes):
    old, new = shapes
    x = count(old)
    assert torch.equal(read(x, View(regroup(old, new)), new), x.reshape(new))


@given(regroupings())
def test_regrouping_back_is_the_identity(shapes):
    old, new = shapes
    there = View(regroup(old, new))
    back = dict(zip(map(out_axis, range(len(new))), regroup(new, old)))
    extents = {out_axis(k): n for k, n in enumerate(old)}
    composed = there.compose(back, extents)
    x = count(old)
    assert torch.equal(read(x, composed, old), x)
    assert all(i.bounds(extents)[1] < n for i, n in zip(composed.index, old))


def test_regroup_splits_and_merges_without_division():
    assert list(map(str, regroup((4, 6), (2, 2, 6)))) == ["i0*2+i1", "i2"]
    assert list(map(str, regroup((2, 2, 6), (4, 6)))) == ["i0//2", "i0%2", "i1"]
    assert list(map(str, regroup((2, 3, 64), (2, 3, 4, 16)))) == ["i0", "i1", "i2*16+i3"]
    assert list(map(str, regroup((6, 4), (4, 6)))) == ["(i0*6+i1)//4", "(i0*6+i1)%4"]
    assert regroup((0, 3), (3, 0)) == (Index(), Index())
    with pytest.raises(HlirError, match=r"cannot reshape \(2, 3\) into \(4,\): 6 != 4"):
        regroup((2, 3), (4,))


@given(st.data())
def test_chains_of_movement(data):
    """Any chain of movement ops composes to one view that reads what torch reads."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    g = Graph()
    t, expected = g.input("x", shape, F32), count(shape)
    x = expected
    for _ in range(data.draw(st.integers(1, 5))):
        dim = data.draw(st.integers(0, t.rank - 1))
        choice = data.draw(st.integers(0, 6))
        n = t.shape[dim]
        if choice == 0:
            order = data.draw(st.permutations(range(t.rank)))
            t, expected = t.permute(*order), expected.permute(*order)
        elif choice == 1:
            t, expected = t.flip(dim), expected.flip(dim)
        elif choice == 2 and n > 1:
            start = data.draw(st.integers(0, n - 1))
            step = data.draw(st.integers(1, 2))
            index = [slice(None)] * t.rank
            index[dim] = slice(start, n, step)
            t, expected = t.slice(dim, start, n, step), expected[tuple(index)]
        elif choice == 3:
            pads = [(0, 0)] * t.rank
            pads[dim] = (
                data.draw(st.integers(-1 if n > 2 else 0, 2)),
                data.draw(st.integers(0, 2)),
            )
            flat = [p for pair in reversed(pads) for p in pair]
            t = t.pad(pads, -1.0)
            expected = torch.nn.functional.pad(expected, flat, value=-1.0)
        elif choice == 4:
            times = [1] * t.rank
            times[dim] = data.draw(st.integers(1, 3))
            t, expected = t.repeat(times), expected.repeat(times)
        elif choice == 5:
            t, expected = t.unsqueeze(dim), expected.unsqueeze(dim)
        elif choice == 6:
            total = math.prod(t.shape)
            new = data.draw(st.sampled_from([k for k in range(1, total + 1) if total % k == 0]))
            t = t.reshape((new, total // new))
            expected = expected.reshape(new, total // new)
    out = run(g.finish(t), [x])[0]
    assert torch.equal(out, expected.double())


def test_guards_that_always_hold_are_dropped():
    view = View((Index.axis("i0") - 1,), (Index.axis("i0") - 1,), 0.0)
    shifted = view.compose({"i0": Index.axis("i0") + 1}, {"i0": 3})
    assert shifted == View.identity(1)
    assert shifted.is_identity
    assert not view.is_identity
    assert str(view) == "[i0-1] if i0-1>=0 else 0.0"
