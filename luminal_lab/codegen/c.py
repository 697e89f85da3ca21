"""The C renderer: a `simd` tile program as one self-contained set of C functions.

A grid becomes a task function for `ll_parallel_for`; serial and inner loops become C loops with
a full body and, where an extent is ragged, one tail body of static size. A statement is printed
once per unrolled point and vector of its block. All file-scope names begin with the entry's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from luminal_lab.codegen import terms
from luminal_lab.codegen.c_names import Names
from luminal_lab.codegen.c_prelude import C_TYPE
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
    storage_type,
)
from luminal_lab.codegen.tile import (
    Accumulate,
    Assign,
    Fold,
    Init,
    KernelSource,
    Local,
    Loop,
    Node,
    Pack,
    Store,
    TileProgram,
    is_local,
    value_of,
    walk,
)
from luminal_lab.hlir.index import Index

ALIGN = 64


def render_c(program: TileProgram, entry: str, threads: int) -> KernelSource:
    """C source of a tile program.

    Arguments:
        program: A `simd` program.
        entry: The name of its entry function.
        threads: Most threads that the kernel will use (its workspace is that large).
    """
    return _Renderer(program, entry, threads).source()


def _up(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


class _Renderer:
    def __init__(self, program: TileProgram, entry: str, threads: int):
        self.program, self.entry, self.threads = program, entry, threads
        self.functions: list[str] = []
        self.lines: list[str] = []
        self.depth = 0
        self.counter = 0
        self.blocks: dict[str, Block] = {}
        self.origins: dict[str, str] = {}
        self.declared: list[set[str]] = []
        self.names = Names(entry)
        self.register_vectors = self._find_register_vectors()
        self._lay_out()

    # ------------------------------------------------------------------ memory

    def _lay_out(self) -> None:
        """Offsets of shared and per-thread locals in the workspace."""
        self.offsets: dict[str, int] = {}
        self.shared = self.private = 0
        self.packs: list[Pack] = []
        for local in self.program.locals.values():
            nbytes = _up(local.numel * _size(local) + 64)
            if local.space == "shared":
                self.offsets[local.name] = self.shared
                self.shared += nbytes
            elif local.space == "thread":
                self.offsets[local.name] = self.private
                self.private += nbytes
            elif local.space == "build":
                reads = _pack_reads(self.program, local.name)
                self.packs.append(Pack(local.name, nbytes, reads))
        self.private = _up(self.private, 4096) if self.private else 0

    def _find_register_vectors(self) -> dict[str, str | None]:
        """The vector axis of each register local."""
        out: dict[str, str | None] = {}
        for nodes in (self.program.build, self.program.body):
            for node, _ in walk(nodes):
                if isinstance(node, Loop):
                    continue
                for name in _touched(node):
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

    # ------------------------------------------------------------------ the whole

    def source(self) -> KernelSource:
        """The kernel's text and what a caller must know."""
        program = self.program
        entries = []
        workspace = self.shared + self.private * self.threads
        for suffix, nodes in (("_pack", program.build), ("", program.body)):
            if suffix and not nodes:
                continue
            body = self._entry(nodes, suffix)
            entries.append(
                f"void {self.entry}{suffix}(char *const *b, long threads) {{\n{body}}}\n"
            )
        return KernelSource(
            text="\n".join([*self.functions, *entries]),
            entry=self.entry,
            params=(*program.reads, *program.writes),
            packs=tuple(self.packs),
            workspace_bytes=workspace,
            language="c",
        )

    def _entry(self, nodes: Sequence[Node], suffix: str) -> str:
        self.lines, self.depth, self.declared = [], 1, [set()]
        self.emit(f"if (threads > {self.threads}) threads = {self.threads};")
        self.emit(self._pointers(nodes, only_serial=True))
        for k, node in enumerate(nodes):
            if isinstance(node, Loop) and node.kind == "grid":
                self._launch(node, f"{self.entry}{suffix}_{k}")
            else:
                self.node(node)
        out, self.lines = self.lines, []
        return "\n".join(line for line in out if line.strip()) + "\n"

    def _pointers(self, nodes: Sequence[Node], only_serial: bool = False) -> str:
        """Declarations of the pointers that these nodes use."""
        used: dict[str, None] = {}
        for top in nodes:
            if only_serial and isinstance(top, Loop) and top.kind == "grid":
                continue
            for node, _ in walk((top,)):
                if isinstance(node, Loop):
                    continue
                for n in _touched(node):
                    used.setdefault(n)
                value = value_of(node)
                for n in terms.reads(value) if value else ():
                    used.setdefault(n)
                if isinstance(node, Store):
                    used.setdefault(node.buffer)
        program = self.program
        params = (*program.reads, *program.writes)
        lines = []
        base = f"b[{len(params) + len(self.packs)}]"
        for n in used:
            pointer = self.names.memory(n)
            if not is_local(n):
                c = C_TYPE[program.buffers[n].dtype.name]
                # a buffer both read and written is listed once as each
                slot = params.index(n)
                const = "" if n in program.writes else "const "
                lines.append(f"{const}{c} *const restrict {pointer} = ({const}{c} *)b[{slot}];")
                continue
            local = program.locals[n]
            c = storage_type(local.dtype)
            if local.space == "shared":
                lines.append(
                    f"{c} *const restrict {pointer} = ({c} *)({base} + {self.offsets[n]}L);"
                )
            elif local.space == "thread":
                start = self.shared + self.offsets[n]
                at = f"{base} + {start}L + ll_thread_index() * {self.private}L"
                lines.append(f"{c} *const restrict {self.names.memory(n)} = ({c} *)({at});")
            elif local.space == "build":
                k = next(k for k, p in enumerate(self.packs) if p.name == n)
                lines.append(
                    f"{c} *const restrict {self.names.memory(n)} = ({c} *)b[{len(params) + k}];"
                )
        return "\n".join(lines)

    # ------------------------------------------------------------------ grids

    def _launch(self, loop: Loop, name: str) -> None:
        """The call of ll_parallel_for, and the task function of a grid."""
        levels: list[tuple[Loop, tuple[Node, ...]]] = []
        inner: Loop | None = loop
        body: tuple[Node, ...] = ()
        while inner is not None:
            body = inner.body
            grids = [n for n in body if isinstance(n, Loop) and n.kind == "grid"]
            last = body[-1] if body else None
            nested = (
                len(grids) == 1 and last is grids[0] and not grids[0].lo and not grids[0].hi
            )
            levels.append((inner, body[:-1] if nested else ()))
            inner = grids[0] if nested else None
        counts = [-(-self.program.extents[lp.axis] // lp.step) for lp, _ in levels]
        total = 1
        for n in counts:
            total *= n
        prefixed = [k for k, (_, prefix) in enumerate(levels) if prefix]
        grain = 1
        if prefixed:
            per = 1
            for n in counts[prefixed[-1] + 1 :]:
                per *= n
            outer = total // max(per, 1)
            grain = per if outer >= self.threads else max(1, -(-total // (self.threads * 2)))
        threads = "threads" if self.program.parallel else "1"
        self.emit(f"ll_parallel_for({name}, (void *)b, {total}L, {grain}L, {threads});")
        saved = self.lines, self.depth, self.declared, self.blocks, self.origins
        self.lines, self.depth, self.declared = [], 1, [set()]
        self.blocks, self.origins = {}, {}
        self.emit("char *const *b = (char *const *)ctx;")
        self.emit(self._pointers((loop,)))
        for k in prefixed:
            self.emit(f"long last{k} = -1;")
        self.open("for (long p = lo; p < hi; ++p)")
        stride = total
        for k, ((lp, prefix), n) in enumerate(zip(levels, counts)):
            stride //= n
            var = self.names.loop(lp.var)
            text = "p" if stride == 1 else f"p / {stride}"
            if k:
                text = f"({text}) % {n}"
            self.emit(
                f"const long {var} = {text} * {lp.step};" if n > 1 else f"const long {var} = 0;"
            )
            self._bind(lp, var)
            if prefix:
                self.open(f"if (last{k} != p / {stride})")
                self.emit(f"last{k} = p / {stride};")
                self.nodes(prefix)
                self.close()
        self.nodes(body)
        self.close()
        text = "\n".join(line for line in self.lines if line.strip())
        self.functions.append(
            f"static void {name}(void *ctx, long lo, long hi) {{\n{text}\n}}\n"
        )
        self.lines, self.depth, self.declared, self.blocks, self.origins = saved

    def _bind(self, loop: Loop, var: str) -> None:
        """A shared loop's block: static when the steps divide the extent."""
        extent = self.program.extents[loop.axis]
        outer = self.blocks.get(loop.axis)
        step = loop.step
        if outer is None and extent % step == 0:
            size, end = step, f"({var} + {step})"
        elif outer is None and extent < step:
            size, end = extent, str(extent)
        else:
            limit = outer.end if outer else str(extent)
            end = f"{var}_end"
            self.emit(f"const long {end} = ll_min({var} + {step}, {limit});")
            size = None
        self.blocks = {**self.blocks, loop.axis: Block(var, size, end, step, step)}
        self.origins = {**self.origins, loop.var: var}

    # ------------------------------------------------------------------ loops

    def nodes(self, nodes: Sequence[Node]) -> None:
        """Nodes in order; runs of statements share their common terms."""
        k = 0
        while k < len(nodes):
            if isinstance(nodes[k], Loop):
                self.node(nodes[k])
                k += 1
                continue
            end = k
            while end < len(nodes) and not isinstance(nodes[end], Loop):
                end += 1
            self._statements(nodes[k:end])  # type: ignore[arg-type]
            k = end

    def node(self, node: Node) -> None:
        """One node."""
        if isinstance(node, Loop):
            if node.kind == "inner":
                self._inner(node)
            else:
                self._serial(node)
        else:
            self._statements([node])

    def _scoped(self, loop: Loop, var: str, block: Block) -> None:
        saved = self.blocks, self.origins
        self.blocks = {**self.blocks, loop.axis: block}
        self.origins = {**self.origins, loop.var: var}
        self.nodes(loop.body)
        self.blocks, self.origins = saved

    def _serial(self, loop: Loop) -> None:
        """A shared loop inside a task: one body; a ragged last block has a run-time end."""
        outer = self.blocks.get(loop.axis)
        extent = self.program.extents[loop.axis]
        var = self.names.loop(loop.var)
        start = outer.base if outer else "0"
        stop = outer.end if outer else str(extent)
        for bound in loop.lo:
            first = f"ll_fdiv({self._outer_index(bound)}, {loop.step}) * {loop.step}"
            start = f"ll_max({start}, {first})"
        for bound in loop.hi:
            stop = f"ll_min({stop}, {self._outer_index(bound)})"
        self.open(f"for (long {var} = {start}; {var} < {stop}; {var} += {loop.step})")
        saved = self.blocks, self.origins
        self._bind(loop, var)
        self.nodes(loop.body)
        self.blocks, self.origins = saved
        self.close()

    def _outer_index(self, i: Index) -> str:
        scope = self._printer([])
        return scope.index(i, Point({}))

    def _inner(self, loop: Loop) -> None:
        """A loop of a nest: full blocks, then a tail of each size that can occur."""
        outer = self.blocks.get(loop.axis)
        extent, step = self.program.extents[loop.axis], loop.step
        base = outer.base if outer else "0"
        var = self.names.loop(loop.var)
        size = outer.size if outer else extent
        aligned = outer.aligned if outer else 0
        if size is not None:
            full, rest = divmod(size, step)
            if full == 1:
                self.open("")
                self._scoped(loop, base, Block(base, step, "", step, aligned or step))
                self.close()
            elif full > 1:
                stop = f"{base} + {full * step}" if base != "0" else str(full * step)
                self.open(f"for (long {var} = {base}; {var} < {stop}; {var} += {step})")
                good = step if aligned % step == 0 else 1
                self._scoped(loop, var, Block(var, step, f"({var} + {step})", step, good))
                self.close()
            if rest:
                self.open("")
                tail = f"{base} + {full * step}" if base != "0" else str(full * step)
                if full:
                    tail_var = self._tail_variable(var, tail)
                else:
                    tail_var = base
                good = step if aligned % step == 0 else 1
                self._scoped(loop, tail_var, Block(tail_var, rest, "", step, good))
                self.close()
            return
        assert outer is not None
        span = outer.step
        rests = sorted({span % step, (extent % span) % step} - {0}, reverse=True)
        self.open("")
        self.emit(f"long {var} = {base};")
        good = step if aligned % step == 0 else 1
        end = outer.end
        self.open(f"for (; {var} + {step} <= {end}; {var} += {step})")
        self._scoped(loop, var, Block(var, step, f"({var} + {step})", step, good))
        self.close()
        for rest in rests:
            self.open(f"if ({end} - {var} == {rest})")
            self._scoped(loop, var, Block(var, rest, end, step, good))
            self.close()
        self.close()

    def _tail_variable(self, var: str, tail: str) -> str:
        self.emit(f"const long {var} = {tail};")
        return var

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
                users=count_users(list(roots)),
            )
        )

    def _statements(self, statements) -> None:
        values = [v for s in statements if (v := value_of(s)) is not None]
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
        if block is None:
            return self.program.extents[axis]
        assert block.size is not None, f"the block of {axis} has no static size here"
        return block.size

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
            count = 0
            if vector is not None and vector in where:
                left = (sizes.get(vector) or self.size(vector)) - where[vector]
                count = left if left < lanes else 0
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
        self, store, base, e: Expr, p: Point, printer, address, lanes: bool, unit: bool
    ) -> None:
        """Store one expression; `lanes` says whether its points lie along the vector axis."""
        if p.vector is None or not lanes:
            self.emit(f"ll_put_{store}({base} + {address()}, {e.code});")
            return
        e = printer.splat(e)
        if unit:
            if p.count:
                self.emit(f"ll_stn_{store}({base} + {address()}, {e.code}, {p.count});")
            else:
                self.emit(f"ll_st_{store}({base} + {address()}, {e.code});")
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
            if block is None or end is None:
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

    def _store(self, s: Store, printer: ValuePrinter) -> None:
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
            self._put(buffer.dtype.name, self.names.memory(s.buffer), e, p, printer,
                      lambda q="", p=p: printer.index(s.index, p, lane=q),
                      p.vector in s.index.axes, unit)  # fmt: skip

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
                    ident = number(_identity(s.op, local), t)
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


def _identity(op: str, local: Local):
    from luminal_lab.codegen.body import identity

    return identity(op, local.dtype)


def _size(local: Local) -> int:
    return {"f64": 8, "i64": 8, "bool": 1}.get(storage(local.dtype), 4)


def _touched(node: Node) -> list[str]:
    """Names of the locals that a statement reads or writes."""
    out: dict[str, None] = {}
    if isinstance(node, Init | Assign | Accumulate | Fold):
        out.setdefault(node.local)
    if isinstance(node, Fold):
        out.setdefault(node.source)
    value = value_of(node)
    if value is not None:
        out.update(dict.fromkeys(n for n in terms.reads(value) if is_local(n)))
    return list(out)


def _pack_reads(program: TileProgram, name: str) -> tuple[str, ...]:
    """The buffers that a pack is computed from."""
    out: dict[str, None] = {}
    for node, _ in walk(program.build):
        value = value_of(node)
        if isinstance(node, Assign) and node.local == name and value is not None:
            out.update(dict.fromkeys(n for n in terms.reads(value) if not is_local(n)))
    return tuple(out)
