"""What a search found: the best candidate, every row of the table, and why others lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab import files
from luminal_lab.errors import SearchError
from luminal_lab.search.budget import Budget
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.finalists import Finalist
from luminal_lab.search.machine import Machine
from luminal_lab.search.replay import Origin
from luminal_lab.search.target import Measurement

if TYPE_CHECKING:
    from pandas import DataFrame

    from luminal_lab.egraph.egraph import EGraph
    from luminal_lab.search.rejections import Rejections
    from luminal_lab.search.why import Why

_FORMAT = 2  # of a saved result
# What of a result is saved as it is.
_PLAIN = ("considered", "seed", "interrupted", "out_of_time", "complete", "timings", "seconds")


@dataclass(frozen=True)
class Row:
    """One candidate of one region.

    Arguments:
        region: Which region.
        instances: How often the program calls it.
        rank: Its place by predicted time, from 0.
        genome: A digest of its choices.
        kernels: Number of kernels.
        predicted: Seconds of one call, by the cost model.
        measured: Sum of its kernels' measured medians; None when some are not measured.
        iqr: Sum of the spreads.
        status: `"listed"`, `"verified"` or `"rejected"`.
        reason: Why it was rejected.
        rule: The rule that is to blame when it is wrong.
        program: Seconds of the whole program, timed in a fresh process, of the fastest finalist
            that it is part of; None when it is part of none.
        chosen: Whether the best candidate is made of it.
        genes: Its choices as plain data: what a replay rebuilds it from.
        texts: A digest of its kernels.
    """

    region: int
    instances: int
    rank: int
    genome: str
    kernels: int
    predicted: float
    measured: float | None = None
    iqr: float = 0.0
    status: str = "listed"
    reason: str = ""
    rule: str = ""
    program: float | None = None
    chosen: bool = False
    genes: tuple = field(default=(), repr=False)
    texts: str = ""


@dataclass(frozen=True)
class KernelRecord:
    """What is known about one kernel.

    Arguments:
        text: Its canonical text.
        schedule: The fastest schedule that was right, None for the default one.
        measurement: Of that schedule; None when it was not measured.
        tried: How many schedules were measured.
    """

    text: str
    schedule: Any = None
    measurement: Measurement | None = None
    tried: int = 0


@dataclass(frozen=True)
class Result:
    """See the module's text.

    Arguments:
        best: The candidate to build.
        rows: All listed candidates, region by region, by predicted time.
        rejected: How many genomes were rejected, by reason.
        considered: How many genomes were looked at.
        records: What is known about each kernel, by its text.
        budget: What was allowed.
        seed: Where it started.
        machine: What the predictions were made for.
        interrupted: Whether it was stopped early.
        out_of_time: Whether the budget's seconds ended it.
        complete: Whether it is known that there is no other candidate: all were looked at.
        finalists: The whole programs that were verified and timed in a fresh process.
        instances: For each rule that made something wrong, the smallest instance on which it
            fails.
        timings: Measurements that were made now; 0 when everything was remembered.
        origin: What it was made from; a replay compares it.
        seconds: How long it took.
    """

    best: Candidate
    rows: tuple[Row, ...]
    rejected: Mapping[str, int]
    considered: int
    records: Mapping[str, KernelRecord]
    budget: Budget
    seed: int
    machine: Machine = field(default_factory=Machine)
    interrupted: bool = False
    out_of_time: bool = False
    complete: bool = False
    finalists: tuple[Finalist, ...] = ()
    instances: Mapping[str, str] = field(default_factory=dict)
    timings: int = 0
    origin: Origin | None = None
    seconds: float = 0.0
    _make: Callable[[int], Candidate] | None = field(default=None, repr=False, compare=False)
    _egraph: EGraph | None = field(default=None, repr=False, compare=False)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Whole programs, best predicted first: the k-th takes each region's k-th row."""
        if self._make is None:
            return (self.best,)
        depth: dict[int, int] = {}
        for row in self.rows:
            depth[row.region] = max(depth.get(row.region, 0), row.rank + 1)
        return _Lazy(self._make, max(depth.values(), default=0))

    def table(self) -> DataFrame:
        """One row per listed candidate of each region, by predicted time.

        With the same seed and budget it is the same in every process, apart from the columns
        of times (`predicted_ms` follows the calibration of the machine).
        """
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "region": r.region,
                    "instances": r.instances,
                    "rank": r.rank,
                    "genome": r.genome,
                    "kernels": r.kernels,
                    "status": r.status,
                    "reason": r.reason,
                    "rule": r.rule,
                    "predicted_ms": r.predicted * 1e3,
                    "measured_ms": None if r.measured is None else r.measured * 1e3,
                    "iqr_ms": r.iqr * 1e3,
                    "program_ms": None if r.program is None else r.program * 1e3,
                    "chosen": r.chosen,
                }
                for r in self.rows
            ]
        ).astype({"measured_ms": float, "program_ms": float})

    def final_table(self) -> DataFrame:
        """One row per finalist: a whole program, verified and timed in a fresh process."""
        import pandas as pd

        rows = []
        for f in self.finalists:
            m = f.measurement
            rows.append(
                {
                    "candidate": f.name,
                    "genomes": " ".join(f.genomes),
                    "kernels": f.kernels,
                    "predicted_ms": f.predicted * 1e3,
                    "program_ms": float("nan") if not m or not m.seconds else m.median * 1e3,  # type: ignore[operator]
                    "iqr_ms": float("nan") if not m or not m.seconds else m.iqr * 1e3,
                    "max_error": float("nan") if m is None else m.max_error,
                    "status": "not timed" if m is None else "verified" if m.ok else "rejected",
                    "reason": "" if m is None else m.reason,
                    "rule": f.rule,
                    "chosen": f.name == self.best.name,
                }
            )
        return pd.DataFrame(rows)

    def rejections(self) -> Rejections:
        """What became of all genomes: `.table()` of counts by reason, `.cases(reason)`.

        The counts add up to all that were considered. A case says which candidate or kernel,
        what was said, and, where it is known, the rule that is to blame with the smallest
        instance on which it fails.
        """
        return import_module("luminal_lab.search.rejections").rejections(self)

    def why(self, candidate: Candidate | None = None) -> Why:
        """Where a candidate's time goes, and what each of its choices saves.

        Arguments:
            candidate: One of `candidates`; the best one when None.

        Returns:
            An object with `.table()` (the kernels: calls, predicted and measured time, share,
            what bounds it, whether the runner-up has it too) and `.choice_table()` (each choice
            in which the runner-up differs, and the time that it alone saves).
        """
        # By name: it imports this module's neighbours, which import this one.
        return import_module("luminal_lab.search.why").why(self, candidate)

    def text(self) -> str:
        """The table and the rejections as text."""
        lines = [repr(self), "", self.table().to_string(index=False), ""]
        return "\n".join([*lines, self.rejections().table().to_string(index=False)])

    def graph(self) -> Any:
        """The best candidate's graph."""
        return self.best.graph()

    def diff(self, other: Result) -> str:
        """Which listed candidates differ, and how the best ones do."""
        mine = {(r.region, r.genome) for r in self.rows}
        theirs = {(r.region, r.genome) for r in other.rows}
        return (
            f"{len(mine & theirs)} candidates in both, {len(mine - theirs)} only here,"
            f" {len(theirs - mine)} only there\n{self.best.diff(other.best)}"
        )

    def __repr__(self) -> str:
        verified = sum(r.status == "verified" for r in self.rows)
        lost = ", ".join(f"{n} {why}" for why, n in sorted(self.rejected.items()))
        stopped = ", all there are" if self.complete else ""
        stopped += ", interrupted" if self.interrupted else ""
        stopped += ", out of time" if self.out_of_time else ""
        return (
            f"Result({self.budget.effort}, seed {self.seed}): {self.considered} genomes,"
            f" {len(self.rows)} listed, {verified} verified{stopped}, {self.seconds:.2f} s\n"
            f"  not listed: {lost or 'none'}\n  best: {self.best!r}"
        )

    def widget(self) -> Any:
        """The result as an interactive panel for notebooks.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": repr(self)}
        with suppress(ImportError):  # the engine works without views
            bundle["text/html"] = import_module("luminal_lab.views.result").to_html(self)
        return bundle

    def save(self, path: str | Path) -> None:
        """Write it with its program and its best candidate, in one file.

        Raises:
            SearchError: when the file cannot be written.
        """
        data = {
            "version": _FORMAT,
            "rows": [asdict(r) for r in self.rows],
            "rejected": dict(self.rejected),
            "records": [asdict(r) for r in self.records.values()],
            "budget": asdict(self.budget),
            "machine": asdict(self.machine),
            "finalists": [asdict(f) for f in self.finalists],
            "origin": None if self.origin is None else asdict(self.origin),
            **{name: getattr(self, name) for name in _PLAIN},
            "instances": dict(self.instances),
        }
        with files.writing(path, "result", SearchError) as out:
            self.best.put(out)
            out.put("result.json", json.dumps(data, indent=1), compress=True)

    @staticmethod
    def load(path: str | Path) -> Result:
        """Read what `save` wrote (of the candidates, the best one).

        Raises:
            SearchError: when the file is not a saved result.
        """
        with files.reading(path, "result", SearchError) as archive:
            data = json.loads(archive.read("result.json"))
            version = data.pop("version")
            if version != _FORMAT:
                raise ValueError(f"it has format {version}, and this version reads {_FORMAT}")
            for r in (*data["records"], *data["finalists"]):
                if m := r["measurement"]:
                    m["seconds"] = tuple(m["seconds"])
                    r["measurement"] = Measurement(**m)
            data["records"] = {r["text"]: KernelRecord(**r) for r in data["records"]}
            data["rows"] = tuple(
                Row(**{**r, "genes": _tuples(r["genes"])}) for r in data["rows"]
            )
            data["finalists"] = tuple(
                Finalist(**{**f, "genomes": tuple(f["genomes"])}) for f in data["finalists"]
            )
            data["budget"] = Budget(**data["budget"])
            data["machine"] = Machine(**data["machine"])
            data["origin"] = data["origin"] and Origin.read(data["origin"])
            data["best"] = Candidate.get(archive)
            return Result(**data)

    def beside(self, egraph: EGraph) -> Result:
        """A result that was read from a file, beside the e-graph that it was found in.

        `candidates` are all of them again, and `why` compares choices. They are rebuilt when
        one is asked for first; when this is another e-graph, a `SearchError` says then what
        differs.
        """
        return import_module("luminal_lab.search.replay").beside(self, egraph)

    def with_programs(
        self, make: Callable[[int], Candidate], egraph: EGraph | None = None
    ) -> Result:
        """The same result, whose `candidates` are all of them and not only the best one.

        Arguments:
            make: The program of the k-th rows.
            egraph: What was searched; `why` compares choices in it.
        """
        return replace(self, _make=make, _egraph=egraph or self._egraph)


def _tuples(data: Any) -> Any:
    return tuple(_tuples(d) for d in data) if isinstance(data, list) else data


class _Lazy(Sequence[Candidate]):
    """Candidates that are assembled when they are looked at."""

    def __init__(self, make: Callable[[int], Candidate], n: int):
        self._make, self._n = make, n
        self._made: dict[int, Candidate] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(self._n))]
        if not -self._n <= k < self._n:
            raise IndexError(k)
        k %= self._n
        if k not in self._made:
            self._made[k] = self._make(k)
        return self._made[k]
