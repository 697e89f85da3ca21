"""What became of all genomes that a search looked at: counts by reason, and the cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import SearchError

if TYPE_CHECKING:
    from pandas import DataFrame

    from luminal_lab.search.result import Result

MEANING = {
    "accepted": "listed, or kept for the list",
    "cyclic": "a value would be computed from itself",
    "duplicate": "the same kernels as a genome that was there before",
    "no executable form": "a value has no form that can be computed here",
    "over length": "a kernel would have so many values that it takes long to compile",
    "over memory": "its temporaries, or a kernel's buffers, take more memory than allowed",
    "pruned": "right, but its predicted time is not among the best, so it is not listed",
    "compile failed": "the compiler rejected a kernel",
    "timed out": "a kernel took too long to compile or to run",
    "crashed": "the process that ran a kernel died",
    "wrong": "a kernel differs from the float64 reference",
    "nan": "a kernel gives NaN where the reference does not",
    "no schedule": "code generation has no schedule for a kernel",
}


@dataclass(frozen=True)
class Case:
    """One rejected thing.

    Arguments:
        reason: Why.
        kernel: The canonical text of a kernel; `""` when the case is a candidate.
        region: Of a candidate; None for a kernel.
        rank: Its place in the table; None for a kernel.
        genome: The digest of a candidate; `""` for a kernel.
        message: What the compiler, the comparison or the process said.
        rule: The rule that is to blame, `""` when none is.
        instance: The smallest instance on which that rule fails, `""` when it is not known.
    """

    reason: str
    kernel: str = ""
    region: int | None = None
    rank: int | None = None
    genome: str = ""
    message: str = ""
    rule: str = ""
    instance: str = ""

    @property
    def what(self) -> str:
        """What was rejected, in a few words."""
        if self.kernel:
            return "kernel " + " ".join(self.kernel.split())[:60]
        return f"candidate {self.genome} (region {self.region}, rank {self.rank})"


@dataclass(frozen=True)
class Rejections:
    """How many genomes ended how, and the cases that are known one by one.

    Arguments:
        counts: `(reason, count)`, most frequent first; the last is `"accepted"`. They add up to
            all that were considered.
        known: The rejected candidates and kernels.
    """

    counts: tuple[tuple[str, int], ...]
    known: tuple[Case, ...]

    @property
    def total(self) -> int:
        """How many genomes were considered."""
        return sum(n for _, n in self.counts)

    def table(self) -> DataFrame:
        """One row per reason: reason, count."""
        import pandas as pd

        return pd.DataFrame(list(self.counts), columns=["reason", "count"])

    def cases(self, reason: str | None = None) -> tuple[Case, ...]:
        """The cases of a reason (of all when None).

        Raises:
            SearchError: when nothing was rejected for that reason.
        """
        if reason is None:
            return self.known
        names = {r.partition(" (rule")[0] for r, _ in self.counts} | {r for r, _ in self.counts}
        if reason not in names:
            raise SearchError(
                f"nothing was rejected as {reason!r}",
                fix=f"one of {', '.join(sorted(names))}",
            )
        return tuple(c for c in self.known if c.reason == reason.partition(" (rule")[0])

    def text(self) -> str:
        """Reasons with their counts and cases."""
        wide = max((len(r) for r, _ in self.counts), default=0)
        out = []
        for reason, count in self.counts:
            plain = reason.partition(" (rule")[0]
            meaning = MEANING.get(plain, "")
            out.append(f"{count:>7,}  {reason:<{wide}}  {meaning}".rstrip())
            cases = [c for c in self.known if c.reason == plain]
            for c in cases[:3]:
                said = f": {c.message.splitlines()[0]}" if c.message else ""
                rule = f" (rule {c.rule})" if c.rule else ""
                out.append(f"           {c.what}{said}{rule}")
            if len(cases) > 3:
                out.append(f"           … {len(cases) - 3} more: .cases({plain!r})")
        return "\n".join([*out, f"{self.total:>7,}  in all"])

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.rejections")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


def rejections(result: Result) -> Rejections:
    """See `Result.rejections`."""
    reasons = sorted(result.rejected.items(), key=lambda p: (-p[1], p[0]))
    kept = result.considered - sum(result.rejected.values())
    return Rejections((*reasons, ("accepted", kept)), tuple(_cases(result)))


def _cases(result: Result) -> Iterator[Case]:
    for row in result.rows:
        if row.status == "rejected":
            yield Case(
                row.reason, "", row.region, row.rank, row.genome, "", row.rule,
                result.instances.get(row.rule, ""),
            )  # fmt: skip
    for text, record in result.records.items():
        found = record.measurement
        if found is not None and not found.ok:
            yield Case(found.reason or "compile failed", text, message=found.message)
