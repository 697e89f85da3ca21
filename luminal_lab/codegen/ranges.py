"""Results that are something else in each part of an axis: a store for each of the parts.

A concatenation is a choice by place: `i < 64 ? a[i] : b[i - 64]`. Point by point all branches
would be computed for all parts, and thrown away. Where conditions on axes of a result decide
between branches, these axes are cut where the answers change; within a part no choice is left,
and no read leaves its buffer. A place may be given by several axes, as in `i*32 + j < 96`: then
the outermost is cut first, and the next one in the part that this leaves undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from luminal_lab.codegen import terms
from luminal_lab.codegen.tables import Written
from luminal_lab.codegen.terms import const
from luminal_lab.egraph.choices import cut
from luminal_lab.egraph.values import BINDERS, Kernel, KernelOutput, Value, postorder
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, bounds, is_symbolic

MOST = 8  # parts of a result
LEAST = 16  # points of a part of an axis along which memory is contiguous
GAIN = 0.9  # the work of all parts, against that of the choice, for cutting to be worth it


@dataclass(frozen=True)
class _Part:
    """A part of a result.

    Arguments:
        value: What it is there.
        by: What stands for the axes of the result.
        mine: The axes of `by`'s expressions that are the part's own.
    """

    value: Value
    by: Mapping[str, Index]
    mine: frozenset[str] = frozenset()


def by_ranges(kernel: Kernel, extents: dict[str, Dim]) -> list[list[Written]] | None:
    """For each result of a kernel the stores of its parts; None when nothing is to be cut.

    Arguments:
        kernel: What to compute.
        extents: Receives the axes of parts.
    """
    outputs = kernel.outputs
    if any(o.scatter is not None for o in outputs) or any(
        is_symbolic(extents[a]) or not extents[a] for o in outputs for a in o.axes
    ):
        return None
    parts = [_parts(kernel, o, extents) for o in outputs]
    if all(len(some) == 1 for some in parts):
        return None
    return parts


def _parts(kernel: Kernel, out: KernelOutput, extents: dict[str, Dim]) -> list[Written]:
    whole = _Part(out.value, {a: Index.axis(a) for a in out.axes})
    if any(v.op == "select" for v in postorder([out.value])):
        flat = terms.flat_index(kernel.buffers[out.buffer], out.index)
        names = dict(extents)
        left, done = [whole], list[_Part]()
        while left:
            one = left.pop(0)
            made = _divided(one, flat, names)
            if len(made) < 2 or len(left) + len(done) + len(made) > MOST:
                done.append(one)
            else:
                left = made + left
        if len(done) > 1:
            values = [p.value for p in done]
            for work in (_work, _outside):  # of sums, which may be most of it, or around them
                if work(values, names) < GAIN * work([out.value], extents):
                    return _apart(done, out, names, extents)
    return [Written(out.value, {})]


def _divided(part: _Part, flat: Index, extents: dict[str, Dim]) -> list[_Part]:
    """A part cut along the axis where that saves most; itself where none can be."""
    best, least = [part], _work([part.value], extents)
    axes = {a: x for a, i in part.by.items() for x in i.axes}
    for axis, places in _places(part.value, axes, extents).items():
        spans = list(pairwise([0, *sorted(places), extents[axes[axis]]]))
        short = extents[axes[axis]] >= LEAST > min(hi - lo for lo, hi in spans)
        if len(spans) > MOST or (short and flat.coef(axis) in (1, -1)):
            continue
        made: list[_Part] = []
        for lo, hi in spans:
            at = Index.num(lo)
            if hi - lo > 1:
                name = axes[axis] + "."
                while name in extents:
                    name += "."
                extents[name] = hi - lo
                at = at + Index.axis(name)
            inner = {axes[axis]: at}
            by = {a: i.substitute(inner, extents) for a, i in part.by.items()}
            made.append(_Part(_decided(part.value, inner, extents), by, part.mine | {axis}))
        if (work := _work([p.value for p in made], extents)) < least:
            best, least = made, work
    return best


def _places(
    v: Value, axes: Mapping[str, str], extents: Mapping[str, Dim]
) -> dict[str, set[int]]:
    """Of each axis of a result, where answers of conditions on such axes alone change.

    Arguments:
        v: What is stored.
        axes: What the axes are called in it.
        extents: Of all axes.
    """
    names = {x: a for a, x in axes.items()}
    out: dict[str, set[int]] = {}
    stack, seen = [(v, frozenset(names))], set[tuple[Value, frozenset[str]]]()
    while stack:
        t, free = stack.pop()
        free &= t.free  # a reduction may bind the same name
        if not free or (t, free) in seen:
            continue
        seen.add((t, free))
        found = cut(t, extents)
        if found is not None and found.axes <= free:
            out.setdefault(names[found.axis], set()).update(found.places)
        stack += [(a, free) for a in t.args]
    return out


def _apart(
    parts: list[_Part], out: KernelOutput, names: Mapping[str, Dim], extents: dict[str, Dim]
) -> list[Written]:
    """The parts as stores.

    Where several points of an axis are left in a part, the axes of that dim are each part's
    own: they would else be one axis in some statements and several in others.
    """
    own: set[str] = set()
    for i in out.index:
        if any(p.by[a].axes for p in parts for a in i.axes & p.mine):
            own |= i.axes
    made = []
    for k, p in enumerate(parts):
        fresh: dict[str, Index] = {}
        for a in sorted(own):
            for x in sorted(p.by[a].axes):
                name = f"{a}.{k}"
                extents[name] = names[x]
                fresh[x] = Index.axis(name)
        by = {a: i.substitute(fresh, extents) for a, i in p.by.items()}
        made.append(Written(_decided(p.value, fresh, extents), by))
    return made


def _work(values: Sequence[Value], extents: Mapping[str, Dim]) -> float:
    """Operations to compute some terms, each distinct one for each point of its axes."""
    return _sum(postorder(values), extents)


def _sum(found: Iterable[Value], extents: Mapping[str, Dim]) -> float:
    out = 0.0
    for t in found:
        if t.op in ("const", "iota"):
            continue
        free = frozenset().union(t.free, *(a.free for a in t.args))
        points = 1.0
        for a in free:
            points *= bounds(extents[a])[1]
        out += points
    return out


def _outside(values: Sequence[Value], extents: Mapping[str, Dim]) -> float:
    """The same but for what reductions do."""
    found: dict[Value, None] = {}
    stack = list(values)
    while stack:
        t = stack.pop()
        if t not in found and t.op not in BINDERS:
            found[t] = None
            stack += t.args
    return _sum(found, extents)


def _decided(v: Value, by: Mapping[str, Index], extents: Mapping[str, Dim]) -> Value:
    """A term within one part: conditions that hold throughout, or nowhere, are decided.

    Arguments:
        v: The term.
        by: What stands for axes where they are free; a reduction may bind the same name.
        extents: Of all axes.
    """
    memo: dict[tuple[Value, frozenset[str]], Value] = {}

    def go(old: Value, names: frozenset[str]) -> Value:
        names &= old.free
        if not names:
            return old
        found = memo.get((old, names))
        if found is None:
            args = tuple(go(a, names) for a in old.args)
            here = {a: by[a] for a in names}
            found = memo[old, names] = _step(old, args, here, extents)
        return found

    return go(v, frozenset(by))


def _step(
    old: Value, args: tuple[Value, ...], by: Mapping[str, Index], extents: Mapping[str, Dim]
) -> Value:
    if old.op == "load":
        index = tuple(i.substitute(by, extents) for i in old.attrs[1])
        return terms.remake(old, args, (old.attrs[0], index, *old.attrs[2:]))
    if old.op == "iota":
        return terms.remake(old, args, (old.attrs[0].substitute(by, extents),))
    if old.op == "lessthan" and (known := _known(args, extents)) is not None:
        return const(known, BOOL)
    if old.op == "select" and args[0].op == "const":
        return args[1] if args[0].attrs[0] else args[2]
    if old.op in ("mul", "add") and old.dtype is BOOL:
        for a, b in (args, args[::-1]):
            if a.op == "const":
                return b if bool(a.attrs[0]) is (old.op == "mul") else a
    return old if args == old.args else terms.remake(old, args)


def _known(args: tuple[Value, ...], extents: Mapping[str, Dim]) -> bool | None:
    """Whether one of two index expressions is the less at all places, or at none."""
    ends = []
    for a in args:
        if a.op == "const":
            ends.append((a.attrs[0], a.attrs[0]))
        elif a.op == "iota" and not any(x.startswith("@") for x in a.attrs[0].axes):
            low, high = a.attrs[0].bounds(extents)
            if is_symbolic(low) or is_symbolic(high):
                return None
            ends.append((low, high))
        else:
            return None
    (low, high), (least, most) = ends
    if high < least:
        return True
    return False if low >= most else None
