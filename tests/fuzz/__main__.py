"""Compile random programs and compare them with eager PyTorch.

    python -m tests.fuzz --seeds 0:500 --jobs 2
    python -m tests.fuzz --seeds 662 --show

Programs that are not right are printed, without the lines that do not matter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LUMINAL_MACHINE", str(Path(__file__).parents[1] / "machine.json"))

from tqdm import tqdm

from tests.fuzz.check import OUTCOMES
from tests.fuzz.pool import FINE, run_all, source
from tests.fuzz.programs import program


def main(argv: list[str] | None = None) -> int:
    """The command line; exit status 1 when a program is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seeds", default="0:200", help="FIRST:END, or one seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="bound per program")
    parser.add_argument("--effort", default="none", choices=("none", "quick", "full"))
    parser.add_argument("--show", action="store_true", help="print each program")
    given = parser.parse_args(argv)
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    counts: Counter[str] = Counter()
    rows = run_all(seeds, given.jobs, given.seconds, given.effort)
    for seed, outcome, text in tqdm(rows, total=len(seeds), unit=" programs", disable=None):
        counts[outcome] += 1
        if given.show or outcome not in FINE:
            shown = text if outcome not in FINE else source(program(seed))
            tqdm.write(f"seed {seed}: {outcome}\n{shown}\n")
    print(", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o]))
    return int(any(counts[o] for o in OUTCOMES if o not in FINE))


if __name__ == "__main__":
    sys.exit(main())
