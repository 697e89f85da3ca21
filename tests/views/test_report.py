import os

import pytest

from luminal_lab.demo.report import (
    Check,
    Neighbour,
    Report,
    Stage,
    Timing,
    to_html,
    write_report,
)
from luminal_lab.errors import LuminalError
from luminal_lab.search.candidate import Candidate
from tests.views.check import check_html
from tests.views.conftest import HOSTILE


@pytest.fixture(autouse=True)
def _sources(monkeypatch):
    """Code generation has its own tests."""
    monkeypatch.setattr(Candidate, "source", lambda self, k, language="c": f"{k} {HOSTILE}")


@pytest.fixture
def report(attention, egraph, result, one_pass, profile) -> Report:
    return Report(
        title=HOSTILE,
        intro=HOSTILE,
        machine=[("2", "threads")],
        stages=[Stage("capture", HOSTILE, "19 nodes", 0.5), Stage("saturate", "", "", 0.25)],
        timings=[
            Timing("32 sentences", "eager", (0.2, 0.21, 0.22)),
            Timing("32 sentences", HOSTILE, (0.3,)),
            Timing("32 sentences", "Luminal Lab", (0.1, 0.1), ours=True),
        ],
        checks=[Check("error", "1e-6", "≤ 1e-4", True), Check(HOSTILE, "2", "1", False)],
        ranking=[Neighbour("a", "b", "b", 0.9), Neighbour(HOSTILE, "b", "c", 0.8)],
        hlir=attention,
        egraph=egraph,
        result=result,
        candidate=one_pass,
        profile=profile,
        command="python -m luminal_lab demo",
    )


def test_a_full_report(report):
    html = to_html(report)
    shown = check_html(html.removeprefix("<!DOCTYPE html>"))
    assert "2.10×" in shown
    assert "1 of 2" in shown
    assert "✗ wrong" in shown
    assert "Nearest sentences: 1 of 2" in shown
    for section in ("Times", "Checks", "Stages", "Derivation", "Kernels", "Profile"):
        assert f'id="{section.lower()}"' in html
        assert f'href="#{section.lower()}"' in html


def test_a_report_of_nothing():
    check_html(to_html(Report("empty")).removeprefix("<!DOCTYPE html>"))


def test_it_is_written_whole_or_not_at_all(tmp_path, report):
    path = write_report(tmp_path / "r.html", report)
    assert path.read_text("utf8").startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path) == ["r.html"]
    with pytest.raises(LuminalError, match="cannot write"):
        write_report(tmp_path / "missing" / "r.html", report)


def test_a_failed_write_leaves_the_old_report(tmp_path, report, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("luminal_lab.files.os.replace", fail)
    with pytest.raises(LuminalError, match="disk full"):
        write_report(path, report)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.html"]
