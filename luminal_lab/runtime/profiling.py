"""Time an executable kernel by kernel, and set each kernel against what the machine allows."""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from luminal_lab import files
from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.errors import CacheError, LuminalError
from luminal_lab.hlir.copies import span
from luminal_lab.runtime.calibration import calibrate, contradict
from luminal_lab.runtime.plan import reads_of, storage_bytes, writes_of
from luminal_lab.runtime.program import KernelCode
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.machine import Machine

if TYPE_CHECKING:
    from luminal_lab.runtime.executable import Executable

_SLACK = 1.15  # "faster than memory": beyond the measured bandwidth by more than this


@dataclass(frozen=True)
class CallTime:
    """One kernel call of a run.

    Arguments:
        call: Its position in the candidate's calls.
        kernel: Index of the kernel.
        name: The kernel's entry, or the routine's name.
        region: The layer that it belongs to.
        start: Seconds from the start of the run to its own, median over runs.
        seconds: Its time in each run.
    """

    call: int
    kernel: int
    name: str
    region: str
    start: float
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds."""
        return median(self.seconds)


@dataclass(frozen=True)
class KernelTime:
    """All calls of one kernel in a run.

    Arguments:
        kernel: Index of the kernel.
        name: Its entry, or the routine's name.
        calls: How often a run calls it.
        seconds: Time of all its calls together, in each run.
        bytes: Bytes that one call must read and write, each once.
        flops: Arithmetic of one call (a multiply-add is two).
        floor: Seconds that one call needs at the measured rates of the machine, were
            its operands in the last-level cache as far as they fit, the rest in main memory.
        outside: Whether its operands exceed that cache by far, so that `floor` binds.
    """

    kernel: int
    name: str
    calls: int
    seconds: tuple[float, ...]
    bytes: int
    flops: float
    floor: float
    outside: bool

    @property
    def median(self) -> float:
        """Median seconds of all calls together."""
        return median(self.seconds)

    @property
    def iqr(self) -> float:
        """Distance between the quartiles of the samples."""
        return spread(self.seconds)

    @property
    def faster_than_memory(self) -> bool:
        """Whether the time is too short to be true: something is wrong with the measurement."""
        return self.outside and self.median / self.calls * _SLACK < self.floor


@dataclass(frozen=True)
class Profile:
    """Times of an executable, kernel by kernel.

    Arguments:
        name: The program's name.
        machine: The rates that it is set against.
        calls: In execution order.
        kernels: The same by kernel.
        seconds: Whole calls, from Python to Python, in each run.
    """

    name: str
    machine: Machine
    calls: tuple[CallTime, ...]
    kernels: tuple[KernelTime, ...]
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        """Median seconds of a whole call."""
        return median(self.seconds)

    @property
    def overhead(self) -> float:
        """Median seconds of a call that no kernel accounts for."""
        return self.total - sum(k.median for k in self.kernels)

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, one dict per kernel, the longest first."""
        total = sum(k.median for k in self.kernels) or 1.0
        where: dict[int, list[str]] = {}
        for c in self.calls:
            where.setdefault(c.kernel, []).append(c.region)
        out = []
        for k in sorted(self.kernels, key=lambda k: -k.median):
            each = k.median / k.calls
            out.append(
                {
                    "kernel": k.kernel,
                    "name": k.name,
                    "region": span(where.get(k.kernel, ())),
                    "calls": k.calls,
                    "us": k.median * 1e6,
                    "iqr_us": k.iqr * 1e6,
                    "share": k.median / total,
                    "bytes": k.bytes,
                    "flops": k.flops,
                    "GB/s": k.bytes / each / 1e9 if each else 0.0,
                    "GF/s": k.flops / each / 1e9 if each else 0.0,
                    "floor_us": k.floor * k.calls * 1e6,
                    "faster than memory": k.faster_than_memory,
                }
            )
        return out

    def table(self):
        """One row per kernel as a pandas DataFrame: time, spread, rates, share of the whole."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def call_rows(self) -> list[dict[str, Any]]:
        """Plain data, one dict per call in execution order; times in microseconds."""
        return [
            {
                "call": c.call,
                "kernel": c.kernel,
                "name": c.name,
                "region": c.region,
                "start_us": c.start * 1e6,
                "us": c.median * 1e6,
                "iqr_us": spread(c.seconds) * 1e6,
            }
            for c in self.calls
        ]

    def timeline(self) -> Any:
        """A plotly figure of one run: a bar per call."""
        return import_module("luminal_lab.views.profile").timeline(self)

    def roofline(self) -> Any:
        """A plotly figure: rate over intensity of each kernel, under the measured ceilings."""
        return import_module("luminal_lab.views.profile").roofline(self)

    def graph(self):
        """A graphviz Digraph: calls in order, labelled with their times.

        Copies that call the same kernels are one box, with the sum of their times.
        """
        import graphviz

        dot = graphviz.Digraph("profile", node_attr={"shape": "box"})
        for k, same in enumerate(self._folded()[:300]):
            names, total = span(c.region for c in same), sum(c.median for c in same)
            times = f" ×{len(same)}" if len(same) > 1 else ""
            dot.node(str(k), f"{same[0].name}{times}\n{names}\n{total * 1e6:.1f} µs")
            if k:
                dot.edge(str(k - 1), str(k))
        return dot

    def _folded(self) -> list[list[CallTime]]:
        """Calls in order; those of copies that call the same kernels are together."""
        blocks: list[list[CallTime]] = []
        for c in self.calls:
            if blocks and c.region and blocks[-1][0].region == c.region:
                blocks[-1].append(c)
            else:
                blocks.append([c])
        places: dict[Any, list[list[CallTime]]] = {}
        for k, block in enumerate(blocks):
            same = tuple(c.kernel for c in block) if block[0].region else k
            found = places.setdefault(same, [[] for _ in block])
            for place, c in zip(found, block):
                place.append(c)
        return [place for found in places.values() for place in found]

    def text(self) -> str:
        """The table as text, with a bar for each kernel's share."""
        lines = [repr(self)]
        for r in self.rows():
            bar = "#" * round(30 * r["share"])
            flag = "  FASTER THAN MEMORY" if r["faster than memory"] else ""
            lines.append(
                f"{r['us']:>10.1f} µs ±{r['iqr_us']:<7.1f} {r['share']:>4.0%} {r['calls']:>4}x "
                f"{r['GB/s']:>7.1f} GB/s {r['GF/s']:>7.1f} GF/s  {r['name']:<28} {bar}{flag}"
            )
        return "\n".join(lines)

    def diff(self, other: Profile) -> str:
        """Kernels of both profiles side by side, by name; times in microseconds."""
        mine = {k.name: k.median * 1e6 for k in self.kernels}
        theirs = {k.name: k.median * 1e6 for k in other.kernels}
        lines = [f"{'this':>10} {'other':>10}  kernel"]
        for name in dict.fromkeys((*mine, *theirs)):
            cells = (f"{t[name]:.1f}" if name in t else "-" for t in (mine, theirs))
            lines.append(" ".join(f"{c:>10}" for c in cells) + f"  {name}")
        lines.append(f"{self.total * 1e6:>10.1f} {other.total * 1e6:>10.1f}  whole call")
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write it as a stage file.

        Raises:
            CacheError: when the file cannot be written.
        """
        with files.writing(path, "profile", CacheError) as out:
            out.put("profile.json", json.dumps(asdict(self), indent=1), compress=True)

    @staticmethod
    def load(path: str | Path) -> Profile:
        """Read what `save` wrote.

        Raises:
            CacheError: when the file is not a saved profile.
        """
        with files.reading(path, "profile", CacheError) as archive:
            data = json.loads(archive.read("profile.json"))
            return Profile(
                data["name"],
                Machine(**data["machine"]),
                tuple(CallTime(**{**c, "seconds": tuple(c["seconds"])}) for c in data["calls"]),
                tuple(
                    KernelTime(**{**k, "seconds": tuple(k["seconds"])}) for k in data["kernels"]
                ),
                tuple(data["seconds"]),
            )

    def __repr__(self) -> str:
        return (
            f"Profile({self.name}: {self.total * 1e3:.3f} ms a call "
            f"(±{spread(self.seconds) * 1e3:.3f}) in {len(self.calls)} kernel calls, "
            f"{self.overhead * 1e6:.1f} µs outside of kernels; {self.machine.name})"
        )

    def widget(self) -> Any:
        """The profile as an interactive panel for notebooks.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": self.text()}
        try:
            views = import_module("luminal_lab.views.profile")
        except ModuleNotFoundError:
            return bundle
        return {**bundle, "text/html": views.to_html(self)}


