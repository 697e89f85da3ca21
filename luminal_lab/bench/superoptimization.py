"""`python -m luminal_lab.bench tensat`: seven models, with and without algebra.

For each model of `luminal_lab.bench.tensat`: how long saturation and search take without any
measurement, and how fast the candidate is that they find, against

- **no algebra**: the same pipeline with those rules alone that say where a value is computed,
  stored and how it lies, never how it is computed: fusion, library products, and layouts
  (`rules/fusion.egg`, `gemm.egg`, `layout.egg`). Everything else is algebra: laws of sums and
  products, of choices, casts, reductions, online reductions, products that share an operand,
  and convolutions by fewer multiplications. Computing ahead of time what depends on weights
  alone belongs to the pipeline, and helps both.
- **no laws**: the same without layouts, so that tensors lie row-major. This is how much the
  laws of the e-graph give in all, algebra or not.
- **torch.compile** with its defaults, and **eager** PyTorch.

Each model runs in a process of its own, with a bound on its time. Within it all contestants are
timed in turns, in random order (`timing.compare`); a ratio is the median of the ratios of the
rounds, with its quartiles. Results are checked against float64 after the timing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from luminal_lab.bench.one_model import add_options
from luminal_lab.errors import LuminalError

BAR = 5.0  # seconds for saturation and search
OVER = {"plain": "no algebra", "rows": "no laws", "inductor": "torch.compile", "eager": "eager"}
NEEDED = ("plain", "inductor")  # whom to be faster than
BEGIN, END = "<!-- tensat: begin -->", "<!-- tensat: end -->"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast: the median over the rounds, and its quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """One model.

    Arguments:
        name: The model.
        data: What its process wrote (see `one_model`); perhaps not all of it.
        failure: Why it is not complete, empty when it is.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def search(self) -> float | None:
        """Seconds of saturation and search, without measurements."""
        ours = self.data.get("luminal")
        return ours and ours["saturate_s"] + ours["search_s"]

    def ratio(self, over: str) -> Ratio | None:
        """How many times as fast as a contestant we are."""
        samples = self.data.get("seconds", {})
        if over not in samples or "luminal" not in samples:
            return None
        rounds = [a / b for a, b in zip(samples[over], samples["luminal"], strict=True)]
        low, _, high = quantiles(rounds, n=4, method="inclusive")
        return Ratio(median(rounds), low, high)

    @property
    def missed(self) -> list[str]:
        """What keeps the row from reaching its bars."""
        if self.failure:
            return [self.failure]
        out = []
        if self.search is None or self.search >= BAR:
            out.append(f"search {self.search or math.inf:.1f} s")
        for over in NEEDED:
            ratio = self.ratio(over)
            if ratio is None:
                out.append(f"{OVER[over]} took too long")
            elif ratio.median <= 1.0:
                out.append(f"over {OVER[over]} {ratio.median:.3f}x")
        error = self.data["error"]
        if not error["luminal"] <= max(1e-4, 4 * error["eager"]):
            out.append(f"error {error['luminal']:.1e}")
        return out


