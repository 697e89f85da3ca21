"""Axis atoms: how the axes of a region are split, and what they are called.

The laws of the e-graph fire on *names*: a sum over `t` and a maximum over `t` can share a loop
only when both say `t`. Two decisions make that so for real graphs.

*Splitting.* A reshape regroups the factors of its dims. Each axis is cut at every stride at
which some view that reaches it divides it: `h*64+d` cuts a dim of 768 at 64. Cuts travel
through views in both directions until nothing changes, so that index maps between atoms are
plain names. Slices whose offset is a multiple of their length, strided slices and
concatenations of equal parts cut as well. Sizes that do not divide each other keep
floor-division and remainder.

*Naming.* An atom of a producer and the atom of its consumer that reads it one to one get the
same name, walking the edges in topological order, first operand first; unless that would give
two atoms of one node the same name (attention reads `x` as query `s` and as key `t`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any

from luminal_lab.egraph.steps import Step, is_gathered
from luminal_lab.hlir.index import Atom, DivMod, Extents, Index
from luminal_lab.hlir.sizes import Dim, at_least, divides, hint, is_symbolic, smallest
from luminal_lab.hlir.view import View, out_axis

Axis = tuple[int, str]  # (step, axis of the step)


@dataclass(frozen=True)
class Digit:
    """`coef * ((axis // start) % length)`, one term of an index expression."""

    axis: str
    start: Dim
    length: Dim
    coef: Dim


@dataclass(frozen=True)
class Atoms:
    """The split and named axes of a region.

    Arguments:
        names: For each axis of each step its atoms, outermost first, as `(name, stride)`.
        extents: The extent of each atom, by name.
        conflicts: Cuts that were asked for and do not fit the others of their axis.
    """

    names: Mapping[Axis, tuple[tuple[str, Any], ...]]
    extents: dict[str, Any]
    conflicts: int

    def expand(self, step: int, axis: str) -> Index:
        """An axis of a step as an expression over its atoms."""
        return Index.linear(self.names[step, axis])


def digits(index: Index, extents: Extents) -> list[Digit] | None:
    """The terms of an index as digits of axes, smallest coefficient first, if it is so."""
    out = []
    for atom, coef in index.terms:
        found = _digit(atom, extents)
        if found is None or not at_least(coef, 0):
            return None
        axis, start, length = found
        out.append(Digit(axis, start, length, coef))
    return sorted(out, key=lambda d: hint(d.coef))


def _digit(atom: Atom, extents: Extents) -> tuple[str, Any, Any] | None:
    if isinstance(atom, str):
        return None if is_gathered(atom) else (atom, 1, extents[atom])
    inner = _single(atom.inner)
    found = _digit(inner, extents) if inner is not None else None
    if found is None or not divides(atom.by, found[2]):
        return None
    axis, start, length = found
    if atom.op == "//":
        return axis, start * atom.by, length // atom.by
    return axis, start, atom.by


def _single(index: Index) -> Atom | None:
    """The one atom that an index is made of, when it is nothing else."""
    whole = index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1
    return index.terms[0][0] if whole else None


@dataclass
class _Cuts:
    """The strides at which each axis is cut: for one axis a chain of divisors of its extent."""

    extents: dict[Axis, Any]
    at: dict[Axis, list[Any]] = field(default_factory=dict)
    conflicts: set[tuple[Axis, Any]] = field(default_factory=set)

    def of(self, axis: Axis) -> list[Any]:
        return self.at.get(axis, [])

    def add(self, axis: Axis, stride: Dim) -> bool:
        """Cut `axis` at `stride`; whether that is new."""
        n = self.extents[axis]
        have = self.at.setdefault(axis, [])
        if n == 0 or stride in (0, 1, n) or stride in have or not divides(stride, n):
            return False
        if any(not divides(q, stride) and not divides(stride, q) for q in have):
            self.conflicts.add((axis, stride))
            return False
        have.append(stride)
        have.sort(key=cmp_to_key(lambda a, b: -1 if divides(a, b) else 1))
        return True


def _divmods(index: Index) -> Iterator[DivMod]:
    for atom, _ in index.terms:
        if isinstance(atom, DivMod):
            yield atom
            yield from _divmods(atom.inner)


def _edge_cuts(
    cuts: _Cuts, producer: Axis, consumer: int, index: Index, extents: Extents, guarded: bool
) -> set[Axis]:
    """Make the cuts that one dim of one read asks for, on both sides; which axes changed."""
    changed: set[Axis] = set()

    def cut(axis: Axis, stride: Dim) -> None:
        if cuts.add(axis, stride):
            changed.add(axis)

    for atom in _divmods(index):  # i//k, i%k: whatever the whole expression is
        found = _digit(atom, extents)
        if found is not None:
            axis, start, length = found
            cut((consumer, axis), start)
            cut((consumer, axis), start * length)
    terms = digits(index, extents)
    if not terms:
        return changed
    n = cuts.extents[producer]

    def aligned(q: Dim) -> bool:
        """Whether `index % q` is a matter of the digits below q alone (no carry into q)."""
        low = index.const % q
        for d in terms:
            if not divides(q, d.coef):
                inside = d.coef * d.length
                low += (smallest(inside, q) if divides(d.coef, q) else inside) - d.coef
        return _less(low, q)

    for d in terms:
        inner = [q // d.start for q in cuts.of((consumer, d.axis)) if divides(d.start, q)]
        for q in (1, d.length, *(q for q in inner if _less(q, d.length))):
            if q != 0 and divides(d.coef * q, n) and aligned(d.coef * q):
                cut(producer, d.coef * q)
        for q in cuts.of(producer):
            between = _less(d.coef, q) and _less(q, d.coef * d.length)
            if between and divides(d.coef, q) and aligned(q):
                cut((consumer, d.axis), d.start * (q // d.coef))
        # A concatenation of equal parts: the guard lets one part of the axis through.
        part = n // d.coef
        if not guarded or n == 0 or not _less(part, d.length):
            continue
        if divides(d.coef, n) and divides(n, index.const):
            if divides(part, d.length):
                cut((consumer, d.axis), d.start * part)
    return changed


def _less(a: Dim, b: Dim) -> bool:
    """Whether a < b for all sizes."""
    return at_least(b - a, 1)


def _find_cuts(steps: Sequence[Step]) -> _Cuts:
    cuts = _Cuts({(s, a): n for s, step in enumerate(steps) for a, n in step.axes.items()})
    edges: list[tuple[Axis, int, Index, bool]] = []
    touching: dict[Axis, list[int]] = {}
    for s, step in enumerate(steps):
        for read in step.reads:
            for k, index in enumerate(read.view.index):
                if not index.terms or steps[read.step].shape[k] in (0, 1):
                    continue
                if step.op == "Custom" and not index.axes <= step.axes.keys():
                    continue  # a Custom's operand of a higher rank than its result
                producer = (read.step, out_axis(k))
                for axis in (producer, *((s, a) for a in sorted(index.axes))):
                    touching.setdefault(axis, []).append(len(edges))
                edges.append((producer, s, index, bool(read.view.guard)))
    queue = dict.fromkeys(range(len(edges)))
    while queue:
        e = next(iter(queue))
        del queue[e]
        producer, s, index, guarded = edges[e]
        for axis in sorted(_edge_cuts(cuts, producer, s, index, steps[s].axes, guarded)):
            queue.update(dict.fromkeys(touching[axis]))
    return cuts


def name_atoms(steps: Sequence[Step]) -> Atoms:
    """Split and name all axes of a region's steps."""
    cuts = _find_cuts(steps)
    atoms: dict[Axis, list[tuple[str, Dim]]] = {}
    extents: dict[str, Dim] = {}
    owner: dict[str, int] = {}
    for (s, axis), n in cuts.extents.items():
        bounds = [1, *cuts.of((s, axis)), n] if n != 1 else []
        keys = []
        for low, high in itertools.pairwise(bounds):
            key = f"{s}.{axis}.{low}"
            extents[key], owner[key] = high // low, s
            keys.append((key, low))
        atoms[s, axis] = keys[::-1]
    draft = Atoms({k: tuple(v) for k, v in atoms.items()}, extents, 0)
    names = _Names(owner)
    for s, step in enumerate(steps):
        by = {axis: draft.expand(s, axis) for axis in step.axes}
        for read in step.reads:
            _, index = guarded_index(read.view, by, extents)
            for k, expression in enumerate(index):
                if step.op == "Custom" and not read.view.index[k].axes <= step.axes.keys():
                    continue
                for (key, _), read_at in zip(
                    draft.names[read.step, out_axis(k)],
                    atom_indices(expression, draft.names[read.step, out_axis(k)], extents),
                ):
                    one = read_at.single
                    if (
                        one is not None
                        and not is_gathered(one)
                        and extents[one] == extents[key]
                    ):
                        names.unite(key, one)
    spelled = names.spell(key for keys in atoms.values() for key, _ in keys)
    return Atoms(
        {axis: tuple((spelled[k], low) for k, low in keys) for axis, keys in atoms.items()},
        {spelled[key]: n for key, n in extents.items()},
        len(cuts.conflicts),
    )


