"""What cost model and code generation know about the machine: a handful of measured rates."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from luminal_lab.errors import CacheError


@dataclass(frozen=True)
class Machine:
    """Rates and sizes of one machine, all threads together unless said.

    The defaults describe a two-core server with AVX-512; `runtime.calibrate` measures the real
    ones. Cache sizes are bytes; `l1` and `l2` are per core, `l3` is shared.

    Arguments:
        name: What it is, for titles.
        threads: Threads that a kernel runs on.
        bandwidth: Bytes/s from and to main memory; an ordinary store moves its bytes twice.
        l3_bandwidth: Bytes/s from the last-level cache.
        l2_bandwidth: Bytes/s from the per-core caches.
        dot_flops: Flop/s of register-tiled products (a multiply-add is two).
        vector_flops: Flop/s of simple elementwise arithmetic on registers.
        special_ops: exp2, log2, sin, erf … per second.
        launch: Seconds to start a kernel on all threads and wait for it.
        l1: Bytes of the first-level data cache.
        l2: Bytes of the second-level cache.
        l3: Bytes of the last-level cache.
        vector_bytes: Width of a vector register in bytes.
        registers: Number of vector registers.
    """

    name: str = "generic"
    threads: int = 2
    bandwidth: float = 38e9
    l3_bandwidth: float = 90e9
    l2_bandwidth: float = 250e9
    dot_flops: float = 420e9
    vector_flops: float = 120e9
    special_ops: float = 9e9
    launch: float = 3e-6
    l1: int = 48 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    vector_bytes: int = 64
    registers: int = 32

    def lanes(self, element_bytes: int) -> int:
        """Elements of this size in one vector register."""
        return max(1, self.vector_bytes // element_bytes)

    def bandwidth_for(self, footprint: int) -> float:
        """Bytes/s at which a working set of `footprint` bytes streams.

        A cache does not stop working at one size: from half of its capacity to all of it, an
        ever larger part of the bytes comes from the level behind it.
        """
        inner, middle, outer = (
            1 / self.l2_bandwidth, 1 / self.l3_bandwidth, 1 / self.bandwidth
        )  # fmt: skip
        near = _mixed(footprint, self.threads * self.l2, inner, middle)
        return 1 / _mixed(footprint, self.l3, near, outer)

    def least_seconds(self, nbytes: int) -> float:
        """Seconds that moving so many bytes takes at least, when it is done again and again.

        What the last-level cache holds may still be there from the last time.
        """
        held = min(nbytes, self.l3)
        return held / self.l3_bandwidth + (nbytes - held) / self.bandwidth

    def streams(self, footprint: int) -> bool:
        """Whether results of a kernel that touches so many bytes had better go past the caches.

        Of a working set far beyond the last level little is left there for the next kernel.
        """
        return footprint > self.l3 * 3 // 2

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1, sort_keys=True))

    @staticmethod
    def load(path: str | Path) -> Machine:
        """Read what `save` wrote.

        Raises:
            CacheError: when the file is not such a file.
        """
        try:
            data = json.loads(Path(path).read_text())
            return Machine(**{f.name: data[f.name] for f in fields(Machine) if f.name in data})
        except (ValueError, TypeError, OSError) as error:
            raise CacheError(
                f"not a saved Machine: {error}",
                where=str(path),
                fix="`luminal-lab calibrate` measures again; `$LUMINAL_MACHINE`, if set, must"
                " name a file that `Machine.save` has written",
            ) from error


def _mixed(footprint: float, capacity: float, inside: float, behind: float) -> float:
    """Seconds per byte between those of a cache and those of what lies behind it."""
    missed = min(1.0, max(0.0, (footprint - capacity / 2) / max(capacity / 2, 1)))
    return inside + missed * (behind - inside)
