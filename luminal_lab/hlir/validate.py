"""Validation: an Hlir obeys the op table, and its views stay inside of what they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BOOL, DType
from luminal_lab.hlir.graph import ComplexRef, Dim, Hlir, Node, NodeId, Operand, Ref
from luminal_lab.hlir.index import GATHERED, Index
from luminal_lab.hlir.ops import OPS
from luminal_lab.hlir.sizes import Size
from luminal_lab.hlir.view import View, out_axis

_NEEDED = {
    "Input": ("name",),
    "Constant": ("value",),
    "Iota": ("index",),
    "SumReduce": ("extent",),
    "MaxReduce": ("extent",),
    "ArgMaxReduce": ("extent",),
    "Gather": ("extents",),
    "Scatter": ("mode",),
    "Custom": ("target", "template", "result"),
}


def check(hlir: Hlir) -> Hlir:
    """Check a program and return it.

    Checked are arity, dtypes, attributes, the order of operands, the rank and the bounds of
    every view (where a guard is false an index may be out of bounds), names, inputs, outputs.
    Bounds that depend on a symbolic dim are left to the call.

    Raises:
        HlirError: names the node and the user's line.
    """
    for n in range(len(hlir.nodes)):
        for complaint in _node(hlir, n):
            raise _error(hlir, n, complaint)
    for complaint in (*_inputs(hlir), *_outputs(hlir), *_symbols(hlir)):
        raise HlirError(f"{hlir.name}: {complaint}")
    return hlir


def describe(hlir: Hlir, n: NodeId) -> str:
    """A node in words, for error messages."""
    node = hlir.nodes[n]
    dims = ", ".join(map(str, node.shape))
    return f"%{n} {node.op} {node.dtype}[{dims}]"


def _error(hlir: Hlir, n: NodeId, complaint: str) -> HlirError:
    source = hlir.nodes[n].source
    places = [p for p in (source.line, source.aten, source.module) if p]
    return HlirError(f"{describe(hlir, n)}: {complaint}", where=", ".join(places) or None)


def _node(hlir: Hlir, n: NodeId) -> Iterator[str]:
    node = hlir.nodes[n]
    op = OPS.get(node.op)
    if op is None:
        yield f"there is no op {node.op!r}; the ops are {', '.join(OPS)}"
        return
    if op.arity is not None and len(node.operands) != op.arity:
        yield f"takes {op.arity} operands, has {len(node.operands)}"
    for name in _NEEDED.get(node.op, ()):
        if name not in node.attrs:
            yield f"lacks the attribute {name!r}"
    for dim in (*node.shape, *_extents(node).values()):
        yield from _dim(dim, hlir.symbols)
    for k, operand in enumerate(node.operands):
        if not 0 <= operand.node < n:
            yield f"operand {k} is %{operand.node}, which does not come before it"
            return
    yield from _attributes(hlir, node)
    yield from _dtypes(hlir, node)
    for k, operand in enumerate(node.operands):
        for complaint in _view(hlir, operand, _axes(hlir, node, k)):
            yield f"operand {k}, {describe(hlir, operand.node)}, {complaint}"


def _extents(node: Node) -> dict[str, Dim]:
    """The extents that attributes give."""
    out = {"r": node.attrs["extent"]} if "extent" in node.attrs else {}
    if node.op == "Gather":
        out |= {f"{GATHERED}{k}": e for k, e in enumerate(node.attrs.get("extents", ()))}
    return out


def _axes(hlir: Hlir, node: Node, k: int) -> dict[str, Dim]:
    """The axes over which operand `k` is read."""
    shape = node.shape
    if node.op == "Scatter" and k > 0:
        shape = node.attrs.get("points", hlir.nodes[node.operands[1].node].shape)
    if node.op == "Custom":
        shape = hlir.nodes[node.operands[k].node].shape
    axes = {out_axis(d): e for d, e in enumerate(shape)}
    return axes | (_extents(node) if k == 0 or OPS[node.op].family == "reduce" else {})


def _dim(dim: Dim, symbols: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(dim, bool) or not isinstance(dim, (int, Size)):
        yield f"the dim {dim!r} is a {type(dim).__name__}, not an integer or an expression"
    elif isinstance(dim, int):
        if dim < 0:
            yield f"the dim {dim} is negative"
    elif unknown := sorted(str(s) for s in dim.free_symbols if str(s) not in symbols):
        yield f"the dim {dim} mentions {', '.join(unknown)}, which has no bounds"


def _attributes(hlir: Hlir, node: Node) -> Iterator[str]:
    if node.op == "Constant":
        yield from _constant(node.attrs["value"], node.dtype)
    elif node.op == "Iota":
        strange = sorted(node.attrs["index"].axes - set(node.axes()))
        if strange:
            yield f"its index {node.attrs['index']} mentions the unknown axis {strange[0]}"
    elif node.op == "Gather" and len(node.attrs["extents"]) != len(node.operands) - 1:
        yield f"has {len(node.operands) - 1} indices and {len(node.attrs['extents'])} extents"
    elif node.op == "Scatter":
        if node.attrs["mode"] not in ("set", "add"):
            yield f"its mode is {node.attrs['mode']!r}, not 'set' or 'add'"
        if len(node.operands) != 2 + len(node.shape):
            yield f"has {len(node.operands) - 2} indices for {len(node.shape)} dims"
    elif node.op == "Custom":
        for ref in _refs(node.attrs["template"]):
            if not 0 <= ref.operand < len(node.operands):
                yield f"its template mentions operand {ref.operand} of {len(node.operands)}"
        for k, operand in enumerate(node.operands):
            if operand.view != View.identity(len(hlir.nodes[operand.node].shape)):
                yield f"operand {k} is read through {operand.view}, not by identity"


def _constant(value: Any, dtype: DType) -> Iterator[str]:
    if dtype is BOOL:
        fits = isinstance(value, bool)
    elif dtype.is_int:
        low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
        fits = type(value) is int and low <= value < low + (1 << dtype.bits)
    else:
        fits = type(value) in (int, float)
    if not fits:
        yield f"the value {value!r} is not a {dtype}"


def _refs(template: Any) -> Iterator[Ref | ComplexRef]:
    if isinstance(template, (Ref, ComplexRef)):
        yield template
    elif isinstance(template, (tuple, list)):
        for item in template:
            yield from _refs(item)
    elif isinstance(template, dict):
        for item in template.values():
            yield from _refs(item)


def _dtypes(hlir: Hlir, node: Node) -> Iterator[str]:
    op = OPS[node.op]
    given = [hlir.nodes[o.node].dtype for o in node.operands]
    if node.op in ("Gather", "Scatter"):
        values, indices = (
            (given[:1], given[1:]) if node.op == "Gather" else (given[:2], given[2:])
        )
        for d in indices:
            if not d.is_int:
                yield f"an index is {d}, not an integer"
        given = values
    if op.dtype == "bool" and node.dtype is not BOOL:
        yield f"is {node.dtype}, and {node.op} gives bool"
    if op.dtype == "branch":
        if given[0] is not BOOL:
            yield f"its condition is {given[0]}, not bool"
        given = given[1:]
    if op.dtype == "last":
        if not given[-1].is_int:
            yield f"its last operand is {given[-1]}, not an integer"
        given = given[-1:]
    if op.dtype == "attr":
        return
    if op.dtype != "bool":
        given = [*given, node.dtype]
    if any(d is not given[0] for d in given):
        yield f"mixes the dtypes {', '.join(d.name for d in given)}; a Cast is needed"
    if op.floats_only and not node.dtype.is_float:
        yield f"takes floats, not {node.dtype}"


def _view(hlir: Hlir, operand: Operand, axes: Mapping[str, Dim]) -> Iterator[str]:
    """Complaints about an operand's view, read over `axes`."""
    view, shape = operand.view, hlir.nodes[operand.node].shape
    if len(view.index) != len(shape):
        yield f"is read by {view}, which has {len(view.index)} indices for {len(shape)} dims"
        return
    for expression in (*view.index, *view.guard):
        if strange := sorted(expression.axes - set(axes)):
            yield f"is read by {view}, and {strange[0]} is none of its axes {', '.join(axes)}"
            return
    if view.guard:
        yield from _constant(view.fill, hlir.nodes[operand.node].dtype)
        return
    if any(e == 0 for e in axes.values()):
        return  # nothing is read
    for d, (index, size) in enumerate(zip(view.index, shape)):
        bounds = _bounds(index, axes)
        if bounds and isinstance(size, int) and not 0 <= bounds[0] <= bounds[1] < size:
            low, high = bounds
            yield f"is read at {index} in [{low}, {high}], and dim {d} has size {size}"


