"""An fx graph of ATen calls → nodes of an Hlir, by the table of lowerings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, proxy
from torch.fx import Node as FxNode

from luminal_lab.capture.aten import LOWERINGS, Call, NoLowering
from luminal_lab.capture.table import dim, dims
from luminal_lab.errors import CaptureError, HlirError
from luminal_lab.hlir.dtypes import BY_TORCH_NAME, DType
from luminal_lab.hlir.dtypes import dtype as dtype_of
from luminal_lab.hlir.graph import ComplexRef, InputKind, Ref, Source, TorchName
from luminal_lab.hlir.sizes import Size
from luminal_lab.hlir.tensor import Graph, Tensor

_TORCH = str(Path(torch.__file__).parent)
_HERE = (str(Path(__file__).parent), str(Path(__file__).parent.parent / "api.py"))
_MADE = ("<eval_with_key>", "<frozen", "<__array_function__")  # written by torch and by Python
# Calls without a result that matters: checks on what capture already knows.
_CHECKS = {
    "_assert_async.default", "_assert_async.msg", "_assert_scalar.default",
    "_assert_tensor_metadata.default", "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
}  # fmt: skip
# Higher-order operators that only set a mode around a subgraph.
_WRAPPERS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


@dataclass(frozen=True)
class Complex:
    """A complex tensor while lowering.

    Arguments:
        parts: Its real and imaginary part, along a last dim of size 2.
    """

    parts: Tensor


class Lowerer:
    """Lowers one fx graph into a Graph.

    Arguments:
        graph: Where nodes go.
        module: Whose graph is lowered; its nodes carry FakeTensors in `meta["val"]`.
    """

    def __init__(self, graph: Graph, module: GraphModule):
        self.graph, self.module = graph, module
        self.values: dict[FxNode, Any] = {}

    def run(self, inputs: Mapping[FxNode, Any]) -> Any:
        """Lower all nodes.

        Arguments:
            inputs: What each placeholder stands for.

        Returns:
            What the graph returns: nested tuples of Tensors, numbers and None.

        Raises:
            CaptureError: where a call can be neither lowered nor made a Custom node.
        """
        self.values.update(inputs)
        for node in self.module.graph.nodes:
            if node.op == "output":
                return self._value_of(node.args[0])
            if node.op == "call_function":
                self.graph.source = source_of(node)
                self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node not in self.values:
                raise CaptureError(f"cannot lower the fx node {node.format_node()}")
        raise CaptureError("the fx graph has no output")

    def _value_of(self, arg: Any) -> Any:
        if isinstance(arg, FxNode):
            return self.values[arg]
        if isinstance(arg, tuple):
            return tuple(self._value_of(a) for a in arg)
        if isinstance(arg, list):
            return [self._value_of(a) for a in arg]
        if isinstance(arg, dict):
            return {k: self._value_of(a) for k, a in arg.items()}
        return arg

    def _attribute(self, node: FxNode) -> Any:
        found: Any = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            return weight(self.graph, f"_lifted.{node.target}", "constant", found)
        return found

    # ------------------------------------------------------------------ one call
    def _call(self, node: FxNode) -> Any:
        args = self._value_of(node.args)
        kwargs = self._value_of(dict(node.kwargs))
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            if target.name() == "with_effects":
                return self._effect(node, args, kwargs)
            return self._higher_order(node, target, args)
        if not isinstance(target, torch._ops.OpOverload):
            return self._python(node, target, args, kwargs)
        return self._operator(node, target, args, kwargs, node.meta.get("val"))

    def _operator(
        self, node: FxNode, target: Any, args: tuple, kwargs: dict, value: Any
    ) -> Any:
        """A call of an operator whose result is `value`, a FakeTensor or a tuple of them."""
        name = f"{target._schema.name.split('::')[1]}.{target._overloadname}"
        if name in _CHECKS:
            return None
        if target._schema.is_mutable:
            raise CaptureError(
                f"{target} changes a tensor in place",
                where=self.graph.source.line,
                fix="functionalize the graph first (torch.export and torch.compile do)",
            )
        if isinstance(value, torch.SymInt):
            return dim(value)
        if isinstance(value, (int, float, bool, torch.SymFloat, torch.SymBool)):
            return value
        if name == "view_as_real.default":
            return args[0].parts
        if name == "view_as_complex.default":
            return Complex(args[0])
        if _is_complex(value) or _is_complex((args, kwargs)):
            reason = "complex numbers"
        elif name in LOWERINGS and target.namespace in ("aten", "prims"):
            call = Call(self.graph, name, value, node.args)
            try:
                return _checked(call, LOWERINGS[name](call, *args, **kwargs))
            except (NoLowering, HlirError) as gap:
                reason = str(gap)
        else:
            reason = "no lowering"
        return self._custom(node, target, args, kwargs, value, reason)

    def _effect(self, node: FxNode, args: tuple, kwargs: dict) -> tuple[Any, ...]:
        """An operator with an order among others: `(token, *results)`.

        The check of a linear algebra result is made by the call that it checks, see `_custom`.
        """
        target, rest = args[1], args[2:]
        name = target._schema.name
        value = node.meta.get("val")
        results: tuple[Any, ...] = tuple(value[1:]) if isinstance(value, (tuple, list)) else ()
        info = node.args[2] if len(node.args) > 2 else None  # a getitem of the call
        checked = info.all_input_nodes[0] if isinstance(info, FxNode) else None
        if name == "aten::_linalg_check_errors" and _is_checked(checked):
            return (None, None)
        if any(isinstance(r, torch.Tensor) for r in results):
            single = len(target._schema.returns) == 1
            made = self._operator(node, target, rest, kwargs, results[0] if single else results)
            return (None, made) if single else (None, *made)
        raise CaptureError(
            f"{target} is called for its effect, not for a result",
            where=self.graph.source.line,
            fix="call it outside of the captured program",
        )

    def _python(self, node: FxNode, target: Any, args: tuple, kwargs: dict) -> Any:
        """`getitem`, and arithmetic on symbolic sizes, whose result is known already."""
        if getattr(target, "__name__", "") == "getitem" and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return dim(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return value
        if any(isinstance(a, Tensor) for a in args):
            raise CaptureError(f"cannot lower a call of {target}", where=self.graph.source.line)
        return target(*args, **kwargs)

    def _higher_order(self, node: FxNode, target: Any, args: tuple) -> Any:
        skipped = _WRAPPERS.get(target.name())
        if skipped is None:
            raise CaptureError(
                f"control flow on data ({target.name()}) is not supported",
                where=self.graph.source.line,
                fix="capture the branches, or the loop's body, one by one",
            )
        if target.name() == "wrap_with_autocast" and args[2] is not False:
            raise CaptureError(
                "an autocast region is not supported",
                where=self.graph.source.line,
                fix="cast the module or its inputs instead",
            )
        inner, *rest = args[skipped:]
        lowerer = Lowerer(self.graph, inner)
        holes = [n for n in inner.graph.nodes if n.op == "placeholder"]
        return lowerer.run(dict(zip(holes, rest)))

    # ------------------------------------------------------------------ fallbacks
    def _custom(
        self, node: FxNode, target: Any, args: tuple, kwargs: dict, value: Any, reason: str
    ) -> Any:
        """A node that calls ATen at run time."""
        if _is_checked(node):
            kwargs = {**kwargs, "check_errors": True}
        single = not isinstance(value, (tuple, list))
        results = [value] if single else list(value)
        described = []
        for result in results:
            if result is None:
                continue
            parts = (2,) if result.is_complex() else ()
            described.append(((*dims(result.shape), *parts), self._dtype(result, target)))
            if any(_unbacked(n) for n in result.shape):
                raise CaptureError(
                    f"the size of what {target} returns depends on data",
                    where=self.graph.source.line,
                    fix="compute it outside of the captured program, or use a mask",
                )
        operands: list[Tensor] = []
        template = (_template(args, operands), _template(kwargs, operands))
        name = f"{target._schema.name.replace('::', '.')}.{target._overloadname}"
        made = self.graph.custom(
            name, template, operands, described, single=single, reason=reason
        )
        each = iter(made)
        out: list[Any] = []
        for r in results:
            tensor = None if r is None else next(each)
            parts = r is not None and r.is_complex()
            out.append(Complex(tensor) if parts and tensor is not None else tensor)
        return out[0] if single else tuple(out)

    def _dtype(self, value: Any, target: Any) -> DType:
        try:
            if value.layout is not torch.strided:
                raise KeyError(value.layout)
            return dtype_of(value.dtype.to_real())
        except KeyError:
            raise CaptureError(
                f"{target} returns {value.dtype} ({value.layout}), which HLIR has no type for",
                where=self.graph.source.line,
                fix="keep this part of the program outside",
            ) from None


def _checked(call: Call, result: Any) -> Any:
    """A lowering's result, once its shapes and dtypes are those that PyTorch announced.

    Raises:
        NoLowering: when they are not; ATen's own operator then takes the place.
    """
    if isinstance(result, Tensor):
        pairs = [(result, call.value)]
    else:
        pairs = list(zip(result, call.value))
    for tensor, value in pairs:
        if tensor is None or value is None:
            continue
        want = dims(value.shape), dtype_of(value.dtype)
        if (tensor.shape, tensor.dtype) != want:
            raise NoLowering(
                f"the lowering of {call.target} gives {tensor.dtype}{list(tensor.shape)}, "
                f"PyTorch {want[1]}{list(want[0])}"
            )
    return result


def _template(arg: Any, operands: list[Tensor]) -> Any:
    """Arguments of a Custom in plain data; tensors become Refs and are collected."""
    if isinstance(arg, Tensor):
        operands.append(arg)
        return Ref(len(operands) - 1)
    if isinstance(arg, Complex):
        operands.append(arg.parts)
        return ComplexRef(len(operands) - 1)
    if isinstance(arg, (tuple, list)):
        return type(arg)(_template(a, operands) for a in arg)
    if isinstance(arg, dict):
        return {k: _template(a, operands) for k, a in arg.items()}
    if isinstance(arg, torch.dtype):
        name = str(arg).removeprefix("torch.")
        return BY_TORCH_NAME[name] if name in BY_TORCH_NAME else TorchName(name)
    if isinstance(arg, (torch.memory_format, torch.layout)):
        return TorchName(str(arg).removeprefix("torch."))
    if isinstance(arg, torch.device):
        return str(arg)
    if isinstance(arg, (torch.SymInt, Size)):
        return dim(arg)
    if arg is None or isinstance(arg, (bool, int, float, complex, str)):
        return arg
    raise CaptureError(f"an operator's argument of type {type(arg).__name__} is not supported")


def _is_complex(value: Any) -> bool:
    """Whether there is a complex tensor among values or FakeTensors."""
    if isinstance(value, (tuple, list)):
        return any(map(_is_complex, value))
    if isinstance(value, dict):
        return any(map(_is_complex, value.values()))
    return isinstance(value, Complex) or (
        isinstance(value, torch.Tensor) and value.is_complex()
    )


def _is_checked(node: Any) -> bool:
    """Whether a linear algebra call's `info` must be 0, and the call can see to that itself."""
    schema = getattr(getattr(node, "target", None), "_schema", None)
    if schema is None or all(a.name != "check_errors" for a in schema.arguments):
        return False
    return any(
        getattr(check.target, "name", lambda: "")() == "with_effects"
        and check.args[1] is torch.ops.aten._linalg_check_errors.default
        for result in node.users
        for check in result.users
    )


