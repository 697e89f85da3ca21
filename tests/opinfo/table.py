"""Results as JSON lines, and the table that is committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> dict[tuple[str, ...], Row]:
    """The last row of each case and level."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    return {(r["op"], r["variant"], r["dtype"], r["level"]): r for r in rows}


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def summary(rows: Iterable[Row]) -> str:
    """Counts by level and dtype."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["level"], row["dtype"]), []).append(row)
    lines = []
    for (level, dtype), group in groups.items():
        counts = Counter(row["outcome"] for row in group)
        native = sum(is_native(row) for row in group)
        said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        samples = sum(row["samples"] for row in group)
        lines.append(
            f"{level} {dtype}: {len(group)} operators, {samples} samples: {said}"
            + ("" if level == "compiled" else f"; {native} native")
        )
    return "\n".join(lines)


def is_native(row: Row) -> bool:
    """Right in all samples, without a call of ATen; `compiled` does not tell."""
    return row["level"] != "compiled" and row["outcome"] == "right" and not row["fallbacks"]


def read_table(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a printed table, by case and level."""
    lines = [x for x in path.read_text().splitlines() if x and not x.startswith("#")]
    names, *rows = (line.split("\t") for line in lines)
    each = (dict(zip(names, row)) for row in rows)
    return {(r["op"], r["variant"], r["dtype"], r["level"]): r for r in each}


def table(rows: list[Row]) -> str:
    """Tab-separated, one line a case, with counts in front."""
    lines = [f"# {line}" for line in summary(rows).splitlines()]
    lines.append("op\tvariant\tdtype\tlevel\tsamples\toutcome\tnative")
    for row in sorted(rows, key=lambda r: (r["level"], r["dtype"], r["op"], r["variant"])):
        said = "native" if not row["fallbacks"] else ", ".join(sorted(row["fallbacks"]))
        if not is_native(row) and not row["fallbacks"]:
            said = ""
        fields = [row[k] for k in ("op", "variant", "dtype", "level", "samples", "outcome")]
        lines.append("\t".join(str(f) for f in (*fields, said)))
    return "\n".join(lines)
