"""The reference interpreter of HLIR: slow and right.

Every other stage is checked against it. It walks the graph node by node and knows no patterns.
Values are stored, except large ones that are only reduced: those are computed block by block
within their reduction (a 1024x1536x384 product never exists), and points asked for by `sample`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import CallError, HlirError
from luminal_lab.hlir import apply
from luminal_lab.hlir.apply import Compute
from luminal_lab.hlir.frames import Frame, blocks, strided
from luminal_lab.hlir.graph import Hlir, InputSpec, Node, NodeId
from luminal_lab.hlir.index import GATHERED, Index
from luminal_lab.hlir.ops import OPS, REDUCTIONS
from luminal_lab.hlir.symbolic import bind_symbols, specialize
from luminal_lab.hlir.view import REDUCED, View, out_axis
from luminal_lab.polling import poll

if TYPE_CHECKING:
    from torch import Tensor

_STORED = 1 << 20  # a value of at most so many elements is always stored
# Elements of one block of a reduction: in cache, and too few for torch to use threads, which
# wait for each other long when other programs run.
_BLOCK = (1 << 15) - 1
_SAMPLED = (
    1 << 22
)  # elements that one step of `sample` may touch before it falls back to storing
_DEPTH = 40  # values nested within one reduction, or below one sample, before one is stored
_POINTWISE = ("unary", "binary", "select", "cast")


def run(
    hlir: Hlir,
    args: Sequence[Any] | Mapping[str, Any],
    *,
    compute: Compute = "float64",
    keep: Sequence[NodeId] = (),
) -> list[Tensor]:
    """Evaluate a program.

    Arguments:
        hlir: The program; symbolic dims are bound to the shapes of `args`.
        args: The flattened user inputs by position, or tensors by input name (where a weight's
            name overrides the weight).
        compute: `"float64"`: floats are held in float64 and only Casts to 16- and 8-bit floats
            round; `"native"`: every node in its own dtype.
        keep: Nodes whose values are returned after the outputs.

    Returns:
        The outputs in the order of `hlir.outputs`, then the values of `keep`.

    Raises:
        CallError: when an input is missing or has another shape or dtype than declared.
    """
    reference = Reference(hlir, bind_arguments(hlir, args), compute=compute)
    reference.evaluate(keep)
    outputs = [reference.output(k) for k in range(len(hlir.outputs))]
    return outputs + [reference.value(n) for n in keep]


def bind_arguments(hlir: Hlir, args: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by input name, from positional user inputs and the program's own weights.

    Raises:
        CallError: when an argument is missing or its name is unknown.
    """
    bound: dict[str, Any] = dict(hlir.weights)
    if isinstance(args, Mapping):
        names = [spec.name for spec in hlir.inputs]
        for name in args:
            if name not in names:
                raise CallError(f"{hlir.name} has no input {name!r}; it has {', '.join(names)}")
        bound.update(args)
    for spec in hlir.inputs:
        if spec.kind == "arg" and not isinstance(args, Mapping):
            if spec.position is None or spec.position >= len(args):
                raise CallError(
                    f"{hlir.name} got {len(args)} inputs, and input {spec.name!r} is number"
                    f" {spec.position} (counted from 0)"
                )
            bound[spec.name] = args[spec.position]
        if spec.name not in bound:
            raise CallError(f"no tensor was given for the {spec.kind} {spec.name!r}")
    return bound


