from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.index import Index
from luminal_lab.runtime.plan import MemoryPlan, make_plan, overwritable
from luminal_lab.search.candidate import Call, Candidate
from tests.runtime.programs import kernel


def chain(sizes, uses, *, in_place=True):
    """Calls that each read some earlier buffers and write the next one."""
    shape = lambda k: (sizes[k],)  # noqa: E731
    buffers = {f"t{k}": Buffer(f"t{k}", shape(k), F32) for k in range(len(sizes))}
    kernels, calls = [], []
    for k in range(1, len(sizes)):
        reads = sorted({u % k for u in uses[k]} or {k - 1})
        i = (Index.axis("i"),)
        value = Value("load", (), ("b0", i), dtype=F32)
        for r in range(1, len(reads)):
            value = Value("add", (value, Value("load", (), (f"b{r}", i), dtype=F32)), dtype=F32)
        names = {f"b{r}": Buffer(f"b{r}", shape(k), F32) for r in range(len(reads) + 1)}
        out = KernelOutput(f"b{len(reads)}", i, value)
        kernels.append(Kernel((out,), names, {"i": sizes[k]}))
        bind = {f"b{r}": f"t{t}" for r, t in enumerate(reads)} | {f"b{len(reads)}": f"t{k}"}
        calls.append(Call(k - 1, bind))
    kinds = dict.fromkeys(buffers, "temp") | {"t0": "arg", f"t{len(sizes) - 1}": "output"}
    candidate = Candidate(None, tuple(kernels), tuple(calls), buffers, kinds)
    return make_plan(
        candidate,
        at_call=range(len(calls)),
        persistent=(),
        external=("t0",),
        overwrites=lambda k: in_place,
    )


def check(plan: MemoryPlan):
    """No two live buffers share bytes, unless one overwrites the other."""
    inside = [p for p in plan.placements if p.place == "arena"]
    for k, p in enumerate(inside):
        assert p.offset % 64 == 0
        assert 0 <= p.offset <= p.offset + p.nbytes <= plan.arena_bytes
        for q in inside[k + 1 :]:
            together = p.first <= q.last and q.first <= p.last
            shared = p.offset < q.offset + q.nbytes and q.offset < p.offset + p.nbytes
            if together and shared:
                assert q.over == p.name, (p, q)
                assert p.last == q.first
                assert p.nbytes == q.nbytes


@given(
    st.lists(st.integers(1, 300), min_size=2, max_size=14),
    st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=14, max_size=14),
    st.booleans(),
)
def test_live_buffers_never_share_bytes(sizes, uses, in_place):
    plan = chain(sizes, uses, in_place=in_place)
    check(plan)
    assert plan.arena_bytes <= plan.sum_bytes
    if not in_place:
        assert plan.arena_bytes >= plan.live_bytes


def test_a_chain_needs_one_buffer_in_place_and_two_without():
    sizes, uses = [100] * 8, [[]] * 8
    assert chain(sizes, uses).arena_bytes == 448
    assert chain(sizes, uses, in_place=False).arena_bytes == 896
    assert chain(sizes, uses).sum_bytes == 7 * 448


def test_the_views_of_a_plan():
    plan = chain([100] * 4, [[]] * 4)
    assert "over t1" in plan.text()
    assert list(plan.table().columns[:4]) == ["name", "kind", "place", "offset"]
    assert "t1 -> t2" not in plan.graph().source
    assert plan.graph().source.count("->") == 2
    assert plan.diff(plan) == ""
    assert plan["t3"].last == 3
    with pytest.raises(KeyError):
        plan["no"]


def test_what_may_be_overwritten():
    same = kernel("add", 2, (8, 8))
    assert overwritable(same, "b2") == ("b0", "b1")
    i, j = Index.axis("i0"), Index.axis("i1")
    load = Value("load", (), ("b0", (j, i)), dtype=F32)
    turned = replace(same, outputs=(KernelOutput("b2", (i, j), load),))
    assert overwritable(turned, "b2") == ()
    both = Value("add", (load, Value("load", (), ("b0", (i, j)), dtype=F32)), dtype=F32)
    assert overwritable(replace(same, outputs=(KernelOutput("b2", (i, j), both),)), "b2") == ()
    row = Value(
        "red", (Value("load", (), ("b0", (i, j)), dtype=F32),), ("add", "i1"), dtype=F32
    )
    rows = replace(same, outputs=(KernelOutput("b2", (i, j), row),))
    assert overwritable(rows, "b2") == ()
    two = replace(same, outputs=(same.outputs[0], replace(same.outputs[0], buffer="b1")))
    assert overwritable(two, "b2") == ()
    broadcast = {**same.buffers, "b0": replace(same.buffers["b0"], strides=(0, 1))}
    assert overwritable(replace(same, buffers=broadcast), "b2") == ("b1",)
