"""The body of a Triton kernel: statements on blocks, and the spelling of every op."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_lower import matrix_sides
from luminal_lab.codegen.block_text import (
    BlockView,
    Names,
    Scopes,
    compute_dtype,
    negated,
    opens_with,
)
from luminal_lab.codegen.body import identity
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Fold,
    Init,
    Loop,
    Node,
    Store,
    is_local,
)
from luminal_lab.egraph.values import Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.index import Index

BODY_NAMES = ("tl", "triton", "pid", "range", "float", "int", "bool", "True", "False", "None")
TYPES = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5", "i64": "tl.int64", "i32": "tl.int32",
    "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
HELPERS = {
    "_maximum": '''@triton.jit
def _maximum(a, b):
    """The larger one; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "_remainder": '''@triton.jit
def _remainder(a, b):
    """The remainder with the divisor's sign, as in Python."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
''',
    "_floordiv": '''@triton.jit
def _floordiv(a, b):
    """Division that rounds down, as in Python."""
    return (a - ((a % b) + b) % b) // b
''',
    "_to_e4m3": '''@triton.jit
def _to_e4m3(x):
    """float32 to float8e4nv; beyond the largest number comes NaN (the cast alone saturates)."""
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)
''',
    "_to_e5m2": '''@triton.jit
def _to_e5m2(x):
    """float32 to float8e5; beyond the largest number comes infinity (the cast saturates)."""
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    bits = tl.where(tl.abs(x) >= 61440.0, (bits & 128) | 124, bits)
    return bits.to(tl.float8e5, bitcast=True)
''',
}
_UNARY = {
    "exp2": "tl.exp2({})",
    "log2": "tl.log2({})",
    "sin": "tl.sin({})",
    "sqrt": "tl.sqrt_rn({})",
    "erf": "tl.erf({})",
}
ATOM, UNARY, TIMES, PLUS, AND, OR, COMPARE = 9, 6, 5, 4, 3, 2, 1
_LONG = 64  # an expression that is longer gets a name


@dataclass(frozen=True)
class Text:
    """An expression: its text, the wide axes of its block, how strongly it binds."""

    text: str
    axes: tuple[str, ...] = ()
    prec: int = ATOM

    def at(self, prec: int) -> str:
        """The text, in parentheses where its own operator binds less than `prec`."""
        return self.text if self.prec >= prec else f"({self.text})"


