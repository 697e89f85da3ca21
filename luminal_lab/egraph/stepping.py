"""Saturation, one iteration at a time: what came in, what became equal, the e-graph so far."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.egraph import EGraph, ENode, Iteration, Part
from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.process import Child, Limits, PartResult
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.rulebook import Rulebook, load_rules
from luminal_lab.egraph.saturate import OnIteration, read_part
from luminal_lab.egraph.show import name_of, node_text
from luminal_lab.errors import SaturationError
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.regions import partition

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Added:
    """An e-node that an iteration made.

    Arguments:
        eclass: The class that it is in.
        enode: The e-node; `enode.rule` made it.
        text: Its op over the names of classes.
    """

    eclass: int
    enode: ENode
    text: str


@dataclass(frozen=True)
class Merged:
    """Classes that an iteration made one.

    Arguments:
        before: Their names in the step before.
        after: The name of the one class.
    """

    before: tuple[str, ...]
    after: str


@dataclass(frozen=True)
class Step:
    """One iteration of one region; number 0 is the program as it was encoded.

    Arguments:
        region: Which region.
        iteration: The record of the iteration: e-nodes, classes, matches and seconds by rule.
        added: The e-nodes that it made.
        merged: The classes that it made one.
        stopped: Why the region is done with this step; `""` while it is not.
        egraph: The e-graph so far: regions that are not done are as far as they came.
    """

    region: int
    iteration: Iteration
    added: tuple[Added, ...]
    merged: tuple[Merged, ...]
    stopped: str
    egraph: EGraph = field(repr=False)

    @property
    def number(self) -> int:
        """The number of the iteration."""
        return self.iteration.number

    @property
    def part(self) -> Part:
        """The region's e-graph so far."""
        return self.egraph.parts[self.region]

    def table(self) -> pd.DataFrame:
        """One row per e-node that it made: class, form, rule."""
        import pandas as pd

        view = import_module("luminal_lab.views.egraph")
        rows = [
            (name_of(self.part, a.eclass), view.form(self.part, a.enode), a.enode.rule)
            for a in self.added
        ]
        return pd.DataFrame(rows, columns=["class", "form", "rule"])

    def text(self) -> str:
        """What happened in this iteration."""
        return import_module("luminal_lab.views.stepping").to_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.stepping")
        return {"text/plain": self.text(), "text/html": str(view.to_html(self))}