@dataclass
class _Names:
    """Union-find over atoms; a set never holds two atoms of one step."""

    owner: Mapping[str, int]
    root: dict[str, str] = field(default_factory=dict)
    members: dict[str, dict[int, str]] = field(default_factory=dict)

    def find(self, key: str) -> str:
        while (up := self.root.get(key, key)) != key:
            self.root[key] = self.root.get(up, up)
            key = up
        return key

    def _steps(self, root: str) -> dict[int, str]:
        return self.members.setdefault(root, {self.owner[root]: root})

    def unite(self, a: str, b: str) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        ours, theirs = self._steps(a), self._steps(b)
        if len(ours) < len(theirs):
            a, b, ours, theirs = b, a, theirs, ours
        if any(step in ours for step in theirs):
            return
        ours.update(theirs)
        del self.members[b]
        self.root[b] = a

    def spell(self, keys: Iterable[str]) -> dict[str, str]:
        """A short name for each atom, in the order of first appearance."""
        names: dict[str, str] = {}
        out = {}
        for key in keys:
            root = self.find(key)
            if root not in names:
                round_, letter = divmod(len(names), 26)
                names[root] = chr(ord("a") + letter) + (str(round_) if round_ else "")
            out[key] = names[root]
        return out


def atom_indices(
    expression: Index, atoms: Sequence[tuple[str, Dim]], extents: Extents
) -> list[Index]:
    """Where each atom of a dim is read, when the dim is read at `expression`."""
    out = []
    for k, (name, stride) in enumerate(atoms):
        high = expression.floordiv(stride, extents)
        out.append(high.mod(extents[name], extents) if k else high)
    return out


