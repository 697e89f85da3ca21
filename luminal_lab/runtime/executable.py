"""An Executable: a candidate that is called like the module that it came from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab import files
from luminal_lab.errors import CallError, LuminalError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.graph import Hlir, OutputSpec
from luminal_lab.hlir.sizes import is_symbolic, largest
from luminal_lab.hlir.symbolic import bind_symbols, specialize, symbols_of
from luminal_lab.runtime.inplace import overlapping
from luminal_lab.runtime.memory import MAPPED, in_huge_pages
from luminal_lab.runtime.program import LAYOUTS, KernelCode, Layout, Program
from luminal_lab.runtime.signature import Signature
from luminal_lab.runtime.weights import same_layout
from luminal_lab.search.candidate import Candidate

if TYPE_CHECKING:
    from torch import Tensor


_OPTIONS = "executable.json"  # entry of a saved executable


@dataclass(frozen=True)
class BuildStats:
    """What building took.

    Arguments:
        source_seconds: Making the kernels' sources.
        compile_seconds: Compiling, linking, loading, and running what depends on weights alone.
        persistent_bytes: Memory for packed and precomputed weights.
        copied_bytes: Memory for weights that were copied for their layout.
        arena_bytes: Memory of one concurrent call.
    """

    source_seconds: float
    compile_seconds: float
    persistent_bytes: int = 0
    copied_bytes: int = 0
    arena_bytes: int = 0


@dataclass(frozen=True)
class _Argument:
    """How one argument is checked and brought into the layout that the kernels read."""

    name: str
    position: int
    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]
    slot: int  # among the external pointers, -1 when no kernel reads it


@dataclass(frozen=True)
class _Bound:
    """A program at given sizes: how a call of these sizes is made."""

    arguments: tuple[_Argument, ...]
    results: tuple[_Result, ...]
    layout: Layout | None
    direct: bool  # whether kernels write all results: nothing is copied or written back
    updated: tuple[str, ...] = ()  # arguments that are written in place


@dataclass(frozen=True)
class _Result:
    """How one output is made."""

    spec: OutputSpec
    dtype: Any
    strides: tuple[int, ...]
    slot: int  # among the external pointers when it is written straight, else -1
    position: int = -1  # of the argument that it is, or that it is written back into
    in_place: bool = False  # whether kernels write it over the input
    mapped: int = 0  # its bytes, when the allocator maps them for each call


class Executable:
    """A compiled program, called with the inputs of the captured module.

    Thread-safe and reentrant. Outputs are fresh tensors with the dtype, shape and strides that
    eager PyTorch gives, without a gradient. Tensors that the module mutates are written back. A
    weight that changed since the last call is noticed.

    Arguments:
        candidate: What it computes.
        program: The compiled kernels, None when the reference interpreter runs it.
        stats: What building took.
        freeze: Whether weight-only work was done at build time.
    """

    def __init__(
        self, candidate: Candidate, program: Program | None, stats: BuildStats, freeze: bool
    ):
        import torch

        self.candidate, self.program, self.stats, self.freeze = (
            candidate,
            program,
            stats,
            freeze,
        )
        hlir: Hlir = candidate.hlir
        self.hlir = hlir
        self.signature = Signature(hlir)
        self._external = program.external if program is not None else {}
        self._symbolic = [
            (a.position if a.position is not None else k, dim)
            for k, a in enumerate(s for s in hlir.inputs if s.kind == "arg")
            for dim, n in enumerate(hlir.nodes[a.node].shape)
            if is_symbolic(n)
        ]
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._fixed: _Bound | None = None
        if not hlir.symbols:
            self._fixed = self._bind(hlir, program.tuned if program is not None else None)
        self._threads: Callable[[], int] = torch.get_num_threads
        self._fresh = torch.empty_strided

    def _bind(self, hlir: Hlir, layout: Layout | None) -> _Bound:
        """How a call is made, for a program without symbols."""
        external = self._external
        buffers = layout.candidate.buffers if layout is not None else {}
        arguments = tuple(
            _Argument(
                spec.name,
                spec.position if spec.position is not None else k,
                tuple(hlir.nodes[spec.node].shape),
                torch_dtype(hlir.nodes[spec.node].dtype),
                buffers[spec.name].element_strides
                if spec.name in buffers
                else row_major(hlir.nodes[spec.node].shape),
                external.get(spec.name, -1),
            )
            for k, spec in enumerate(s for s in hlir.inputs if s.kind == "arg")
        )
        position = {a.name: a.position for a in arguments}
        results = tuple(
            _Result(
                spec,
                torch_dtype(hlir.nodes[spec.value.node].dtype),
                result_strides(spec),
                -1 if spec.mutates is not None else external.get(spec.name, -1),
                position.get(spec.mutates or spec.aliases or "", -1),
                self.program is not None and spec.name in self.program.in_place,
                _mapped(spec, hlir.nodes[spec.value.node].dtype.bytes),
            )
            for spec in hlir.outputs
        )
        return _Bound(
            arguments,
            results,
            layout,
            all(r.slot >= 0 for r in results),
            tuple(r.spec.mutates for r in results if r.in_place and r.spec.mutates),
        )

    def _bind_sizes(self, leaves: Sequence[Any]) -> _Bound:
        """How a call with these inputs is made; the last combinations of sizes are kept.

        Raises:
            CallError: when the sizes are not those that the program was captured for.
        """
        try:
            key = tuple(leaves[k].shape[dim] for k, dim in self._symbolic)
        except (AttributeError, IndexError):
            key = ()
        found = self._bound.get(key) if key else None
        if found is None:
            shapes = {s.name: tuple(self.hlir.nodes[s.node].shape) for s in self.hlir.inputs}
            args = [s for s in self.hlir.inputs if s.kind == "arg"]
            for k, spec in enumerate(args):
                given = leaves[spec.position if spec.position is not None else k]
                if not hasattr(given, "shape"):
                    raise CallError(
                        f"got {type(given).__name__} where a tensor is expected",
                        where=f"argument {spec.name!r} of {self.hlir.name}",
                    )
                shapes[spec.name] = tuple(given.shape)
            symbols = bind_symbols(self.hlir, shapes)
            layout = self.program.layout(symbols) if self.program is not None else None
            found = self._bind(specialize(self.hlir, symbols), layout)
            if len(self._bound) >= LAYOUTS:
                self._bound.pop(next(iter(self._bound)), None)
            self._bound[key] = found
        return found

    # ------------------------------------------------------------------ calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Arguments:
            *args: As for the captured module: CPU tensors of the captured shapes and dtypes.
                Tensors that are not contiguous are copied.
            **kwargs: Likewise.

        Returns:
            What the module returns, in its structure.

        Raises:
            CallError: for an input of another shape, dtype, device or number.
        """
        leaves = self.signature.flatten(args, kwargs)
        program = self.program
        if program is None:
            return self._interpret(leaves)
        return self._execute(program, leaves, program.run)

    def _execute(
        self, program: Program, leaves: Sequence[Any], run: Callable[..., None]
    ) -> Any:
        """Bind, run by `run(frame, threads, tensors)`, and hand out; the path of every call."""
        if program.weights.changed:
            program.refresh()
        bound = self._fixed or self._bind_sizes(leaves)
        results = bound.results
        assert bound.layout is not None
        frame = program.take(bound.layout)
        try:
            external = frame.external
            local: dict[str, Tensor] = {}
            for a in bound.arguments:
                t = leaves[a.position]
                try:
                    plain = (
                        t.dtype is a.dtype
                        and t.shape == a.shape
                        and t.is_cpu
                        and t.stride() == a.strides
                        and not t.is_neg()
                    )
                except AttributeError:
                    plain = False
                if not plain:
                    t = self._coerce(a, t)
                local[a.name] = t
                if a.slot >= 0:
                    external[a.slot] = t.data_ptr()
            if bound.updated:
                self._apart(bound, local, external)
            for r in results:
                if r.slot >= 0:
                    out = self._fresh(r.spec.shape, r.strides, dtype=r.dtype)
                    local[r.spec.name] = out
                    external[r.slot] = address = out.data_ptr()
                    if r.mapped:
                        in_huge_pages(address, r.mapped)
            run(frame, self._threads(), local)
            if bound.direct:
                return self.signature.unflatten([local[r.spec.name] for r in results])
            values = []
            for r in results:
                if r.slot >= 0:
                    values.append(local[r.spec.name])
                elif r.spec.aliases is not None:
                    values.append(None)
                else:
                    values.append(frame.tensor(r.spec.name, local))
            return self._finish(results, values, leaves)
        finally:
            program.give(frame)

    @staticmethod
    def _apart(bound: _Bound, local: dict[str, Tensor], external: Any) -> None:
        """Copy arguments that are written in place and share their memory with others."""
        names = [a.name for a in bound.arguments]
        for a, shared in zip(bound.arguments, overlapping([local[n] for n in names])):
            if shared and a.name in bound.updated:
                local[a.name] = local[a.name].detach().clone()
                external[a.slot] = local[a.name].data_ptr()

    def _finish(
        self, results: Sequence[_Result], values: Sequence[Any], leaves: Sequence[Any]
    ) -> Any:
        """Write mutated inputs back, then hand out the user's outputs.

        Arguments:
            results: How each output is made.
            values: For each output a tensor; one that is not fresh is copied.
            leaves: The inputs as the user gave them.
        """
        import torch

        outputs: list[Any] = []
        with torch.no_grad():
            for r, value in zip(results, values):
                if r.spec.mutates is not None:
                    target = leaves[r.position] if r.position >= 0 else None
                    if target is None:
                        target = self.hlir.weights[r.spec.mutates]
                    if not r.in_place or value.data_ptr() != target.data_ptr():
                        target.detach().copy_(value)
                    else:
                        torch.autograd.graph.increment_version(target)
                elif r.spec.aliases is not None:
                    given = leaves[r.position] if r.position >= 0 else None
                    outputs.append(
                        self.hlir.weights[r.spec.aliases] if given is None else given
                    )
                elif r.slot >= 0:
                    outputs.append(value)
                else:
                    outputs.append(fresh_copy(value, r.strides))
        return self.signature.unflatten(outputs)

    def _coerce(self, a: _Argument, given: Any) -> Tensor:
        """The argument in the layout that the kernels read, or a CallError that says why."""
        import torch

        if isinstance(given, bool | int | float) and a.shape == ():
            given = torch.tensor(given, dtype=a.dtype)
        where = f"argument {a.name!r} of {self.hlir.name}"
        if not isinstance(given, torch.Tensor):
            raise CallError(
                f"got {type(given).__name__} where a tensor {describe(a.dtype, a.shape)} is "
                "expected",
                where=where,
            )
        if given.device.type != "cpu":
            raise CallError(
                f"got a tensor on {given.device}; this executable was compiled for the CPU",
                where=where,
                fix="pass tensor.cpu()",
            )
        if given.layout != torch.strided:
            raise CallError(
                f"got a tensor of layout {given.layout}; expected a dense one",
                where=where,
                fix="pass tensor.to_dense()",
            )
        if given.dtype != a.dtype:
            raise CallError(
                f"got dtype {given.dtype}; expected {a.dtype}",
                where=where,
                fix=f"pass tensor.to({a.dtype}), or compile for {given.dtype}",
            )
        if tuple(given.shape) != a.shape:
            raise CallError(
                f"got shape {tuple(given.shape)}; expected {a.shape}",
                where=where,
                fix="compile for this shape: shapes are fixed when a program is captured",
            )
        given = given.detach()
        if given.is_neg():
            given = given.resolve_neg()
        if same_layout(given.stride(), a.strides, a.shape):
            return given
        with torch.no_grad():
            return torch.empty_strided(a.shape, a.strides, dtype=a.dtype).copy_(given)

    def _interpret(self, leaves: Sequence[Any]) -> Any:
        """The same, by the reference interpreter in the program's own dtypes."""
        from luminal_lab.hlir.interpreter import run

        inputs = list(leaves)
        bound = self._fixed or self._bind_sizes(leaves)
        for a in bound.arguments:
            inputs[a.position] = self._coerce(a, leaves[a.position])
        values = run(self.hlir, inputs, compute="native")
        return self._finish(bound.results, values, leaves)

    # ------------------------------------------------------------------ looking at it

    @property
    def plan(self):
        """The memory plan.

        Raises:
            LuminalError: when there is none: the reference interpreter runs the program.
        """
        if self.program is None:
            raise LuminalError(
                "the reference interpreter has no memory plan", fix="install gcc"
            )
        return self.program.plan

    def source(self) -> str:
        """The C of all kernels, one after the other: a translation unit."""
        code = self.program.code if self.program is not None else ()
        kernels = [c for c in code if isinstance(c, KernelCode)]
        preludes = dict.fromkeys(c.prelude for c in kernels if c.prelude)
        return "\n\n".join((*preludes, *(c.text for c in kernels)))

    def rows(self) -> list[dict[str, Any]]:
        """Plain data: one dict per call, in order."""
        candidate = self.candidate
        out = []
        for k, call in enumerate(candidate.calls):
            code = self.program.code[call.kernel] if self.program is not None else None
            name = code.entry if isinstance(code, KernelCode) else getattr(code, "name", "")
            kernel = candidate.kernels[call.kernel]
            out.append(
                {
                    "call": k,
                    "kernel": call.kernel,
                    "name": name,
                    "region": call.region,
                    "at_build": call.at_build and self.freeze,
                    "library": not hasattr(kernel, "outputs"),
                    "binds": dict(call.bind),
                }
            )
        return out

    def table(self):
        """The calls in order, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def text(self) -> str:
        """The calls, one line each."""
        lines = [repr(self)]
        for row in self.rows():
            binds = ", ".join(f"{k}={v}" for k, v in row["binds"].items())
            when = "build " if row["at_build"] else ""
            lines.append(f"{row['call']:>4} {when}{row['name'] or row['kernel']}({binds})")
        return "\n".join(lines)

    def graph(self):
        """A graphviz Digraph of calls and the buffers between them."""
        import graphviz

        from luminal_lab.runtime.plan import reads_of, writes_of

        dot = graphviz.Digraph("executable", node_attr={"shape": "box"})
        made: dict[str, str] = {}
        for k, (call, row) in enumerate(zip(self.candidate.calls[:300], self.rows())):
            kernel = self.candidate.kernels[call.kernel]
            dot.node(f"c{k}", f"{k}: {row['name'] or row['kernel']}\n{call.region}")
            for name in reads_of(kernel):
                bound = call.bind[name]
                if bound not in made:
                    made[bound] = f"b{len(made)}"
                    dot.node(made[bound], bound, shape="ellipse")
                dot.edge(made[bound], f"c{k}", label=bound)
            for name in writes_of(kernel):
                made[call.bind[name]] = f"c{k}"
        return dot

    def diff(self, other: Executable) -> str:
        """How the calls of another executable differ, line by line."""
        import difflib

        lines = difflib.unified_diff(
            self.text().splitlines(), other.text().splitlines(), "this", "other", lineterm=""
        )
        return "\n".join(lines)

    def example_inputs(self, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random inputs that it can be called with, to time it or to try it.

        Arguments:
            seed: The same seed gives the same tensors.

        Returns:
            Positional and keyword inputs: small finite floats, indices in bounds; an input that
            is not a tensor is None. Symbolic sizes are at their hints.
        """
        from luminal_lab.search.inputs import search_inputs

        symbols = {name: s.hint for name, s in symbols_of(self.hlir).items()}
        hlir = specialize(self.hlir, symbols)
        made = search_inputs(hlir, hlir.weights, seed)
        leaves: list[Any] = [None] * self.signature.count
        for k, spec in enumerate(s for s in hlir.inputs if s.kind == "arg"):
            leaves[spec.position if spec.position is not None else k] = made[spec.name]
        return self.signature.structure(leaves)

    def save(self, path: str | Path) -> None:
        """Write the program with its weights and the candidate, in one file.

        `load` builds the executable again; its kernels come from the cache, if they are there.

        Raises:
            LuminalError: when the file cannot be written.
        """
        with files.writing(path, "executable", LuminalError) as out:
            self.candidate.put(out)
            out.put(_OPTIONS, json.dumps({"freeze": self.freeze}))

    @staticmethod
    def load(path: str | Path, **options: Any) -> Executable:
        """Read what `save` wrote, and build it.

        Arguments:
            path: The file.
            **options: As for `build`.

        Raises:
            LuminalError: when the file is missing, damaged, or holds no candidate.
        """
        with files.reading(path, "executable", LuminalError) as archive:
            candidate = Candidate.get(archive)
            saved = json.loads(archive.read(_OPTIONS))
        from luminal_lab.runtime.building import build

        return build(candidate, **{**saved, **options})

    def __deepcopy__(self, memo: dict[int, Any]) -> Executable:
        """Itself: it is immutable, and weights are shared with PyTorch by design."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory() as folder:
            self.save(path := Path(folder) / "executable")
            return _from_bytes, (path.read_bytes(),)

    def __repr__(self) -> str:
        c = self.candidate
        if self.program is None:
            return f"Executable({self.hlir.name}: reference interpreter, no C compiler)"
        own = sum(isinstance(code, KernelCode) for code in self.program.code)
        return (
            f"Executable({self.hlir.name}: {len(self.program.at_call)} calls of "
            f"{len(c.kernels)} kernels ({own} compiled), {len(self.program.at_build)} done at "
            f"build time; arena {self.stats.arena_bytes:,} B, "
            f"weights packed {self.stats.persistent_bytes:,} B; "
            f"built in {self.stats.source_seconds + self.stats.compile_seconds:.2f} s)"
        )

    def widget(self) -> Any:
        """The executable as an interactive panel for notebooks: profile it, compare it.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        try:
            views = import_module("luminal_lab.views.executable")
        except ModuleNotFoundError:
            return bundle
        return {**bundle, "text/html": views.to_html(self)}


