"""Random programs in children that may crash or hang; their parent keeps the results.

Children are forked from a server that has imported everything and run nothing: the child of a
process whose OpenMP threads have worked would wait for them for ever.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import torch

from tests.fuzz.check import judge, shortened
from tests.fuzz.programs import Program, program

LIFE = 25  # programs that one child compiles before another takes over
FINE = ("right", "empty", "as traced")
Row = tuple[int, str, str]


def run_all(
    seeds: range, jobs: int = 2, seconds: float = 120, effort: str = "none"
) -> Iterator[Row]:
    """The seed, outcome and text of each program, as they come.

    Arguments:
        seeds: Of the programs.
        jobs: Children at a time.
        seconds: Bound for each program.
        effort: Of the search.
    """
    parts = [seeds[at : at + LIFE] for at in range(0, len(seeds), LIFE)]
    with ThreadPoolExecutor(jobs) as pool:
        for rows in pool.map(lambda part: _part(part, seconds, effort), parts):
            yield from rows


def _part(seeds: range, seconds: float, effort: str) -> list[Row]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fuzz.pool"])
    rows: list[Row] = []
    while len(rows) < len(seeds):
        ours, theirs = context.Pipe()
        rest = list(seeds[len(rows) :])
        child = context.Process(target=_child, args=(theirs, rest, effort), daemon=False)
        child.start()
        theirs.close()
        try:
            for seed in rest:
                if not ours.poll(seconds):
                    rows.append(
                        (seed, "error", f"more than {seconds:g} s\n{source(program(seed))}")
                    )
                    break
                rows.append(ours.recv())
        except EOFError:
            child.join()
            seed = seeds[len(rows)]
            rows.append((seed, "crash", f"exit code {child.exitcode}\n{source(program(seed))}"))
        finally:
            child.kill()
            child.join()
            ours.close()
    return rows


def source(found: Program | None) -> str:
    """A program to read: its inputs, its lines, its results."""
    if found is None:
        return ""
    inputs = [f"a{k}: {x.dtype}{list(x.shape)}" for k, x in enumerate(found.inputs)]
    lines = (", ".join(inputs), *found.lines, f"return {', '.join(found.results)}")
    return "\n".join(f"    {x}" for x in lines)


def _child(pipe: Connection, seeds: list[int], effort: str) -> None:
    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for seed in seeds:
        pipe.send(outcome(seed, effort))


def outcome(seed: int, effort: str = "none") -> Row:
    """The row of one program, in this process."""
    found = program(seed)
    if found is None:
        return seed, "empty", ""
    verdict = judge(found, effort)
    if verdict.outcome in FINE:
        return seed, verdict.outcome, verdict.text
    short = shortened(found, verdict, effort)
    return seed, verdict.outcome, f"{source(short)}\n    {judge(short, effort).text}"
