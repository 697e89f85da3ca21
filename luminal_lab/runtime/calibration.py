"""Measure the rates of this machine that the cost model divides by, once per machine."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from luminal_lab.errors import CacheError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cache import FileCache, digest
from luminal_lab.runtime.memory import Block
from luminal_lab.runtime.native import native
from luminal_lab.search.machine import Machine

CACHE = FileCache("machine")
_SOURCE = Path(__file__).with_name("calibrate.c")
_SAMPLES = 9
_SAMPLE_SECONDS = 1e-3
_DISTURBED = 0.1  # part of the processor time that others may take
_RATES = (
    "bandwidth", "l3_bandwidth", "l2_bandwidth", "dot_flops", "vector_flops", "special_ops"
)  # fmt: skip


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
        The machine.

    Raises:
        CompilerError: when there is no compiler.

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
    machine = _rounded(_measure(threads))
    # Kept even when other programs disturbed it: two processes must agree on what they use.
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


def _rounded(machine: Machine) -> Machine:
    """Two digits of each rate; more would only be noise."""
    rates = {name: float(f"{getattr(machine, name):.1e}") for name in (*_RATES, "launch")}
    return replace(machine, **rates)


def _measure(threads: int) -> Machine:
    chip = cc.cpu()
    lanes, registers = chip.vector_bytes // 4, 32 if chip.vector_bytes in (64, 16) else 16
    if chip.vector_bytes == 16 and "sse2" in chip.features:
        registers = 16
    rows = 12 if registers == 32 else 6
    native()  # before the kernels: they take ll_parallel_for from it
    flags = (f"-DLL_VW={lanes}", f"-DLL_MR={rows}")
    rates = cc.load(cc.shared_library([cc.Unit("calibrate.c", _SOURCE.read_text(), flags)]))
    l1, l2, l3 = cache_sizes()
    far = 6 * max(l3, 16 << 20)  # a last level that is split between chips holds more
    foreign = _Foreign()
    work = _Work(rates, Block(far))
    work.seconds("triad", far // 4, threads)  # touches every page, before anything is timed
    per_step = {
        "dot": 4096 // (2 * lanes) * 2 * rows * 2 * lanes,
        "simple": 4 * 4096,
        "special": 4096,
    }
    # Cores are taken to be independent where other programs kept them from showing it.
    alone = {name: count / work.seconds(name, 0, 1) for name, count in per_step.items()}
    speed = {n: threads * c / work.seconds(n, 0, threads) for n, c in per_step.items()}
    inner = l2 // 2 / work.seconds("triad", l2 // 8, 1)
    stream: list[float] = []
    for nbytes in (far, l3 // 2, threads * l2 // 2):
        few = max(1, threads // 2)
        best = min(work.seconds("triad", nbytes // 4, t) for t in {threads, few})
        stream.append(max(nbytes / best, *stream[-1:], 0.0))
    if foreign.share() > _DISTURBED:
        speed = {name: max(speed[name], threads * alone[name]) for name in speed}
        stream[2] = max(stream[2], threads * inner)
    return Machine(
        name=f"{chip.model}, {threads} threads",
        threads=threads,
        bandwidth=stream[0],
        l3_bandwidth=stream[1],
        l2_bandwidth=stream[2],
        dot_flops=speed["dot"],
        vector_flops=speed["simple"],
        special_ops=speed["special"],
        launch=work.launch(threads),
        l1=l1,
        l2=l2,
        l3=l3,
        vector_bytes=chip.vector_bytes,
        registers=registers,
    )


class _Foreign:
    """How much of the processors other programs use, from now on."""

    def __init__(self) -> None:
        self.busy, self.own = self._read()
        self.start = time.monotonic()

    def share(self) -> float:
        """Their part of all processor time since the start; 0 where it cannot be read."""
        busy, own = self._read()
        elapsed = (time.monotonic() - self.start) * (os.cpu_count() or 1)
        return max(0.0, (busy - self.busy) - (own - self.own)) / max(elapsed, 1e-9)

    @staticmethod
    def _read() -> tuple[float, float]:
        times = os.times()
        try:
            fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
            tick = os.sysconf("SC_CLK_TCK")
            user, nice, system, _, _, irq, soft = (int(f) / tick for f in fields[:7])
        except (OSError, ValueError):
            return 0.0, times.user + times.system
        return user + nice + system + irq + soft, times.user + times.system


class _Work:
    """Runs the calibration kernels on one block of memory.

    What a machine can do is the best of several short samples but one: what disturbs a sample
    makes it longer, and little makes it shorter.
    """

    def __init__(self, rates: ctypes.CDLL, block: Block):
        self.rates, self.native, self.block = rates, native(), block
        self.numbers = (ctypes.c_long * 3)(0, 1, 1)
        self.table = (ctypes.c_void_p * 2)(block.address, ctypes.addressof(self.numbers))
        self.tables = (ctypes.c_void_p * 1)(ctypes.addressof(self.table))

    def seconds(self, name: str, size: int, threads: int) -> float:
        """Seconds of one repetition of a kernel: the best but one of several samples."""
        entry = self.native.address(self.rates, f"ll_rate_{name}")
        self.numbers[:] = [size, 1, threads]
        once = min(self._samples(entry, 2, 1, threads))
        while once < _SAMPLE_SECONDS / 4:
            self.numbers[1] *= 4
            once = min(self._samples(entry, 2, 1, threads))
        self.numbers[1] = max(1, round(self.numbers[1] * _SAMPLE_SECONDS / once))
        return sorted(self._samples(entry, _SAMPLES, 1, threads))[1] / self.numbers[1]

    def launch(self, threads: int) -> float:
        """Seconds of an empty parallel loop."""
        assert self.native.empty is not None
        inner = 5
        return sorted(self._samples(self.native.empty, 40, inner, threads))[4] / inner

    def _samples(self, entry: int, count: int, inner: int, threads: int) -> list[float]:
        ns = (ctypes.c_longlong * count)()
        self.native.time_kernel(entry, self.tables, 1, count, inner, threads, ns)
        return [max(n, 1) * 1e-9 for n in ns]
