"""The saturation child: `python worker.py <folder of the package egglog>`.

egglog has no limit on nodes or time, does not hear Ctrl-C, aborts the process when memory runs
out, and panics with a BaseException. So it runs here, under RLIMIT_AS, and talks over pipes:
messages are JSON after an 8-byte length. This module imports nothing of the compiler, and
loads egglog's extension module without the package around it (which would take 0.15 s).

In:  a job: `forms` (text, original, file), `rulesets`, `needs` (tables that the rules of each
     look up), `traced` (constructors with provenance), `limits`; then the work: `parts` (lists
     of commands), `everything` (send all tables). Then `{"stop": true}` at any time. With
     `step` in the job, the child sends the state of every region as it was encoded, then the
     state after each iteration, and goes on at a `{"go": true}`.
Out: `{"ready"}`, per iteration `{"iteration"}`, `{"state"}` with the whole e-graph (in the end,
     and now and then before steps that may explode) after its `{"usage"}`, or `{"rejected"}` /
     `{"failed"}`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

_CHUNK = 24  # commands parsed at once: the parser's memory is quadratic in the length of a text
# A step is preceded by a snapshot of the state when there are so many rows, and more by a
# quarter than at the last one; and now and then, as long as that takes a tenth of the time.
_SNAPSHOT_ROWS = 20_000
_SNAPSHOT_GROWTH = 1.25
_SNAPSHOT_SECONDS = 1.0
# Explosions double their exponents. After an iteration that made so many times the rows, and
# where two more like it would pass the limit on rows, the state is sent before the next, and no
# rule may have more matches than there may be rows.
_EXPLOSIVE = 2
_VECTORS = {"Vs": "V", "Ts": "T", "Maps": "String", "Roles": "Axes", "Numbers": "f64"}


def read_message(stream: IO[bytes]) -> Any:
    """The next message, None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack(">Q", head)
    body = stream.read(size)
    return json.loads(body) if len(body) == size else None


def encode_message(message: Any) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode()


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send one message."""
    write_body(stream, encode_message(message))


def write_body(stream: IO[bytes], body: bytes) -> None:
    """Send one encoded message."""
    stream.write(struct.pack(">Q", len(body)) + body)
    stream.flush()


def load_egglog(folder: Path) -> Any:
    """The extension module of the package egglog in `folder`, without importing the package."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"bindings{suffix}"
        if path.is_file():
            loader = importlib.machinery.ExtensionFileLoader("egglog.bindings", str(path))
            found = importlib.util.spec_from_file_location(
                "egglog.bindings", str(path), loader=loader
            )
            assert found is not None
            module = importlib.util.module_from_spec(found)
            loader.exec_module(module)
            return module
    sys.path.append(str(folder.parent))
    return importlib.import_module("egglog.bindings")


class Rejected(Exception):
    """egglog refused a form of a rule file."""


class Stopped(Exception):
    """A limit was reached, or the parent asked to stop; the text says which."""


