"""The body of a Metal kernel: statements on blocks, as loops over each thread's registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_lower import matrix_sides
from luminal_lab.codegen.block_text import BlockView, Names, compute_dtype, opens_with
from luminal_lab.codegen.body import identity
from luminal_lab.codegen.metal_layout import LANES, Layout, reads_local
from luminal_lab.codegen.metal_values import (
    PLUS,
    Point,
    Text,
    arithmetic,
    const,
    converted,
    type_of,
)
from luminal_lab.codegen.tile import Accumulate, Assign, Fold, Init, Loop, Node, Store
from luminal_lab.egraph.values import Value
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.dtypes import F32, DType

TILE = 6144  # floats of threadgroup memory that the operands of a product may take
Leaf = Callable[[Point], list[str]]


class MetalBody:
    """Prints the statements of one kernel.

    Arguments:
        view: The program.
        layout: How its blocks lie in the threadgroup.
        names: Where names come from.
        pointers: The parameter of each buffer.
    """

    def __init__(self, view: BlockView, layout: Layout, names: Names, pointers: dict[str, str]):
        self.view, self.layout, self.names, self.pointers = view, layout, names, pointers
        self.lines: list[str] = []
        self.depth = 1
        self.starts: dict[str, str] = {}
        self.coords: dict[str, str] = {}
        self.vars: dict[str, str] = {}
        self.registers: dict[str, str] = {}
        self.locals: dict[str, str] = {}
        self.opening: dict[str, Init] = {}
        self.tile = 0
        self.scratch: dict[str, str] = {}

    def print(self) -> list[str]:
        """The lines of the kernel's body."""
        self._grid()
        for axis in self.view.order:
            if self.view.wide(axis):
                self.coords[axis] = self.names.new(axis)
                self.registers[axis] = self.names.new(f"{axis}_r")
                self.starts.setdefault(axis, "")
        self._nodes(self.view.inner)
        return [*self._declarations(), *self.lines]

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("  " * self.depth + text)

    def barrier(self) -> None:
        """Append a barrier for threadgroup memory."""
        self.line("threadgroup_barrier(mem_flags::mem_threadgroup);")

    def _declarations(self) -> list[str]:
        out = []
        if self.tile:
            out.append(f"  threadgroup float tile[{self.tile}];")
        for kind, name in self.scratch.items():
            out.append(f"  threadgroup {kind} {name}[{self.layout.threads}];")
        for local, name in self.locals.items():
            n = self.layout.registers(self.view.local_axes(local))
            kind = type_of(compute_dtype(self.view.program.locals[local].dtype))
            out.append(f"  {kind} {name}{f'[{n}]' if n > 1 else ''};")
        return out

    # --------------------------------------------------------------------------------- axes
    def _grid(self) -> None:
        below = 1
        texts = []
        for loop in reversed(self.view.grid):
            count = -(-self.view.extents[loop.axis] // loop.step)
            text = "block" if below == 1 else f"block / {below}"
            if loop is not self.view.grid[0]:
                text += f" % {count}"
            texts.append((loop, text))
            below *= count
        for loop, text in reversed(texts):
            wide = self.view.wide(loop.axis)
            name = self.names.new(f"{loop.axis}_start" if wide else loop.axis)
            times = f" * {loop.step}" if wide else ""
            self.line(f"const int {name} = {text}{times};")
            self.starts[loop.axis] = name
            if not wide:
                self.coords[loop.axis] = name

    def _within(self, axis: str) -> str:
        """The text of a point's place in its block, as this thread has it."""
        place = self.layout.place(axis)
        across = {"lane": "lane", "group": "simd", "both": "t", "register": ""}[place.side]
        full = {"lane": LANES, "group": self.layout.groups, "both": self.layout.threads}
        parts = []
        if across and place.spread > 1:
            parts.append(
                across if place.spread == full[place.side] else f"{across} % {place.spread}"
            )
        if place.registers > 1:
            times = f"{place.spread} * " if place.spread > 1 else ""
            parts.append(f"{times}{self.registers[axis]}")
        return " + ".join(parts) or "0"

    def _slot(self, local: str) -> str:
        """The element of a local at the current point."""
        out = ""
        for axis in self.view.local_axes(local):
            n = self.layout.place(axis).registers
            if n > 1:
                scaled = f"{f'({out})' if '+' in out else out} * {n} + " if out else ""
                out = scaled + self.registers[axis]
        return f"{self._local(local)}[{out}]" if out else self._local(local)

    def _local(self, name: str) -> str:
        if name not in self.locals:
            self.locals[name] = self.names.new(name[1:])
        return self.locals[name]

    # --------------------------------------------------------------------------------- nests
    def nest(self, axes: Iterable[str], leaf: Leaf) -> None:
        """Loops over this thread's points of a block; points beyond an extent are left out.

        Arguments:
            axes: Wide axes, outermost first.
            leaf: The statements at a point.
        """
        axes = tuple(axes)
        point = self._point([(), *((a,) for a in axes)])
        body = leaf(point)
        if not axes and not point.lines[0]:
            for text in body:
                self.line(text)
            return
        outer = self.depth
        self.line("{")
        self.depth += 1
        opened = 0
        for text in point.lines[0]:
            self.line(text)
        for k, axis in enumerate(axes):
            place, reg = self.layout.place(axis), self.registers[axis]
            if place.registers > 1:
                self.line(f"for (int {reg} = 0; {reg} < {place.registers}; ++{reg}) {{")
                self.depth, opened = self.depth + 1, opened + 1
            start = f"{self.starts[axis]} + " if self.starts[axis] else ""
            self.line(f"const int {self.coords[axis]} = {start}{self._within(axis)};")
            if self.view.ragged(axis):
                self.line(f"if ({self.coords[axis]} < {self.view.extents[axis]}) {{")
                self.depth, opened = self.depth + 1, opened + 1
            for text in point.lines[k + 1]:
                self.line(text)
        for text in body:
            self.line(text)
        for _ in range(opened):
            self.depth -= 1
            self.line("}")
        self.depth = outer
        self.line("}")

    def _point(self, levels: list[tuple[str, ...]]) -> Point:
        return Point(self.view, self.names, self.coords, self._slot, self.pointers, levels)

    def _each(self, axes: Iterable[str], text: str) -> None:
        """One statement for each of this thread's registers of a block."""
        axes = [a for a in axes if self.layout.place(a).registers > 1]
        for a in axes:
            reg = self.registers[a]
            self.line(f"for (int {reg} = 0; {reg} < {self.layout.place(a).registers}; ++{reg})")
            self.depth += 1
        self.line(text)
        self.depth -= len(axes)

    # ---------------------------------------------------------------------------- statements
    def _nodes(self, nodes: tuple[Node, ...]) -> None:
        for k, node in enumerate(nodes):
            if isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Init):
                later = next((n for n in nodes[k + 1 :] if _writes(n, node.local)), None)
                if (
                    opens_with(nodes, k)
                    and isinstance(later, Accumulate)
                    and not (later.dot and self._matrices(later))
                ):
                    self.opening[node.local] = node
                else:
                    self._fill(node.local, node.number)
            elif isinstance(node, Assign):
                axes = self.view.local_axes(node.local)
                self.nest(
                    axes,
                    lambda p, n=node: [f"{self._slot(n.local)} = {p.value(n.value).text};"],
                )
            elif isinstance(node, Accumulate):
                self._accumulate(node)
            elif isinstance(node, Fold):
                self._fold(node)
            else:
                self._store(node)

    def _fill(self, local: str, x: float | int | bool) -> None:
        dtype = self.view.program.locals[local].dtype
        self._each(
            self.view.local_axes(local), f"{self._slot(local)} = {const(x, dtype).text};"
        )

    def _loop(self, loop: Loop) -> None:
        axis, wide = loop.axis, self.view.wide(loop.axis)
        if axis not in self.vars:
            self.vars[axis] = self.names.new(f"{axis}_start" if wide else axis)
        var = self.vars[axis]
        lo, hi = self._ends(loop)
        self.line(f"for (int {var} = {lo}; {var} < {hi}; {var} += {loop.step}) {{")
        saved = self.starts.get(axis, "")
        self.starts[axis] = var
        if not wide:
            self.coords[axis] = var
        self.depth += 1
        self._nodes(loop.body)
        self.depth -= 1
        self.starts[axis] = saved
        self.line("}")

    def _ends(self, loop: Loop) -> tuple[str, str]:
        def form(index) -> str:
            return index.render(lambda a: self.starts[a])

        lo, hi = "0", str(self.view.extents[loop.axis])
        for index in loop.lo:
            lo = f"max({lo}, {form(index)})"
        if lo != "0" and loop.step > 1:
            lo = f"{lo} / {loop.step} * {loop.step}"
        for index in loop.hi:
            hi = f"min({hi}, {form(index)})"
        return lo, hi

    def _combined(self, op: str, a: str, b: Text, dtype: DType) -> str:
        if dtype.kind == "bool":
            return f"{a} || {b.at(PLUS)}"
        if op == "add":
            return arithmetic("add", Text(a), b, dtype).text
        return f"ll_maximum({a}, {b.text})"

    def _accumulate(self, node: Accumulate) -> None:
        local = self.view.program.locals[node.local]
        axes = self.view.local_axes(node.local)
        if node.dot and (found := self._matrices(node)):
            self._dot(node, *found)
            return
        first = self.opening.pop(node.local, None)
        over = [a for a in self.view.sort(node.value.free) if a not in axes]
        if first is not None:
            self._fill(node.local, first.number)
        slot = self._slot(node.local)
        part = slot
        if over and first is None:
            # What the local held is in every thread: only the block's own sum is exchanged.
            n = self.layout.registers(axes)
            name = self.names.new("part")
            kind = type_of(compute_dtype(local.dtype))
            part = slot.replace(self._local(node.local), name, 1)
            self.line(f"{kind} {name}{f'[{n}]' if n > 1 else ''};")
            nothing = const(identity(node.op, local.dtype), local.dtype).text
            self._each(axes, f"{part} = {nothing};")

        def leaf(p: Point) -> list[str]:
            e = p.value(node.value, len(axes) + len(over))
            return [f"{part} = {self._combined(node.op, part, e, local.dtype)};"]

        self.nest([*axes, *over], leaf)
        self._exchange(axes, over, part, node.op, local.dtype)
        if part != slot:
            self._each(
                axes, f"{slot} = {self._combined(node.op, slot, Text(part), local.dtype)};"
            )

    def _fold(self, node: Fold) -> None:
        dtype = self.view.program.locals[node.source].dtype
        axes, source = self.view.local_axes(node.local), self.view.local_axes(node.source)
        over = [a for a in source if a not in axes]
        self._fill(node.local, identity(node.op, dtype))
        slot = self._slot(node.local)
        text = self._combined(node.op, slot, Text(self._slot(node.source)), dtype)
        self._each(source, f"{slot} = {text};")
        self._exchange(axes, over, slot, node.op, dtype)

    def _exchange(
        self, axes: tuple[str, ...], over: list[str], slot: str, op: str, dtype: DType
    ) -> None:
        """Combine what threads hold of reduced axes; afterwards all of them have the result."""
        lanes = groups = 1
        for a in over:
            place = self.layout.place(a)
            if place.side in ("lane", "both"):
                lanes = max(lanes, min(place.spread, LANES))
            if place.side == "group":
                groups = max(groups, place.spread)
            elif place.side == "both":
                groups = max(groups, place.spread // LANES)
        if lanes == groups == 1:
            return
        kind = type_of(compute_dtype(dtype))
        shuffled = kind in ("float", "int") and lanes > 1
        loops = [a for a in axes if self.layout.place(a).registers > 1]
        for a in loops:
            reg, n = self.registers[a], self.layout.place(a).registers
            self.line(f"for (int {reg} = 0; {reg} < {n}; ++{reg}) {{")
            self.depth += 1
        if shuffled:
            offset = lanes // 2
            while offset:
                other = Text(f"simd_shuffle_xor({slot}, {offset})")
                self.line(f"{slot} = {self._combined(op, slot, other, dtype)};")
                offset //= 2
            lanes = 1
        if lanes > 1 or groups > 1:
            self._through_memory(slot, lanes, groups, op, dtype, kind)
        for _ in loops:
            self.depth -= 1
            self.line("}")

    def _through_memory(
        self, slot: str, lanes: int, groups: int, op: str, dtype: DType, kind: str
    ) -> None:
        if kind not in self.scratch:
            self.scratch[kind] = self.names.new(f"exchange_{kind}")
        memory = self.scratch[kind]
        self.line(f"{memory}[t] = {slot};")
        self.barrier()
        q, n = self.names.new("q"), lanes * groups
        lane = f"lane / {lanes} * {lanes} + {q} % {lanes}" if lanes > 1 else "lane"
        group = f"{q} / {lanes}" if lanes > 1 else q
        where = lane if groups == 1 and lanes > 1 else f"{group} * {LANES} + {lane}"
        if groups == 1:
            where = f"t - lane + {lane}"
        nothing = const(identity(op, dtype), dtype).text
        self.line(f"{slot} = {nothing};")
        other = Text(f"{memory}[{where}]")
        text = self._combined(op, slot, other, dtype)
        self.line(f"for (int {q} = 0; {q} < {n}; ++{q}) {slot} = {text};")
        self.barrier()

    def _store(self, node: Store) -> None:
        axes = self.view.sort(node.index.axes | node.value.free)
        source, dtype = node.value.dtype, self.view.program.buffers[node.buffer].dtype

        def leaf(p: Point) -> list[str]:
            at = p.index(node.index, {}).text
            e = p.value(node.value, len(axes))
            text = converted(e, source, dtype) if source is not dtype else e
            kind = type_of(dtype)
            value = f"{kind}({text.text})" if compute_dtype(dtype) is not dtype else text.text
            return [f"{self.pointers[node.buffer]}[{at}] = {value};"]

        mine = self._owner(axes)
        if mine:
            self.line(f"if ({mine}) {{")
            self.depth += 1
        self.nest(axes, leaf)
        if mine:
            self.depth -= 1
            self.line("}")

    def _owner(self, axes: tuple[str, ...]) -> str:
        """The condition under which this thread is the first of those with the same points."""
        lane, group = 1, 1
        for a in axes:
            place = self.layout.place(a)
            if place.side == "both":
                return "" if place.spread == self.layout.threads else f"t < {place.spread}"
            if place.side == "lane":
                lane = place.spread
            elif place.side == "group":
                group = place.spread
        parts = []
        if lane < LANES:
            parts.append(f"lane < {lane}" if lane > 1 else "lane == 0")
        if group < self.layout.groups:
            parts.append(f"simd < {group}" if group > 1 else "simd == 0")
        return " && ".join(parts)

    # ------------------------------------------------------------------------------ products
    def _matrices(self, node: Accumulate) -> tuple[Value, Value, str] | None:
        """The operands (rows first) and the summed axis, when they are matrices."""
        local = self.view.program.locals[node.local]
        axes = self.view.local_axes(node.local)
        over = self.view.sort(a for a in node.value.free if a not in axes)
        found = matrix_sides(node.value, local.axes, over, self.view.block)
        if found is None or len(over) != 1 or len(axes) != 2:
            return None
        left, right = terms.product(found.left), terms.product(found.right)
        if found.rows != {axes[0]}:
            left, right = right, left
        return left, right, over[0]

    def _dot(self, node: Accumulate, left: Value, right: Value, k: str) -> None:
        """A product through threadgroup memory, in chunks of the summed axis."""
        m, n = self.view.local_axes(node.local)
        rows, cols, depth = (self.view.block(a) for a in (m, n, k))
        chunk = depth
        while chunk > 1 and (rows + cols) * chunk > TILE:
            chunk //= 2
        if (rows + cols) * chunk > TILE:
            raise ScheduleError(
                f"a block of {rows} by {cols} points needs too much threadgroup memory",
                fix=f"cut {m} or {n} into smaller blocks",
            )
        matrix = all(x % 8 == 0 for x in (rows, cols, chunk)) and rows * cols <= TILE
        self.tile = max(self.tile, (rows + cols) * chunk, rows * cols if matrix else 0)
        begin = "0"
        if chunk < depth:
            begin = self.names.new(f"{k}_chunk")
            self.line(f"for (int {begin} = 0; {begin} < {depth}; {begin} += {chunk}) {{")
            self.depth += 1
        right_at = rows * chunk
        self._stage(left, (m, k), (chunk, 1), 0, k, begin, chunk)
        self._stage(right, (k, n), (cols, 1), right_at, k, begin, chunk)
        self.barrier()
        if matrix:
            self._matrix(rows, cols, chunk, right_at)
            slot = self._slot(node.local)
            self._tile_nest(m, n, f"{slot} += tile[{{m}} * {cols} + {{n}}];")
        else:
            q, slot = self.names.new("q"), self._slot(node.local)
            x, y = f"tile[({{m}}) * {chunk} + {q}]", f"tile[{right_at} + {q} * {cols} + {{n}}]"
            product = f"fma({x}, {y}, {slot})"
            self._tile_nest(
                m, n, f"for (int {q} = 0; {q} < {chunk}; ++{q}) {slot} = {product};"
            )
        self.barrier()
        if chunk < depth:
            self.depth -= 1
            self.line("}")

    def _tile_nest(self, m: str, n: str, text: str) -> None:
        """A statement at each of this thread's rows and columns of an accumulator."""
        row, col = self._within(m), self._within(n)
        row = f"({row})" if " " in row else row
        self._each((m, n), text.format(m=row, n=col))

    def _stage(
        self, v: Value, axes: tuple[str, str], strides: tuple[int, int], at: int, k: str,
        begin: str, chunk: int,
    ) -> None:  # fmt: skip
        """Write one operand of a product to the tile, 0 beyond an extent."""
        if v.dtype is not F32 and compute_dtype(v.dtype) is not F32:
            raise ScheduleError(f"Metal cannot multiply blocks of {v.dtype}")
        if reads_local(v):
            self._stage_registers(v, axes, strides, at, k, begin, chunk)
            return
        outer, inner = axes
        sizes = [chunk if a == k else self.view.block(a) for a in axes]
        q = self.names.new("q")
        point = self._point([(), axes])
        e = point.value(v, 1)
        saved = list(point.lines[0])
        self.line("{")
        self.depth += 1
        for text in saved:
            self.line(text)
        self.line(
            f"for (int {q} = t; {q} < {sizes[0] * sizes[1]}; {q} += {self.layout.threads}) {{"
        )
        self.depth += 1
        for axis, place in ((outer, f"{q} / {sizes[1]}"), (inner, f"{q} % {sizes[1]}")):
            parts = [
                p
                for p in (self.starts[axis], begin if axis == k else "", place)
                if p not in ("", "0")
            ]
            self.line(f"const int {self.coords[axis]} = {' + '.join(parts)};")
        valid = " && ".join(
            f"{self.coords[a]} < {self.view.extents[a]}" for a in axes if self.view.ragged(a)
        )
        where = f"tile[{f'{at} + ' if at else ''}{q}]"
        if valid:
            self.line(f"{where} = 0.0f;")
            self.line(f"if ({valid}) {{")
            self.depth += 1
        for text in point.lines[1]:
            self.line(text)
        self.line(f"{where} = {e.text};")
        for _ in range(3 if valid else 2):
            self.depth -= 1
            self.line("}")

    def _stage_registers(
        self, v: Value, axes: tuple[str, str], strides: tuple[int, int], at: int, k: str,
        begin: str, chunk: int,
    ) -> None:  # fmt: skip
        """Write an operand that threads hold in registers."""
        if any(self.view.ragged(a) for a in axes):
            size = strides[0] * (chunk if axes[0] == k else self.view.block(axes[0]))
            q = self.names.new("q")
            first = f"{at} + {q}" if at else q
            self.line(
                f"for (int {q} = t; {q} < {size}; {q} += {self.layout.threads}) "
                f"tile[{first}] = 0.0f;"
            )
            self.barrier()
        whole = chunk == self.view.block(k)

        def leaf(p: Point) -> list[str]:
            e = p.value(v, 2)
            index = [f"({self._within(a)})" for a in axes]
            if not whole:
                index = [
                    f"({i} - {begin})" if a == k else i
                    for i, a in zip(index, axes, strict=True)
                ]
            parts = [f"{i} * {s}" if s > 1 else i for i, s in zip(index, strides, strict=True)]
            where = " + ".join([*([str(at)] if at else []), *parts])
            text = f"tile[{where}] = {e.text};"
            if whole:
                return [text]
            inside = f"({self._within(k)})"
            return [f"if ({inside} >= {begin} && {inside} < {begin} + {chunk}) {text}"]

        mine = self._owner(self.view.sort(axes))
        if mine:
            self.line(f"if ({mine}) {{")
            self.depth += 1
        self.nest(self.view.sort(axes), leaf)
        if mine:
            self.depth -= 1
            self.line("}")

    def _matrix(self, rows: int, cols: int, depth: int, right: int) -> None:
        """Multiply the two tiles with simdgroup matrices; the product replaces them."""
        across, tiles = cols // 8, rows // 8 * (cols // 8)
        each = -(-tiles // self.layout.groups)
        sums, q, r, kk, a, b = (
            self.names.new(n) for n in ("sums", "q", "at", "kk", "rows_8", "cols_8")
        )
        guard = f"if ({r} < {tiles}) " if tiles % self.layout.groups else ""
        column = f"{r} % {across} * 8"
        find = f"const int {r} = {q} * {self.layout.groups} + simd;"
        loop = f"for (int {q} = 0; {q} < {each}; ++{q}) {{"
        self.line(f"simdgroup_float8x8 {sums}[{each}];")
        for text in (
            loop,
            f"  {sums}[{q}] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);",
            f"  {find}",
            f"  {guard}for (int {kk} = 0; {kk} < {depth}; {kk} += 8) {{",
            f"    simdgroup_float8x8 {a}, {b};",
            f"    simdgroup_load({a}, tile + {r} / {across} * {8 * depth} + {kk}, {depth});",
            f"    simdgroup_load({b}, tile + {right} + {kk} * {cols} + {column}, {cols});",
            f"    simdgroup_multiply_accumulate({sums}[{q}], {a}, {b}, {sums}[{q}]);",
            "  }",
            "}",
        ):
            self.line(text)
        self.barrier()
        where = f"tile + {r} / {across} * {8 * cols} + {column}"
        store = f"simdgroup_store({sums}[{q}], {where}, {cols});"
        for text in (loop, f"  {find}", f"  {guard}{store}", "}"):
            self.line(text)
        self.barrier()


def _writes(node: Node, local: str) -> bool:
    return getattr(node, "local", None) == local
