"""The saturated e-graph as plain, immutable data: what the search reads and people look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.egraph.encode import Counts
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.errors import LuminalError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.graph import Hlir

if TYPE_CHECKING:
    import graphviz
    import pandas as pd

    from luminal_lab.egraph.alternatives import Alternatives
    from luminal_lab.egraph.explain import Explanation
    from luminal_lab.egraph.why_not import WhyNot

ENCODED = "encode"  # the `rule` of e-nodes that the encoder made


@dataclass(frozen=True)
class ENode:
    """One e-node.

    Arguments:
        op: V: an op of the `Value` table (values.py). T: `input`, `kernel`, `planes`, `gemm`,
            `scatter`, `custom`.
        children: Ids of e-classes. `load`: the T class, then the V classes of `@0…`. `kernel`:
            the V class. `gemm`: T classes of A, B and, with bias, of the bias. `scatter`: the T
            class of the destination, the V class stored, the V classes of `@0…`.
        attrs: `load`, `kernel`: `((Index, …),)`. `red`, `carry`: `(op, axis)`. `online`:
            `(axis,)`. `const`: `(number,)`. `iota`: `(Index,)`. `input`: `(name,)`. `gemm`:
            `(GemmForm,)`. `custom`: `(region HLIR node,)`. `scatter`: `(mode, the points' axes
            in order, the index map)`.
        rule: The rule that made it first, `"encode"` when the encoder did.
        iteration: When; 0 for the encoder.
    """

    op: str
    children: tuple[int, ...] = ()
    attrs: tuple[Any, ...] = ()
    rule: str = ENCODED
    iteration: int = 0


@dataclass(frozen=True)
class EClass:
    """A set of equal e-nodes.

    Arguments:
        id: Its position in `Part.classes`.
        sort: `"V"` or `"T"`.
        nodes: Its e-nodes, first made first. All can be executed: a read whose axes the class
            does not depend on is left out.
        dtype: Of the value, or of the stored elements.
        free: V: the axes that the value depends on.
        shape: T: the stored shape.
        beside: T: other T-classes that a kernel which scatters may make in the same pass.
    """

    id: int
    sort: Literal["V", "T"]
    nodes: tuple[ENode, ...]
    dtype: DType
    free: frozenset[str] = frozenset()
    shape: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Iteration:
    """One iteration of saturation (number 0: the encoding itself).

    Arguments:
        rows: E-nodes after it.
        classes: E-classes after it.
        seconds: Wall time.
        matches: Matches by rule.
        rule_seconds: Wall time by rule.
    """

    number: int
    rows: int
    classes: int
    seconds: float
    matches: Mapping[str, int]
    rule_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """How the saturation of a region went.

    Arguments:
        iterations: One record per iteration.
        stopped: `"saturated"`, or the limit that was reached.
        counts: What the encoder did (copies, captures, left-over div/mod, …).
        encode_seconds: Wall time of the encoder.
        dropped: E-nodes left out at read-out because they cannot be executed, by reason.
    """

    iterations: tuple[Iteration, ...]
    stopped: str
    counts: Counts
    encode_seconds: float
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Wall time of all iterations."""
        return sum(i.seconds for i in self.iterations)


@dataclass(frozen=True)
class Part:
    """The e-graph of one region.

    Arguments:
        region: Its position in `program.regions`.
        classes: E-classes; ids are positions, ordered by the first encoder term in each.
        node_class: Region HLIR node → T class (constants and Iotas are never stored).
        outputs: `(output name, T class)`.
        extents: The extent of every axis.
        hlir: The region's HLIR.
        report: How saturation went.
    """

    region: int
    classes: tuple[EClass, ...]
    node_class: Mapping[int, int]
    outputs: tuple[tuple[str, int], ...]
    extents: Mapping[str, int]
    hlir: Hlir
    report: Report

    @cached_property
    def size(self) -> int:
        """The number of e-nodes."""
        return sum(len(c.nodes) for c in self.classes)

    @cached_property
    def by_rule(self) -> dict[str, int]:
        """The number of e-nodes that each rule made first."""
        out: dict[str, int] = {}
        for c in self.classes:
            for n in c.nodes:
                out[n.rule] = out.get(n.rule, 0) + 1
        return out


