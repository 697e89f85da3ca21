"""`python -m luminal_lab.bench [suite or workload ...] [--json out]`, or `… bench search`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from luminal_lab.bench.runner import PEERS, run_workload
from luminal_lab.bench.timing import Comparison
from luminal_lab.bench.workloads import SUITES, WORKLOADS, Workload
from luminal_lab.errors import LuminalError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="luminal-lab bench",
        description="Time workloads against eager PyTorch and torch.compile, in one process.",
        epilog="Instead of suites: `tensat`, whole models (`tensat --help`); `distributed`, "
        "one dask worker against two. Workloads: "
        + "; ".join(f"{w.name} ({w.suite})" for w in WORKLOADS),
    )
    made.add_argument(
        "what",
        nargs="*",
        help=f"suites ({', '.join(SUITES)}) or parts of workload names; all; `search` judges "
        "the search against exhaustive truth, on its graphs or on those named after it; "
        "`saturation` takes Llama layers through the e-graph",
    )
    made.add_argument(
        "--database", metavar="FILE", help="for `search`: where to keep measurements"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="also write every sample here")
    made.add_argument("--peers", default=",".join(PEERS), help="who takes part (%(default)s)")
    made.add_argument("--effort", default="quick", choices=["none", "quick", "full"])
    made.add_argument("--seconds", type=float, help="of our search per workload")
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--threads", type=int, help="threads for everybody (default: PyTorch's)")
    return made


def chosen(names: Sequence[str]) -> tuple[Workload, ...]:
    """The workloads of some suites, or whose names contain some texts; all for none.

    Raises:
        LuminalError: for a name that fits nothing.
    """
    out: dict[str, Workload] = {}
    for name in names or SUITES:
        fit = [w for w in WORKLOADS if name == w.suite or name.lower() in w.name.lower()]
        if not fit:
            raise LuminalError(
                f"no suite or workload is called {name!r}",
                fix=f"suites: {', '.join(SUITES)}; workloads: "
                + ", ".join(w.name for w in WORKLOADS),
            )
        out |= {w.name: w for w in fit}
    return tuple(out.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 when a result is wrong or not credible, 2 for bad arguments.

    Arguments:
        arguments: The command line, without the program's name.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "tensat":
        from luminal_lab.bench.superoptimization import main as tensat

        return tensat(arguments[1:])
    options = parser().parse_args(arguments)
    if options.what[:1] == ["search"]:
        from luminal_lab.bench.quality import run

        return 0 if run(options.what[1:], options.database)["ok"] else 1
    if options.what == ["saturation"]:
        return _saturation(options.json)
    if options.what == ["distributed"]:
        return _distributed()
    try:
        workloads = chosen(options.what)
    except LuminalError as error:
        print(error, file=sys.stderr)
        return 2
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    done: list[Comparison] = []
    failed = 0
    for workload in workloads:
        try:
            made = run_workload(
                workload,
                peers=options.peers.split(","),
                effort=options.effort,
                seconds=options.seconds,
                rounds=options.rounds,
                seed=options.seed,
            )
        except LuminalError as error:
            failed += 1
            print(f"{workload.name}: {error}", file=sys.stderr)
            continue
        print(made.text(), flush=True)
        done.append(made)
    if options.json:
        options.json.write_text(json.dumps(report(done), indent=1))
    return 1 if failed or any(c.wrong or c.not_credible for c in done) else 0


def _saturation(file: Path | None) -> int:
    from dataclasses import asdict

    from luminal_lab.bench import saturation

    rows = saturation.main()
    if file:
        file.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return 0


def _distributed() -> int:
    from luminal_lab.bench.distributed import report as compare_workers

    try:
        text, reached = compare_workers()
    except LuminalError as error:
        print(error, file=sys.stderr)
        return 2
    print(text)
    return 0 if reached else 1


def report(done: Sequence[Comparison]) -> dict[str, object]:
    """What `--json` writes: the machine, and every sample."""
    from dataclasses import asdict

    import torch

    from luminal_lab.runtime.cpu import CpuTarget

    target = CpuTarget()
    return {
        "machine": asdict(target.machine()),
        "fingerprint": target.fingerprint(),
        "torch": torch.__version__,
        "comparisons": [
            {
                "workload": c.workload,
                "rows": c.rows(),
                "seconds": {x.name: x.seconds for x in c.contestants},
                "missed": c.missed(),
            }
            for c in done
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