def _from_bytes(data: bytes) -> Executable:
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "executable").write_bytes(data)
        return Executable.load(path)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, as torch gives them (a dim of 0 counts as 1)."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= largest(n, 1)
    return tuple(reversed(out))


def _mapped(spec: OutputSpec, each: int) -> int:
    """Bytes of an output for which the allocator maps memory; 0 when it has them."""
    if 0 in spec.shape or any(is_symbolic(n) for n in spec.shape):
        return 0
    last = sum((n - 1) * s for n, s in zip(spec.shape, result_strides(spec), strict=True))
    nbytes = (last + 1) * each
    return nbytes if nbytes >= MAPPED else 0


def result_strides(spec: OutputSpec) -> tuple[int, ...]:
    """The strides that eager gives an output."""
    return tuple(spec.stride) if spec.stride is not None else row_major(spec.shape)


def fresh_copy(value: Tensor, strides: Sequence[int]) -> Tensor:
    """A new tensor with given strides; dims of stride 0 hold one element each."""
    import torch

    shape = tuple(value.shape)
    if 0 in shape:
        return torch.empty_strided(shape, tuple(strides), dtype=value.dtype)
    small = value
    for dim, (n, step) in enumerate(zip(shape, strides)):
        if step == 0 and n > 1:
            small = small.narrow(dim, 0, 1)
    out = torch.empty_strided(tuple(small.shape), tuple(strides), dtype=value.dtype)
    return out.copy_(small).as_strided(shape, tuple(strides))


def describe(dtype: Any, shape: Sequence[int]) -> str:
    """`float32[2, 3]`."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
