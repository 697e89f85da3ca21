"""An EGraph in one file: its program, and its classes as JSON. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from luminal_lab import files
from luminal_lab.egraph.egraph import EClass, EGraph, ENode, Iteration, Part, Report
from luminal_lab.egraph.encode import Counts
from luminal_lab.egraph.gemm import GemmForm
from luminal_lab.egraph.library import LibraryForm
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.errors import SaturationError
from luminal_lab.hlir import sizes, storage
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.regions import partition
from luminal_lab.hlir.sizes import Dim, Size
from luminal_lab.hlir.symbolic import symbols_of

_FORMAT = 1
_SIZE = "$size"  # marks the text of a size in plain data


def save(egraph: EGraph, path: Path) -> None:
    """Write an e-graph with its program; the file appears whole or not at all.

    Raises:
        SaturationError: when it cannot be written.
    """
    data = {
        "format": _FORMAT,
        "target": egraph.target,
        "rules": [asdict(r) for r in egraph.rules],
        "limits": asdict(egraph.limits),
        "seconds": dict(egraph.seconds),
        "sources": egraph.sources,
        "keys": [r.key for r in egraph.program.regions],
        "parts": [_part_data(p) for p in egraph.parts],
    }
    with files.writing(path, "egraph", SaturationError) as out:
        storage.put(egraph.hlir, out)
        out.put("egraph.json", json.dumps(data), compress=True)


def load(path: Path) -> EGraph:
    """Read what `save` wrote.

    Raises:
        SaturationError: when the file is missing, damaged, or of another version.
    """
    with files.reading(path, "egraph", SaturationError) as archive:
        data = json.loads(archive.read("egraph.json"))
        hlir = storage.get(archive)
        program = partition(hlir)
        if data["keys"] != [r.key for r in program.regions]:
            program = partition(hlir, regions=False)
        if data["format"] != _FORMAT or data["keys"] != [r.key for r in program.regions]:
            raise SaturationError(
                "the e-graph was saved by another version",
                where=str(path),
                fix="saturate the program again",
            )
        reader = _Reader(
            {n: sizes.symbol(n, s.low, s.high, s.hint) for n, s in symbols_of(hlir).items()}
        )
        return EGraph(
            program,
            tuple(reader.part(d, program.regions[d["region"]].hlir) for d in data["parts"]),
            data["target"],
            tuple(RuleInfo(**r) for r in data["rules"]),
            Limits(**data["limits"]),
            data["seconds"],
            tuple((name, text) for name, text in data.get("sources", ())),
        )


def _part_data(part: Part) -> dict[str, Any]:
    return {
        "region": part.region,
        "classes": [
            {
                "sort": c.sort,
                "dtype": c.dtype.name,
                "free": sorted(c.free),
                "shape": _with_sizes(c.shape),
                "beside": c.beside,
                "nodes": [_node_data(n) for n in c.nodes],
            }
            for c in part.classes
        ],
        "node_class": sorted(part.node_class.items()),
        "outputs": part.outputs,
        "extents": _with_sizes(dict(part.extents)),
        "report": asdict(part.report),
    }


def _node_data(node: ENode) -> list[Any]:
    return [node.op, node.children, _attrs_data(node), node.rule, node.iteration]


def _attrs_data(node: ENode) -> list[Any]:
    if node.op in ("load", "kernel"):
        return [str(i) for i in node.attrs[0]]
    if node.op == "iota":
        return [str(node.attrs[0])]
    if node.op in ("gemm", "library"):
        form = node.attrs[0]
        return [{f.name: _with_sizes(getattr(form, f.name)) for f in fields(form)}]
    if node.op == "planes":
        index, order = node.attrs
        return [list(map(str, index)), order]
    if node.op == "scatter":
        mode, points, index = node.attrs
        return [mode, list(map(str, points)), list(map(str, index))]
    return list(node.attrs)


def _with_sizes(value: Any) -> Any:
    """Plain data in which a size is its text, marked as such."""
    if isinstance(value, Size):
        return {_SIZE: str(value)}
    if isinstance(value, dict):
        return {k: _with_sizes(v) for k, v in value.items()}
    return [_with_sizes(v) for v in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class _Reader:
    """Reads parts of an e-graph back.

    Arguments:
        symbols: The sizes of its program, by name.
    """

    symbols: Mapping[str, Dim]

    def part(self, data: Mapping[str, Any], hlir: Any) -> Part:
        """A saturated region."""
        report = data["report"]
        return Part(
            data["region"],
            tuple(self._class(k, c) for k, c in enumerate(data["classes"])),
            dict(data["node_class"]),
            tuple((name, c) for name, c in data["outputs"]),
            self._plain(data["extents"]),
            hlir,
            Report(
                tuple(Iteration(**i) for i in report["iterations"]),
                report["stopped"],
                Counts(**report["counts"]),
                report["encode_seconds"],
                report["dropped"],
            ),
        )

    def _class(self, number: int, data: Mapping[str, Any]) -> EClass:
        return EClass(
            number,
            data["sort"],
            tuple(
                ENode(op, tuple(children), self._attrs(op, attrs), rule, iteration)
                for op, children, attrs, rule, iteration in data["nodes"]
            ),
            DTYPES[data["dtype"]],
            frozenset(data["free"]),
            tuple(self._plain(data["shape"])),
            tuple(data["beside"]),
        )

    def _attrs(self, op: str, data: list[Any]) -> tuple[Any, ...]:
        if op in ("load", "kernel"):
            return (self._indices(data),)
        if op == "iota":
            return (self._indices(data)[0],)
        if op in ("gemm", "library"):
            deep = {k: _tuple(v) for k, v in self._plain(data[0]).items()}
            return (GemmForm(**deep) if op == "gemm" else LibraryForm(**deep),)
        if op == "planes":
            return self._indices(data[0]), tuple(data[1])
        if op == "scatter":
            mode, points, index = data
            return mode, self._indices(points), self._indices(index)
        return tuple(map(_tuple, data))

    def _indices(self, texts: list[str]) -> tuple[Index, ...]:
        return tuple(Index.parse(text, None, self.symbols) for text in texts)

    def _plain(self, data: Any) -> Any:
        if isinstance(data, dict):
            if data.keys() == {_SIZE}:
                return sizes.parse(data[_SIZE], self.symbols)
            return {k: self._plain(v) for k, v in data.items()}
        return [self._plain(v) for v in data] if isinstance(data, list) else data


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
