"""What a candidate is compared with: its program as captured, and as fusion alone makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from luminal_lab.search.assemble import Assembler, RegionKernels
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.cost import kernel_cost
from luminal_lab.search.extract import Extraction, Genome, Infeasible
from luminal_lab.search.seeds import (
    encoder_choice,
    everything_stored,
    first_producers,
    reductions_stored,
    sums_and_images,
)

if TYPE_CHECKING:
    from luminal_lab.search.machine import Machine

CAPTURED = "as captured: one kernel per operation"
FUSED = "fused, no law of arithmetic used"


@dataclass(frozen=True)
class Rung:
    """One program on the way from what was captured to a candidate.

    Arguments:
        what: Which program it is.
        calls: Calls of kernels in a run.
        traffic: Bytes that they move to and from memory, by the cost model.
        seconds: Predicted for a run.
        measured: Seconds of a run: of the whole program in a fresh process where that was
            timed, else the sum of its kernels; None when it is not known.
    """

    what: str
    calls: int
    traffic: float
    seconds: float
    measured: float | None = None


def rung(
    what: str, candidate: Candidate, machine: Machine, measured: float | None = None
) -> Rung:
    """A candidate as a rung."""
    traffic = [kernel_cost(k, machine).traffic for k in candidate.kernels]
    calls = [c.kernel for c in candidate.calls if not c.at_build]
    return Rung(what, len(calls), sum(traffic[k] for k in calls), candidate.seconds,
                measured)  # fmt: skip


def ladder(assembler: Assembler, machine: Machine) -> Iterator[Rung]:
    """The program as captured, and the fastest one that fusion alone makes of it.

    What cannot be extracted is left out.
    """
    for what, choose in ((CAPTURED, _captured), (FUSED, _fused)):
        chosen = [choose(region) for region in assembler.regions]
        if all(x is not None for x in chosen):
            yield rung(what, assembler.candidate(chosen), machine)  # type: ignore[arg-type]


def _captured(kernels: RegionKernels) -> Extraction | None:
    return _fastest(kernels, [everything_stored])


def _fused(kernels: RegionKernels) -> Extraction | None:
    return _fastest(kernels, [sums_and_images, reductions_stored, _nothing, everything_stored])


def _nothing(space) -> tuple[bool, ...]:
    return (False,) * len(space.part.classes)


def _fastest(kernels: RegionKernels, places: Sequence[Callable]) -> Extraction | None:
    """The fastest extraction of what the program itself wrote, with these tensors stored."""
    space = kernels.space
    written, producers = encoder_choice(space), first_producers(space)
    found = []
    for stored in places:
        try:
            found.append(space.extract(Genome(written, stored(space), producers)))
        except Infeasible:
            continue
    return min(found, key=lambda x: sum(kernels.seconds(x)), default=None)