class TritonBody:
    """Prints the statements of one kernel."""

    def __init__(
        self,
        view: BlockView,
        names: Names,
        pointers: dict[str, str],
        blocks: dict[str, str],
        precision: str,
    ):
        self.view, self.names, self.pointers, self.blocks = view, names, pointers, blocks
        self.precision = precision
        self.scopes = Scopes("    ")
        self.coords: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        self.local_names: dict[str, str] = {}
        self.opening: dict[str, Init] = {}
        self.loop_vars: dict[str, str] = {}
        spans = [terms.span(b) for b in view.program.buffers.values()]
        self.far = max(spans, default=0) >= 1 << 31

    def print(self) -> list[str]:
        """The lines of the kernel's body."""
        self._grid()
        for axis in self.view.order:
            if axis not in self.view.steps and self.view.wide(axis):
                self._vector(axis, "")
        self._nodes(self.view.inner)
        return self.scopes.stack[0].lines

    def line(self, text: str) -> None:
        """Append a line to the innermost body."""
        scope = self.scopes.stack[-1]
        scope.lines.append(scope.indent + text)

    # --------------------------------------------------------------------------------- axes
    def _grid(self) -> None:
        if not self.view.grid:
            return
        self.line(f"pid = tl.program_id(0){'.to(tl.int64)' if self.far else ''}")
        counts = [-(-self.view.extents[g.axis] // g.step) for g in self.view.grid]
        below = 1
        texts = []
        for loop, count in reversed(list(zip(self.view.grid, counts, strict=True))):
            text = "pid" if below == 1 else f"pid // {below}"
            if loop is not self.view.grid[0]:
                text += f" % {count}"
            texts.append((loop.axis, text))
            below *= count
        for axis, text in reversed(texts):
            self._bind(axis, text)

    def _bind(self, axis: str, block_number: str) -> None:
        """Define a grid axis from the number of its block."""
        if not self.view.wide(axis):
            self.coords[axis] = self.starts[axis] = self.names.new(axis)
            self.line(f"{self.coords[axis]} = {block_number}")
            return
        start = self.starts[axis] = self.names.new(f"{axis}_start")
        times = block_number if "/" not in block_number else f"({block_number})"
        self.line(f"{start} = {times} * {self.blocks[axis]}")
        self._vector(axis, f"{start} + ")

    def _vector(self, axis: str, start: str) -> None:
        name = self.coords.setdefault(axis, "") or self.names.new(axis)
        self.coords[axis] = name
        text = f"{start}tl.arange(0, {self.blocks[axis]})"
        self.line(f"{name} = {f'({text}).to(tl.int64)' if self.far else text}")
        if self.view.ragged(axis):
            mask = self.masks.get(axis) or self.names.new(f"{axis}_ok")
            self.masks[axis] = mask
            self.line(f"{mask} = {name} < {self.view.extents[axis]}")

    def _coord(self, axis: str, context: tuple[str, ...]) -> str:
        return self._spread(Text(self.coords[axis], self.view.sort((axis,))), context).text

    def _spread(self, e: Text, axes: tuple[str, ...]) -> Text:
        """The expression with unit dimensions where it lacks an axis; scalars stay scalars."""
        if not e.axes or e.axes == axes:
            return e
        dims = ", ".join(":" if a in e.axes else "None" for a in axes)
        return Text(f"{e.at(ATOM)}[{dims}]", axes)

    def _index(self, index: Index, context: tuple[str, ...], args: dict[str, str]) -> Text:
        """An index expression over a block of points."""
        parts: list[tuple[bool, str]] = []
        for atom, coef in index.terms:
            if isinstance(atom, str):
                text = args[atom] if atom in args else self._coord(atom, context)
            else:
                inner = self._index(atom.inner, context, args)
                signed = any(a.startswith("@") for a in atom.inner.axes)
                if signed or atom.inner.bounds(self.view.extents)[0] < 0:
                    helper = "_floordiv" if atom.op == "//" else "_remainder"
                    text = f"{helper}({inner.text}, {atom.by})"
                else:
                    text = f"{inner.at(TIMES)} {atom.op} {atom.by}"
                    text = text if coef == 1 else f"({text})"
            parts.append((coef < 0, text if abs(coef) == 1 else f"{text} * {abs(coef)}"))
        if index.const or not parts:
            parts.append((index.const < 0, str(abs(index.const))))
        out = "".join(
            (("-" if neg else "") if k == 0 else (" - " if neg else " + ")) + text
            for k, (neg, text) in enumerate(parts)
        )
        prec = ATOM if len(parts) == 1 and out.isidentifier() else PLUS
        return Text(out, context, prec)

    def _mask(self, axes: Iterable[str], context: tuple[str, ...]) -> list[str]:
        """The masks of the ragged ones of some axes."""
        return [
            self._spread(Text(self.masks[a], (a,)), context).text
            for a in self.view.sort(axes)
            if self.view.ragged(a)
        ]

    # --------------------------------------------------------------------------- statements
    def _nodes(self, nodes: tuple[Node, ...]) -> None:
        for k, node in enumerate(nodes):
            if isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Init):
                if opens_with(nodes, k) and isinstance(_next(nodes, k, node.local), Accumulate):
                    self.opening[node.local] = node
                else:
                    self._set(node.local, self._filled(node))
            elif isinstance(node, Assign):
                e = self.value(node.value)
                self._set(node.local, self._full(e, node.local))
            elif isinstance(node, Accumulate):
                self._accumulate(node)
            elif isinstance(node, Fold):
                source = self.view.program.locals[node.source]
                e = Text(self._local(node.source), self.view.local_axes(node.source))
                lanes = self.view.sort(a for a, _ in source.lanes)
                e = self._reduce(e, lanes, node.op, source.dtype)
                self._set(node.local, e.text)
            else:
                self._store(node)

    def _loop(self, loop: Loop) -> None:
        axis, extent = loop.axis, self.view.extents[loop.axis]
        wide = self.view.wide(axis)
        if axis not in self.loop_vars:
            self.loop_vars[axis] = self.names.new(f"{axis}_start" if wide else axis)
        var = self.loop_vars[axis]
        saved = (self.starts.get(axis), self.coords.get(axis))
        lo, hi = self._ends(loop, extent)
        step = f", {self.blocks[axis]}" if wide else ""
        indent = self.scopes.stack[-1].indent + "    "
        self.scopes.push(axis, loop.body, indent)
        self.starts[axis] = var
        if wide:
            self._vector(axis, f"{var} + ")
        elif self.far:
            self.coords[axis] = self.names.new(axis)
            self.line(f"{self.coords[axis]} = tl.full([], 0, tl.int64) + {var}")
        else:
            self.coords[axis] = var
        self._nodes(loop.body)
        scope = self.scopes.pop()
        # Only now: values that the loop does not change were printed here while it was open.
        self.line(f"for {var} in range({lo}, {hi}{step}):")
        self.scopes.stack[-1].lines.extend(scope.lines)
        if wide:
            self.starts[axis] = saved[0] or ""
        else:
            self.starts[axis], self.coords[axis] = saved[0] or "", saved[1] or ""

    def _ends(self, loop: Loop, extent: int) -> tuple[str, str]:
        """Where a loop begins and ends, as text."""

        def form(index: Index) -> str:
            by = {a: self.starts[a] for a in index.axes}
            return index.render(lambda a: by[a])

        lo = "0"
        for index in loop.lo:
            text = form(index)
            lo = f"tl.maximum({lo}, {text})" if index.terms else str(max(index.const, 0))
        if lo != "0" and loop.step > 1:
            lo = f"{lo} // {self.blocks[loop.axis]} * {self.blocks[loop.axis]}"
        hi = str(extent)
        for index in loop.hi:
            known = index.const if not index.terms else None
            if known is not None and hi.isdigit():
                hi = str(max(0, min(int(hi), known)))
            else:
                hi = f"tl.minimum({hi}, {form(index)})"
        return lo, hi

    def _set(self, local: str, text: str) -> None:
        self.scopes.forget(local)
        self.line(f"{self._local(local)} = {text}")

    def _local(self, name: str) -> str:
        if name not in self.local_names:
            self.local_names[name] = self.names.new(name[1:])
        return self.local_names[name]

    def _shape(self, axes: Iterable[str]) -> str:
        return "[" + ", ".join(self.blocks[a] for a in axes) + "]"

    def _filled(self, node: Init) -> str:
        dtype = self.view.program.locals[node.local].dtype
        shape = self._shape(self.view.local_axes(node.local))
        return f"tl.full({shape}, {number(node.number)}, {self._type(dtype)})"

    def _type(self, dtype: DType) -> str:
        return TYPES[compute_dtype(dtype).name]

    def _full(self, e: Text, local: str) -> str:
        """An expression with all the axes of a local, and never a bare constant."""
        axes = self.view.local_axes(local)
        if e.axes == axes:
            return e.text
        return f"tl.broadcast_to({self._spread(e, axes).text}, {self._shape(axes)})"

    def _accumulate(self, node: Accumulate) -> None:
        local = self.view.program.locals[node.local]
        axes = self.view.local_axes(node.local)
        first = self.opening.pop(node.local, None)
        before = None if first else Text(self._local(node.local), axes)
        over = self.view.sort(a for a in node.value.free if a not in axes)
        if node.dot and (e := self._dot(node, over, before)) is not None:
            self._set(node.local, e)
            return
        e = self._valid(node.value, self.view.sort(node.value.free - {*local.axes}), node.op)
        e = self._reduce(e, over, node.op, local.dtype)
        if before is None:
            self._set(node.local, self._full(e, node.local))
        else:
            e = self._spread(e, axes)
            self._set(node.local, self._combine(before, e, node.op, local.dtype))

    def _combine(self, a: Text, b: Text, op: str, dtype: DType) -> str:
        if dtype.kind == "bool":
            return f"{a.at(OR)} | {b.at(AND)}"
        if op == "add":
            return f"{a.at(PLUS)} + {b.at(PLUS)}"
        return (
            f"_maximum({a.text}, {b.text})"
            if dtype.is_float
            else f"tl.maximum({a.text}, {b.text})"
        )

    def _valid(self, value: Value, over: tuple[str, ...], op: str) -> Text:
        """A block with the identity at the points that are beyond an extent."""
        e = self.value(value)
        ragged = [a for a in over if self.view.ragged(a)]
        if not ragged or (op == "add" and all(self._zero_beyond(value, a) for a in ragged)):
            return e
        mask = " & ".join(self._mask(ragged, e.axes))
        nothing = number(identity(op, value.dtype))
        return Text(f"tl.where({mask}, {e.text}, {nothing})", e.axes)

    def _zero_beyond(self, value: Value, axis: str) -> bool:
        """Whether a block holds 0 beyond the extent: a masked load, converted or not."""
        while value.op == "cast" and value.dtype.is_float:
            value = value.args[0]
        if value.op == "mul" and value.dtype.is_int:
            return any(self._zero_beyond(a, axis) for a in value.args)
        return (
            value.op == "load"
            and not is_local(value.attrs[0])
            and axis in value.attrs[1][0].axes
        )

    def _reduce(self, e: Text, over: tuple[str, ...], op: str, dtype: DType) -> Text:
        for axis in reversed(over):
            at = e.axes.index(axis)
            rest = e.axes[:at] + e.axes[at + 1 :]
            if dtype.kind == "bool":
                text = f"(tl.max({e.at(ATOM)}.to(tl.int32), {at}) != 0)"
            elif op == "max" and dtype.is_float:
                text = f"tl.reduce({e.text}, {at}, _maximum)"
            else:
                text = f"tl.{'sum' if op == 'add' else 'max'}({e.text}, {at})"
                if dtype.is_int and dtype.bits < 64:
                    text += f".to({self._type(dtype)})"
            e = Text(text, rest)
        return e

    def _dot(self, node: Accumulate, over: tuple[str, ...], before: Text | None) -> str | None:
        """`tl.dot`, when the factors are matrices; None when only a broadcast sum will do."""
        axes = self.view.local_axes(node.local)
        local = self.view.program.locals[node.local]
        found = matrix_sides(node.value, local.axes, over, self.view.block)
        if found is None or len(over) != 1:
            return None
        left, right = terms.product(found.left), terms.product(found.right)
        if found.rows != {axes[0]}:
            left, right = right, left
        narrow = exact_type(left)
        if narrow is None or exact_type(right) is not narrow:
            narrow = None
        a, b = (
            self._operand(v, over[0], narrow, first)
            for v, first in ((left, True), (right, False))
        )
        kind = compute_dtype(local.dtype)
        if kind.name == "f64":
            options = ", out_dtype=tl.float64"
        else:
            options = "" if narrow else f', input_precision="{self.precision}"'
        acc = "" if before is None else f", {before.text}"
        return f"tl.dot({a}, {b}{acc}{options})"

    def _operand(self, value: Value, k: str, narrow: DType | None, first: bool) -> str:
        """A matrix with `k` last (the first operand) or first, zero beyond k's extent."""
        e = self._valid(value, (k,), "add")
        if narrow is not None:
            e = Text(f"{e.at(ATOM)}.to({TYPES[narrow.name]})", e.axes)
        if e.axes.index(k) != (1 if first else 0):
            e = Text(f"tl.trans({e.text})", e.axes[::-1])
        return self._named(e, "a" if first else "b").text if len(e.text) > _LONG else e.text

    def _named(self, e: Text, hint: str) -> Text:
        name = self.names.new(hint)
        self.line(f"{name} = {e.text}")
        return Text(name, e.axes)

    def _store(self, node: Store) -> None:
        e = self.value(node.value)
        axes = self.view.sort(node.index.axes | node.value.free)
        dtype = self.view.program.buffers[node.buffer].dtype
        pointer = f"{self.pointers[node.buffer]} + {self._index(node.index, axes, {}).at(PLUS)}"
        masks = self._mask(node.index.axes, axes)
        text = self._spread(
            Text(converted(e, node.value.dtype, dtype, stored=True), e.axes), axes
        ).text
        if e.axes and e.axes != axes:
            text = self._spread(e, axes).text
            text = converted(Text(text, axes), node.value.dtype, dtype, stored=True)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.line(f"tl.store({pointer}, {text}{mask})")

    # ------------------------------------------------------------------------------- values
    def value(self, v: Value) -> Text:
        """The text of a value, computed at the outermost level that has all of its axes."""
        if v.op == "load" and is_local(v.attrs[0]):
            return Text(self._local(v.attrs[0]), self.view.local_axes(v.attrs[0]))
        if v.op == "const":
            return Text(f"tl.full([], {number(v.attrs[0])}, {self._type(v.dtype)})")
        home = self.scopes.home(v)
        if v in home.memo:
            return home.memo[v]
        outer, self.scopes.stack = (
            self.scopes.stack,
            self.scopes.stack[: _upto(self.scopes, home)],
        )
        e = self._compute(v)
        here = home is outer[-1]
        once = self.view.uses[v] <= 1 and here
        if v.op == "load" or not (once and len(e.text) <= _LONG):
            if not e.text.isidentifier():
                hint = v.attrs[0] if v.op == "load" else "v"
                e = self._named(e, hint)
            home.memo[v] = e
        self.scopes.stack = outer
        return e

    def _compute(self, v: Value) -> Text:
        if v.op == "load":
            return self._load(v)
        if v.op == "iota":
            axes = self.view.sort(v.attrs[0].axes)
            e = self._index(v.attrs[0], axes, {})
            return (
                Text(f"{e.at(ATOM)}.to({self._type(v.dtype)})", axes) if axes or e.text else e
            )
        if v.op == "lessthan" and all(
            a.op in ("iota", "const") and a.dtype.is_int for a in v.args
        ):
            return self._less_indices(v)
        if v.op == "cast":
            (x,) = v.args
            e = self.value(x)
            return Text(converted(e, x.dtype, v.dtype), e.axes)
        axes = self.view.sort(frozenset().union(*(self._axes(a) for a in v.args)))
        if v.op == "add" and (x := negated(v.args[1])) is not None:
            a, b = self._argument(v, 0, axes), self._spread(self.value(x), axes)
            return Text(f"{a.at(PLUS)} - {b.at(TIMES)}", axes, PLUS)
        args = [self._argument(v, k, axes) for k in range(len(v.args))]
        if v.op in _UNARY:
            text = _UNARY[v.op].format(args[0].text)
            if v.op == "sqrt" and compute_dtype(v.dtype).name == "f64":
                text = f"tl.sqrt({args[0].text})"
            return Text(text, axes)
        if v.op == "recip":
            return Text(f"1.0 / {args[0].at(UNARY)}", axes, TIMES)
        if v.op == "select":
            return Text(f"tl.where({', '.join(a.text for a in args)})", axes)
        return self._binary(v, args, axes)

    def _binary(self, v: Value, args: list[Text], axes: tuple[str, ...]) -> Text:
        a, b = args
        if v.op == "lessthan":
            return Text(f"{a.at(OR)} < {b.at(OR)}", axes, COMPARE)
        if v.op == "mod":
            return Text(f"_remainder({a.text}, {b.text})", axes)
        if v.op == "maximum":
            return Text(self._combine(a, b, "max", v.dtype), axes)
        if v.dtype.kind == "bool":
            if v.op == "add":
                return Text(f"{a.at(OR)} | {b.at(AND)}", axes, OR)
            return Text(f"{a.at(AND)} & {b.at(PLUS)}", axes, AND)
        if v.op == "add":
            return Text(f"{a.at(PLUS)} + {b.at(TIMES)}", axes, PLUS)
        if v.op == "mul":
            return Text(f"{a.at(TIMES)} * {b.at(UNARY)}", axes, TIMES)
        raise ScheduleError(f"Triton has no spelling for the op {v.op!r}")

    def _axes(self, v: Value) -> tuple[str, ...]:
        return () if v.op == "const" else self.view.sort(v.free)

    def _argument(self, v: Value, k: int, axes: tuple[str, ...]) -> Text:
        """An operand with the dimensions of the result; a constant beside a block is bare."""
        a = v.args[k]
        others = [b for j, b in enumerate(v.args) if j != k and (v.op != "select" or j > 0)]
        plain = a.dtype.name != "f64" and len(v.args) > 1
        if a.op == "const" and plain and not (v.op == "select" and k == 0):
            if any(b.op != "const" for b in others):
                return Text(number(a.attrs[0]), prec=ATOM if _positive(a.attrs[0]) else UNARY)
        return self._spread(self.value(a), axes)

    def _less_indices(self, v: Value) -> Text:
        """A comparison of positions needs no conversion to their dtype."""
        axes = self.view.sort(v.free)
        sides = []
        for a in v.args:
            index = Index.num(a.attrs[0]) if a.op == "const" else a.attrs[0]
            sides.append(self._index(index, axes, {}).at(PLUS))
        return Text(f"{sides[0]} < {sides[1]}", axes, COMPARE)

    def _load(self, v: Value) -> Text:
        name, (index, *_) = v.attrs[0], v.attrs[1]
        clamp = len(v.attrs) > 2
        args = [self.value(a) for a in v.args]
        axes = self.view.sort(v.free)
        spread = {f"@{k}": self._spread(e, axes).at(ATOM) for k, e in enumerate(args)}
        at = self._index(index, axes, spread)
        bare = frozenset(a for a in index.axes if not a.startswith("@"))
        masks = self._mask(bare, axes)
        if clamp:
            at = self._named(Text(at.text, axes), f"{name}_at")
            masks += [f"({at.text} >= 0)", f"({at.text} < {terms.span(self._buffer(name))})"]
        dtype = self._buffer(name).dtype
        mask = ""
        if masks:
            zero = "0.0" if dtype.is_float else "0"
            mask = f", mask={' & '.join(masks)}, other={zero}"
        text = f"tl.load({self.pointers[name]} + {at.at(PLUS)}{mask})"
        if at.text == "0" and not masks:
            text = f"tl.load({self.pointers[name]})"
        if compute_dtype(dtype) is not dtype:
            text += ".to(tl.float32)"
        return Text(text, axes)

    def _buffer(self, name: str):
        return self.view.program.buffers[name]


def _next(nodes: tuple[Node, ...], at: int, local: str) -> Node | None:
    return next((n for n in nodes[at + 1 :] if getattr(n, "local", None) == local), None)


def _upto(scopes: Scopes, home: object) -> int:
    return next(k for k, s in enumerate(scopes.stack) if s is home) + 1


def _positive(x: float | int | bool) -> bool:
    return not (isinstance(x, float | int) and (x < 0 or math.copysign(1, x) < 0))


def number(x: float | int | bool) -> str:
    """A constant as Python text that Triton compiles."""
    if isinstance(x, bool | int):
        return str(x)
    if math.isnan(x):
        return 'float("nan")'
    if math.isinf(x):
        return f'float("{"-" if x < 0 else ""}inf")'
    return repr(x)


def converted(e: Text, source: DType, target: DType, *, stored: bool = False) -> str:
    """The text of a conversion; narrow floats are rounded and, unless stored, widened again."""
    narrow = compute_dtype(target) is not target
    if source is target and not (stored and narrow):
        return e.text
    if target.kind == "bool":
        return f"({e.at(PLUS)} != 0)"
    text = e.text
    if narrow and compute_dtype(source).name != "f32":
        text = f"{e.at(ATOM)}.to(tl.float32)"
        e = Text(text)
    if target.name == "f8e4m3":
        text = f"_to_e4m3({text})"
    elif target.name == "f8e5m2":
        text = f"_to_e5m2({text})"
    elif compute_dtype(source) is target and not narrow:
        return text
    else:
        text = f"{e.at(ATOM)}.to({TYPES[target.name]})"
    return text if stored or not narrow else f"{text}.to(tl.float32)"


def exact_type(v: Value) -> DType | None:
    """The 16-bit float type that represents every element of a term exactly, if one does."""
    while v.op == "cast" and v.dtype.is_float and v.dtype.bits >= 32:
        v = v.args[0]
    return v.dtype if v.dtype.name in ("bf16", "f16") and v.op in ("load", "cast") else None
