"""A saved search again: the same candidates rebuilt from their genes, without exploring.

A saved result says what it was made from: the program, the rules, what saturation gave. When
all of that is the same here, each row's genes rebuild its kernels, and the kernels' texts are
compared with the saved digest. Where anything differs, the error says what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import SearchError
from luminal_lab.search.extract import Extraction, Genome, Infeasible, Space

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, Part
    from luminal_lab.search.assemble import Assembler, RegionKernels
    from luminal_lab.search.candidate import Candidate
    from luminal_lab.search.result import KernelRecord, Result, Row

_SHOWN = 6  # lines of a difference


@dataclass(frozen=True)
class Origin:
    """What a result was made from.

    Arguments:
        version: Of this package.
        target: Of the e-graph.
        program: Digest of the program.
        rules: Digest of each rule by name.
        parts: Digest of each region's e-graph, and how it ended.
    """

    version: str
    target: str
    program: str
    rules: Mapping[str, str]
    parts: tuple[tuple[str, str], ...]

    @staticmethod
    def of(egraph: EGraph) -> Origin:
        """The origin of what is searched in an e-graph."""
        return Origin(
            import_module("luminal_lab").__version__,
            egraph.target,
            _digest(_program_lines(egraph.program.hlir)),
            {r.name: _digest([r.text]) for r in egraph.rules},
            tuple((_digest(_part_lines(p)), p.report.stopped) for p in egraph.parts),
        )

    @staticmethod
    def read(data: Any) -> Origin:
        """What `asdict` made, from JSON."""
        return Origin(**{**data, "parts": tuple(tuple(p) for p in data["parts"])})


def _digest(lines: Iterator[str] | Sequence[str]) -> str:
    sha = hashlib.sha256()
    for line in lines:
        sha.update(line.encode() + b"\n")
    return sha.hexdigest()[:16]


def _program_lines(hlir: Any) -> Iterator[str]:
    yield from (f"{s.name} {s.kind} {s.node}" for s in hlir.inputs)
    for node in hlir.nodes:
        attrs = sorted(node.attrs.items())
        yield f"{node.op} {node.operands!r} {node.shape} {node.dtype} {attrs!r}"
    for o in hlir.outputs:
        yield f"{o.name} {o.value!r} {o.shape} {o.mutates} {o.aliases}"


def _part_lines(part: Part) -> Iterator[str]:
    for cls in part.classes:
        yield f"{cls.sort} {cls.dtype} {cls.shape} {sorted(cls.free)}"
        yield from (f"{e.op} {e.children} {e.attrs!r}" for e in cls.nodes)


def texts_digest(texts: Sequence[str]) -> str:
    """Ten hex digits of the kernels of one row."""
    return _digest(texts)[:10]


def genome_of(space: Space, genes: Any) -> Genome:
    """A genome whose extraction has these genes, when the space is the one they come from.

    Raises:
        SearchError: when a gene names something that is not there.
    """
    stored, picks = genes
    choice = [options[0] if options else -1 for options in space.options]
    producer = [made[0] if made else -1 for made in space.producers]
    place = [False] * len(choice)
    for t, k in stored:
        if not (0 <= t < len(place) and k in space.producers[t]):
            raise SearchError(f"no e-node {k} makes the tensor of class {t}")
        place[t], producer[t] = True, k
    for c, k in picks:
        if not (0 <= c < len(choice) and k in space.options[c]):
            raise SearchError(f"class {c} has no e-node {k} to choose")
        choice[c] = k
    return Genome(tuple(choice), tuple(place), tuple(producer))


def rebuilt(kernels: RegionKernels, row: Row) -> Extraction:
    """The extraction of a saved row.

    Raises:
        SearchError: when it cannot be made, or is another one than was saved.
    """
    where = f"region {row.region}, rank {row.rank}, genome {row.genome}"
    try:
        genome = genome_of(kernels.space, row.genes)
        extraction = kernels.space.extract(genome)
    except (SearchError, Infeasible, ValueError, TypeError) as error:
        raise SearchError(f"the genome cannot be rebuilt: {error}", where=where) from error
    if kernels.space.genes(extraction) != row.genes:
        raise SearchError("the genome gives another candidate here", where=where)
    digest = texts_digest([s.text for s in kernels.steps(extraction)])
    if digest != row.texts:
        raise SearchError(
            f"the genome gives other kernels here: {digest}, and {row.texts} were saved",
            where=where,
        )
    return extraction


def replay(
    saved: Result | str | Path, egraph: EGraph, assembler: Assembler
) -> tuple[Result, list[list[Extraction]]]:
    """A saved result with its candidates rebuilt from an e-graph.

    Arguments:
        saved: The result, or the file that it was saved in.
        egraph: What the same program saturates to here.
        assembler: Of this e-graph.

    Returns:
        The result, and the extraction of each row by region.

    Raises:
        SearchError: with everything that differs.
    """
    from luminal_lab.search.result import Result

    where = None if isinstance(saved, Result) else str(saved)
    if not isinstance(saved, Result):
        saved = Result.load(saved)
    if saved.origin is None:
        raise SearchError(
            "this result does not say what it was made from", where=where,
            fix="save the result of a search, not one that was put together by hand",
        )  # fmt: skip
    here = Origin.of(egraph)
    told = list(_differences(saved, here, egraph))
    if told:
        if saved.origin.version != here.version:
            told.append(f"the version: {saved.origin.version} saved it, this is {here.version}")
        raise SearchError(
            "the saved search cannot be replayed; what differs:\n  " + "\n  ".join(told),
            where=where,
            fix="replay it with the program and rules that it was made from, or search anew",
        )
    made: list[list[Extraction]] = [[] for _ in assembler.regions]
    for row in saved.rows:
        made[row.region].append(rebuilt(assembler.regions[row.region], row))
    best = replace(chosen_candidate(saved, made, assembler), hlir=egraph.program.hlir)
    if best.text() != saved.best.text():
        raise SearchError(
            f"the best candidate is another one here:\n{saved.best.diff(best)}", where=where
        )
    return replace(saved, best=best), made


def beside(result: Result, egraph: EGraph) -> Result:
    """See `Result.beside`."""
    from luminal_lab.search.assemble import Assembler

    @cache
    def again() -> tuple[Assembler, list[list[Extraction]]]:
        assembler = Assembler(egraph, result.machine)
        return assembler, replay(result, egraph, assembler)[1]

    def program(k: int) -> Candidate:
        assembler, made = again()
        rows = [row[min(k, len(row) - 1)] for row in made]
        return scheduled(assembler.candidate(rows), assembler, result.records)

    return result.with_programs(program, egraph)


def _differences(saved: Result, here: Origin, egraph: EGraph) -> Iterator[str]:
    there = saved.origin
    assert there is not None
    if there.target != here.target:
        yield f"the target: {there.target!r} was searched for, this is {here.target!r}"
    if there.program != here.program:
        lines = str(saved.best.hlir.diff(egraph.program.hlir)).splitlines()
        more = [f"  … {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
        yield "\n    ".join(["the program:", *lines[:_SHOWN], *more])
    for word, names in (
        ("are missing here", there.rules.keys() - here.rules.keys()),
        ("are new here", here.rules.keys() - there.rules.keys()),
        (
            "have another text here",
            {n for n, d in there.rules.items() if here.rules.get(n, d) != d},
        ),
    ):
        if names:
            yield f"the rules: {', '.join(sorted(names))} {word}"
    if there.program == here.program and there.rules == here.rules:
        for k, (a, b) in enumerate(zip(there.parts, here.parts)):
            if a[0] != b[0]:
                yield f"the e-graph of region {k}: it ended as {a[1]!r}, here as {b[1]!r}"


def chosen_candidate(
    saved: Result, made: Sequence[Sequence[Extraction]], assembler: Assembler
) -> Candidate:
    """The candidate that a saved result chose, from the extractions of its rows."""
    picked: list[Extraction | None] = [None] * len(assembler.regions)
    for row in saved.rows:
        if row.chosen:
            rank = sum(r.region == row.region for r in saved.rows[: saved.rows.index(row)])
            picked[row.region] = made[row.region][rank]
    if any(p is None for p in picked):
        raise SearchError("the saved result does not say which candidate of a region it chose")
    return scheduled(
        assembler.candidate([p for p in picked if p is not None]), assembler, saved.records
    )


def scheduled(
    candidate: Candidate, assembler: Assembler, records: Mapping[str, KernelRecord]
) -> Candidate:
    """A candidate with the best known schedule of each kernel."""
    texts = assembler.texts(candidate)
    schedules = tuple(records[t].schedule if t in records else None for t in texts)
    return replace(candidate, schedules=schedules)