class Reference:
    """A program together with its inputs; values are computed on demand and remembered.

    Arguments:
        hlir: The program.
        inputs: A tensor for each input name (weights that are missing come from the program).
        compute: See `run`.

    Raises:
        CallError: when an input is missing or has another shape or dtype than declared.
    """

    def __init__(self, hlir: Hlir, inputs: Mapping[str, Any], *, compute: Compute = "float64"):
        bound = bind_arguments(hlir, inputs)
        self._inputs = {
            spec.name: _as_tensor(bound[spec.name], hlir, spec) for spec in hlir.inputs
        }
        shapes = {name: tuple(t.shape) for name, t in self._inputs.items()}
        self.symbols = bind_symbols(hlir, shapes)
        self.hlir = specialize(hlir, self.symbols)
        self.compute: Compute = compute
        self._check_shapes(shapes)
        self._values: dict[NodeId, Tensor] = {}
        self._inline, self._last_use = _plan(self.hlir)

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for spec in self.hlir.inputs:
            expected = self.hlir.nodes[spec.node].shape
            if shapes[spec.name] != expected:
                raise CallError(
                    f"input {spec.name!r} has shape {shapes[spec.name]}, expected {expected}"
                )

    def evaluate(self, keep: Sequence[NodeId] = ()) -> None:
        """Compute all outputs and `keep`; other values are dropped after their last use."""
        wanted = {*keep, *(o.value.node for o in self.hlir.outputs)}
        dies: dict[NodeId, list[NodeId]] = {}
        for n, last in enumerate(self._last_use):
            if n not in wanted:
                dies.setdefault(last, []).append(n)
        for n in self._missing(sorted(wanted)):
            self._store(n)
            for dead in dies.get(n, ()):
                self._values.pop(dead, None)

    def output(self, k: int) -> Tensor:
        """The k-th program output."""
        spec = self.hlir.outputs[k]
        self.value(spec.value.node)
        return self._full(spec.value.node, spec.value.view, spec.shape).clone()

    def value(self, node: NodeId) -> Tensor:
        """The value of a node, of its shape (do not write to it)."""
        for n in self._missing([node]):
            self._store(n)
        return self._values[node]

    def assume(self, node: NodeId, value: Tensor) -> None:
        """Take `value` for the value of a node from now on, instead of computing it."""
        self._values[node] = value

    def sample(self, node: NodeId, points: Sequence[Tensor]) -> Tensor:
        """The value of a node at some points only, which may be much cheaper than all of it.

        Arguments:
            node: The node.
            points: One int64 index tensor per dim of the node; they broadcast together.

        Returns:
            A tensor of the points' common shape.
        """
        import torch

        shape = self.hlir.nodes[node].shape
        if len(points) != len(shape):
            raise HlirError(f"node %{node} has {len(shape)} dims, got {len(points)} indices")
        if not points:
            return self.value(node)
        common = torch.broadcast_tensors(*points)
        flat = [p.reshape(-1) for p in common]
        names = [out_axis(d) for d in range(len(shape))]
        extents = dict(zip(names, shape))
        view = View.identity(len(shape))
        step = max(1, _SAMPLED // max(1, self.hlir.nodes[node].attrs.get("extent", 1)))
        parts = []
        for start in range(0, max(1, len(flat[0])), step):
            env = {a: p[start : start + step] for a, p in zip(names, flat)}
            size = len(env[names[0]])
            parts.append(self._read(node, view, Frame(env, extents, None, 1)).expand(size))
        return torch.cat(parts).reshape(common[0].shape)

    # ------------------------------------------------------------------ storing

    def _missing(self, wanted: Sequence[NodeId]) -> list[NodeId]:
        """What must be stored before `wanted` can be, and `wanted`, in topological order."""
        found: set[NodeId] = set()
        stack = list(wanted)
        while stack:
            n = stack.pop()
            if n in found or n in self._values:
                continue
            found.add(n)
            stack.extend(o.node for o in self.hlir.nodes[n].operands)
        return [n for n in sorted(found) if n in wanted or not self._inline[n]]

    def _store(self, n: NodeId) -> None:
        poll()
        if n in self._values:
            return  # a sibling result of the same Custom call stored it
        node = self.hlir.nodes[n]
        if node.op == "Custom":
            self._call(n, node)
        elif node.op == "Input":
            given = self._inputs[node.attrs["name"]]
            self._values[n] = given.to(apply.torch_dtype(node.dtype, self.compute))
        elif node.op == "Gather":
            self._values[n] = self._gather(node)
        elif node.op == "Scatter":
            self._values[n] = self._scatter(node)
        elif node.op in REDUCTIONS:
            self._values[n] = self._reduce(n, node)
        else:
            frame = Frame.whole(node.axes())
            self._values[n] = self._compute(n, View.identity(frame.rank), frame).expand(
                node.shape
            )

    def _reduce(self, n: NodeId, node: Node) -> Tensor:
        """A reduction, block by block over its output, so that its operand need not exist."""
        import torch

        out = torch.empty(node.shape, dtype=apply.torch_dtype(node.dtype, self.compute))
        extent = node.attrs["extent"]
        inner = self._nested(node.operands[0].node)
        step = max(1, _BLOCK // inner)  # of r; a longer r is reduced in pieces
        if node.op == "ArgMaxReduce":  # places alone do not tell which of two pieces wins
            step = max(1, extent)
        extents = node.axes()
        join = apply.combine(node.op)
        composed: dict = {}
        for ranges in blocks(node.shape, max(1, _BLOCK // (inner * max(1, min(extent, step))))):
            poll()
            place = tuple(slice(start, stop) for _, start, stop in ranges)
            total = None
            for start in range(0, max(1, extent), step):
                stop = min(start + step, extent)
                frame = Frame.box([*ranges, (REDUCED, start, stop)], extents, composed)
                args = [
                    _widen(self._read(o.node, o.view, frame), stop - start)
                    for o in node.operands
                ]
                part = _reduced(node.op, args)
                total = part if total is None else join(total, part)
            assert total is not None
            out[place] = total
        return out

    def _nested(self, n: NodeId) -> int:
        """The product of the extents of the reductions nested in a lazily computed value."""
        node = self.hlir.nodes[n]
        if not self._inline[n]:
            return 1
        own = max(1, node.attrs["extent"]) if node.op in REDUCTIONS else 1
        return own * max((self._nested(o.node) for o in node.operands), default=1)

    def _full(self, n: NodeId, view: View, shape: Sequence[int]) -> Tensor:
        """A stored node read at all points of `shape`."""
        return self._read(n, view, Frame.of_shape(shape)).expand(tuple(shape))

    def _gather(self, node: Node) -> Tensor:
        axes = node.axes()
        frame = Frame.whole(axes)
        bound = {a: frame.env[a] for a in axes}
        extents = dict(axes)
        for k, (operand, extent) in enumerate(zip(node.operands[1:], node.attrs["extents"])):
            bound[f"{GATHERED}{k}"] = self._read(operand.node, operand.view, frame).long()
            extents[f"{GATHERED}{k}"] = extent
        table = node.operands[0]
        points = Frame(bound, extents, None, frame.rank)
        return self._read(table.node, table.view, points).expand(node.shape).clone()

    def _scatter(self, node: Node) -> Tensor:
        dest, src, *index = node.operands
        points = node.attrs.get("points", self.hlir.nodes[src.node].shape)
        return apply.scatter(
            self._full(dest.node, dest.view, node.shape),
            self._full(src.node, src.view, points),
            [self._full(i.node, i.view, points) for i in index],
            node.attrs["mode"],
        )

    def _call(self, n: NodeId, node: Node) -> None:
        operands = [
            self.value(o.node).to(apply.torch_dtype(self.hlir.nodes[o.node].dtype))
            for o in node.operands
        ]
        results = apply.call_aten(node, operands)
        call = node.attrs.get("call")
        for m in range(len(self.hlir.nodes)):
            other = self.hlir.nodes[m]
            same = other.op == "Custom" and call is not None and other.attrs.get("call") == call
            if m == n or (same and m not in self._values):
                result = results[other.attrs.get("result") or 0]
                result = apply.as_traced(other, result, other.shape)
                self._values[m] = result.to(apply.torch_dtype(other.dtype, self.compute))

    # ------------------------------------------------------------------ reading

    def _read(self, n: NodeId, view: View, frame: Frame) -> Tensor:
        """Node `n` through `view` at the points; dims it does not vary over have size 1."""
        import torch

        if view.guard:
            return self._read_guarded(n, view, frame)
        node = self.hlir.nodes[n]
        if n not in self._values and self._lazily(n, node, view, frame):
            key = (n, view)
            if key not in frame.memo:
                frame.memo[key] = self._compute(n, view, frame)
            return frame.memo[key]
        stored = self._values[n] if n in self._values else self.value(n)
        if stored.numel() == 0:
            return stored.new_empty(frame.shape)
        if (box := strided(stored, view.index, frame)) is not None:
            return box
        if not view.index:
            return stored.reshape([1] * frame.rank)
        return stored[tuple(torch.broadcast_tensors(*frame.at(view.index)))]

    def _lazily(self, n: NodeId, node: Node, view: View, frame: Frame) -> bool:
        """Whether a value that is not stored is computed at the points, rather than stored."""
        if self._inline[n]:
            return True
        if frame.ranges is not None or frame.depth >= _DEPTH:
            return False
        if OPS[node.op].family not in (*_POINTWISE, "reduce") and node.op != "Iota":
            return False
        work = frame.size(view.index) * node.attrs.get("extent", 1)
        return work < min(_SAMPLED, _iterations(node))

    def _read_guarded(self, n: NodeId, view: View, frame: Frame) -> Tensor:
        import torch

        node = self.hlir.nodes[n]
        fill = apply.scalar(view.fill, node.dtype, self.compute)
        if math.prod(node.shape) == 0:
            return fill.reshape([1] * frame.rank)
        true = torch.ones([1] * frame.rank, dtype=torch.bool)
        for g in view.guard:
            true = true & (frame.at([g])[0] >= 0)
        env = {
            out_axis(k): i.clamp(0, size - 1)
            for k, (i, size) in enumerate(zip(frame.at(view.index), node.shape))
        }
        extents = {out_axis(k): size for k, size in enumerate(node.shape)}
        inside = self._read(n, View.identity(len(node.shape)), frame.moved(env, extents))
        return torch.where(true, inside, fill)

    def _compute(self, n: NodeId, view: View, frame: Frame) -> Tensor:
        """Apply node `n` at the points `view.index` of the frame."""
        node = self.hlir.nodes[n]
        if node.op == "Constant":
            value = apply.scalar(node.attrs["value"], node.dtype, self.compute)
            return value.reshape([1] * frame.rank)
        if node.op == "Iota":
            axes = {out_axis(k): i for k, i in enumerate(view.index)}
            index = node.attrs["index"].substitute(axes, frame.extents)
            return frame.at([index])[0].to(apply.torch_dtype(node.dtype, self.compute))
        inner = frame.deeper()
        if node.op in REDUCTIONS:
            inner = inner.with_axis(f"{REDUCED}{frame.rank}", node.attrs["extent"])
        views = self._composed(n, view, inner)
        args = [self._read(o.node, v, inner) for o, v in zip(node.operands, views)]
        if node.op in REDUCTIONS:
            return _reduced(node.op, [_widen(x, node.attrs["extent"]) for x in args])
        if node.op == "Cast" and self.hlir.nodes[node.operands[0].node].dtype is node.dtype:
            return args[0]  # a copy rounds nothing
        return apply.elementwise(node, args, self.compute)

    def _composed(self, n: NodeId, view: View, inner: Frame) -> tuple[View, ...]:
        """The views of a node's operands over the frame's axes; a reduced axis is the last."""
        key = (n, view, inner.rank)
        if key not in inner.composed:
            node = self.hlir.nodes[n]
            axes = {out_axis(k): i for k, i in enumerate(view.index)}
            if node.op in REDUCTIONS:
                axes[REDUCED] = Index.axis(f"{REDUCED}{inner.rank - 1}")
            inner.composed[key] = tuple(
                o.view.compose(axes, inner.extents) for o in node.operands
            )
        return inner.composed[key]


def _as_tensor(given: Any, hlir: Hlir, spec: InputSpec) -> Tensor:
    import torch

    node = hlir.nodes[spec.node]
    tensor = given if isinstance(given, torch.Tensor) else None
    if tensor is None and isinstance(given, bool | int | float):
        tensor = torch.tensor(given, dtype=apply.torch_dtype(node.dtype))
    if tensor is None:
        raise CallError(f"input {spec.name!r} is a {type(given).__name__}, expected a tensor")
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        raise CallError(
            f"input {spec.name!r} is on {tensor.device}; the interpreter runs on the CPU",
            fix="pass tensor.cpu()",
        )
    if tensor.dtype != apply.torch_dtype(node.dtype):
        if not (node.dtype.is_float and tensor.dtype == torch.float64):
            raise CallError(
                f"input {spec.name!r} has dtype {tensor.dtype}, expected"
                f" {apply.torch_dtype(node.dtype)}"
            )
    return tensor


def _iterations(node: Node) -> int:
    """How many points a node iterates over."""
    return math.prod(node.shape) * node.attrs.get("extent", 1)


def _plan(hlir: Hlir) -> tuple[list[bool], list[NodeId]]:
    """Which nodes are computed within their consumers, and each node's last use.

    A value is left unstored when it is large and each of its consumers reads every element
    once: pointwise values on the way to a reduction, and reductions that are reduced further.
    """
    nodes = hlir.nodes
    consumers: list[list[NodeId]] = [[] for _ in nodes]
    for n, node in enumerate(nodes):
        for o in node.operands:
            consumers[o.node].append(n)
    outputs = {o.value.node for o in hlir.outputs}
    inline = [False] * len(nodes)
    height = [0] * len(nodes)
    last = [-1] * len(nodes)
    for n in range(len(nodes) - 1, -1, -1):
        node, users = nodes[n], consumers[n]
        for c in users:
            last[n] = max(last[n], last[c] if inline[c] else c)
        size = math.prod(node.shape)
        if size <= _STORED or n in outputs or not users:
            continue
        if any(_iterations(nodes[c]) != size for c in users):
            continue
        reduced = all(nodes[c].op in REDUCTIONS for c in users)
        lazy = all(nodes[c].op in REDUCTIONS or inline[c] for c in users)
        height[n] = 1 + max(height[c] if inline[c] else 0 for c in users)
        if height[n] <= _DEPTH:
            if OPS[node.op].family in _POINTWISE or node.op == "Iota":
                inline[n] = lazy
            elif node.op in REDUCTIONS:
                inline[n] = reduced and len(users) == 1
    return inline, last


def _reduced(op: str, args: Sequence[Tensor]) -> Tensor:
    return apply.place_last(*args) if op == "ArgMaxReduce" else apply.reduce_last(op, args[0])


def _widen(x: Tensor, extent: int) -> Tensor:
    """The last dim, along which `x` may be constant, made explicit."""
    return x.expand(*x.shape[:-1], extent)
