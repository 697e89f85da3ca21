"""The `torch.compile` backend: AOTAutograd's graphs, both ways, through the pipeline.

`torch.compile(module, backend="luminal_lab", options={...})` finds `backend` by the entry point
`torch_dynamo_backends`. Dynamo owns graph breaks, guards and recompiles; AOTAutograd makes the
graphs functional; the lowerings are those of `capture`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import _disable_current_modes

from luminal_lab.capture.export import WHOLE, adjusted, stride_of
from luminal_lab.capture.lower import Complex, Lowerer, placeholders
from luminal_lab.capture.table import dim, dims
from luminal_lab.errors import CallError, CaptureError, LuminalError
from luminal_lab.hlir.dtypes import dtype as dtype_of
from luminal_lab.hlir.graph import Hlir, Source
from luminal_lab.hlir.sizes import Size, symbols_in, value
from luminal_lab.hlir.tensor import Graph, Tensor

SHAPES = 64  # a graph with symbolic sizes is compiled for so many combinations of sizes
FROZEN = 8  # a graph with frozen weights is compiled for so many sets of weights


@dataclass(frozen=True)
class Options:
    """What `torch.compile(..., options={...})` may say.

    Arguments:
        target: `"cpu"`, `"cuda"` or `"mps"`.
        effort: `"none"`, `"quick"` or `"full"`; the pipeline's default when None.
        seconds: Bound on the search.
        seed: The same seed gives the same program.
        rules: More rules, see `luminal_lab.saturate`.
        verify: Verify the kernels that are chosen with `effort="none"` too; a wrong one gives
            way to the next, and when none is left the error names the rule.
        freeze: In inference, take parameters and buffers for constants and lay them out at
            compile time. A change of their values, in place or by a new tensor, is noticed.
    """

    target: str = "cpu"
    effort: str | None = None
    seconds: float | None = None
    seed: int = 0
    rules: Any = None
    verify: bool = False
    freeze: bool = False

    @staticmethod
    def parse(given: Mapping[str, Any]) -> Options:
        """Options by name.

        Raises:
            LuminalError: for a name that there is not.
        """
        known = [f.name for f in fields(Options)]
        for name in given:
            if name not in known:
                raise LuminalError(
                    f"the backend luminal_lab has no option {name!r}",
                    fix=f"one of {', '.join(known)}",
                )
        return Options(**given)

    def compile(self, hlir: Hlir) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The pipeline, from a captured graph on."""
        from luminal_lab.api import compile_hlir

        budget = {"effort": self.effort, "seconds": self.seconds, "verify": self.verify}
        return compile_hlir(
            hlir,
            target=self.target,
            budget={name: value for name, value in budget.items() if value is not None},
            seed=self.seed,
            rules=self.rules,
            freeze=self.freeze,
        )


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo's.

    Arguments:
        gm: The graph.
        example_inputs: Its inputs.
        options: See `Options`.
        **more: Likewise, when called directly.
    """
    chosen = Options.parse({**(options or {}), **more})

    def compiler(inference: bool) -> Callable[..., Any]:
        def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(_compile(graph, inputs, chosen, inference))

        return compile_graph

    return aot_autograd(
        fw_compiler=compiler(inference=False),
        bw_compiler=compiler(inference=False),
        inference_compiler=compiler(inference=True),
        decompositions=decompositions,
    )(gm, example_inputs)


def decompositions() -> dict[Any, Any]:
    """PyTorch's core decompositions, without those that the lowerings handle whole."""
    return adjusted(dict(core_aten_decompositions().items()), WHOLE)


def _compile(
    gm: GraphModule, inputs: Sequence[Any], options: Options, inference: bool
) -> Callable[..., Any]:
    frozen = _static_inputs(len(inputs)) if options.freeze and inference else ()
    if frozen:
        return _Specialised(gm, options, frozen=frozen)
    try:
        return _Compiled.of(gm, options)
    except LuminalError:
        if not _is_sized(gm):
            raise
    return _Specialised(gm, options, per_size=True)