class Session:
    """One e-graph, with the rules loaded."""

    def __init__(
        self,
        job: Mapping[str, Any],
        out: BinaryIO,
        stop: threading.Event,
        bindings: Any,
        go: threading.Semaphore | None = None,
    ):
        self.bindings = bindings
        self.egraph = bindings.EGraph()
        self.job, self.out, self.stop = job, out, stop
        self.go = go if job.get("step", False) else None
        self.limits: Mapping[str, Any] = job["limits"]
        self.traced: Sequence[str] = job["traced"]
        self.part = 0
        self.size = (0, 0)  # e-nodes and e-classes after the last iteration
        self.sizes: Mapping[str, int] = {}  # of all tables, when limits were checked last
        self.growth = 1.0  # of the e-nodes in the last iteration
        self.matched: set[str] = set()  # the uncapped rules that matched in it
        self.held_back = False  # whether a capped rule had matches that were not applied
        self.usage: dict[str, float] = {}  # seconds of processor time by stage
        self.clock = 0.0

    def run(self, text: str, file: str = "") -> Any:
        """Parse and run commands; the last command's output."""
        parsed = self.egraph.parse_program(text, file or None)
        out = self.egraph.run_program(*parsed)
        return out[-1] if out else None

    def spent(self, stage: str) -> None:
        """Charge the processor time since the last call to a stage."""
        now = time.process_time()
        self.usage[stage] = self.usage.get(stage, 0.0) + now - self.clock
        self.clock = now

    def load_rules(self) -> None:
        """Declare the language and the rules, form by form."""
        for text, original, file in self.job["forms"]:
            try:
                self.run(text, file)
            except BaseException as error:  # noqa: BLE001  (a Rust panic is not an Exception)
                raise Rejected(
                    json.dumps(
                        {"file": file, "message": self._blame(original, file) or str(error)}
                    )
                ) from None

    def _blame(self, original: str, file: str) -> str | None:
        """The message for the form as the user wrote it, whose positions are the file's."""
        try:
            if original:
                self.run(original, file)
        except BaseException as error:  # noqa: BLE001
            return str(error)
        return None

    def saturate(self, part: int, commands: Sequence[str]) -> str:
        """Load one region and run the rules on it; why it stopped."""
        self.load(part, commands)
        self.spent("load")
        self.began, self.snapshot_at = time.process_time(), time.monotonic()
        self.snapshot_rows, self.snapshot_cost = 0, 0.0
        self.growth, self.matched = 1.0, set()
        self.send_iteration(0, {}, {}, 0.0)
        try:
            for iteration in range(1, self.limits["iterations"] + 1):
                self.wait_for_go()
                if not self.step(iteration):
                    # A scheduler that holds matches back says that it could go on.
                    return "saturated but for capped rules" if self.held_back else "saturated"
            return "iteration limit"
        except Stopped as stopped:
            self.run("(run-schedule (run stamp))")  # what the broken-off iteration made
            return str(stopped)

    def load(self, part: int, commands: Sequence[str]) -> None:
        """Load one region."""
        self.part = part
        for at in range(0, len(commands), _CHUNK):
            self.run("\n".join(commands[at : at + _CHUNK]))
        self.run("(run-schedule (saturate analysis) (run encoded))")

    def wait_for_go(self) -> None:
        """When stepping: show the state, and wait; the time that the user takes is not ours."""
        if self.go is None:
            return
        begin = time.monotonic()
        self.send_state("", final=False)
        self.go.acquire()
        waited = time.monotonic() - begin
        self.snapshot_at += waited

    def step(self, iteration: int) -> bool:
        """One iteration: every ruleset once; whether anything changed."""
        start = time.monotonic()
        matches: dict[str, int] = {}
        seconds: dict[str, float] = {}
        changed, matched, most_rows = False, set[str](), self.limits["rows"]
        self.held_back = False
        explosive = self.growth > _EXPLOSIVE and self.size[0] * self.growth**2 > most_rows
        self.run(f"(set (now) {iteration})")
        for name, cap in self.job["rulesets"]:
            self.check_limits(explosive)
            if self.idle(name):
                continue
            run = f"(run {name})"
            most = most_rows if cap is None and explosive else cap
            if most is not None:
                # A fresh back-off scheduler each time is a hard cap on matches.
                scheduler = f"(let-scheduler capped (back-off :match-limit {most}))"
                run = f"{scheduler} (run-with capped {name})"
            begin = time.monotonic()
            report = self.run(f"(run-schedule {run})").report
            self.share(begin, report, matches, seconds)
            if cap is None:
                changed |= report.updated
                matched |= {n for n, count in report.num_matches_per_rule.items() if count}
            else:
                self.held_back |= report.updated
            self.run("(run-schedule (saturate analysis))")
        self.run("(run-schedule (run stamp))")
        before = self.size
        self.send_iteration(iteration, matches, seconds, time.monotonic() - start)
        self.growth = self.size[0] / max(1, before[0])
        # Under a scheduler what matched before matches again, unless there was too much of it.
        before_that, self.matched = self.matched, matched
        if explosive and before_that - matched:
            raise Stopped("row limit")
        return changed or self.size != before

    @staticmethod
    def share(
        begin: float, report: Any, matches: dict[str, int], seconds: dict[str, float]
    ) -> None:
        """Count matches; divide the measured time as egglog does (13.2 has its unit wrong)."""
        spent = time.monotonic() - begin
        times = {n: t.total_seconds() for n, t in report.search_and_apply_time_per_rule.items()}
        total = sum(times.values()) or 1.0
        for name, count in report.num_matches_per_rule.items():
            matches[name] = matches.get(name, 0) + count
            share = times.get(name, 0.0) / total * spent
            seconds[name] = seconds.get(name, 0.0) + share

    def check_limits(self, explosive: bool = False) -> None:
        """Stop at a limit; snapshot the state before a step that may be the last one."""
        now = time.monotonic()
        if self.stop.is_set():
            raise Stopped("interrupted")
        # Processor time: a busy machine reaches what an idle one reaches.
        if time.process_time() - self.began > self.limits["seconds"]:
            raise Stopped("time limit")
        rows = self.rows()
        if rows > self.limits["rows"]:
            raise Stopped("row limit")
        if self.go is not None:
            return  # the parent has the state of the last step
        grown = rows > max(_SNAPSHOT_ROWS, self.snapshot_rows * _SNAPSHOT_GROWTH)
        if (
            grown
            or (explosive and rows > self.snapshot_rows)
            or now - self.snapshot_at > max(_SNAPSHOT_SECONDS, 10 * self.snapshot_cost)
        ):
            self.run("(run-schedule (run stamp))")
            self.send_state("the child died", final=False)
            self.snapshot_at, self.snapshot_rows = time.monotonic(), rows
            self.snapshot_cost = self.snapshot_at - now

    def rows(self) -> int:
        """The number of e-nodes."""
        self.sizes = sizes = dict(self.run("(print-size)").sizes)
        return sum(sizes.get(op, 0) for op in self.traced)

    def idle(self, ruleset: str) -> bool:
        """Whether each of a capped ruleset's rules looks up a table that is empty.

        A scheduler, which is a new one for each run, compiles all rules again.
        """
        rules = self.job.get("needs", {}).get(ruleset, ())
        return bool(rules) and all(any(self.sizes.get(t) == 0 for t in r) for r in rules)

    # ------------------------------------------------------------------ messages

    def send_iteration(
        self,
        number: int,
        matches: Mapping[str, int],
        seconds: Mapping[str, float],
        spent: float,
    ) -> None:
        """Report an iteration."""
        functions = self.egraph.freeze().functions
        rows = 0
        classes = set()
        for op in self.traced:
            table = functions[op].rows if op in functions else []
            rows += len(table)
            sort = functions[op].output_sort if table else ""
            classes |= {(sort, row.output) for row in table}
        self.size = (rows, len(classes))
        record = {
            "number": number,
            "rows": rows,
            "classes": len(classes),
            "seconds": spent,
            "matches": {n: c for n, c in sorted(matches.items()) if c},
            "rule_seconds": {n: s for n, s in sorted(seconds.items()) if matches.get(n)},
        }
        write_message(self.out, {"iteration": record, "part": self.part})

    def send_state(self, stopped: str, final: bool = True) -> None:
        """Send the whole e-graph."""
        self.spent("iterations")
        every = final and self.job.get("everything", False)
        state = Puller(self.egraph, self.bindings).pull(self.traced, every)
        message = {"state": state, "part": self.part, "stopped": stopped, "final": final}
        body = encode_message(message)
        self.spent("hand over")
        usage = {**self.usage, "peak": peak_bytes()}
        write_message(self.out, {"usage": usage, "part": self.part})
        write_body(self.out, body)


