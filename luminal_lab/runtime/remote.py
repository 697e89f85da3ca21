"""What a worker of an executor does: compile a batch of kernels, verify and time each.

A batch and its report are plain data; `measure_batch` is the one function that travels, by its
name. Random inputs travel as recipes, everything else as bytes.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.runtime.cpu import fingerprint, trial
from luminal_lab.runtime.exclusive import in_turns
from luminal_lab.runtime.measure import TIMEOUT, Worker
from luminal_lab.runtime.prepare import Order, prepare
from luminal_lab.search.inputs import Recipe
from luminal_lab.search.kernel_text import kernel_text, parse_kernel
from luminal_lab.search.machine import Machine
from luminal_lab.search.target import Expected, Job, Measurement, Tolerance

if TYPE_CHECKING:
    from torch import Tensor

Outcome = Literal["measured", "foreign", "lost", "stopped"]


@dataclass(frozen=True)
class Packed:
    """A tensor as data: its dtype (PyTorch's name), shape, and bytes in row-major order.

    >>> import torch
    >>> Packed.of(torch.tensor([[1, 2]], dtype=torch.int8)).tensor().tolist()
    [[1, 2]]
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(tensor: Tensor) -> Packed:
        """Pack a tensor."""
        import torch

        name = str(tensor.dtype).removeprefix("torch.")
        flat = tensor.detach().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return Packed(name, tuple(tensor.shape), data)

    def tensor(self) -> Tensor:
        """Unpack it."""
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).reshape(self.shape)


@dataclass(frozen=True)
class PackedExpected:
    """An `Expected` as data."""

    points: Packed | None
    values: Packed
    tolerance: Tolerance


@dataclass(frozen=True)
class Trial:
    """A `Job` as data; the kernel is its canonical text."""

    kernel: str
    schedule: Any
    inputs: Mapping[str, Packed | Recipe]
    expected: Mapping[str, PackedExpected]
    timed: bool = True
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Some trials for one worker.

    Arguments:
        trials: What to measure.
        machine: The rates of the target: code is generated for them.
        fingerprint: The target's; a worker on another machine refuses.
        timeout: Seconds that one trial may take.
        name: Tells batches apart.
    """

    trials: tuple[Trial, ...]
    machine: Machine
    fingerprint: str
    timeout: float = TIMEOUT
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Report:
    """What became of a batch.

    Arguments:
        outcome: `"measured"`; `"foreign"` when this is not the target's machine; `"lost"` when
            a worker that began it before has died; `"stopped"` when it was cancelled.
        fingerprint: Of the worker's machine.
        worker: Its host and process.
        results: One for each trial, when they were measured.
    """

    outcome: Outcome
    fingerprint: str
    worker: str
    results: tuple[Measurement, ...] = ()


class Packer:
    """Turns jobs into trials; what several jobs share is packed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def trial(self, job: Job) -> Trial:
        """A job as data."""
        inputs = {n: job.recipes.get(n) or self._packed(x) for n, x in job.inputs.items()}
        expected = {
            n: PackedExpected(
                None if e.points is None else self._packed(e.points),
                self._packed(e.values),
                e.tolerance,
            )
            for n, e in job.expected.items()
        }
        text = kernel_text(job.kernel)
        return Trial(text, job.schedule, inputs, expected, job.timed, job.sizes)

    def _packed(self, tensor: Tensor) -> Packed:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = (tensor, Packed.of(tensor))
        return self._known[id(tensor)][1]


def trial_bytes(trials: tuple[Trial, ...]) -> int:
    """Bytes that some trials take on their way, what they share counted once."""
    seen: dict[int, int] = {}
    for t in trials:
        packed = [x for x in t.inputs.values() if isinstance(x, Packed)]
        packed += [e.values for e in t.expected.values()]
        packed += [e.points for e in t.expected.values() if e.points is not None]
        seen |= {id(p): len(p.data) for p in packed}
    return sum(seen.values())


def measure_batch(batch: Batch) -> Report:
    """Compile, verify and time a batch of trials on this machine.

    All are compiled before the first is timed. While one is timed nothing else of a search runs
    on this machine, whatever the number of workers on it.
    """
    mine = fingerprint(batch.machine.threads)
    worker = f"{socket.gethostname()}, process {os.getpid()}"
    if mine != batch.fingerprint:
        return Report("foreign", mine, worker)
    presence = _Presence()
    if presence.began_before():
        return Report("lost", mine, worker)
    start_child(batch.machine.threads, batch.timeout)  # it is ready when the first is compiled
    prepared = []
    for t in batch.trials:
        if presence.cancelled():
            return Report("stopped", mine, worker)
        prepared.append(prepare(Order(t.kernel, t.schedule, batch.machine)))
    tensors: dict[int, Any] = {}
    with _LOCK:
        child = _child(batch.machine.threads, batch.timeout)

        def run(pair: Any) -> Measurement:
            if presence.cancelled():
                return Measurement(False, reason="timed out", message="cancelled")
            return trial(child, _job(pair[0], tensors), pair[1], batch.machine)

        results = tuple(in_turns(zip(batch.trials, prepared, strict=True), run))
    if presence.cancelled():
        return Report("stopped", mine, worker)
    return Report("measured", mine, worker, results)


def _job(t: Trial, tensors: dict[int, Any]) -> Job:
    def made(x: Packed | Recipe) -> Tensor:
        if id(x) not in tensors:
            tensors[id(x)] = x.make() if isinstance(x, Recipe) else x.tensor()
        return tensors[id(x)]

    expected = {
        n: Expected(None if e.points is None else made(e.points), made(e.values), e.tolerance)
        for n, e in t.expected.items()
    }
    inputs = {n: made(x) for n, x in t.inputs.items()}
    kernel = parse_kernel(t.kernel)
    return Job(kernel, t.schedule, inputs, expected, t.timed, sizes=t.sizes)


# The measuring child of this process: starting one takes longer than a batch of small kernels.
_LOCK = threading.Lock()
_CHILDREN: dict[tuple[int, float], Worker] = {}


def _child(threads: int, timeout: float) -> Worker:
    if not _CHILDREN:
        atexit.register(close_children)
    return _CHILDREN.setdefault((threads, timeout), Worker(timeout, threads))


def start_child(threads: int, timeout: float = TIMEOUT) -> None:
    """Start the measuring child of this process, unless it runs."""
    if _LOCK.acquire(blocking=False):  # another thread that measures has one already
        try:
            _child(threads, timeout).start()
        finally:
            _LOCK.release()


def close_children() -> None:
    """End the measuring children of this process."""
    for child in _CHILDREN.values():
        child.close()
    _CHILDREN.clear()


class _Presence:
    """What a dask worker knows about the task that it runs; elsewhere nothing is known."""

    def __init__(self) -> None:
        from luminal_lab.runtime.dask_cluster import current_task

        self._task = current_task()

    def began_before(self) -> bool:
        """Whether a worker began this very task and died."""
        return self._task is not None and self._task.began_before()

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._task is not None and self._task.cancelled()
