"""A program confined to a bucket computes what it did, and uses what the bucket proves."""

from __future__ import annotations

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import HlirError
from luminal_lab.hlir import check, narrow, run
from luminal_lab.hlir.symbolic import specialize, symbols_of
from luminal_lab.search.inputs import search_inputs
from tests.runtime.test_dynamic import PROGRAMS

Bucket = ll.Bucket


@pytest.mark.parametrize("name", PROGRAMS)
def test_narrowed_programs_compute_the_same(name: str) -> None:
    torch.manual_seed(0)
    module, args, shapes = PROGRAMS[name]
    hlir = ll.capture(module, args, dynamic_shapes=shapes)
    bounds = hlir.symbols
    last = list(bounds)[-1]
    for chosen in (
        {n: Bucket(low, low) for n, (low, _) in bounds.items()},
        {last: Bucket(bounds[last][0], bounds[last][0])},
        {n: Bucket(low + 1, min(high, 9), 4) for n, (low, high) in bounds.items()},
    ):
        small = check(narrow(hlir, chosen))
        assert len(small.nodes) <= len(hlir.nodes)
        sizes = {
            n: chosen[n].tune_at if n in chosen else low + 1 for n, (low, _) in bounds.items()
        }
        fixed = specialize(hlir, {n: size or 1 for n, size in sizes.items()})
        made = search_inputs(fixed, fixed.weights)
        given = [made[s.name] for s in fixed.inputs if s.kind == "arg"]
        for got, want in zip(run(small, given), run(hlir, given)):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        for symbol in symbols_of(small).values():
            if symbol.name in chosen:
                bucket = chosen[symbol.name]
                assert (symbol.low, symbol.high, symbol.hint) == (
                    bucket.low, bucket.high, bucket.tune_at,
                )  # fmt: skip


def test_one_size_is_what_it_would_be_without_symbols() -> None:
    """A causal mask over one query and one key is decided, and both sums over keys are gone."""

    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    x = torch.randn(2, 5, 8)
    s = torch.export.Dim("s", min=1, max=64)
    one = narrow(ll.capture(attention, (x,), dynamic_shapes=({1: s},)), {"s": Bucket(1, 1)})
    fixed = ll.capture(attention, (x[:, :1],))
    assert [n.op for n in one.nodes] == [n.op for n in fixed.nodes]
    assert "Select" not in {n.op for n in one.nodes}


def test_fallbacks_mutations_and_guards_are_kept() -> None:
    g = ll.Graph()
    s = g.dim("s", 1, 9)
    x, cache = g.tensor("x", (s, 4)), g.tensor("cache", (s, 4))
    cache.assign(cache + x.pad((1, 0), (0, 0))[:-1])
    values, places = x.sort(0)
    values.output("values")
    places.mT.output("places")
    x.repeat(3, 1)[1:].output("some")
    (x * 2).argmax(0).output("place")
    hlir = g.hlir()
    for bucket in (Bucket(1, 1), Bucket(3, 3), Bucket(2, 5)):
        small = check(narrow(hlir, {"s": bucket}))
        a, c = torch.randn(bucket.tune_at or 1, 4), torch.randn(bucket.tune_at or 1, 4)
        assert [o.mutates for o in small.outputs] == ["cache", None, None, None, None]
        assert len(small.fallbacks()) == len(hlir.fallbacks())
        for got, want in zip(run(small, [a, c]), run(hlir, [a, c]), strict=True):
            torch.testing.assert_close(got, want)


def test_wrong_buckets_are_told() -> None:
    g = ll.Graph()
    g.tensor("x", (g.dim("s", 2, 9),)).sum().output()
    hlir = g.hlir()
    with pytest.raises(HlirError, match=r"(?s)no symbolic dim 't'.*one of s"):
        narrow(hlir, {"t": Bucket(1, 2)})
    with pytest.raises(HlirError, match=r"beyond the bounds \[2, 9\] of s"):
        narrow(hlir, {"s": Bucket(1, 1)})
    with pytest.raises(HlirError, match="are empty"):
        Bucket(3, 2)
    with pytest.raises(HlirError, match="outside of"):
        Bucket(1, 4, tune_at=5)
