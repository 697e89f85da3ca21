"""What nodes are, as labels in which repetitions show, and what borders among them cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate

from luminal_lab.hlir.compare import local_text
from luminal_lab.hlir.extract import Flow
from luminal_lab.hlir.graph import Hlir, Node, NodeId, Operand
from luminal_lab.hlir.view import View


class Labels:
    """What a node is, with the constants and index arithmetic that it reads.

    Arguments:
        hlir: The program.
        flow: Who reads whom in it.
        offsets: Whether reads at different offsets of an array differ.
    """

    def __init__(self, hlir: Hlir, flow: Flow, offsets: bool = True):
        self.hlir, self.flow, self.offsets = hlir, flow, offsets
        self._known: dict[NodeId, str] = {}

    def __call__(self, n: NodeId) -> str:
        """The label of a node."""
        if n not in self._known:
            node = self.hlir.nodes[n]
            if node.op == "Input":  # the first step may read one where others read a result
                return ""
            below = (self(o.node) for o in node.operands if self.flow.by_use[o.node])
            told = node if self.offsets else self._without_offsets(node)
            parts = [local_text(told), *(text for text in below if text)]
            one = len(parts) == 1
            self._known[n] = parts[0] if one else sha256(repr(parts).encode()).hexdigest()
        return self._known[n]

    def _array(self, operand: Operand) -> bool:
        whole = not self.flow.by_use[operand.node]
        return whole or self.hlir.nodes[operand.node].op == "Input"

    def _without_offsets(self, node: Node) -> Node:
        def bare(o: Operand) -> Operand:
            if o.view.guard or not self._array(o):
                return o
            return replace(o, view=View(tuple(i + -i.const for i in o.view.index)))

        return replace(node, operands=tuple(map(bare, node.operands)))


def live_at(nodes: Sequence[NodeId], flow: Flow) -> list[int]:
    """How many values a border before each of some nodes would have to pass on."""
    place = {n: k for k, n in enumerate(nodes)}
    change = [0] * (len(nodes) + 2)
    for k, n in enumerate(nodes):
        last = max((place[u] for u in flow.users[n] if u in place), default=k)
        change[k + 1] += 1
        change[last + 1] -= 1
    return list(accumulate(change))[: len(nodes) + 1]
