"""Measure what this machine can do: bandwidths, arithmetic, the cost of a parallel loop.

A rate is the best that was seen: whatever disturbs a sample makes it slower. Samples are
short, so that some fall between the turns of other programs; they are taken in rounds, and two
rounds that agree are believed. When no two agree the rates are marked as disturbed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from luminal_lab.codegen.c_prelude import prelude
from luminal_lab.polling import poll
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.exclusive import timing
from luminal_lab.runtime.memory import Block
from luminal_lab.runtime.native import native
from luminal_lab.search.machine import Machine

SOURCE = Path(__file__).with_name("calibrate.c")
RATES = (
    "bandwidth", "l3_bandwidth", "l2_bandwidth", "dot_flops", "vector_flops", "special_ops"
)  # fmt: skip
AGREE = 0.1  # part by which two rounds may differ and still be believed
_SAMPLES = 5
_SAMPLE_SECONDS = 1e-3
_DISTURBED = 0.1  # part of the processor time that others may take
_STOLEN = 0.02  # part that the hypervisor may give to other machines
_ROUNDS = 2  # rounds on a quiet machine
_SECONDS = 1.5  # of further rounds on a disturbed one
_WAIT = 5.0  # seconds to wait for other measurements to end


@dataclass(frozen=True)
class Quality:
    """How far the rates of a machine can be believed.

    Arguments:
        spread: The largest part by which a rate differs between the two best rounds.
        rounds: How many rounds were measured.
        foreign: Part of the processor time that other programs took meanwhile.
        stolen: Part that a hypervisor kept back.
        when: When it was measured (`time.time`).
        contradicted: A measurement that has shown the rates to be too low, `""` for none.
        given: The file that they come from, `""` when they were measured.
    """

    spread: float = 0.0
    rounds: int = 0
    foreign: float = 0.0
    stolen: float = 0.0
    when: float = 0.0
    contradicted: str = ""
    given: str = ""

    @property
    def good(self) -> bool:
        """Whether to believe them: the user gave them, or two rounds agreed, undisturbed.

        Nothing may have contradicted them since.
        """
        quiet = self.foreign <= _DISTURBED and self.stolen <= _STOLEN
        agreed = self.rounds >= _ROUNDS and self.spread <= AGREE
        return bool(self.given) or (agreed and quiet and not self.contradicted)

    def __str__(self) -> str:
        if self.given:
            return f"given by {self.given}"
        found = f"{self.rounds} rounds, the best two within {self.spread:.0%}"
        if self.foreign > _DISTURBED:
            found += f", other programs took {self.foreign:.0%} of the processor"
        if self.stolen > _STOLEN:
            found += f", the hypervisor kept {self.stolen:.0%} of it"
        if self.contradicted:
            found += f"; contradicted: {self.contradicted}"
        return f"{'good' if self.good else 'disturbed'} ({found})"


def measure(threads: int) -> tuple[Machine, Quality]:
    """The rates for kernels on so many threads: about 0.2 s, up to 2 s on a busy machine.

    Raises:
        CompilerError: when there is no compiler.
    """
    bench = _Bench(threads)
    rounds: list[dict[str, float]] = []
    with timing(_WAIT):
        foreign, start = _Foreign(), time.monotonic()
        while True:
            rounds.append(bench.round())
            spread = _spread(rounds)
            quiet = foreign.share() <= _DISTURBED and foreign.stolen() <= _STOLEN
            enough = len(rounds) >= _ROUNDS and spread <= AGREE and quiet
            if enough or time.monotonic() - start > _SECONDS:
                break
        quality = Quality(
            round(spread, 3), len(rounds), round(foreign.share(), 3),
            round(foreign.stolen(), 3), round(time.time()),
        )  # fmt: skip
    best = {name: max(r[name] for r in rounds) for name in RATES}
    best["launch"] = min(r["launch"] for r in rounds)
    if not quality.good:  # cores are independent where others kept them from showing it
        for name in ("dot_flops", "vector_flops", "special_ops", "l2_bandwidth"):
            best[name] = max(best[name], threads * max(r[f"{name} alone"] for r in rounds))
    best["l3_bandwidth"] = max(best["l3_bandwidth"], best["bandwidth"])
    best["l2_bandwidth"] = max(best["l2_bandwidth"], best["l3_bandwidth"])
    return bench.machine(best), quality


def merged(machine: Machine, quality: Quality, old: Machine, before: Quality) -> Machine:
    """The better of two measurements of one machine, rate by rate; a good one stands alone."""
    if quality.good and not before.contradicted:
        return machine
    rates = {name: max(getattr(machine, name), getattr(old, name)) for name in RATES}
    return replace(machine, **rates, launch=min(machine.launch, old.launch))


def rounded(machine: Machine) -> Machine:
    """Two digits of each rate; more would only be noise."""
    rates = {name: float(f"{getattr(machine, name):.1e}") for name in (*RATES, "launch")}
    return replace(machine, **rates)


def _spread(rounds: list[dict[str, float]]) -> float:
    """The largest relative difference between the two best values of a rate."""
    if len(rounds) < 2:
        return 1.0
    worst = 0.0
    for name in RATES:
        best, second = sorted((r[name] for r in rounds), reverse=True)[:2]
        worst = max(worst, 1 - second / best)
    return worst


class _Bench:
    """The calibration kernels, compiled, and the memory that they run on."""

    def __init__(self, threads: int):
        self.threads, self.chip = threads, cc.cpu()
        lanes = self.chip.vector_bytes // 4
        self.registers = vector_registers(self.chip)
        rows = 12 if self.registers == 32 else 6
        native()  # before the kernels: they take ll_parallel_for from it
        flags = (f"-DLL_VW={lanes}", f"-DLL_MR={rows}")
        helpers = prelude(replace(Machine(), vector_bytes=self.chip.vector_bytes))
        unit = cc.Unit("calibrate.c", helpers + SOURCE.read_text(), flags)
        self.l1, self.l2, self.l3 = cache_sizes()
        self.far = 6 * max(self.l3, 16 << 20)  # a last level split between chips holds more
        self.work = _Work(cc.load(cc.shared_library([unit])), Block(self.far))
        self.work.seconds("far", self.far // 4, threads)  # touches every page, untimed
        self.counts = {
            "dot": 4096 // (2 * lanes) * 2 * rows * 2 * lanes,
            "simple": 4 * 4096,
            "special": 4096,
        }

    def round(self) -> dict[str, float]:
        """Each rate once."""
        work, threads, out = self.work, self.threads, {}
        names = {"dot_flops": "dot", "vector_flops": "simple", "special_ops": "special"}
        for rate, name in names.items():
            count = self.counts[name]
            out[f"{rate} alone"] = count / work.seconds(name, 0, 1)
            out[rate] = threads * count / work.seconds(name, 0, threads)
        out["l2_bandwidth alone"] = self.l2 // 2 / work.seconds("triad", self.l2 // 8, 1)
        sizes = {
            "bandwidth": self.far,
            "l3_bandwidth": self.l3 // 2,
            "l2_bandwidth": threads * self.l2 // 2,
        }
        for rate, nbytes in sizes.items():
            few = {threads, max(1, threads // 2)}
            name = "far" if rate == "bandwidth" else "triad"
            out[rate] = nbytes / min(work.seconds(name, nbytes // 4, t) for t in few)
        out["launch"] = work.launch(threads)
        return out

    def machine(self, rates: Mapping[str, float]) -> Machine:
        """The machine with these rates."""
        return Machine(
            name=f"{self.chip.model}, {self.threads} threads",
            threads=self.threads,
            launch=rates["launch"],
            l1=self.l1,
            l2=self.l2,
            l3=self.l3,
            vector_bytes=self.chip.vector_bytes,
            registers=self.registers,
            **{name: rates[name] for name in RATES},
        )


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


def vector_registers(chip: cc.Cpu) -> int:
    """Number of vector registers: 16 of SSE and AVX, 32 of AVX-512 and NEON."""
    if chip.vector_bytes == 16 and "sse2" in chip.features:
        return 16
    return 32 if chip.vector_bytes in (64, 16) else 16


class _Foreign:
    """How much of the processors others use, from now on."""

    def __init__(self) -> None:
        self.busy, self.own, self.steal = self._read()
        self.start = time.monotonic()

    def share(self) -> float:
        """Other programs' part of all processor time since; 0 where it cannot be read."""
        busy, own, _ = self._read()
        return max(0.0, (busy - self.busy) - (own - self.own)) / self._all()

    def stolen(self) -> float:
        """The part that the hypervisor kept back."""
        return max(0.0, self._read()[2] - self.steal) / self._all()

    def _all(self) -> float:
        return max(1e-9, (time.monotonic() - self.start) * (os.cpu_count() or 1))

    @staticmethod
    def _read() -> tuple[float, float, float]:
        times = os.times()
        own = times.user + times.system
        try:
            fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
            tick = os.sysconf("SC_CLK_TCK")
            user, nice, system, _, _, irq, soft, steal = (int(f) / tick for f in fields[:8])
        except (OSError, ValueError):
            return own, own, 0.0
        return user + nice + system + irq + soft, own, steal


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
        poll()
        ns = (ctypes.c_longlong * count)()
        self.native.time_kernel(entry, self.tables, 1, count, inner, threads, ns)
        return [max(n, 1) * 1e-9 for n in ns]
