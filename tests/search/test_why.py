"""Why this candidate, why not the others, and how two differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import SearchError
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.extract import Genome, Infeasible
from luminal_lab.search.ladder import CAPTURED, FUSED
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.replay import genome_of
from luminal_lab.search.result import KernelRecord
from luminal_lab.search.target import Measurement


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


@pytest.fixture(scope="module")
def result():
    args = tuple(torch.randn(1, 2, 64, 16) for _ in range(3))
    return ll.search(ll.saturate(ll.capture(attention, args)), ll.Budget("none"))


def test_each_storage_choice_saves_what_flipping_it_alone_costs(result) -> None:
    worst = result.candidates[-1]
    found = result.why(worst)
    assert found.choices
    kernels = Assembler(result._egraph, result.machine).regions[0]
    search, space = RegionSearch(kernels), kernels.space
    (_, *genes) = worst.choice[0]
    g = genome_of(space, tuple(genes))
    base = search.seconds(space.extract(g))
    checked = 0
    for c in found.choices:
        if c.kind != "storage" or c.predicted is None:
            continue
        costs = []
        for t in space.tensors:
            place = list(g.place)
            place[t] = not place[t]
            try:
                other = space.extract(Genome(g.choice, tuple(place), g.producer))
            except Infeasible:
                continue
            costs.append(search.seconds(other) - base)
        assert any(abs(c.predicted - x) < 1e-12 for x in costs)
        checked += 1
    assert checked or all(c.kind != "storage" or c.note for c in found.choices)
    assert found.runner_up
    assert "compared with" in repr(found)


def test_the_best_is_not_improved_by_any_single_choice(result) -> None:
    best = min(result.rows, key=lambda r: r.predicted)
    assert best.rank == 0
    known = [c.predicted for c in result.why(result.candidates[0]).choices if c.predicted]
    assert all(x > -1e-9 for x in known)


def test_rejections_open_to_their_cases(result) -> None:
    found = result.rejections()
    assert found.total == result.considered
    assert found.table()["count"].sum() == result.considered
    assert "in all" in repr(found)
    with pytest.raises(SearchError, match="nothing was rejected as 'haunted'"):
        found.cases("haunted")
    text = "kernel x"
    bad = Measurement(False, reason="wrong", message="off by 3 at [0]")
    row = type(result.rows[0])(**{**result.rows[0].__dict__, "status": "rejected",
                                  "reason": "wrong", "rule": "my-rule"})  # fmt: skip
    made = replace(
        result,
        rows=(row, *result.rows[1:]),
        rejected={**result.rejected, "wrong (rule my-rule)": 1},
        records={text: KernelRecord(text, None, bad, 1)},
        instances={"my-rule": "x is not x+x"},
        considered=result.considered + 1,
    )
    cases = made.rejections().cases("wrong")
    assert {bool(c.kernel) for c in cases} == {True, False}
    assert any(c.instance == "x is not x+x" for c in cases)
    html = made.rejections()._repr_mimebundle_()["text/html"]
    assert "off by 3" in html
    assert "x is not x+x" in html


def test_two_candidates_differ_by_what_is_merged_and_stored(result) -> None:
    one = next(c for c in result.candidates if len(c.kernels) == 1)
    many = next(c for c in result.candidates if len(c.kernels) > 1)
    found = one.diff(many)
    table = found.table()
    mine = table[table["candidate"] == one.name]
    assert set(mine["status"]) <= {"merged", "rewritten", "reshaped"}
    assert set(table["status"]) <= {"shared", "merged", "split", "reshaped", "rewritten", "own"}
    values = found.values()
    assert (values["left"] != values["right"]).all()
    assert "stored" in set(values["right"])
    assert "kernels in both" in str(found)
    assert found.graph().source.count("cluster_") == 2
    assert set(found._repr_mimebundle_()) == {"text/plain", "text/html"}
    same = one.diff(one)
    assert set(same.table()["status"]) == {"shared"}
    assert same.values().empty


def test_a_candidate_is_set_against_the_program_and_against_fusion_alone(result) -> None:
    found = result.why()
    table = found.ladder_table()
    assert list(table["program"][:2]) == [CAPTURED, FUSED]
    captured, fused, *_, mine = found.ladder
    assert captured.calls == 13  # operations, inputs and constants left out
    assert mine.calls == len([c for c in result.best.calls if not c.at_build])
    assert captured.traffic > fused.traffic >= mine.traffic > 0
    assert captured.seconds > fused.seconds >= mine.seconds == result.best.seconds
    assert table["ratio"].iloc[-1] == 1
    assert FUSED in repr(found)
    html = found._repr_mimebundle_()["text/html"]
    assert "As it was captured, the program moves" in html
