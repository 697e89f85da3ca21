"""Candidates as objects: text that parses back, tables, graphs, differences, files."""

import pytest

from luminal_lab.errors import SearchError
from luminal_lab.search import Budget, Candidate, sample, search
from tests.search.models import saturated


@pytest.fixture(scope="module")
def egraph():
    return saturated("block")


@pytest.fixture(scope="module")
def candidate(egraph):
    return search(egraph, Budget("none")).best


def test_the_text_parses_back(egraph):
    for one in sample(egraph, 8, seed=2):
        again = Candidate.parse(one.text(), egraph.hlir)
        assert again == one
        assert again.name == one.name
        assert [k.nodes for k in again.kernels] == [k.nodes for k in one.kernels]
        assert [k.rules for k in again.kernels] == [k.rules for k in one.kernels]


def test_it_can_be_saved_and_loaded(candidate, egraph, tmp_path):
    candidate.save(tmp_path / "c.txt")
    assert Candidate.load(tmp_path / "c.txt") == candidate
    with pytest.raises(SearchError, match="no such file"):
        Candidate.load(tmp_path / "missing")


def test_what_is_no_candidate_is_refused_with_its_line(candidate):
    with pytest.raises(SearchError, match="not the text of a candidate"):
        Candidate.parse("hello")
    broken = candidate.text().replace("call 0", "cull 0", 1)
    with pytest.raises(SearchError, match=r"line \d+: .*cull"):
        Candidate.parse(broken)


def test_calls_bind_every_buffer_once_and_in_order(egraph):
    for one in sample(egraph, 20, seed=3):
        known = {n for n, kind in one.kinds.items() if kind in ("arg", "weight", "constant")}
        for call in one.calls:
            kernel = one.kernels[call.kernel]
            assert set(call.bind) == set(kernel.buffers)
            writes = kernel.writes() if callable(kernel.writes) else kernel.writes
            for own, name in call.bind.items():
                assert kernel.buffers[own].shape == one.buffers[name].shape
                assert kernel.buffers[own].dtype is one.buffers[name].dtype
                assert own in writes or name in known
            for own in writes:
                assert call.bind[own] not in known
                known.add(call.bind[own])
        assert {o.name for o in egraph.hlir.outputs} <= known


def test_every_hlir_op_is_covered_by_a_kernel(candidate):
    covered = {n for k in candidate.kernels for n in k.nodes}
    cheap = ("Input", "Constant", "Iota")
    missing = [n for n, node in enumerate(candidate.hlir.nodes)
               if node.op not in cheap and n not in covered]  # fmt: skip
    # What an algebraic law removed is in no kernel.
    assert len(missing) < 0.5 * len(candidate.hlir.nodes)


def test_it_shows_itself(candidate, egraph):
    assert candidate.name in repr(candidate)
    assert "predicted" in repr(candidate)
    table = candidate.table()
    assert list(table["kernel"]) == list(range(len(candidate.kernels)))
    assert abs(table["total_us"].sum() * 1e-6 - candidate.seconds) < 1e-9
    dot = candidate.graph().source
    assert dot.count("->") >= len(candidate.calls) - 1
    assert candidate._repr_mimebundle_()["text/plain"] == repr(candidate)
    other = sample(egraph, 3, seed=9)[2]
    text = candidate.diff(other)
    assert "+ " in text
    assert "- " in text
    assert candidate.diff(candidate).startswith(f"{candidate.name} against {candidate.name}")
    assert candidate.temporaries > 0
