"""Results of long suites: JSON lines while they run, a table that is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Key = tuple[str, ...]


def read(path: Path, key: Sequence[str]) -> dict[Key, Row]:
    """The last row of each case; `key` names the fields that tell cases apart."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    return {tuple(r[k] for k in key): r for r in rows}


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_table(path: Path, key: Sequence[str]) -> dict[Key, dict[str, str]]:
    """The rows of a printed table, by case; lines that begin with `#` are about it."""
    lines = [x for x in path.read_text().splitlines() if x and not x.startswith("#")]
    names, *rows = (line.split("\t") for line in lines)
    each = (dict(zip(names, row)) for row in rows)
    return {tuple(r[k] for k in key): r for r in each}
