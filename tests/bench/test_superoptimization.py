"""The table of whole models: what is made of the figures, and children that do not end."""

import argparse
import json
import time

import pytest

from luminal_lab.bench.one_model import OutOfTime, Record, add_options, at_most, laws
from luminal_lab.bench.superoptimization import (
    BEGIN,
    END,
    Row,
    main,
    parser,
    report,
    run_model,
    table,
    with_table,
)
from luminal_lab.errors import LuminalError

SECONDS = {
    "eager": [4.0, 4.0, 8.0, 4.0],
    "inductor": [2.0, 3.0, 4.0, 2.0],
    "rows": [2.0, 2.0, 4.0, 2.0],
    "plain": [1.1, 1.2, 2.2, 1.1],
    "luminal": [1.0, 1.0, 2.0, 1.0],
}
OURS = {
    "saturate_s": 0.5, "search_s": 1.5, "e_nodes": 1234, "calls": 7, "peak_mib": 512.0,
    "build_s": 1.0,
}  # fmt: skip


def row(**changes):
    data = {
        "stage": "done",
        "luminal": OURS,
        "seconds": SECONDS,
        "error": dict.fromkeys(SECONDS, 1e-6),
    }
    return Row("Model", data | changes)


def test_ratios_are_of_rounds_and_not_of_medians():
    ratio = row().ratio("plain")
    assert ratio is not None
    assert ratio.median == pytest.approx(1.1)
    assert ratio.low <= ratio.median <= ratio.high
    assert row().ratio("nobody") is None


def test_a_row_that_reaches_its_bars():
    assert row().missed == []
    assert row().search == 2.0
    assert "reached" in table([row()]).splitlines()[2]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"luminal": OURS | {"search_s": 6.0}}, "search 6.5 s"),
        ({"seconds": SECONDS | {"plain": SECONDS["luminal"]}}, "over no algebra 1.000x"),
        ({"seconds": {n: s for n, s in SECONDS.items() if n != "inductor"}}, "too long"),
        ({"error": {n: 1e-3 if n == "luminal" else 1e-6 for n in SECONDS}}, "error 1.0e-03"),
    ],
)
def test_what_is_missed_is_said(changes, word):
    assert any(word in m for m in row(**changes).missed)


def test_the_table_has_rows_that_did_not_finish():
    rows = [row(), Row("Other", {"stage": "capture"}, "stopped after 9 s (at: capture)")]
    lines = table(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "stopped after 9 s" in lines[3]
    assert "1.10x of 1" in lines[4]
    assert json.loads(json.dumps(report("said", rows)))["rows"][1]["failure"]


def test_a_page_takes_the_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert with_table(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("nothing\n")
    with pytest.raises(LuminalError, match="no place"):
        with_table(page, "new")
    assert main(["--out", str(page)]) == 2  # before anything is run


def test_a_stage_is_ended(tmp_path):
    with pytest.raises(OutOfTime), at_most(0.05):
        time.sleep(5)
    record = Record(tmp_path / "row.json")
    record.stage("capture")
    assert json.loads((tmp_path / "row.json").read_text())["stage"] == "capture"


def test_a_child_is_ended():
    options = parser().parse_args(["--limit", "0.2"])
    found = run_model("SqueezeNet", options)
    assert found.failure.startswith("stopped after 0 s")
    assert found.missed


def test_laws_and_options():
    assert laws(("fusion",))["limits"].themes == ("fusion",)
    made = argparse.ArgumentParser()
    add_options(made)
    assert made.parse_args([]).effort == "none"
    with pytest.raises(SystemExit):
        main(["--effort", "enormous"])
