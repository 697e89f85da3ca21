"""Which results a kernel sends past the caches.

An ordinary store reads the line that it is about to overwrite. A kernel that moves more than
the last-level cache holds pays for that from main memory: a third of what a copy moves. A
streaming store does not read, but what it has written is no longer near for whoever reads it
next, and it waits longer where little happens between two stores that is not arithmetic.

Measured on Zen 5 with a last level of 32 MiB (docs/decisions/0010-streaming.md): beyond 1.5
times that, sums and copies gain a quarter and normalizations 7 to 9 %; at its size a kernel
that reads the result loses more than this one gains. Values as costly as an erf lose 4 %, and
gain 20 % when their loop asks for its operands ahead (`prefetch.py`), as it does by default.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal_lab.codegen import analysis
from luminal_lab.codegen.body import Body, Stmt
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.machine import Machine


def streamable(stmts: Sequence[Stmt], body: Body, machine: Machine) -> frozenset[str]:
    """Buffers that statements only write, each place once, and that no near cache would hold.

    A buffer that is read as well is in the caches already when it is written. A kernel that
    takes sizes may be called with small ones.
    """
    read = {n for s in stmts for n in s.reads()}
    near = machine.threads * machine.l2
    return frozenset(
        s.name
        for s in stmts
        if s.kind == "store" and not s.scatter and s.name not in read
        and not body.kernel.symbols and body.buffers[s.name].nbytes > near
    )  # fmt: skip


def undecided(body: Body, machine: Machine) -> bool:
    """Whether both kinds of stores are worth measuring: beyond the last-level cache."""
    names = streamable(body.stmts, body, machine)
    return bool(names) and footprint(body) > machine.l3


def worth_streaming(body: Body, machine: Machine) -> bool:
    """Whether results should be streamed, by size: they are far beyond the cache."""
    return bool(streamable(body.stmts, body, machine)) and machine.streams(footprint(body))


def footprint(body: Body) -> int:
    """Bytes of memory that a kernel touches, each once."""
    touched: dict[str, int] = {}
    for s in body.stmts:
        for v in analysis.loads(s):
            name = v.attrs[0]
            if not name.startswith("%"):
                buffer = body.buffers[name]
                n = hint(analysis.points(v.free, body.extents)) * buffer.dtype.bytes
                touched[name] = max(touched.get(name, 0), min(hint(buffer.nbytes), n))
        if s.kind == "store":
            touched[s.name] = hint(body.buffers[s.name].nbytes)
    return sum(touched.values())


def whole_lines(s: Stmt, axis: str | None, step: int, innermost: str) -> bool:
    """Whether a store fills cache lines at once.

    Arguments:
        s: The store.
        axis: Its vector axis, if any.
        step: Points of the axis that are stored in one go.
        innermost: The axis of the innermost loop around it, if any.
    """
    if axis is None or s.index is None or s.index.coef(axis) != 1:
        return False
    return axis == innermost or step * s.dtype.bytes % analysis.LINE == 0
