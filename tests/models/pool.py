"""Cases in children that may crash or hang, several at a time.

Children are forked from a server that has imported everything and run nothing: the child of a
process whose OpenMP threads have worked would wait for them for ever.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.models.cases import Case
from tests.models.check import Row, judge, row


def run_all(
    todo: Sequence[Case], seconds: float = 300, jobs: int = 2, threads: int = 1
) -> Iterator[Row]:
    """Rows of results, as they come.

    Arguments:
        todo: The cases.
        seconds: Bound for each.
        jobs: So many at a time.
        threads: Of PyTorch, in each child.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.models.pool", "transformers"])
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_one, context, case, seconds, threads) for case in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _one(context: Any, case: Case, seconds: float, threads: int) -> Row:
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, case, threads), daemon=False)
    begun = time.monotonic()
    child.start()
    theirs.close()
    out = row(case)
    try:
        if ours.poll(seconds):
            return ours.recv()
        out |= {"outcome": "timeout", "text": f"more than {seconds:g} s"}
    except EOFError:
        child.join()
        out |= {"outcome": "crash", "text": f"exit code {child.exitcode}"}
    finally:
        _end(child)
        ours.close()
    out["seconds"] = round(time.monotonic() - begun, 1)
    return out


def _end(child: Any) -> None:
    """The child, and what it started: it leads a session of its own."""
    try:
        if os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.kill()
    child.join()


def _child(pipe: Connection, case: Case, threads: int) -> None:
    os.setsid()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True  # else Dynamo leaves recurrent networks to eager
    torch.set_num_threads(threads)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(judge(case))