def _is_sized(gm: GraphModule) -> bool:
    """Whether a graph has symbolic sizes."""
    return any(_is_symbolic(n.meta.get("val")) for n in placeholders(gm))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _static_inputs(count: int) -> tuple[int, ...]:
    """Positions of parameters and buffers among the inputs of the graph being compiled."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = metadata.static_input_indices if metadata is not None else None
    return tuple(k for k in static or () if k < count)


# ---------------------------------------------------------------------- one graph
@dataclass(frozen=True)
class _Compiled:
    """A compiled graph; symbolic sizes are those of the tensors of a call.

    Arguments:
        run: Tensors in, a tuple of tensors out.
        inputs: Which of the graph's inputs `run` takes.
        constants: Results that are not tensors, by position; some are symbolic sizes.
        count: Number of results.
        complex_inputs, complex_results: Positions of complex ones, whose parts `run` takes and
            gives along a last dim of size 2.
        symbols: The graph's inputs that are sizes: their symbols' names, by position.
    """

    run: Callable[..., tuple[torch.Tensor, ...]]
    inputs: tuple[int, ...]
    constants: Mapping[int, Any]
    count: int
    symbols: Mapping[int, str] = field(default_factory=dict)
    complex_inputs: tuple[int, ...] = ()
    complex_results: tuple[int, ...] = ()

    @staticmethod
    def of(
        gm: GraphModule, options: Options, weights: Mapping[int, torch.Tensor] | None = None
    ) -> _Compiled:
        """Lower and compile.

        Arguments:
            gm: A graph.
            options: See `Options`.
            weights: Inputs that are known now, by position.

        Raises:
            LuminalError: for a size that no tensor of a call tells, among others.
        """
        hlir, constants = lower_graph(gm, weights or {})
        taken = tuple(
            k
            for k, hole in enumerate(placeholders(gm))
            if _is_tensor(hole) and k not in (weights or {})
        )
        named = {k: dim(h.meta["val"]) for k, h in enumerate(placeholders(gm)) if _is_size(h)}
        symbols = {k: n.name for k, n in named.items() if isinstance(n, Size) and n.name}
        _check_sizes(hlir, constants, symbols.values())
        run: Callable[..., Any] = lambda *args: ()  # noqa: E731
        if hlir.outputs:
            with (
                _disable_current_modes()
            ):  # AOTAutograd's fake tensors are none of the pipeline's
                run = options.compile(hlir)
        count = len(hlir.outputs) + len(constants)
        holes, results = placeholders(gm), results_of(gm)
        return _Compiled(
            run,
            taken,
            constants,
            count,
            symbols,
            tuple(k for k in taken if holes[k].meta["val"].is_complex()),
            tuple(k for k, fx in enumerate(results) if is_complex(fx)),
        )

    def __call__(self, *inputs: Any) -> list[Any]:
        if not (self.complex_inputs or self.complex_results):
            return self._call(inputs)
        given = list(inputs)
        for k in self.complex_inputs:
            given[k] = parts_of(given[k])
        results = self._call(given)
        for k in self.complex_results:
            results[k] = torch.view_as_complex(results[k])
        return results

    def _call(self, inputs: Sequence[Any]) -> list[Any]:
        made = iter(self.run(*(inputs[k] for k in self.inputs)))
        constants = self.constants
        if any(isinstance(n, Size) for n in constants.values()):
            sizes = {name: inputs[k] for k, name in self.symbols.items()}
            constants = {
                k: value(n, sizes) if isinstance(n, Size) else n for k, n in constants.items()
            }
        return [constants[k] if k in constants else next(made) for k in range(self.count)]


def results_of(gm: GraphModule) -> Sequence[Any]:
    """What a graph returns: fx nodes, numbers and None."""
    results = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    return results if isinstance(results, (tuple, list)) else (results,)


def is_complex(fx: Any) -> bool:
    """Whether an fx node is a complex tensor."""
    value = getattr(fx, "meta", {}).get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def parts_of(x: torch.Tensor) -> torch.Tensor:
    """The real and imaginary parts of a complex tensor along a last dim of size 2."""
    return torch.view_as_real(x.detach().resolve_conj())


def _is_tensor(hole: Any) -> bool:
    """Whether a placeholder is a tensor, rather than a size or the order of effects."""
    return isinstance(hole.meta.get("val"), torch.Tensor) and not any(
        getattr(user.target, "name", lambda: "")() == "with_effects" and user.args[0] is hole
        for user in hole.users
    )


def _is_size(hole: Any) -> bool:
    return isinstance(hole.meta.get("val"), torch.SymInt)


def _check_sizes(hlir: Hlir, constants: Mapping[int, Any], given: Iterable[str]) -> None:
    """Every symbol is a dim of an input; those of results that are sizes are inputs."""
    shapes = (n for s in hlir.inputs for n in hlir.nodes[s.node].shape)
    told = {s.name for s in symbols_in(shapes)}
    results = {s.name for s in symbols_in(constants.values())}
    if untold := sorted((set(hlir.symbols) - told) | (results - set(given))):
        raise CaptureError(f"no tensor has the size {', '.join(untold)}")


def lower_graph(
    gm: GraphModule, weights: Mapping[int, torch.Tensor]
) -> tuple[Hlir, dict[int, Any]]:
    """The Hlir of a functional graph of ATen calls, and its results that are not tensors.

    Arguments:
        gm: The graph; its placeholders carry FakeTensors.
        weights: Inputs that become weights, by position. Other tensors are args in order;
            complex ones are given by their parts, see `parts_of`, and results likewise.
    """
    graph = Graph("graph")
    values: dict[Any, Any] = {}
    names: dict[Any, str] = {}
    for k, hole in enumerate(placeholders(gm)):
        value: Any = hole.meta.get("val")
        if not _is_tensor(hole):
            given = None if isinstance(value, torch.Tensor) else value
            values[hole] = dim(given) if isinstance(given, torch.SymInt) else given
            continue
        kind, tensor = ("weight", weights[k]) if k in weights else ("arg", None)
        try:
            dtype = dtype_of(value.dtype.to_real())
        except KeyError:
            raise CaptureError(
                f"the input {hole.name!r} has dtype {value.dtype}, which HLIR has no type for"
            ) from None
        names[hole] = hole.name
        if value.is_complex():
            held = None if tensor is None else parts_of(tensor)
            shape = (*dims(value.shape), 2)
            values[hole] = Complex(graph.input(hole.name, shape, dtype, kind, value=held))
        else:
            values[hole] = graph.input(hole.name, dims(value.shape), dtype, kind, value=tensor)
    results = Lowerer(graph, gm).run(values)
    graph.source = Source()
    results = results if isinstance(results, (tuple, list)) else (results,)
    outputs: list[tuple[Tensor, dict[str, Any]]] = []
    constants: dict[int, Any] = {}
    for k, (fx, value) in enumerate(zip(results_of(gm), results)):
        value = value.parts if isinstance(value, Complex) else value
        if not isinstance(value, Tensor):
            constants[k] = value
            continue
        facts = {"name": f"out{k}", "stride": stride_of(fx.meta.get("val"))}
        if fx in names and not is_complex(fx):
            facts["aliases"] = names[fx]
        outputs.append((value, facts))
    return graph.finish(*outputs), constants


# ---------------------------------------------------------------------- several programs
@dataclass
class _Specialised:
    """A graph that is compiled when its sizes and its frozen weights are known: at the call.

    Arguments:
        gm: The graph.
        options: See `Options`.
        per_size: Whether it is compiled once for each combination of sizes, because something
            in it needs numbers.
        frozen: Positions of the inputs that are taken for constants.
    """

    gm: GraphModule
    options: Options
    per_size: bool = False
    frozen: tuple[int, ...] = ()
    cache: dict[tuple, _Compiled] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, *inputs: Any) -> list[Any]:
        key = (self._sizes(inputs), tuple(id(inputs[k]) for k in self.frozen))
        program = self.cache.get(key)
        if program is None:
            with self.lock:
                program = self.cache.get(key) or self._make(key, inputs)
        return program(*inputs)

    def _sizes(self, inputs: Sequence[Any]) -> tuple:
        if not self.per_size:
            return ()
        return tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in inputs)

    def _make(self, key: tuple, inputs: Sequence[Any]) -> _Compiled:
        limit, what, fix = (
            (SHAPES, "sizes", "pad the inputs to a few sizes, or mark the dims static")
            if self.per_size
            else (FROZEN, "sets of weights", "compile without freeze")
        )
        if len(self.cache) >= limit:
            raise CallError(f"one graph was called with more than {limit} {what}", fix=fix)
        gm = concrete(self.gm, inputs) if self.per_size else self.gm
        weights = {k: inputs[k] for k in self.frozen}  # kept alive: ids in the key stay theirs
        try:
            program = _Compiled.of(gm, self.options, weights)
        except LuminalError:
            if self.per_size or not _is_sized(gm):
                raise
            self.per_size = True
            return self._make((self._sizes(inputs), key[1]), inputs)
        self.cache[key] = program
        return program


def concrete(gm: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """The graph for the sizes of these inputs, retraced with numbers in place of symbols."""

    def run(*args: Any) -> Any:
        return torch.fx.Interpreter(gm).run(*args)

    with preserve_node_meta(), torch.no_grad():
        return make_fx(run, tracing_mode="fake")(*inputs)
