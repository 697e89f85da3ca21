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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from luminal_lab.egraph.library import LibraryForm, operations
from luminal_lab.egraph.sized import resized, resized_buffer
from luminal_lab.egraph.values import Kernel, Value, postorder
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.machine import Machine

TILE = 128  # extent of a tile of an output axis that is not the innermost
ROWS = 8  # rows that a thread works on at once
OVERLAP = 0.3  # part of the shorter of compute and traffic that is not hidden by the longer
NESTED_DOT = 0.5  # rate of a product whose result feeds another product in the same kernel
ROW_DOT = 0.35  # rate of a product over whose result the same kernel reduces: kept row by row
STAGED = 1.0  # vector operations per element to put a product's operand into scratch
LIBRARY_RATE = 0.5  # rate of a library's product against our own
DISPATCH = 15e-6  # seconds to call an operator of PyTorch
BARRIER = 2e-6  # seconds that threads wait for each other at least, after unequal work
SERIAL = 0.3e-6  # seconds to call a kernel that uses one thread

MAXIMUM = 4.0  # vector operations of a maximum that keeps NaN: two comparisons and two blends
FOLD = 24  # vector operations to fold the accumulators of a reduced row to one number

SPECIAL = {"exp2": 1.0, "log2": 1.2, "sin": 1.5, "erf": 1.5}
VECTOR = {"recip": 3.0, "sqrt": 4.0, "mod": 8.0, "const": 0.0, "iota": 0.3, "load": 0.3}

Context = frozenset[tuple[str, int]]


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
    return _Body(kernel, machine).cost()


def _at_hints(kernel: Kernel | LibraryKernel) -> Any:
    """The kernel with numbers for the sizes that the model looks at."""
    buffers = {n: resized_buffer(b, hint) for n, b in kernel.buffers.items()}
    if isinstance(kernel, LibraryKernel):
        return replace(kernel, buffers=buffers, attrs=resized(dict(kernel.attrs), hint))
    return replace(kernel, buffers=buffers, extents=resized(dict(kernel.extents), hint))


