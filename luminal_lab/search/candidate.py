"""A candidate: one complete program of the e-graph, as calls of kernels over buffers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import ZipFile

from luminal_lab import files
from luminal_lab.egraph.values import Buffer, Kernel
from luminal_lab.errors import SearchError
from luminal_lab.hlir import storage
from luminal_lab.hlir.sizes import Symbol, hint
from luminal_lab.hlir.symbolic import mentioned as symbols_of

if TYPE_CHECKING:
    from graphviz import Digraph
    from pandas import DataFrame

    from luminal_lab.search.differences import CandidateDiff


@dataclass(frozen=True)
class LibraryKernel:
    """A call of a routine that is not derived: a BLAS product, hand-written code, or ATen.

    Arguments:
        routine: `"gemm"`, `"custom"`, or the name of a file in `kernels/`.
        reads: Names of the buffers that it reads, in the routine's order.
        writes: Names of the buffers that it writes.
        buffers: Every buffer that it touches, by name.
        attrs: What the routine needs to know, as plain data (a gemm's m, n, k, batch and
            strides; a custom's target, template and result: a tuple when it writes several).
        nodes: The HLIR nodes that it covers.
        rules: The rules that made it.
    """

    routine: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[int, ...] = field(default=(), compare=False)
    rules: tuple[str, ...] = field(default=(), compare=False)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that it takes at run time, sorted by name."""
        buffers = [(b.shape, b.strides) for b in self.buffers.values()]
        found = symbols_of((dict(self.attrs), buffers))
        return tuple(sorted(found))

    def source(self, language: str = "c") -> str:
        """There is none: the routine is called, not generated.

        Raises:
            SearchError: always.
        """
        raise SearchError(f"a call of {self.routine!r} has no {language} source")


BufferKind = Literal["arg", "weight", "constant", "output", "temp"]


@dataclass(frozen=True)
class Call:
    """One kernel call of a program.

    Arguments:
        kernel: Which kernel, as an index into `Candidate.kernels`.
        bind: The program's buffer for each of the kernel's own buffer names.
        region: The region instance that it belongs to (`"encoder.layer.3"`), for views.
        at_build: Whether it depends on weights alone and runs once, when the executable is
            built.
    """

    kernel: int
    bind: Mapping[str, str]
    region: str = ""
    at_build: bool = False


@dataclass(frozen=True)
class Candidate:
    """A program: distinct kernels, and the calls of them in order.

    Repeated layers share kernels: one occurs once in `kernels` and once per layer in `calls`.

    Arguments:
        hlir: The program that it computes (`luminal_lab.hlir.Hlir`).
        kernels: Distinct kernels, in order of first call.
        schedules: The schedule of each kernel (a `codegen.Schedule`, as plain data), None for
            the default one and for library kernels.
        calls: In execution order.
        buffers: Every program buffer by name; `kinds` says what each is.
        kinds: See `BufferKind`; an `output` buffer's name is its OutputSpec's name.
        choice: The genome: what was chosen in each e-graph, as plain sorted data. Two
            candidates with the same choice are the same.
        predicted: Predicted seconds per kernel call, in order of `kernels`; empty when unknown.
        target: `"cpu"`, `"cuda"` or `"mps"`.
        written: C that a person wrote for some kernels, in place of what would be generated
            under their schedule; it defines the same entry point.
    """

    hlir: Any
    kernels: tuple[Kernel | LibraryKernel, ...]
    calls: tuple[Call, ...]
    buffers: Mapping[str, Buffer]
    kinds: Mapping[str, BufferKind]
    schedules: tuple[Any, ...] = ()
    choice: tuple = ()
    predicted: tuple[float, ...] = ()
    target: str = "cpu"
    written: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A kernel shows its source under the schedule that the candidate chose for it.
        scheduled = zip(self.kernels, self.schedules, strict=False)
        chosen = [
            replace(k, schedule=s) if isinstance(k, Kernel) and s is not None else k
            for k, s in scheduled
        ]
        kernels = (*chosen, *self.kernels[len(chosen) :])
        object.__setattr__(self, "kernels", kernels)

    @property
    def name(self) -> str:
        """A short digest of what it computes and how: the same in every process."""
        return _text().digest(self)

    @property
    def seconds(self) -> float:
        """Predicted seconds of one run; NaN when unknown. Work at build time is not counted."""
        if not self.predicted:
            return float("nan")
        return sum(self.predicted[c.kernel] for c in self.calls if not c.at_build)

    @property
    def temporaries(self) -> int:
        """Bytes of all temporaries, before the memory plan lets them share space.

        Symbolic sizes count with their hints.
        """
        return sum(hint(b.nbytes) for n, b in self.buffers.items() if self.kinds[n] == "temp")

    def source(self, kernel: int, language: str = "c") -> Any:
        """The source of one kernel, as text that also knows its entry point and parameters.

        Arguments:
            kernel: An index into `kernels`.
            language: `"c"`, `"triton"` or `"metal"`.

        Raises:
            SearchError: for a library kernel, which has no generated source.
        """
        found = self.kernels[kernel]
        if isinstance(found, LibraryKernel):
            return found.source(language)
        schedule = self.schedules[kernel] if kernel < len(self.schedules) else None
        # Code generation depends on search, not the other way: it is reached by name.
        made = import_module("luminal_lab.codegen").source(found, schedule, language)
        mine = self.written.get(kernel) if language == "c" else None
        return made if mine is None else replace(made, text=mine)

    def __repr__(self) -> str:
        return _text().summary(self)

    def widget(self) -> Any:
        """The candidate as an interactive panel for notebooks.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": repr(self)}
        with suppress(ImportError):  # the engine works without views
            bundle["text/html"] = import_module("luminal_lab.views.candidate").to_html(self)
        return bundle

    def text(self) -> str:
        """The whole program as text; `Candidate.parse(text, hlir)` reads it back."""
        return _text().program_text(self)

    @staticmethod
    def parse(text: str, hlir: Any = None) -> Candidate:
        """Read what `text()` wrote.

        Arguments:
            text: The text.
            hlir: The program that it computes; needed to build it, not to look at it.

        Raises:
            SearchError: with the line that cannot be read.
        """
        return _text().parse_program(text, hlir)

    def table(self) -> DataFrame:
        """One row per kernel: calls, what it covers, bytes, predicted seconds, rules."""
        return _text().kernel_table(self)

    def graph(self) -> Digraph:
        """Kernels and the buffers between them, as DOT."""
        return _text().dot(self)

    def diff(self, other: Candidate) -> CandidateDiff:
        """What differs from another candidate, as text with more to ask.

        `.table()` has the kernels that are shared, merged and split, `.values()` what is stored
        in one and computed in place or recomputed in the other, `.graph()` both side by side.
        """
        return import_module("luminal_lab.search.differences").diff(self, other)

    def save(self, path: str | Path) -> None:
        """Write it with its program and weights, in one file.

        Raises:
            SearchError: when the file cannot be written.
        """
        with files.writing(path, "candidate", SearchError) as out:
            self.put(out)

    def put(self, out: files.Writer) -> None:
        """Add it, and its program when it knows it, to a stage file."""
        if self.hlir is not None:
            storage.put(self.hlir, out)
        out.put("candidate.txt", self.text(), compress=True)

    @staticmethod
    def get(archive: ZipFile) -> Candidate:
        """What `put` added; what is wrong with its entries raises as it comes."""
        hlir = storage.get(archive) if "hlir.txt" in archive.namelist() else None
        return Candidate.parse(archive.read("candidate.txt").decode(), hlir)

    @staticmethod
    def load(path: str | Path) -> Candidate:
        """Read what `save` wrote.

        Raises:
            SearchError: when the file is not a candidate.
        """
        with files.reading(path, "candidate", SearchError) as archive:
            return Candidate.get(archive)


def _text() -> Any:
    """The module that writes candidates; it imports this one."""
    return import_module("luminal_lab.search.candidate_text")
