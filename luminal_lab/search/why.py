"""Why a candidate: where its time goes, and what each of its choices saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.names import tensor_names
from luminal_lab.egraph.show import name_of, node_text
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.candidate_text import title
from luminal_lab.search.cost import kernel_cost
from luminal_lab.search.extract import Extraction, Genome, Infeasible
from luminal_lab.search.kernel_text import kernel_text
from luminal_lab.search.ladder import Rung, ladder, rung
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.replay import genome_of

_LOOK = 64  # listed programs among which one is looked for by name

if TYPE_CHECKING:
    from pandas import DataFrame

    from luminal_lab.search.result import Result, Row


@dataclass(frozen=True)
class Choice:
    """One choice in which a candidate and the runner-up differ.

    Arguments:
        region: Its region.
        kind: `"storage"` (stored or computed in place), `"producer"` (which kernel or routine
            makes a tensor), or `"form"` (which member of a class computes a value).
        what: What is chosen about.
        mine, theirs: The two choices.
        predicted: Seconds that it saves by itself, in all calls: the predicted time with only
            this choice changed, less that of the candidate. None when it cannot be changed
            alone.
        measured: The same of measured times, where all kernels are known; else None.
        note: Why there is no figure.
    """

    region: int
    kind: str
    what: str
    mine: str
    theirs: str
    predicted: float | None
    measured: float | None
    note: str = ""


@dataclass(frozen=True)
class Why:
    """Why a candidate was chosen.

    Arguments:
        candidate: The candidate.
        runner_up: The name of the best other program, `""` when there is none: the fastest of
            the other programs that were timed whole, else the best predicted.
        saved: Predicted seconds that the candidate takes less than that.
        kernels: One record per kernel: see `table`.
        choices: What the two chose differently, and what each choice saves alone.
        note: Why there are no choices to compare.
        ladder: What laws and fusion are worth: the program as captured, fused without any law,
            the runner-up, and the candidate; empty for a result that was read from a file.
    """

    candidate: Candidate
    runner_up: str
    saved: float | None
    kernels: tuple[Mapping[str, Any], ...]
    choices: tuple[Choice, ...]
    note: str = ""
    ladder: tuple[Rung, ...] = ()

    def table(self) -> DataFrame:
        """One row per kernel: calls, predicted and measured time, share, what bounds it.

        `in_runner_up` says whether the runner-up has the same kernel.
        """
        import pandas as pd

        table = pd.DataFrame(list(self.kernels))
        if self.runner_up:
            table.attrs["runner_up"] = self.runner_up
            table.attrs["saved_ms"] = (self.saved or 0.0) * 1e3
        return table

    def choice_table(self) -> DataFrame:
        """One row per choice: what, both sides, and the milliseconds that it saves alone."""
        import pandas as pd

        rows = [
            {
                "region": c.region,
                "kind": c.kind,
                "what": c.what,
                "here": c.mine,
                "runner_up": c.theirs,
                "saves_ms": float("nan") if c.predicted is None else c.predicted * 1e3,
                "saves_measured_ms": float("nan") if c.measured is None else c.measured * 1e3,
                "note": c.note,
            }
            for c in self.choices
        ]
        names = ["region", "kind", "what", "here", "runner_up", "saves_ms",
                 "saves_measured_ms", "note"]  # fmt: skip
        return pd.DataFrame(rows, columns=names)

    def ladder_table(self) -> DataFrame:
        """One row per program of the ladder: calls, megabytes moved, times, predicted ratio."""
        import pandas as pd

        rows = [
            {
                "program": r.what,
                "calls": r.calls,
                "traffic_mb": r.traffic / 1e6,
                "predicted_ms": r.seconds * 1e3,
                "measured_ms": float("nan") if r.measured is None else r.measured * 1e3,
                "ratio": r.seconds / max(self.candidate.seconds, 1e-30),
            }
            for r in self.ladder
        ]
        names = ["program", "calls", "traffic_mb", "predicted_ms", "measured_ms", "ratio"]
        return pd.DataFrame(rows, columns=names)

    def text(self) -> str:
        """Kernels, then choices."""
        out = [f"candidate {self.candidate.name}: {_counted(len(self.kernels), 'kernel')}"]
        for r in self.ladder:
            out.append(
                f"  {_counted(r.calls, 'call'):>10}  {r.traffic / 1e6:10.2f} MB moved"
                f"  {r.seconds * 1e3:9.4f} ms  {r.what}"
                + ("" if r.measured is None else f" ({r.measured * 1e3:.4f} ms measured)")
            )
        for k in self.kernels:
            out.append(
                f"  k{k['kernel']} ×{k['calls']}  {k['predicted_ms']:.4f} ms"
                f" ({k['share']:.0%}, {k['bound']})  {k['computes']}"
            )
        if self.runner_up:
            more = "" if self.saved is None else "less" if self.saved < 0 else "more"
            takes = (
                f", which takes {abs(self.saved or 0.0) * 1e3:.4f} ms {more}" if more else ""
            )
            out.append(f"compared with {self.runner_up}{takes} (predicted)")
        for c in self.choices:
            figure = "" if c.predicted is None else f"saves {c.predicted * 1e3:.4f} ms alone"
            measured = "" if c.measured is None else f" ({c.measured * 1e3:.4f} ms measured)"
            said = figure + measured or c.note
            out.append(f"  {c.what}: {c.mine}, there {c.theirs}; {said}")
        if self.note:
            out.append(self.note)
        return "\n".join(out)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.why")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


def why(result: Result, candidate: Candidate | None = None) -> Why:
    """See `Result.why`."""
    mine = candidate or result.best
    other = _other(result, mine)
    theirs = {kernel_text(k) for k in other.kernels} if other else set()
    kernels = tuple(_kernels(result, mine, theirs))
    saved = other.seconds - mine.seconds if other is not None else None
    note, choices, rungs = "", (), ()
    if result._egraph is None:
        note = "the choices are not compared: this result was read from a file, without e-graph"
    else:
        assembler = Assembler(result._egraph, result.machine)
        rungs = (*ladder(assembler, result.machine), *_last(result, mine, other))
        choices = tuple(_choices(result, mine, assembler))
        if other is not None and not choices:
            note = "there is no other listed candidate to compare the choices with"
    return Why(mine, other.name if other else "", saved, kernels, choices, note, rungs)


def _kernels(result: Result, mine: Candidate, theirs: set[str]) -> Iterator[Mapping[str, Any]]:
    for k, kernel in enumerate(mine.kernels):
        calls = sum(c.kernel == k and not c.at_build for c in mine.calls)
        record = None if k in mine.written else result.records.get(kernel_text(kernel))
        median = record.measurement.median if record and record.measurement else None
        predicted = mine.predicted[k] if mine.predicted else float("nan")
        yield {
            "kernel": k,
            "computes": title(kernel),
            "calls": calls,
            "predicted_ms": predicted * calls * 1e3,
            "measured_ms": float("nan") if median is None else median * calls * 1e3,
            "share": predicted * calls / max(mine.seconds, 1e-30),
            "bound": kernel_cost(kernel, result.machine).bound,
            "in_runner_up": kernel_text(kernel) in theirs,
            "rules": ", ".join(kernel.rules),
        }


def _whole(result: Result) -> dict[str, float]:
    """Programs that were timed whole, all in turns, by name."""
    found = ((f.name, f.measurement) for f in result.finalists)
    return {name: m.median for name, m in found if m is not None and m.ok and m.median}


def _other(result: Result, mine: Candidate) -> Candidate | None:
    """The best other program: the fastest that was timed, else the best predicted one."""
    timed = _whole(result)
    timed.pop(mine.name, None)
    if timed:
        best = min(timed, key=timed.__getitem__)
        listed = islice(result.candidates, _LOOK)
        found = next((c for c in listed if c.name == best), None)
        if found is not None:
            return found
    return next((c for c in result.candidates if c.name != mine.name), None)


def _last(result: Result, mine: Candidate, other: Candidate | None) -> Iterator[Rung]:
    timed = _whole(result)
    if other is None or not {mine.name, other.name} <= timed.keys():
        timed = {}  # a whole program and a sum of kernels are not to be compared
    for what, c in (("the best other candidate", other), ("this candidate", mine)):
        if c is not None:
            measured = timed.get(c.name) or _sum_of_kernels(result, c)
            yield rung(f"{what}, {c.name}{_rank(result, c)}", c, result.machine, measured)


def _rank(result: Result, candidate: Candidate) -> str:
    """Where the table of candidates has it."""
    if candidate.written:
        return ""
    listed = enumerate(islice(result.candidates, _LOOK))
    rank = next((k for k, c in listed if c.name == candidate.name), None)
    return "" if rank is None or result._make is None else f" (rank {rank})"


def _sum_of_kernels(result: Result, candidate: Candidate) -> float | None:
    total = 0.0
    for call in candidate.calls:
        k = call.kernel
        record = result.records.get(kernel_text(candidate.kernels[k]))
        own = candidate.schedules[k] if k < len(candidate.schedules) else None
        if record is None or record.schedule != own or candidate.written:
            return None
        found = record.measurement
        if found is None or not found.ok or found.median is None:
            return None
        total += 0.0 if call.at_build else found.median
    return total


def _counted(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def _choices(result: Result, mine: Candidate, assembler: Assembler) -> Iterator[Choice]:
    for region, stored, picks in mine.choice:
        row = _runner_up(result, region, (stored, picks))
        if row is not None:
            yield from _Region(result, assembler, region, (stored, picks)).against(row)


def _runner_up(result: Result, region: int, genes: tuple) -> Row | None:
    """The next best listed row of a region: by measured time where it is known."""
    rows = [
        r for r in result.rows
        if r.region == region and r.status != "rejected" and r.genes and r.genes != genes
    ]  # fmt: skip
    timed = [r for r in rows if r.measured is not None]
    return min(timed or rows, key=lambda r: (r.measured or r.predicted, r.rank), default=None)


class _Region:
    def __init__(self, result: Result, assembler: Assembler, region: int, genes: tuple):
        self.result, self.region = result, region
        self.kernels = assembler.regions[region]
        self.space, self.part = self.kernels.space, self.kernels.part
        self.times = assembler.instances_of[region]
        self.search = RegionSearch(self.kernels)
        self.genes = genes
        self.genome = genome_of(self.space, genes)
        self.extraction = self.space.extract(self.genome)
        self.names = tensor_names(result._egraph, region)  # type: ignore[arg-type]

    def against(self, row: Row) -> Iterator[Choice]:
        """What another row chose differently."""
        g = self.genome
        (stored, picks), (their_stored, their_picks) = self.genes, row.genes
        mine, theirs = dict(stored), dict(their_stored)
        for t in sorted({*mine, *theirs}):
            name = f"tensor {self.names[t]}"
            if (t in mine) != (t in theirs):
                place = _put(g.place, t, t in theirs)
                producer = _put(g.producer, t, theirs.get(t, g.producer[t]))
                words = ("stored", "computed in place")
                a, b = words if t in mine else words[::-1]
                flipped = Genome(g.choice, place, producer)
                yield self._choice("storage", name, a, b, flipped)
            elif mine[t] != theirs[t]:
                a, b = (node_text(self.part, self.part.classes[t].nodes[k])
                        for k in (mine[t], theirs[t]))  # fmt: skip
                flipped = Genome(g.choice, g.place, _put(g.producer, t, theirs[t]))
                yield self._choice("producer", name, a, b, flipped)
        forms, their_forms = dict(picks), dict(their_picks)
        for c in sorted(forms.keys() & their_forms.keys()):
            if forms[c] != their_forms[c]:
                a, b = (node_text(self.part, self.part.classes[c].nodes[k])
                        for k in (forms[c], their_forms[c]))  # fmt: skip
                flipped = Genome(_put(g.choice, c, their_forms[c]), g.place, g.producer)
                yield self._choice("form", f"value {name_of(self.part, c)}", a, b, flipped)

    def _choice(self, kind: str, what: str, mine: str, theirs: str, flipped: Genome) -> Choice:
        try:
            other = self.space.extract(flipped)
        except Infeasible as error:
            note = f"cannot be changed alone: {error.reason}"
            return Choice(self.region, kind, what, mine, theirs, None, None, note)
        if self.space.genes(other) == self.space.genes(self.extraction):
            note = "changes nothing alone"
            return Choice(self.region, kind, what, mine, theirs, None, None, note)
        predicted = self.search.seconds(other) - self.search.seconds(self.extraction)
        times = [self._measured(x) for x in (other, self.extraction)]
        measured = None if None in times else (times[0] - times[1]) * self.times  # type: ignore[operator]
        return Choice(self.region, kind, what, mine, theirs, predicted * self.times, measured)

    def _measured(self, extraction: Extraction) -> float | None:
        total = 0.0
        for step in self.kernels.steps(extraction):
            record = self.result.records.get(step.text)
            if record is None or record.measurement is None or not record.measurement.ok:
                return None
            if not step.constant:
                total += record.measurement.median or 0.0
        return total


def _put(values: tuple, at: int, value: Any) -> tuple:
    return (*values[:at], value, *values[at + 1 :])