def _library_cost(kernel: LibraryKernel, machine: Machine) -> KernelCost:
    traffic = float(sum(b.nbytes for b in kernel.buffers.values()))
    memory = traffic / machine.bandwidth_for(int(traffic))
    if kernel.routine == "library":
        return _declared_cost(kernel, machine, traffic, memory)
    flops = gemm_flops(kernel.attrs) if kernel.routine == "gemm" else 0.0
    compute = flops / (machine.dot_flops * LIBRARY_RATE)
    # Only products in float32 are called from C; others go through PyTorch.
    direct = kernel.routine == "gemm" and all(b.dtype is F32 for b in kernel.buffers.values())
    calls = math.prod(loop[0] for loop in kernel.attrs["batch"]) if direct else 1
    start = max(machine.launch, BARRIER) * calls if direct else DISPATCH
    seconds = start + _together(compute, memory)
    return KernelCost(seconds, traffic, flops, 0.0, 0.0, memory, compute)


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
    def __init__(self, kernel: Kernel, machine: Machine):
        self.kernel, self.machine = kernel, machine
        self.extents = kernel.extents
        self.order = list(postorder(kernel.values()))
        axes: dict[str, None] = {}
        for out in kernel.outputs:
            axes.update(dict.fromkeys(out.axes))
        self.out_axes = tuple(axes)
        self.out_set = frozenset(axes)
        self.depth = self._depths()
        self.inline = self._inline_costs()
        self.innermost = self._contiguous()
        self.out_innermost = self._contiguous_stores()
        self.streams: dict[Value, int] = {}  # how many thin products stream a read
        self.dots = self._dots()
        self.around = self._around()
        self.constant = self._constant()
        self.part_of = self._masked_axes()
        reading: set[Value] = set()  # what depends on memory
        for v in self.order:
            if v.op == "load" or any(a in reading for a in v.args):
                reading.add(v)
        self.on_axes = {v for v in self.order if not v.dtype.is_float and v not in reading}
        self.dot = self.vector = self.special = 0.0
        self.compute = 0.0

    def points(self, axes: Iterable[str]) -> float:
        """Number of points of a set of axes."""
        out = 1.0
        for a in axes:
            out *= self.extents[a]
        return out

    # ------------------------------------------------------------------ properties of values

    def _depths(self) -> dict[Value, dict[str, int]]:
        """For each value and axis, how many reductions over it are nested beneath the value."""
        depth: dict[Value, dict[str, int]] = {}
        for v in self.order:
            mine: dict[str, int] = {}
            for a in v.args:
                for axis, n in depth[a].items():
                    if n > mine.get(axis, 0):
                        mine[axis] = n
            axis = bound_axis(v)
            if axis is not None:
                mine = {**mine, axis: mine.get(axis, 0) + 1}
            depth[v] = mine
        return depth

    def _contiguous(self) -> dict[Value, frozenset[str]]:
        """For each value, the axes along which tensors that it reads are contiguous."""
        out: dict[Value, frozenset[str]] = {}
        for v in self.order:
            found = frozenset[str]().union(*(out[a] for a in v.args))
            if v.op == "load" and v.attrs[1]:
                strides = self.kernel.buffers[v.attrs[0]].element_strides
                own: set[str] = set()
                for i, stride in zip(v.attrs[1], strides, strict=True):
                    own |= {a for a in i.axes if i.coef(a) * stride == 1 and a in v.free}
                found = frozenset(own) or found  # indices say where rows are, not how they lie
            out[v] = found
        return out

    def _contiguous_stores(self) -> frozenset[str]:
        """The axes along which what is stored is contiguous."""
        out: set[str] = set()
        for o in self.kernel.outputs:
            strides = self.kernel.buffers[o.buffer].element_strides
            for i, stride in zip(o.index, strides, strict=True):
                out |= {a for a in i.axes if i.coef(a) * stride == 1}
        return frozenset(out)

    def _inline_costs(self) -> dict[Value, float]:
        """Vector operations to compute one element from memory, everything inlined."""
        ratio = self.machine.vector_flops / self.machine.special_ops
        out: dict[Value, float] = {}
        for v in self.order:
            work = sum(out[a] for a in v.args)
            axis = bound_axis(v)
            if axis is not None:
                work = self.extents[axis] * (work + (ratio if v.op == "online" else 1.0))
            else:
                work += SPECIAL[v.op] * ratio if v.op in SPECIAL else VECTOR.get(v.op, 1.0)
            out[v] = min(work, 1e15)
        return out

    def _dots(self) -> dict[Value, float]:
        """The dot-like reductions, with the part of the peak rate that they can reach."""
        out: dict[Value, float] = {}
        beneath: dict[Value, frozenset[Value]] = {}  # the products within a value
        sums: set[Value] = set()  # the products, and the sums of them over further axes
        length: dict[Value, float] = {}  # a chain of sums over a product reduces all its axes
        carried = {(v.attrs[0], v.args[0]) for v in self.order if v.op == "online"}
        for v in reversed(self.order):
            if v.op == "red" and v.attrs[0] == "add":
                length[v] = length.get(v, 1.0) * self.extents[v.attrs[1]]
                if v.args[0].op == "red":
                    length[v.args[0]] = length[v]
        for v in self.order:
            inner = frozenset[Value]().union(*(beneath[a] for a in v.args))
            rate = self._dot_rate(v, length.get(v, 0.0))
            if rate is not None:
                out[v] = rate
                # An online's score is made block by block; any other product that feeds a
                # product is made in scratch, at a tile that suits the outer one.
                for d in inner if v.op == "red" else beneath[v.args[2]]:
                    out[d] *= NESTED_DOT
                inner |= {v}
                sums.add(v)
            elif v.op == "red" and v.attrs[0] == "add" and v.args[0] in sums:
                sums.add(v)
            elif v.op == "red" and (v.attrs[1], v.args[0]) not in carried:
                for d in inner:
                    if v.attrs[1] in d.free:
                        out[d] = min(out[d], ROW_DOT)
            beneath[v] = inner
        return out

    def _around(self) -> frozenset[str]:
        """Output axes that no product has: they are looped around the products."""
        if not self.dots:
            return frozenset()
        taken = frozenset[str]().union(*(a.free for v in self.dots for a in v.args))
        return frozenset(a for a in self.out_set - taken if self.extents[a] > 1)

    def _dot_rate(self, v: Value, length: float) -> float | None:
        factors = _factors(v)
        axis = bound_axis(v)
        if factors is None or axis is None:
            return None
        a, b = factors
        m = self.points(a.free - b.free - {axis})
        n = self.points(b.free - a.free - {axis})
        if axis not in a.free or axis not in b.free:
            return None
        if min(m, n) < 4:
            self._note_thin(a if m > n else b)
            return None
        k = length or self.extents[axis]
        small = min(m, n)
        return k / (k + 8.0) * small / (small + 10.0) * min(1.0, max(m, n) / 16)

    def _note_thin(self, wide: Value) -> None:
        """A product with few rows streams its matrix in a nest of its own."""
        stack = [wide]
        while stack:
            v = stack.pop()
            if v.op == "load":
                self.streams[v] = self.streams.get(v, 0) + 1
            elif bound_axis(v) is None:
                stack += v.args

    def _masked_axes(self) -> dict[str, float]:
        """Axes of which a mask leaves only a part: blocks that it hides are skipped.

        An axis counts when all reductions over it are of a `select` between a value and minus
        infinity by a condition on axes alone; half of it is taken to remain, less a block.
        """
        out: dict[str, float] = {}
        whole: set[str] = set()
        for v in self.order:
            axis = bound_axis(v)
            if axis is None:
                continue
            score = v.args[0]
            if self._is_mask(score, axis) and (v.op == "online" or v.attrs[0] == "max"):
                tile = min(TILE, self.extents[axis])
                out[axis] = 0.5 + 0.5 * tile / self.extents[axis]
            else:
                whole.add(axis)
        return {a: part for a, part in out.items() if a not in whole}

    def _is_mask(self, score: Value, axis: str) -> bool:
        if score.op != "select" or not any(
            a.op == "const" and a.attrs[0] == float("-inf") for a in score.args[1:]
        ):
            return False
        condition = score.args[0]
        if axis not in condition.free or len(condition.free) < 2:
            return False
        return all(v.op != "load" for v in postorder([condition]))

    def _constant(self) -> set[Value]:
        """Values that depend on nothing but constants of the program."""
        out: set[Value] = set()
        for v in self.order:
            if v.op == "load" and not self.kernel.buffers[v.attrs[0]].constant:
                continue
            if all(a in out for a in v.args):
                out.add(v)
        return out

    # --------------------------------------------------------------------------- contexts

    def cost(self) -> KernelCost:
        """Walk the body from its outputs down."""
        contexts: dict[Value, set[Context]] = {v: set() for v in self.order}
        users = self._dot_operands()
        for value in self.kernel.values():
            depth = self.depth[value]
            contexts[value].add(
                frozenset((a, depth.get(a, 0)) for a in self.out_axes if a in value.free)
            )
        hoisted = self._hoisted()
        shared: set[tuple] = set()
        memory = _Memory(self)
        for v in reversed(self.order):
            mine = contexts[v]
            if v in self.constant and v in users and v.op != "load":
                memory.stream(v.dtype.bytes * self.points(v.free))
                continue  # packed when the executable is built
            times = len(mine)
            if times > 1 and v.op != "load" and self._keep_in_scratch(v, mine):
                self._count(v, "vector", self.points(v.free) * (1 + 0.5 * (times - 1)), 1.0)
                mine = {min(mine, key=_phase)}
            again = self._recompute(v, hoisted)
            if v.op == "load":
                memory.load(v, mine, self._row_bytes(v, mine), again)
            self._arithmetic(v, len(mine) * again, mine, shared)
            if v in users and v.op != "load" and v not in self.dots:
                self._count(v, "vector", STAGED * self.points(v.free) * again, 1.0)
            for context in mine:
                for a, inner in self._inner(v, context):
                    contexts[a].add(inner)
        for out in self.kernel.outputs:
            buffer = self.kernel.buffers[out.buffer]
            if out.scatter is None:
                memory.store(buffer.nbytes)
            else:  # the rest of the destination stays where it is, or is copied by the plan
                memory.store(self.points(out.axes) * buffer.dtype.bytes)
        return self._total(memory)

    def _inner(self, v: Value, context: Context) -> list[tuple[Value, Context]]:
        axis = bound_axis(v)
        outer = context
        if axis is not None:
            phase = max((self.depth[a].get(axis, 0) for a in v.args), default=0)
            outer = frozenset(p for p in context if p[0] != axis) | {(axis, phase)}
        return [(a, frozenset(p for p in outer if p[0] in a.free)) for a in v.args]

    def _row_axes(self, contexts: set[Context]) -> set[str]:
        """The axes on whose phase the contexts disagree."""
        common = frozenset.intersection(*contexts)
        return {axis for c in contexts for axis, phase in c if (axis, phase) not in common}

    def _row_bytes(self, v: Value, contexts: set[Context]) -> float:
        if len(contexts) < 2:
            return 0.0
        row = self._row_axes(contexts)
        rows = min(ROWS, self.points(v.free - row))
        return self.points(row) * rows * v.dtype.bytes

    def _keep_in_scratch(self, v: Value, contexts: set[Context]) -> bool:
        if self._row_bytes(v, contexts) > self.machine.l2 / 2:
            return False
        k = len(contexts)
        return (k - 1) * self.inline[v] > 1 + 0.5 * (k - 1)

    def _dot_operands(self) -> set[Value]:
        out: set[Value] = set()
        for v in self.dots:
            out.update(_factors(v) or ())
        return out

    # -------------------------------------------------------------------------- recompute

    def _hoisted(self) -> list[frozenset[str]]:
        """The nested sets of output axes at which values are computed once and kept."""
        weight: dict[frozenset[str], float] = {}
        for v in self.order:
            at = v.free & self.out_set
            if v.op != "load" and at != self.out_set and self._held_bytes(v) <= self.machine.l2:
                work = self.inline[v] * self.points(v.free) * (self._tiles(at) - 1)
                weight[at] = max(weight.get(at, 0.0), work)
        chain: list[frozenset[str]] = [frozenset(), self.out_set]
        for at in sorted(weight, key=lambda s: (-weight[s], sorted(s))):
            if all(at <= c or c <= at for c in chain):
                chain.append(at)
        return chain

    def _held_bytes(self, v: Value) -> float:
        return self.points(v.free - self.out_set) * v.dtype.bytes

    def _recompute(self, v: Value, hoisted: list[frozenset[str]]) -> float:
        """How often a value is computed again for tiles of output axes that it lacks."""
        at = v.free & self.out_set
        threads = self.machine.threads
        serial = threads / min(threads, max(1.0, self.points(at)))
        if self.around - v.free:  # a loop around all products
            serial *= self.points(self.around - v.free)
        if at in hoisted and (at == self.out_set or self._held_bytes(v) <= self.machine.l2):
            return serial
        return max(self._tiles(at), serial)

    def _tiles(self, at: frozenset[str]) -> float:
        """Number of tiles of the output axes that are not in `at`."""
        out = 1.0
        for axis in self.out_axes:
            if axis not in at:
                out *= math.ceil(self.extents[axis] / TILE)
        return out

    # -------------------------------------------------------------------------- arithmetic

    def _count(self, v: Value, unit: str, amount: float, rate: float) -> None:
        wide = max(1.0, v.dtype.bytes / 4)
        for axis, part in self.part_of.items():
            if axis in v.free or any(axis in a.free for a in v.args):
                amount *= part
        machine = self.machine
        if unit == "dot":
            self.dot += amount
            self.compute += amount * wide / (machine.dot_flops * rate)
        elif unit == "special":
            self.special += amount
            self.compute += amount * wide / machine.special_ops
        else:
            self.vector += amount
            self.compute += amount * wide / machine.vector_flops

    def _arithmetic(
        self, v: Value, times: float, contexts: set[Context], shared: set[tuple]
    ) -> None:
        points = self.points(v.free) * times
        axis = bound_axis(v) or ""
        if v.op == "online":
            s, c, w = v.args
            inner = self.points(s.free | {axis}) * times
            loops = (frozenset(p for p in at if p[0] in s.free) for at in contexts)
            key = (axis, s, c, frozenset(loops))
            if key not in shared:  # all with one key share the maximum and the exponent
                shared.add(key)
                self._count(v, "special", inner, 1.0)
                self._count(v, "vector", 4 * inner, 1.0)
            both = self.points(s.free | w.free | {axis}) * times
            if v in self.dots:
                self._count(v, "dot", 2 * both, self.dots[v])
            else:
                self._count(v, "vector", (1 if w.op == "const" else 2) * both, 1.0)
        elif v.op == "red":
            inner = self.points(v.args[0].free | {axis}) * times
            if v in self.dots:
                self._count(v, "dot", 2 * inner, self.dots[v])
            else:
                each = MAXIMUM if v.attrs[0] == "max" else 1.0
                work = inner / self._lanes_used(v.args[0]) + self._folding(v, points)
                self._count(v, "vector", each * work, 1.0)
        elif v.op in SPECIAL:
            self._count(v, "special", SPECIAL[v.op] * points, 1.0)
        elif v in self.on_axes:
            pass  # tests on axes become loop bounds
        elif v.op != "load" and not self._is_dot_product(v):
            points /= self._lanes_used(v)
            self._count(v, "vector", VECTOR.get(v.op, 1.0) * points, 1.0)
        elif v.op == "load":
            self._count(v, "vector", VECTOR["load"] * points, 1.0)

    def _lanes_used(self, v: Value) -> float:
        """The part of a vector that holds values, within reductions.

        Lanes are points of an axis along which memory is contiguous: of a read, or of what is
        stored. Where all of these are short, as in a product of groups of few channels, lanes
        are idle. Outside of reductions neighbouring axes are one loop, and what is reduced
        already lies in scratch in the order that suits.
        """
        if v.free <= self.out_set or self.depth[v] or not self.innermost[v]:
            return 1.0
        axes = (self.innermost[v] | self.out_innermost) & v.free
        widest = max((self.extents[a] for a in axes), default=1)
        return min(1.0, widest / self.machine.lanes(v.dtype.bytes))

    def _folding(self, v: Value, points: float) -> float:
        """Operations to fold vectors of partial results, where a row is reduced.

        When the reduced axis is the one along which memory is read, each result is first a
        vector of partial ones; otherwise a vector holds neighbouring results.
        """
        lanes = self.machine.lanes(v.dtype.bytes)
        axis = bound_axis(v)
        if axis not in self.innermost[v.args[0]] or self.extents[axis] < lanes:
            return 0.0  # (a few neighbours are summed one by one)
        return FOLD * lanes * points

    def _is_dot_product(self, v: Value) -> bool:
        if not hasattr(self, "_products"):
            self._products = {r.args[0] for r in self.dots if r.op == "red"}
        return v in self._products

    def _total(self, memory: _Memory) -> KernelCost:
        machine = self.machine
        out_points = max(1.0, max(self.points(self.out_set), 1.0))
        lost = machine.threads / min(machine.threads, out_points)
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
        self.first: dict[str, float] = {}  # bytes of each buffer that are touched at all
        self.again = 0.0  # seconds of re-reads
        self.bytes_again = 0.0
        self.stored = 0.0
        self.extra = 0.0

    def load(self, v: Value, contexts: set[Context], row_bytes: float, tiles: float) -> None:
        """A read: once from memory, then again in other phases and for other tiles."""
        body, machine = self.body, self.body.machine
        if not contexts:
            return  # read when the executable is built
        buffer = body.kernel.buffers[v.attrs[0]]
        touched = min(buffer.nbytes, body.points(v.free) * buffer.dtype.bytes)
        self.first[buffer.name] = min(
            buffer.nbytes, max(self.first.get(buffer.name, 0.0), touched)
        )
        passes = len(contexts) - 1
        if (more := body.streams.get(v, 1) - len(contexts)) > 0:
            self._again(more * touched, machine.bandwidth_for(int(touched)))
        if passes:
            near = row_bytes <= machine.l2 / 2
            rate = machine.l2_bandwidth if near else machine.bandwidth_for(buffer.nbytes)
            self._again(passes * touched, rate)
        if tiles > 1:
            self._again((tiles - 1) * touched, machine.bandwidth_for(buffer.nbytes) * 2)

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
        rate = self.body.machine.bandwidth_for(footprint)
        beyond = rate == self.body.machine.bandwidth
        # an ordinary store reads its line first, from memory when the caches do not hold it
        written = self.stored * (2.0 if beyond and not self._streamed(footprint, rate) else 1.0)
        return (reads + self.stored + self.bytes_again, (reads + written) / rate + self.again)

    def _streamed(self, footprint: int, rate: float) -> bool:
        """Whether code generation sends the results past the caches, by default."""
        body = self.body
        scattered = any(o.scatter for o in body.kernel.outputs)
        busy = body.dots or body.compute > footprint / rate
        return body.machine.streams(footprint) and not scattered and not busy


def _phase(context: Context) -> tuple:
    return (sum(p for _, p in context), sorted(context))


def bound_axis(v: Value) -> str | None:
    """The axis that a reduction binds, None for other values."""
    if v.op == "red":
        return v.attrs[1]
    return v.attrs[0] if v.op == "online" else None


def _factors(v: Value) -> tuple[Value, Value] | None:
    """The two factors whose products a reduction sums, None when it is not such a sum."""
    if v.op == "online":
        return v.args[0], v.args[2]
    if v.op == "red" and v.attrs[0] == "add" and v.args[0].op == "mul":
        a, b = v.args[0].args
        return a, b
    return None
