"""The Hlir: an immutable graph of primitive ops whose operands are read through views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.view import REDUCED, View, out_axis

Dim = Any  # int, or a sympy expression over the symbols of `Hlir.symbols`
NodeId = int  # position in `Hlir.nodes`; operands always precede their consumers


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node came from.

    Arguments:
        line: The user's source line, `"model.py:12 in forward"`.
        module: The path of the `nn.Module` that it belongs to, `"encoder.layer.0.attention"`.
        aten: The ATen overload that was lowered to it, `"aten.addmm.default"`.
    """

    line: str = ""
    module: str = ""
    aten: str = ""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: which node, and how it is read from the consumer's axes."""

    node: NodeId
    view: View


@dataclass(frozen=True, slots=True)
class Ref:
    """In a Custom's template: the value of operand `operand`.

    A template is `(args, kwargs)`, a tuple and a dict, of tuples, lists, None, bools, numbers,
    strings (a device is one), dims, DTypes, `Ref` and `TorchName`.
    """

    operand: int


@dataclass(frozen=True, slots=True)
class TorchName:
    """In a Custom's template: an attribute of torch, such as `preserve_format` or `strided`."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """One op.

    Iterates over axes `i0…` (one per dim of `shape`); a reduction also over `r`.

    Arguments:
        op: A name of the op table.
        operands: Reads of earlier nodes.
        shape: Dims of the result.
        dtype: Element type of the result.
        attrs: What else defines the op: Input `name`; Constant `value`; Iota `index` (an
            Index); reductions `extent` (of axis `r`); Scatter `mode`; Gather `extents` (of the
            dims that `@0…` index); Custom `target` (`"aten.sort.default"`), `template`
            (`(args, kwargs)`, see `Ref`), `call` (shared by all results of one call) and
            `result` (which of its results, None when the call returns a single tensor).
            The operands of a Scatter after the first are read over the points that it stores:
            attr `points`, or the shape of operand 1 where that attr is absent.
            The operands of a Custom are read by identity.
        source: Provenance; it never takes part in equality or hashing of structure.
    """

    op: str
    operands: tuple[Operand, ...]
    shape: tuple[Dim, ...]
    dtype: DType
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Source = field(default=Source(), compare=False)

    def axes(self) -> dict[str, Dim]:
        """The axes that it iterates over, with their extents."""
        out = {out_axis(k): n for k, n in enumerate(self.shape)}
        if "extent" in self.attrs:
            out[REDUCED] = self.attrs["extent"]
        return out


InputKind = Literal["arg", "weight", "constant"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A program input.

    Arguments:
        node: The Input node.
        name: Its unique name: the argument's path (`"input_ids"`), or the weight's qualified
            name.
        kind: `arg` (given at each call), `weight` (parameter or buffer, by reference) or
            `constant` (a tensor literal of the program).
        position: For an `arg`, its position among the flattened user inputs.
    """

    node: NodeId
    name: str
    kind: InputKind
    position: int | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A program output.

    Arguments:
        value: What it reads, over axes `i0…` of `shape`.
        shape: Dims of the output.
        name: A unique name.
        stride: Strides in elements that eager PyTorch would give; None means row-major.
        mutates: Name of the input that this output is written back into, None for a user
            output.
        aliases: Name of the input that the user output *is*, when eager returns the input
            itself.
    """

    value: Operand
    shape: tuple[Dim, ...]
    name: str
    stride: tuple[int, ...] | None = None
    mutates: str | None = None
    aliases: str | None = None


@dataclass(frozen=True)
class Hlir:
    """A captured program.

    Arguments:
        nodes: In topological order.
        inputs: Program inputs and weights.
        outputs: Mutations first, then user outputs, in order.
        weights: Weight and constant tensors by input name, by reference (torch tensors).
        symbols: Inclusive bounds of each symbolic dim, by name.
        in_spec, out_spec: The pytree structures of the user's inputs and outputs (torch
            TreeSpecs), or None for flat ones.
        name: For titles.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    weights: Mapping[str, Any] = field(default_factory=dict)
    symbols: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    in_spec: Any = None
    out_spec: Any = None
    name: str = "hlir"