def guarded_index(
    view: View, by: Mapping[str, Index], extents: Extents
) -> tuple[tuple[Index, ...] | None, tuple[Index, ...]]:
    """A view under a substitution of its axes: its guard, and its index under that guard.

    Returns:
        The guard's expressions that can fail (None when it can never hold), and the index.
        Where the guard pins an axis to one value, the index has that value: under
        `h >= 1`, with `h` in {0, 1}, `h*32+d-32` is `d`.
    """
    guard = [g.substitute(by, extents) for g in view.guard]
    index = tuple(i.substitute(by, extents) for i in view.index)
    if not guard:
        return (), index
    if any(at_least(-g.bounds(extents)[1], 1) for g in guard):
        return None, index
    guard = [g for g in guard if not at_least(g.bounds(extents)[0], 0)]
    pinned = _pinned(guard, extents)
    if pinned:
        index = tuple(i.substitute(pinned, extents) for i in index)
    return tuple(dict.fromkeys(guard)), index


def _pinned(guard: Sequence[Index], extents: Extents) -> dict[str, Index]:
    """The axes that have one value only wherever all of `guard` is >= 0."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for g in guard:
        _, top = g.bounds(extents)
        for atom, coef in g.terms:
            if not isinstance(atom, str) or any(
                is_symbolic(x) for x in (coef, top, extents[atom])
            ):
                continue
            n = max(extents[atom] - 1, 0)
            rest = top - (coef * n if coef > 0 else 0)  # the most that the other terms can give
            if coef < 0:
                high[atom] = min(high.get(atom, n), rest // -coef)
            else:
                low[atom] = max(low.get(atom, 0), -(rest // coef))
    return {
        a: Index.num(low.get(a, 0))
        for a in sorted({*low, *high})
        if low.get(a, 0) == high.get(a, extents[a] - 1)
    }
