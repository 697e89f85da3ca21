"""The parent's side of saturation: it starts, feeds and hears the child, and ends it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luminal_lab.egraph import worker
from luminal_lab.egraph.language import TRACED
from luminal_lab.egraph.rulebook import Rulebook, Tolerance, pointed
from luminal_lab.egraph.worker import read_message, write_message
from luminal_lab.errors import RuleError, SaturationError

_GRACE = 3.0  # seconds that a child gets to hand over what it reached after a cancel or a limit


@dataclass(frozen=True)
class Limits:
    """Bounds of a saturation; reaching one is a reported stop, not an error.

    Arguments:
        iterations: Iterations per region.
        rows: E-nodes per region; checked between rulesets.
        seconds: Processor time per region: what else the machine does makes no difference.
        memory: Address space of the child in bytes, None for no limit.
        copies: Renamed copies per region that the encoder makes.
        tolerance: The loosest class of rules that is used.
        themes: The built-in rule files that are used (`("fusion", "gemm")`: no algebra and no
            layouts, only what is computed together and what a library computes); None for all.
    """

    iterations: int = 12
    rows: int = 50_000
    seconds: float = 20.0
    memory: int | None = 4 << 30
    copies: int = 4000
    tolerance: Tolerance = "approximate"
    themes: tuple[str, ...] | None = None


@dataclass
class PartResult:
    """What the child reported on one region.

    Arguments:
        iterations: One record per iteration.
        state: The tables of the e-graph, None while there is none.
        stopped: Why it stopped.
        usage: The child's processor time by stage so far, in seconds, and its `peak` in bytes.
    """

    iterations: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] | None = None
    stopped: str = ""
    usage: dict[str, float] = field(default_factory=dict)


class PartFailed(SaturationError):
    """The child gave up on a region; two values of different dtypes were united, for example.

    Arguments:
        part: Which region.
        said: egglog's words.
        where: How far it had come.
    """

    def __init__(self, part: int, said: str, where: str):
        super().__init__(
            f"saturation of region {part} failed: {said}",
            where=where,
            fix="check the rules that were added last with luminal_lab.egraph.check_rule",
        )
        self.part, self.said = part, said


Progress = Callable[[int, Mapping[str, Any]], None]


class Child:
    """A running child; use it as a context manager, so that none is left behind.

    It is started before the regions are encoded: the two overlap.
    """

    def __init__(self) -> None:
        self._prepared = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        env = {
            **os.environ,
            "RUST_BACKTRACE": "0",
        }
        self._process = subprocess.Popen(
            # Isolated, and by file: it needs the standard library and egglog, nothing else.
            [sys.executable, "-I", "-S", str(Path(worker.__file__).resolve()), _egglog()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
            start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
        )
        self._sources: tuple[tuple[str, str], ...] = ()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while (message := read_message(self._process.stdout)) is not None:
            self._messages.put(message)
        self._messages.put(None)

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the child is dead: the reader says so
            write_message(self._process.stdin, message)

    def prepare(self, rulebook: Rulebook, limits: Limits, step: bool = False) -> None:
        """Let the child load the rules, while the regions are still being encoded."""
        if not self._prepared:
            self._prepared = True
            self._sources = rulebook.sources
            self._send(_job(rulebook, limits) | {"step": step})

    def run(
        self,
        rulebook: Rulebook,
        parts: Sequence[Sequence[str]],
        limits: Limits,
        progress: Progress | None = None,
        everything: bool = False,
        finished: Callable[[int, PartResult], None] | None = None,
    ) -> list[PartResult]:
        """Saturate some regions, one after the other.

        Arguments:
            rulebook: What to run.
            parts: The commands that load each region.
            limits: Bounds.
            progress: Called with each iteration.
            everything: Whether the state holds all tables, not only those of terms.
            finished: Called with each region that is done, while the child does the next.

        A cancel (KeyboardInterrupt) asks the child for what it has reached; when every region
        has something, that is the result, else the KeyboardInterrupt goes on.

        Raises:
            RuleError: the child rejected a rule.
            SaturationError: the child died before a region had any state.
            KeyboardInterrupt: see above; also at a second Ctrl-C.
        """
        self.prepare(rulebook, limits)
        self._send({"parts": parts, "everything": everything})
        results = [PartResult() for _ in parts]
        done = 0
        deadline: float | None = None
        while done < len(parts):
            wait = limits.seconds + 30.0  # the loading of a region is not limited by `seconds`
            if deadline is not None:
                wait = max(0.0, deadline - time.monotonic())
            try:
                message = self._messages.get(timeout=wait)
                if message is None:
                    self._end(results, done, f"the child died: {self._last_words()}")
                    break
                if self._handle(message, results, progress):
                    done += 1
                    if finished is not None and deadline is None:
                        finished(done - 1, results[done - 1])
            except queue.Empty:
                if deadline is not None:  # canceled, and the child is deep in a step
                    self._process.kill()
                    results[done].stopped = "interrupted"
                else:
                    self._end(results, done, "time limit: the child was killed in a step")
                break
            except KeyboardInterrupt:
                if deadline is not None:
                    raise
                self._send({"stop": True})
                deadline = time.monotonic() + _GRACE
        if deadline is not None and any(r.state is None for r in results):
            raise KeyboardInterrupt
        return results

    def steps(
        self, rulebook: Rulebook, parts: Sequence[Sequence[str]], limits: Limits
    ) -> Iterator[tuple[int, PartResult]]:
        """Saturate some regions, one iteration at a time.

        Yields:
            The number of a region and what is known about it: first of every region as it was
            encoded, then after each iteration, region by region. The child waits in between.

        Raises:
            RuleError: the child rejected a rule.
            SaturationError: the child died.
        """
        self.prepare(rulebook, limits, step=True)
        self._send({"parts": parts})
        results = [PartResult() for _ in parts]
        done = 0
        while done < len(parts):
            try:
                message = self._messages.get(timeout=limits.seconds + 30.0)
            except queue.Empty:
                message = None
                self._process.kill()
            if message is None:
                words = self._last_words()
                results[done].stopped = f"the child died: {words}"
                yield done, results[done]
                return
            done += self._handle(message, results, None)
            if "state" in message:
                yield message["part"], results[message["part"]]
                if not message["final"] and message["stopped"] != "encoded":
                    self._send({"go": True})

    def _handle(
        self, message: Mapping[str, Any], results: list[PartResult], progress: Progress | None
    ) -> int:
        """Take in one message; how many regions it completes."""
        if "iteration" in message:
            results[message["part"]].iterations.append(message["iteration"])
            if progress is not None:
                progress(message["part"], message["iteration"])
        elif "usage" in message:
            results[message["part"]].usage = message["usage"]
        elif "state" in message:
            result = results[message["part"]]
            result.state, result.stopped = message["state"], message["stopped"]
            return int(message["final"])
        elif "rejected" in message:
            raise pointed(_rule_error(message["rejected"]), self._sources)
        elif "failed" in message:
            raise PartFailed(message["part"], message["failed"], _progress_text(results))
        return 0

    def _end(self, results: list[PartResult], done: int, why: str) -> None:
        """The child gave up: keep what was reached, if every region has something."""
        self._process.kill()
        result = results[done]
        result.stopped = why
        if any(r.state is None for r in results):
            raise SaturationError(
                f"saturation gave no e-graph: {why}",
                where=_progress_text(results),
                fix="lower Limits.rows or raise Limits.memory, or give the rule that explodes a"
                " `;; cap:`",
            )

    def _last_words(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        tail = " / ".join(said[-3:]) if said else "it said nothing"
        return f"exit code {code}; {tail}"


def _job(rulebook: Rulebook, limits: Limits) -> dict[str, Any]:
    return {
        "forms": [[f.text, f.original, f.file] for f in rulebook.forms],
        "rulesets": rulebook.rulesets,
        "needs": rulebook.needs,
        "traced": TRACED,
        "limits": {
            "iterations": limits.iterations,
            "rows": limits.rows,
            "seconds": limits.seconds,
            "memory": limits.memory,
        },
    }


def _egglog() -> str:
    """The folder of the package egglog, which is found and not imported."""
    spec = importlib.util.find_spec("egglog")
    if spec is None or not spec.submodule_search_locations:
        raise SaturationError("the package egglog is not installed", fix="pip install egglog")
    return spec.submodule_search_locations[0]


def _progress_text(results: Sequence[PartResult]) -> str:
    lines = []
    for k, result in enumerate(results):
        rows = [r["rows"] for r in result.iterations]
        if rows:
            lines.append(f"region {k}: rows per iteration {', '.join(map(str, rows))}")
    return "; ".join(lines) or "before the first iteration"


def _rule_error(rejected: Mapping[str, str]) -> RuleError:
    """The message of egglog, with its place as `file:line:column`."""
    import re

    message = rejected["message"]
    found = re.search(r"In (\d+):(\d+)-\d+[^:]*: ?", message)
    where = rejected["file"]
    if found:
        where += f":{found[1]}:{found[2]}"
        message = message[: found.start()] + message[found.end() :]
    said = " ".join(message.split())
    return RuleError(
        f"egglog rejects a rule: {said}", where=where, fix="see rules/language.egg for the ops"
    )
