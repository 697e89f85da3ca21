"""Cases in a child that may crash or hang; its parent keeps the results.

Children are forked from a server that has imported everything and run nothing: the child of a
process whose OpenMP threads have worked would wait for them for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.opinfo import modules
from tests.opinfo.cases import Case, samples
from tests.opinfo.check import OUTCOMES, judge

LIFE = 60  # cases that one child runs before another takes over


def run_all(
    todo: Sequence[Case], level: str, limit: int = 0, seconds: float = 240, budget: float = 0
) -> Iterator[dict[str, Any]]:
    """Rows of results, case by case.

    Arguments:
        todo: The cases.
        level: See `check.LEVELS`.
        limit: At most so many samples of each, spread evenly; all when 0.
        seconds: Bound for each sample.
        budget: No case is begun after so many seconds; 0 means no bound.
    """
    started, at = time.monotonic(), 0
    while at < len(todo) and not (budget and time.monotonic() - started > budget):
        for row in _one_child(todo[at : at + LIFE], level, limit, seconds):
            yield row
            at += 1
            if budget and time.monotonic() - started > budget:
                return


def _one_child(
    todo: Sequence[Case], level: str, limit: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Rows until the child is through, or has died with the last of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.opinfo.pool"])
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, todo, level, limit), daemon=False)
    child.start()
    theirs.close()
    try:
        for case in todo:
            row, begun = _row(case, level), time.monotonic()
            counts: Counter[str] = Counter()
            alive = True
            while True:
                if not ours.poll(seconds):
                    _note(row, counts, "timeout", f"more than {seconds:g} s")
                    alive = False
                    break
                try:
                    message = ours.recv()
                except EOFError:
                    child.join()
                    _note(row, counts, "crash", f"exit code {child.exitcode}")
                    alive = False
                    break
                if message is None:
                    break
                _note(row, counts, *message)
            row["seconds"] = round(time.monotonic() - begun, 2)
            row["counts"] = dict(sorted(counts.items()))
            yield row
            if not alive:
                return
    finally:
        child.kill()
        child.join()
        ours.close()


def _row(case: Case, level: str) -> dict[str, Any]:
    return {
        "op": case.op, "variant": case.variant, "dtype": case.dtype, "level": level,
        "samples": 0, "outcome": "right", "text": "", "fallbacks": {},
    }  # fmt: skip


def _note(
    row: dict[str, Any],
    counts: Counter[str],
    outcome: str,
    text: str,
    fallbacks: dict[str, str] | None = None,
) -> None:
    counts[outcome] += 1
    if OUTCOMES.index(outcome) > OUTCOMES.index(row["outcome"]):
        row["outcome"], row["text"] = outcome, f"sample {row['samples']}: {text}"
    row["samples"] += 1
    row["fallbacks"].update(fallbacks or {})


def _child(pipe: Connection, todo: Sequence[Case], level: str, limit: int) -> None:
    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for case in todo:
        every = list((modules.samples if modules.is_module(case) else samples)(case))
        if limit and len(every) > limit:
            every = [every[k * len(every) // limit] for k in range(limit)]
        for sample in every:
            try:
                verdict = judge(case, sample, level)
            except Exception as error:  # noqa: BLE001  (eager itself raised)
                pipe.send(("untraceable", f"eager raises {error}"[:200], {}))
                continue
            pipe.send((verdict.outcome, verdict.text, verdict.fallbacks))
        pipe.send(None)