def profile(
    exe: Executable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    repeats: int = 20,
    warmup: int = 3,
    seconds: float = 10.0,
) -> Profile:
    """Time an executable kernel by kernel.

    Arguments:
        exe: What to run.
        args: Its inputs.
        kwargs: Its keyword inputs.
        repeats: Timed runs.
        warmup: Runs before them.
        seconds: No further run is started after so many.

    Returns:
        The profile; the clock is read twice per kernel call (about 50 ns).

    Raises:
        LuminalError: when the reference interpreter runs the program.
    """
    program = exe.program
    if program is None:
        raise LuminalError(
            "the reference interpreter has no kernels to time", fix="install a C compiler"
        )
    leaves = exe.signature.flatten(tuple(args), dict(kwargs or {}))
    count = len(program.events)
    start, stop = ((ctypes.c_longlong * max(count, 1))() for _ in range(2))

    def timed(frame: Any, threads: int, local: Mapping[str, Any]) -> None:
        program.run_timed(frame, threads, local, start, stop)

    whole: list[float] = []
    begins: list[list[float]] = [[] for _ in range(count)]
    times: list[list[float]] = [[] for _ in range(count)]
    limit = time.monotonic() + seconds
    for k in range(warmup + repeats):
        before = time.perf_counter()
        exe._execute(program, leaves, timed)
        elapsed = time.perf_counter() - before
        if k < warmup:
            continue
        whole.append(elapsed)
        first = min(start[:count], default=0)
        for e in range(count):
            begins[e].append((start[e] - first) * 1e-9)
            times[e].append((stop[e] - start[e]) * 1e-9)
        if time.monotonic() > limit:
            break
    calls = _calls(exe, begins, times)
    machine = calibrate()
    kernels = _kernels(exe, calls, machine)
    doubt = next((k for k in kernels if k.faster_than_memory), None)
    if doubt is not None:  # perhaps the rates were measured while something disturbed them
        rate = doubt.bytes * doubt.calls / doubt.median / 1e9
        machine = contradict(machine.threads, f"{doubt.name} moved {rate:.0f} GB/s").machine
        kernels = _kernels(exe, calls, machine)
    return Profile(exe.hlir.name, machine, calls, kernels, tuple(whole))


