"""Two texts side by side, with what differs marked by sign and colour."""

from __future__ import annotations

from difflib import SequenceMatcher

from luminal_lab.views.html import Html, el, fragment, scroll

_CONTEXT = 3  # equal lines that stay around a difference
_MAX_LINES = 600


def side_by_side(left: str, right: str, left_name: str, right_name: str) -> Html:
    """A table of two columns; long runs of equal lines are folded into one row."""
    a, b = left.splitlines(), right.splitlines()
    rows: list[Html] = []
    for kind, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal" and j - i > 2 * _CONTEXT + 1:
            rows += [_row(a[n], b[k + n - i]) for n in range(i, i + _CONTEXT)]
            rows.append(_row(f"… {j - i - 2 * _CONTEXT} equal lines", "…", css="muted"))
            rows += [_row(a[n], b[k + n - i]) for n in range(j - _CONTEXT, j)]
        elif kind == "equal":
            rows += [_row(a[n], b[k + n - i]) for n in range(i, j)]
        else:
            for n in range(max(j - i, m - k)):
                rows.append(
                    _row(
                        a[i + n] if i + n < j else None,
                        b[k + n] if k + n < m else None,
                        marks=("del", "add"),
                    )
                )
    if len(rows) > _MAX_LINES:
        more = f"… {len(rows) - _MAX_LINES} more lines"
        rows = [*rows[:_MAX_LINES], _row(more, "", css="muted")]
    head = el("thead", el("tr", el("th", left_name, scope="col"),
                          el("th", right_name, scope="col")))  # fmt: skip
    return scroll(el("table", head, el("tbody", rows)), label="differences", tall=True)


def _row(
    left: str | None, right: str | None, marks: tuple[str, str] | None = None, css: str = ""
) -> Html:
    cells = []
    for side, value in enumerate((left, right)):
        sign, name = "", css
        if marks and value is not None:
            sign, name = ("− ", "+ ")[side], marks[side]
        cells.append(el("td", f"{sign}{value}" if value is not None else "",
                        class_=f"code {name}".strip()))  # fmt: skip
    return el("tr", cells)


def to_html(left: str, right: str, left_name: str = "this", right_name: str = "other") -> str:
    """`side_by_side` as a piece of a notebook."""
    return fragment(side_by_side(left, right, left_name, right_name))
