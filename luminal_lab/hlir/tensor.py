"""Building an Hlir: `Graph` collects nodes, `Tensor` is a lazily viewed result in it.

A Tensor is an operand (a node and the view it is read through), a shape and a dtype. Movement
(permute, expand, reshape, slice, flip, pad, repeat, windows) only composes views; every other
method adds primitive ops. Nothing is fused, and dtypes are never promoted here.

    >>> g = Graph()
    >>> x = g.input("x", (2, 3), F32)
    >>> y = (x.permute(1, 0) * 2.0).sum(0)
    >>> hlir = g.finish(y)
    >>> [n.op for n in hlir.nodes], hlir.nodes[-1].shape
    (['Input', 'Constant', 'Mul', 'SumReduce'], (2,))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir.custom import node_attrs
from luminal_lab.hlir.dtypes import BOOL, F32, I64, DType
from luminal_lab.hlir.graph import (
    Dim,
    Hlir,
    InputKind,
    InputSpec,
    Node,
    NodeId,
    Operand,
    OutputSpec,
    Ref,
    Source,
)
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.movement import Movable
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.shapes import (
    Shape,
    broadcast_shapes,
    identity_of,
    is_one,
    scalar_of,
)
from luminal_lab.hlir.sizes import Size, at_least
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.hlir.view import REDUCED, Scalar, View, out_axis


class Graph:
    """A mutable builder of one Hlir.

    Identical nodes are shared, but only within one module path (`source.module`), so that
    repeated layers stay repeats of each other.

    Arguments:
        name: For titles.
    """

    def __init__(self, name: str = "hlir"):
        self.name = name
        self.source = Source()  # given to every node that is added
        self.nodes: list[Node] = []
        self.inputs: list[InputSpec] = []
        self.weights: dict[str, Any] = {}
        self._seen: dict[tuple, NodeId] = {}
        self._calls = 0

    # ------------------------------------------------------------------ sources
    def input(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: DType,
        kind: InputKind = "arg",
        *,
        position: int | None = None,
        value: Any = None,
    ) -> Tensor:
        """A program input.

        Arguments:
            name: Unique.
            shape: Its dims.
            dtype: Its element type.
            kind: See `InputSpec`.
            position: For an `arg`, its place among the flattened inputs (the next one if None).
            value: For a weight or constant, the torch tensor, kept by reference.

        Raises:
            HlirError: when the name is taken.
        """
        if any(spec.name == name for spec in self.inputs):
            raise HlirError(
                f"two inputs are called {name!r}", fix="give each input its own name"
            )
        if kind == "arg" and position is None:
            position = sum(spec.kind == "arg" for spec in self.inputs)
        out = self.emit("Input", (), shape, dtype, {"name": name})
        self.inputs.append(InputSpec(out.node, name, kind, position))
        if kind != "arg":
            self.weights[name] = value
        return out

    def constant(self, value: Scalar | Size, dtype: DType) -> Tensor:
        """A 0-d constant, or the value of a symbolic size."""
        if isinstance(value, Size):
            return self.iota(Index.num(value), (), I64).cast(dtype)
        return self.emit("Constant", (), (), dtype, {"value": scalar_of(value, dtype)})

    def full(self, shape: Sequence[Dim], value: Scalar, dtype: DType) -> Tensor:
        """A constant seen at every point of `shape`."""
        return self.constant(value, dtype).expand(shape)

    def iota(self, index: Index, shape: Sequence[Dim], dtype: DType = I64) -> Tensor:
        """The value of `index` (over axes `i0…` of `shape`) at each point.

        Only the axes that occur in it are stored: the others are broadcast.
        """
        shape = tuple(shape)
        units = {out_axis(k): Index() for k, n in enumerate(shape) if is_one(n)}
        index = index.substitute(units, self.extents(shape))
        used = [k for k in range(len(shape)) if out_axis(k) in index.axes]
        names = {out_axis(k): out_axis(j) for j, k in enumerate(used)}
        node = self.emit(
            "Iota", (), [shape[k] for k in used], dtype, {"index": index.rename(names)}
        )
        view = View(tuple(Index.axis(out_axis(k)) for k in used))
        return Tensor(self, Operand(node.node, view), shape, dtype)

    # ------------------------------------------------------------------ nodes
    def emit(
        self,
        op: str,
        operands: Iterable[Operand],
        shape: Sequence[Dim],
        dtype: DType,
        attrs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Add a node, or find the identical one that is already there."""
        operands, shape, attrs = tuple(operands), tuple(shape), dict(attrs or {})
        node = (
            self._seen.get(key)
            if (key := self._key(op, operands, shape, dtype, attrs))
            else None
        )
        if node is None:
            node = len(self.nodes)
            self.nodes.append(Node(op, operands, shape, dtype, attrs, self.source))
            if key:
                self._seen[key] = node
        return Tensor(self, Operand(node, identity_of(shape)), shape, dtype)

    def _key(
        self, op: str, operands: tuple[Operand, ...], shape: Shape, dtype: DType, attrs: dict
    ) -> tuple | None:
        if op in ("Input", "Custom"):
            return None
        module = "" if OPS[op].family == "source" else self.source.module
        reads = tuple(
            (o.node, o.view.index, o.view.guard, repr(o.view.fill) if o.view.guard else "")
            for o in operands
        )
        facts = tuple((name, repr(value)) for name, value in sorted(attrs.items()))
        return op, reads, shape, dtype.name, facts, module

    def custom(
        self,
        target: str,
        template: tuple[tuple, dict],
        operands: Sequence[Tensor],
        results: Sequence[tuple[Shape, DType]],
        *,
        single: bool,
        reason: str = "",
    ) -> list[Tensor]:
        """A call of an ATen operator at run time; one node per result.

        Arguments:
            target: `"aten.sort.default"`.
            template: `(args, kwargs)` with `Ref(k)` for operand k, see `Ref`.
            operands: What the Refs stand for; a view is copied to memory first.
            results: Shape and dtype of each result.
            single: Whether the operator returns one tensor rather than a tuple.
            reason: Why there is no lowering, for `Hlir.fallbacks`.
        """
        self._calls += 1
        reads = tuple(t.stored() for t in operands)
        attrs = {"target": target, "template": template, "call": self._calls - 1}
        if reason:
            attrs["reason"] = reason
        numbers = [x for x in (*template[0], *template[1].values()) if not isinstance(x, Ref)]
        return [
            self.emit(
                "Custom",
                reads,
                shape,
                d,
                {**attrs, **node_attrs(target, k, numbers), "result": None if single else k},
            )
            for k, (shape, d) in enumerate(results)
        ]

    def extents(self, shape: Sequence[Dim]) -> dict[str, Dim]:
        """Extents of the axes of `shape`."""
        return {out_axis(k): n for k, n in enumerate(shape)}

    # ------------------------------------------------------------------ the end
    def finish(
        self,
        *outputs: Tensor | tuple[Tensor, Mapping[str, Any]],
        in_spec: Any = None,
        out_spec: Any = None,
    ) -> Hlir:
        """The Hlir of these outputs; nodes and weights that they do not need are left out.

        Arguments:
            outputs: Tensors, each alone or with further fields of its OutputSpec (`name`,
                `stride`, `mutates`, `aliases`).
            in_spec: See `Hlir`.
            out_spec: See `Hlir`.
        """
        specs: list[OutputSpec] = []
        for k, item in enumerate(outputs):
            tensor, facts = item if isinstance(item, tuple) else (item, {})
            facts = {"name": f"out{k}", **facts}
            specs.append(OutputSpec(tensor.operand_of_output(), tensor.shape, **facts))
        needed = {s.node for s in self.inputs if s.kind == "arg"}
        needed |= {s.value.node for s in specs}
        for node in range(len(self.nodes) - 1, -1, -1):
            if node in needed:
                needed.update(o.node for o in self.nodes[node].operands)
        number = {old: new for new, old in enumerate(sorted(needed))}

        def moved(operand: Operand) -> Operand:
            return Operand(number[operand.node], operand.view)

        nodes = [self.nodes[old] for old in number]
        inputs = [replace(s, node=number[s.node]) for s in self.inputs if s.node in number]
        made = Hlir(
            tuple(replace(n, operands=tuple(map(moved, n.operands))) for n in nodes),
            tuple(inputs),
            tuple(replace(s, value=moved(s.value)) for s in specs),
            {s.name: self.weights[s.name] for s in inputs if s.kind != "arg"},
            {},
            in_spec,
            out_spec,
            self.name,
        )
        return replace(made, symbols={n: (s.low, s.high) for n, s in symbols_of(made).items()})


