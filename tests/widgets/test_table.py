"""The table: sorting, filtering, pinning and selecting, by mouse and by keyboard."""

from __future__ import annotations

import math
from typing import Any

import pytest

from luminal_lab.widgets import TableView, column

ROWS = [
    {"key": "a", "name": "softmax", "time": 3e-3},
    {"key": "b", "name": "gelu", "time": 1e-6},
    {"key": "c", "name": "matmul <b>", "time": math.nan},
]


@pytest.fixture
def table() -> TableView:
    return TableView(
        "kernels", [column("name", "name"), column("time", "time", unit="s")], ROWS
    )


def names(page: Any) -> list[str]:
    return page.locator("tbody tr td:nth-child(2)").all_inner_texts()


def test_numbers_that_json_cannot_hold_are_unknown(table: TableView) -> None:
    assert table.rows[2]["time"] is None
    assert repr(table) == "TableView(kernels: 3 rows)"


def test_other_rows_keep_what_still_exists(table: TableView) -> None:
    table.selected, table.pinned = "a", ["a", "b"]
    table.show(ROWS[1:])
    assert table.selected == ""
    assert table.pinned == ["b"]


def test_sorted_with_the_unknown_last(show: Any, table: TableView) -> None:
    page = show(table)
    page.click("th:has-text('time') button")
    assert names(page) == ["gelu", "softmax", "matmul <b>"]
    assert "1 µs" in page.inner_text("tbody tr:first-child")
    page.click("th:has-text('time') button")
    assert names(page) == ["softmax", "gelu", "matmul <b>"]
    assert page.get_attribute("th:has-text('time')", "aria-sort") == "descending"


def test_filter_and_pin(show: Any, table: TableView) -> None:
    page = show(table)
    page.click("[data-key=c] button")
    assert names(page)[0] == "matmul <b>"
    page.fill("input", "gelu")
    assert names(page) == ["gelu"]
    assert page.inner_text(".note") == "1 of 3 rows"


def test_the_keyboard_selects(show: Any, table: TableView) -> None:
    page = show(table)
    page.focus(".rows")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("model.get('selected')") == "b"
    page.keyboard.press("p")
    assert page.evaluate("model.get('pinned')") == ["b"]
    page.keyboard.press("/")
    page.keyboard.type("soft")
    assert names(page) == ["softmax"]


def test_rows_that_belong_to_a_selection_elsewhere_are_marked(show: Any) -> None:
    rows = [{"key": str(n), "name": f"row {n}"} for n in range(60)]
    page = show(TableView("kernels", [column("name", "name")], rows, height=160))
    page.evaluate("model.set('marked', ['40', '41'])")
    assert page.locator("tr.linked").all_inner_texts() == ["☆\trow 40", "☆\trow 41"]
    assert page.evaluate("document.querySelector('.rows').scrollTop") > 0
    page.fill("input", "41")
    assert page.locator("tr.linked").count() == 1


def test_no_serious_accessibility_violation(show: Any, table: TableView) -> None:
    axe = pytest.importorskip("axe_core_python.sync_playwright")
    found = axe.Axe().run(show(table))["violations"]
    assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")]
