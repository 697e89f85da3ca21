"""Choices by place: where the answers of comparisons of index expressions change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luminal_lab.egraph.values import Value
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Dim, is_symbolic


@dataclass(frozen=True)
class Cut:
    """Where a comparison of `axes`, and of nothing else, changes its answer.

    Arguments:
        axes: All that it depends on.
        axis: The one of them that reaches farthest.
        places: The places along that axis where the answer, or whether there is one for all
            points of the other axes, changes.
        share: The part of all points at which it holds.
    """

    axes: frozenset[str]
    axis: str
    places: tuple[int, ...]
    share: float


def cut(v: Value, extents: Mapping[str, Dim]) -> Cut | None:
    """Where the answer of a comparison with a number changes; None when it compares others.

    >>> from luminal_lab.hlir.dtypes import BOOL, I64
    >>> at = Value("iota", (), (Index.parse("i*32 + j"),), dtype=I64)
    >>> below = Value("lessthan", (at, Value("const", (), (96,), dtype=I64)), dtype=BOOL)
    >>> c = cut(below, {"i": 6, "j": 32})
    >>> c.axis, c.places, c.share
    ('i', (3,), 0.5)
    """
    if v.op != "lessthan":
        return None
    left, right = v.args
    if left.op == "iota" and right.op == "const":
        sought, limit, below = left.attrs[0], right.attrs[0], True
    elif left.op == "const" and right.op == "iota":  # limit < x is not x < limit + 1
        sought, limit, below = right.attrs[0], left.attrs[0] + 1, False
    else:
        return None
    if is_symbolic(sought.const) or not float(limit).is_integer() or not sought.terms:
        return None
    parts = [(abs(step), step, a) for a, step in sought.terms if isinstance(a, str)]
    if len(parts) < len(sought.terms) or any(
        a not in extents or is_symbolic(step) or is_symbolic(extents[a]) for _, step, a in parts
    ):
        return None
    _, step, axis = max(parts)
    rest = sought - Index.axis(axis) * step
    low, high = rest.bounds(extents)
    n = extents[axis]
    limit = int(limit)
    if step < 0:  # from the other end
        low, high, limit, below = -high, -low, 1 - limit, not below
        step = -step
    # step*a + rest < limit holds for all of the rest before the first, for none from the second
    ends = (-((high - limit) // step), -((low - limit) // step))
    places = sorted({p for p in ends if 0 < p < n})
    if not places:
        return None
    span = step * (n - 1) + high - low + 1
    share = min(1.0, max(0.0, (limit - low) / span))
    axes = frozenset(a for _, _, a in parts)
    return Cut(axes, axis, tuple(places), share if below else 1.0 - share)
