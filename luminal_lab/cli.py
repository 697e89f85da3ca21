"""The command line: one subcommand a stage, each printing what the stage object prints.

A program is named `FILE.py:NAME` or `package.module:NAME`. NAME is a function without
parameters that returns `(module_or_function, args)`; it is imported and called, so it runs with
the user's rights. A stage file that an earlier command saved is accepted as well.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from luminal_lab.errors import LuminalError

STRATEGIES = ("annealing", "beam", "descent", "exhaustive", "genetic", "sampling")
EXAMPLE = """\
example:
  luminal-lab capture examples.py:attention -o attention.hlir
  luminal-lab saturate attention.hlir -o attention.egraph
  luminal-lab search attention.egraph --effort quick --seconds 30 -o best.candidate
  luminal-lab source best.candidate --language triton
  luminal-lab profile best.candidate
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 on success, 1 when a result is wrong, 2 on bad input, 130 after Ctrl-C.
    """
    options = _parser().parse_args(argv)
    try:
        return options.run(options) or 0
    except LuminalError as error:
        print(f"luminal-lab: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("luminal-lab: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="luminal-lab",
        description="Search-based deep-learning compilation that you can see and steer.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int | None], text: str):
        out = sub.add_parser(name, help=text, description=text)
        out.set_defaults(run=run)
        return out

    demo = command("demo", _demo, "compile all-MiniLM-L6-v2, check it, time it, write a report")
    demo.add_argument("--report", default="demo-report.html", metavar="FILE")
    demo.add_argument("--seconds", type=float, default=60.0, help="budget of each search")
    demo.add_argument("--effort", choices=("none", "quick", "full"), default="quick")

    _program(command("capture", _capture, "PyTorch program -> Hlir"))
    saturate = _program(command("saturate", _saturate, "Hlir -> EGraph, with rule counts"))
    search = _program(command("search", _search, "EGraph -> candidates, the best one first"))
    for p in (saturate, search):
        p.add_argument("--rules", action="append", metavar="FILE.egg", help="add these rules")
    source = _program(command("source", _source, "the kernels' sources of the best candidate"))
    source.add_argument("--language", choices=("c", "triton", "metal"), default="c")
    source.add_argument("--kernel", type=int, help="only this kernel (default: all)")
    profile = _program(command("profile", _profile, "build the best candidate, time it"))
    for p in (search, source, profile):
        p.add_argument("--effort", choices=("none", "quick", "full"), default="quick")
        p.add_argument("--seconds", type=float, help="budget in seconds")
        p.add_argument("--seed", type=int, default=0)
        p.add_argument("--strategy", default="genetic", help=f"one of {', '.join(STRATEGIES)}")
        p.add_argument("--candidates", type=int, help="how many candidates to list")
        p.add_argument("--memory", type=int, help="bytes of temporaries at once, at most")
        p.add_argument(
            "--verify",
            action="store_true",
            help="verify what is chosen, with --effort none too",
        )
        p.add_argument(
            "--replay", metavar="FILE", help="rebuild the candidates of this saved result"
        )

    command("rules", _rules, "the rules, with their laws and tolerance classes")
    command("doctor", _doctor, "what this machine has: compiler, threads, bandwidth, cache")
    rates = command("calibrate", _calibrate, "measure this machine's rates again")
    rates.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="save them, for $LUMINAL_MACHINE on this or others",
    )
    bench = command("bench", _bench, "time workloads against eager PyTorch and torch.compile")
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _program(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("program", help="FILE.py:NAME, package.module:NAME, or a saved stage")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the stage object")
    return parser


def _load_program(spec: str) -> tuple[Any, tuple[Any, ...]]:
    place, _, name = spec.rpartition(":")
    if not place:
        raise LuminalError(
            f"{spec!r} names no program", fix="FILE.py:NAME, package.module:NAME, or a file"
        )
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise LuminalError(f"there is no file {place}")
        module_spec = importlib.util.spec_from_file_location("luminal_lab_user_program", path)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise LuminalError(f"cannot import {place}: {error}") from error
    make = getattr(module, name, None)
    if not callable(make):
        raise LuminalError(f"{place} has no function {name}")
    program = make()
    if not (isinstance(program, tuple) and len(program) == 2):
        raise LuminalError(f"{spec} must return (module_or_function, args)")
    return program[0], tuple(program[1])


def _stage(options: argparse.Namespace, until: str) -> Any:
    """The stage object `until` ("hlir", "egraph", "result" or "candidate") of the program."""
    import luminal_lab as ll

    kind = "program"
    stage: Any = None
    if Path(options.program).is_file():
        stage = ll.load(options.program)
        kind = type(stage).__name__.lower()
    order = ["program", "hlir", "egraph", "result", "candidate"]
    if kind not in order or order.index(kind) > order.index(until):
        raise LuminalError(f"{options.program} holds a {kind}, which cannot become a {until}")
    while kind != until:
        if kind == "program":
            stage = ll.capture(*_load_program(options.program))
        elif kind == "hlir":
            rules = [Path(p) for p in getattr(options, "rules", None) or []]
            stage = ll.saturate(stage, rules=rules or None, progress=True)
        elif kind == "egraph":
            budget = ll.Budget(
                options.effort,
                options.seconds,
                options.candidates,
                options.memory,
                options.verify,
            )
            stage = ll.search(
                stage,
                budget,
                seed=options.seed,
                progress=True,
                strategy=options.strategy,
                replay=options.replay,
            )
        else:
            stage = stage.best
        kind = order[order.index(kind) + 1]
    return stage


def _show(stage: Any, options: argparse.Namespace) -> None:
    print(stage)
    if options.output:
        stage.save(options.output)
        print(f"saved to {options.output}")


def _demo(options: argparse.Namespace) -> int:
    from luminal_lab.demo.main import run

    return run(report=options.report, effort=options.effort, seconds=options.seconds)


def _capture(options: argparse.Namespace) -> None:
    hlir = _stage(options, "hlir")
    _show(hlir, options)
    fallbacks = hlir.fallbacks()
    if len(fallbacks):
        print(fallbacks.to_string())


def _saturate(options: argparse.Namespace) -> None:
    egraph = _stage(options, "egraph")
    _show(egraph, options)
    table = egraph.table()
    print(table[table.matches > 0].to_string(index=False))


def _search(options: argparse.Namespace) -> None:
    result = _stage(options, "result")
    print(result.table().head(16).to_string(index=False))
    if result.finalists:
        print(result.final_table().to_string(index=False))
    _show(result, options)


def _source(options: argparse.Namespace) -> None:
    kernels = _stage(options, "candidate").kernels
    chosen = range(len(kernels)) if options.kernel is None else [options.kernel]
    for i in chosen:
        if not 0 <= i < len(kernels):
            raise LuminalError(f"there is no kernel {i}: the candidate has {len(kernels)}")
        print(kernels[i].source(options.language))


def _profile(options: argparse.Namespace) -> None:
    import luminal_lab as ll

    candidate = _stage(options, "candidate")
    exe = ll.build(candidate, progress=True)
    args, kwargs = exe.example_inputs(options.seed)
    profile = ll.profile(exe, args, kwargs=kwargs)
    print(profile.table().to_string())
    _show(profile, options)


def _rules(_: argparse.Namespace) -> None:
    from luminal_lab.egraph import rule_catalogue

    for rule in rule_catalogue():
        print(f"{rule.name:32} {rule.tolerance:13} {rule.law}")


def _doctor(_: argparse.Namespace) -> None:
    from luminal_lab.runtime.report import doctor

    print(doctor())


def _calibrate(options: argparse.Namespace) -> None:
    from luminal_lab.runtime.calibration import calibration

    made = calibration(fresh=True)
    print(made)
    if options.output:
        made.machine.save(options.output)


def _bench(options: argparse.Namespace) -> int:
    from luminal_lab.bench.__main__ import main as bench

    return bench(options.arguments)
