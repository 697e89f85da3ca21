"""Values: the terms of sort V, as Python sees them, and the kernels that are made of them.

A `Value` is a lazily evaluated scalar function over *named axes* (its free axes). It is what
the encoder writes into the e-graph, what extraction reads out, what code generation lowers,
and what the float64 evaluator computes. Values are immutable, hash in O(1), and share
subterms.

| op | args | attrs |
|---|---|---|
| `const` | | `(number,)` |
| `iota` | | `(Index,)` integer dtype |
| `load` | values of the axes `@0…`, usually none | `(buffer name, (Index, …))` |
| unary / binary op of the op table, lower case | 1 / 2 | |
| `select` | condition, a, b | |
| `table` | an integer | `("1.0,-1.0",)`: the number at that place |
| `cast` | x | |
| `red` | x | `("add" or "max", axis)` |
| `carry` | x, y | `("argmax", axis)`: the least y over axis among those where x is greatest |
| `carry` | x, y | `("spread", axis)`: sum over axis of y*(x - m)**2, m the mean of x under y |
| `online` | s, c, w | `(axis,)`: sum over axis of exp2(c*(s - max over axis of s)) * w |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Symbol, symbols_in

# Ops that bind an axis, the last of their attributes.
BINDERS = frozenset({"red", "carry", "online"})


class Value:
    """One term; compare with `==`, it hashes by structure. See the module's table."""

    __slots__ = ("_hash", "args", "attrs", "dtype", "free", "op", "sized")

    def __init__(
        self,
        op: str,
        args: tuple[Value, ...] = (),
        attrs: tuple = (),
        *,
        dtype: DType,
    ):
        self.op, self.args, self.attrs, self.dtype = op, args, attrs, dtype
        self.free: frozenset[str] = _free(op, args, attrs)
        self.sized: bool = _sized(op, args, attrs)  # whether a size symbol occurs in it
        self._hash = hash((op, tuple([a._hash for a in args]), attrs, dtype.name))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Value) or self._hash != other._hash:
            return False
        return (
            self.op == other.op
            and _same_attrs(self.attrs, other.attrs)
            and self.dtype is other.dtype
            and self.args == other.args
        )

    def __repr__(self) -> str:
        inner = " ".join([*map(str, self.attrs), *map(repr, self.args)])
        return f"({self.op} {inner})"


def numbers_text(numbers: Iterable[float]) -> str:
    """The attribute of a `table`: its numbers, as text.

    >>> numbers_text((1, -0.5)), numbers_of("1.0,-0.5")
    ('1.0,-0.5', (1.0, -0.5))
    """
    return ",".join(repr(float(x)) for x in numbers)


def numbers_of(text: str) -> tuple[float, ...]:
    """The numbers of a `table`."""
    return tuple(map(float, text.split(",")))


def _same_attrs(a: tuple, b: tuple) -> bool:
    """Equality that tells 1 from 1.0 and True, and 0.0 from -0.0, as constants must be told."""
    return a == b and repr(a) == repr(b)


def _free(op: str, args: tuple[Value, ...], attrs: tuple) -> frozenset[str]:
    free: frozenset[str] = args[0].free if args else frozenset()
    for a in args[1:]:
        if a.free is not free:
            free = free | a.free
    if op in BINDERS:
        return free - {attrs[-1]}
    if op == "iota":
        return attrs[0].axes
    if op == "load":
        named = frozenset().union(*(i.axes for i in attrs[1])) if attrs[1] else frozenset()
        return free | frozenset(a for a in named if not a.startswith("@"))
    return free


def _sized(op: str, args: tuple[Value, ...], attrs: tuple) -> bool:
    for a in args:
        if a.sized:
            return True
    if op == "load":
        return any(i.symbols for i in attrs[1])
    return op == "iota" and bool(attrs[0].symbols)


