"""The memory plan: where each buffer of a program lives, and when it is live.

Buffers of one call share an *arena*: two whose live ranges do not meet may have the same bytes,
and a kernel may write over an operand that it alone still needs, where every point is read
exactly once, just before it is stored. What depends on weights alone is *persistent*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from luminal_lab.egraph.values import BINDERS, Buffer, Kernel, postorder
from luminal_lab.runtime.memory import aligned
from luminal_lab.search.candidate import Candidate, LibraryKernel

Place = Literal["arena", "persistent", "external"]


@dataclass(frozen=True)
class Placement:
    """Where one buffer lives.

    Arguments:
        name: The program's buffer, or `k3.pack0@7` / `workspace` for what kernels need besides.
        kind: The candidate's kind of it, or `pack`, `workspace`.
        place: The arena of a call, persistent memory, or a tensor of the user's (`external`).
        offset: Bytes from the start of the arena or of the persistent block; -1 for external.
        nbytes: Its size.
        first, last: Its live range: calls, inclusive; -1 is "before the first call".
        over: The buffer that it overwrites in place.
    """

    name: str
    kind: str
    place: Place
    offset: int
    nbytes: int
    first: int
    last: int
    over: str | None = None


@dataclass(frozen=True)
class Extra:
    """Memory that a kernel needs besides its buffers.

    Arguments:
        name: A unique name.
        kind: `pack` (repacked constants) or `workspace`.
        nbytes: Its size.
        persistent: Whether it outlives a call.
        first, last: Calls in which it is live.
    """

    name: str
    kind: Literal["pack", "workspace"]
    nbytes: int
    persistent: bool
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of a program.

    Arguments:
        placements: One per buffer, in order of the candidate's buffers, then the extras.
        arena_bytes: Size of the arena that each concurrent call owns.
        persistent_bytes: Size of what is kept between calls: packed and precomputed weights.
        calls: Number of calls in the program.
    """

    placements: tuple[Placement, ...]
    arena_bytes: int
    persistent_bytes: int
    calls: int

    def __getitem__(self, name: str) -> Placement:
        for placement in self.placements:
            if placement.name == name:
                return placement
        raise KeyError(name)

    @property
    def sum_bytes(self) -> int:
        """What the arena would take if no two buffers shared bytes."""
        return sum(aligned(p.nbytes) for p in self.placements if p.place == "arena")

    @property
    def live_bytes(self) -> int:
        """The most bytes live in one call: no plan needs less, but for overwriting in place."""
        inside = [p for p in self.placements if p.place == "arena"]
        return max(
            (
                sum(aligned(p.nbytes) for p in inside if p.first <= k <= p.last)
                for k in range(-1, self.calls + 1)
            ),
            default=0,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, one dict per buffer."""
        return [asdict(p) for p in self.placements]

    def table(self):
        """The plan as a pandas DataFrame: offset, size, live range."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def text(self) -> str:
        """The arena as a picture: one row per buffer, one column per call, `#` where live."""
        inside = sorted(
            (p for p in self.placements if p.place == "arena"),
            key=lambda p: (p.first, p.offset),
        )
        width = max(self.calls, 1)
        step = -(-width // 64)
        lines = [repr(self)]
        for p in inside[:60]:
            cells = "".join(
                "#" if p.first <= k + step - 1 and p.last >= k else "."
                for k in range(0, width, step)
            )
            over = f"  over {p.over}" if p.over else ""
            lines.append(f"{p.offset:>12,} {p.nbytes:>12,} {cells} {p.name}{over}")
        if len(inside) > 60:
            lines.append(f"... and {len(inside) - 60} more; table() has all")
        return "\n".join(lines)

    def graph(self):
        """A graphviz Digraph of which buffer takes the bytes of which."""
        import graphviz

        dot = graphviz.Digraph("plan", node_attr={"shape": "box"}, graph_attr={"rankdir": "LR"})
        inside = sorted(
            (p for p in self.placements if p.place == "arena"), key=lambda p: p.first
        )[:300]
        for k, p in enumerate(inside):
            dot.node(
                str(k), f"{p.name}\n{p.nbytes:,} B at {p.offset:,}\ncalls {p.first}–{p.last}"
            )
        for j, q in enumerate(inside):
            before = [
                i
                for i, p in enumerate(inside[:j])
                if p.offset < q.offset + q.nbytes and q.offset < p.offset + p.nbytes
            ]
            if before:
                dot.edge(str(max(before, key=lambda i: inside[i].last)), str(j))
        return dot

    def diff(self, other: MemoryPlan) -> str:
        """How another plan differs, line by line."""
        import difflib

        lines = difflib.unified_diff(
            self.text().splitlines(), other.text().splitlines(), "this", "other", lineterm=""
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        saved = 1 - self.arena_bytes / self.sum_bytes if self.sum_bytes else 0.0
        return (
            f"MemoryPlan: arena {self.arena_bytes:,} B for {self.sum_bytes:,} B of buffers "
            f"({saved:.0%} saved), persistent {self.persistent_bytes:,} B"
        )


def storage_bytes(buffer: Buffer) -> int:
    """Bytes from the first to the last element of a buffer, strides as they are."""
    if 0 in buffer.shape:
        return 0
    strides = buffer.element_strides
    return (1 + sum((n - 1) * s for n, s in zip(buffer.shape, strides))) * buffer.dtype.bytes


def make_plan(
    candidate: Candidate,
    *,
    at_call: Sequence[int],
    persistent: Sequence[str],
    external: Sequence[str],
    extras: Sequence[Extra] = (),
    overwrites: Callable[[int], bool] = lambda kernel: True,
) -> MemoryPlan:
    """Place every buffer of a program.

    Arguments:
        candidate: The program.
        at_call: Positions in `candidate.calls` that run at each call, in order.
        persistent: Buffers that are written when the executable is built.
        external: Buffers that are tensors of the user's: arguments, weights, fresh outputs.
        extras: Packs and workspaces; their live ranges count positions in `at_call`.
        overwrites: Whether the code of a kernel stands a buffer that is read and written.

    Returns:
        The plan. Outputs that are neither external nor persistent live to the end of the call.
    """
    kept, outside = frozenset(persistent), frozenset(external)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for when, position in enumerate(at_call):
        call = candidate.calls[position]
        kernel = candidate.kernels[call.kernel]
        for name in (*reads_of(kernel), *writes_of(kernel)):
            bound = call.bind[name]
            first.setdefault(bound, when)
            last[bound] = when
    requests: dict[str, _Slot] = {}
    for name, buffer in candidate.buffers.items():
        if name in kept or name in outside or name not in first:
            continue
        end = len(at_call) if candidate.kinds[name] == "output" else last[name]
        requests[name] = _Slot([name], storage_bytes(buffer), first[name], end)
    over = _overwrite(candidate, at_call, requests, last, overwrites)
    slots = list(dict.fromkeys(requests.values()))
    slots += [_Slot([e.name], e.nbytes, e.first, e.last) for e in extras if not e.persistent]
    arena = _pack(slots)
    offsets = {name: slot.offset for slot in slots for name in slot.names}
    out: list[Placement] = []
    total = 0
    for name, buffer in candidate.buffers.items():
        kind, nbytes = candidate.kinds[name], storage_bytes(buffer)
        if name in kept:
            out.append(Placement(name, kind, "persistent", total, nbytes, -1, len(at_call)))
            total += aligned(nbytes)
        elif name in offsets:
            end = len(at_call) if kind == "output" else last[name]
            here = offsets[name]
            row = Placement(name, kind, "arena", here, nbytes, first[name], end, over.get(name))
            out.append(row)
        else:
            begin, end = first.get(name, -1), last.get(name, -1)
            out.append(Placement(name, kind, "external", -1, nbytes, begin, end))
    for extra in extras:
        place: Place = "persistent" if extra.persistent else "arena"
        offset = total if extra.persistent else offsets[extra.name]
        out.append(
            Placement(
                extra.name, extra.kind, place, offset, extra.nbytes, extra.first, extra.last
            )
        )
        if extra.persistent:
            total += aligned(extra.nbytes)
    return MemoryPlan(tuple(out), arena, total, len(at_call))


def reads_of(kernel: Kernel | LibraryKernel) -> tuple[str, ...]:
    """Names of the buffers that a kernel reads, in its own order."""
    return kernel.reads if isinstance(kernel, LibraryKernel) else kernel.reads()


def writes_of(kernel: Kernel | LibraryKernel) -> tuple[str, ...]:
    """Names of the buffers that a kernel writes, in its own order."""
    return kernel.writes if isinstance(kernel, LibraryKernel) else kernel.writes()


class _Slot:
    """Bytes that one buffer, or a chain of buffers in place, occupies during a live range."""

    def __init__(self, names: list[str], nbytes: int, first: int, last: int):
        self.names, self.nbytes, self.first, self.last = names, nbytes, first, last
        self.offset = -1


def _overwrite(
    candidate: Candidate,
    at_call: Sequence[int],
    slots: dict[str, _Slot],
    last: Mapping[str, int],
    allowed: Callable[[int], bool],
) -> dict[str, str]:
    """Join the slots of buffers that a call may write over an operand that dies there."""
    over: dict[str, str] = {}
    for when, position in enumerate(at_call):
        call = candidate.calls[position]
        kernel = candidate.kernels[call.kernel]
        if isinstance(kernel, LibraryKernel) or not allowed(call.kernel):
            continue
        for target in kernel.writes():
            written = call.bind[target]
            for read in overwritable(kernel, target):
                bound = call.bind[read]
                dying = bound in slots and last[bound] == when == slots[bound].last
                # Bound twice, it might be read at other points under its other name.
                once = sum(b == bound for b in call.bind.values()) == 1
                if (
                    dying
                    and once
                    and written in slots
                    and slots[written].first == when
                    and len(slots[written].names) == 1
                    and slots[bound].nbytes == slots[written].nbytes
                    and written not in over
                ):
                    slot = slots[bound]
                    slot.names.append(written)
                    slot.last = slots[written].last
                    slots[written] = slot
                    over[written] = bound
                    break
    return over


def overwritable(kernel: Kernel, target: str) -> tuple[str, ...]:
    """Operands that `target` may share memory with, while the kernel runs.

    Each point of such an operand is read for the same point of the target and for no other: the
    kernel has one output, no reduction, and reads the operand at the output's own index. The
    destination of a scatter is read for nothing else.
    """
    out = next((o for o in kernel.outputs if o.buffer == target), None)
    if out is not None and out.scatter is not None:
        loads = {v.attrs[0] for v in postorder(kernel.values()) if v.op == "load"}
        once = sum(o.scatter is not None and o.scatter.into == out.scatter.into
                   for o in kernel.outputs) == 1  # fmt: skip
        return (out.scatter.into,) if out.scatter.into not in loads and once else ()
    if out is None or len(kernel.outputs) != 1:
        return ()
    store = kernel.buffers[target]
    reads: dict[str, bool] = {}
    for value in postorder([out.value]):
        if value.op in BINDERS:
            return ()
        if value.op == "load":
            name, index = value.attrs
            source = kernel.buffers[name]
            same = (
                index == out.index
                and source.element_strides == store.element_strides
                and source.shape == store.shape
                and source.dtype.bytes == store.dtype.bytes
            )
            reads[name] = reads.get(name, True) and same
    return tuple(name for name, same in reads.items() if same)


def _pack(slots: Sequence[_Slot]) -> int:
    """Give each slot an offset, the largest first, each at the lowest place free; the size."""
    placed: list[_Slot] = []
    size = 0
    for slot in sorted(slots, key=lambda s: (-s.nbytes, s.first, s.names[0])):
        rivals = sorted(
            (p for p in placed if p.first <= slot.last and slot.first <= p.last),
            key=lambda p: p.offset,
        )
        at = 0
        for rival in rivals:
            if at + aligned(slot.nbytes) <= rival.offset:
                break
            at = max(at, rival.offset + aligned(rival.nbytes))
        slot.offset = at
        size = max(size, at + aligned(slot.nbytes))
        placed.append(slot)
    return size
