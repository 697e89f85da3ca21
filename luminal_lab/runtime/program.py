"""A program in memory: compiled kernels, pointer tables, and the frames that calls run in.

All kernel calls read their pointers from rows of one table. A *frame* is what one concurrent
call owns: an arena and a table into it; only the pointers of arguments, fresh outputs and
weights are patched. What depends on weights alone was computed at build time, and is
computed again when a weight has changed.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import LuminalError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.sizes import value
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.inplace import in_place
from luminal_lab.runtime.memory import Block
from luminal_lab.runtime.native import CallRow, FrameHeader, Native, PatchRow, native
from luminal_lab.runtime.plan import Extra, MemoryPlan, make_plan, reads_of, writes_of
from luminal_lab.runtime.weights import Weights
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.execute import sized_candidate

if TYPE_CHECKING:
    from torch import Tensor


LAYOUTS = 64  # combinations of sizes whose memory plans are kept


@dataclass(frozen=True)
class KernelCode:
    """A kernel as C.

    Arguments:
        entry: The function `void entry(char *const *b, long threads)`; with packs there is
            `entry_pack` too.
        text: What defines it: with the prelude, a translation unit.
        params: The kernel's buffer names in the order of `b`; then one pointer per pack, then
            the workspace if there is one.
        packs: Bytes of each pack buffer.
        workspace: Bytes of scratch, a Dim.
        overwrites: Whether an operand may share memory with the output (no `restrict`).
        prelude: What comes before the text, the same for all kernels of a machine.
        sizes: Names of the sizes that it takes at run time: one pointer to their values, as
            `long`s, comes after those of the packs.
    """

    entry: str
    text: str
    params: tuple[str, ...]
    packs: tuple[int, ...] = ()
    workspace: Any = 0
    overwrites: bool = False
    prelude: str = ""
    sizes: tuple[str, ...] = ()

    @property
    def unit(self) -> cc.Unit:
        """The translation unit."""
        return cc.Unit(
            self.entry, f"{self.prelude}\n{self.text}" if self.prelude else self.text
        )


@dataclass(frozen=True)
class Routine:
    """A kernel as a Python function on tensors: operands read, buffers to fill."""

    name: str
    run: Callable[[Sequence[Tensor], Sequence[Tensor]], None]
    sized: bool = False  # whether it is made for the sizes of a call


Code = KernelCode | Routine


@dataclass(frozen=True)
class Step:
    """A run of C calls `first..last-1`, or one Python routine for the call at `position`."""

    first: int
    last: int
    routine: Routine | None = None
    position: int = -1


@dataclass(frozen=True)
class _Action:
    """Work at build time: a call or the packing for it, and the weights that it depends on."""

    position: int
    function: int  # address, 0 for a routine
    weights: frozenset[str]


class Layout:
    """A program at given sizes: what depends on them.

    Arguments:
        program: The program.
        symbols: The value of each size symbol; empty when all sizes are fixed.
    """

    def __init__(self, program: Program, symbols: Mapping[str, int]):
        self.symbols = dict(symbols)
        self.candidate = program.candidate
        if symbols:
            self.candidate = sized_candidate(program.candidate, symbols)
        self.plan = program._make_plan(self)
        self.frames: list[Frame] = []
        self.routines: dict[int, Routine] = {}
        calls = program.candidate.calls
        code = {p: program.code[calls[p].kernel] for p in range(len(calls))}
        values: list[int] = []
        self.sizes_at: dict[int, int] = {}  # a call's position -> its first size
        for position, one in code.items():
            if isinstance(one, KernelCode) and one.sizes:
                self.sizes_at[position] = len(values)
                values += [self.symbols[name] for name in one.sizes]
        self.sizes = (ctypes.c_long * max(len(values), 1))(*values)

    def size_address(self, position: int) -> int:
        """Where the sizes of a call lie."""
        step = ctypes.sizeof(ctypes.c_long)
        return ctypes.addressof(self.sizes) + step * self.sizes_at[position]

    def routine(self, kernel: int, code: Routine) -> Routine:
        """A library routine for these sizes."""
        if not self.symbols or not code.sized:
            return code
        if kernel not in self.routines:
            from luminal_lab.runtime.library import library_code

            made = library_code(self.candidate.kernels[kernel])  # type: ignore[arg-type]
            assert isinstance(made, Routine)
            self.routines[kernel] = made
        return self.routines[kernel]


class Program:
    """A candidate, compiled and laid out.

    Arguments:
        candidate: What to run.
        code: One per kernel of the candidate.
        weights: Tensors by name: the candidate's weight and constant buffers.
        direct: Output buffers that are written straight into fresh tensors.
        freeze: Whether to compute what depends on weights alone now.
        progress: Called per compiled unit.
    """

    def __init__(
        self,
        candidate: Candidate,
        code: Sequence[Code],
        weights: Mapping[str, Tensor],
        direct: Sequence[str],
        *,
        freeze: bool,
        progress: cc.Progress | None = None,
    ):
        self.candidate, self.code, self.freeze = candidate, tuple(code), freeze
        self.native: Native = native()
        kernels = [c for c in code if isinstance(c, KernelCode)]
        self.library: ctypes.CDLL | None = None
        self.library_path = None
        if kernels:
            units = [k.unit for k in kernels]
            self.library_path = cc.shared_library(units, progress=progress)
            self.library = cc.load(self.library_path)
        self._addresses: dict[str, int] = {}
        calls = range(len(candidate.calls))
        self.at_build = [p for p in calls if freeze and candidate.calls[p].at_build]
        self.at_call = [p for p in calls if not (freeze and candidate.calls[p].at_build)]
        # New values of inputs that are written over the old ones: buffer -> input.
        self.in_place = in_place(candidate, self.at_call)
        self.weights = Weights(candidate, weights, frozenset(self.in_place.values()))
        args = [n for n, kind in candidate.kinds.items() if kind == "arg"]
        self.args, self.direct = tuple(args), tuple(direct)
        self.external = {n: k for k, n in enumerate((*args, *direct, *self.weights.names))}
        for name, source in self.in_place.items():
            self.external[name] = self.external[source]
        self.symbols = dict(candidate.hlir.symbols) and symbols_of(candidate.hlir)
        self._extras = self._name_extras()
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self.tuned = Layout(self, {name: s.hint for name, s in self.symbols.items()})
        self._layouts[tuple(self.tuned.symbols.values())] = self.tuned
        self._lay_out()
        self._lock = threading.Lock()
        self.persistent = Block(self.plan.persistent_bytes)
        self.generation = 0
        self._build_frame = Frame(self, self.tuned)
        self._run_actions(self.actions)
        self.tuned.frames.append(self._build_frame)

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan, at the hints of symbolic sizes."""
        return self.tuned.plan

    def layout(self, symbols: Mapping[str, int]) -> Layout:
        """The program at given sizes; the last few are kept."""
        key = tuple(symbols[name] for name in self.symbols)
        found = self._layouts.get(key)
        if found is None:
            found = Layout(self, {name: symbols[name] for name in self.symbols})
            with self._lock:
                while len(self._layouts) >= LAYOUTS:
                    oldest = next(k for k, x in self._layouts.items() if x is not self.tuned)
                    del self._layouts[oldest]
                found = self._layouts.setdefault(key, found)
        return found

    # ------------------------------------------------------------------ layout

    def _name_extras(self) -> dict[int, list[str]]:
        """What each call's row of the table holds after its buffers, by position."""
        out: dict[int, list[str]] = {}
        for position, call in enumerate(self.candidate.calls):
            code = self.code[call.kernel]
            if isinstance(code, KernelCode):
                names = [f"{code.entry}.pack{k}@{position}" for k in range(len(code.packs))]
                names += [f"sizes@{position}"] if code.sizes else []
                names += [f"workspace@{position}"] if code.workspace != 0 else []
                out[position] = names
        return out

    def _make_plan(self, layout: Layout) -> MemoryPlan:
        extras: list[Extra] = []
        when = {p: k for k, p in enumerate(self.at_call)}
        for position, call in enumerate(self.candidate.calls):
            code = self.code[call.kernel]
            if not isinstance(code, KernelCode):
                continue
            names = self._extras[position]
            now = when.get(position, -1)
            for name, nbytes in zip(names, code.packs):
                span = (-1, len(when)) if self.freeze else (now, now)
                extras.append(Extra(name, "pack", nbytes, self.freeze, *span))
            if code.workspace != 0:
                # A frozen call's packing runs while the executable is built, in a frame that
                # serves no call yet: its scratch may lie wherever the call's own lies.
                nbytes = value(code.workspace, layout.symbols)
                extras.append(Extra(names[-1], "workspace", nbytes, False, now, now))
        persistent: dict[str, None] = {}
        for position in self.at_build:
            call = self.candidate.calls[position]
            for name in writes_of(self.candidate.kernels[call.kernel]):
                persistent.setdefault(call.bind[name])
        return make_plan(
            layout.candidate,
            at_call=self.at_call,
            persistent=tuple(persistent),
            external=tuple(self.external),
            extras=extras,
            overwrites=lambda k: bool(getattr(self.code[k], "overwrites", False)),
        )

    def _lay_out(self) -> None:
        """Rows of the pointer table, the calls in order, and the work at build time."""
        self.slots: list[str] = []  # which buffer or extra each slot of the table points to
        rows: dict[int, int] = {}
        for position, call in enumerate(self.candidate.calls):
            code = self.code[call.kernel]
            if isinstance(code, KernelCode):
                rows[position] = len(self.slots)
                self.slots += [call.bind[p] for p in code.params] + self._extras[position]
        self.rows = rows
        calls: list[tuple[int, int]] = []
        self.call_positions: list[int] = []  # the position behind each entry of `calls`
        steps: list[Step] = []
        start = 0
        for position in self.at_call:
            code = self.code[self.candidate.calls[position].kernel]
            if isinstance(code, KernelCode):
                if code.packs and not self.freeze:
                    calls.append((self._address(f"{code.entry}_pack"), rows[position]))
                    self.call_positions.append(position)
                calls.append((self._address(code.entry), rows[position]))
                self.call_positions.append(position)
                continue
            if len(calls) > start:
                steps.append(Step(start, len(calls)))
                start = len(calls)
            steps.append(Step(0, 0, code, position))
        if len(calls) > start:
            steps.append(Step(start, len(calls)))
        self.steps = tuple(steps)
        self.ncalls = len(calls)
        self.call_rows = (CallRow * max(len(calls), 1))(*calls)
        patches = [
            (k, self.external[n]) for k, n in enumerate(self.slots) if n in self.external
        ]
        self.patch_rows = (PatchRow * max(len(patches), 1))(*patches)
        self.npatches = len(patches)
        self.actions = self._actions() if self.freeze else ()

    def _actions(self) -> tuple[_Action, ...]:
        depends: dict[str, frozenset[str]] = {
            n: frozenset([n] if n in self.weights.names else []) for n in self.candidate.buffers
        }
        actions: list[_Action] = []
        later: list[_Action] = []
        at_build = frozenset(self.at_build)
        for position, call in enumerate(self.candidate.calls):
            kernel, code = self.candidate.kernels[call.kernel], self.code[call.kernel]
            reads = [call.bind[n] for n in reads_of(kernel)]
            needs = frozenset().union(*(depends[n] for n in reads)) if reads else frozenset()
            target = actions if position in at_build else later
            if isinstance(code, KernelCode) and code.packs:
                target.append(_Action(position, self._address(f"{code.entry}_pack"), needs))
            if position in at_build:
                known = isinstance(code, KernelCode)
                address = self._address(code.entry) if known else 0
                actions.append(_Action(position, address, needs))
                for name in writes_of(kernel):
                    depends[call.bind[name]] = needs
        return (*actions, *later)

    def _address(self, entry: str) -> int:
        if entry not in self._addresses:
            assert self.library is not None
            try:
                self._addresses[entry] = self.native.address(self.library, entry)
            except AttributeError:
                raise LuminalError(
                    f"the compiled kernels have no function {entry}",
                    where=str(self.library_path),
                    fix="a source defines its entry, and entry_pack if it packs weights",
                ) from None
        return self._addresses[entry]

    # ------------------------------------------------------------------ weights and frames

    def _run_actions(self, actions: Sequence[_Action]) -> None:
        import torch

        frame = self._build_frame
        frame.load_weights()
        self.native.bind(frame.address)
        threads = torch.get_num_threads()
        for action in actions:
            if action.function:
                run = _KERNEL(action.function)
                run(frame.table_address + 8 * self.rows[action.position], threads)
            else:
                self.run_routine(action.position, frame, {})

    def refresh(self) -> None:
        """Follow weights that changed since the last call, and what depends on them."""
        with self._lock:
            changed = self.weights.update()
            if changed:
                self._build_frame = Frame(self, self.tuned)
                self._run_actions([a for a in self.actions if a.weights & changed])
                self.generation += 1

    def take(self, layout: Layout) -> Frame:
        """A frame for one call; give it back when the call is over."""
        try:
            frame = layout.frames.pop()
        except IndexError:
            frame = Frame(self, layout)
        if frame.generation != self.generation:
            frame.generation = self.generation
            frame.load_weights()
        return frame

    def give(self, frame: Frame) -> None:
        """Return a frame for the next call."""
        frame.layout.frames.append(frame)

    def run_routine(self, position: int, frame: Frame, local: Mapping[str, Tensor]) -> None:
        """Run a Python step on the tensors of a call."""
        call = self.candidate.calls[position]
        kernel, code = self.candidate.kernels[call.kernel], self.code[call.kernel]
        assert isinstance(code, Routine)
        reads = [frame.tensor(call.bind[n], local) for n in reads_of(kernel)]
        writes = [frame.tensor(call.bind[n], local) for n in writes_of(kernel)]
        frame.layout.routine(call.kernel, code).run(reads, writes)

    def run(self, frame: Frame, threads: int, local: Mapping[str, Tensor]) -> None:
        """Run all steps; the frame's external pointers have been set."""
        if len(self.steps) == 1 and self.steps[0].routine is None:
            self.native.call_all(frame.address, self.ncalls, threads)
            return
        self.native.bind(frame.address)
        for step in self.steps:
            if step.routine is None:
                self.native.run(frame.address, step.first, step.last, threads)
            else:
                self.run_routine(step.position, frame, local)

    @property
    def events(self) -> tuple[int, ...]:
        """The candidate's call behind each timed event: C calls in order, then routines."""
        routines = (s.position for s in self.steps if s.routine is not None)
        return (*self.call_positions, *routines)

    def run_timed(
        self, frame: Frame, threads: int, local: Mapping[str, Tensor], start: Any, stop: Any
    ) -> None:
        """As `run`; `start` and `stop` receive the times of `events` in nanoseconds.

        Arguments:
            frame: As for `run`.
            threads: As for `run`.
            local: As for `run`.
            start: An array of `c_longlong`, one item per event.
            stop: Likewise.
        """
        self.native.bind(frame.address)
        routine = self.ncalls
        for step in self.steps:
            if step.routine is None:
                span = frame.address, step.first, step.last, threads
                self.native.run_timed(*span, start, stop)
            else:
                start[routine] = time.monotonic_ns()
                self.run_routine(step.position, frame, local)
                stop[routine] = time.monotonic_ns()
                routine += 1