@dataclass(frozen=True, eq=False)
class Tensor(Movable):
    """A node's result as it is seen through a view; see the module's text.

    Arguments:
        graph: The builder that it belongs to.
        operand: The node, and the index map from this tensor's axes to the node's dims.
        shape: Its dims.
        dtype: Its element type.
    """

    graph: Graph
    operand: Operand
    shape: Shape
    dtype: DType

    @property
    def node(self) -> NodeId:
        """The node that it reads."""
        return self.operand.node

    @property
    def view(self) -> View:
        """How it reads the node."""
        return self.operand.view

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def known(self) -> Index | None:
        """Its values (64-bit integers) as an index expression over its axes, if it is one."""
        node = self.graph.nodes[self.node]
        if self.dtype != I64 or self.view.guard:
            return None
        if node.op == "Constant":
            return Index.num(node.attrs["value"])
        if node.op != "Iota":
            return None
        at = {out_axis(k): i for k, i in enumerate(self.view.index)}
        return node.attrs["index"].substitute(at, self.graph.extents(self.shape))

    @property
    def known_bool(self) -> bool | None:
        """Its one value, where it is a constant bool."""
        node = self.graph.nodes[self.node]
        plain = node.op == "Constant" and self.dtype == BOOL and not self.view.guard
        return node.attrs["value"] if plain else None

    # ------------------------------------------------------------------ views
    def viewed(self, shape: Sequence[Dim], at: Sequence[Index]) -> Tensor:
        """Of `shape`: dim k of this tensor is read at `at[k]`, over axes of `shape`."""
        shape = tuple(shape)
        extents = self.graph.extents(shape)
        view = self.view.compose({out_axis(k): i for k, i in enumerate(at)}, extents)
        if any(at_least(-g.bounds(extents)[1], 1) for g in view.guard):
            return self.graph.full(shape, view.fill, self.dtype)
        return Tensor(self.graph, Operand(self.node, view), shape, self.dtype)

    def guarded(
        self, shape: Sequence[Dim], at: Sequence[Index], guard: Sequence[Index], fill: Scalar
    ) -> Tensor:
        """Likewise, but `fill` where one of `guard`, over axes of `shape`, is negative."""
        shape = tuple(shape)
        if 0 in self.shape:
            return self.graph.full(shape, fill, self.dtype)
        base = self
        if self.view.guard and repr(self.view.fill) != repr(fill):
            base = self.copy()  # one view has one fill
        out = base.viewed(shape, at)
        extents = self.graph.extents(shape)
        needed = tuple(g for g in guard if not at_least(g.bounds(extents)[0], 0))
        view = View(out.view.index, out.view.guard + needed, fill)
        return Tensor(self.graph, Operand(out.node, view), shape, self.dtype)

    # ------------------------------------------------------------------ storing
    def copy(self) -> Tensor:
        """Stored to memory as it is seen, bit by bit (a Cast to its own dtype)."""
        return self.graph.emit("Cast", [self.operand], self.shape, self.dtype)

    def stored(self) -> Operand:
        """An operand that reads a whole node by identity, stored first if this is a view."""
        source = self
        if (
            self.view != identity_of(self.shape)
            or self.graph.nodes[self.node].shape != self.shape
        ):
            source = self.copy()
        return Operand(source.node, View.identity(self.rank))

    def operand_of_output(self) -> Operand:
        """Its operand, where reading a whole node is spelled `View.identity`."""
        whole = self.graph.nodes[self.node].shape == self.shape
        if whole and self.view == identity_of(self.shape):
            return Operand(self.node, View.identity(self.rank))
        return self.operand

    # ------------------------------------------------------------------ pointwise ops
    def unary(self, op: str) -> Tensor:
        """One of the unary ops of the op table."""
        if OPS[op].floats_only and not self.dtype.is_float:
            raise HlirError(
                f"{op} takes floats, not {self.dtype}", where=self.graph.source.line
            )
        return self.graph.emit(op, [self.operand], self.shape, self.dtype)

    def binary(self, op: str, other: Tensor | Scalar) -> Tensor:
        """One of the binary ops of the op table, with broadcasting; dtypes must agree.

        Arithmetic on values that are known as index expressions gives one again; their order,
        where bounds prove it, and logic on a known bool are folded.
        """
        a, b = self.broadcast(self.like(other))
        if (known := _index_arithmetic(op, a, b)) is not None:
            return self.graph.iota(known, a.shape, a.dtype)
        if (order := _index_order(op, a, b)) is not None:
            return self.graph.full(a.shape, order, BOOL)
        if op in ("Add", "Mul") and a.dtype == b.dtype == BOOL:
            for p, q in ((a, b), (b, a)):
                if p.known_bool is not None:  # True and q, False or q: q
                    return q if p.known_bool == (op == "Mul") else p
        if a.dtype != b.dtype:
            raise HlirError(
                f"{op} of {a.dtype} and {b.dtype}",
                where=self.graph.source.line,
                fix="cast one of them",
            )
        out = BOOL if OPS[op].dtype == "bool" else a.dtype
        return self.graph.emit(op, [a.operand, b.operand], a.shape, out)

    def where(self, a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
        """`a` where this condition holds, `b` elsewhere (Select); a tensor gives the dtype."""
        if not isinstance(a, Tensor):
            a = b.like(a) if isinstance(b, Tensor) else self.graph.constant(a, F32)
        c, x, y = self.broadcast(a, a.like(b))
        if c.known_bool is not None and x.dtype == y.dtype:
            return x if c.known_bool else y
        if c.dtype != BOOL or x.dtype != y.dtype:
            raise HlirError(
                f"Select of {c.dtype}, {x.dtype}, {y.dtype}", where=self.graph.source.line
            )
        return self.graph.emit("Select", [c.operand, x.operand, y.operand], c.shape, x.dtype)

    def cast(self, dtype: DType) -> Tensor:
        """Converted to another dtype; itself when it has that dtype."""
        if dtype == self.dtype:
            return self
        return self.graph.emit("Cast", [self.operand], self.shape, dtype)

    def like(self, value: Tensor | Scalar) -> Tensor:
        """A Python number as a constant of this tensor's dtype; a Tensor as it is."""
        if isinstance(value, Tensor):
            return value
        return self.graph.constant(value, self.dtype)

    def broadcast(self, *others: Tensor) -> list[Tensor]:
        """This tensor and the others, expanded to their common shape."""
        shape = broadcast_shapes(self.shape, *(o.shape for o in others))
        return [t.expand(shape) for t in (self, *others)]

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary("Add", other)

    __radd__ = __add__

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary("Mul", other)

    __rmul__ = __mul__

    def __neg__(self) -> Tensor:
        return self * -1

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        return self + -other

    def __rsub__(self, other: Scalar) -> Tensor:
        return -self + other

    def __mod__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary("Mod", other)

    def __lt__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary("LessThan", other)

    def __gt__(self, other: Tensor | Scalar) -> Tensor:
        return self.like(other).binary("LessThan", self)

    # ------------------------------------------------------------------ reductions
    def reduce(self, op: str, dim: int) -> Tensor:
        """SumReduce or MaxReduce over one dim; a dim of size 1 is only dropped."""
        if is_one(self.shape[dim := self.dim(dim)]):
            return self.pick(dim, 0)
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        attrs = {"extent": self.shape[dim]}
        return self.graph.emit(op, [self._along(dim)], shape, self.dtype, attrs)

    def _along(self, dim: int) -> Operand:
        """This tensor as the operand of a reduction over a dim."""
        at = {out_axis(k): out_axis(k if k < dim else k - 1) for k in range(self.rank)}
        at[out_axis(dim)] = REDUCED
        view = View(
            tuple(i.rename(at) for i in self.view.index),
            tuple(g.rename(at) for g in self.view.guard),
            self.view.fill,
        )
        return Operand(self.node, view)

    def arg_max(self, places: Tensor, *dims: int, keepdim: bool = False) -> Tensor:
        """The least of `places` where this tensor is greatest over dims (ArgMaxReduce).

        Arguments:
            places: An integer tensor of the same shape.
            dims: Dims that are not empty, reduced last dim first.
            keepdim: Whether they stay, with size 1.
        """
        x, gone = self, sorted({self.dim(d) for d in dims}) if self.rank else []
        for dim in reversed(gone):
            if is_one(x.shape[dim]):
                x, places = x.pick(dim, 0), places.pick(dim, 0)
                continue
            shape = x.shape[:dim] + x.shape[dim + 1 :]
            operands = [x._along(dim), places._along(dim)]
            attrs = {"extent": x.shape[dim]}
            places = x.graph.emit("ArgMaxReduce", operands, shape, places.dtype, attrs)
            x = x.reduce("MaxReduce", dim) if dim != gone[0] else x
        if keepdim:
            kept = [1 if k in gone else n for k, n in enumerate(self.shape)]
            places = places.reshape(kept)
        return places

    def sum(self, *dims: int, keepdim: bool = False) -> Tensor:
        """Sum over dims (a chain of SumReduce, last dim first); no dims: over none."""
        return self._chain("SumReduce", dims, keepdim)

    def max(self, *dims: int, keepdim: bool = False) -> Tensor:
        """Maximum over dims (a chain of MaxReduce, last dim first); NaN wins."""
        return self._chain("MaxReduce", dims, keepdim)

    def _chain(self, op: str, dims: Sequence[int], keepdim: bool) -> Tensor:
        out, gone = self, sorted({self.dim(d) for d in dims}) if self.rank else []
        for dim in reversed(gone):
            out = out.reduce(op, dim)
        if keepdim:
            out = out.reshape([1 if k in gone else n for k, n in enumerate(self.shape)])
        return out

    # ------------------------------------------------------------------ data-dependent indices
    def gather(
        self, shape: Sequence[Dim], at: Sequence[Index], indices: Sequence[Tensor]
    ) -> Tensor:
        """Read where integer tensors say (Gather).

        Arguments:
            shape: Dims of the result.
            at: Per dim of this tensor, where it is read: over axes of `shape`, and `@k`, which
                takes the value of `indices[k]`.
            indices: Integer tensors that expand to `shape`; their values must be in bounds.
                Where all of them are known index expressions, the result is a view.
        """
        shape = tuple(shape)
        indices = [i.expand(shape) for i in indices]
        known = {f"@{k}": x for k, i in enumerate(indices) if (x := i.known) is not None}
        if len(known) == len(indices):
            extents = self.graph.extents(shape)
            return self.viewed(shape, [i.substitute(known, extents) for i in at])
        base = self.copy() if self.view.guard else self
        sizes = [
            self.shape[next(d for d, i in enumerate(at) if f"@{k}" in i.axes)]
            for k in range(len(indices))
        ]
        extents = self.graph.extents(shape) | {f"@{k}": n for k, n in enumerate(sizes)}
        view = base.view.compose({out_axis(k): i for k, i in enumerate(at)}, extents)
        reads = [Operand(base.node, view), *(i.operand for i in indices)]
        return self.graph.emit("Gather", reads, shape, self.dtype, {"extents": tuple(sizes)})

    def scatter(self, src: Tensor, indices: Sequence[Tensor], mode: str) -> Tensor:
        """This tensor with `src` stored (`"set"`) or added (`"add"`) at indices (Scatter).

        Arguments:
            src: What is stored; its shape is the set of points.
            indices: One integer tensor per dim of this tensor, expanding to the shape of `src`.
            mode: `"set"` or `"add"`.
        """
        reads = [self.operand, src.operand, *(i.expand(src.shape).operand for i in indices)]
        attrs = {"mode": mode, "points": src.shape}
        return self.graph.emit("Scatter", reads, self.shape, self.dtype, attrs)


def _index_arithmetic(op: str, a: Tensor, b: Tensor) -> Index | None:
    """The sum, multiple, or remainder of two known index expressions, where it is one."""
    x, y = (
        (a.known, b.known) if op in ("Add", "Mul", "Mod") and a.dtype == I64 else (None, None)
    )
    if x is None or y is None or not (x.terms or y.terms):
        return None
    if op == "Add":
        return x + y
    if op == "Mul" and not (x.terms and y.terms):
        return x * y.const if x.terms else y * x.const
    if op == "Mod" and not y.terms and at_least(y.const, 1):
        return x.mod(y.const, a.graph.extents(a.shape))
    return None


def _index_order(op: str, a: Tensor, b: Tensor) -> bool | None:
    """Whether a < b holds everywhere or nowhere, where the bounds of indices prove it."""
    x, y = (a.known, b.known) if op == "LessThan" and a.dtype == I64 else (None, None)
    if x is None or y is None:
        return None
    low, high = (x - y).bounds(a.graph.extents(a.shape))
    if at_least(-high, 1):
        return True
    return False if at_least(low, 0) else None
