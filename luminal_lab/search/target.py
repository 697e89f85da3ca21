"""What the search asks of a target: its machine, its schedules, and measurements of kernels.

Search does not import code generation or the runtime; they implement this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Literal, Protocol, runtime_checkable

from luminal_lab.egraph.values import Kernel
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.machine import Machine

Reason = Literal["", "compile failed", "timed out", "crashed", "wrong", "nan", "over memory"]


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from float64: `|got - want| <= absolute + relative * |want|`.

    `absolute` already contains the scale of the output, so that sums which cancel are judged by
    the size of their terms.
    """

    absolute: float
    relative: float


@dataclass(frozen=True)
class Expected:
    """What a buffer must hold after a kernel ran.

    Arguments:
        points: Flat row-major positions that are compared (int64 tensor); None for all.
        values: The float64 values there (flat), or for integers and bool the exact ones.
        tolerance: For floats; integers and bool must be equal.
    """

    points: Any
    values: Any
    tolerance: Tolerance

    def check(self, got: Any) -> tuple[Reason, float, str]:
        """Compare a buffer's contents with what they must be.

        Arguments:
            got: A tensor of the buffer's shape and dtype.

        Returns:
            The reason of a rejection (`""` when right), the largest absolute error, a message.
        """
        import torch

        flat = got.reshape(-1)
        picked = flat if self.points is None else flat[self.points]
        want = self.values.reshape(-1)
        if not picked.dtype.is_floating_point:
            wrong = int((picked.to(want.dtype) != want).sum())
            return (
                ("wrong", float(wrong), f"{wrong} of {want.numel()} differ")
                if wrong
                else ("", 0.0, "")
            )
        have = picked.to(torch.float64)
        strange = ~torch.isfinite(have)
        agree = (have == want) | (torch.isnan(have) & torch.isnan(want))
        if bool((strange & ~agree & torch.isfinite(want)).any()):
            count = int((strange & ~agree).sum())
            return "nan", float("inf"), f"{count} of {want.numel()} values are NaN or infinite"
        error = torch.where(agree, 0.0, (have - want).abs())
        error = torch.nan_to_num(error, nan=float("inf"))
        bound = self.tolerance.absolute + self.tolerance.relative * want.abs()
        worst = float(error.max()) if error.numel() else 0.0
        if bool((error > torch.nan_to_num(bound, nan=0.0)).any()):
            at = int((error - torch.nan_to_num(bound, nan=0.0)).argmax())
            where = at if self.points is None else int(self.points[at])
            return (
                "wrong",
                worst,
                f"element {where}: got {float(have[at]):.9g}, want {float(want[at]):.9g}",
            )
        return "", worst, ""


@dataclass(frozen=True)
class Job:
    """One measurement to make: a kernel with a schedule, its inputs and what must come out.

    Arguments:
        kernel: In canonical form: its buffers are named `b0`, `b1`, ….
        schedule: Plain data of a `codegen.Schedule`; None for the default one.
        inputs: A torch tensor of the buffer's shape and dtype for each buffer that is read.
        expected: For each buffer that is written.
        timed: Whether to time it too, or only to verify it.
        recipes: How to make some of the inputs again elsewhere (`search.inputs.Recipe`).
        sizes: The values of the kernel's size symbols; inputs and expected are of these sizes.
    """

    kernel: Kernel | LibraryKernel
    schedule: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Expected] = field(default_factory=dict)
    timed: bool = True
    recipes: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """What became of a Job.

    Arguments:
        ok: Whether it compiled, ran and was right.
        seconds: Samples of its run time; empty when it was not timed.
        reason: Why not `ok`.
        message: The whole message of a failure.
        max_error: Largest absolute error against float64.
    """

    ok: bool
    seconds: tuple[float, ...] = ()
    reason: Reason = ""
    message: str = ""
    max_error: float = 0.0

    @property
    def median(self) -> float | None:
        """Median of the samples, None when there are none."""
        return median(self.seconds) if self.seconds else None

    @property
    def iqr(self) -> float:
        """Distance between the quartiles of the samples."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return high - low


@runtime_checkable
class Target(Protocol):
    """A device, as the search sees it."""

    @property
    def name(self) -> str:
        """`"cpu"`, `"cuda"` or `"mps"`."""
        ...

    def machine(self) -> Machine:
        """Its calibrated rates."""
        ...

    def fingerprint(self) -> str:
        """Text that changes when timings or generated code would: chip, compiler, version."""
        ...

    def schedules(self, kernel: Kernel) -> list[Any]:
        """Schedules of a kernel as plain data, the default one first.

        Raises:
            ScheduleError: when the target cannot run this kernel at all.
        """
        ...

    def measure(
        self,
        jobs: Iterable[Job],
        *,
        progress: Callable[[int], None] | None = None,
        deadline: float | None = None,
    ) -> Iterator[Measurement]:
        """Compile, verify and time jobs away from this process; one Measurement each, in order.

        Arguments:
            jobs: Taken from as measuring goes on: making a job may be expensive. When they
                have a length (or a length hint), work is divided accordingly.
            progress: Told how many are done.
            deadline: When to stop (`time.monotonic`), with fewer measurements than jobs.

        A failing job never raises: it is reported. What was yielded before an interrupt stays
        valid.
        """
        ...

    def programs(
        self,
        candidates: Sequence[Candidate],
        expected: Sequence[Mapping[str, Expected]],
        *,
        deadline: float | None = None,
    ) -> list[Measurement | None]:
        """Build, verify and time whole programs in turns, in a fresh process.

        Arguments:
            candidates: Programs of one Hlir, with their schedules.
            expected: For each, what its outputs must be on `search_inputs` with seed 0.
            deadline: When to stop (`time.monotonic`).

        Returns:
            A Measurement each, None for those that there was no time for.
        """
        ...
