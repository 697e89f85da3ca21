"""What a row of results is known by, counts, and the table that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.rows import Row

KEY = ("suite", "model", "mode", "dtype")
COLUMNS = (*KEY, "outcome", "error", "compiles", "fallbacks", "seconds", "text")


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
