"""Folding a program by module: many nodes become few boxes, equal layers one.

The module path of a node (`encoder.layer.3.attention`) is where the user wrote it. Cutting
the paths at some depth gives groups; layers that differ only in a number of their path, and
calls of one module, are one group that stands for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.ops import OPS

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_CALL = re.compile(r"@\d+")  # marks a second call of a module, and further ones


@dataclass(frozen=True)
class Group:
    """Nodes that are drawn as one box.

    Arguments:
        key: The path that they share; `""` for nodes outside any module.
        nodes: The nodes of the first copy.
        copies: The paths of all copies, this one first.
    """

    key: str
    nodes: tuple[int, ...]
    copies: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its path, with the numbers of all copies: `encoder.layer.0…5`."""
        if len(self.copies) == 1:
            return self.key or "(outside modules)"
        first, last = self.copies[0], self.copies[-1]
        parts = [a if a == b else f"{a}…{b}" for a, b in
                 zip(first.split("."), last.split("."))]  # fmt: skip
        return ".".join(parts)


def drawn(hlir: Hlir) -> list[int]:
    """The nodes that get a box: scalars are written into their readers, inputs apart."""
    return [
        n for n, node in enumerate(hlir.nodes) if node.op != "Input" and not is_scalar(hlir, n)
    ]


def is_scalar(hlir: Hlir, node: int) -> bool:
    """Whether a node is a constant that its readers can show."""
    return hlir.nodes[node].op == "Constant"


def cut(path: str, depth: int) -> str:
    """The first components of a module path.

    >>> cut("encoder.layer.0.attention", 3)
    'encoder.layer.0'
    """
    return ".".join(path.split(".")[:depth]) if path else ""


def groups(hlir: Hlir, nodes: Sequence[int], depth: int) -> list[Group]:
    """The groups at one depth, equal layers folded, in the order in which they are finished."""
    by_path: dict[str, list[int]] = {}
    for n in nodes:
        by_path.setdefault(cut(hlir.nodes[n].source.module, depth), []).append(n)
    folded: dict[tuple, list[str]] = {}
    for path, members in by_path.items():
        shape = tuple((hlir.nodes[n].op, str(hlir.nodes[n].shape)) for n in members)
        pattern = _NUMBER.sub("*", _CALL.sub("", path))
        folded.setdefault((pattern, shape), []).append(path)
    found = [Group(ps[0], tuple(by_path[ps[0]]), tuple(ps)) for ps in folded.values()]
    return sorted(found, key=lambda g: g.nodes[-1])


def best_depth(hlir: Hlir, nodes: Sequence[int], limit: int) -> int | None:
    """The finest folding with at most `limit` boxes; None when the nodes themselves fit."""
    if len(nodes) <= limit:
        return None
    deepest = max((hlir.nodes[n].source.module.count(".") + 1 for n in nodes), default=1)
    for depth in range(deepest, 0, -1):
        if len(groups(hlir, nodes, depth)) <= limit:
            return depth
    return 1


def flops(hlir: Hlir, node: int) -> int | None:
    """Arithmetic of one node by its shape; None when a dim is symbolic."""
    n = hlir.nodes[node]
    family = OPS[n.op].family
    if family not in ("unary", "binary", "select", "reduce"):
        return 0
    return volume((*n.shape, n.attrs.get("extent", 1)))


def nbytes(hlir: Hlir, node: int) -> int | None:
    """Bytes of a node's result; None when a dim is symbolic."""
    total = volume(hlir.nodes[node].shape)
    return None if total is None else total * hlir.nodes[node].dtype.bytes


def volume(dims: Sequence[object]) -> int | None:
    """The product of dims, None when one is symbolic."""
    out = 1
    for d in dims:
        if not isinstance(d, int):
            return None
        out *= d
    return out


def total(values: Sequence[int | None]) -> int | None:
    """A sum that is unknown when a part is."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def histogram(hlir: Hlir, nodes: Sequence[int]) -> Mapping[str, int]:
    """How often each op occurs, most frequent first."""
    out: dict[str, int] = {}
    for n in nodes:
        op = hlir.nodes[n].op
        out[op] = out.get(op, 0) + 1
    return dict(sorted(out.items(), key=lambda item: (-item[1], item[0])))
