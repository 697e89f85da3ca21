"""PyTorch modules, functions and exported programs → Hlir, through `torch.export`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils._pytree import tree_leaves, tree_map

from luminal_lab.capture.lower import Complex, Lowerer, placeholders, user_frames, weight
from luminal_lab.capture.symbols import known_symbols, names_of, symbols_of
from luminal_lab.capture.table import dims
from luminal_lab.errors import CaptureError
from luminal_lab.hlir.dtypes import dtype as dtype_of
from luminal_lab.hlir.graph import Hlir, InputSpec, Source
from luminal_lab.hlir.sizes import Dim, hint
from luminal_lab.hlir.structure import Structure
from luminal_lab.hlir.tensor import Graph, Tensor

# Composite operators whose lowering says more than their decomposition would.
KEPT = (
    "linear.default",
    "matmul.default",
    "scaled_dot_product_attention.default",
    "rms_norm.default",
    "repeat_interleave.self_int",
)
# Operators that the core decomposition table takes apart and the lowerings handle whole.
WHOLE = (
    "addcdiv.default", "addcmul.default", "baddbmm.default", "hardsigmoid.default",
    "hardswish.default", "leaky_relu.default", "lerp.Scalar", "lerp.Tensor",
    "logsumexp.default", "masked_fill.Scalar", "masked_fill.Tensor", "mish.default",
    "native_dropout.default", "silu.default", "softplus.default", "std.correction",
    "stack.default", "std_mean.correction", "threshold.default", "tril.default", "triu.default",
    "var_mean.correction", "logical_and.default", "logical_or.default", "logical_xor.default",
    "logical_not.default", "index_add.default", "index_copy.default", "linspace.default",
    "unbind.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "take.default",
    "unfold.default", "upsample_nearest1d.vec", "upsample_nearest2d.vec", "rsub.Scalar",
    "rsub.Tensor", "count_nonzero.default", "count_nonzero.dim_IntList", "diag_embed.default",
    "_safe_softmax.default", "select_scatter.default", "slice_scatter.default", "eye.default",
    "eye.m", "frac.default", "deg2rad.default", "rad2deg.default", "logaddexp.default",
    "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
    "isnan.default", "isinf.default", "ones.default", "zeros.default", "zeros_like.default",
    "ones_like.default", "t.default", "transpose.int", "elu.default", "roll.default",
    "_fused_rms_norm.default",
    # integers are truncated from powers that must be exact
    "logspace.default", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar",
    "logspace.Scalar_Tensor",
    # its decomposition returns the scores where the backward pass expects logsumexp
    "_scaled_dot_product_flash_attention_for_cpu.default",
)  # fmt: skip

# Operators outside of the core table whose decomposition PyTorch has, in operators that lower.
TAKEN_APART = (
    "max_pool2d_with_indices_backward.default", "_batch_norm_with_update_functional.default",
)  # fmt: skip


def capture(
    module_or_fn: Callable[..., Any] | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Hlir:
    """Capture a PyTorch program as an Hlir.

    Arguments:
        module_or_fn: An `nn.Module`, a function of tensors, or an `ExportedProgram`.
        args: Example positional arguments; shapes and dtypes are taken from them.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for `torch.export.export`.

    Returns:
        The program in primitive ops. Weights are the module's own tensors, by reference; a
        tensor that is used under two names is one input.

    Raises:
        CaptureError: when PyTorch cannot trace it, or it does what HLIR has no word for.
    """
    name = type(module_or_fn).__name__
    owner: torch.nn.Module | None = None
    named: Mapping[tuple[int, int], str] = {}
    if isinstance(module_or_fn, ExportedProgram):
        program = module_or_fn
    else:
        if isinstance(module_or_fn, torch.nn.Module):
            owner = module_or_fn
        else:
            name = getattr(module_or_fn, "__name__", name)
            owner = _as_module(module_or_fn)
        own_args, own_kwargs = _distinct((tuple(args), dict(kwargs or {})))
        program = _export(owner, own_args, own_kwargs, dynamic_shapes)
        named = _named_dims(owner, own_args, own_kwargs, dynamic_shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = program.run_decompositions(decompositions())
    return lower_program(program, owner, name, named)


def _named_dims(
    owner: torch.nn.Module, args: tuple, kwargs: dict[str, Any], dynamic_shapes: Any
) -> dict[tuple[int, int], str]:
    """The names of the user's Dims, by the position of an input and its dim."""
    if not dynamic_shapes:
        return {}
    position = {id(leaf): k for k, leaf in enumerate(tree_leaves((args, kwargs)))}
    out: dict[tuple[int, int], str] = {}

    def note(path: Any, leaf: Any, shape: Any) -> None:
        each = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
        for dim, given in each:
            if isinstance(given, torch.export.Dim) and given.__name__.isidentifier():
                out[position[id(leaf)], dim] = given.__name__

    combined = _combine_args(owner, args, kwargs)
    if isinstance(dynamic_shapes, torch.export.ShapesCollection):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(owner, args, kwargs)
    if isinstance(dynamic_shapes, (tuple, list)):
        combined = type(dynamic_shapes)(combined.values())
    _tree_map_with_path(note, combined, dynamic_shapes, tree_name="inputs")
    return out


