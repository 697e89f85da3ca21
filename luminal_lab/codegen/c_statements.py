"""Statements as C text: one line or more for each unrolled point and vector of a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from luminal_lab.codegen import terms
from luminal_lab.codegen.body import identity
from luminal_lab.codegen.c_names import Names
from luminal_lab.codegen.c_values import (
    TYPES,
    Block,
    Expr,
    Point,
    Scope,
    ValuePrinter,
    count_users,
    letter,
    number,
    storage,
)
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Fold,
    Init,
    Local,
    Loop,
    Node,
    Store,
    TileProgram,
    is_local,
    values_of,
    walk,
)
from luminal_lab.errors import ScheduleError
from luminal_lab.hlir.sizes import Dim, c_text, is_symbolic


class StatementPrinter:
    """Collects lines of C; prints statements on the current blocks.

    Arguments:
        program: A `simd` program.
        entry: The kernel's entry: all file-scope names begin with it.
    """

    def __init__(self, program: TileProgram, entry: str):
        self.program, self.entry = program, entry
        self.lines: list[str] = []
        self.depth = 0
        self.counter = 0
        self.blocks: dict[str, Block] = {}
        self.origins: dict[str, str] = {}
        self.declared: list[set[str]] = []
        self.names = Names(entry)
        self.register_vectors = self._find_register_vectors()

    def _find_register_vectors(self) -> dict[str, str | None]:
        """The vector axis of each register local."""
        out: dict[str, str | None] = {}
        for nodes in (self.program.build, self.program.body):
            for node, _ in walk(nodes):
                if isinstance(node, Loop):
                    continue
                for name in touched(node):
                    local = self.program.locals[name]
                    if local.space == "register":
                        axes = set(local.axes) | {a for a, _ in local.lanes}
                        if node.vector in axes:
                            out[name] = node.vector
                        else:
                            out.setdefault(name, None)
        return out

    # ------------------------------------------------------------------ text

    def emit(self, text: str) -> None:
        """Lines at the current depth."""
        for line in text.split("\n"):
            self.lines.append("  " * self.depth + line if line else "")

    def open(self, text: str) -> None:
        """A line that opens a block."""
        self.emit(text + " {" if text else "{")
        self.depth += 1
        self.declared.append(set())

    def close(self) -> None:
        """The end of a block."""
        self.depth -= 1
        self.declared.pop()
        self.emit("}")

    def fresh(self) -> str:
        """A new C name."""
        self.counter += 1
        return f"v{self.counter}"

    # ------------------------------------------------------------------ statements

    def _printer(self, roots) -> ValuePrinter:
        return ValuePrinter(
            Scope(
                self.program,
                self.blocks,
                self.emit,
                self.fresh,
                self.names.register,
                self.names.memory,
                self.origins,
                self.register_vectors,
                self.names.size,
                users=count_users(list(roots)),
            )
        )

    def _statements(self, statements) -> None:
        values = [v for s in statements for v in values_of(s)]
        printer = self._printer(values)
        for s in statements:
            if isinstance(s, Init):
                self._init(s)
            elif isinstance(s, Fold):
                self._fold(s, printer)
            elif isinstance(s, Store):
                self._store(s, printer)
            elif isinstance(s, Assign):
                self._assign(s, printer)
            else:
                self._accumulate(s, printer)
            name = s.buffer if isinstance(s, Store) else s.local
            memo = printer.s.memo
            for key in [k for k in memo if name in terms.reads(k[0])]:
                del memo[key]

    def size(self, axis: str) -> int:
        """Points of an axis' current block, which must be known."""
        block = self.blocks.get(axis)
        size = self.program.extents[axis] if block is None else block.size
        if not isinstance(size, int):
            raise ScheduleError(
                f"the points of {axis} are unrolled, and a call decides how many there are",
                where=f"kernel of {self.program.writes}",
                fix="capture with fixed sizes there",
            )
        return size

    def points(
        self, axes, vector: str | None, sizes: dict[str, int] | None = None
    ) -> Iterator[Point]:
        """The unrolled points and vectors of a statement's block."""
        sizes = sizes or {}
        lanes = self.program.lanes
        names, ranges = [], []
        for a in sorted(axes, key=lambda a: (a == vector, a)):
            n = sizes.get(a) or self.size(a)
            names.append(a)
            ranges.append(range(0, n, lanes) if a == vector else range(n))
        for offsets in itertools.product(*ranges):
            where = dict(zip(names, offsets))
            count: int | str = 0
            if vector is not None and vector in where:
                left = (sizes.get(vector) or self.size(vector)) - where[vector]
                count = left if left < lanes else 0
                block = self.blocks.get(vector)
                if block is not None and block.counts:
                    count = block.counts[where[vector] // lanes]
            yield Point(where, vector if vector in where else None, count)

    def _declare(self, local: Local, name: str, vector: bool) -> str:
        """`type name` when this variable is new here, else `name`."""
        if any(name in scope for scope in self.declared):
            return name
        self.declared[-1].add(name)
        return f"{TYPES[letter(local.dtype)][1 if vector else 0]} {name}"

    def _write(self, local: Local, p: Point, e: Expr, printer: ValuePrinter) -> None:
        t = letter(local.dtype)
        e = printer.convert(e, t)
        if local.space == "register":
            vector = self.register_vectors.get(local.name)
            if vector is not None:
                e = printer.splat(e)
            name = self.names.register(
                local.name, tuple(p.offsets.get(a, 0) for a in local.axes)
            )
            self.emit(f"{self._declare(local, name, vector is not None)} = {e.code};")
            return
        self._put(storage(local.dtype), self.names.memory(local.name), e, p, printer,
                  lambda q="": printer.local_address(local, p, q),
                  p.vector in local.axes,
                  bool(local.layout) and local.layout[-1][0] == p.vector)  # fmt: skip

    def _put(
        self, store, base, e: Expr, p: Point, printer, address, lanes: bool, unit: bool,
        full: str = "st",
    ) -> None:  # fmt: skip
        """Store one expression; `lanes` says whether its points lie along the vector axis.

        `full` is the prelude's name of how a whole vector is stored.
        """
        if p.vector is None or not lanes:
            self.emit(f"ll_put_{store}({base} + {address()}, {e.code});")
            return
        e = printer.splat(e)
        if unit:
            if p.count:
                self.emit(f"ll_stn_{store}({base} + {address()}, {e.code}, {p.count});")
            else:
                self.emit(f"ll_{full}_{store}({base} + {address()}, {e.code});")
            return
        name = self.fresh()
        self.emit(f"{TYPES[e.type][1]} {name} = {e.code};")
        n = p.count or "W"
        self.emit(
            f"for (int q = 0; q < {n}; ++q) ll_put_{store}({base} + {address('q')}, {name}[q]);"
        )

    def _init(self, s: Init) -> None:
        local = self.program.locals[s.local]
        t = letter(local.dtype)
        printer = self._printer([])
        e = Expr(number(s.number, t), t)
        if local.space == "register":
            vector = self.register_vectors.get(local.name)
            sizes = dict(local.lanes)
            axes = set(local.axes) | set(sizes)
            for p in self.points(axes, vector, sizes):
                value = printer.splat(e) if vector else e
                name = self._lane_name(local, p)
                self.emit(f"{self._declare(local, name, vector is not None)} = {value.code};")
            return
        # memory: fill what the local holds of the current block
        axes = {d.axis for d in local.dims}
        self._fill(local, sorted(axes), e)

    def _fill(self, local: Local, axes: list[str], e: Expr) -> None:
        """Set every element of a memory local that lies in the current block."""
        printer = self._printer([])
        saved = self.blocks
        opened = 0
        for a in axes:
            block = self.blocks.get(a)
            base = block.base if block else "0"
            end = block.end if block and block.end else None
            if block is None and is_symbolic(self.program.extents[a]):
                end = printer.size(self.program.extents[a])
            elif block is None or end is None:
                n = self.size(a)
                end = f"{base} + {n}"
            var = self.fresh()
            self.open(f"for (long {var} = {base}; {var} < {end}; ++{var})")
            opened += 1
            self.blocks = {**self.blocks, a: Block(var, 1, f"({var} + 1)", 1, 1)}
        printer.s.blocks = self.blocks  # type: ignore[misc]
        address = printer.local_address(local, Point({}))
        pointer = self.names.memory(local.name)
        self.emit(f"ll_put_{storage(local.dtype)}({pointer} + {address}, {e.code});")
        for _ in range(opened):
            self.close()
        self.blocks = saved

    def _lane_name(self, local: Local, p: Point) -> str:
        where = tuple(p.offsets.get(a, 0) for a in local.axes)
        lanes = tuple(p.offsets.get(a, 0) for a, _ in local.lanes)
        return self.names.register(local.name, (*where, *lanes))

    def _assign(self, s: Assign, printer: ValuePrinter) -> None:
        local = self.program.locals[s.local]
        for p in self.points(local.axes, s.vector if s.vector in local.axes else None):
            self._write(local, p, printer.value(s.value, p), printer)

    def _scatter(self, s: Store, printer: ValuePrinter) -> None:
        """Store where data say; a place outside of the buffer is left out."""
        buffer = self.program.buffers[s.buffer]
        store, t = buffer.dtype.name, letter(buffer.dtype)
        axes = frozenset(s.index.axes).union(*(v.free for v in values_of(s)))
        base, last = self.names.memory(s.buffer), terms.span(buffer)
        for p in self.points({a for a in axes if not a.startswith("@")}, s.vector):
            e = printer.convert(printer.value(s.value, p), t)
            at = [printer.value(v, p) for v in s.at]
            places = [f"((long){a.code})" for a in at]
            if p.vector is None:
                place = self.fresh()
                self.emit(f"const long {place} = {printer.index(s.index, p, places)};")
                self._at_place(s, store, t, base, place, last, e)
                continue
            name = self.fresh()
            self.emit(f"{TYPES[t][1]} {name} = {printer.splat(e).code};")
            place = self.fresh()
            if s.scatter == "set" and s.index.coef(p.vector) == 1:
                n, full = p.count or "W", "n" if p.count else ""
                count = f", {p.count}" if p.count else ""
                self.emit(f"const long {place} = {printer.index(s.index, p, places)};")
                self.emit(
                    f"if ({place} >= 0 && {place} + {n} <= {printer.long(last)}) "
                    f"ll_st{full}_{store}({base} + {place}, {name}{count});"
                )
                continue
            self.open(f"for (int q = 0; q < {p.count or 'W'}; ++q)")
            self.emit(f"const long {place} = {printer.index(s.index, p, places, 'q')};")
            lane = f"(-{name}[q])" if t == "b" else f"{name}[q]"
            self._at_place(s, store, t, base, place, last, Expr(lane, t))
            self.close()

    def _at_place(
        self, s: Store, store: str, t: str, base: str, place: str, last: Dim, e: Expr
    ) -> None:
        code = e.code
        end = f"{last}UL" if isinstance(last, int) else self._unsigned(last)
        if s.scatter == "add":
            old = f"ll_get_{store}({base} + {place})"
            code = f"{old} {'|' if t == 'b' else '+'} {code}"
        self.emit(
            f"if ((unsigned long){place} < {end}) ll_put_{store}({base} + {place}, {code});"
        )

    def _unsigned(self, n: Dim) -> str:
        return f"(unsigned long){c_text(n, self.names.size)}"

    def _store(self, s: Store, printer: ValuePrinter) -> None:
        if s.scatter:
            self._scatter(s, printer)
            return
        buffer = self.program.buffers[s.buffer]
        axes = s.index.axes | s.value.free
        t = letter(buffer.dtype)
        for p in self.points(axes, s.vector if s.vector in axes else None):
            e = printer.convert(printer.value(s.value, p), t)
            unit = (
                p.vector is not None
                and s.index.coef(p.vector) == 1
                and all(
                    isinstance(a, str) or p.vector not in a.inner.axes for a, _ in s.index.terms
                )
            )
            if s.guard:
                e = self._named(e)
                holds = [f"{printer.index(g, p)} >= 0" for g in s.guard]
                self.open(f"if ({' && '.join(holds)})")
            self._put(buffer.dtype.name, self.names.memory(s.buffer), e, p, printer,
                      lambda q="", p=p: printer.index(s.index, p, lane=q),
                      p.vector in s.index.axes, unit, "nt" if s.stream else "st")  # fmt: skip
            if s.guard:
                self.close()

    def _named(self, e: Expr) -> Expr:
        """An expression as a variable."""
        name = self.fresh()
        scalar, vector = TYPES[e.type]
        self.emit(f"{vector if e.vector else scalar} {name} = {e.code};")
        return Expr(name, e.type, e.vector)

    def _combine(
        self, op: str, t: str, a: Expr, b: Expr, vector: bool, printer: ValuePrinter
    ) -> Expr:
        if op == "max":
            return printer.maximum(a, b, t, vector)
        if vector:
            b = b if t != "b" else printer.splat(b)
        return Expr(f"{a.code} {'|' if t == 'b' else '+'} {b.code}", t, vector)

    def _accumulate(self, s: Accumulate, printer: ValuePrinter) -> None:
        local = self.program.locals[s.local]
        t = letter(local.dtype)
        lanes = dict(local.lanes)
        kept = set(local.axes) | set(lanes)
        over = sorted(s.value.free - kept)
        vector = s.vector if s.vector in kept else None
        for p in self.points(kept, vector):
            total: Expr | None = None
            register = local.space == "register"
            wide = (
                vector is not None
                if not register
                else self.register_vectors[local.name] is not None
            )
            here = self._lane_name(local, p) if register else ""
            for extra in self.points(over, None):
                point = Point({**p.offsets, **extra.offsets}, p.vector, p.count)
                e = printer.convert(printer.value(s.value, point), t)
                if wide:
                    e = printer.splat(e)
                if p.count and lanes:
                    ident = number(identity(s.op, local.dtype), t)
                    full = printer.splat(Expr(ident, t))
                    kind = "i" if t == "b" else t
                    e = Expr(
                        f"ll_sel_{kind}(ll_first({p.count}), {e.code}, {full.code})", t, True
                    )
                if register:
                    new = self._combine(s.op, t, Expr(here, t, wide), e, wide, printer)
                    self.emit(f"{here} = {new.code};")
                elif total is None:
                    total = e
                else:
                    name = self.fresh()
                    new = self._combine(s.op, t, total, e, wide, printer)
                    self.emit(f"{TYPES[t][1 if wide else 0]} {name} = {new.code};")
                    total = Expr(name, t, wide)
            if not register and total is not None:
                ref = terms.ref(local.name, local.axes, local.dtype)
                old = printer._local(ref, p)
                new = self._combine(s.op, t, old, total, wide, printer)
                self._write(local, p, Expr(f"({new.code})", t, wide), printer)

    def _fold(self, s: Fold, printer: ValuePrinter) -> None:
        local, source = self.program.locals[s.local], self.program.locals[s.source]
        t = letter(local.dtype)
        lanes = dict(source.lanes)
        vector = self.register_vectors[s.source]
        for p in self.points(local.axes, None):
            total: Expr | None = None
            for extra in self.points(lanes, vector, lanes):
                point = Point({**p.offsets, **extra.offsets}, vector, 0)
                e = Expr(self._lane_name(source, point), t, vector is not None)
                total = e if total is None else self._fold_step(s.op, t, total, e, printer)
            assert total is not None
            if vector is not None:
                name = {
                    "add": "hor" if t == "b" else "hadd",
                    "max": "hor" if t == "b" else "hmax",
                }
                kind = "i" if t == "b" else t
                code = f"ll_{name[s.op]}_{kind}({total.code})"
                total = Expr(f"({code} != 0)" if t == "b" else code, t)
            self._write(local, Point(dict(p.offsets)), total, printer)

    def _fold_step(self, op: str, t: str, a: Expr, b: Expr, printer: ValuePrinter) -> Expr:
        return Expr(f"({self._combine(op, t, a, b, a.vector, printer).code})", t, a.vector)


def touched(node: Node) -> list[str]:
    """Names of the locals that a statement reads or writes."""
    out: dict[str, None] = {}
    if isinstance(node, Init | Assign | Accumulate | Fold):
        out.setdefault(node.local)
    if isinstance(node, Fold):
        out.setdefault(node.source)
    for value in values_of(node):
        out.update(dict.fromkeys(n for n in terms.reads(value) if is_local(n)))
    return list(out)
