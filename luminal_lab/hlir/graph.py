"""The Hlir: an immutable graph of primitive ops whose operands are read through views."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.sizes import Dim
from luminal_lab.hlir.view import REDUCED, View, out_axis

if TYPE_CHECKING:
    import graphviz
    import pandas

    from luminal_lab.hlir.compare import Diff
    from luminal_lab.runtime.profiling import Profile

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

    A template is `(args, kwargs)`, a tuple and a dict, of tuples, lists, None, bools, numbers
    (complex ones too),
    strings (a device is one), dims, DTypes, `Ref`, `ComplexRef` and `TorchName`.
    """

    operand: int


@dataclass(frozen=True, slots=True)
class ComplexRef:
    """In a Custom's template: operand `operand` as a complex tensor.

    The operand's last dim, of size 2, holds the real and the imaginary part. A complex result
    of a Custom has such a dim too.
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
            `result` (which of its results, None when the call returns a single tensor), for an
            operator of the user's own also `roles` (the named dims of each operand, then of
            the result) and `numbers` (its arguments that are numbers).
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
    stride: tuple[Dim, ...] | None = None
    mutates: str | None = None
    aliases: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Hlir:
    """A captured program.

    Two programs are equal when their text forms are, sources left out. Weights count by name.

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

    # What follows delegates to one module each: this one stays a definition.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hlir):
            return NotImplemented
        return self is other or self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    @cached_property
    def _text(self) -> str:
        return self.text(sources=False)

    @cached_property
    def key(self) -> str:
        """The structural hash: ops, views, shapes and dtypes, neither names nor weights."""
        from luminal_lab.hlir.compare import structural_hash

        return structural_hash(self)

    def check(self) -> Hlir:
        """This program, checked; see `luminal_lab.hlir.validate`.

        Raises:
            HlirError: names the node and the user's line.
        """
        from luminal_lab.hlir.validate import check

        return check(self)

    def text(self, *, sources: bool = True) -> str:
        """The text form, one node per line; `luminal_lab.hlir.parse` reads it back."""
        from luminal_lab.hlir.text import text

        return text(self, sources=sources)

    def table(self) -> pandas.DataFrame:
        """One row per node: op, shape, dtype, operands, bytes, flops, module, line, aten."""
        from luminal_lab.hlir.inspect import table

        return table(self)

    def fallbacks(self, profile: Profile | None = None) -> pandas.DataFrame:
        """One row per call of an ATen operator that has no lowering: op, reason, line, module.

        Arguments:
            profile: Of an executable of this program (`luminal_lab.profile`): then each row has
                its microseconds and its share of the time of all kernels. Calls of the same
                operator get equal parts of its time; NaN where it was never called.
        """
        from luminal_lab.hlir.inspect import fallbacks

        return fallbacks(self, profile)

    def graph(self) -> graphviz.Digraph:
        """The graph, grouped by module."""
        from luminal_lab.hlir.inspect import graph

        return graph(self)

    def diff(self, other: Hlir) -> Diff:
        """How `other` differs from this program."""
        from luminal_lab.hlir.compare import diff

        return diff(self, other)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program and its weights to one file.

        Raises:
            HlirError: when it cannot be written.
        """
        from luminal_lab.hlir.storage import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Hlir:
        """Read what `save` wrote.

        Raises:
            HlirError: when there is no such file or it is something else.
        """
        from luminal_lab.hlir.storage import load

        return load(path)

    def __repr__(self) -> str:
        from luminal_lab.hlir.inspect import summary

        return summary(self)

    def widget(self) -> Any:
        """The program as an interactive panel for notebooks.

        Raises:
            LuminalError: when the notebook extra is not installed.
        """
        return import_module("luminal_lab.widgets").panel_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from luminal_lab.hlir.inspect import mimebundle

        return mimebundle(self)