def _as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A function as a module with its signature, for `torch.export`."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without one: arguments are args_0, args_1, …
        pass
    else:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [own, *signature.parameters.values()]
        if all(p.kind is not p.POSITIONAL_ONLY for p in parameters[1:]):
            parameters[0] = own.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        forward.__signature__ = signature.replace(parameters=parameters)
    return type("Function", (torch.nn.Module,), {"forward": forward})()


def _distinct(args: Any) -> Any:
    """A tensor that is passed twice as two tensors: export would take them for one."""
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.detach().requires_grad_(leaf.requires_grad)

    return tree_map(own, args)


def _export(
    owner: torch.nn.Module, args: tuple, kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    try:
        with warnings.catch_warnings(), user_frames():
            warnings.simplefilter("ignore")
            return torch.export.export(
                owner, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # (whatever the program or the tracer raises)
        raise CaptureError(
            f"torch.export cannot trace {type(owner).__name__}: {error}",
            fix="torch.export.export(module, args) shows the same error with its own advice",
        ) from error


def decompositions() -> Any:
    """PyTorch's default decompositions, without those that the lowerings handle whole."""
    return adjusted(torch.export.default_decompositions(), KEPT + WHOLE)


def adjusted(table: Any, whole: Sequence[str]) -> Any:
    """A decomposition table without the operators `whole`, and with `TAKEN_APART`."""
    for name in whole:
        table.pop(operator(name), None)
    for name in TAKEN_APART:
        op = operator(name)
        if op in decomposition_table:
            table[op] = decomposition_table[op]
    return table


def operator(name: str) -> Any:
    """The ATen operator of a name such as `"addmm.default"`; None when there is none."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


# ---------------------------------------------------------------------- lowering
@dataclass
class _Inputs:
    """What each placeholder became, and the name of its input."""

    values: dict[Any, Any]
    names: dict[str, str]  # fx placeholder name -> input name
    weights: dict[str, str]  # a weight's qualified name -> input name


def lower_program(
    program: ExportedProgram,
    owner: torch.nn.Module | None = None,
    name: str = "program",
    named: Mapping[tuple[int, int], str] | None = None,
) -> Hlir:
    """Lower an exported program whose operators are functional.

    Arguments:
        program: After `run_decompositions`.
        owner: The module whose own tensors become the weights; the program's own when None.
        name: For titles.
        named: Names of symbolic dims, by the position of a user input and its dim.
    """
    graph = Graph(name)
    holes = placeholders(program.graph_module)
    values = [hole.meta.get("val") for hole in holes]
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    given = [v for v, kind in zip(values, kinds) if kind is InputKind.USER_INPUT]
    names = names_of((given[k], d, n) for (k, d), n in (named or {}).items())
    with known_symbols(symbols_of(values, program.range_constraints, names)):
        inputs = _inputs(graph, program, owner)
        lowerer = Lowerer(graph, program.graph_module)
        results = lowerer.run(inputs.values)
        graph.source = Source()
        outputs, constants, complex_ = _outputs(graph, program, results, inputs)
    out_spec = program.call_spec.out_spec
    if constants or complex_:
        out_spec = Structure(out_spec, constants, complex_)
    return graph.finish(*outputs, in_spec=program.call_spec.in_spec, out_spec=out_spec)


def _inputs(graph: Graph, program: ExportedProgram, owner: torch.nn.Module | None) -> _Inputs:
    out = _Inputs({}, {}, {})
    taken = {str(s.target) for s in program.graph_signature.input_specs if s.target}
    shared: list[tuple[torch.Tensor, Any, str]] = []
    position = 0
    for hole, spec in zip(
        placeholders(program.graph_module), program.graph_signature.input_specs
    ):
        if spec.kind is InputKind.USER_INPUT:
            own = _unique(hole.name, taken)  # a buffer may be called like an argument
            out.values[hole] = _user_input(graph, hole, own, spec, position)
            out.names[hole.name] = own
            position += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            tensor = _weight(program, owner, target)
            known = next((s for s in shared if _same(s[0], tensor)), None)
            if known is None:
                kind = "constant" if spec.kind is InputKind.CONSTANT_TENSOR else "weight"
                made = weight(graph, target, kind, tensor)
                shared.append(known := (tensor, made, target))
            out.values[hole] = known[1]
            out.weights[target] = out.names[hole.name] = known[2]
        elif spec.kind is InputKind.TOKEN:
            out.values[hole] = None  # an order among effects, see Lowerer
        else:
            raise CaptureError(
                f"the input {hole.name!r} is a {spec.kind.name.lower()}, not a tensor",
                fix="pass tensors, numbers, strings or None, or close over the object",
            )
    return out


def _user_input(graph: Graph, hole: Any, name: str, spec: Any, position: int) -> Any:
    if isinstance(spec.arg, ConstantArgument):
        return spec.arg.value
    value = hole.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CaptureError(
            f"the input {hole.name!r} is a dynamic {type(value).__name__}",
            fix="leave it out of dynamic_shapes, or pass a 0-d tensor",
        )
    try:
        dtype = dtype_of(value.dtype)
    except KeyError:
        raise CaptureError(
            f"the input {hole.name!r} has dtype {value.dtype}, which HLIR has no type for"
        ) from None
    return graph.input(name, dims(value.shape), dtype, "arg", position=position)


def _weight(
    program: ExportedProgram, owner: torch.nn.Module | None, target: str
) -> torch.Tensor:
    """The user's own tensor of that name; one that only export knows otherwise."""
    if owner is not None:
        path, _, leaf = target.rpartition(".")
        try:
            found = getattr(owner.get_submodule(path), leaf, None)
        except AttributeError:
            found = None
        if isinstance(found, torch.Tensor):
            return found
    for table in (program.state_dict, program.constants):
        if isinstance(held := table.get(target), torch.Tensor):
            return held
    raise CaptureError(f"the exported program has no tensor {target!r}")


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two weights are one (tied)."""
    if a is b:
        return True
    return (
        a.numel() > 0
        and a.data_ptr() == b.data_ptr()
        and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    )


def _outputs(
    graph: Graph, program: ExportedProgram, results: Any, inputs: _Inputs
) -> tuple[list[tuple[Tensor, dict[str, Any]]], dict[int, Any], tuple[int, ...]]:
    """Outputs for `Graph.finish`; user outputs without a tensor; positions of complex ones."""
    output_node = next(n for n in program.graph.nodes if n.op == "output")
    outputs: list[tuple[Tensor, dict[str, Any]]] = []
    constants: dict[int, Any] = {}
    complex_: list[int] = []
    user = 0
    taken: set[str] = set()
    for fx, value, spec in zip(
        output_node.args[0], results, program.graph_signature.output_specs
    ):
        if spec.kind is OutputKind.USER_OUTPUT:
            position, user = user, user + 1
            if isinstance(value, Complex):
                complex_.append(position)
                value = value.parts
            if not isinstance(value, Tensor):
                constants[position] = _constant_output(value, spec)
                continue
            facts: dict[str, Any] = {"name": _unique(f"out{position}", taken)}
            if fx.op == "placeholder":
                facts["aliases"] = inputs.names[fx.name]
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            of = inputs.weights if spec.kind is OutputKind.BUFFER_MUTATION else inputs.names
            target = of[str(spec.target)]
            facts = {"name": _unique(f"{target}.new", taken), "mutates": target}
            value = value.parts if isinstance(value, Complex) else value
        elif spec.kind is OutputKind.TOKEN:
            continue
        else:
            raise CaptureError(f"an output of kind {spec.kind.name.lower()} is not supported")
        if not isinstance(value, Tensor):
            raise CaptureError(f"the output {spec.arg} is not a tensor")
        facts["stride"] = stride_of(fx.meta.get("val"))
        outputs.append((value, facts))
    return outputs, constants, tuple(complex_)


def _constant_output(value: Any, spec: Any) -> Any:
    if isinstance(spec.arg, ConstantArgument):
        return spec.arg.value
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(spec.arg, TensorArgument)
    ):
        return value
    raise CaptureError(
        f"the output {spec.arg.name!r} is a dynamic {type(value).__name__}, not a tensor",
        fix="return tensors; a size can be read off a returned tensor's shape",
    )


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def stride_of(value: Any) -> tuple[Dim, ...] | None:
    """Strides of a dense output that is not row-major; None for all others."""
    if not isinstance(value, torch.Tensor):
        return None
    stride = _dense_stride(value)
    if stride is not None and value.is_complex():  # its parts, side by side
        return (*(n * 2 for n in stride), 1)
    return stride


def _dense_stride(value: torch.Tensor) -> tuple[Dim, ...] | None:
    if any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
        return _symbolic_stride(dims(value.shape), dims(value.stride()))
    if value.is_contiguous() or not is_non_overlapping_and_dense_or_false(value):
        return None
    return tuple(value.stride())


def _symbolic_stride(shape: Sequence[Dim], strides: Sequence[Dim]) -> tuple[Dim, ...] | None:
    order = sorted(range(len(shape)), key=lambda k: (-hint(strides[k]), k))
    if order == list(range(len(shape))):
        return None
    step: Dim = 1
    for k in reversed(order):
        if shape[k] != 1 and strides[k] != step:
            return None  # not dense
        step = step * shape[k]
    return tuple(strides)


def input_specs(hlir: Hlir) -> list[InputSpec]:
    """The user's tensor inputs, by position."""
    return sorted((s for s in hlir.inputs if s.kind == "arg"), key=lambda s: s.position or 0)