def run_model(name: str, options: argparse.Namespace) -> Row:
    """Run one model in a child and read what it found."""
    with tempfile.TemporaryDirectory(prefix="luminal-tensat-") as folder:
        file, log = Path(folder) / "row.json", Path(folder) / "log"
        command = [sys.executable, "-m", "luminal_lab.bench.one_model", name, str(file)]
        for key in ("effort", "search", "compile", "rounds", "seconds", "seed", "threads"):
            if (value := getattr(options, key)) is not None:
                command += [f"--{key}", str(value)]
        with log.open("w") as sink:
            # A group of its own, so that its compilers and workers end with it.
            child = subprocess.Popen(
                command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = child.wait(options.limit)
                failure = "" if code == 0 else f"ended with {code}: {_last_line(log)}"
            except subprocess.TimeoutExpired:
                failure = f"stopped after {options.limit:.0f} s"
            finally:
                _end(child)
        data = json.loads(file.read_text()) if file.exists() else {}
    if failure and data:
        failure = f"{failure} (at: {data['stage']})"
    return Row(name, data, failure)


def _end(child: subprocess.Popen) -> None:
    """End a child's whole group, which is ours alone."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, with the geometric means."""
    titles = ["model", "saturate + search", "e-nodes", "calls", "ours"]
    titles += [f"over {name}" for name in OVER.values()]
    titles += ["error (eager's)", "peak", "bars"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    means = [_mean(rows, name) for name in OVER]
    cells = ["geometric mean", *[""] * 4, *means, *[""] * 3]
    return "\n".join([*lines, "| " + " | ".join(cells) + " |"])


def _cells(row: Row) -> list[str]:
    ours, done = row.data.get("luminal"), "seconds" in row.data
    cells = [row.name]
    cells.append(f"{ours['saturate_s']:.2f} + {ours['search_s']:.2f} s" if ours else "–")
    cells += [f"{ours['e_nodes']:,}", str(ours["calls"])] if ours else ["–", "–"]
    cells.append(_time(row.data["seconds"]["luminal"]) if done else "–")
    cells += [str(row.ratio(name) or "–") for name in OVER]
    error = row.data["error"] if done else None
    cells.append(f"{error['luminal']:.1e} ({error['eager']:.1e})" if error else "–")
    built = (ours or {}).get("peak_mib")
    cells.append(f"{built:,.0f} MiB" if built else "–")
    cells.append("; ".join(row.missed) or "reached")
    return cells


def _time(samples: Sequence[float]) -> str:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return f"{median(samples) * 1e3:.2f} ms ±{(high - low) * 1e3:.2f}"


def _mean(rows: Sequence[Row], over: str) -> str:
    found = [r.median for row in rows if (r := row.ratio(over)) is not None]
    if not found:
        return "–"
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"{mean:.2f}x" + (f" of {len(found)}" if len(found) < len(rows) else "")


def context(options: argparse.Namespace) -> str:
    """On what, with what, and how busy the machine was."""
    import torch

    threads = options.threads or torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return (
        f"{_processor()}, {threads} threads; PyTorch {torch.__version__}, Python "
        f"{platform.python_version()}; effort `{options.effort}`, seed {options.seed}; load "
        f"{load:.1f} before the start; {time.strftime('%Y-%m-%d')}."
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def with_table(page: Path, text: str) -> str:
    """The text of a page, with a table between its two markers.

    Raises:
        LuminalError: there is no such page, or it has no markers.
    """
    old = page.read_text() if page.exists() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LuminalError(
            f"{page} has no place for the table",
            fix=f"put the lines {BEGIN} and {END} where it belongs",
        )
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="luminal-lab bench tensat",
        description="Models of the TENSAT paper against the same pipeline without algebra, "
        "torch.compile and eager PyTorch, each model in a process of its own.",
    )
    add = made.add_argument
    add("--models", default="", help="parts of model names, with commas between; all")
    add("--limit", type=float, default=240.0, help="seconds that one model may take in all")
    add("--out", type=Path, metavar="PAGE", help="a Markdown page that takes the table")
    add("--json", type=Path, metavar="FILE", help="also write every sample here")
    add_options(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; 1 when a bar is missed, 2 for a page without a place for the table.

    Arguments:
        arguments: The command line, after `tensat`.
    """
    from luminal_lab.bench.tensat import names

    options = parser().parse_args(arguments)
    wanted = names([w for w in options.models.split(",") if w])
    try:
        if options.out:
            with_table(options.out, "")
    except LuminalError as error:
        print(error, file=sys.stderr)
        return 2
    said, rows = context(options), list[Row]()
    for name in wanted:
        rows.append(run_model(name, options))
        print(table(rows[-1:]).splitlines()[2], flush=True)
        if options.json:
            options.json.write_text(json.dumps(report(said, rows), indent=1))
    text = f"{table(rows)}\n\n{said}"
    print("\n" + text, flush=True)
    if options.out:
        options.out.write_text(with_table(options.out, text))
    return 1 if any(row.missed for row in rows) else 0


def report(said: str, rows: Sequence[Row]) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "context": said,
        "rows": [
            {"model": r.name, "failure": r.failure, "missed": r.missed, **r.data} for r in rows
        ],
    }
