"""Mutated inputs: a cache is written where it lies, and only at its new rows."""

from __future__ import annotations

import copy

import pytest
import torch

import luminal_lab as ll
from luminal_lab.runtime.executable import Executable


class Cache(torch.nn.Module):
    """One step of attention with a key-value cache, as generation runs it."""

    def __init__(self, heads: int = 2, length: int = 256, dim: int = 8):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, heads, length, dim))
        self.register_buffer("v", torch.zeros(1, heads, length, dim))

    def forward(self, q, k, v, at):
        self.k.index_copy_(2, at, k)
        self.v.index_copy_(2, at, v)
        s = q @ self.k.transpose(-1, -2)
        seen = torch.arange(self.k.shape[2]) <= at
        return torch.softmax(s.masked_fill(~seen, float("-inf")), -1) @ self.v


def step(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, 1, 8, generator=g) for _ in range(3)] + [torch.tensor([seed])]


def built(fn, args) -> Executable:
    return ll.build(ll.search(ll.saturate(ll.capture(fn, args)), ll.Budget("none")).best)


def test_a_cache_is_updated_in_place():
    module = Cache().eval()
    reference = copy.deepcopy(module)
    exe = built(module, step())  # (1, 2, 256, 8) each
    assert exe.program is not None
    assert exe.program.in_place == {"k.new": "k", "v.new": "v"}
    before = module.k.data_ptr(), module.k._version
    for seed in (0, 3, 1, 1, 15):
        with torch.no_grad():
            want = reference(*step(seed))
        torch.testing.assert_close(exe(*step(seed)), want)
        assert torch.equal(module.k, reference.k)
        assert torch.equal(module.v, reference.v)
    assert module.k.data_ptr() == before[0]
    assert module.k._version > before[1], "autograd must see the write"
    assert exe.plan.arena_bytes < module.k.nbytes, "no second cache"


def functional(cache, row, at):
    cache[:, at] = row
    return cache.sum(-1)


def test_an_argument_is_updated_in_place():
    cache, row = torch.randn(4, 8, 6), torch.randn(4, 1, 6)
    exe = built(functional, (cache.clone(), row, torch.tensor([2])))
    assert list(exe.program.in_place.values()) == ["cache"]
    given = cache.clone()
    out = exe(given, row, torch.tensor([-1]))
    want = cache.clone()
    want[:, -1:] = row
    assert torch.equal(given, want)
    torch.testing.assert_close(out, want.sum(-1))


def test_an_argument_in_another_layout_is_written_back():
    cache, row = torch.randn(8, 4, 6).transpose(0, 1), torch.randn(4, 1, 6)
    exe = built(functional, (cache.contiguous(), row, torch.tensor([2])))
    want = cache.clone()
    want[:, 2:3] = row
    exe(cache, row, torch.tensor([2]))
    assert torch.equal(cache, want)


def test_an_old_state_that_is_still_read_is_not_overwritten():
    """`b` is `a`'s memory: what eager reads after the write is not what the program says."""

    def both(a, b, row, at):
        a.index_copy_(0, at, row)
        return (b * 2).sum() + a.sum()

    a = torch.randn(5, 3)
    row, at = torch.ones(1, 3), torch.tensor([1])
    exe = built(both, (a.clone(), torch.randn(5, 3), row, at))
    assert exe.program.in_place
    given = a.clone()
    out = exe(given, given, row, at)
    want = a.clone()
    want[1] = 1
    assert torch.equal(given, want)
    torch.testing.assert_close(out, (a * 2).sum() + want.sum())


def test_a_chain_of_updates_is_in_place():
    def twice(a, row, at):
        a.index_copy_(0, at, row)
        a.index_add_(0, at + 1, row)
        return a * 1.0

    a, row, at = torch.randn(5, 3), torch.randn(1, 3), torch.tensor([1])
    exe = built(twice, (a.clone(), row, at))
    assert len(exe.program.in_place) == 2
    given, want = a.clone(), a.clone()
    out = exe(given, row, at)
    twice(want, row, at)
    torch.testing.assert_close(given, want)
    torch.testing.assert_close(out, want)


def test_an_update_beside_a_read_of_the_old_state():
    def shift(a, row, at):
        old = a.sum(0)
        a.index_copy_(0, at, row)
        return old, a.sum(0)

    a, row, at = torch.randn(50, 3), torch.randn(1, 3), torch.tensor([1])
    exe = built(shift, (a.clone(), row, at))
    given, want = a.clone(), a.clone()
    got = exe(given, row, at)
    torch.testing.assert_close(got, shift(want, row, at))
    torch.testing.assert_close(given, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_duplicates_keep_the_last(dtype):
    def put(a, rows, at):
        return a.index_copy(0, at, rows)

    a = torch.zeros(4, 3, dtype=dtype)
    rows = torch.arange(18).reshape(6, 3).to(dtype)
    at = torch.tensor([0, 2, 0, 2, 3, 0])
    got = built(put, (a, rows, at))(a, rows, at)
    want = a.clone()
    for k, place in enumerate(at.tolist()):
        want[place] = rows[k]
    assert torch.equal(got, want)