def _calls(
    exe: Executable, begins: Sequence[Sequence[float]], times: Sequence[Sequence[float]]
) -> tuple[CallTime, ...]:
    program = exe.program
    assert program is not None
    out = []
    for position, begin, seconds in zip(program.events, begins, times):
        call = exe.candidate.calls[position]
        code = program.code[call.kernel]
        name = code.entry if isinstance(code, KernelCode) else code.name
        out.append(
            CallTime(position, call.kernel, name, call.region, median(begin), tuple(seconds))
        )
    return tuple(sorted(out, key=lambda c: c.start))


def _kernels(
    exe: Executable, calls: Sequence[CallTime], machine: Machine
) -> tuple[KernelTime, ...]:
    out = []
    sized = exe.candidate if exe.program is None else exe.program.tuned.candidate
    for k, kernel in enumerate(sized.kernels):
        mine = [c for c in calls if c.kernel == k]
        if not mine:
            continue
        together = tuple(map(sum, zip(*(c.seconds for c in mine))))
        nbytes, flops = compulsory_bytes(kernel), arithmetic(kernel, machine)
        floor = max(machine.least_seconds(nbytes), flops / machine.dot_flops / _SLACK)
        out.append(
            KernelTime(
                k,
                mine[0].name,
                len(mine),
                together,
                nbytes,
                flops,
                floor,
                nbytes > 2 * machine.l3,
            )
        )
    return tuple(out)


def compulsory_bytes(kernel: Kernel | LibraryKernel) -> int:
    """Bytes that a call must move: what it reads of each operand, and what it writes, once."""
    if isinstance(kernel, LibraryKernel):
        names = dict.fromkeys((*reads_of(kernel), *writes_of(kernel)))
        return sum(storage_bytes(kernel.buffers[n]) for n in names)
    touched: dict[str, int] = {}
    for value in postorder(kernel.values()):
        if value.op == "load":
            points = 1
            for axis in value.free:
                points *= kernel.extents[axis]
            name = value.attrs[0]
            touched[name] = touched.get(name, 0) + points * kernel.buffers[name].dtype.bytes
    reads = sum(min(n, storage_bytes(kernel.buffers[b])) for b, n in touched.items())
    writes = 0
    for out in kernel.outputs:
        buffer = kernel.buffers[out.buffer]
        if out.scatter is None:
            writes += storage_bytes(buffer)
        else:  # the rest of its destination may stay where it is
            points = math.prod(kernel.extents[a] for a in out.axes)
            writes += min(points * buffer.dtype.bytes, storage_bytes(buffer))
    return reads + writes


def arithmetic(kernel: Kernel | LibraryKernel, machine: Machine) -> float:
    """Arithmetic of a call, as the cost model counts it."""
    from luminal_lab.search.cost import kernel_cost

    cost = kernel_cost(kernel, machine)
    return cost.dot + cost.vector + cost.special


def spread(samples: Sequence[float]) -> float:
    """Distance between the quartiles."""
    from statistics import quantiles

    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return high - low
