"""The rates of this machine that the cost model divides by: measured once, then remembered.

They are remembered with their quality. Rates that were taken on a busy machine are measured
again now and then, and replaced once it is quiet. On a machine that is always busy they stay as
they are: other rates would list other candidates, and the search would measure anew. Rates that
a measurement has contradicted (a kernel that would be faster than the memory) are measured
again at once.

`$LUMINAL_MACHINE` names a saved `Machine` whose rates and cache sizes are used instead: whoever
wants the same candidates on two machines, as a test suite does, fixes what they are ranked by.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version

from luminal_lab.errors import CacheError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime import rates
from luminal_lab.runtime.cache import FileCache, digest
from luminal_lab.runtime.rates import Quality, cache_sizes
from luminal_lab.search.machine import Machine

CACHE = FileCache("machine")
_AGAIN = 600.0  # seconds after which a new process measures disturbed rates again
_TRUSTED = 60.0  # seconds for which good rates are not doubted again
_KNOWN: dict[tuple[str, str], Calibration] = {}  # of this process, by cache folder and key

__all__ = ["Calibration", "cache_sizes", "calibrate", "calibration", "contradict"]


@dataclass(frozen=True)
class Calibration:
    """The rates of a machine, and how far they can be believed."""

    machine: Machine
    quality: Quality

    def __str__(self) -> str:
        m = self.machine
        return (
            f"memory {m.bandwidth / 1e9:.0f} GB/s, last-level cache {m.l3_bandwidth / 1e9:.0f}"
            f" GB/s, products {m.dot_flops / 1e9:.0f} GFLOP/s, launch {m.launch * 1e6:.2f} µs:"
            f" {self.quality}"
        )


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
        CacheError: when `$LUMINAL_MACHINE` names a file that is not a saved `Machine`.

    >>> calibrate().bandwidth > 1e8
    True
    """
    return calibration(threads, fresh=fresh).machine


def calibration(threads: int | None = None, *, fresh: bool = False) -> Calibration:
    """`calibrate`, with the quality of what it returns."""
    threads = threads or thread_count()
    given = os.environ.get("LUMINAL_MACHINE")
    if given:
        return _given(given, threads)
    key = _key(threads)
    here = (str(CACHE.root), key)
    old = _KNOWN.get(here) or _stored(key)
    if old is not None and not fresh:
        age = time.time() - old.quality.when
        if here in _KNOWN or old.quality.good or 0 <= age < _AGAIN:
            _KNOWN[here] = old
            return old
    machine, quality = rates.measure(threads)
    if old is not None:
        if not (fresh or quality.good or old.quality.contradicted):
            return _remember(key, replace(old, quality=replace(old.quality, when=quality.when)))
        machine = rates.merged(machine, quality, old.machine, old.quality)
    return _remember(key, Calibration(rates.rounded(machine), quality))


def contradict(threads: int, what: str) -> Calibration:
    """Measure again, since a kernel was faster than the rates allow.

    Arguments:
        threads: Threads that kernels run on.
        what: What contradicts the rates, in a few words.

    Returns:
        The rates, rate by rate at least what they were. What still contradicts them then is
        the measurement's fault: good rates are not measured again within a minute.
    """
    old = calibration(threads)
    if old.quality.given:
        return old
    key = _key(threads)
    if old.quality.good and 0 <= time.time() - old.quality.when < _TRUSTED:
        return old
    _remember(key, replace(old, quality=replace(old.quality, contradicted=what)))
    return calibration(threads, fresh=True)


def _given(path: str, threads: int) -> Calibration:
    """The rates in a file; what code for this machine must not exceed stays the machine's."""
    here = cc.cpu()
    machine = replace(
        Machine.load(path),
        threads=threads,
        vector_bytes=here.vector_bytes,
        registers=rates.vector_registers(here),
    )
    return Calibration(machine, Quality(given=path))


def _key(threads: int) -> str:
    return digest(fingerprint(threads), rates.SOURCE.read_text())


def _stored(key: str) -> Calibration | None:
    path = CACHE.get(key, ".json")
    if path is None:
        return None
    try:
        machine = Machine.load(path)
        data = json.loads(path.read_text()).get("quality", {})
        known = {f.name for f in fields(Quality)}
        return Calibration(machine, Quality(**{k: v for k, v in data.items() if k in known}))
    except (CacheError, TypeError, ValueError, AttributeError):
        CACHE.drop(path)
        return None


def _remember(key: str, made: Calibration) -> Calibration:
    data = {**asdict(made.machine), "quality": asdict(made.quality)}
    CACHE.put(key, ".json", json.dumps(data, indent=1, sort_keys=True).encode())
    _KNOWN[str(CACHE.root), key] = made
    return made