class Stepping(Iterator[Step]):
    """An iterator over the iterations of a saturation; each `next` runs one.

    After the last one (or after `stop`), `egraph` is the e-graph that `saturate` would have
    returned. The child that saturates waits between two steps; it ends with this object.

    Example:
        >>> from luminal_lab.hlir import Graph, dtype
        >>> graph = Graph()
        >>> x = graph.input("x", (4, 8), dtype("f32"))
        >>> steps = Stepping(graph.finish((x * 2.0 * 0.5).sum(1)))
        >>> [step.number for step in steps][:2], steps.egraph.parts[0].report.stopped
        ([0, 1], 'saturated')
    """

    def __init__(
        self,
        hlir: Hlir,
        target: str = "cpu",
        rules: Any = None,
        limits: Limits | None = None,
        progress: OnIteration | None = None,
        *,
        regions: bool = True,
    ):
        """See `saturate`; nothing is run yet, but rules are read."""
        self.limits = limits or Limits()
        self.rulebook: Rulebook = load_rules(
            rules, self.limits.tolerance, target, self.limits.themes
        )
        self.program = partition(hlir, regions)
        self.target, self._progress = target, progress
        self.done: list[Step] = []
        self._egraph: EGraph | None = None
        self._run = self._iterate()

    def __iter__(self) -> Stepping:
        return self

    def __next__(self) -> Step:
        try:
            step = next(self._run)
        except KeyboardInterrupt:  # the child is gone; what was reached stays
            if self._egraph is not None:
                self._finish(self.done[-1].region, "interrupted")
            raise
        self.done.append(step)
        if self._progress is not None:
            self._progress(step.region, step.iteration)
        return step

    @property
    def egraph(self) -> EGraph:
        """The e-graph so far; the first step is run when none was."""
        if self._egraph is None:
            next(self)
        assert self._egraph is not None
        return self._egraph

    def run(self) -> EGraph:
        """Run what is left; the e-graph."""
        for _ in self:
            pass
        return self.egraph

    def stop(self) -> EGraph:
        """End here; the e-graph so far, whose reports say that it was stopped."""
        found = self.egraph
        self._run.close()
        parts = tuple(
            p if p.report.stopped else _stopped(p, "stopped by the caller") for p in found.parts
        )
        self._egraph = replace(found, parts=parts)
        return self._egraph

    def __enter__(self) -> Stepping:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.close()

    def table(self) -> pd.DataFrame:
        """One row per step: region, iteration, e-nodes, classes, what was made and merged."""
        import pandas as pd

        rows = [
            {
                "region": s.region,
                "iteration": s.number,
                "e-nodes": s.iteration.rows,
                "e-classes": s.iteration.classes,
                "matches": sum(s.iteration.matches.values()),
                "added": len(s.added),
                "merged": len(s.merged),
                "seconds": s.iteration.seconds,
                "stopped": s.stopped,
            }
            for s in self.done
        ]
        names = ["region", "iteration", "e-nodes", "e-classes", "matches", "added", "merged",
                 "seconds", "stopped"]  # fmt: skip
        return pd.DataFrame(rows, columns=names)

    def text(self) -> str:
        """The steps so far, one line each."""
        return import_module("luminal_lab.views.stepping").all_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.stepping")
        return {"text/plain": self.text(), "text/html": str(view.all_html(self))}

    # ------------------------------------------------------------------------------ running

    def _iterate(self) -> Generator[Step, None, None]:
        began = time.perf_counter()
        regions = self.program.regions
        with Child() as child:
            encodings = [
                encode(r.hlir, self.limits.copies, "tiles" in self.rulebook.wanted)
                for r in regions
            ]
            encoded = time.perf_counter()
            parts: list[Part] = []
            seconds = {"regions": 0.0, "encode": encoded - began, "saturate": 0.0, "read": 0.0}
            loads = [commands(e, self.rulebook.wanted) for e in encodings]
            for k, result in child.steps(self.rulebook, loads, self.limits):
                if result.stopped.startswith("the child died"):
                    self._finish(k, result.stopped)
                    return
                held = result
                first = len(parts) < len(regions)
                if first:  # every region as it was encoded
                    held = PartResult([_encoded(result)], result.state, "")
                start = time.perf_counter()
                part = read_part(k, regions[k].hlir, encodings[k], held, self.rulebook)
                seconds["read"] += time.perf_counter() - start
                seconds["saturate"] = sum(p.report.seconds for p in parts)
                seconds["total"] = sum(v for n, v in seconds.items() if n != "total")
                if first:
                    parts.append(part)
                    continue
                old, parts[k] = parts[k], part
                self._egraph = EGraph(
                    self.program,
                    tuple(parts),
                    self.target,
                    self.rulebook.rules,
                    self.limits,
                    dict(seconds),
                    self.rulebook.sources,
                )
                yield _step(k, old, part, self._egraph)

    def _finish(self, region: int, why: str) -> None:
        if self._egraph is None:
            raise SaturationError(
                f"saturation gave no e-graph: {why}",
                fix="lower Limits.rows or raise Limits.memory",
            )
        parts = list(self._egraph.parts)
        parts[region] = _stopped(parts[region], why)
        self._egraph = replace(self._egraph, parts=tuple(parts))


def _encoded(result: PartResult) -> dict[str, Any]:
    """The record of a region that was encoded and not saturated yet."""
    state = result.state or {}
    rows = sum(len(v) for n, v in state.items() if f"by_{n}" in state)
    return {
        "number": 0, "rows": rows, "classes": 0, "seconds": 0.0, "matches": {},
        "rule_seconds": {},
    }  # fmt: skip


def _stopped(part: Part, why: str) -> Part:
    return replace(part, report=replace(part.report, stopped=why))


def _step(region: int, old: Part, part: Part, egraph: EGraph) -> Step:
    record = part.report.iterations[-1]
    # A limit that is reached within an iteration ends it without a record.
    whole = record.number == 0 or record != old.report.iterations[-1]
    number = record.number if whole else record.number + 1
    added = tuple(
        Added(c.id, n, node_text(part, n))
        for c in part.classes
        for n in c.nodes
        if n.iteration == number
    )
    merged = () if number == 0 else tuple(_merged(old, part))
    return Step(region, record, added, merged, part.report.stopped, egraph)


def _merged(old: Part, new: Part) -> Iterator[Merged]:
    """The classes of one step that are one class of the next."""
    where = {(n.op, n.children, repr(n.attrs)): c.id for c in new.classes for n in c.nodes}
    became: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for c in old.classes:
            if c.id in became:
                continue
            for n in c.nodes:
                if all(x in became for x in n.children):
                    key = (n.op, tuple(became[x] for x in n.children), repr(n.attrs))
                    if key in where:
                        became[c.id] = where[key]
                        changed = True
                        break
    groups: dict[int, list[int]] = {}
    for c, now in became.items():
        groups.setdefault(now, []).append(c)
    for now, some in sorted(groups.items()):
        if len(some) > 1:
            names = tuple(name_of(old, c) for c in sorted(some))
            yield Merged(names, name_of(new, now))
