"""The C renderer: a `simd` tile program as one self-contained set of C functions.

A grid becomes a task function for `ll_parallel_for`; serial and inner loops become C loops with
a full body and, where an extent is ragged, one tail body of static size. A statement is printed
once per unrolled point and vector of its block. All file-scope names begin with the entry's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.codegen import terms
from luminal_lab.codegen.analysis import LINE
from luminal_lab.codegen.c_prelude import C_TYPE
from luminal_lab.codegen.c_statements import StatementPrinter, touched
from luminal_lab.codegen.c_values import Block, Point, storage, storage_type
from luminal_lab.codegen.tile import (
    Assign,
    KernelSource,
    Local,
    Loop,
    Node,
    Pack,
    Store,
    TileProgram,
    is_local,
    value_of,
    values_of,
    walk,
)
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import Size, at_least, c_text, ceildiv, divides, is_symbolic

ALIGN = 64
_CHUNK = 1 << 18  # bytes of a destination that a task copies


def render_c(program: TileProgram, entry: str, threads: int) -> KernelSource:
    """C source of a tile program.

    Arguments:
        program: A `simd` program.
        entry: The name of its entry function.
        threads: Most threads that the kernel will use (its workspace is that large).
    """
    return _Renderer(program, entry, threads).source()


def _up(n: Any, to: int = ALIGN) -> Any:
    return ceildiv(n, to) * to


class _Renderer(StatementPrinter):
    def __init__(self, program: TileProgram, entry: str, threads: int):
        super().__init__(program, entry)
        self.threads = threads
        self.functions: list[str] = []
        self._lay_out()

    # ------------------------------------------------------------------ memory

    def _lay_out(self) -> None:
        """Offsets of shared and per-thread locals in the workspace."""
        self.offsets: dict[str, int] = {}
        self.shared: Any = 0
        self.private: Any = 0
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
                assert isinstance(nbytes, int), f"the pack {local.name} has no fixed size"
                self.packs.append(Pack(local.name, nbytes, reads))
        for name in self.program.scratch:
            buffer = self.program.buffers[name]
            self.offsets[name] = self.shared
            self.shared += _up(terms.span(buffer) * buffer.dtype.bytes + 64)
        self.private = _up(self.private, 4096) if self.private != 0 else 0
        self.sizes = self.program.kernel.symbols

    # ------------------------------------------------------------------ the whole

    def source(self) -> KernelSource:
        """The kernel's text and what a caller must know."""
        program = self.program
        entries = []
        workspace = self.shared + self.private * self.threads
        for suffix, nodes in (("_pack", program.build), ("", program.body)):
            if suffix and not nodes:
                continue
            body = ("" if suffix else self._destinations()) + self._entry(nodes, suffix)
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
            sizes=self.sizes,
        )

    def _destinations(self) -> str:
        """A scatter's output begins as a copy of its destination, or is that memory."""
        program, lines = self.program, []
        params = (*program.reads, *program.writes)
        for k, out in enumerate(program.kernel.outputs):
            if out.scatter is None:
                continue
            target, source = (len(program.reads) + program.writes.index(out.buffer),
                              params.index(out.scatter.into))  # fmt: skip
            nbytes = program.buffers[out.buffer].nbytes
            name, size = f"{self.entry}_copy{k}", self._long(nbytes)
            self.functions.append(
                f"static void {name}(void *ctx, long lo, long hi) {{\n"
                "  char *const *b = (char *const *)ctx;\n"
                f"{self._declared_sizes()}"
                f"  const long from = lo * {_CHUNK}L, past = hi * {_CHUNK}L;\n"
                f"  const long to = past < {size} ? past : {size};\n"
                f"  __builtin_memcpy(b[{target}] + from, b[{source}] + from, to - from);\n"
                "}\n"
            )
            chunks = self._long(ceildiv(nbytes, _CHUNK))
            threads = f"threads < {self.threads} ? threads : {self.threads}"
            lines.append(
                f"  if (b[{target}] != b[{source}]) "
                f"ll_parallel_for({name}, (void *)b, {chunks}, 1L, {threads});\n"
            )
        text = "".join(lines)
        return f"  {{\n{self._declared_sizes()}{text}  }}\n" if text and self.sizes else text

    def _entry(self, nodes: Sequence[Node], suffix: str) -> str:
        self.lines, self.depth, self.declared = [], 1, [set()]
        self.emit(f"if (threads > {self.threads}) threads = {self.threads};")
        self.emit(self._size_values())
        self.emit(self._pointers(nodes, only_serial=True))
        for k, node in enumerate(nodes):
            if isinstance(node, Loop) and node.kind == "grid":
                self._launch(node, f"{self.entry}{suffix}_{k}")
            else:
                self.node(node)
                self._fence((node,))
        out, self.lines = self.lines, []
        return "\n".join(line for line in out if line.strip()) + "\n"

    def _declared_sizes(self) -> str:
        lines = self._size_values().split("\n") if self.sizes else []
        return "".join(f"  {line}\n" for line in lines)

    def _size_values(self) -> str:
        """Declarations of the sizes that this call decides."""
        if not self.sizes:
            return ""
        slot = len(self.program.reads) + len(self.program.writes) + len(self.packs)
        values = f"((const long *)b[{slot}])"
        return "\n".join(
            f"const long {self.names.size(s)} = {values}[{k}];"
            for k, s in enumerate(self.sizes)
        )

    def _size(self, n: Any) -> str:
        """A size as a C expression."""
        return c_text(n, self.names.size)

    def _pointers(self, nodes: Sequence[Node], only_serial: bool = False) -> str:
        """Declarations of the pointers that these nodes use."""
        used: dict[str, None] = {}
        for top in nodes:
            if only_serial and isinstance(top, Loop) and top.kind == "grid":
                continue
            for node, _ in walk((top,)):
                if isinstance(node, Loop):
                    continue
                for n in touched(node):
                    used.setdefault(n)
                for value in values_of(node):
                    for n in terms.reads(value):
                        used.setdefault(n)
                if isinstance(node, Store):
                    used.setdefault(node.buffer)
        program = self.program
        params = (*program.reads, *program.writes)
        lines = []
        base = f"b[{len(params) + len(self.packs) + bool(self.sizes)}]"
        for n in used:
            pointer = self.names.memory(n)
            if not is_local(n):
                c = C_TYPE[program.buffers[n].dtype.name]
                if n in program.scratch:
                    at = f"{base} + {self._long(self.offsets[n])}"
                    lines.append(f"{c} *const restrict {pointer} = ({c} *)({at});")
                    continue
                # a buffer both read and written is listed once as each
                slot = params.index(n)
                const = "" if n in program.writes else "const "
                lines.append(f"{const}{c} *const restrict {pointer} = ({const}{c} *)b[{slot}];")
                continue
            local = program.locals[n]
            c = storage_type(local.dtype)
            if local.space == "shared":
                at = self._long(self.offsets[n])
                lines.append(f"{c} *const restrict {pointer} = ({c} *)({base} + {at});")
            elif local.space == "thread":
                start = self.shared + self.offsets[n]
                at = f"{base} + {self._long(start)}"
                at += f" + ll_thread_index() * {self._long(self.private)}"
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
        counts = [ceildiv(self.program.extents[lp.axis], lp.step) for lp, _ in levels]
        total: Any = 1
        for n in counts:
            total *= n
        prefixed = [k for k, (_, prefix) in enumerate(levels) if prefix]
        grain = "1L"
        if prefixed:
            per: Any = 1
            for n in counts[prefixed[-1] + 1 :]:
                per *= n
            grain = self._grain(total, per)
        threads = "threads" if self.program.parallel else "1"
        if isinstance(self.program.parallel, Size):
            threads = f"{self._size(self.program.parallel)} > {terms.WORK}L ? threads : 1"
        self.emit(
            f"ll_parallel_for({name}, (void *)b, {self._long(total)}, {grain}, {threads});"
        )
        saved = self.lines, self.depth, self.declared, self.blocks, self.origins
        self.lines, self.depth, self.declared = [], 1, [set()]
        self.blocks, self.origins = {}, {}
        self.emit("char *const *b = (char *const *)ctx;")
        self.emit(self._size_values())
        self.emit(self._pointers((loop,)))
        for k in prefixed:
            self.emit(f"long last{k} = -1;")
        self.open("for (long p = lo; p < hi; ++p)")
        stride = total
        for k, ((lp, prefix), n) in enumerate(zip(levels, counts)):
            stride //= n
            var = self.names.loop(lp.var)
            each = self._size(stride)
            text = "p" if stride == 1 else f"p / {each}"
            if k:
                text = f"({text}) % {self._size(n)}"
            one = isinstance(n, int) and n <= 1
            self.emit(f"const long {var} = {'0' if one else f'{text} * {lp.step}'};")
            self._bind(lp, var)
            if prefix:
                self.open(f"if (last{k} != p / {each})")
                self.emit(f"last{k} = p / {each};")
                self.nodes(prefix)
                self.close()
        self.nodes(body)
        self.close()
        self._fence((loop,))
        text = "\n".join(line for line in self.lines if line.strip())
        self.functions.append(
            f"static void {name}(void *ctx, long lo, long hi) {{\n{text}\n}}\n"
        )
        self.lines, self.depth, self.declared, self.blocks, self.origins = saved

    def _fence(self, nodes: tuple[Node, ...]) -> None:
        """Streamed results become visible to other threads before the task ends."""
        if any(isinstance(node, Store) and node.stream for node, _ in walk(nodes)):
            self.emit("ll_nt_fence();")

    def _long(self, n: Any) -> str:
        return f"{n}L" if isinstance(n, int) else self._size(n)

    def _grain(self, total: Any, per: Any) -> str:
        """Tasks that one thread takes at a time, where tasks share what comes before them."""
        if isinstance(total, int):
            outer = total // max(per, 1)
            few = max(1, -(-total // (self.threads * 2)))
            return f"{per if outer >= self.threads else few}L"
        few = self._size(ceildiv(total, self.threads * 2))
        outer = self._size(total // per)
        return f"{outer} >= {self.threads} ? {self._long(per)} : {few}"

    def _bind(self, loop: Loop, var: str) -> None:
        """A shared loop's block: static when the steps divide the extent."""
        extent = self.program.extents[loop.axis]
        outer = self.blocks.get(loop.axis)
        step = loop.step
        if outer is None and divides(step, extent):
            size, end = step, f"({var} + {step})"
        elif outer is None and at_least(step - extent, 1) and isinstance(extent, int):
            size, end = extent, str(extent)
        else:
            limit = outer.end if outer else self._size(extent)
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
        self._ask(loop, block)
        self.nodes(loop.body)
        self.blocks, self.origins = saved

    def _ask(self, loop: Loop, block: Block) -> None:
        """Prefetches of the lines that a later block reads where this step is in its own."""
        for name, index in loop.ahead:
            each = LINE // self.program.buffers[name].dtype.bytes
            for at in range(0, block.size or 0, each):
                place = self._outer_index(index + at)
                self.emit(f"ll_ask({self.names.memory(name)} + {place});")

    def _serial(self, loop: Loop) -> None:
        """A shared loop inside a task: one body; a ragged last block has a run-time end."""
        outer = self.blocks.get(loop.axis)
        extent = self.program.extents[loop.axis]
        var = self.names.loop(loop.var)
        start = outer.base if outer else "0"
        stop = outer.end if outer else self._size(extent)
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

    def _points(self, loop: Loop, var: str, start: str, stop: str) -> None:
        """A loop of a nest over the single points between its bounds."""
        for bound in loop.lo:
            start = f"ll_max({start}, {self._outer_index(bound)})"
        for bound in loop.hi:
            stop = f"ll_min({stop}, {self._outer_index(bound)})"
        self.open(f"for (long {var} = {start}; {var} < {stop}; ++{var})")
        self._scoped(loop, var, Block(var, 1, f"({var} + 1)", 1, 1))
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
        if loop.lo or loop.hi:
            self._points(loop, var, base, outer.end if outer else self._size(extent))
            return
        if is_symbolic(extent) and not isinstance(size, int):
            end = outer.end if outer else self._size(extent)
            self._ragged(loop, var, base, end, step if aligned % step == 0 else 1)
            return
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

    def _ragged(self, loop: Loop, var: str, base: str, end: str, aligned: int) -> None:
        """A loop of a nest over an axis whose number of points a call decides.

        Full blocks come first. What is left of a vector axis is one more block, some of whose
        lanes are not in use; what is left of another axis is done in smaller steps.
        """
        step = loop.step
        if any(isinstance(n, Loop) and n.axis == loop.axis for n, _ in walk(loop.body)):
            self.open(f"for (long {var} = {base}; {var} < {end}; {var} += {step})")
            last = f"{var}_end"
            self.emit(f"const long {last} = ll_min({var} + {step}, {end});")
            self._scoped(loop, var, Block(var, None, last, step, aligned))
            self.close()
            return
        self.open("")
        self.emit(f"long {var} = {base};")
        self.open(f"for (; {var} + {step} <= {end}; {var} += {step})")
        self._scoped(loop, var, Block(var, step, f"({var} + {step})", step, aligned))
        self.close()
        if step > 1 and any(
            not isinstance(n, Loop) and n.vector == loop.axis for n, _ in walk(loop.body)
        ):
            self._partial(loop, var, end, aligned)
        else:
            for smaller in _smaller(step):
                self.open(f"for (; {var} + {smaller} <= {end}; {var} += {smaller})")
                block = Block(var, smaller, f"({var} + {smaller})", step, 1)
                self._scoped(loop, var, block)
                self.close()
        self.close()

    def _partial(self, loop: Loop, var: str, end: str, aligned: int) -> None:
        """The last block of a vector axis."""
        lanes = self.program.lanes
        self.open(f"if ({var} < {end})")
        counts = []
        for at in range(0, loop.step, lanes):
            counts.append(self.names.count(f"{var}_n{at}"))
            left = f"{end} - {var} - {at}" if at else f"{end} - {var}"
            self.emit(f"const int {counts[-1]} = (int)ll_max(0, ll_min(W, {left}));")
        block = Block(var, loop.step, end, loop.step, aligned, tuple(counts))
        self._scoped(loop, var, block)
        self.close()

    def _tail_variable(self, var: str, tail: str) -> str:
        self.emit(f"const long {var} = {tail};")
        return var


def _smaller(step: int) -> list[int]:
    """The steps in which what is left of a block of `step` points is done."""
    return [n for n in (4, 1) if n < step]


def _size(local: Local) -> int:
    return {"f64": 8, "i64": 8, "bool": 1}.get(storage(local.dtype), 4)


def _pack_reads(program: TileProgram, name: str) -> tuple[str, ...]:
    """The buffers that a pack is computed from."""
    out: dict[str, None] = {}
    for node, _ in walk(program.build):
        value = value_of(node)
        if isinstance(node, Assign) and node.local == name and value is not None:
            out.update(dict.fromkeys(n for n in terms.reads(value) if not is_local(n)))
    return tuple(out)
