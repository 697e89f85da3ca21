"""A saved search rebuilds the same candidates, or says exactly what differs."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import SearchError
from luminal_lab.search import Budget, Database, Result, search
from tests.search.fake import FakeTarget
from tests.search.models import saturated

OTHER = """
;; law: a doubled value is twice it
;; class: exact
(rewrite (Add x x) (Mul x (Const 2.0 d)) :when ((= d (dtype x)) (floating d)) :name "twice")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    result = search(
        saturated("block"), Budget("quick"), target=FakeTarget(), database=Database(":memory:")
    )
    path = tmp_path_factory.mktemp("replay") / "block.result"
    result.save(path)
    return result, path


def test_a_replay_explores_and_measures_nothing(saved, monkeypatch):
    from luminal_lab.search.region import RegionSearch

    result, path = saved

    def never(*_):
        raise AssertionError("explored")

    monkeypatch.setattr(RegionSearch, "evaluate", never)
    again = search(saturated("block"), replay=path, target=FakeTarget())
    assert again.table().equals(result.table())
    assert again.final_table().equals(result.final_table())
    assert again.rejections().table().equals(result.rejections().table())
    assert again.best == result.best
    assert [c.name for c in again.candidates] == [c.name for c in result.candidates]
    assert search(saturated("block"), replay=result, target=FakeTarget()).best == result.best


SCRIPT = """
import sys
from luminal_lab.search import search
from tests.search.fake import FakeTarget
from tests.search.models import saturated
result = search(saturated("block"), replay=sys.argv[1], target=FakeTarget())
sys.stdout.write(result.table().to_csv() + result.best.text())
"""


def test_the_table_is_identical_in_another_process(saved):
    result, path = saved
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out == result.table().to_csv() + result.best.text()


def test_another_program_is_told(saved):
    with pytest.raises(SearchError, match=r"what differs:\n  the program:"):
        search(saturated("layernorm"), replay=saved[1], target=FakeTarget())


def test_other_rules_are_told(saved):
    egraph = saturated("block", rules=OTHER)
    with pytest.raises(SearchError, match="the rules: twice are new here"):
        search(egraph, replay=saved[1], target=FakeTarget())


def test_another_version_is_told_with_the_rest(saved):
    result = saved[0]
    old = replace(result, origin=replace(result.origin, version="0.0.1", target="cuda"))
    with pytest.raises(SearchError) as error:
        search(saturated("block"), replay=old, target=FakeTarget())
    assert "the target: 'cuda'" in str(error.value)
    assert "the version: 0.0.1 saved it" in str(error.value)


def test_a_genome_that_gives_something_else_is_told(saved):
    result = saved[0]
    rows = list(result.rows)
    rows[3] = replace(rows[3], texts="0000000000")
    with pytest.raises(SearchError, match=r"other kernels here(.|\n)*rank 3"):
        search(
            saturated("block"), replay=replace(result, rows=tuple(rows)), target=FakeTarget()
        )
    rows[3] = replace(rows[3], genes=(((10_000, 0),), ()))
    with pytest.raises(SearchError, match="no e-node 0 makes the tensor of class 10000"):
        search(
            saturated("block"), replay=replace(result, rows=tuple(rows)), target=FakeTarget()
        )


def test_the_file_holds_data_only(saved, tmp_path):
    with zipfile.ZipFile(saved[1]) as archive:
        json.loads(archive.read("result.json"))
        kinds = {name: archive.read(name)[:2] for name in archive.namelist()}
    assert not any(head == b"\x80\x04" for head in kinds.values())  # no pickle
    assert all(n.endswith((".txt", ".json")) or n == "kind" or "weights/" in n for n in kinds)


def test_a_result_of_another_format_is_refused(saved, tmp_path):
    other = tmp_path / "other.result"
    with zipfile.ZipFile(saved[1]) as archive, zipfile.ZipFile(other, "w") as out:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "result.json":
                data = json.dumps({**json.loads(data), "version": 1}).encode()
            out.writestr(name, data)
    with pytest.raises(SearchError, match="it has format 1"):
        Result.load(other)


def test_ll_search_replays(saved):
    egraph = ll.saturate(ll.capture(lambda x: torch.relu(x) + 1, (torch.ones(8),)))
    result = ll.search(egraph, Budget("none"))
    assert ll.search(egraph, replay=result).table().equals(result.table())


def test_schedules_of_this_machine_survive_a_file(tmp_path):
    x, w = torch.randn(24, 40), torch.randn(40, 40)
    egraph = ll.saturate(ll.capture(lambda x, w: torch.sigmoid(x @ w) * x, (x, w)))
    result = ll.search(egraph, Budget("quick", candidates=4))
    result.save(tmp_path / "gate.result")
    again = ll.search(egraph, replay=tmp_path / "gate.result")
    assert again.best == result.best
    assert again.best.schedules == Result.load(tmp_path / "gate.result").best.schedules
