"""Measure kernels in a worker process: send a job, survive its crash, read its result."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import Buffer
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.sizes import value
from luminal_lab.polling import POLL, poll
from luminal_lab.runtime.plan import reads_of, storage_bytes, writes_of
from luminal_lab.runtime.program import KernelCode
from luminal_lab.runtime.worker import region_bytes, region_start
from luminal_lab.search.execute import sized_kernel
from luminal_lab.search.kernel_text import kernel_text
from luminal_lab.search.target import Job, Measurement

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 20.0  # seconds that one job may take in the worker
_START = 120.0  # seconds that the worker may take to start, for which no job is to blame
TIMED = 0.06  # seconds of samples per job
_COLD = 256 << 10  # constants smaller than this are taken to be in cache


class Worker:
    """A child process that verifies and times kernels; a new one is started after a death.

    Arguments:
        timeout: Seconds that one job may take.
        threads: Threads that kernels run on.
    """

    def __init__(self, timeout: float = TIMEOUT, threads: int = 1):
        self.timeout, self.threads = timeout, threads
        self._child: subprocess.Popen[bytes] | None = None
        self._there = False  # whether it has said that it is ready
        self._data = b""  # of its answers, not read yet
        self._log: Any = None
        self._finalizer: weakref.finalize | None = None

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer, or for what the death of the child tells.

        A child that was killed from outside (by a user, or for the memory of somebody else) is
        replaced, and asked again once.

        Raises:
            KeyboardInterrupt: on Ctrl-C; the child is ended.
        """
        answer = self._request(message)
        return self._request(message) if answer.get("killed") else answer

    def _request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        child = self._start()
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(message).encode() + b"\n")
                child.stdin.flush()
            limit = self.timeout if self._there else _START
            line = self._read_line(child, limit)
            if line and not self._there:  # it says that it is there
                self._there, limit = True, self.timeout
                line = self._read_line(child, limit)
        except BaseException:
            self.close()
            raise
        if line is None:
            self.close()
            return {"reason": "timed out", "message": f"no result after {limit:.0f} s"}
        if not line:
            code = child.wait()
            said = self._said()
            self.close()
            return {
                "reason": "crashed",
                "message": _death(code) + (f"\n{said}" if said else ""),
                "killed": code == -signal.SIGKILL,
            }
        return json.loads(line)

    def start(self) -> None:
        """Start the child before it is needed: it takes a while to be ready."""
        self._start()

    def close(self) -> None:
        """End the child."""
        if self._finalizer is not None:
            self._finalizer()
        self._child = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        self._there, self._data = False, b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        path = os.pathsep.join(p for p in (package_parent(), *sys.path) if p)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "luminal_lab.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends it
            # Kernels say on how many threads they run; dask workers would forbid more than one.
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self.threads)},
        )
        self._finalizer = weakref.finalize(self, _end, self._child)
        return self._child

    def _read_line(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """The next line, `b""` when the child has ended, None when it takes too long."""
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        limit = time.monotonic() + seconds
        while b"\n" not in self._data:
            poll()
            left = limit - time.monotonic()
            if left <= 0:
                return None
            if not select.select([descriptor], [], [], min(left, POLL))[0]:
                continue
            part = os.read(descriptor, 1 << 16)
            if not part:
                return b""
            self._data += part
        line, end, self._data = self._data.partition(b"\n")
        return line + end

    def _said(self) -> str:
        """The end of what the child wrote to its standard error."""
        if self._log is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - 4000))
            return self._log.read().decode(errors="replace").strip()
        return ""


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    child.wait()


def _death(code: int) -> str:
    if code < 0:
        if -code in (signal.SIGSEGV, signal.SIGBUS):
            name = signal.Signals(-code).name
            return (
                f"the kernel's process died of {name}: it touched memory outside its buffers, "
                "or wrote to an operand"
            )
        with contextlib.suppress(ValueError):
            return f"the kernel's process died of {signal.Signals(-code).name}"
    return f"the kernel's process ended with status {code}"


def package_parent() -> str:
    """The folder that this package lies in."""
    return str(Path(__file__).resolve().parents[2])


