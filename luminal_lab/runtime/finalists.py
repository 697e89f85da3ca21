"""Whole programs, built and timed in turns in a process of their own.

The child (`python -m luminal_lab.runtime.finalists FILE`) reads the program with its weights
and the candidates from one file, builds each, runs it once on the search's inputs and writes
what came out beside the file, then times all of them in rounds. It answers with one JSON line
per step, so that a death is the fault of the candidate that was being run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from luminal_lab import files
from luminal_lab.errors import CompilerError, LuminalError
from luminal_lab.hlir import storage
from luminal_lab.polling import POLL, poll
from luminal_lab.runtime.exclusive import timing
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.target import Expected, Measurement

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 120.0  # seconds until the child's next answer
_SAMPLE = 50e-6  # seconds of one sample at least: longer ones seldom escape other programs
_CALLS = 20  # of one sample at most
_ROUNDS = (7, 60)
_BUDGET = 0.4  # seconds of samples per candidate
_CALM = 1.5  # samples above so many times the least say nothing about the program
_WAIT = 5.0  # seconds to wait until nothing else of a search is compiled or timed here
_KIND = "finalists"


def time_programs(
    candidates: Sequence[Candidate],
    expected: Sequence[Mapping[str, Expected]],
    *,
    threads: int,
    seed: int = 0,
    deadline: float | None = None,
) -> list[Measurement | None]:
    """Build, verify and time programs in a fresh process; one that ends it has a second try.

    Arguments:
        candidates: Programs of one Hlir.
        expected: For each, what its outputs must be.
        threads: Threads that they run on.
        seed: Of the inputs (`search_inputs`).
        deadline: When to stop (`time.monotonic`).

    Returns:
        A Measurement each; None for those that there was no time for.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the child is ended.
    """
    out: list[Measurement | None] = [None] * len(candidates)
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="luminal-finalists-", dir=folder) as place:
        path = Path(place) / "programs"
        _write(path, candidates)
        todo, suspects = list(range(len(candidates))), set[int]()
        while todo and (deadline is None or time.monotonic() < deadline):
            lost = _race(path, todo, out, expected, threads, seed, deadline)
            if lost is None:
                break
            if lost not in suspects:  # it may have been ended from outside
                out[lost] = None
                suspects.add(lost)
            todo = [k for k in todo if out[k] is None or out[k].ok]  # type: ignore[union-attr]
            todo.sort(key=lambda k: k == lost)
    return out


def _write(path: Path, candidates: Sequence[Candidate]) -> None:
    plain = replace(candidates[0].hlir, in_spec=None, out_spec=None)
    with files.writing(path, _KIND, LuminalError) as out:
        storage.put(plain, out)
        for k, c in enumerate(candidates):
            out.put(f"candidate{k}.txt", c.text())


def _race(
    path: Path,
    todo: Sequence[int],
    out: list[Measurement | None],
    expected: Sequence[Mapping[str, Expected]],
    threads: int,
    seed: int,
    deadline: float | None,
) -> int | None:
    """One child's life; the number of the candidate that it died of, None when it did not."""
    request = json.dumps({"todo": list(todo), "threads": threads, "seed": seed})
    errors: dict[int, float] = {}
    with tempfile.TemporaryFile() as log, _child(path, log) as child:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(request.encode() + b"\n")
            child.stdin.flush()
        running: int | None = None
        for answer in _answers(child, deadline):
            if answer is None:  # the child is silent or dead
                late = deadline is not None and time.monotonic() >= deadline
                if late or running is None:
                    return None
                dead = child.poll() is not None
                log.seek(0)
                said = log.read()[-4000:].decode(errors="replace").strip()
                out[running] = Measurement(
                    False,
                    reason="crashed" if dead else "timed out",
                    message=said or "the whole program ended its process, or never ended",
                )
                return running
            k = answer["candidate"]
            running = k
            if answer["step"] == "failed":
                out[k] = Measurement(False, reason=answer["reason"], message=answer["message"])
            elif answer["step"] == "ran":
                verdict = _judge(answer["outputs"], path.parent, expected[k])
                if verdict.ok:
                    errors[k] = verdict.max_error
                else:
                    out[k] = verdict
            elif answer["step"] == "timed" and k in errors:
                out[k] = Measurement(True, tuple(answer["seconds"]), max_error=errors[k])
    return None


@contextlib.contextmanager
def _child(path: Path, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    here = str(Path(__file__).resolve().parents[2])
    child = subprocess.Popen(
        [sys.executable, "-m", "luminal_lab.runtime.finalists", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends it
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (here, *sys.path) if p)},
    )
    try:
        yield child
    finally:
        with contextlib.suppress(OSError):
            child.terminate()  # it ends its compilers
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        with contextlib.suppress(OSError):
            child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _answers(
    child: subprocess.Popen[bytes], deadline: float | None
) -> Iterator[dict[str, Any] | None]:
    """The child's answers until it has said all; None when no answer comes."""
    assert child.stdout is not None
    data = b""
    while True:
        limit = time.monotonic() + TIMEOUT
        limit = limit if deadline is None else min(limit, deadline)
        while b"\n" not in data:
            poll()
            left = limit - time.monotonic()
            if left <= 0:
                yield None
                return
            if not select.select([child.stdout], [], [], min(left, POLL))[0]:
                continue
            part = os.read(child.stdout.fileno(), 1 << 16)
            if not part:
                child.wait()
                yield None
                return
            data += part
        line, _, data = data.partition(b"\n")
        answer = json.loads(line)
        if answer["step"] == "end":
            return
        yield answer