def weight(graph: Graph, name: str, kind: InputKind, value: torch.Tensor) -> Any:
    """An input whose tensor is known: the tensor itself, a complex one as its parts.

    Raises:
        CaptureError: for a dtype that HLIR has no type for.
    """
    stored = torch.view_as_real(value) if value.is_complex() else value
    try:
        dtype = dtype_of(stored.dtype)
    except KeyError:
        raise CaptureError(
            f"{name!r} has dtype {value.dtype}, which HLIR has no type for"
        ) from None
    made = graph.input(name, tuple(stored.shape), dtype, kind, value=stored)
    return Complex(made) if value.is_complex() else made


def _unbacked(n: Any) -> bool:
    if not isinstance(n, torch.SymInt):
        return False
    return any(str(s).startswith("u") for s in n.node.expr.free_symbols)


# ---------------------------------------------------------------------- provenance
def source_of(node: FxNode) -> Source:
    """Where an fx node came from: the user's line, the module's path, the ATen overload."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((_path(entry) for entry in reversed(list(stack.values()))), "")
    return Source(_line(node.meta.get("stack_trace")), path, str(node.target))


def _path(entry: Any) -> str:
    path = entry[0] if isinstance(entry, (tuple, list)) else str(entry)
    path = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", path)
    path = re.sub(r"^L\.self\.?|^self\.?|^mod\.?(?=_modules|$)", "", path)
    return path.replace("_modules.", "").replace("slf.", "").strip(".")


def _line(trace: str | None) -> str:
    """The innermost frame of the user's own code, else PyTorch's innermost one.

    Who called `capture` is none: only frames inside of it count.
    """
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace or "")
    ours = [k for k, f in enumerate(frames) if f[0].startswith(_HERE)]
    frames = [f for f in frames[max(ours, default=-1) + 1 :] if not f[0].startswith(_MADE)]
    if not frames:
        return ""
    own = [f for f in frames if not _is_foreign(f[0])]
    file, line, function = (own or frames)[-1]
    return f"{file}:{line} in {function}"


def _is_foreign(file: str) -> bool:
    return file.startswith((_TORCH, *_HERE, *_MADE))


class _UserFrames(set):
    """Stands for the set of frames that a stack trace keeps: all those outside of PyTorch.

    Our own are among them: they part who calls `capture` from what it traces.
    """

    def __contains__(self, frame: object) -> bool:
        if not isinstance(frame, tuple):
            return False
        return frame[0].startswith(_HERE) or not _is_foreign(frame[0])


@contextmanager
def user_frames() -> Iterator[None]:
    """While tracing, record the user's helper functions too, not only `forward` methods."""
    before = proxy._STACK_TRACE_ANCHORS
    proxy._STACK_TRACE_ANCHORS = _UserFrames()
    try:
        yield
    finally:
        proxy._STACK_TRACE_ANCHORS = before


def placeholders(module: GraphModule) -> Sequence[FxNode]:
    """The graph's inputs, in order."""
    return [n for n in module.graph.nodes if n.op == "placeholder"]