@dataclass(frozen=True)
class EGraph:
    """All programs that the rules prove equal to the captured one.

    Arguments:
        program: The regions of the HLIR and where they are used.
        parts: One e-graph per region.
        target: For which target's rules.
        rules: The rules that were loaded.
        limits: The limits of the saturation.
        seconds: Wall time by stage: `regions`, `encode`, `saturate` (waiting for the child),
            `read` (a region is read while the child saturates the next), `total`; and what
            of it was processor time of the child: `child start`, `child rules`, `child load`,
            `child iterations`, `child hand over`.
        sources: The rule files that were loaded: `(name, text)`.
        peak: The most memory that the child held, in bytes; 0 where that is unknown.
    """

    program: Any
    parts: tuple[Part, ...]
    target: str
    rules: tuple[RuleInfo, ...]
    limits: Limits
    seconds: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)
    peak: int = 0

    @property
    def hlir(self) -> Hlir:
        """The program that was saturated."""
        return self.program.hlir

    @property
    def size(self) -> int:
        """The number of e-nodes of all regions."""
        return sum(p.size for p in self.parts)

    def rule(self, name: str) -> RuleInfo:
        """The rule of that name.

        Raises:
            LuminalError: when there is none.
        """
        for info in self.rules:
            if info.name == name:
                return info
        raise LuminalError(
            f"there is no rule {name!r} in this e-graph",
            fix="see egraph.table() for the rules that are",
        )

    def classes_of(self, node: int, region: int = 0) -> tuple[EClass, ...]:
        """The classes of an HLIR node of a region: its tensor, and the value that it stores.

        Arguments:
            node: A node of `parts[region].hlir`.
            region: Which region.

        Raises:
            LuminalError: when the node is never stored (constants, Iotas), or does not exist.
        """
        part = self.parts[region]
        if node not in part.node_class:
            raise LuminalError(
                f"node %{node} of region {region} has no tensor of its own",
                fix="constants and Iotas are computed where they are read",
            )
        tensor = part.classes[part.node_class[node]]
        values = [part.classes[n.children[0]] for n in tensor.nodes if n.op == "kernel"]
        return (tensor, *dict.fromkeys(values))

    def explain(self, a: Any, b: Any, region: int | None = None) -> Explanation:
        """Why two terms are equal: a chain of rule applications from `a` to `b`.

        The rules are run once more by an interpreter that keeps proofs (egglog keeps none); it
        takes about as long as a second saturation in Python, once per region.

        Arguments:
            a: An HLIR node of the program (`12` or `"%12"`: as it was captured), a class
                (`"v7"`, `"t3"`: its first member), a member (`"v7.2"`, or one of
                `alternatives(...)`), the name of an input or an output, or a kernel of a
                candidate (`result.best.kernels[0]`).
            b: As `a`.
            region: The region of a class; with it, a node is a node of `parts[region].hlir`.

        Raises:
            LuminalError: when there is no such thing, or the two are not equal.
            SaturationError: when the region is too large to be run again with proofs.

        Example:
            >>> from luminal_lab.egraph.saturate import saturate
            >>> from luminal_lab.hlir import Graph, dtype
            >>> graph = Graph()
            >>> x = graph.input("x", (4,), dtype("f32"))
            >>> egraph = saturate(graph.finish(x * 2.0 * 0.5))
            >>> [link.rule for link in egraph.explain("%4", "v3.2").links]
            ['fusion', 'mul-commutes']
        """
        return import_module("luminal_lab.egraph.explain").explain(self, a, b, region)

    def alternatives(self, node: Any, region: int | None = None) -> Alternatives:
        """All forms of a node: its e-class, who made each member, and in which iteration.

        Arguments:
            node: What `explain` takes, but a kernel.
            region: The region of a class; with it, a node is a node of `parts[region].hlir`.

        Raises:
            LuminalError: when there is no such thing.

        Example:
            >>> from luminal_lab.egraph.saturate import saturate
            >>> from luminal_lab.hlir import Graph, dtype
            >>> graph = Graph()
            >>> x = graph.input("x", (4,), dtype("f32"))
            >>> egraph = saturate(graph.finish(x * 2.0 * 0.5))
            >>> sorted({m.rule for m in egraph.alternatives("%4").members})
            ['collect-mul', 'encode', 'mul-commutes']
        """
        return import_module("luminal_lab.egraph.alternatives").alternatives(self, node, region)

    def why_not(self, rule: str, node: Any, region: int | None = None) -> WhyNot:
        """Why a rule did not fire at a node: the first premise that fails, at the nearest term.

        For a rule that did fire, what it gave and when.

        Arguments:
            rule: The name of a rule; a user's own, too.
            node: What `explain` takes, but a kernel.
            region: The region of a class; with it, a node is a node of `parts[region].hlir`.

        Raises:
            RuleError: when there is no such rule; it names the nearest ones.
            LuminalError: when there is no such node, or the rule is about another sort.

        Example:
            >>> from luminal_lab.egraph.saturate import saturate
            >>> from luminal_lab.hlir import Graph, dtype
            >>> graph = Graph()
            >>> x = graph.input("x", (4,), dtype("f32"))
            >>> egraph = saturate(graph.finish(x * 2.0))
            >>> egraph.why_not("mul-one", "out0").status
            'fails'
            >>> egraph.why_not("mul-commutes", "out0").iteration
            1
        """
        return import_module("luminal_lab.egraph.why_not").why_not(self, rule, node, region)

    @property
    def report(self) -> str:
        """How saturation ended in each region; which rules were held back; what is missing."""
        return import_module("luminal_lab.egraph.stops").report(self)

    def table(self) -> pd.DataFrame:
        """One row per rule: law, class, matches, new e-nodes, seconds; most e-nodes first."""
        import pandas as pd

        matches: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for part in self.parts:
            for it in part.report.iterations:
                for name, count in it.matches.items():
                    matches[name] = matches.get(name, 0) + count
                for name, spent in it.rule_seconds.items():
                    seconds[name] = seconds.get(name, 0.0) + spent
        rows = [
            {
                "rule": r.name,
                "law": r.law,
                "class": r.tolerance,
                "matches": matches.get(r.name, 0),
                "new e-nodes": sum(p.by_rule.get(r.name, 0) for p in self.parts),
                "seconds": seconds.get(r.name, 0.0),
                "at": f"{r.file}:{r.line}",
            }
            for r in self.rules
        ]
        rows.sort(key=lambda row: (-row["new e-nodes"], -row["matches"], row["rule"]))
        return pd.DataFrame(rows, columns=list(rows[0]) if rows else None)

    def growth(self) -> pd.DataFrame:
        """One row per region and iteration: e-nodes, e-classes, matches, seconds."""
        import pandas as pd

        rows = [
            {
                "region": p.region,
                "iteration": it.number,
                "e-nodes": it.rows,
                "e-classes": it.classes,
                "matches": sum(it.matches.values()),
                "seconds": it.seconds,
            }
            for p in self.parts
            for it in p.report.iterations
        ]
        names = ["region", "iteration", "e-nodes", "e-classes", "matches", "seconds"]
        return pd.DataFrame(rows, columns=names)

    def diff(self, other: EGraph) -> pd.DataFrame:
        """One row per rule that made another number of e-nodes in `other`."""
        import pandas as pd

        ours, theirs = _made(self), _made(other)
        names = dict.fromkeys([*ours, *theirs])
        rows = [
            {"rule": n, "here": ours.get(n, 0), "there": theirs.get(n, 0)}
            for n in names
            if ours.get(n, 0) != theirs.get(n, 0)
        ]
        return pd.DataFrame(rows, columns=["rule", "here", "there"])

    def text(self) -> str:
        """Every e-class with its e-nodes."""
        return import_module("luminal_lab.egraph.show").text(self)

    def graph(self, region: int = 0) -> graphviz.Digraph:
        """The e-graph of a region: one box per e-class."""
        return import_module("luminal_lab.egraph.show").graph(self.parts[region])

    def save(self, path: str | Path) -> None:
        """Write it as plain data (JSON beside the HLIR's own file)."""
        import_module("luminal_lab.egraph.storage").save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> EGraph:
        """Read what `save` wrote."""
        return import_module("luminal_lab.egraph.storage").load(Path(path))

    def __repr__(self) -> str:
        return import_module("luminal_lab.egraph.show").summary(self)

    def widget(self) -> Any:
        """The e-graph as an interactive panel for notebooks.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        try:
            view = import_module("luminal_lab.views.egraph")
        except ModuleNotFoundError as missing:
            if missing.name != "luminal_lab.views.egraph":
                raise
            return bundle
        bundle["text/html"] = view.to_html(self)
        return bundle


def _made(egraph: EGraph) -> dict[str, int]:
    out: dict[str, int] = {}
    for part in egraph.parts:
        for name, count in part.by_rule.items():
            out[name] = out.get(name, 0) + count
    return out
