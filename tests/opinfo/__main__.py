"""Run operators of OpInfo through this compiler and compare with eager PyTorch.

    python -m tests.opinfo --dtypes float32 --ops 'add|softmax' --level lower --out FILE.jsonl
    python -m tests.opinfo --table FILE.jsonl ... > table

`--suite modules` takes ModuleInfo's modules, `--suite exportdb` the examples of `torch.export`.

Levels: `lower` interprets the graph that AOTAutograd gives the backend, `capture` interprets
`ll.capture`, `compiled` runs `torch.compile(backend="luminal_lab")` without search. Each case
runs in a child that may crash or hang. Results are appended to FILE as JSON lines; cases that
FILE has are not run again, except those of `--again OUTCOME,...`. `table.tsv` is the committed
table of what was run; the suite holds a part of the operators to it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.opinfo.cases import cases
from tests.opinfo.check import LEVELS
from tests.opinfo.modules import example_cases, module_cases
from tests.opinfo.pool import run_all
from tests.opinfo.table import KEY, summary, table
from tests.rows import append, read


def main(argv: list[str] | None = None) -> int:
    """The command line; exit status 1 when there is a wrong answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument("--suite", default="ops", choices=("ops", "modules", "exportdb"))
    parser.add_argument("--dtypes", default="float32", help="names, or 'all'")
    parser.add_argument("--ops", default="", help="a regular expression for whole names")
    parser.add_argument("--part", default="1/1", help="k/n: every n-th case, from the k-th")
    parser.add_argument("--level", default="lower", choices=LEVELS)
    parser.add_argument("--samples", type=int, default=0, help="at most so many; 0: all")
    parser.add_argument("--seconds", type=float, default=60, help="bound per sample")
    parser.add_argument("--out", type=Path, help="JSON lines, appended to")
    parser.add_argument("--again", default="", help="outcomes to run again")
    parser.add_argument("--budget", type=float, default=0, help="stop after so many seconds")
    parser.add_argument("--table", nargs="+", type=Path, help="print the table of these files")
    given = parser.parse_args(argv)
    if given.table:
        print(table([row for path in given.table for row in read(path, KEY).values()]))
        return 0
    part, parts = (int(x) for x in given.part.split("/"))
    dtypes = None if given.dtypes == "all" else given.dtypes.split(",")
    every = {
        "ops": lambda: cases(dtypes, given.ops),
        "modules": lambda: module_cases(dtypes, given.ops),
        "exportdb": lambda: example_cases(given.ops),
    }
    wanted = every[given.suite]()[part - 1 :: parts]
    known = read(given.out, KEY) if given.out else {}
    again = set(given.again.split(",")) if given.again else set()
    todo = [
        c
        for c in wanted
        if (row := known.get((*c.key, given.level))) is None or row["outcome"] in again
    ]
    rows = []
    for number, row in enumerate(
        run_all(todo, given.level, given.samples, given.seconds, given.budget), 1
    ):
        rows.append(row)
        if given.out:
            append(given.out, row)
        note = row["text"] if row["outcome"] != "right" else ", ".join(row["fallbacks"])
        name = f"{row['op']}:{row['variant']}" if row["variant"] else row["op"]
        print(
            f"{number}/{len(todo)} {name} {row['dtype']} {row['outcome']}"
            f" {row['seconds']:.1f}s {note[:160]}",
            flush=True,
        )
    print(summary(rows))
    return int(any(row["outcome"] == "WRONG" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
