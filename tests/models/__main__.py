"""Run whole models through `torch.compile(backend="luminal_lab")`, against eager PyTorch.

    python -m tests.models --suite language --only 'Llama generate' --out FILE.jsonl
    python -m tests.models --table FILE.jsonl > tests/models/table.tsv

Each case runs in a child that may crash or hang, several at a time. Results are appended
to FILE as JSON lines; cases that FILE has are not run again, except those of `--again
OUTCOME,...`.
Nothing is downloaded: weights are random. The suite `vision` needs `timm` and `pillow`, which
`make models` installs without what they ask for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LUMINAL_MACHINE", str(Path(__file__).parents[1] / "machine.json"))

from tests.models.cases import cases, suites
from tests.models.pool import run_all
from tests.models.table import KEY, summary, table
from tests.rows import append, read


def main(argv: list[str] | None = None) -> int:
    """The command line; exit status 1 when there is a wrong answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.models")
    parser.add_argument("--suite", default="all", choices=("all", *suites()))
    parser.add_argument("--only", default="", help="a pattern for 'model mode dtype'")
    parser.add_argument("--seconds", type=float, default=300, help="bound per case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON lines, appended to")
    parser.add_argument("--again", default="", help="outcomes to run again")
    parser.add_argument("--table", nargs="+", type=Path, help="print the table of these files")
    given = parser.parse_args(argv)
    if given.table:
        print(table([row for path in given.table for row in read(path, KEY).values()]))
        return 0
    known = read(given.out, KEY) if given.out else {}
    again = set(given.again.split(",")) if given.again else set()
    todo = [
        case
        for case in cases(given.suite, given.only)
        if (row := known.get(case.key)) is None or row["outcome"] in again
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="luminal-models-") as cache:
        os.environ.setdefault("LUMINAL_CACHE", cache)
        for number, row in enumerate(run_all(todo, given.seconds, given.jobs), 1):
            rows.append(row)
            if given.out:
                append(given.out, row)
            note = row["text"] or ", ".join(row["fallbacks"])
            print(
                f"{number}/{len(todo)} {row['model']} {row['mode']} {row['dtype']}"
                f" {row['outcome']} error {row['error']:.2g} compiles {row['compiles']}"
                f" {row['seconds']:.1f}s {note[:200]}",
                flush=True,
            )
    print(summary(rows))
    return int(any(row["outcome"] == "WRONG" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
