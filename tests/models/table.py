"""Results as JSON lines, and the table that is committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
KEY = ("suite", "model", "mode", "dtype")
COLUMNS = (*KEY, "outcome", "error", "compiles", "fallbacks", "seconds", "text")


def read(path: Path) -> dict[tuple[str, ...], Row]:
    """The last row of each case."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    return {tuple(r[k] for k in KEY): r for r in rows}


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def summary(rows: Iterable[Row]) -> str:
    """Counts by suite."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["suite"], []).append(row)
    lines = []
    for suite, group in sorted(groups.items()):
        counts = Counter(row["outcome"] for row in group)
        said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        models = len({row["model"] for row in group if row["outcome"] == "right"})
        native = sum(row["outcome"] == "right" and not row["fallbacks"] for row in group)
        lines.append(
            f"{suite}: {len(group)} cases: {said}; {models} models right;"
            f" {native} cases without a call of ATen"
        )
    return "\n".join(lines)


def read_table(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a printed table, by case."""
    lines = [x for x in path.read_text().splitlines() if x and not x.startswith("#")]
    names, *rows = (line.split("\t") for line in lines)
    each = (dict(zip(names, row)) for row in rows)
    return {tuple(r[k] for k in KEY): r for r in each}


def table(rows: list[Row]) -> str:
    """Tab-separated, one line a case, with counts in front."""
    lines = [f"# {line}" for line in summary(rows).splitlines()]
    lines.append("\t".join(COLUMNS))
    for row in sorted(rows, key=lambda r: tuple(r[k] for k in KEY)):
        said = {
            **row,
            "error": f"{row['error']:.2g}",
            "fallbacks": ", ".join(row["fallbacks"]),
            "seconds": f"{row['seconds']:.0f}",
        }
        lines.append("\t".join(str(said[k]) for k in COLUMNS).rstrip())
    return "\n".join(lines)