class Exchange:
    """The file that both processes map: one region of whole pages for each buffer.

    Arguments:
        buffers: What it holds, by name.
    """

    def __init__(self, buffers: Mapping[str, Buffer]):
        self.buffers = dict(buffers)
        self.nbytes = {n: storage_bytes(b) for n, b in buffers.items()}
        self.offsets: dict[str, int] = {}
        total = 0
        for name, nbytes in self.nbytes.items():
            self.offsets[name] = total
            total += region_bytes(nbytes)
        size = max(total, mmap.PAGESIZE)
        descriptor, self.path = _shared_file()
        try:
            # Reserve the pages now: a full disk is an error here, and a bus error later.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
            self.map = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            self._remove()
            raise
        self._descriptor = descriptor

    def tensor(self, name: str) -> Tensor:
        """A buffer's contents as a tensor over the file."""
        import torch

        buffer, dtype = self.buffers[name], torch_dtype(self.buffers[name].dtype)
        if self.nbytes[name] == 0:
            return torch.empty(buffer.shape, dtype=dtype)
        start = self.offsets[name] + region_start(self.nbytes[name])
        count = self.nbytes[name] // buffer.dtype.bytes
        flat = torch.frombuffer(self.map, dtype=dtype, count=count, offset=start)
        return flat.as_strided(buffer.shape, buffer.element_strides)

    def poison(self, name: str) -> None:
        """Fill a buffer with what no kernel writes: NaN, or all bits."""
        start = self.offsets[name] + region_start(self.nbytes[name])
        self.map[start : start + self.nbytes[name]] = b"\xff" * self.nbytes[name]

    def close(self) -> None:
        """Remove the file."""
        os.close(self._descriptor)
        self._remove()

    def _remove(self) -> None:
        if not self.path.startswith("/proc/"):
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _shared_file() -> tuple[int, str]:
    """Memory as a file: descriptor, and a path by which another process can open it.

    On Linux it has no name, so that nothing is left behind however this process ends.
    """
    if sys.platform == "linux" and os.access("/proc/self/fd", os.R_OK):
        with contextlib.suppress(OSError):
            descriptor = os.memfd_create("luminal", os.MFD_CLOEXEC)
            return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"
    return tempfile.mkstemp(prefix=f"luminal-{os.getpid()}-")


def measure_job(
    worker: Worker,
    job: Job,
    library: Path | None,
    code: KernelCode | None,
    *,
    threads: int,
    last_level: int,
    blas: bool = False,
) -> Measurement:
    """Verify and time one job.

    Arguments:
        worker: The child.
        job: What to run; its expected values decide what is right, after it was timed.
        library: The compiled library, None for a routine in Python.
        code: The kernel's C, None for a routine in Python.
        threads: Threads to run on.
        last_level: Bytes of the last-level cache; constants are read from as many copies as
            exceed it.
        blas: Whether the code calls the BLAS inside PyTorch.
    """
    kernel = sized_kernel(job.kernel, job.sizes)
    names = dict.fromkeys((*reads_of(kernel), *writes_of(kernel)))
    written = frozenset(writes_of(kernel))
    needed = sum(storage_bytes(kernel.buffers[n]) for n in names) * 2
    workspace = value(code.workspace, job.sizes) if code is not None else 0
    needed += workspace + sum(code.packs) if code is not None else 0
    if needed > (free := available_bytes()) // 2:
        return Measurement(
            False, reason="over memory", message=f"needs {needed:,} of {free:,} bytes"
        )
    try:
        exchange = Exchange({n: kernel.buffers[n] for n in names})
    except OSError as error:
        return Measurement(False, reason="over memory", message=str(error))
    try:
        for name in names:
            if name in written:
                exchange.poison(name)
            else:
                exchange.tensor(name).copy_(job.inputs[name])
        constants = sum(storage_bytes(kernel.buffers[n]) for n in names if _constant(job, n))
        request: dict[str, Any] = {
            "file": exchange.path,
            "threads": threads,
            "timed": job.timed,
            "seconds": TIMED,
            "buffers": [
                {
                    "name": n,
                    "offset": exchange.offsets[n],
                    "nbytes": exchange.nbytes[n],
                    "role": "write" if n in written else "read",
                    "constant": _constant(job, n),
                }
                for n in names
            ],
        }
        if code is None:
            request["routine"] = kernel_text(kernel)
        else:
            request |= {
                "library": str(library),
                "entry": code.entry,
                "params": code.params,
                "packs": code.packs,
                "sizes": [job.sizes[name] for name in code.sizes],
                "workspace": workspace,
                "copies": copies_for(constants, last_level) if job.timed else 1,
                "blas": blas,
            }
        answer = worker.request(request)
        if answer["reason"]:
            return Measurement(False, reason=answer["reason"], message=answer["message"])
        return _judge(job, exchange, tuple(answer["seconds"]))
    finally:
        exchange.close()


def copies_for(constants: int, last_level: int) -> int:
    """Copies of a kernel's constants to read in turn: together they exceed the last level."""
    if constants < _COLD:
        return 1
    return max(1, min(64, -(-5 * last_level // (4 * constants))))


def _constant(job: Job, name: str) -> bool:
    return job.kernel.buffers[name].constant


def _judge(job: Job, exchange: Exchange, seconds: tuple[float, ...]) -> Measurement:
    worst = 0.0
    for name, expected in job.expected.items():
        reason, error, message = expected.check(exchange.tensor(name))
        worst = max(worst, error)
        if reason:
            text = f"{name}: {message}"
            return Measurement(False, reason=reason, message=text, max_error=error)
    return Measurement(True, seconds, max_error=worst)


def available_bytes() -> int:
    """Memory that can still be taken without swapping."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 << 30