class Puller:
    """The whole e-graph as plain lists; e-classes are numbered as they are met."""

    def __init__(self, egraph: Any, bindings: Any):
        self.egraph = egraph
        self.numbers: dict[tuple[str, Any], int] = {}
        self.decode = {
            "i64": egraph.value_to_i64,
            "f64": egraph.value_to_f64,
            "String": egraph.value_to_string,
            "bool": egraph.value_to_bool,
        }

    def value(self, sort: str, value: Any) -> Any:
        """A Python value: an e-class number, a number, a string, or a list of those."""
        if sort in self.decode:
            return self.decode[sort](value)
        if sort in _VECTORS:
            return [self.value(_VECTORS[sort], v) for v in self.egraph.value_to_vec(value)]
        if sort == "Axes":
            members = self.egraph.value_to_set(value)
            return sorted(self.egraph.value_to_string(v) for v in members)
        return self.numbers.setdefault((sort, value), len(self.numbers))

    def pull(self, traced: Sequence[str], every: bool = False) -> dict[str, Any]:
        """`{function: [[inputs..., output], ...]}` for the tables that the parent reads."""
        functions = self.egraph.freeze().functions
        wanted = [*traced, *(f"by_{op}" for op in traced)]
        wanted += ["Affine", "Number", "Plus", "Times", "Rem", "nid", "tid"]
        wanted += ["free", "dtype", "stores", "beside", "extent"]
        if every:
            wanted += [n for n in sorted(functions) if n not in wanted]
        out: dict[str, Any] = {}
        for name in wanted:
            function = functions.get(name)
            if function is None:
                continue
            sorts, result = function.input_sorts, function.output_sort
            out[name] = [
                [*map(self.value, sorts, row.inputs), self.value(result, row.output)]
                for row in function.rows
                if not row.subsumed
            ]
        return out


