"""A small part of the models, and what the committed table says of all that were run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.models.cases import Case
from tests.models.check import judge, row
from tests.models.table import KEY, table
from tests.models.wake import wake
from tests.rows import read, read_table

COMMITTED = read_table(Path(__file__).with_name("table.tsv"), KEY)


def test_nothing_in_the_table_is_wrong() -> None:
    bad = {key[1] for key, r in COMMITTED.items() if r["outcome"] in ("WRONG", "crash")}
    assert not bad


def test_many_architectures_are_right() -> None:
    right = {key[:2] for key, r in COMMITTED.items() if r["outcome"] == "right"}
    assert len({model for suite, model in right if suite == "families"}) >= 40
    assert len({model for suite, model in right if suite == "language"}) >= 15
    assert len({model for suite, model in right if suite == "vision"}) >= 60


@pytest.mark.parametrize("model", ["DCN", "DLRM"])
def test_recommenders(model: str) -> None:
    found = judge(Case("layers", model))
    assert found["outcome"] == "right", found["text"]
    assert found["compiles"] == 1


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = Case("layers", "DCN")
    (tmp_path / "table.tsv").write_text(table([row(case)]))
    assert read_table(tmp_path / "table.tsv", KEY)[case.key]["outcome"] == "right"
    assert not read(tmp_path / "none.jsonl", KEY)


def test_results_depend_on_every_weight_that_is_awake() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    nn.init.zeros_(module[2].weight)
    x = torch.randn(2, 3, 4, 4)
    wake(module, lambda: module(x))
    assert not module.training
    assert not torch.equal(module[1].running_mean, torch.zeros(4))
    module(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in module.parameters())
