"""How many rows a step of a row loop takes at once.

Values that all rows share (a scale, a bias) stay in the first-level cache from row to row,
until a row of all operands is longer than that cache: then they come from the second level
again, for each row. A step of four rows reads them once for the four (the compiler sees that
they are the same).

Measured on Zen 5 for gelu(x*w+b)+r in float32, four rows against one: rows of 4096 columns
1.25 to 1.5 times as fast, of 16384 columns 1.2 to 1.3; of 2048 and fewer, whose rows fit the
first level, 0.4 to 0.7 times, for the memory then follows eight short streams instead of two.
In the last-level cache four rows lose a tenth, and light values are bound by memory either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal_lab.codegen import analysis
from luminal_lab.codegen.body import Body
from luminal_lab.codegen.streaming import footprint
from luminal_lab.search.machine import Machine

TOGETHER = 4


def shared_row_axis(body: Body) -> str | None:
    """The axis along which a pointwise kernel's points share something that is read as a row.

    None where there is no such axis, or the kernel's values are light.
    """
    stores = body.stores()
    if len(stores) != len(body.stmts) or any(s.scatter for s in stores) or not stores:
        return None
    if body.kernel.symbols or len({s.axes for s in stores}) > 1:
        return None
    first = stores[0]
    vector = analysis.vector_axis(first, body)
    rows = [a for a in analysis.by_stride(first) if a != vector]
    if vector is None or not rows or body.extents[rows[-1]] < TOGETHER:
        return None
    shared = any(
        vector in v.free and rows[-1] not in v.free for s in stores for v in analysis.loads(s)
    )
    heavy = any(analysis.is_heavy(s, vector) for s in stores)
    return rows[-1] if shared and heavy else None


def rows_together(body: Body, machine: Machine) -> int:
    """Rows that a step should take by default."""
    if shared_row_axis(body) is None or footprint(body) <= machine.l3:
        return 1
    return TOGETHER if _row_bytes(body) > machine.l1 else 1


def _row_bytes(body: Body) -> int:
    """Bytes of all that one row reads and writes."""
    first = body.stores()[0]
    vector = analysis.vector_axis(first, body)
    names: dict[str, int] = {}
    for s in body.stores():
        names[s.name] = s.dtype.bytes
        for v in analysis.loads(s):
            if vector in v.free:
                names[v.attrs[0]] = v.dtype.bytes
    return sum(names.values()) * body.extents[vector or ""]


def fitting(
    grid: Sequence[tuple[str, int]], body: Body, rows: int
) -> tuple[tuple[str, int], ...]:
    """The grid with tasks of at least so many rows."""
    axis = shared_row_axis(body)
    return tuple((a, max(step, rows) if a == axis else step) for a, step in grid)
