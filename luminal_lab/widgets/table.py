"""A table of plain rows that sorts, filters, pins and selects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from luminal_lab.widgets import assets


def column(
    key: str, label: str, *, unit: str = "", number: bool = False, code: bool = False
) -> dict[str, Any]:
    """A column of a `TableView`.

    Arguments:
        key: In the rows.
        label: Its title.
        unit: `"s"`, `"B"` or `"FLOP"` for numbers that are spelled with a prefix.
        number: Whether it is right-aligned.
        code: Whether it is monospaced.
    """
    return {"key": key, "label": label, "unit": unit, "number": number, "code": code}


class TableView(anywidget.AnyWidget):
    """Rows of plain data.

    Traits:
        label: What it lists, for screen readers.
        columns: Made by `column`.
        rows: Dicts with a unique text `"key"`; None shows as a dash. `"<column>_tone"` may be
            `"good"`, `"bad"` or `"muted"`.
        selected: The key of the selected row, `""` for none.
        marked: Keys of rows that belong to what is selected elsewhere; the first is shown.
        pinned: Keys of rows that stay on top.
        height: At most, in px.

    >>> from luminal_lab.widgets import TableView, column
    >>> TableView("kernels", [column("name", "name")], [{"key": "0", "name": "softmax"}])
    TableView(kernels: 1 row)
    """

    _esm = assets.script("dom.js", "table.js")
    _css = assets.css("table.css")

    label = traitlets.Unicode("").tag(sync=True)
    columns = traitlets.List().tag(sync=True)
    rows = traitlets.List().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    marked = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pinned = traitlets.List(traitlets.Unicode()).tag(sync=True)
    height = traitlets.Int(320).tag(sync=True)

    def __init__(
        self,
        label: str,
        columns: Sequence[Mapping[str, Any]],
        rows: Sequence[Mapping[str, Any]] = (),
        **traits: Any,
    ):
        """Show rows."""
        super().__init__(label=label, columns=list(columns), rows=plain(rows), **traits)

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show other rows; selection and pins stay where the keys still exist."""
        keys = {r["key"] for r in rows}
        self.rows = plain(rows)
        if self.selected not in keys:
            self.selected = ""
        self.pinned = [k for k in self.pinned if k in keys]

    def __repr__(self) -> str:
        n = len(self.rows)
        return f"TableView({self.label}: {n} row{'' if n == 1 else 's'})"


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as JSON can hold them: NaN and infinities become None."""
    return [
        {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in row.items()
        }
        for row in rows
    ]