def peak_bytes() -> int:
    """The most memory that this process has held, 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 if found else 0


def main(egglog: str) -> int:
    """Serve one job with the package egglog in the folder `egglog`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    inp, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb the messages
    bindings = load_egglog(Path(egglog))  # while the parent still encodes
    job = read_message(inp)
    if job is None:
        return 1
    _limit_memory(job["limits"]["memory"])
    stop, go = threading.Event(), threading.Semaphore(0)
    session = Session(job, out, stop, bindings, go)
    session.spent("start")
    try:
        session.load_rules()
        session.spent("rules")
        write_message(out, {"ready": True})
        work = read_message(inp)
        if work is None:
            return 1
        job.update(work)
        session.spent("hand over")
        threading.Thread(target=_listen, args=(inp, stop, go), daemon=True).start()
        several = len(job["parts"]) > 1
        for k, commands in enumerate(job["parts"] if session.go is not None else ()):
            session.run("(push)")
            session.load(k, commands)
            session.send_state("encoded", final=False)
            session.run("(pop)")
        for k, commands in enumerate(job["parts"]):
            if several:
                session.run("(push)")
            session.send_state(session.saturate(k, commands))
            if several:
                session.run("(pop)")
    except Rejected as error:
        write_message(out, {"rejected": json.loads(str(error))})
    except BaseException as error:  # noqa: BLE001  (a Rust panic is not an Exception)
        said = f"{type(error).__name__}: {error}"
        write_message(out, {"failed": said, "part": session.part, "size": session.size[0]})
    return 0


def _listen(stream: BinaryIO, stop: threading.Event, go: threading.Semaphore) -> None:
    while (message := read_message(stream)) is not None:
        if "stop" in message:
            stop.set()
        go.release()
    os._exit(1)  # the parent is gone


def _limit_memory(limit: int | None) -> None:
    if limit is None or sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except (ValueError, OSError):  # macOS refuses RLIMIT_AS: the other limits remain
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
