"""Session files: what was finished is there again, in another process too."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import CacheError, LuminalError
from luminal_lab.session import Session, is_session
from luminal_lab.views import session as view


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), -1)


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    hlir = ll.capture(Tower(), (torch.randn(8, 64),))
    egraph = ll.saturate(hlir)
    result = ll.search(egraph, ll.Budget("none"))
    exe = ll.build(result.best)
    profile = ll.profile(exe, (torch.randn(8, 64),), repeats=3)
    return {"hlir": hlir, "egraph": egraph, "result": result, "profile": profile}


@pytest.fixture
def path(tmp_path: Path, stages: dict[str, Any]) -> Path:
    path = tmp_path / "tower.session"
    with Session(path) as session:
        for name, stage in stages.items():
            session.record(name, stage)
        session.record_progress(0.1, 1e-3, "explore")
        session.record_trial("k0 edited", {"ok": True, "text": "/* … */"})
    return path


def test_everything_is_there_again(path: Path, stages: dict[str, Any]) -> None:
    with ll.load(path) as session:
        assert session.stages() == ("hlir", "egraph", "result", "profile")
        assert repr(session) == "Session(Tower: hlir, egraph, result, profile)"
        assert session.stage("hlir").text() == stages["hlir"].text()
        assert session.stage("egraph").text() == stages["egraph"].text()
        assert session.stage("result").best.name == stages["result"].best.name
        assert session.stage("profile") == stages["profile"]
        assert session.stage("candidate") is None
        names = [c.name for c in session.candidates()]
        assert names == [c.name for c in stages["result"].candidates[: len(names)]]
        assert session.progress() == [(0.1, 1e-3, "explore")]
        assert session.trials()[0][0] == "k0 edited"


def test_weights_are_left_out_unless_asked_for(tmp_path: Path, stages: dict[str, Any]) -> None:
    with Session(tmp_path / "a") as light, Session(tmp_path / "b", weights=True) as heavy:
        light.record("hlir", stages["hlir"])
        heavy.record("hlir", stages["hlir"])
        assert not light.stage("hlir").weights
        assert len(heavy.stage("hlir").weights) == 6


def test_a_new_stage_drops_what_came_from_the_old_one(path: Path, stages: Any) -> None:
    with Session(path) as session:
        session.record("egraph", stages["egraph"])
        assert session.stages() == ("hlir", "egraph")
        assert session.candidates() == []
        assert session.progress() == []


def test_a_process_that_dies_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    code = (
        "import os, torch, luminal_lab as ll\n"
        "s = ll.Session('killed.session')\n"
        "s.record('hlir', ll.capture(torch.nn.GELU(), (torch.ones(4),)))\n"
        "s.record_progress(0.5, 2e-6, 'explore')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -9
    with ll.load(tmp_path / "killed.session") as session:
        assert session.stage("hlir").name == "GELU"
        assert session.progress() == [(0.5, 2e-6, "explore")]


def test_the_page_needs_nothing_from_elsewhere(path: Path, tmp_path: Path) -> None:
    with Session(path) as session:
        session.export(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>Tower</h1>" in text
    assert "static void" in text.replace("</span>", "").replace(
        '<span class="tk">', ""
    ).replace('<span class="tt">', "")
    for word in ("<script", "src=", "@import", "url("):
        assert word not in text


def test_two_sessions_side_by_side(path: Path, tmp_path: Path, stages: Any) -> None:
    with Session(path) as one, Session(tmp_path / "other.session") as two:
        two.record("hlir", stages["hlir"])
        figure = view.comparison([one, two])
    assert "tower" in figure.text
    assert "best candidate" in figure.text
    assert "no candidate" in figure.html


def test_what_is_not_a_session_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(CacheError, match="another kind of database"):
        Session(other)
    (tmp_path / "text").write_text("no database at all, but some text that is long enough")
    with pytest.raises(CacheError, match="not a session"):
        Session(tmp_path / "text")
    assert not is_session(tmp_path / "text")
    assert not is_session(tmp_path / "missing")


def test_a_damaged_stage_is_an_error_and_runs_nothing(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute(
            "UPDATE stages SET data = ? WHERE name = 'hlir'", (b"cos\nsystem\n(S'ls'\ntR.",)
        )
    with Session(path) as session, pytest.raises(LuminalError, match="not a file"):
        session.stage("hlir")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CacheError):
        Session(tmp_path / "missing" / "x.session")
