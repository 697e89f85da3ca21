"""What a program is apart from its names and its origins: structural hashes and differences."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from hashlib import sha256

from luminal_lab.hlir.graph import Hlir, Node, NodeId, Operand
from luminal_lab.hlir.text import node_text, text, view_text


def structural_hash(hlir: Hlir) -> str:
    """A hash of ops, operands, views, shapes, dtypes and attributes.

    Names, weights and sources do not take part: two layers of one model hash alike.
    """
    index = {spec.node: k for k, spec in enumerate(hlir.inputs)}
    calls: dict[object, int] = {}
    lines = []
    for n, node in enumerate(hlir.nodes):
        if node.op == "Input":
            kind = "arg" if hlir.inputs[index[n]].kind == "arg" else "weight"
            lines.append(f"{kind} {index[n]} {node.dtype}{node.shape}")
            continue
        if "call" in node.attrs:
            call = calls.setdefault(node.attrs["call"], len(calls))
            node = replace(node, attrs={**node.attrs, "call": call})
        lines.append(node_text(node))
    for out in hlir.outputs:
        lines.append(f"output %{out.value.node}{view_text(out.value.view)} {out.shape}")
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def local_text(node: Node) -> str:
    """A node without the identity of what it reads: its own op, views, shape and attributes."""
    operands = tuple(Operand(k, o.view) for k, o in enumerate(node.operands))
    attrs = {k: v for k, v in node.attrs.items() if k != "call"}
    return node_text(replace(node, operands=operands, attrs=attrs))


_COLOURS = {"-": "#ffebe9", "+": "#dafbe1"}


@dataclass(frozen=True, repr=False)
class Diff:
    """How a program differs from another one, node by node.

    Arguments:
        before: The one program.
        after: The other.
        same: Pairs of nodes that correspond and are equal.
        changed: Pairs of nodes that correspond and differ, in themselves or in what they read.
        removed: Nodes of `before` without a partner.
        added: Nodes of `after` without a partner.
        outputs_changed: Whether the program outputs differ.
    """

    before: Hlir
    after: Hlir
    same: tuple[tuple[NodeId, NodeId], ...]
    changed: tuple[tuple[NodeId, NodeId], ...]
    removed: tuple[NodeId, ...]
    added: tuple[NodeId, ...]
    outputs_changed: bool

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return bool(self.changed or self.removed or self.added or self.outputs_changed)

    def text(self) -> str:
        """One line per differing node: `-` removed, `+` added, and a pair when it changed."""
        lines: list[tuple[float, str]] = []
        for a, b in self.changed:
            lines.append((b, f"- %{a} {node_text(self.before.nodes[a])}"))
            lines.append((b, f"+ %{b} {node_text(self.after.nodes[b])}"))
        partner = dict([*self.same, *self.changed])
        place, gone = -0.5, set(self.removed)
        for a in range(len(self.before.nodes)):
            if a in gone:  # shown after the node that it followed
                lines.append((place, f"- %{a} {node_text(self.before.nodes[a])}"))
            else:
                place = partner[a] + 0.5
        for b in self.added:
            lines.append((b, f"+ %{b} {node_text(self.after.nodes[b])}"))
        shown = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
        if self.outputs_changed:
            shown += [f"- {line}" for line in _outputs(self.before)]
            shown += [f"+ {line}" for line in _outputs(self.after)]
        return "\n".join(shown)

    def __repr__(self) -> str:
        head = (
            f"Diff of {self.before.name} and {self.after.name}: {len(self.same)} nodes equal, "
            f"{len(self.changed)} changed, {len(self.removed)} removed, {len(self.added)} added"
        )
        lines = self.text().splitlines()
        more = [f"… and {len(lines) - 40} more lines: .text()"] if len(lines) > 40 else []
        return "\n".join([head, *lines[:40], *more])

    def _repr_html_(self) -> str:
        style = {k: f"background:{c};color:#1f2328" for k, c in _COLOURS.items()}
        rows = "".join(
            f'<div style="{style[line[0]]}">{html.escape(line)}</div>'
            for line in self.text().splitlines()
        )
        head = html.escape(repr(self).splitlines()[0])
        return (
            f'<div>{head}<div style="font-family:monospace;white-space:pre">{rows}</div></div>'
        )


def diff(before: Hlir, after: Hlir) -> Diff:
    """Align two programs and say what differs.

    Nodes are aligned in order by what they are (op, views, shape, dtype, attributes); partners
    that read other nodes than each other's are changed too.
    """
    labels_a = [local_text(n) for n in before.nodes]
    labels_b = [local_text(n) for n in after.nodes]
    pairs: list[tuple[int, int]] = []
    loose: list[tuple[int, int]] = []
    removed: list[int] = []
    added: list[int] = []
    matcher = SequenceMatcher(None, labels_a, labels_b, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            pairs += zip(range(a0, a1), range(b0, b1))
            continue
        left, right = list(range(a0, a1)), list(range(b0, b1))
        for a, b in _by_op(before, left, after, right):
            loose.append((a, b))
            left.remove(a)
            right.remove(b)
        removed += left
        added += right
    partner = dict(pairs + loose)

    def reads(a: int, b: int) -> bool:
        x, y = before.nodes[a].operands, after.nodes[b].operands
        return [partner.get(o.node) for o in x] == [o.node for o in y]

    same = tuple((a, b) for a, b in pairs if reads(a, b))
    changed = tuple(sorted([pair for pair in pairs if not reads(*pair)] + loose))
    own = {n: n for n in range(len(after.nodes))}
    moved = _output_facts(before, partner) != _output_facts(after, own)
    return Diff(before, after, same, changed, tuple(removed), tuple(added), moved)


def _by_op(
    before: Hlir, left: Sequence[int], after: Hlir, right: Sequence[int]
) -> list[tuple[int, int]]:
    """Pair what is left over between two matches by op, in order."""
    ops_a = [before.nodes[a].op for a in left]
    ops_b = [after.nodes[b].op for b in right]
    blocks = SequenceMatcher(None, ops_a, ops_b, autojunk=False).get_matching_blocks()
    return [(left[i + k], right[j + k]) for i, j, n in blocks for k in range(n)]


def _output_facts(hlir: Hlir, number: dict[int, int]) -> list[tuple]:
    return [
        (
            number.get(o.value.node),
            o.value.view,
            o.shape,
            o.name,
            o.stride,
            o.mutates,
            o.aliases,
        )
        for o in hlir.outputs
    ]


def _outputs(hlir: Hlir) -> list[str]:
    return [line for line in text(hlir).splitlines() if line.startswith("output ")]
