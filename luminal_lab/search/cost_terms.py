"""What the cost model knows about a value whatever kernel it is in, computed once per region.

The kernels of a region are made of the same terms over the same axes and buffers, in thousands
of combinations. What depends on a term alone is kept here; `cost` adds what depends on the
kernel around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from luminal_lab.egraph.choices import cut
from luminal_lab.egraph.values import BINDERS, Buffer, Value, numbers_of, postorder
from luminal_lab.search.canonical import Node
from luminal_lab.search.machine import Machine

FOLD = 24  # vector operations to fold the accumulators of a reduced row to one number

SPECIAL = {"exp2": 1.0, "log2": 1.2, "sin": 1.5, "erf": 1.5}
VECTOR = {
    "recip": 3.0,
    "sqrt": 4.0,
    "mod": 8.0,
    "const": 0.0,
    "iota": 0.3,
    "load": 0.3,
    "table": 0.3,
}

Context = frozenset[tuple[str, int]]

# How the arithmetic of a term is counted.
CARRY = 6.0  # operations of a reduction that carries more than one number, per point
LOAD, RED, ONLINE, SPECIAL_OP, ON_AXES, PLAIN = range(6)


class Term(Node):
    """A value and its properties.

    Attributes:
        branches: Of a choice by place: the axes that it depends on, and the shares of their
            points at which either branch is chosen; None for others.
        points: Number of points of its free axes.
        image: How many of them differ, where what it reads has fewer elements: neighbouring
            windows see the same.
        bytes: Of one element.
        wide: Its elements' width against four bytes, at least 1.
        space: Number of its pair of free axes and element size, see `Terms.spaces`.
        axis: The axis that it binds.
        depth: For each axis, how many reductions over it are nested in it.
        inline: Vector operations to compute one element from memory, everything inlined.
        work: Of all its points.
        hidden: Whether it sums products with the form of a matrix product behind a choice.
        innermost: The axes along which tensors that it reads are contiguous.
        reads: The buffers that it depends on.
        kind: How its arithmetic is counted.
        weight: Operations per point.
        span: Its free axes and those of its arguments.
        factors: The two factors whose products it sums.
        sides: For a sum of products that has the form of a matrix product: the points of the
            axes that only one factor has; None for others.
        sums: Whether it is such a sum, over one axis or several in turn.
        products: All such sums within it, itself included.
        streamed: The reads that a product with few rows streams in a nest of its own, once for
            each way to them.
        masked: Whether it reduces what a mask on axes alone sets to minus infinity.
        fold: Vector operations per result to fold a vector of partial ones.
        terms: Of a product with an entry of a table, the share of entries that are not 0; 1
            for others.
    """

    __slots__ = (
        "axis", "branches", "bytes", "depth", "factors", "fold", "free", "hidden", "image",
        "inline", "innermost",
        "kind", "masked", "op", "passed", "points", "products", "reads", "sides", "space",
        "span", "streamed", "sums", "terms", "weight", "wide", "work",
    )  # fmt: skip

    op: str
    free: frozenset[str]
    branches: tuple[frozenset[str], float, float] | None
    points: float
    image: float
    bytes: int
    wide: float
    space: int
    axis: str | None
    depth: dict[str, int]
    inline: float
    work: float
    innermost: frozenset[str]
    reads: frozenset[str]
    kind: int
    weight: float
    span: frozenset[str]
    factors: tuple[Term, Term] | None
    sides: tuple[float, float] | None
    sums: bool
    hidden: bool
    products: frozenset[Term]
    streamed: Sequence[Term]
    masked: bool
    fold: float
    terms: float
    passed: dict[Context, list[tuple[Term, Context]]]

    def passes(self, context: Context) -> list[tuple[Term, Context]]:
        """Its arguments, with the context in which they are needed when it is in this one."""
        found = self.passed.get(context)
        if found is None:
            outer = context
            if self.axis is not None:
                phase = max((a.depth.get(self.axis, 0) for a in self.args), default=0)
                outer = frozenset(p for p in context if p[0] != self.axis) | {
                    (self.axis, phase)
                }
            found = [(a, frozenset(p for p in outer if p[0] in a.free)) for a in self.args]
            self.passed[context] = found
        return found


class Frame:
    """Some output axes, and how each space lies in their loops.

    Arguments:
        terms: Whose spaces.
        axes: The output axes.
        tile: Extent of a tile of one of them.
    """

    def __init__(self, terms: Terms, axes: tuple[str, ...], tile: int):
        self.terms, self.axes, self.whole, self.tile = terms, axes, frozenset(axes), tile
        self._lies: dict[int, tuple[frozenset[str], float, float, float]] = {}

    def lies(self, space: int) -> tuple[frozenset[str], float, float, float]:
        """How the values of a space lie in the loops over the output axes.

        Returns:
            The output axes that they have; the bytes of those that are held for one point of
            these; how many tiles there are of the other output axes; and how many threads
            compute the same for want of points.
        """
        found = self._lies.get(space)
        if found is None:
            terms = self.terms
            free, nbytes = terms.spaces[space]
            at = free & self.whole
            tiles = 1.0
            for axis in self.axes:
                if axis not in at:
                    tiles *= math.ceil(terms.extents[axis] / self.tile)
            threads = terms.machine.threads
            serial = threads / min(threads, max(1.0, terms.points(at)))
            found = at, terms.points(free - self.whole) * nbytes, tiles, serial
            self._lies[space] = found
        return found


class Terms:
    """The terms over some axes and buffers.

    Arguments:
        machine: For what depends on its units.
        extents: The extent of each axis, as numbers.
        weights: Bytes of all weights of the program; 0 when it is not known.
    """

    def __init__(self, machine: Machine, extents: Mapping[str, int], weights: int = 0):
        self.machine, self.extents, self.weights = machine, extents, weights
        self.spaces: list[tuple[frozenset[str], int]] = []
        self._terms: dict[Value, Term] = {}
        self._numbers: dict[tuple[frozenset[str], int], int] = {}
        self._points: dict[frozenset[str], float] = {}
        self._frames: dict[tuple[str, ...], Frame] = {}
        self._ratio = machine.vector_flops / machine.special_ops

    def points(self, axes: frozenset[str]) -> float:
        """Number of points of a set of axes."""
        out = self._points.get(axes)
        if out is None:
            out = 1.0
            for a in axes:
                out *= self.extents[a]
            self._points[axes] = out
        return out

    def frame(self, axes: tuple[str, ...], tile: int) -> Frame:
        """How everything lies in the loops over some output axes."""
        found = self._frames.get(axes)
        if found is None:
            found = self._frames[axes] = Frame(self, axes, tile)
        return found

    def of(self, order: Iterable[Value], buffers: Mapping[str, Buffer]) -> list[Term]:
        """The terms of values that are given arguments first.

        Arguments:
            order: The values.
            buffers: What they read, as numbers of elements.
        """
        return [self.term(v, buffers) for v in order]

    def term(self, v: Value, buffers: Mapping[str, Buffer]) -> Term:
        """The term of a value whose arguments have theirs."""
        return self._terms.get(v) or self._made(v, buffers)

    def _made(self, v: Value, buffers: Mapping[str, Buffer]) -> Term:
        args: tuple[Term, ...] = tuple([self._terms[a] for a in v.args])
        t = self._terms[v] = Term(v, args)
        t.op, t.free = v.op, v.free
        t.points, t.bytes = self.points(v.free), v.dtype.bytes
        t.wide = max(1.0, t.bytes / 4)
        pair = (v.free, t.bytes)
        t.space = self._numbers.setdefault(pair, len(self.spaces))
        if t.space == len(self.spaces):
            self.spaces.append(pair)
        t.axis = bound_axis(v)
        t.span = v.free if t.axis is None else v.free.union(*(a.free for a in args))
        reads = innermost = products = _NOTHING
        for a in args:
            reads = _joined(reads, a.reads)
            innermost = _joined(innermost, a.innermost)
            products = _joined(products, a.products)
        t.reads, t.innermost, t.products = reads, innermost, products
        if v.op == "load":
            t.reads = reads | {v.attrs[0]}
        t.passed = {}
        t.image = self._image(t, buffers)
        t.branches = self._branches(v) if v.op == "select" else None
        self._nested(t)
        self._contiguous(t, buffers)
        self._priced(t)
        self._product(t)
        t.masked = t.axis is not None and self._is_masked(v, t.axis)
        return t

    def _image(self, t: Term, buffers: Mapping[str, Buffer]) -> float:
        if t.op == "load":
            return min(t.points, float(buffers[t.value.attrs[0]].numel))
        whole = [a for a in t.args if a.free == t.free and a.reads]
        if t.axis is not None or not whole:
            return t.points
        return min(t.points, max(a.image for a in whole))

    def _branches(self, v: Value) -> tuple[frozenset[str], float, float] | None:
        found = cut(v.args[0], self.extents)
        return None if found is None else (found.axes, found.share, 1.0 - found.share)

    def _nested(self, t: Term) -> None:
        if t.axis is None and len(t.args) == 1:
            t.depth = t.args[0].depth
            return
        depth: dict[str, int] = {}
        for a in t.args:
            for axis, n in a.depth.items():
                if n > depth.get(axis, 0):
                    depth[axis] = n
        if t.axis is not None:
            depth[t.axis] = depth.get(t.axis, 0) + 1
        t.depth = depth

    def _contiguous(self, t: Term, buffers: Mapping[str, Buffer]) -> None:
        v = t.value
        if v.op == "load" and v.attrs[1]:
            strides = buffers[v.attrs[0]].element_strides
            own: set[str] = set()
            for i, stride in zip(v.attrs[1], strides, strict=True):
                own |= {a for a in i.axes if i.coef(a) * stride == 1 and a in v.free}
            if own:  # indices say where rows are, not how they lie
                t.innermost = frozenset(own)

    def _priced(self, t: Term) -> None:
        v, ratio = t.value, self._ratio
        work = sum(a.inline for a in t.args)
        if t.axis is not None:
            work = self.extents[t.axis] * (work + (ratio if v.op == "online" else 1.0))
        else:
            work += SPECIAL[v.op] * ratio if v.op in SPECIAL else VECTOR.get(v.op, 1.0)
        t.inline = min(work, 1e15)
        t.work = t.inline * t.points
        t.weight, t.fold, t.terms = VECTOR.get(v.op, 1.0), 0.0, 1.0
        if v.op == "mul" and any(a.op == "table" for a in t.args):
            # Written out: entries of 0 make no term, others are a factor in a sum.
            text = next(a.value.attrs[0] for a in t.args if a.op == "table")
            entries = numbers_of(text)
            t.weight, t.terms = 0.0, sum(x != 0.0 for x in entries) / len(entries)
        if v.op == "online":
            t.kind = ONLINE
        elif v.op in ("red", "carry"):
            t.kind = RED
            t.weight = CARRY if v.op == "carry" else t.weight
            # When the reduced axis is the one along which memory is read, each result is first
            # a vector of partial ones; otherwise a vector holds neighbouring results.
            lanes = self.machine.lanes(t.bytes)
            axis = t.axis or ""
            if axis in t.args[0].innermost and self.extents[axis] >= lanes:
                t.fold = FOLD * lanes  # (a few neighbours are summed one by one)
        elif v.op in SPECIAL:
            t.kind, t.weight = SPECIAL_OP, SPECIAL[v.op]
        elif not v.dtype.is_float and not t.reads:
            t.kind = ON_AXES  # tests on axes become loop bounds
        else:
            t.kind = LOAD if v.op == "load" else PLAIN

    def _product(self, t: Term) -> None:
        t.factors, t.sides, t.sums, t.streamed = None, None, False, ()
        t.hidden = t.op == "red" and self._is_hidden(t.args[0])
        if t.axis is None:
            return
        t.factors = _factors(t)
        if t.factors is not None:
            a, b = t.factors
            m = self.points(a.free - b.free - {t.axis})
            n = self.points(b.free - a.free - {t.axis})
            if t.axis in a.free and t.axis in b.free:
                if min(m, n) < 4:
                    t.streamed = _streamed(a if m > n else b)
                else:
                    t.sides = (m, n)
                    t.products |= {t}
        added = t.op == "red" and t.value.attrs[0] == "add"
        t.sums = t.sides is not None or (added and t.args[0].sums)

    def _is_hidden(self, t: Term) -> bool:
        """A sum of choices whose one branch is a product of what lies along different axes."""
        if t.op == "red" and t.value.attrs[0] == "add":
            return t.hidden
        if t.op != "select" or t.args[0].reads:
            return False
        for a in t.args[1:]:
            if a.op == "mul":
                x, y = a.args
                if min(self.points(x.free - y.free), self.points(y.free - x.free)) >= 4:
                    return True
        return False

    def _is_masked(self, v: Value, axis: str) -> bool:
        score = v.args[0]
        if score.op != "select" or not any(
            a.op == "const" and a.attrs[0] == float("-inf") for a in score.args[1:]
        ):
            return False
        condition = score.args[0]
        if axis not in condition.free or len(condition.free) < 2:
            return False
        if v.op != "online" and v.attrs[0] != "max":
            return False
        return all(x.op != "load" for x in postorder([condition]))


def _streamed(wide: Term) -> list[Term]:
    found: list[Term] = []
    stack = [wide]
    while stack:
        t = stack.pop()
        if t.kind == LOAD:
            found.append(t)
        elif t.axis is None:
            stack += t.args
    return found


_NOTHING: frozenset[Any] = frozenset()


def _joined(a: frozenset[Any], b: frozenset[Any]) -> frozenset[Any]:
    """Their union; one of them where that is it."""
    if a is b or not b:
        return a
    return a | b if a else b


def bound_axis(v: Value) -> str | None:
    """The axis that a reduction binds, None for other values."""
    return v.attrs[-1] if v.op in BINDERS else None


def _factors(t: Any) -> tuple[Term, Term] | None:
    if t.op == "online":
        return t.args[0], t.args[2]
    if t.op == "red" and t.value.attrs[0] == "add" and t.args[0].op == "mul":
        a, b = t.args[0].args
        return a, b
    return None
