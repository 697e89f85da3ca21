"""An EGraph in one file: its program, and its classes as JSON. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
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
from luminal_lab.hlir import storage
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.regions import partition

_FORMAT = 1


def save(egraph: EGraph, path: Path) -> None:
    """Write an e-graph with its program; the file appears whole or not at all.

    Raises:
        SaturationError: when it cannot be written, or has symbolic sizes.
    """
    if egraph.hlir.symbols:
        raise SaturationError(
            f"an e-graph with the symbolic sizes {', '.join(egraph.hlir.symbols)} has no file",
            fix="save the program, the candidate or the executable",
        )
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
        if data["format"] != _FORMAT or data["keys"] != [r.key for r in program.regions]:
            raise SaturationError(
                "the e-graph was saved by another version",
                where=str(path),
                fix="saturate the program again",
            )
        return EGraph(
            program,
            tuple(_part(d, program.regions[d["region"]].hlir) for d in data["parts"]),
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
                "shape": list(c.shape),
                "beside": c.beside,
                "nodes": [_node_data(n) for n in c.nodes],
            }
            for c in part.classes
        ],
        "node_class": sorted(part.node_class.items()),
        "outputs": part.outputs,
        "extents": dict(part.extents),
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
        return [asdict(node.attrs[0])]
    if node.op == "scatter":
        mode, points, index = node.attrs
        return [mode, list(map(str, points)), list(map(str, index))]
    return list(node.attrs)


def _attrs(op: str, data: list[Any]) -> tuple[Any, ...]:
    if op in ("load", "kernel"):
        return (tuple(map(Index.parse, data)),)
    if op == "iota":
        return (Index.parse(data[0]),)
    if op in ("gemm", "library"):
        form: Mapping[str, Any] = data[0]
        deep = {k: _tuple(v) for k, v in form.items()}
        return (GemmForm(**deep) if op == "gemm" else LibraryForm(**deep),)
    if op == "scatter":
        mode, points, index = data
        return mode, tuple(map(Index.parse, points)), tuple(map(Index.parse, index))
    return tuple(data)


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _part(data: Mapping[str, Any], hlir: Any) -> Part:
    report = data["report"]
    return Part(
        data["region"],
        tuple(
            EClass(
                k,
                c["sort"],
                tuple(
                    ENode(op, tuple(children), _attrs(op, attrs), rule, iteration)
                    for op, children, attrs, rule, iteration in c["nodes"]
                ),
                DTYPES[c["dtype"]],
                frozenset(c["free"]),
                tuple(c["shape"]),
                tuple(c["beside"]),
            )
            for k, c in enumerate(data["classes"])
        ),
        dict(data["node_class"]),
        tuple((name, c) for name, c in data["outputs"]),
        data["extents"],
        hlir,
        Report(
            tuple(Iteration(**i) for i in report["iterations"]),
            report["stopped"],
            Counts(**report["counts"]),
            report["encode_seconds"],
            report["dropped"],
        ),
    )
