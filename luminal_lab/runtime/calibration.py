"""Measure the rates of this machine that the cost model divides by, once per machine."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from luminal_lab.errors import CacheError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cache import FileCache, digest
from luminal_lab.runtime.memory import Block
from luminal_lab.runtime.native import native
from luminal_lab.search.machine import Machine

CACHE = FileCache("machine")
_SOURCE = Path(__file__).with_name("calibrate.c")
_SAMPLES = 5
_SAMPLE_SECONDS = 2e-3


def thread_count() -> int:
    """Threads that kernels run on: PyTorch's number, without importing PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def fingerprint(threads: int) -> str:
    """What timings depend on: chip, compiler, versions, threads.

    Raises:
        CompilerError: when there is no compiler.
    """
    chip, compiler = cc.cpu(), cc.discover()
    return "; ".join(
        (
            f"{chip.model} {chip.key}",
            compiler.version,
            digest(*compiler.flags)[:12],
            f"{threads} threads",
            f"torch {_version('torch')}",
            f"luminal-lab {_version('luminal-lab')}",
        )
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def calibrate(threads: int | None = None, *, fresh: bool = False) -> Machine:
    """The rates of this machine, measured in well under a second and then remembered.

    Arguments:
        threads: Threads that kernels will run on; PyTorch's number when None.
        fresh: Measure again, even if the cache has them.

    Returns:
        The machine; without a compiler a generic one with this machine's sizes.

    >>> calibrate().bandwidth > 1e8
    True
    """
    threads = threads or thread_count()
    key = digest(fingerprint(threads), _SOURCE.read_text())
    if not fresh and (path := CACHE.get(key, ".json")) is not None:
        try:
            return Machine.load(path)
        except CacheError:
            CACHE.drop(path)
    machine = _measure(threads)
    CACHE.put(key, ".json", json.dumps(asdict(machine), indent=1, sort_keys=True).encode())
    return machine


def cache_sizes() -> tuple[int, int, int]:
    """Bytes of the first- and second-level data cache of a core, and of the last level."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            sizes[level] = int(text.rstrip("KM")) * unit
    if sys.platform == "darwin":
        for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize")):
            out = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True)
            if out.stdout.strip().isdigit():
                sizes[level] = int(out.stdout)
    generic = Machine()
    l1 = sizes.get(1, generic.l1)
    l2 = sizes.get(2, generic.l2)
    return l1, l2, sizes.get(3, max(l2, generic.l2))


def _measure(threads: int) -> Machine:
    chip = cc.cpu()
    lanes, registers = chip.vector_bytes // 4, 32 if chip.vector_bytes in (64, 16) else 16
    if chip.vector_bytes == 16 and "sse2" in chip.features:
        registers = 16
    rows = 12 if registers == 32 else 6
    flags = (f"-DLL_VW={lanes}", f"-DLL_MR={rows}")
    native()  # before the kernels: they take ll_parallel_for from it
    rates = cc.load(cc.shared_library([cc.Unit("calibrate.c", _SOURCE.read_text(), flags)]))
    l1, l2, l3 = cache_sizes()
    far = 3 * max(l3, 16 << 20)
    block = Block(far)
    work = _Work(rates, block, threads)
    work.seconds("triad", far // 4, 1)  # every page is touched before anything is timed
    triads = []
    for nbytes in (far, l3 // 2, threads * l2 // 2):
        triads.append(nbytes / work.seconds("triad", nbytes // 4, 1, adapt=nbytes < far))
    steps = 4096 // (2 * lanes)
    flops = threads * steps * 2 * rows * 2 * lanes
    launch = work.launch()
    return Machine(
        name=f"{chip.model}, {threads} threads",
        threads=threads,
        bandwidth=triads[0],
        l3_bandwidth=max(triads[1], triads[0]),
        l2_bandwidth=max(triads[2], triads[1], triads[0]),
        dot_flops=flops / work.seconds("dot", 0, 1, adapt=True),
        vector_flops=threads * 4 * 4096 / work.seconds("simple", 0, 1, adapt=True),
        special_ops=threads * 4096 / work.seconds("special", 0, 1, adapt=True),
        launch=launch,
        l1=l1,
        l2=l2,
        l3=l3,
        vector_bytes=chip.vector_bytes,
        registers=registers,
    )


class _Work:
    """Runs the calibration kernels on one block of memory."""

    def __init__(self, rates: ctypes.CDLL, block: Block, threads: int):
        self.rates, self.threads, self.native = rates, threads, native()
        self.numbers = (ctypes.c_long * 3)(0, 1, threads)
        self.table = (ctypes.c_void_p * 2)(block.address, ctypes.addressof(self.numbers))
        self.tables = (ctypes.c_void_p * 1)(ctypes.addressof(self.table))

    def seconds(self, name: str, size: int, repeat: int, *, adapt: bool = False) -> float:
        """Median seconds of one repetition of a kernel; `adapt` finds enough repetitions."""
        entry = self.native.address(self.rates, f"ll_rate_{name}")
        self.numbers[0], self.numbers[1] = size, repeat
        if adapt:
            while (once := min(self._samples(entry, 2))) < _SAMPLE_SECONDS / 4:
                self.numbers[1] *= 4
            self.numbers[1] = max(1, round(self.numbers[1] * _SAMPLE_SECONDS / once))
        return median(self._samples(entry, _SAMPLES)) / self.numbers[1]

    def launch(self) -> float:
        """Median seconds of an empty parallel loop."""
        assert self.native.empty is not None
        inner = 50
        return median(self._samples(self.native.empty, 9, inner)) / inner

    def _samples(self, entry: int, count: int, inner: int = 1) -> list[float]:
        ns = (ctypes.c_longlong * count)()
        self.native.time_kernel(entry, self.tables, 1, count, inner, self.threads, ns)
        return [max(n, 1) * 1e-9 for n in ns]
