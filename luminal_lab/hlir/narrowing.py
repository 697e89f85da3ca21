"""A program for fewer sizes: symbolic dims get narrower bounds, or become numbers.

The nodes are built again, so what the narrower bounds prove is used: axes of size 1 disappear,
guards and remainders go away, comparisons of indices are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.graph import Dim, Hlir, Node, Operand, OutputSpec
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import BINARY, REDUCTIONS
from luminal_lab.hlir.shapes import is_one
from luminal_lab.hlir.sizes import Size, Symbol
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.hlir.tensor import Graph, Tensor
from luminal_lab.hlir.view import REDUCED, View, out_axis


@dataclass(frozen=True, order=True)
class Bucket:
    """A range of a symbolic dim, with kernels of its own.

    Arguments:
        low: The least size, at least 1.
        high: The greatest size.
        tune_at: The size at which kernels are chosen and timed; `high` when there is one size
            only, else near the middle of small ranges.

    Raises:
        HlirError: for an empty range, or a `tune_at` outside of it.

    >>> Bucket(1, 1), Bucket(2, 512, tune_at=128)
    (Bucket(1), Bucket(2, 512, tune_at=128))
    """

    low: int
    high: int
    tune_at: int | None = None

    def __post_init__(self) -> None:
        made = sizes.symbol("bucket", self.low, self.high, self.tune_at)
        (symbol,) = made.free_symbols
        object.__setattr__(self, "tune_at", symbol.hint)

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high

    def __repr__(self) -> str:
        if self.low == self.high:
            return f"Bucket({self.low})"
        return f"Bucket({self.low}, {self.high}, tune_at={self.tune_at})"


def narrow(hlir: Hlir, buckets: Mapping[str, Bucket]) -> Hlir:
    """The program with some symbolic dims confined to a bucket.

    Arguments:
        hlir: A program with symbolic dims.
        buckets: By the name of the symbolic dim; one of a single size becomes a number.

    Raises:
        HlirError: for a dim that it has not, or a bucket beyond its bounds.

    >>> from luminal_lab.hlir.dtypes import F32
    >>> g = Graph()
    >>> x = g.input("x", (sizes.symbol("s", 1, 64), 8), F32)
    >>> narrow(g.finish(x * 2.0), {"s": Bucket(1, 1)}).nodes[-1].shape
    (1, 8)
    """
    known = symbols_of(hlir)
    by: dict[str, Symbol | int] = {}
    for name, bucket in buckets.items():
        if name not in known:
            raise HlirError(
                f"{hlir.name} has no symbolic dim {name!r}",
                fix=f"one of {', '.join(known)}" if known else "capture it with dynamic_shapes",
            )
        symbol = known[name]
        if bucket.low < symbol.low or bucket.high > symbol.high:
            raise HlirError(
                f"{bucket} is beyond the bounds [{symbol.low}, {symbol.high}] of {name}",
                fix="wider bounds of the dim, or a narrower bucket",
            )
        fixed = bucket.low == bucket.high
        hint = bucket.tune_at or bucket.low
        by[name] = bucket.low if fixed else Symbol(name, bucket.low, bucket.high, hint)
    return _Narrowing(hlir, lambda n: sizes.rename(n, by)).run()


class _Narrowing:
    def __init__(self, hlir: Hlir, of: Callable[[Dim], Dim]):
        self.old, self.of = hlir, of
        self.graph = Graph(hlir.name)
        self.made: list[Tensor] = []
        self.inputs = {spec.node: spec for spec in hlir.inputs}

    def run(self) -> Hlir:
        for n, node in enumerate(self.old.nodes):
            self.graph.source = node.source
            self.made.append(self._node(n, node))
        outputs = [self._output(spec) for spec in self.old.outputs]
        return self.graph.finish(*outputs, in_spec=self.old.in_spec, out_spec=self.old.out_spec)

    def _shape(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(map(self.of, shape))

    def _node(self, n: int, node: Node) -> Tensor:
        shape = self._shape(node.shape)
        if node.op == "Input":
            spec = self.inputs[n]
            value = self.old.weights.get(spec.name)
            return self.graph.input(
                spec.name, shape, node.dtype, spec.kind, position=spec.position, value=value
            )
        attrs = {k: _resized(v, self.of) for k, v in node.attrs.items()}
        if node.op == "Iota":
            return self.graph.iota(attrs["index"], shape, node.dtype)
        if node.op in REDUCTIONS and is_one(attrs["extent"]):
            return self._tensor(
                node.operands[-1], shape, {REDUCED: 1}
            )  # of an ArgMax the place
        if node.op in BINARY:
            a, b = (self._tensor(o, shape) for o in node.operands)
            return a.binary(node.op, b)
        if node.op == "Select":
            condition, a, b = (self._tensor(o, shape) for o in node.operands)
            return condition.where(a, b)
        return self.graph.emit(
            node.op, self._reads(node, shape, attrs), shape, node.dtype, attrs
        )

    def _reads(self, node: Node, shape: tuple[Dim, ...], attrs: dict) -> list[Operand]:
        """The operands of a node that is built as it was."""
        if node.op == "Custom":
            return [self.made[o.node].stored() for o in node.operands]
        more = {REDUCED: attrs["extent"]} if "extent" in attrs else {}
        more |= {f"@{k}": n for k, n in enumerate(attrs.get("extents", ()))}
        reads = [self._tensor(o, shape, more).operand for o in node.operands]
        if node.op == "Scatter":  # all but the first are read over the points
            points = attrs.get("points") or self.made[node.operands[1].node].shape
            reads[1:] = [self._tensor(o, points).operand for o in node.operands[1:]]
        return reads

    def _tensor(
        self, operand: Operand, shape: tuple[Dim, ...], more: Mapping[str, Dim] | None = None
    ) -> Tensor:
        """What an operand reads, over axes of `shape` and of `more`."""
        base = self.made[operand.node]
        extents = {**self.graph.extents(shape), **(more or {})}
        units = {axis: Index() for axis, n in extents.items() if is_one(n)}

        def index(i: Index) -> Index:
            return i.resize(self.of).substitute(units, extents)

        view = operand.view
        guard = tuple(map(index, view.guard))
        guard = tuple(g for g in guard if not sizes.at_least(g.bounds(extents)[0], 0))
        if any(sizes.at_least(-g.bounds(extents)[1], 1) for g in guard):
            return self.graph.full(shape, view.fill, base.dtype)
        if guard and base.view.guard:
            base = base.copy()  # one view has one fill
        inner = {out_axis(k): index(i) for k, i in enumerate(view.index)}
        read = base.view.compose(inner, extents)
        fill = view.fill if guard else read.fill
        whole = View(read.index, read.guard + guard, fill)
        return Tensor(self.graph, Operand(base.node, whole), shape, base.dtype)

    def _output(self, spec: OutputSpec) -> tuple[Tensor, dict[str, Any]]:
        tensor = self._tensor(spec.value, self._shape(spec.shape))
        facts: dict[str, Any] = {"name": spec.name, "mutates": spec.mutates}
        stride = None if spec.stride is None else self._shape(spec.stride)
        return tensor, {**facts, "stride": stride, "aliases": spec.aliases}


def _resized(value: Any, of: Callable[[Dim], Dim]) -> Any:
    """An attribute with its sizes replaced."""
    if isinstance(value, Index):
        return value.resize(of)
    if isinstance(value, (tuple, list)):
        return type(value)(_resized(v, of) for v in value)
    if isinstance(value, dict):
        return {k: _resized(v, of) for k, v in value.items()}
    return of(value) if isinstance(value, Size) else value