_KERNEL = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_long)


class Frame:
    """What one concurrent call owns: an arena, a pointer table, and the outside pointers."""

    def __init__(self, program: Program, layout: Layout):
        self.program, self.layout = program, layout
        self.arena = Block(layout.plan.arena_bytes)
        self.generation = program.generation
        self.external = (c_void_p * max(len(program.external), 1))()
        self.table = (c_void_p * max(len(program.slots), 1))()
        base = {"arena": self.arena.address, "persistent": program.persistent.address}
        at = {
            p.name: base[p.place] + p.offset
            for p in layout.plan.placements
            if p.place != "external"
        }
        for position in layout.sizes_at:
            at[f"sizes@{position}"] = layout.size_address(position)
        for k, name in enumerate(program.slots):
            self.table[k] = at.get(name)
        self.table_address = ctypes.addressof(self.table)
        self._header = FrameHeader(
            program.call_rows, program.patch_rows, program.npatches, self.external, self.table
        )
        self.address = ctypes.addressof(self._header)
        self._tensors: dict[str, Tensor] = {}
        self.load_weights()

    def load_weights(self) -> None:
        """Point to the weights where they are now."""
        external = self.program.external
        for name, tensor in self.program.weights.current.items():
            self.external[external[name]] = tensor.data_ptr()

    def tensor(self, name: str, local: Mapping[str, Tensor]) -> Tensor:
        """A buffer as a tensor: one of the call's own, a weight, or a view of the arena."""
        if name in local:
            return local[name]
        source = self.program.in_place.get(name, name)
        if source in local:
            return local[source]
        if (weight := self.program.weights.current.get(source)) is not None:
            return weight
        if name not in self._tensors:
            placement = self.layout.plan[name]
            block = self.arena if placement.place == "arena" else self.program.persistent
            buffer = self.layout.candidate.buffers[name]
            self._tensors[name] = block.tensor(
                placement.offset,
                buffer.shape,
                buffer.element_strides,
                torch_dtype(buffer.dtype),
            )
        return self._tensors[name]