def _judge(
    outputs: Mapping[str, Sequence[Any]], folder: Path, expected: Mapping[str, Expected]
) -> Measurement:
    import torch

    from luminal_lab.hlir.apply import torch_dtype
    from luminal_lab.hlir.dtypes import DTYPES

    worst = 0.0
    for name, (file, shape, dtype) in outputs.items():
        if name not in expected:
            continue
        data = bytearray((folder / file).read_bytes())
        kind = torch_dtype(DTYPES[dtype])
        flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        reason, error, message = expected[name].check(flat.reshape(shape))
        worst = max(worst, error)
        if reason:
            text = f"output {name}: {message}"
            return Measurement(False, reason=reason, message=text, max_error=error)
    return Measurement(True, max_error=worst)


# ------------------------------------------------------------------------------ the child


class _Stage:
    """The programs of a file, in the child.

    Arguments:
        path: The file.
        say: Called with each answer.
    """

    def __init__(self, path: Path, say: Any):
        self.path, self.say = path, say
        self.archive = ZipFile(path)
        self.hlir = storage.get(self.archive)

    def run(self, todo: Sequence[int], seed: int) -> None:
        """Build and run each, then time them in turns."""
        from luminal_lab.runtime.allocator import warm_allocator
        from luminal_lab.runtime.building import build

        warm_allocator()
        ready: dict[int, Any] = {}
        for k in todo:
            self.say({"step": "building", "candidate": k})
            text = self.archive.read(f"candidate{k}.txt").decode()
            try:
                exe = build(Candidate.parse(text, self.hlir))
                leaves = self._inputs(exe, seed)
                outputs = self._outputs(k, exe, leaves)
            except CompilerError as error:
                self._failed(k, "compile failed", error)
            except LuminalError as error:
                self._failed(k, "crashed", error)
            except MemoryError as error:
                self._failed(k, "over memory", error)
            else:
                ready[k] = exe, leaves
                self.say({"step": "ran", "candidate": k, "outputs": outputs})
        with timing(_WAIT):
            times = self._times(ready)
        for k, seconds in times.items():
            self.say({"step": "timed", "candidate": k, "seconds": seconds})

    def _failed(self, k: int, reason: str, error: Exception) -> None:
        self.say({"step": "failed", "candidate": k, "reason": reason, "message": str(error)})

    def _inputs(self, exe: Any, seed: int) -> list[Any]:
        return list(exe.example_inputs(seed)[0])

    def _outputs(self, k: int, exe: Any, leaves: Sequence[Any]) -> dict[str, Any]:
        """Run a program once on copies of its inputs; what it made and what it mutated."""
        given = [t.clone() if hasattr(t, "clone") else t for t in leaves]
        before = {n: w.clone() for n, w in self.hlir.weights.items() if n in self._mutated}
        results = exe(*given)
        results = list(results) if isinstance(results, tuple | list) else [results]
        out: dict[str, Any] = {}
        positions = {s.name: s.position for s in self.hlir.inputs if s.position is not None}
        for spec in self.hlir.outputs:
            if spec.mutates is not None:
                place = positions.get(spec.mutates)
                tensor = self.hlir.weights[spec.mutates] if place is None else given[place]
            else:
                tensor = results.pop(0)
                if spec.aliases is not None:
                    continue
            file = f"out{k}.{len(out)}"
            node = self.hlir.nodes[spec.value.node]
            (self.path.parent / file).write_bytes(_raw(tensor))
            out[spec.name] = (file, list(tensor.shape), node.dtype.name)
        for name, tensor in before.items():
            self.hlir.weights[name].copy_(tensor)
        return out

    @property
    def _mutated(self) -> set[str]:
        return {o.mutates for o in self.hlir.outputs if o.mutates is not None}

    def _times(self, ready: Mapping[int, Any]) -> dict[int, list[float]]:
        order = list(ready)
        shuffle = random.Random(0).shuffle
        inner: dict[int, int] = {}
        for k, (exe, leaves) in ready.items():
            once = min(_timed(exe, leaves, 1) for _ in range(3))
            inner[k] = max(1, min(_CALLS, round(_SAMPLE / max(once, 1e-9))))
        samples: dict[int, list[float]] = {k: [] for k in ready}
        limit = time.monotonic() + _BUDGET * len(ready)
        for n in range(_ROUNDS[1]):
            shuffle(order)
            for k in order:
                exe, leaves = ready[k]
                exe(*leaves)  # another program has just used the caches and the thread pool
                samples[k].append(_timed(exe, leaves, inner[k]))
            if n + 1 >= _ROUNDS[0] and time.monotonic() > limit:
                break
        return {k: [t for t in s if t <= _CALM * min(s)] for k, s in samples.items()}


def _timed(exe: Any, leaves: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        exe(*leaves)
    return (time.perf_counter() - start) / calls


def _raw(tensor: Tensor) -> bytes:
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def main() -> None:
    """Serve one request from standard input."""
    if sys.platform == "linux":  # die with the parent
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, _leave)
    # Answers leave through a descriptor of their own: a library may print to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    request = json.loads(sys.stdin.readline())
    import torch

    torch.set_num_threads(request["threads"])
    with torch.no_grad():
        _Stage(Path(sys.argv[1]), say).run(request["todo"], request["seed"])
    say({"step": "end"})


def _leave(*_: object) -> None:
    raise SystemExit(0)  # on the way out compilers are ended


if __name__ == "__main__":
    main()
