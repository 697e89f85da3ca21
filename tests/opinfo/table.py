"""What a row of results is known by, counts, and the table that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.rows import Row

KEY = ("op", "variant", "dtype", "level")


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
