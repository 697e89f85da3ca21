"""Windows: an operand that sees a few elements many times is laid out once.

The image that a convolution reads depends on `y + ky`, not on `y` and `ky`: one point of the
sum is one element, padding included. `window_store` finds axes that occur in a term only
together, always as the same combination `s*a + d*b`, and replaces the term by a read of scratch
that holds it once per value of those combinations, with what pads the image already in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import Stmt
from luminal_lab.egraph.values import Buffer, Value, postorder
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import is_symbolic

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering

MOST = 1 << 26  # elements of scratch


@dataclass(frozen=True)
class Window:
    """Two axes that occur only as `s*a + d*b`, one of s and d being 1.

    Arguments:
        axes: a and b.
        steps: s and d.
        extent: How many values the combination has.
    """

    axes: tuple[str, str]
    steps: tuple[int, int]
    extent: int


def windows(v: Value, extents) -> list[Window]:
    """The windows of a term, no axis in two of them.

    >>> from luminal_lab.hlir.dtypes import F32
    >>> x = Value("load", (), ("x", (Index.parse("2*y + k + c*100"),)), dtype=F32)
    >>> windows(x, {"y": 5, "k": 3, "c": 4})
    [Window(axes=('k', 'y'), steps=(1, 2), extent=11)]
    """
    if v.sized or any(is_symbolic(extents[a]) for a in v.free):
        return []  # how many values a combination has is known at the call only
    forms = _forms(v)
    if forms is None:
        return []
    out: list[Window] = []
    taken: set[str] = set()
    names = sorted(a for a in v.free if extents[a] > 1)
    for k, a in enumerate(names):
        for b in names[k + 1 :]:
            if a in taken or b in taken:
                continue
            found = _window(a, b, forms, extents)
            if found is not None:
                out.append(found)
                taken |= {a, b}
    return out


def _forms(v: Value) -> list[Index] | None:
    """The index expressions of a term; None when some axis occurs in another way."""
    out: dict[Index, None] = {}
    for t in postorder([v]):
        if t.op == "load":
            if t.args or t.attrs[0].startswith("%"):
                return None
            out.setdefault(t.attrs[1][0])
        elif t.op == "iota":
            out.setdefault(t.attrs[0])
    return list(out) if all(i.is_affine for i in out) else None


def _window(a: str, b: str, forms: Sequence[Index], extents) -> Window | None:
    first = next(i for i in forms if i.coef(a) or i.coef(b))
    s, d = first.coef(a), first.coef(b)
    if not s or not d or (s > 0) is not (d > 0):
        return None
    common = math.gcd(s, d)
    s, d = abs(s) // common, abs(d) // common
    if min(s, d) != 1 or any(i.coef(a) * d != i.coef(b) * s for i in forms):
        return None
    n = s * (extents[a] - 1) + d * (extents[b] - 1) + 1
    return Window((a, b), (s, d), n) if n < extents[a] * extents[b] else None


def window_store(
    v: Value, inner: Sequence[str], stem: str, low: Lowering
) -> tuple[Stmt, Value] | None:
    """A statement that lays a term out in scratch, and the read that replaces the term.

    Arguments:
        v: A term with windows.
        inner: Axes that should be innermost in scratch, the last one last; in place of an axis
            of a window stands the window.
        stem: For the scratch's name.
        low: The lowering, which receives the scratch and its axes.
    """
    found = windows(v, low.extents)
    if not found:
        return None
    by: dict[str, Index] = {}
    read: dict[str, Index] = {}  # scratch axis -> what it is at a point of the term
    extents: dict[str, int] = {}
    stands: dict[str, str] = {}
    for w in found:
        name = "_".join(w.axes)
        while name in low.extents or name in extents:
            name += "_"
        extents[name] = w.extent
        (a, b), (s, d) = w.axes, w.steps
        kept, gone = (b, a) if d == 1 else (a, b)
        by |= {kept: Index.axis(name), gone: Index.num(0)}
        read[name] = Index.axis(a) * s + Index.axis(b) * d
        stands |= {a: name, b: name}
    for a in sorted(v.free - set(stands)):
        extents[a], read[a], stands[a] = low.extents[a], Index.axis(a), a
    size = math.prod(extents.values())
    if size > MOST or size >= math.prod(low.extents[a] for a in v.free):
        return None
    low.extents |= extents
    low.hints |= extents
    laid = terms.substitute(v, by, low.extents)
    order = sorted(extents, key=lambda a: (-_reach(laid, a), a))
    last = list(dict.fromkeys(stands[a] for a in inner))
    order = [a for a in order if a not in last] + last
    name = low.fresh(stem)[1:] + ".image"
    strides: dict[str, int] = {}
    step = 1
    for a in reversed(order):
        strides[a] = step
        step *= extents[a]
        if a == order[-1] and step * 4 % 1024 == 0:
            step += low.lanes  # rows that far apart would share cache sets
    low.scratch(Buffer(name, tuple(extents[a] for a in order), v.dtype,
                       tuple(strides[a] for a in order)))  # fmt: skip
    flat, at = Index.num(0), Index.num(0)
    for a in order:
        flat = flat + Index.axis(a) * strides[a]
        at = at + read[a] * strides[a]
    marker = low.fresh("laid")
    store = Stmt(name, "store", (laid,), v.dtype, frozenset(extents), index=flat, target=marker)
    return store, Value("load", (), (name, (at,)), dtype=v.dtype)


def _reach(v: Value, axis: str) -> int:
    """The largest stride of an axis in what a term loads."""
    loads = [t for t in postorder([v]) if t.op == "load" and axis in t.free]
    return max((abs(t.attrs[1][0].coef(axis)) for t in loads), default=0)
