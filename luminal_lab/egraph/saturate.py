"""`saturate`: Hlir → EGraph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from luminal_lab.collector import without_collector
from luminal_lab.egraph.egraph import EGraph, Iteration, Part, Report
from luminal_lab.egraph.encode import Encoding, encode
from luminal_lab.egraph.process import Child, Limits, PartResult
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.readout import extents_of, read_classes
from luminal_lab.egraph.rulebook import Rulebook, load_rules
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.regions import partition

OnIteration = Callable[[int, Iteration], None]


def saturate(
    hlir: Hlir,
    target: str = "cpu",
    rules: Any = None,
    limits: Limits | None = None,
    progress: OnIteration | None = None,
    *,
    regions: bool = True,
) -> EGraph:
    """Everything that the rules prove equal to a program, region by region.

    Arguments:
        hlir: The program; its dims are ints.
        target: Adds `rules/targets/<target>.egg` where it exists.
        rules: Further rules, as for `load_rules`.
        limits: Bounds; reaching one stops a region early, which its report says.
        progress: Called with `(region, Iteration)` after every iteration.
        regions: Whether repeated blocks are found, saturated once and shared; False takes the
            program as one region.

    Returns:
        The e-graph. On Ctrl-C, what was reached when every region has something.

    Raises:
        RuleError: a rule is missing, ill-formed, or ill-typed; the error has file, line and
            column.
        SaturationError: a dim is symbolic, or the child died before it had anything.

    Example:
        >>> from luminal_lab.hlir import Graph, dtype
        >>> graph = Graph()
        >>> x = graph.input("x", (4, 8), dtype("f32"))
        >>> egraph = saturate(graph.finish((x * 2.0 * 0.5).sum(1)))
        >>> egraph.parts[0].report.stopped
        'saturated'
    """
    with without_collector():
        return _saturate(hlir, target, rules, limits or Limits(), progress, regions)


def _saturate(
    hlir: Hlir,
    target: str,
    rules: Any,
    limits: Limits,
    progress: OnIteration | None,
    regions: bool,
) -> EGraph:
    begin = time.perf_counter()
    with Child() as child:
        rulebook = load_rules(rules, limits.tolerance, target, limits.themes)
        child.prepare(rulebook, limits)
        program = partition(hlir, regions)
        regions_done = time.perf_counter()
        encodings: list[Encoding] = []
        spent: list[float] = []
        for region in program.regions:
            start = time.perf_counter()
            encodings.append(encode(region.hlir, limits.copies, "tiles" in rulebook.wanted))
            spent.append(time.perf_counter() - start)
        encoded = time.perf_counter()
        parts: dict[int, Part] = {}
        reading = 0.0

        def read(k: int, result: PartResult) -> None:
            nonlocal reading
            start = time.perf_counter()
            hlir = program.regions[k].hlir
            parts[k] = read_part(k, hlir, encodings[k], result, rulebook, spent[k])
            reading += time.perf_counter() - start

        results = child.run(
            rulebook,
            [commands(e, rulebook.wanted) for e in encodings],
            limits,
            None if progress is None else (lambda k, record: progress(k, Iteration(**record))),
            finished=read,  # while the child does the next one
        )
    for k, result in enumerate(results):  # those that were broken off
        if k not in parts:
            read(k, result)
    end = time.perf_counter()
    return EGraph(
        program,
        tuple(parts[k] for k in range(len(results))),
        target,
        rulebook.rules,
        limits,
        {
            "regions": regions_done - begin,
            "encode": encoded - regions_done,
            "saturate": end - encoded - reading,
            "read": reading,
            "total": end - begin,
            **{f"child {k}": v for k, v in results[-1].usage.items() if k != "peak"},
        },
        rulebook.sources,
        int(results[-1].usage.get("peak", 0)),
    )


def read_part(
    number: int,
    hlir: Hlir,
    encoding: Encoding,
    result: PartResult,
    rulebook: Rulebook,
    encode_seconds: float = 0.0,
) -> Part:
    """The e-graph of a region, from what the child reported."""
    assert result.state is not None
    classes, _, tensor_class, dropped = read_classes(
        result.state, encoding, rulebook.rules, kernels=rulebook.kernels
    )
    report = Report(
        tuple(Iteration(**r) for r in result.iterations),
        result.stopped,
        encoding.counts,
        encode_seconds,
        dropped,
    )
    return Part(
        number,
        classes,
        {node: tensor_class[t] for node, t in encoding.node_tensor.items()},
        tuple((name, tensor_class[t]) for name, t in encoding.outputs),
        extents_of(result.state, encoding),
        hlir,
        report,
    )


def saturate_encoding(
    encodings: Sequence[Encoding], rulebook: Rulebook, limits: Limits | None = None
) -> list[tuple[PartResult, Any]]:
    """Saturate ready encodings in one child; for the tests of rules."""
    limits = limits or Limits()
    with Child() as child:
        results = child.run(rulebook, [commands(e, rulebook.wanted) for e in encodings], limits)
    return [
        (r, read_classes(r.state or {}, e, rulebook.rules)) for r, e in zip(results, encodings)
    ]