def _bounds(index: Index, axes: Mapping[str, Dim]) -> tuple[int, int] | None:
    extents = {a: axes[a] for a in index.axes}
    if not all(isinstance(e, int) for e in extents.values()):
        return None
    return index.bounds(extents)


def _inputs(hlir: Hlir) -> Iterator[str]:
    yield from _unique("input", [spec.name for spec in hlir.inputs])
    known = {spec.node: spec for spec in hlir.inputs}
    for n, node in enumerate(hlir.nodes):
        if node.op == "Input" and n not in known:
            yield f"the Input %{n} ({node.attrs['name']!r}) is not among the program's inputs"
    positions = [spec.position for spec in hlir.inputs if spec.kind == "arg"]
    if len(set(positions)) != len(positions):
        yield f"two arguments have the same position: {positions}"
    for spec in hlir.inputs:
        node = hlir.nodes[spec.node] if 0 <= spec.node < len(hlir.nodes) else None
        if node is None or node.op != "Input" or node.attrs["name"] != spec.name:
            yield f"the input {spec.name!r} is %{spec.node}, which is not its Input node"
            continue
        given = hlir.weights.get(spec.name)
        if spec.kind != "arg" and given is not None and _static(node.shape):
            if tuple(given.shape) != node.shape:
                yield f"the weight {spec.name!r} is {tuple(given.shape)}, not {node.shape}"
            if str(given.dtype).removeprefix("torch.") != node.dtype.torch_name:
                yield f"the weight {spec.name!r} is {given.dtype}, not {node.dtype}"


