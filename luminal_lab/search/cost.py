"""What a kernel should cost: a roofline that counts passes, recomputation and every unit.

The model knows a kernel's body and the `Machine`, nothing else. It imagines the loops that code
generation would make:

- Each value is computed once per point of its free axes and *context*. A context says, for each
  loop axis, in which phase of that loop the value is needed; the phase of a reduction over `j`
  is the number of reductions over `j` nested beneath it. A value that depends on nothing that
  differs between two contexts is computed once.
- A value that is needed in several phases is kept in scratch when a row of it fits the cache
  and that is cheaper, else it is computed in each phase; a tensor is read once per phase, from
  the cache where its row fits.
- Output loops are nested so that costly values with fewer axes come outermost. What cannot be
  hoisted that way is computed again for each tile of the axes that it does not depend on.
- A reduction of a product whose factors each have an axis that the other lacks runs at the rate
  of register-tiled products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from luminal_lab.egraph.library import LibraryForm, operations
from luminal_lab.egraph.sized import resized, resized_buffer
from luminal_lab.egraph.values import Buffer, Kernel, Value, postorder
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.cost_terms import (
    LOAD,
    ON_AXES,
    ONLINE,
    PLAIN,
    RED,
    SPECIAL,
    SPECIAL_OP,
    VECTOR,
    Context,
    Term,
    Terms,
    bound_axis,
)
from luminal_lab.search.machine import Machine

TILE = 128  # extent of a tile of an output axis that is not the innermost
ROWS = 8  # rows that a thread works on at once
OVERLAP = 0.3  # part of the shorter of compute and traffic that is not hidden by the longer
NESTED_DOT = 0.5  # rate of a product whose result feeds another product in the same kernel
ROW_DOT = 0.35  # rate of a product over whose result the same kernel reduces: kept row by row
FEW_ROWS = 5.0  # rows of a product at which its register tiles reach half of the rate
# Vector operations per point of a sum of products that is none of matrices since a choice is in
# between: it has no register tile, adds to memory, and asks at each point.
BEHIND_A_CHOICE = 8.0
CHOSEN = 30.0  # how many times the arithmetic of sums with tables that are not written out
GATHERED = (
    64.0  # vector operations per element that is read across memory in what is written out
)
STAGED = 1.0  # vector operations per element to put a product's operand into scratch
LIBRARY_RATE = 0.5  # rate of a library's product against our own
# A library packs operands even where few rows (or columns) use them: products with 1 to 16 rows
# took 2.1 to 8 times what their work says (measured: 512x512 to 1024x1024, 2 threads).
THIN, THIN_RATE = 32, 1 / 3
DISPATCH = 15e-6  # seconds to call an operator of PyTorch
BARRIER = 2e-6  # seconds that threads wait for each other at least, after unequal work
SERIAL = 0.3e-6  # seconds to call a kernel that uses one thread

MAXIMUM = 4.0  # vector operations of a maximum that keeps NaN: two comparisons and two blends

__all__ = [
    "SPECIAL",
    "VECTOR",
    "CostModel",
    "KernelCost",
    "bound_axis",
    "gemm_flops",
    "kernel_cost",
]


@dataclass(frozen=True)
class KernelCost:
    """A prediction, and what it is made of.

    Arguments:
        seconds: Predicted run time.
        traffic: Bytes moved from and to memory or cache.
        dot: Flops of register-tiled products.
        vector: Elementwise operations.
        special: exp2, log2, sin, erf.
        memory_seconds: Time for the traffic alone.
        compute_seconds: Time for the arithmetic alone.
    """

    seconds: float
    traffic: float
    dot: float
    vector: float
    special: float
    memory_seconds: float
    compute_seconds: float

    @property
    def bound(self) -> str:
        """`"memory"`, `"compute"` or `"launch"`: what the time is mostly spent on."""
        longest = max(self.memory_seconds, self.compute_seconds)
        if longest < self.seconds / 2:
            return "launch"
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def kernel_cost(kernel: Kernel | LibraryKernel, machine: Machine) -> KernelCost:
    """The cost of one call of a kernel, at the hints of symbolic sizes."""
    if kernel.symbols:
        kernel = _at_hints(kernel)
    if isinstance(kernel, LibraryKernel):
        return _library_cost(kernel, machine)
    terms = Terms(machine, kernel.extents)
    return _Body(kernel, terms.of(postorder(kernel.values()), kernel.buffers), terms).cost()


class CostModel:
    """`kernel_cost` for many kernels over the same axes and buffers, which share their terms.

    Arguments:
        machine: What they run on.
        extents: The extent of each axis; buffers of one name differ in `constant` alone.
        sized: Whether some of them may take sizes.
        weights: Bytes of all weights of the program: what a run reads between two calls of a
            kernel, so that its own weights are no nearer than a cache that holds all.
    """

    def __init__(
        self,
        machine: Machine,
        extents: Mapping[str, Any],
        sized: bool = True,
        weights: int = 0,
    ):
        self.machine, self.sized = machine, sized
        self.terms = Terms(machine, resized(dict(extents), hint), weights)

    def term(self, value: Value, buffers: Mapping[str, Buffer]) -> Term:
        """The term of a value whose arguments have theirs.

        Arguments:
            value: With the names that all kernels share.
            buffers: What it reads.
        """
        if self.sized and value.op == "load":
            name = value.attrs[0]
            buffers = {name: resized_buffer(buffers[name], hint)}
        return self.terms.term(value, buffers)

    def cost(self, kernel: Kernel | LibraryKernel, order: Sequence[Term] = ()) -> KernelCost:
        """The cost of one call of a kernel, at the hints of symbolic sizes.

        Arguments:
            kernel: With the names that they share.
            order: The terms of its values, arguments first; found out when there are none.
        """
        if self.sized and kernel.symbols:
            kernel = _at_hints(kernel)
        if isinstance(kernel, LibraryKernel):
            return _library_cost(kernel, self.machine, self.terms.weights)
        if not order:
            order = self.terms.of(postorder(kernel.values()), kernel.buffers)
        return _Body(kernel, order, self.terms).cost()


def _at_hints(kernel: Kernel | LibraryKernel) -> Any:
    """The kernel with numbers for the sizes that the model looks at."""
    buffers = {n: resized_buffer(b, hint) for n, b in kernel.buffers.items()}
    if isinstance(kernel, LibraryKernel):
        return replace(kernel, buffers=buffers, attrs=resized(dict(kernel.attrs), hint))
    return replace(kernel, buffers=buffers, extents=resized(dict(kernel.extents), hint))


def _library_cost(kernel: LibraryKernel, machine: Machine, weights: int = 0) -> KernelCost:
    traffic = float(sum(b.nbytes for b in kernel.buffers.values()))
    rate = machine.bandwidth_for(int(traffic))
    written = sum(kernel.buffers[n].nbytes for n in kernel.writes)
    again = written if rate == machine.bandwidth else 0  # what an ordinary store reads first
    memory = (traffic + again) / rate
    constant = sum(b.nbytes for b in kernel.buffers.values() if b.constant)
    memory += constant * (1 / machine.bandwidth_for(max(weights, int(traffic))) - 1 / rate)
    if kernel.routine == "library":
        return _declared_cost(kernel, machine, traffic, memory)
    flops, special = 0.0, 0.0
    compute = 0.0
    if kernel.routine == "gemm":
        flops = gemm_flops(kernel.attrs)
        compute = flops / (machine.dot_flops * LIBRARY_RATE)
        if min(kernel.attrs["m"], kernel.attrs["n"]) < THIN:
            compute, memory = compute / THIN_RATE, memory / THIN_RATE
        # What is added is copied into the result first; an activation passes over it again.
        passes = (kernel.attrs["plus"] is not None) + bool(kernel.attrs["act"])
        memory += 2 * passes * written / rate
        if kernel.attrs["act"] == "gelu":
            special = written / F32.bytes
            compute += special / machine.special_ops
    # Only products in float32 are called from C; others go through PyTorch.
    direct = kernel.routine == "gemm" and all(b.dtype is F32 for b in kernel.buffers.values())
    calls = math.prod(loop[0] for loop in kernel.attrs["batch"]) if direct else 1
    start = max(machine.launch, BARRIER) * calls if direct else DISPATCH
    seconds = start + _together(compute, memory)
    return KernelCost(seconds, traffic, flops, 0.0, special, memory, compute)


def _declared_cost(
    kernel: LibraryKernel, machine: Machine, traffic: float, memory: float
) -> KernelCost:
    """The cost that a kernel's declaration states, at our rates; a library's at its own."""
    form = LibraryForm(**kernel.attrs)
    work = operations(form)
    rate = 1.0 if form.source else LIBRARY_RATE
    dot, vector = work.get("dot", 0.0), work.get("vector", 0.0)
    special = work.get("special", 0.0)
    compute = (dot / machine.dot_flops + vector / machine.vector_flops) / rate
    compute += special / machine.special_ops / rate
    start = max(machine.launch, BARRIER) if form.source else DISPATCH
    seconds = start + _together(compute, memory)
    return KernelCost(seconds, traffic, dot, vector, special, memory, compute)


def gemm_flops(attrs: Mapping[str, Any]) -> float:
    """Flops of a library product, from its `GemmForm`."""
    loops = math.prod(loop[0] for loop in attrs["batch"])
    return 2.0 * loops * attrs["m"] * attrs["n"] * attrs["k"]


def _together(compute: float, memory: float) -> float:
    return max(compute, memory) + OVERLAP * min(compute, memory)


class _Body:
    """One kernel, as the model sees it.

    Arguments:
        kernel: With numbers for all sizes.
        order: The terms of its values, arguments first.
        terms: All that there are.
    """

    def __init__(self, kernel: Kernel, order: Sequence[Term], terms: Terms):
        self.kernel, self.known, self.machine = kernel, terms, terms.machine
        self.extents = terms.extents
        self.terms = order
        axes: dict[str, None] = {}
        for out in kernel.outputs:
            axes.update(dict.fromkeys(out.axes))
        self.out_axes = tuple(axes)
        self.frame = terms.frame(self.out_axes, TILE)
        self.out_set = self.frame.whole
        self.out_innermost = self._contiguous_stores()
        self.reductions = [t for t in self.terms if t.axis is not None]
        # What a window sees beyond an image is left out by the loop's bounds.
        self.bounds = {t.args[0] for t in self.reductions if t.kind == RED and _edge(t.args[0])}
        tables = [t for t in self.terms if t.op == "table"]
        self.tables = bool(tables)
        short = frozenset[str]().union(*(t.free for t in tables))
        self.chosen = self.tables and any(t.axis not in short for t in self.reductions)
        self.streams: dict[Term, int] = {}  # how many thin products stream a read
        for t in self.reductions:
            for read in t.streamed:
                self.streams[read] = self.streams.get(read, 0) + 1
        self.dots = self._dots()
        self.around = self._around()
        self.part_of = self._masked_axes()
        self.dot = self.vector = self.special = 0.0
        self.compute = 0.0

    # -------------------------------------------------------------- properties of the kernel

    def _contiguous_stores(self) -> frozenset[str]:
        """The axes along which what is stored is contiguous."""
        out: set[str] = set()
        for o in self.kernel.outputs:
            strides = self.kernel.buffers[o.buffer].element_strides
            for i, stride in zip(o.index, strides, strict=True):
                out |= {a for a in i.axes if i.coef(a) * stride == 1}
        return frozenset(out)

    def _dots(self) -> dict[Term, float]:
        """The dot-like reductions, with the part of the peak rate that they can reach."""
        out: dict[Term, float] = {}
        if not any(t.sides for t in self.reductions):
            return out
        length: dict[Term, float] = {}  # a chain of sums over a product reduces all its axes
        carried = {(t.axis, t.args[0]) for t in self.reductions if t.kind == ONLINE}
        for t in reversed(self.reductions):
            if t.kind == RED and t.value.attrs[0] == "add":
                assert t.axis is not None
                length[t] = length.get(t, 1.0) * self.extents[t.axis]
                if t.args[0].kind == RED:
                    length[t.args[0]] = length[t]
        for t in self.reductions:
            if t.sides is not None:
                out[t] = self._dot_rate(t, length.get(t, 0.0))
                # An online's score is made block by block; any other product that feeds a
                # product is made in scratch, at a tile that suits the outer one.
                for d in t.products if t.kind == RED else t.args[2].products:
                    if d is not t:
                        out[d] *= NESTED_DOT
            elif t.kind == RED and not t.sums and (t.axis, t.args[0]) not in carried:
                for d in t.products:
                    if t.axis in d.free:
                        out[d] = min(out[d], ROW_DOT)
        return out

    def _dot_rate(self, t: Term, length: float) -> float:
        assert t.sides is not None
        assert t.axis is not None
        m, n = t.sides
        k = length or self.extents[t.axis]
        small = min(m, n)
        rate = k / (k + 8.0) * small / (small + FEW_ROWS) * min(1.0, max(m, n) / 16)
        return rate * self._columns_used(t)

    def _columns_used(self, t: Term) -> float:
        """The part of the lanes of a product that hold results.

        Lanes are points of the axis along which the result is contiguous; those of an operand
        that is seen through windows are not one loop with their neighbours. Where the result is
        contiguous along an axis that both operands have, lanes are stored one by one.
        """
        assert t.factors is not None
        a, b = t.factors
        lanes = self.machine.lanes(t.bytes)
        for side, other in ((a, b), (b, a)):
            own = side.free - other.free - {t.axis}
            inner = own & self.out_innermost
            if not inner:
                continue
            windowed = side.image < side.points
            n = max(self.extents[x] for x in inner) if windowed else self.known.points(own)
            return n / (math.ceil(n / lanes) * lanes)
        return 1.0 / lanes if t.free & self.out_innermost else 1.0

    def _around(self) -> frozenset[str]:
        """Output axes that no product has: they are looped around the products."""
        if not self.dots:
            return frozenset()
        taken = frozenset[str]().union(*(a.free for t in self.dots for a in t.args))
        return frozenset(a for a in self.out_set - taken if self.extents[a] > 1)

    def _masked_axes(self) -> dict[str, float]:
        """Axes of which a mask leaves only a part: blocks that it hides are skipped.

        An axis counts when all reductions over it are of a `select` between a value and minus
        infinity by a condition on axes alone; half of it is taken to remain, less a block.
        """
        out: dict[str, float] = {}
        whole: set[str] = set()
        for t in self.reductions:
            assert t.axis is not None
            if t.masked:
                tile = min(TILE, self.extents[t.axis])
                out[t.axis] = 0.5 + 0.5 * tile / self.extents[t.axis]
            else:
                whole.add(t.axis)
        return {a: part for a, part in out.items() if a not in whole} if out else out

    # --------------------------------------------------------------------------- contexts

    def cost(self) -> KernelCost:
        """Walk the body from its outputs down."""
        terms = self.terms
        place = {t: n for n, t in enumerate(terms)}
        contexts: list[set[Context]] = [set() for _ in terms]
        for t in self.known.of(self.kernel.values(), self.kernel.buffers):
            depth = t.depth
            contexts[place[t]].add(
                frozenset((a, depth.get(a, 0)) for a in self.out_axes if a in t.free)
            )
        users = self._dot_operands()
        packed = self._packed(users)
        staged = self._staged(users)
        products = {t.args[0] for t in self.dots if t.kind == RED}
        hoisted = self._hoisted()
        shares = self._shares(place)
        again_of: dict[int, float] = {}
        shared: set[tuple] = set()
        memory = _Memory(self)
        for n in range(len(terms) - 1, -1, -1):
            t, mine = terms[n], contexts[n]
            if t in packed:
                memory.stream(t.bytes * t.points)
                continue  # packed when the executable is built
            kind, times = t.kind, len(mine)
            if times > 1 and kind != LOAD and self._keep_in_scratch(t, mine):
                self._vector(t, t.points * (1 + 0.5 * (times - 1)))
                mine = {min(mine, key=_phase)}
                times = 1
            again = again_of.get(t.space)
            if again is None:
                again = again_of[t.space] = self._recompute(t, hoisted)
            again *= shares[n]
            if kind == PLAIN:
                if t not in products and t not in self.bounds:
                    points = (t.image if t in staged else t.points) * (times * again)
                    if t.innermost and not t.depth:
                        points /= self._lanes_used(t)
                    self._vector(t, t.weight * points)
            elif kind == LOAD:
                memory.load(t, mine, self._row_bytes(t, mine), again)
                gathered = self.tables and not t.innermost & self.out_innermost
                weight = GATHERED if gathered and t.free >= self.out_innermost else t.weight
                points = t.image if t in staged else t.points
                self._vector(t, weight * (points * (times * again)))
            elif kind != ON_AXES:
                self._arithmetic(t, times * again, mine, shared)
            if t in users and kind != LOAD and t not in self.dots:
                self._vector(t, STAGED * t.image * again)
            if t.args:
                for context in mine:
                    for a, inner in t.passed.get(context) or t.passes(context):
                        contexts[place[a]].add(inner)
        for out in self.kernel.outputs:
            buffer = self.kernel.buffers[out.buffer]
            if out.scatter is None:
                memory.store(buffer.nbytes)
            else:  # the rest of the destination stays where it is, or is copied by the plan
                memory.store(self.known.points(frozenset(out.axes)) * buffer.dtype.bytes)
        return self._total(memory)

    def _shares(self, place: Mapping[Term, int]) -> list[float]:
        """The part of its points at which each term is needed.

        Where results are something else in each part of an axis, each part has its own store.
        """
        out = [1.0] * len(self.terms)
        cuts = [t.branches[0] for t in self.terms if t.branches is not None]
        axes = frozenset[str]().union(*(c for c in cuts if c <= self.out_set))
        if not axes:
            return out
        # What does not depend on these axes is computed once, not for each point of a part.
        out = [0.0 if t.free & axes else 1.0 for t in self.terms]
        for t in self.known.of(self.kernel.values(), self.kernel.buffers):
            out[place[t]] = 1.0
        for n in range(len(self.terms) - 1, -1, -1):
            t, mine = self.terms[n], out[n]
            cut = t.branches if t.branches and t.branches[0] <= self.out_set else None
            for k, a in enumerate(t.args):
                at = place[a]
                if cut is not None and k:
                    out[at] = min(1.0, out[at] + mine * (cut[1] if k == 1 else cut[2]))
                else:
                    out[at] = max(out[at], mine)
        return out

    def _row_axes(self, contexts: set[Context]) -> frozenset[str]:
        """The axes on whose phase the contexts disagree."""
        common = frozenset.intersection(*contexts)
        return frozenset(
            axis for c in contexts for axis, phase in c if (axis, phase) not in common
        )

    def _row_bytes(self, t: Term, contexts: set[Context]) -> float:
        if len(contexts) < 2:
            return 0.0
        row = self._row_axes(contexts)
        rows = min(ROWS, self.known.points(t.free - row))
        return self.known.points(row) * rows * t.bytes

    def _keep_in_scratch(self, t: Term, contexts: set[Context]) -> bool:
        if self._row_bytes(t, contexts) > self.machine.l2 / 2:
            return False
        k = len(contexts)
        return (k - 1) * t.inline > 1 + 0.5 * (k - 1)

    def _dot_operands(self) -> set[Term]:
        out: set[Term] = set()
        for t in self.dots:
            out.update(t.factors or ())
        return out

    def _staged(self, users: set[Term]) -> set[Term]:
        """What is computed once per element of an operand of a product, not once per window."""
        out: set[Term] = set()
        stack = [t for t in users if t.image < t.points]
        while stack:
            t = stack.pop()
            if t not in out and t.axis is None:
                out.add(t)
                stack += t.args
        return out

    def _packed(self, users: set[Term]) -> set[Term]:
        """The operands of products that depend on nothing but constants of the program."""
        if not users:
            return users
        constant = {n for n, b in self.kernel.buffers.items() if b.constant}
        return {t for t in users if t.kind != LOAD and t.reads <= constant}

    # -------------------------------------------------------------------------- recompute

    def _hoisted(self) -> list[frozenset[str]]:
        """The nested sets of output axes at which values are computed once and kept."""
        most: dict[int, float] = {}
        for t in self.terms:
            if t.kind != LOAD and t.work > most.get(t.space, -1.0):
                most[t.space] = t.work
        weight: dict[frozenset[str], float] = {}
        for space, work in most.items():
            at, held, tiles, _ = self.frame.lies(space)
            if at != self.out_set and held <= self.machine.l2:
                weight[at] = max(weight.get(at, 0.0), work * (tiles - 1))
        chain: list[frozenset[str]] = [frozenset(), self.out_set]
        for at in sorted(weight, key=lambda s: (-weight[s], sorted(s))):
            if all(at <= c or c <= at for c in chain):
                chain.append(at)
        return chain

    def _recompute(self, t: Term, hoisted: list[frozenset[str]]) -> float:
        """How often a value is computed again for tiles of output axes that it lacks."""
        at, held, tiles, serial = self.frame.lies(t.space)
        if self.around - t.free:  # a loop around all products
            serial *= self.known.points(self.around - t.free)
        if at in hoisted and (at == self.out_set or held <= self.machine.l2):
            return serial
        return max(tiles, serial)

    # -------------------------------------------------------------------------- arithmetic

    def _seen(self, t: Term, amount: float) -> float:
        """What of an amount is left where a mask hides some of it."""
        for axis, part in self.part_of.items():
            if axis in t.span:
                amount *= part
        return amount

    def _vector(self, t: Term, amount: float) -> None:
        if self.part_of:
            amount = self._seen(t, amount)
        self.vector += amount
        self.compute += amount * t.wide / self.machine.vector_flops

    def _special(self, t: Term, amount: float) -> None:
        amount = self._seen(t, amount)
        self.special += amount
        self.compute += amount * t.wide / self.machine.special_ops

    def _dot(self, t: Term, amount: float) -> None:
        amount = self._seen(t, amount)
        self.dot += amount
        self.compute += amount * t.wide / (self.machine.dot_flops * self.dots[t])

    def _arithmetic(
        self, t: Term, times: float, contexts: set[Context], shared: set[tuple]
    ) -> None:
        """Of special functions and reductions."""
        points = t.points * times
        if t.kind == SPECIAL_OP:
            self._special(t, t.weight * points)
            return
        assert t.axis is not None
        bound = {t.axis}
        if t.kind == ONLINE:
            s, c, w = t.args
            inner = self.known.points(s.free | bound) * times
            loops = (frozenset(p for p in at if p[0] in s.free) for at in contexts)
            key = (t.axis, s, c, frozenset(loops))
            if key not in shared:  # all with one key share the maximum and the exponent
                shared.add(key)
                self._special(t, inner)
                self._vector(t, 4 * inner)
            both = self.known.points(s.free | w.free | bound) * times
            if t in self.dots:
                self._dot(t, 2 * both)
            else:
                self._vector(t, (1 if w.op == "const" else 2) * both)
            return
        inner = self.known.points(t.args[0].free | bound) * times
        if t in self.dots:
            self._dot(t, 2 * inner)
        elif not t.sums:  # sums over a product are one product
            each = MAXIMUM if t.value.attrs[0] == "max" else t.args[0].terms
            if t.hidden:
                each = BEHIND_A_CHOICE
            self._vector(t, each * (inner / self._lanes_used(t.args[0]) + t.fold * points))

    def _lanes_used(self, t: Term) -> float:
        """The part of a vector that holds values, within reductions.

        Lanes are points of an axis along which memory is contiguous: of a read, or of what is
        stored. Where all of these are short, as in a product of groups of few channels, lanes
        are idle. Outside of reductions neighbouring axes are one loop, and what is reduced
        already lies in scratch in the order that suits.
        """
        if t.depth or not t.innermost or t.free <= self.out_set:
            return 1.0
        axes = (t.innermost | self.out_innermost) & t.free
        widest = max((self.extents[a] for a in axes), default=1) or 1  # an empty axis: one lane
        return min(1.0, widest / self.machine.lanes(t.bytes))

    def _total(self, memory: _Memory) -> KernelCost:
        machine = self.machine
        out_points = max(1.0, self.known.points(self.out_set))
        lost = machine.threads / min(machine.threads, out_points)
        self.compute *= CHOSEN if self.chosen else 1.0
        traffic, seconds = memory.total()
        compute = self.compute * lost
        many = max(machine.launch, BARRIER) + _together(compute, seconds)
        one = SERIAL + _together(self.compute * machine.threads, seconds * machine.threads)
        return KernelCost(
            min(many, one), traffic, self.dot, self.vector, self.special, seconds, compute
        )


class _Memory:
    """Traffic of a kernel, by how far away the bytes are."""

    def __init__(self, body: _Body):
        self.body = body
        self.buffers = body.kernel.buffers
        self.first: dict[str, float] = {}  # bytes of each buffer that are touched at all
        self.again = 0.0  # seconds of re-reads
        self.bytes_again = 0.0
        self.stored = 0.0
        self.extra = 0.0

    def load(self, t: Term, contexts: set[Context], row_bytes: float, tiles: float) -> None:
        """A read: once from memory, then again in other phases and for other tiles."""
        body, machine = self.body, self.body.machine
        if not contexts:
            return  # read when the executable is built
        name = t.value.attrs[0]
        buffer = self.buffers[name]
        nbytes = buffer.nbytes
        touched = min(nbytes, t.points * buffer.dtype.bytes)
        self.first[name] = min(nbytes, max(self.first.get(name, 0.0), touched))
        passes = len(contexts) - 1
        if (more := body.streams.get(t, 1) - len(contexts)) > 0:
            self._again(more * touched, machine.bandwidth_for(int(touched)))
        if passes:
            near = row_bytes <= machine.l2 / 2
            rate = machine.l2_bandwidth if near else machine.bandwidth_for(nbytes)
            self._again(passes * touched, rate)
        if tiles > 1:
            self._again((tiles - 1) * touched, machine.bandwidth_for(nbytes) * 2)

    def _again(self, amount: float, rate: float) -> None:
        self.bytes_again += amount
        self.again += amount / rate

    def stream(self, amount: float) -> None:
        """Bytes that are read once and belong to no buffer: operands packed at build time."""
        self.extra += amount

    def store(self, nbytes: float) -> None:
        self.stored += nbytes

    def total(self) -> tuple[float, float]:
        """Bytes and seconds."""
        reads = sum(self.first.values()) + self.extra
        footprint = int(reads + self.stored)
        machine = self.body.machine
        rate = machine.bandwidth_for(footprint)
        weights = self.extra + sum(n for b, n in self.first.items() if self.buffers[b].constant)
        farther = 1 / machine.bandwidth_for(max(footprint, self.body.known.weights)) - 1 / rate
        beyond = rate == self.body.machine.bandwidth
        # an ordinary store reads its line first, from memory when the caches do not hold it
        written = self.stored * (2.0 if beyond and not self._streamed(footprint, rate) else 1.0)
        seconds = (reads + written) / rate + weights * farther + self.again
        return (reads + self.stored + self.bytes_again, seconds)

    def _streamed(self, footprint: int, rate: float) -> bool:
        """Whether code generation sends the results past the caches, by default."""
        body = self.body
        scattered = any(o.scatter for o in body.kernel.outputs)
        busy = body.dots or body.compute > footprint / rate
        return body.machine.streams(footprint) and not scattered and not busy


def _edge(t: Term) -> bool:
    """Whether a term is chosen by its place, or is a constant."""
    return t.op == "select" and t.args[0].kind == ON_AXES and t.args[2].op == "const"


def _phase(context: Context) -> tuple:
    return (sum(p for _, p in context), sorted(context))
