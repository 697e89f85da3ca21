"""The process in which kernels are verified and timed: `python -m luminal_lab.runtime.worker`.

A kernel that crashes or hangs takes this process down, and not the user's. It says that it is
ready, then reads one JSON request per line and answers each with one line. Tensors lie in a
file that both sides map; here each buffer is mapped between pages that cannot be touched,
inputs read-only, so that an access out of bounds is a crash and not a wrong number. PyTorch is
imported only for library routines.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
import zlib
from ctypes import c_int, c_long, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from luminal_lab.errors import LuminalError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.native import native

_PAGE = mmap.PAGESIZE
_CANARY = 0xA7
_ALIGN = 64
_SERIES = 6  # series of samples that are taken at most
_CALM = 1.5  # a sample is calm up to this multiple of the least
_HASHED = 8 << 20  # bytes of an output that are compared between the first and the last run


class Guarded:
    """Memory between two pages that cannot be touched.

    Arguments:
        nbytes: Bytes that the kernel may use; they end less than 64 bytes before the last page.
        file: `(descriptor, offset)` to map that part of a file, None for fresh memory.
        writable: Whether the kernel may write it.
    """

    def __init__(self, nbytes: int, file: tuple[int, int] | None = None, writable: bool = True):
        self.nbytes = nbytes
        self.size = region_bytes(nbytes)
        self.base = _mmap(None, self.size + 2 * _PAGE, 0, _PRIVATE, -1, 0)
        inner = self.base + _PAGE
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        if file is None:
            _mmap(inner, self.size, protection, _PRIVATE | _FIXED, -1, 0)
        else:
            _mmap(inner, self.size, protection, mmap.MAP_SHARED | _FIXED, file[0], file[1])
        self.address = inner + region_start(nbytes)
        self.writable = writable
        if writable:
            before, after = self._margins()
            ctypes.memset(before[0], _CANARY, before[1])
            ctypes.memset(after[0], _CANARY, after[1])

    def _margins(self) -> tuple[tuple[int, int], tuple[int, int]]:
        inner = self.base + _PAGE
        end = self.address + self.nbytes
        return (inner, self.address - inner), (end, inner + self.size - end)

    def overrun(self) -> bool:
        """Whether the bytes beside the buffer were written."""
        if not self.writable:
            return False
        return any(
            ctypes.string_at(start, size) != bytes([_CANARY]) * size
            for start, size in self._margins()
        )

    def checksum(self) -> int:
        """A checksum of the contents (of both ends, when they are large)."""
        head = min(self.nbytes, _HASHED)
        total = zlib.crc32(ctypes.string_at(self.address, head))
        if self.nbytes > head:
            tail = ctypes.string_at(self.address + self.nbytes - head, head)
            total = zlib.crc32(tail, total)
        return total

    def free(self) -> None:
        """Unmap it."""
        _LIBC.munmap(self.base, self.size + 2 * _PAGE)


def region_bytes(nbytes: int) -> int:
    """Bytes of whole pages that a buffer takes in the shared file."""
    return max(_PAGE, -(-nbytes // _PAGE) * _PAGE)


def region_start(nbytes: int) -> int:
    """Where in its region a buffer begins: as late as its alignment allows."""
    return (region_bytes(nbytes) - nbytes) // _ALIGN * _ALIGN


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = c_void_p
_LIBC.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_LIBC.munmap.argtypes = (c_void_p, c_size_t)
_FIXED = 0x10  # MAP_FIXED, the same on Linux and macOS
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _mmap(at: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    address = _LIBC.mmap(at, size, protection, flags, fd, offset)
    if address in (None, c_void_p(-1).value):
        number = ctypes.get_errno()
        raise MemoryError(f"cannot map {size} bytes: {os.strerror(number)}")
    return int(address)


class _Bench:
    """One request: buffers, pointer tables, runs."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.threads = int(request["threads"])
        self.buffers: list[Guarded] = []
        self.outputs: list[Guarded] = []
        self.keep: list[Any] = []

    def measure(self) -> dict[str, Any]:
        """Run it: once, then timed, and compare the outputs of the first run and the last."""
        file = os.open(self.request["file"], os.O_RDWR)
        try:
            run = self._routine(file) if "routine" in self.request else self._kernel(file)
            run(1, 1)
            first = [g.checksum() for g in self.outputs]
            times: list[float] = []
            if self.request["timed"]:
                times = self._times(run)
            if any(g.overrun() for g in self.buffers):
                return {"reason": "crashed", "message": "it wrote outside its buffers"}
            if [g.checksum() for g in self.outputs] != first:
                return {
                    "reason": "wrong",
                    "message": "a second run on the same inputs gave another result",
                }
            return {"reason": "", "seconds": times}
        finally:
            os.close(file)
            for guarded in self.buffers:
                guarded.free()

    def _times(self, run: Any) -> list[float]:
        """Samples of the kernel's time.

        A sample during which another program takes a core (a parallel loop then waits for whole
        scheduling periods) says nothing about the kernel: samples far above the least are left
        out, and more are taken in their place while the budget lasts.
        """
        budget = float(self.request["seconds"])
        once = min(run(2, 1))
        inner = max(1, round(50e-6 / max(once, 1e-9)))
        count = int(min(15, max(3, budget / max(once * inner, 1e-9))))
        samples: list[float] = []
        calm: list[float] = []
        for _ in range(_SERIES):
            samples += run(count, inner)
            calm = [t for t in samples if t <= _CALM * min(samples)]
            if len(calm) >= min(count, 5) or sum(samples) * inner > 4 * budget:
                break
        return calm if len(calm) >= 3 else samples

    def _map(self, row: dict[str, Any], file: int) -> Guarded:
        written = row["role"] == "write"
        guarded = Guarded(row["nbytes"], (file, row["offset"]), written)
        self.buffers.append(guarded)
        if written:
            self.outputs.append(guarded)
        return guarded

    def _kernel(self, file: int) -> Any:
        """Compiled code.

        Constants and their packs are taken from several copies in turn, so that weights stream
        from memory, as they do in a model larger than the last-level cache.
        """
        request, lib = self.request, native()
        if request.get("blas"):
            lib.bind_blas()
        library = cc.load(Path(request["library"]))
        entry = lib.address(library, request["entry"])
        rows = request["buffers"]
        fixed = {row["name"]: self._map(row, file) for row in rows}
        workspace = [self._fresh(request["workspace"])] if request["workspace"] else []
        tables = []
        for copy in range(max(1, int(request["copies"]))):
            here = dict(fixed)
            for row in rows:
                if copy and row["constant"]:
                    here[row["name"]] = self._copy(fixed[row["name"]])
            packs = [self._fresh(nbytes) for nbytes in request["packs"]]
            pointers = [here[name].address for name in request["params"]]
            pointers += [g.address for g in packs]
            if request["sizes"]:
                sizes = (c_long * len(request["sizes"]))(*request["sizes"])
                self.keep.append(sizes)
                pointers.append(ctypes.addressof(sizes))
            pointers += [g.address for g in workspace]
            table = (c_void_p * len(pointers))(*pointers)
            self.keep.append(table)
            if packs:
                pack = lib.address(library, request["entry"] + "_pack")
                ctypes.CFUNCTYPE(None, c_void_p, c_long)(pack)(
                    ctypes.addressof(table), self.threads
                )
            tables.append(ctypes.addressof(table))
        pointer_table = (c_void_p * len(tables))(*tables)

        def run(samples: int, inner: int) -> list[float]:
            ns = (ctypes.c_longlong * samples)()
            lib.time_kernel(entry, pointer_table, len(tables), samples, inner, self.threads, ns)
            return [n * 1e-9 / inner for n in ns]

        return run

    def _fresh(self, nbytes: int) -> Guarded:
        self.buffers.append(Guarded(nbytes))
        return self.buffers[-1]

    def _copy(self, source: Guarded) -> Guarded:
        copy = self._fresh(source.nbytes)
        ctypes.memmove(copy.address, source.address, source.nbytes)
        return copy

    def _routine(self, file: int) -> Any:
        """A library routine in Python, on torch tensors over the same memory."""
        import torch

        from luminal_lab.hlir.apply import torch_dtype
        from luminal_lab.runtime.library import library_code
        from luminal_lab.runtime.program import Routine
        from luminal_lab.search.candidate import LibraryKernel
        from luminal_lab.search.kernel_text import parse_kernel

        kernel = parse_kernel(self.request["routine"])
        assert isinstance(kernel, LibraryKernel)
        code = library_code(kernel)
        assert isinstance(code, Routine)
        torch.set_num_threads(self.threads)
        tensors = {}
        for row in self.request["buffers"]:
            guarded, buffer = self._map(row, file), kernel.buffers[row["name"]]
            dtype = torch_dtype(buffer.dtype)
            raw = (ctypes.c_char * max(guarded.nbytes, 1)).from_address(guarded.address)
            if 0 in buffer.shape:
                tensors[row["name"]] = torch.empty(buffer.shape, dtype=dtype)
                continue
            flat = torch.frombuffer(raw, dtype=dtype)
            tensors[row["name"]] = flat.as_strided(buffer.shape, buffer.element_strides)
        reads = [tensors[name] for name in kernel.reads]
        writes = [tensors[name] for name in kernel.writes]

        def run(samples: int, inner: int) -> list[float]:
            out = []
            for _ in range(samples):
                start = time.perf_counter()
                for _ in range(inner):
                    code.run(reads, writes)
                out.append((time.perf_counter() - start) / inner)
            return out

        return run


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request; failures of the job are answers too."""
    try:
        return _Bench(request).measure()
    except MemoryError as error:
        return {"reason": "over memory", "message": str(error) or "out of memory"}
    except LuminalError as error:
        return {"reason": "crashed", "message": str(error)}


def main() -> None:
    """Serve requests until standard input ends."""
    if sys.platform == "linux":  # die with the parent, even in the middle of a kernel
        _LIBC.prctl(1, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here, a dump is not
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Answers leave through a descriptor of their own: a library may print to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(LuminalError):  # those that need it say why it is not there
        native()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(handle(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