def _outputs(hlir: Hlir) -> Iterator[str]:
    yield from _unique("output", [spec.name for spec in hlir.outputs])
    names = {spec.name for spec in hlir.inputs}
    for spec in hlir.outputs:
        title = f"the output {spec.name!r}"
        if spec.name in names:
            yield f"{title} has the name of an input"
        if not 0 <= spec.value.node < len(hlir.nodes):
            yield f"{title} is %{spec.value.node}, and there are {len(hlir.nodes)} nodes"
            continue
        for dim in spec.shape:
            yield from (f"{title}: {c}" for c in _dim(dim, hlir.symbols))
        axes = {out_axis(d): e for d, e in enumerate(spec.shape)}
        yield from (f"{title} {c}" for c in _view(hlir, spec.value, axes))
        if spec.stride is not None and len(spec.stride) != len(spec.shape):
            yield f"{title} has {len(spec.shape)} dims and {len(spec.stride)} strides"
        for role, name in (("mutates", spec.mutates), ("aliases", spec.aliases)):
            if name is not None and name not in names:
                yield f"{title} {role} {name!r}, which is no input"


def _symbols(hlir: Hlir) -> Iterator[str]:
    for name, (low, high) in hlir.symbols.items():
        if not 0 <= low <= high <= math.inf:
            yield f"the symbolic dim {name} has the bounds [{low}, {high}]"


def _static(shape: Sequence[Dim]) -> bool:
    return all(isinstance(d, int) for d in shape)


def _unique(what: str, names: Sequence[str]) -> Iterator[str]:
    for k, name in enumerate(names):
        if name in names[:k]:
            yield f"two {what}s are called {name!r}"
