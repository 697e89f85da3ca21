"""Stage files: one door for all of them, whole or not at all, data only."""

from __future__ import annotations

import zipfile

import pytest
import torch

import luminal_lab as ll


@pytest.fixture(scope="module")
def stages():
    args = (torch.randn(4, 8),)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    hlir = ll.capture(model, args)
    egraph = ll.saturate(hlir)
    result = ll.search(egraph, ll.Budget("none"))
    exe = ll.build(result.best)
    return {
        "hlir": hlir,
        "egraph": egraph,
        "result": result,
        "candidate": result.best,
        "executable": exe,
        "profile": ll.profile(exe, args, repeats=3),
    }


@pytest.mark.parametrize(
    "name", ["hlir", "egraph", "result", "candidate", "executable", "profile"]
)
def test_every_stage_comes_back_through_one_door(stages, name, tmp_path):
    stages[name].save(tmp_path / "file")
    again = ll.load(tmp_path / "file")
    assert type(again) is type(stages[name])
    assert again.table().equals(stages[name].table())


def test_a_loaded_candidate_can_be_built(stages, tmp_path):
    stages["candidate"].save(tmp_path / "file")
    x = torch.randn(4, 8)
    assert torch.equal(ll.build(ll.load(tmp_path / "file"))(x), stages["executable"](x))


def test_no_stage_file_holds_a_pickle(stages, tmp_path):
    for name, stage in stages.items():
        stage.save(tmp_path / name)
        with zipfile.ZipFile(tmp_path / name) as archive:
            for entry in archive.namelist():
                assert entry.startswith("weights/") or not archive.read(entry).startswith(
                    b"\x80"
                )


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"hello"])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ll.LuminalError, match="not a file that a stage object saved"):
        ll.load(tmp_path / "file")
    with pytest.raises(ll.LuminalError, match="no such file"):
        ll.load(tmp_path / "missing")
