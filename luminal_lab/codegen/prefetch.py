"""Asking memory for what a loop reads next, beyond the last-level cache.

Hardware sees streams within a page of 4 KiB and begins anew in the next one, and it cannot know
what a loop that computes from the caches will need afterwards. So

* a loop over what it alone reads asks for the lines a page further on, if it computes much in
  between: light loops run ahead by themselves;
* of two loops over the same rows, the first waits for memory and the second leaves it idle:
  what is computed there, an exponential per element, and what was waited for add up. The second
  asks for the block of rows that this thread does next.

Nothing else changes: a prefetch loads no register, and one that leaves the buffer does nothing.
Measured on Zen 5 (docs/decisions/0010-streaming.md): arithmetic on 64 MiB gains up to 40 %,
softmax and normalizations 8 to 30 %. Light loops lose 3 to 8 % when they ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from luminal_lab.codegen import analysis, terms
from luminal_lab.codegen.body import Body
from luminal_lab.codegen.streaming import footprint
from luminal_lab.codegen.tile import Loop, Node, Store, values_of
from luminal_lab.egraph.values import Buffer, Value, postorder
from luminal_lab.hlir.index import Index
from luminal_lab.search.machine import Machine

PAGE = 4096  # bytes; also how far ahead a loop asks

Place = tuple[str, Index]


def worth_asking(body: Body, machine: Machine) -> bool:
    """Whether a kernel reads from beyond the last-level cache."""
    if body.kernel.symbols or footprint(body) <= machine.l3:
        return False
    readers = Counter(
        place
        for s in body.stmts
        for place in set(_flat(s.values))
        if place[0] in body.buffers and is_far(body.buffers[place[0]], machine)
    )
    again = any(n > 1 for n in readers.values())
    return again or (bool(readers) and any(analysis.is_heavy(s) for s in body.stmts))


def is_far(buffer: Buffer, machine: Machine) -> bool:
    """Whether no second-level cache would hold it."""
    return isinstance(n := buffer.nbytes, int) and n > machine.threads * machine.l2


def _flat(values: Sequence[Value]) -> Iterator[Place]:
    """The places that values read, where these follow from the axes alone."""
    for v in postorder(values):
        if v.op == "load" and not v.args and len(v.attrs[1]) == 1:
            yield v.attrs[0], v.attrs[1][0]


def ask(
    nodes: Sequence[Node], buffers: Mapping[str, Buffer], machine: Machine
) -> tuple[Node, ...]:
    """The nodes, with what their loops ask for.

    Arguments:
        nodes: Of a `simd` program.
        buffers: By name.
        machine: Half of its second-level cache holds a block of rows until their turn.
    """
    return tuple(
        _Grid(n, buffers, machine).asking() if _is_grid(n) else n  # type: ignore[arg-type]
        for n in nodes
    )


def _is_grid(node: Node) -> bool:
    return isinstance(node, Loop) and node.kind == "grid"


class _Grid:
    """One grid loop and the loops inside."""

    def __init__(self, loop: Loop, buffers: Mapping[str, Buffer], machine: Machine):
        self.loop, self.buffers, self.machine = loop, buffers, machine
        self.written = {n.buffer for n in _leaves(loop.body) if isinstance(n, Store)}
        self.readers: dict[Place, list[Loop]] = {}  # in order
        self._collect(loop.body)

    def asking(self) -> Loop:
        """The loop, with what the loops inside ask for."""
        if any(_is_grid(n) for n in self.loop.body):
            return replace(self.loop, body=ask(self.loop.body, self.buffers, self.machine))
        return replace(self.loop, body=tuple(self._visit(n) for n in self.loop.body))

    def _collect(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                for place in self._places(node):
                    self.readers.setdefault(place, []).append(node)
                self._collect(node.body)

    def _places(self, node: Loop) -> list[Place]:
        """Far places that a loop reads line after line."""
        own = [v for n in node.body if not isinstance(n, Loop) for v in values_of(n)]
        return [
            (name, index)
            for name, index in dict.fromkeys(_flat(own))
            if name in self.buffers
            and name not in self.written
            and index.coef(node.axis) == 1
            and is_far(self.buffers[name], self.machine)
        ]

    def _visit(self, node: Node) -> Node:
        if not isinstance(node, Loop):
            return node
        ahead = [
            (place[0], place[1] + move)
            for place in self._places(node)
            if (move := self._ahead(place, node)) is not None
        ]
        body = tuple(self._visit(n) for n in node.body)
        return replace(node, body=body, ahead=tuple(ahead))

    def _ahead(self, place: Place, node: Loop) -> int | None:
        """How many elements further on a loop asks; None when it does not."""
        name, index = place
        size, readers = self.buffers[name].dtype.bytes, self.readers[place]
        rows = index.coef(self.loop.axis) * self.loop.step
        again = (
            len(readers) > 1
            and node.axis != self.loop.axis
            and isinstance(rows, int)
            and 0 < rows * size <= self.machine.l2 // 2
        )
        if again:
            return rows if readers[1] is node else None
        asks = node.step * size >= analysis.LINE and readers[0] is node and _is_busy(node)
        return PAGE // size if asks else None


def _is_busy(node: Loop) -> bool:
    own = [v for n in node.body if not isinstance(n, Loop) for v in values_of(n)]
    return any(terms.work(v, node.axis) > analysis.HEAVY for v in own)


def _leaves(nodes: Sequence[Node]) -> Iterator[Node]:
    for n in nodes:
        if isinstance(n, Loop):
            yield from _leaves(n.body)
        else:
            yield n
