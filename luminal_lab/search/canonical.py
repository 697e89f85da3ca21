"""Canonical forms of kernels, made quickly for many kernels of the same terms.

Axes are renamed `a0, a1, …` and buffers `b0, b1, …` in the order of first use. Kernels of one
region share most of their terms, so what a term looks like under given names is remembered, and
equal canonical terms are one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from luminal_lab.egraph.values import (
    BINDERS,
    Buffer,
    Kernel,
    KernelOutput,
    ScatterTo,
    Value,
    postorder,
)
from luminal_lab.hlir.index import Index, shown
from luminal_lab.search.kernel_text import (
    AnyKernel,
    buffer_text,
    index_text,
    kernel_text,
    sizes_lines,
)


def canonical(kernel: AnyKernel) -> tuple[AnyKernel, str, dict[str, str]]:
    """The kernel with canonical names, its text, and what its buffers were called.

    Returns:
        The renamed kernel; its text; the old name of each new buffer name, reads first.
    """
    if isinstance(kernel, Kernel):
        return Canonical().derived(kernel)
    names: dict[str, str] = {}
    for name in (*kernel.reads, *kernel.writes):
        names.setdefault(name, f"b{len(names)}")
    made = replace(
        kernel,
        reads=tuple(names[n] for n in kernel.reads),
        writes=tuple(names[n] for n in kernel.writes),
        buffers={new: replace(kernel.buffers[old], name=new) for old, new in names.items()},
    )
    return made, kernel_text(made), {new: old for old, new in names.items()}


class _Head:
    """A term without its arguments, under canonical names."""

    __slots__ = ("attrs", "number", "text")

    def __init__(self, number: int, attrs: tuple, text: str):
        self.number, self.attrs, self.text = number, attrs, text


class Node:
    """A term with a kernel's own names, and what it looks like under canonical ones.

    Attributes:
        value: The term.
        args: The nodes of its arguments.
        named: The axes that it names itself, in the order of its text.
        buffer: The buffer that it reads.
        head: What it looks like whatever the names, when it has none.
        heads: Otherwise, by the new names of its buffer and axes.
    """

    __slots__ = ("args", "buffer", "head", "heads", "named", "value")

    args: tuple[Any, ...]  # nodes

    def __init__(self, value: Value, args: tuple[Any, ...]):
        self.value, self.args, self.named = value, args, _named_axes(value)
        self.buffer = value.attrs[0] if value.op == "load" else ""
        self.head: _Head | None = None
        self.heads: dict[tuple[str, ...], _Head] = {}


def nodes_of(roots: Iterable[Value]) -> list[Node]:
    """Nodes of some terms and all that is in them, arguments first."""
    made: dict[Value, Node] = {}
    for v in postorder(roots):
        made[v] = Node(v, tuple([made[a] for a in v.args]))
    return list(made.values())


class _Places:
    """Where terms are in an order."""

    def __init__(self, order: Sequence[Node]):
        self.order = order

    def __getitem__(self, value: Value) -> int:
        for n in range(len(self.order) - 1, -1, -1):  # what is asked for is near the end
            if self.order[n].value is value:
                return n
        return next(n for n, node in enumerate(self.order) if node.value == value)


class Canonical:
    """Makes canonical forms; those that one maker makes share their terms.

    Its kernels must agree on what a name means: the extent of an axis, the shape of a buffer.
    """

    def __init__(self) -> None:
        self._heads: dict[str, _Head] = {}  # by text
        self._terms: dict[tuple[int, ...], tuple[int, Value]] = {}
        self._buffers: dict[tuple[str, bool, str], tuple[Buffer, str]] = {}

    def derived(
        self, kernel: Kernel, order: Sequence[Node] = (), sized: bool = True
    ) -> tuple[Kernel, str, dict[str, str]]:
        """The kernel with canonical names, its text, and what its buffers were called.

        Arguments:
            kernel: With its own names.
            order: The nodes of its values, arguments first; made when there are none.
            sized: Whether it may take sizes.
        """
        order = order or nodes_of(kernel.values())
        axes, names = self._named(kernel, order)
        lines = sizes_lines(kernel.symbols) if sized else []
        buffers: dict[str, Buffer] = {}
        for old, new in names.items():
            buffers[new], line = self._buffer(kernel.buffers[old], new)
            lines.append(line)
        extents = {new: kernel.extents[old] for old, new in axes.items()}
        lines.append("axes " + " ".join([f"{a}={shown(n)}" for a, n in extents.items()]))
        place: dict[Node, int] = {}
        numbers: list[int] = []
        made: list[Value] = []
        terms = self._terms
        for n, node in enumerate(order):
            head = node.head
            if head is None:
                key = tuple([axes[a] for a in node.named])
                if node.buffer:
                    key = (names[node.buffer], *key)
                head = node.heads.get(key) or self._head(node, key)
            place[node] = n
            args = node.args
            if not args:
                at: tuple[int, ...] = ()
                parts: tuple[int, ...] = (head.number,)
                lines.append(f"v{n}: {head.text}")
            elif len(args) == 1:
                x = place[args[0]]
                at, parts = (x,), (head.number, numbers[x])
                lines.append(f"v{n}: {head.text} v{x}")
            elif len(args) == 2:
                x, y = place[args[0]], place[args[1]]
                at, parts = (x, y), (head.number, numbers[x], numbers[y])
                lines.append(f"v{n}: {head.text} v{x} v{y}")
            else:
                at = tuple([place[a] for a in args])
                parts = (head.number, *[numbers[m] for m in at])
                lines.append(f"v{n}: {head.text} {' '.join([f'v{m}' for m in at])}")
            found = terms.get(parts)
            if found is None:
                value = node.value
                value = Value(
                    value.op, tuple([made[m] for m in at]), head.attrs, dtype=value.dtype
                )
                found = terms[parts] = len(terms), value
            numbers.append(found[0])
            made.append(found[1])
        found_at = _Places(order)
        outputs = tuple(
            [self._output(o, axes, names, found_at, made, lines) for o in kernel.outputs]
        )
        renamed = Kernel(
            outputs, buffers, extents, kernel.nodes, kernel.rules, origin=kernel.origin
        )
        back = {new: old for old, new in names.items()}
        return renamed, "\n".join(lines), back

    def _named(
        self, kernel: Kernel, order: Iterable[Node]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The new names of axes and buffers, by the old ones, in the order of first use."""
        used: dict[str, None] = {}
        for out in kernel.outputs:
            for index in out.index:
                used.update(dict.fromkeys(axes_of(index)))
            if out.scatter is not None:
                used.update(dict.fromkeys(out.scatter.axes))
        touched: dict[str, None] = {}
        for node in order:
            for axis in node.named:
                used[axis] = None
            if node.buffer:
                touched[node.buffer] = None
        for out in kernel.outputs:
            if out.scatter is not None:
                touched[out.scatter.into] = None
        for out in kernel.outputs:
            touched[out.buffer] = None
        axes = {a: f"a{n}" for n, a in enumerate(used)}
        return axes, {b: f"b{n}" for n, b in enumerate(touched)}

    def _buffer(self, buffer: Buffer, name: str) -> tuple[Buffer, str]:
        key = (buffer.name, buffer.constant, name)
        found = self._buffers.get(key)
        if found is None:
            new = Buffer(name, buffer.shape, buffer.dtype, buffer.strides, buffer.constant)
            found = self._buffers[key] = new, f"buffer {buffer_text(new)}"
        return found

    def _head(self, node: Node, key: tuple[str, ...]) -> _Head:
        value = node.value
        attrs, op = value.attrs, value.op
        axes = dict(zip(node.named, key[1:] if node.buffer else key))
        if op == "load":
            attrs = (key[0], renamed(attrs[1], axes))
            text = f"load {key[0]}[{', '.join(map(index_text, attrs[1]))}]"
        else:
            if op == "iota":
                attrs = renamed(attrs, axes)
            elif op in ("red", "carry"):
                attrs = (attrs[0], axes[attrs[1]])
            elif op == "online":
                attrs = (axes[attrs[0]],)
            said = " ".join([repr(a) if op == "const" else str(a) for a in attrs])
            text = f"{op} {said}" if said else op
        text = f"{value.dtype} = {text}"
        head = self._heads.get(text)
        if head is None:
            head = self._heads[text] = _Head(len(self._heads), attrs, text)
        if key:
            node.heads[key] = head
        else:
            node.head = head
        return head

    def _output(
        self,
        out: KernelOutput,
        axes: Mapping[str, str],
        names: Mapping[str, str],
        place: _Places,
        made: Sequence[Value],
        lines: list[str],
    ) -> KernelOutput:
        index = renamed(out.index, axes)
        n = place[out.value]
        line = f"{names[out.buffer]}[{', '.join(map(index_text, index))}] = v{n}"
        if out.scatter is None:
            lines.append(f"store {line}")
            return KernelOutput(names[out.buffer], index, made[n])
        at = [place[v] for v in out.scatter.at]
        to = ScatterTo(
            names[out.scatter.into],
            out.scatter.mode,
            tuple(axes[a] for a in out.scatter.axes),
            tuple(made[m] for m in at),
        )
        where = " ".join(f"v{m}" for m in at)
        head = f"scatter {to.mode} into {to.into} over {' '.join(to.axes)}:"
        lines.append(f"{head} {line} at {where}".rstrip())
        return KernelOutput(names[out.buffer], index, made[n], to)


def _named_axes(value: Value) -> tuple[str, ...]:
    if value.op == "load":
        return tuple(a for index in value.attrs[1] for a in axes_of(index))
    if value.op == "iota":
        return axes_of(value.attrs[0])
    return (value.attrs[-1],) if value.op in BINDERS else ()


def _walk(index: Index) -> Iterable[str]:
    for atom, _ in index.terms:
        if not isinstance(atom, str):
            yield from _walk(atom.inner)
        elif not atom.startswith("@"):
            yield atom


@lru_cache(maxsize=4096)
def axes_of(index: Index) -> tuple[str, ...]:
    """The axes of an index expression in the order of its text."""
    return tuple(_walk(index))


def renamed(indices: Iterable[Index], axes: Mapping[str, str]) -> tuple[Index, ...]:
    """Index expressions over other axes."""
    return tuple([_over(i, tuple([axes[a] for a in axes_of(i)])) for i in indices])


@lru_cache(maxsize=16384)  # a search renames the same few indices in thousands of kernels
def _over(index: Index, names: tuple[str, ...]) -> Index:
    return index.rename(dict(zip(axes_of(index), names)))
