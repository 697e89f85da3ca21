"""Hlir region → the terms of two sorts that are loaded into the e-graph.

`V` is a value over named axes, `T` a tensor in memory. Each HLIR op becomes its own `Kernel`
over `Load`s; that reading a kernel's result equals computing it in place is a *rule*
(fusion.egg). No substitution runs inside egglog, so where a tensor is read at other indices
than its own axes (`x` as key `t`), the encoder unites `(Load T index)` with T's body under
that index, once per distinct `(node, index)`: a *renamed copy*.

Invariants that the rest of the compiler relies on:

- A kernel stores only the axes that its value depends on; broadcasting is a view. Outputs,
  the operands of a Custom and the destination of a Scatter are stored whole.
- Constants and Iotas are never stored for their readers.
- A load below a Select may be out of bounds exactly where the condition selects the other
  branch. Evaluators clamp it; generated code must not read there.
- A reduction keeps the name of the axis it reduces; binders shadow, and a bound axis is renamed
  (`t'`) only where a substituted index mentions it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from luminal_lab.egraph.atoms import Atoms, atom_indices, guarded_index, name_atoms
from luminal_lab.egraph.steps import Step, family, is_gathered, point_axis, role_axes, steps_of
from luminal_lab.egraph.tiles import SIZES, TAPS, Tiles, listings, sliding
from luminal_lab.hlir.dtypes import I64, DType
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import REDUCTIONS
from luminal_lab.hlir.sizes import at_least
from luminal_lab.hlir.view import View, out_axis

Substitution = Mapping[str, Index]

# A renamed copy goes through at most so many nested reductions of the program: what lies deeper
# is read from memory. In a stack of layers, each would else copy all that comes before it.
DEPTH = 3


@dataclass(frozen=True)
class Term:
    """One term: a constructor of `language.egg`, its children, and its plain arguments.

    Arguments:
        op: `"Mul"`, `"Load"`, `"Kernel"`, …
        children: For V: ids of V terms; `Load`, `LoadAt`: the T term first. For T: `Kernel`
            has its V term, `Custom` has T terms, `Scatter` a T term and then V terms.
        attrs: Strings and numbers, in the constructor's order.
    """

    op: str
    children: tuple[int, ...] = ()
    attrs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A T term, with the shape and the dtype of what it stores."""

    term: Term
    shape: tuple[Any, ...]
    dtype: DType


