"""Schedules: what the lowering may choose, and the choice that it makes by itself.

A `Schedule` names the shared loops (grid, then serial) with their tiles, one register tile per
product, and how values that several phases need are kept. Everything else (nests, vector axes,
levels and layouts of scratch) follows from the body. `default_schedule` derives all of it;
`schedule_space` lists the few points that are worth measuring, default first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from luminal_lab.codegen import analysis
from luminal_lab.codegen.body import Body, Stmt, statements
from luminal_lab.codegen.dots import Product, products
from luminal_lab.codegen.prefetch import worth_asking
from luminal_lab.codegen.splits import split_reductions
from luminal_lab.codegen.streaming import undecided, worth_streaming
from luminal_lab.codegen.windows import windows
from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import ScheduleError
from luminal_lab.search.machine import Machine

FEW, MANY = 1 << 10, 1 << 13  # points of the rows that a task takes: asked for ahead, or not
TASKS = 2  # blocks of a product for each thread, at least
MANY_BLOCKS = 64  # of rows: more only read the columns again
NEAR = 1.5  # how many times the second-level cache the rows of a block may take
COLUMN_ROWS = 64  # rows of a block that is read twice, with the vector along its columns

Keep = Literal["output", "scratch", "recompute"]


@dataclass(frozen=True)
class Schedule:
    """One point of a kernel's schedule space.

    Arguments:
        style: `simd` (C) or `block` (Triton, Metal).
        grid: Parallel loops, outermost first: (axis, points in a block).
        serial: Shared loops inside the grid that carry reductions.
        tiles: Register tile (rows, columns) of each product, in statement order (`simd`).
        unroll: Vectors per step of a row loop (`simd`).
        column_block: Points of a vector axis whose accumulators stay in the first-level cache
            while another axis is reduced; and how many steps of that axis are unrolled inside.
        keep: Where an expensive value lives that a later phase needs again.
        stream: Send results past the caches (`simd`; see `streaming.py`).
        ahead: Ask for the next rows while these are computed (`simd`; see `prefetch.py`).
    """

    style: Literal["simd", "block"] = "simd"
    grid: tuple[tuple[str, int], ...] = ()
    serial: tuple[tuple[str, int], ...] = ()
    tiles: tuple[tuple[int, int], ...] = ()
    unroll: int = 4
    column_block: tuple[int, int] = (1024, 4)
    keep: Keep = "output"
    stream: bool = False
    ahead: bool = False

    def to_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Schedule:
        """Read what `to_data` gave.

        Raises:
            ScheduleError: when it is something else.
        """
        try:
            pairs = {
                k: tuple(tuple(p) for p in data[k])
                for k in ("grid", "serial", "tiles")
                if k in data
            }
            rest = {k: v for k, v in data.items() if k not in pairs}
            if "column_block" in rest:
                rest["column_block"] = tuple(rest["column_block"])
            return Schedule(**pairs, **rest)
        except (TypeError, KeyError, ValueError) as error:
            raise ScheduleError(f"not a schedule: {data!r} ({error})") from error


@lru_cache(maxsize=256)
def _cached_body(key: _Key) -> Body:
    return statements(key.kernel, key.write_out)


def check(schedule: Schedule, body: Body, machine: Machine) -> None:
    """Refuse a schedule that does not fit a kernel.

    Raises:
        ScheduleError: naming what does not fit.
    """

    def refuse(what: str) -> None:
        raise ScheduleError(
            f"the schedule does not fit the kernel: {what}",
            fix="schedule_space(kernel) lists schedules that do",
        )

    lanes = machine.vector_bytes // 4
    for kind, loops in (("grid", schedule.grid), ("serial", schedule.serial)):
        for axis, step in loops:
            if axis not in body.extents:
                refuse(f"it has no axis {axis!r} ({kind}); its axes are {sorted(body.extents)}")
            if step < 1:
                refuse(f"a {kind} block of {step} points")
    if len(schedule.tiles) > len(body.stmts):
        refuse(f"{len(schedule.tiles)} register tiles for {len(body.stmts)} statements")
    for rows, cols in schedule.tiles:
        if not 1 <= rows <= 64 or not lanes <= cols <= 16 * lanes or cols % lanes:
            refuse(f"a register tile of {rows}x{cols} with vectors of {lanes}")
    block, steps = schedule.column_block
    if not 1 <= schedule.unroll <= 16 or block < lanes or block % lanes or not 1 <= steps <= 16:
        refuse(f"unroll {schedule.unroll}, column_block {schedule.column_block}")
    if schedule.keep not in ("output", "scratch", "recompute"):
        refuse(f"keep={schedule.keep!r}")
    if not isinstance(schedule.stream, bool):
        refuse(f"stream={schedule.stream!r}")
    if not isinstance(schedule.ahead, bool):
        refuse(f"ahead={schedule.ahead!r}")


class _Key:
    """A kernel as a cache key: kernels hold mappings, so they are compared by identity."""

    def __init__(self, kernel: Kernel, write_out: bool):
        self.kernel, self.write_out = kernel, write_out

    def __hash__(self) -> int:
        return hash((id(self.kernel), self.write_out))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key):
            return False
        return other.kernel is self.kernel and other.write_out == self.write_out


def body_of(kernel: Kernel, write_out: bool = False) -> Body:
    """The statements of a kernel, cached; see `statements`."""
    return _cached_body(_Key(kernel, write_out))


def simd_body(kernel: Kernel, machine: Machine) -> Body:
    """The statements that a `simd` program computes."""
    return split_reductions(body_of(kernel, True), machine)


def default_schedule(
    kernel: Kernel, machine: Machine | None = None, style: Literal["simd", "block"] = "simd"
) -> Schedule:
    """The schedule that needs no search: close to hand-written speed on the usual kernels."""
    machine = machine or Machine()
    body = body_of(kernel) if style == "block" else simd_body(kernel, machine)
    if style == "block":
        from luminal_lab.codegen.blocks import block_schedule
        from luminal_lab.codegen.lower import refuse_sizes

        refuse_sizes(kernel)

        return block_schedule(body, machine)
    return _simd(body, machine)


def _simd(body: Body, machine: Machine) -> Schedule:
    body = body.tuned
    dots = products(body, machine)
    ahead = not dots and worth_asking(body, machine)
    grid = main_grid(body, dots, machine, FEW if ahead else MANY)
    serial = tuple(online_loops(body, dots, machine))
    tiles = tuple((p.rows_tile, p.cols_tile) for p in dots)
    heavy = any(analysis.is_heavy(s) for s in body.stmts)
    far = not dots and worth_streaming(body, machine)  # products are bound by arithmetic
    keep: Keep = "output"
    if far and (shared := analysis.shared_values(body.stmts)):
        # what is kept in an output is read there again, and so that output is not streamed
        block = {**body.extents, **dict(grid)}
        kept = sum(analysis.points(v.free, block) * v.dtype.bytes for v in shared)
        far = kept <= machine.l1
        keep = "scratch" if far else "output"
    unroll = 2 if heavy else 4
    return Schedule("simd", grid, serial, tiles, unroll, keep=keep, stream=far, ahead=ahead)


def online_loops(body: Body, dots: tuple[Product, ...], machine: Machine):
    """A shared loop for the axis of every reduction that carries more than one number."""
    seen: dict[str, int] = {}
    for s in body.stmts:
        if s.kind in ("online", "carry"):
            axis = s.over[0]
            has_dot = any(axis in p.stmt.space for p in dots)
            block = 128 if has_dot else 4096 if s.kind == "online" else 16384
            if s.kind == "carry" and analysis.vector_axis(s, body) in s.axes:
                block = COLUMN_ROWS
            elif s.kind == "carry" and 8 * body.extents[axis] <= machine.l2:
                continue  # what is read twice stays near
            seen.setdefault(axis, min(block, body.extents[axis]))
    return seen.items()


def main_grid(
    body: Body, dots: tuple[Product, ...], machine: Machine, points: int = MANY
) -> tuple[tuple[str, int], ...]:
    """Parallel loops over output axes that no statement reduces.

    Arguments:
        body: The statements.
        dots: The products among them.
        machine: For which machine.
        points: About as many points in the rows of a task, where there are no products.
    """
    stores = body.stores()
    if not stores or body.split:
        return ()
    reduced = frozenset(a for s in body.stmts for a in (*s.over, *s.ordered))
    axes = frozenset.intersection(*(s.axes for s in stores)) - reduced
    main = max(stores, key=lambda s: analysis.points(s.axes, body.extents))
    ordered = [a for a in analysis.by_stride(main) if a in axes]
    if dots:
        return _dot_grid(body, dots, ordered, machine)
    return _row_grid(body, main, ordered, machine, points)


def _row_grid(body: Body, main: Stmt, ordered: list[str], machine: Machine, points: int):
    """Rows of the output; a vector's worth of points stays inside a task."""
    if not ordered:
        return ()
    extents = body.extents
    vector = analysis.vector_axis(main, body)
    column = [s for s in body.stmts if s.kind in ("reduce", "carry") and vector in s.axes]
    across, line = analysis.crossed(main, vector, body) or ("", 1)
    work = max(analysis.points(s.space, extents) for s in body.stmts)
    tasks_wanted = 8 * machine.threads
    grid: list[tuple[str, int]] = []
    tasks = 1
    per_task = work
    for a in ordered:
        n = extents[a]
        if a == vector:
            if tasks >= tasks_wanted and per_task <= 1 << 16:
                break
            lanes = machine.vector_bytes // 4
            step = 2048 if column else 8192
            want = max(1, tasks_wanted // tasks) if tasks < tasks_wanted else 1
            block = max(lanes * 4, min(step, -(-n // want)))
            block = -(-block // (lanes * 4)) * lanes * 4
            if block < n:
                grid.append((a, block))
            break
        if tasks >= tasks_wanted and per_task <= 1 << 14:
            break
        rows = max(1, min(n, points // max(1, per_task // n)))
        if tasks * (n // rows) < tasks_wanted:
            rows = max(1, min(rows, n * tasks // tasks_wanted))
        if a == across:
            rows = min(n, max(rows, line))
        grid.append((a, rows))
        tasks *= -(-n // rows)
        per_task = per_task // n * rows
        if rows > 1:
            break
    return tuple(grid)


def _dot_grid(body: Body, dots: tuple[Product, ...], ordered: list[str], machine: Machine):
    """Batch axes point by point, then blocks of rows, then of columns where rows are few."""
    last = dots[-1]
    extents = body.extents
    row, col = last.row, last.col
    grid: list[tuple[str, int]] = []
    tasks = 1
    rest = [a for a in ordered if a not in (row, col)]
    shared = [a for a in rest if a in last.left.free - last.right.free]
    if shared and row in ordered and col in ordered:
        return _image_grid(body, last, [a for a in rest if a not in shared], shared, machine)
    for a in rest:
        grid.append((a, 1))
        tasks *= extents[a]
    wanted = 8 * machine.threads
    if row in ordered and col in ordered and tasks == 1 and not online_axes(body):
        return tuple(_blocks(body, last, machine))
    if row in ordered:
        n, mr = extents[row], last.rows_tile
        depth = analysis.points(last.stmt.over, extents)
        # Rows reuse the columns' panels; more of them only help while they stay near.
        cap = max(1, 3 * machine.l2 // (4 * max(depth, 1)) // mr) * mr
        block = min(cap, mr * 12, -(-n // mr) * mr)
        if online_axes(body):
            block = min(48, cap) // mr * mr or mr
        if n > mr * 6 and col in ordered:  # few rows are not worth dividing, columns are
            while block > mr * 3 and tasks * -(-n // block) < 6 * machine.threads:
                block -= mr
        if col not in ordered:  # rows are all there is to share out
            while tasks * -(-n // block) < 2 * machine.threads and block > mr:
                block -= mr
        if block < n or tasks == 1:
            grid.append((row, block))
            tasks *= -(-n // block)
    if col in ordered and tasks < 4 * machine.threads:
        n, nv = extents[col], last.cols_tile
        want = -(-wanted // tasks)
        block = max(nv, -(-n // want // nv) * nv)
        if block < n:
            grid.append((col, block))
    return tuple((a, min(b, max(extents[a], 1))) for a, b in grid)


def _blocks(body: Body, p: Product, machine: Machine) -> list[tuple[str, int]]:
    """Blocks of rows and columns: of the ways to make enough tasks, the one that reads least.

    A task reads its rows and its columns' panels; each panel meets all rows of the task, which
    should stay in the second-level cache.
    """
    n, m = body.extents[p.row], body.extents[p.col]
    depth = analysis.points(p.stmt.over, body.extents)
    best: tuple[float, int, int] | None = None
    rows = -(-n // p.rows_tile)  # in tiles
    cols = -(-m // p.cols_tile)
    most = max(1, int(NEAR * machine.l2 / (p.rows_tile * max(depth, 1) * 4)))  # that are near
    fewest = -(-rows // most)
    for r in range(fewest, min(rows, max(fewest, MANY_BLOCKS)) + 1):
        high = -(-rows // r)
        for c in range(1, cols + 1):
            wide = -(-cols // c)
            made = -(-rows // high) * -(-cols // wide)
            if made < TASKS * machine.threads and (high > 1 or wide > 1):
                continue
            rounds = -(-made // machine.threads)  # blocks of the busiest thread
            uneven = 1 + 0.5 * machine.threads / made
            read = uneven * rounds * (high * p.rows_tile + wide * p.cols_tile)
            if best is None or read < best[0]:
                best = (read, high, wide)
            if made >= 4 * TASKS * machine.threads:
                break
    assert best is not None
    _, high, wide = best
    grid = []
    if high < rows or wide >= cols:
        grid.append((p.row, min(high * p.rows_tile, n)))
    if wide < cols:
        grid.append((p.col, wide * p.cols_tile))
    return grid


def _image_grid(
    body: Body, p: Product, batch: list[str], outer: list[str], machine: Machine
) -> tuple[tuple[str, int], ...]:
    """Blocks of rows and of columns of a product with several row axes.

    A task reads its rows and its columns' panels from afar: of the ways to make enough tasks
    whose rows stay in the second-level cache, the one that reads least is chosen.
    """
    extents = body.extents
    tasks = analysis.points(batch, extents)
    seen = windows(p.left, extents)
    merged = {a for w in seen for a in w.axes}
    image = analysis.points({*p.stmt.over, *outer, p.row} - merged, extents)
    for w in seen:
        image *= w.extent
    weights = analysis.points([p.col, *p.stmt.over], extents)
    n, m = extents[p.col], extents[outer[0]]
    best: tuple[float, int, int] | None = None
    for cols in range(1, -(-n // p.cols_tile) + 1):
        for rows in range(1, m + 1):
            made = tasks * -(-m // -(-m // rows)) * cols
            near = image / rows * 4 <= machine.l2 / 2 or rows == m
            if made < 4 * machine.threads and (rows < m or cols * p.cols_tile < n):
                continue
            if not near:
                continue
            uneven = 1 + 0.5 * machine.threads / made
            traffic = (cols * image + rows * weights) * uneven
            if best is None or traffic < best[0]:
                best = (traffic, rows, cols)
            break  # more rows only read more
    _, rows, cols = best or (0.0, m, 1)
    grid = [(a, 1) for a in batch]
    if cols > 1:
        panels = -(-n // (cols * p.cols_tile))
        grid.append((p.col, panels * p.cols_tile))
    if rows > 1:
        grid.append((outer[0], -(-m // rows)))
    return tuple((a, min(b, extents[a])) for a, b in grid)


def online_axes(body: Body) -> frozenset[str]:
    """Axes of online reductions."""
    return frozenset(s.over[0] for s in body.stmts if s.kind == "online")


def schedule_space(kernel: Kernel, machine: Machine | None = None) -> list[Schedule]:
    """At most 50 schedules worth measuring, the default first."""
    machine = machine or Machine()
    first = default_schedule(kernel, machine)
    out: dict[Schedule, None] = {first: None}
    for s in neighbours(kernel, first, machine):
        out.setdefault(s)
    return list(out)[:50]


def neighbours(
    kernel: Kernel, schedule: Schedule, machine: Machine | None = None
) -> list[Schedule]:
    """Schedules that differ from the given one in one choice."""
    machine = machine or Machine()
    body = simd_body(kernel, machine).tuned
    dots = products(body, machine)
    out: list[Schedule] = []
    if dots:
        for k, (mr, nv) in enumerate(schedule.tiles):
            for other in ((12, 32), (6, 64), (8, 48), (14, 16), (24, 16), (4, 64)):
                fits = other[1] <= max(16, body.extents[dots[k].col])
                if other != (mr, nv) and fits:
                    tiles = (*schedule.tiles[:k], other, *schedule.tiles[k + 1 :])
                    out.append(replace(schedule, tiles=tiles))
        for k, (axis, block) in enumerate(schedule.grid):
            if axis == dots[-1].col and block % dots[-1].cols_tile == 0:
                panel = dots[-1].cols_tile
                for other in (block * 2, block // 2 // panel * panel):
                    if panel <= other <= body.extents[axis] and other != block:
                        grid = (*schedule.grid[:k], (axis, other), *schedule.grid[k + 1 :])
                        out.append(replace(schedule, grid=grid))
            if axis == dots[-1].row and block > 1:
                for other in (block * 2, max(1, block // 2)):
                    if other <= body.extents[axis]:
                        grid = (*schedule.grid[:k], (axis, other), *schedule.grid[k + 1 :])
                        out.append(replace(schedule, grid=grid))
    for k, (axis, block) in enumerate(schedule.serial):
        for other in (block * 2, block // 2):
            if 32 <= other <= body.extents[axis]:
                serial = (*schedule.serial[:k], (axis, other), *schedule.serial[k + 1 :])
                out.append(replace(schedule, serial=serial))
    if not dots:
        for unroll in (1, 2, 4, 8):
            if unroll != schedule.unroll:
                out.append(replace(schedule, unroll=unroll))
        if analysis.has_shared_phases(body):
            for keep in ("output", "scratch", "recompute"):
                if keep != schedule.keep:
                    out.append(replace(schedule, keep=keep))
        if analysis.has_columns(body):
            for block in ((512, 4), (2048, 4), (1024, 8), (1024, 1)):
                out.append(replace(schedule, column_block=block))
    if undecided(body, machine):
        out.append(replace(schedule, stream=not schedule.stream))
    if not dots and worth_asking(body, machine):
        out.append(replace(schedule, ahead=not schedule.ahead))
    return list(dict.fromkeys(out))