def postorder(roots: Iterable[Value]) -> Iterator[Value]:
    """Each distinct subterm once, arguments before users (iterative: terms can be deep)."""
    seen: set[Value] = set()
    stack: list[Any] = []  # values to visit; a list around one whose arguments are done
    for root in roots:
        stack.append(root)
        while stack:
            value = stack.pop()
            if type(value) is list:
                yield value[0]
                continue
            known = len(seen)
            seen.add(value)
            if len(seen) == known:
                continue
            if value.args:
                stack.append([value])
                stack.extend(reversed(value.args))
            else:
                yield value


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory.

    Arguments:
        name: Unique within a candidate (within a kernel, for a kernel's own text).
        shape: Extents in elements.
        dtype: Element type.
        strides: In elements, one per dim; row-major when None. A stride 0 is a broadcast dim.
        constant: Whether its contents are known when the executable is built (weights and
            what is computed from weights alone), so that a kernel may repack it then.

    Extents and strides are Dims: ints, or sizes that a call decides.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: DType
    strides: tuple[Any, ...] | None = None
    constant: bool = False

    @property
    def element_strides(self) -> tuple[Any, ...]:
        """The strides, spelled out."""
        if self.strides is not None:
            return self.strides
        out, step = [], 1
        for n in reversed(self.shape):
            out.append(step)
            step *= n
        return tuple(reversed(out))

    @property
    def numel(self) -> Any:
        """Number of elements (of the logical shape)."""
        out = 1
        for n in self.shape:
            out *= n
        return out

    @property
    def nbytes(self) -> Any:
        """Bytes of a dense tensor of this shape."""
        return self.numel * self.dtype.bytes


@dataclass(frozen=True)
class ScatterTo:
    """What makes an output a scatter: it starts as a copy of a tensor, and some points are set.

    Arguments:
        into: The buffer whose contents the output starts from (it may be the same memory).
        mode: `"set"`, where the last of several points at one place wins, or `"add"`.
        axes: The axes of the points, outermost first: their order.
        at: The values of the axes `@0`, `@1`, … in the output's index. A point whose place is
            outside of the buffer stores nothing.
    """

    into: str
    mode: Literal["set", "add"]
    axes: tuple[str, ...]
    at: tuple[Value, ...] = ()


@dataclass(frozen=True)
class KernelOutput:
    """What a kernel stores: `buffer[index] = value` for all points of the axes in `index`.

    The axes in `index` are exactly the output's iteration space; the index map is injective and
    covers the buffer (a merged dim is written at `h*64+d`). A scatter has its own list of axes,
    and its index may repeat places, leave some out, and depend on values.
    """

    buffer: str
    index: tuple[Index, ...]
    value: Value
    scatter: ScatterTo | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of its iteration space, in order."""
        if self.scatter is not None:
            return self.scatter.axes
        return tuple(dict.fromkeys(a for i in self.index for a in sorted(i.axes)))

    @property
    def values(self) -> tuple[Value, ...]:
        """What it computes: the value, and where a scatter puts it."""
        return (self.value, *(self.scatter.at if self.scatter is not None else ()))


@dataclass(frozen=True)
class Origin:
    """Where a kernel was read from.

    Arguments:
        region: Its region's number.
        tensor: The T-class that it stores.
        producer: The e-node of that class that it is.
        picks: `(V-class, e-node)` in topological order, arguments first.
    """

    region: int
    tensor: int
    producer: int
    picks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Kernel:
    """One derived kernel: values to compute and buffers to read and write.

    Arguments:
        outputs: What is stored; usually one.
        buffers: Every buffer that is read or written, by name.
        extents: The extent of every axis, free or bound, by name (binders may shadow).
        nodes: The HLIR nodes that it covers (provenance).
        rules: Names of the rules that made its values (provenance), sorted.
        schedule: The schedule that a candidate chose for it, as plain data; None for the
            default.
        origin: Where it was read from; None for one that was parsed or written by hand.
    """

    outputs: tuple[KernelOutput, ...]
    buffers: Mapping[str, Buffer]
    extents: Mapping[str, Any]
    nodes: tuple[int, ...] = field(default=(), compare=False)
    rules: tuple[str, ...] = field(default=(), compare=False)
    schedule: Any = field(default=None, compare=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that it takes at run time, sorted by name; none when all are fixed."""
        dims = [*self.extents.values()]
        for b in self.buffers.values():
            dims += [*b.shape, *(b.strides or ())]
        found = symbols_in(dims)
        indices = [i for o in self.outputs for i in o.index]
        for v in postorder(v for v in self.values() if v.sized):
            if v.op == "load":
                indices += v.attrs[1]
            elif v.op == "iota":
                indices.append(v.attrs[0])
        return tuple(sorted(found.union(*(i.symbols for i in indices))))

    def source(self, language: str = "c") -> str:
        """Its generated source under its schedule.

        Arguments:
            language: `"c"`, `"triton"` or `"metal"`.

        Raises:
            ScheduleError: for another language.
        """
        # Code generation depends on values, not the other way: it is reached by name.
        codegen = import_module("luminal_lab.codegen")
        return codegen.source(self, self.schedule, language).text

    def reads(self) -> tuple[str, ...]:
        """Names of the buffers that it reads, in the order of first use."""
        out: dict[str, None] = {}
        for value in postorder(self.values()):
            if value.op == "load":
                out.setdefault(value.attrs[0])
        for output in self.outputs:
            if output.scatter is not None:
                out.setdefault(output.scatter.into)
        return tuple(out)

    def values(self) -> tuple[Value, ...]:
        """Everything that it computes, output by output."""
        return tuple(v for o in self.outputs for v in o.values)

    def writes(self) -> tuple[str, ...]:
        """Names of the buffers that it writes."""
        return tuple(o.buffer for o in self.outputs)