@dataclass(frozen=True)
class Counts:
    """What the encoding cost, and where it could not keep names.

    Arguments:
        copies: Renamed copies.
        captures: Bound axes renamed because an index mentioned them.
        divmods: Loads whose index keeps a floor-division or a remainder.
        stopped: Copies that stopped at a reduction that is not worth recomputing, or too deep.
        skipped: Copies left out because of the limit: reads there are from memory only.
        conflicts: Cuts of axes that did not fit each other.
    """

    copies: int = 0
    captures: int = 0
    divmods: int = 0
    stopped: int = 0
    skipped: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Call:
    """A Custom node, as rules see it.

    Arguments:
        node: Its number, as in its term.
        target: The operator's name.
        stored: The index map at which its result is stored, None when dims have no names.
        reads: The index maps at which its operands are, over the same axes.
        roles: The axes of each named dim, in the order of their first appearance.
        numbers: Its arguments that are numbers.
    """

    node: int
    target: str
    stored: str | None = None
    reads: tuple[str, ...] = ()
    roles: tuple[frozenset[str], ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Encoding:
    """A region as terms.

    Arguments:
        values: The V terms; ids are positions, children come first.
        tensors: The T terms.
        unions: Pairs of V terms that are equal: a load, and the copy of what it reads.
        indices: Every index map that occurs, by its text.
        extents: The extent of every axis.
        node_tensor: HLIR node → T term (nodes that are never stored have none).
        outputs: Output name → T term.
        counts: For the report.
        weights: The inputs whose contents are known when a program is built.
        calls: The Custom nodes, as rules see them.
        tiles: Values that slide along axes, and the same by tiles.
    """

    values: tuple[Term, ...]
    tensors: tuple[Tensor, ...]
    unions: tuple[tuple[int, int], ...]
    indices: Mapping[str, tuple[Index, ...]]
    extents: Mapping[str, Any]
    node_tensor: Mapping[int, int]
    outputs: tuple[tuple[str, int], ...]
    counts: Counts
    weights: frozenset[str] = frozenset()
    calls: tuple[Call, ...] = ()
    tiles: tuple[Tiles, ...] = ()


def encode(hlir: Hlir, max_copies: int = 4000, tiles: bool = False) -> Encoding:
    """Encode a region.

    Arguments:
        hlir: The region.
        max_copies: No more renamed copies than that are made; the rest is counted as skipped.
        tiles: Whether to encode what is seen through windows by tiles, too.
    """
    steps, outputs = steps_of(hlir)
    encoder = _Encoder(steps, name_atoms(steps), max_copies)
    for s in range(len(steps)):
        encoder.define(s)
    for s in range(len(steps)) if tiles else ():
        encoder.tile(s)
    encoder.make_copies()
    mutated = {out.mutates for out in hlir.outputs}
    weights = frozenset(
        spec.name for spec in hlir.inputs if spec.kind != "arg" and spec.name not in mutated
    )
    return replace(encoder.result(steps, outputs), weights=weights)


@dataclass(frozen=True)
class _Access:
    """One read of a step, over the names of the step's atoms: the producer's stored dims."""

    step: int
    view: View


@dataclass
class _Encoder:
    steps: Sequence[Step]
    atoms: Atoms
    max_copies: int
    values: list[Term] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    unions: list[tuple[int, int]] = field(default_factory=list)
    indices: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    known: dict[Term, int] = field(default_factory=dict)
    tensor_of: dict[int, int] = field(default_factory=dict)
    # Per step and dim: the stored atoms, outermost first, with their strides in the stored dim.
    stored: list[list[list[tuple[str, Any]]]] = field(default_factory=list)
    access: list[list[_Access]] = field(default_factory=list)
    copied: dict[tuple[int, tuple[Index, ...]], None] = field(default_factory=dict)
    queue: deque[tuple[int, tuple[Index, ...], int, int]] = field(default_factory=deque)
    depth: int = 0  # reductions around the copy that is being made
    counts: dict[str, int] = field(default_factory=dict)
    divmods: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    tiles: list[Tiles] = field(default_factory=list)

    # ------------------------------------------------------------------ terms

    @property
    def extents(self) -> dict[str, Any]:
        return self.atoms.extents

    def value(self, op: str, children: Sequence[int] = (), attrs: Sequence[Any] = ()) -> int:
        term = Term(op, tuple(children), tuple(attrs))
        key = Term(op, term.children, tuple((type(a), repr(a)) for a in attrs))
        if key not in self.known:
            self.known[key] = len(self.values)
            self.values.append(term)
        return self.known[key]

    def index_text(self, index: Sequence[Index]) -> str:
        text = ", ".join(map(str, index))
        self.indices[text] = tuple(index)
        return text

    def constant(self, value: Any, dtype: DType) -> int:
        if not dtype.is_float:
            return self.value("Int", attrs=(int(value), dtype.name))
        number = float(value)
        if number == 0 and math.copysign(1.0, number) < 0:
            return self.value("NegZero", attrs=(dtype.name,))
        return self.value("Const", attrs=(number, dtype.name))

    def iota(self, index: Index, dtype: DType) -> int:
        if not index.terms and isinstance(index.const, int):
            return self.constant(index.const, dtype)
        return self.value("Iota", attrs=(self.index_text((index,)), dtype.name))

    # ------------------------------------------------------------------ steps

    def define(self, s: int) -> None:
        """Find what a step stores, and make its T term."""
        step = self.steps[s]
        by = {axis: self.atoms.expand(s, axis) for axis in step.axes}
        self.access.append([self._accessed(read.step, read.view, by) for read in step.reads])
        names = {axis: list(self.atoms.names[s, axis]) for axis in step.axes}
        dims = [names[out_axis(k)] for k in range(len(step.shape))]
        if step.op != "Input" and not step.opaque and step.op != "Copy":
            free = self._depends_on(s)
            dims = [[(name, st) for name, st in dim if name in free] for dim in dims]
        self.stored.append([self._packed(dim) for dim in dims])
        if step.constant or (step.op == "Copy" and self._alias(s)):
            return
        shape = tuple(math.prod(self.extents[name] for name, _ in dim) for dim in dims)
        if step.op == "Input":
            term, shape = Term("Input", (), (str(step.attrs["name"]),)), step.shape
        elif step.op == "Scatter":
            term, shape = self._scatter(s), step.shape
        elif step.opaque:
            children = tuple(self.tensor_of[read.step] for read in step.reads)
            term, shape = Term(step.op, children, (step.node,)), step.shape
            self.calls.append(self._call(s))
        else:
            term = Term("Kernel", (self.body(s, {}),), (self.index_text(self.own(s)),))
        self.tensor_of[s] = len(self.tensors)
        self.tensors.append(Tensor(term, shape, step.dtype))

    def _alias(self, s: int) -> bool:
        """Whether a copy can be the tensor that it reads (an output is no Input itself)."""
        step, (read,) = self.steps[s], self.access[s]
        producer = self.steps[read.step]
        if producer.constant or (producer.op == "Input" and step.attrs["output"]):
            return False
        t = self.tensor_of[read.step]
        view = step.reads[0].view
        same = all(
            i == Index.axis(out_axis(k)) or (n == 1 and i == Index.num(0))
            for k, (i, n) in enumerate(zip(view.index, step.shape))
        )
        whole = same and not view.guard and self.tensors[t].shape == step.shape
        if whole:
            self.tensor_of[s] = t
        return whole

    def _packed(self, dim: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        out: list[tuple[str, Any]] = []
        stride = 1
        for name, _ in reversed(dim):
            out.append((name, stride))
            stride *= self.extents[name]
        return out[::-1]

    def _depends_on(self, s: int) -> frozenset[str]:
        step = self.steps[s]
        free: set[str] = set()
        if step.op == "Iota":
            free |= self._iota_index(s).axes
        for access in self.access[s]:
            for i in (*access.view.index, *access.view.guard):
                free |= {a for a in i.axes if not is_gathered(a)}
        return frozenset(free)

    def _iota_index(self, s: int) -> Index:
        step = self.steps[s]
        by = {axis: self.atoms.expand(s, axis) for axis in step.axes}
        return step.attrs["index"].substitute(by, self.extents)

    def own(self, s: int) -> tuple[Index, ...]:
        """The index map of what a step stores, over its own atoms."""
        return tuple(Index.linear(dim) for dim in self.stored[s])

    def _accessed(self, producer: int, view: View, by: Substitution) -> _Access:
        """A view of a step's dims as an index of what it stores (of its value, for an Iota)."""
        guard, index = guarded_index(view, by, self.extents)
        step = self.steps[producer]
        if step.op == "Iota":
            axes = {out_axis(k): i for k, i in enumerate(index)}
            stored = (step.attrs["index"].substitute(axes, self.extents),)
        elif step.op == "Constant":
            stored = ()
        elif step.op == "Input" or step.opaque:
            stored = index
        else:
            stored = tuple(self._stored_dim(producer, k, i) for k, i in enumerate(index))
        never = (Index.num(-1),)
        return _Access(producer, View(stored, never if guard is None else guard, view.fill))

    def _stored_dim(self, s: int, k: int, read_at: Index) -> Index:
        all_atoms = self.atoms.names[s, out_axis(k)]
        kept = dict(self.stored[s][k])
        if len(kept) == len(all_atoms):
            return read_at
        out = Index.num(0)
        if kept:
            for (name, _), i in zip(all_atoms, atom_indices(read_at, all_atoms, self.extents)):
                out = out + i * kept.get(name, 0)
        return out

    # ------------------------------------------------------------------ bodies

    def body(self, s: int, by: Substitution) -> int:
        """The value of a step at a point, its axes replaced by expressions."""
        step = self.steps[s]
        kind = family(step.op)
        if step.reduces:
            return self._reduction(s, by)
        if kind == "index":
            table, *indices = self.access[s]
            return self._gather(table, [self._read(a, by) for a in indices], by)
        args = [self._read(a, by) for a in self.access[s]]
        if kind == "copy":
            return args[0]
        if kind == "cast":
            return self.value("Cast", args, (step.dtype.name,))
        return self.value(step.op, args)

    def _reduction(self, s: int, by: Substitution) -> int:
        step = self.steps[s]
        mentioned = frozenset().union(*(i.axes for i in by.values())) if by else frozenset()
        by = dict(by)
        bound = []
        for name, _ in self.atoms.names[s, "r"]:
            fresh = name
            while fresh in mentioned:
                fresh += "'"
            if fresh != name:
                self.extents[fresh] = self.extents[name]
                by[name] = Index.axis(fresh)
                self._count("captures")
            bound.append(fresh)
        out, *places = (self._read(access, by) for access in self.access[s])
        op = REDUCTIONS[step.op]
        for name in reversed(bound):
            if places:
                places = [self.value("Carry", (out, *places), (op, name))]
                out = self.value("Red", (out,), ("max", name))
            else:
                out = self.value("Red", (out,), (op, name))
        return places[0] if places else out

    def _gather(self, table: _Access, indices: list[int], by: Substitution) -> int:
        step = self.steps[table.step]
        guard, index = guarded_index(table.view, by, self.extents)
        if guard is None or step.op == "Constant":
            value = table.view.fill if guard is None else step.attrs["value"]
            return self.constant(value, step.dtype)
        t = self._tensor(table.step)
        at = self.value("LoadAt", (t, *indices), (self.index_text(index),))
        return self._guard(guard, at, table.view.fill, step.dtype)

    def _scatter(self, s: int) -> Term:
        """A tensor with values stored at points: indices that are no data stay expressions."""
        step = self.steps[s]
        dest, source, *places = self.access[s]
        index: list[Index] = []
        values: list[int] = []
        for place in places:
            known = self.steps[place.step]
            if known.op == "Iota" and not place.view.guard:
                index.append(place.view.index[0])
            elif known.op == "Constant" and not place.view.guard:
                index.append(Index.num(int(known.attrs["value"])))
            else:
                index.append(Index.axis(f"@{len(values)}"))
                values.append(self._read(place, {}))
        names = [
            Index.axis(name)
            for k in range(len(step.axes) - len(step.shape))
            for name, _ in self.atoms.names[s, point_axis(k)]
        ]
        children = (self.tensor_of[dest.step], self._read(source, {}), *values)
        attrs = (step.attrs["mode"], self.index_text(names), self.index_text(index))
        return Term("Scatter", children, attrs)

    def _call(self, s: int) -> Call:
        """What rules may know about a Custom node."""
        step = self.steps[s]
        assert step.node is not None
        target = str(step.attrs["target"])
        roles = role_axes(step)
        if roles is None:
            return Call(step.node, target)
        by = {axis: self.atoms.expand(s, axis) for axis in step.axes}
        reads = [
            self.index_text([i.substitute(by, self.extents) for i in read.view.index])
            for read in step.reads
        ]
        named = [frozenset(n for n, _ in self.atoms.names[s, axis]) for axis in roles.values()]
        stored = self.index_text([by[out_axis(k)] for k in range(len(step.shape))])
        numbers = tuple(step.attrs.get("numbers", ()))
        return Call(step.node, target, stored, tuple(reads), tuple(named), numbers)

    def _tensor(self, s: int) -> int:
        """The T term that stores a step (an Iota that is gathered from is stored for it)."""
        if s not in self.tensor_of:
            step = self.steps[s]
            self.tensor_of[s] = len(self.tensors)
            value = self.iota(self._iota_index(s), step.dtype)
            term = Term("Kernel", (value,), (self.index_text(self.own(s)),))
            shape = tuple(math.prod(self.extents[a] for a, _ in dim) for dim in self.stored[s])
            self.tensors.append(Tensor(term, shape, step.dtype))
        return self.tensor_of[s]

    def _read(self, access: _Access, by: Substitution) -> int:
        step = self.steps[access.step]
        guard, index = guarded_index(access.view, by, self.extents)
        if guard is None:
            return self.constant(access.view.fill, step.dtype)
        if step.op == "Constant":
            out = self.constant(step.attrs["value"], step.dtype)
        elif step.op == "Iota":
            out = self.iota(index[0], step.dtype)
        else:
            out = self._load(access.step, index)
        return self._guard(guard, out, access.view.fill, step.dtype)

    def _guard(self, guard: Sequence[Index], value: int, fill: Any, dtype: DType) -> int:
        """`value` where all of `guard` is >= 0, else the fill."""
        if not guard:
            return value
        holds: int | None = None
        for g in guard:
            test = self.value("LessThan", (self.constant(-1, I64), self.iota(g, I64)))
            holds = test if holds is None else self.value("Mul", (holds, test))
        assert holds is not None
        return self.value("Select", (holds, value, self.constant(fill, dtype)))

    def _load(self, s: int, index: tuple[Index, ...]) -> int:
        load = self.value("Load", (self.tensor_of[s],), (self.index_text(index),))
        if not all(i.is_affine for i in index):
            self.divmods.add(load)
        step = self.steps[s]
        if step.op == "Input" or step.opaque or index == self.own(s):
            return (
                load  # an Input has no body; the canonical read is the business of fusion.egg
            )
        if (s, index) not in self.copied:
            self.copied[s, index] = None
            self.queue.append((s, index, load, self.depth))
        return load

    # ------------------------------------------------------------------ tiles

    def tile(self, s: int) -> None:
        """What one operand of a product is along two windows, tile by tile."""
        step = self.steps[s]
        if family(step.op) != "binary" or len(self.access[s]) != 2:
            return
        axes = [
            frozenset().union(*(i.axes for i in (*a.view.index, *a.view.guard)))
            for a in self.access[s]
        ]
        for (slides, read), other in zip(zip(self.access[s], axes), reversed(axes)):
            both = (*slides.view.index, *slides.view.guard)
            found = sliding(both, other, self.extents)
            if len(found) != 2 or found[0].place.axes & found[1].place.axes:
                continue
            taps = (found[0].tap, found[1].tap)
            if not frozenset(taps) < self._summed(s) & read & other:
                continue  # nothing is summed beside the taps
            places = found[0].place.axes | found[1].place.axes
            lists = listings(read, other, frozenset(taps), places)
            ends = [
                Index.num(w.extent + TAPS - 2) - w.place - Index.axis(w.tap)
                for w in found
                if not any(i.coef(w.tap) == -1 for i in slides.view.guard)
            ]  # the last tile may reach beyond what the window does
            tiled = replace(
                slides, view=replace(slides.view, guard=(*slides.view.guard, *ends))
            )
            for size in SIZES:
                by: dict[str, Index] = {}
                tiles, inside = (
                    [f"{w.unit}.{size}" for w in found],
                    [f"{t}.{size}" for t in taps],
                )
                for w, t, k in zip(found, tiles, inside):
                    self.extents[t] = -(-w.extent // size)
                    self.extents[k] = size + TAPS - 1
                    by |= dict.fromkeys(w.place.axes, Index.num(0))
                    by |= {w.unit: Index.axis(t) * size, w.tap: Index.axis(k)}
                self.tiles.append(
                    Tiles(self._read(slides, {}), self._read(tiled, by), size,
                          (found[0].place, found[1].place), taps, (tiles[0], tiles[1]),
                          (inside[0], inside[1]), lists)
                )  # fmt: skip

    def _summed(self, s: int) -> frozenset[str]:
        """The axes that sums over a step reduce, one after another."""
        out: set[str] = set()
        above = {s}
        for t in range(s + 1, len(self.steps)):
            step = self.steps[t]
            if step.reduces and step.reads[0].step in above:
                out |= {name for name, _ in self.atoms.names[t, "r"]}
                above.add(t)
        return frozenset(out)

    # ------------------------------------------------------------------ renamed copies

    def make_copies(self) -> None:
        """Unite each load at another index with the body that it stands for."""
        made = 0
        while self.queue:
            s, index, load, self.depth = self.queue.popleft()
            self.depth += self.steps[s].reduces
            by: dict[str, Index] = {}
            for dim, i in zip(self.stored[s], index):
                by.update(zip((n for n, _ in dim), atom_indices(i, dim, self.extents)))
            if self.steps[s].reduces and (
                self.depth > DEPTH or not _injective(by.values(), self.extents)
            ):
                self._count("stopped")
            elif made >= self.max_copies:
                self._count("skipped")
            else:
                made += 1
                self.unions.append((load, self.body(s, by)))
        self.counts["copies"] = made

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def result(self, steps: Sequence[Step], outputs: Sequence[tuple[str, int]]) -> Encoding:
        """Everything, frozen."""
        nodes = {
            step.node: self.tensor_of[s]
            for s, step in enumerate(steps)
            if step.node is not None and s in self.tensor_of
        }
        counts = Counts(
            **self.counts, divmods=len(self.divmods), conflicts=self.atoms.conflicts
        )
        return Encoding(
            tuple(self.values),
            tuple(self.tensors),
            tuple(self.unions),
            self.indices,
            dict(self.extents),
            nodes,
            tuple((name, self.tensor_of[s]) for name, s in outputs),
            counts,
            calls=tuple(self.calls),
            tiles=tuple(self.tiles),
        )


def _injective(indices: Any, extents: Mapping[str, Any]) -> bool:
    """Whether different points read different elements, as far as is plain to see.

    True for renamings, slices and merges; false for windows (`i+k`) and repeats.
    """
    seen: set[str] = set()
    for index in indices:
        span = 1
        for atom, coef in reversed(index.terms):  # smallest coefficient first
            if not isinstance(atom, str) or atom in seen:
                return False
            if not at_least(abs(coef) - span, 0):
                return False
            seen.add(atom)
            span = abs(coef) * extents[atom]
    return True
