"""Asking for the next rows while these are computed.

A kernel that goes over a row twice waits for memory the first time and leaves it idle the
second: what it computes from the caches then, an exponential per element, and what it waits
for add up. So the second loop over a buffer asks for the lines of the block of rows that this
thread does next. Nothing else changes: a prefetch loads no register, and one that leaves the
buffer does nothing.

Measured on Zen 5 (docs/decisions/0010-streaming.md): softmax and normalizations of 64 MiB gain
8 to 30 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from luminal_lab.codegen.body import Body
from luminal_lab.codegen.streaming import footprint
from luminal_lab.codegen.tile import Loop, Node, Store, values_of
from luminal_lab.egraph.values import Buffer, postorder
from luminal_lab.hlir.index import Index
from luminal_lab.search.machine import Machine

Place = tuple[str, Index]


def worth_asking(body: Body, machine: Machine) -> bool:
    """Whether rows come from beyond the last-level cache and several phases read them."""
    if body.kernel.symbols or footprint(body) <= machine.l3:
        return False
    reduced = {p for s in body.stmts if s.over for p in _flat(s.values)}
    return any(p in reduced for s in body.stmts if s.kind == "store" for p in _flat(s.values))


def _flat(values) -> Iterator[Place]:
    """The places that values read, where these follow from the axes alone."""
    for v in postorder(values):
        if v.op == "load" and not v.args and len(v.attrs[1]) == 1:
            yield v.attrs[0], v.attrs[1][0]


def ask(nodes: Sequence[Node], buffers: Mapping[str, Buffer], near: int) -> tuple[Node, ...]:
    """The nodes, with what their loops ask for.

    Arguments:
        nodes: Of a `simd` program.
        buffers: By name.
        near: Bytes of a block of rows that stay in the caches until their turn.
    """
    return tuple(
        _grid(n, buffers, near) if isinstance(n, Loop) and n.kind == "grid" else n
        for n in nodes
    )


def _grid(loop: Loop, buffers: Mapping[str, Buffer], near: int) -> Loop:
    inner = [n for n in loop.body if isinstance(n, Loop) and n.kind == "grid"]
    if inner:
        body = tuple(
            _grid(n, buffers, near) if isinstance(n, Loop) and n.kind == "grid" else n
            for n in loop.body
        )
        return replace(loop, body=body)
    written = {n.buffer for n in _leaves(loop.body) if isinstance(n, Store)}
    seen: dict[Place, Loop] = {}  # who reads a place first
    asked: set[Place] = set()

    def visit(node: Node) -> Node:
        if not isinstance(node, Loop):
            return node
        own = [n for n in node.body if not isinstance(n, Loop)]
        ahead: list[Place] = []
        for name, index in dict.fromkeys(p for n in own for p in _flat(values_of(n))):
            if name not in buffers or name in written or index.coef(node.axis) != 1:
                continue
            place = (name, index)
            first = seen.setdefault(place, node)
            move = index.coef(loop.axis)
            size = buffers[name].dtype.bytes
            if first is node or place in asked or not isinstance(move, int):
                continue
            if node.axis != loop.axis and 0 < move * loop.step * size <= near:
                asked.add(place)
                ahead.append((name, index + move * loop.step))
        return replace(node, body=tuple(visit(n) for n in node.body), ahead=tuple(ahead))

    return replace(loop, body=tuple(visit(n) for n in loop.body))


def _leaves(nodes: Sequence[Node]) -> Iterator[Node]:
    for n in nodes:
        if isinstance(n, Loop):
            yield from _leaves(n.body)
        else:
            yield n
