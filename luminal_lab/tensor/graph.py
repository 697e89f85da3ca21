"""The Graph that users write a program into."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from luminal_lab.errors import TensorError
from luminal_lab.hlir.dtypes import BOOL, F32, F64, I64
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.shapes import axes_of
from luminal_lab.hlir.sizes import LARGEST, Dim, Size, ceildiv, is_symbolic, largest, symbol
from luminal_lab.hlir.tensor import Graph as Builder
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.hlir.view import Scalar, out_axis
from luminal_lab.tensor.calls import known_dtype, op, shown
from luminal_lab.tensor.tensor import Tensor


class Graph:
    """A program that is written directly, operation by operation.

    Declare inputs and weights, compute with them, mark results, and hand the graph to any
    stage: `g.hlir()` is what `ll.capture` gives, and `ll.compile(g)` does everything.

        >>> import torch, luminal_lab as ll
        >>> g = ll.Graph("scaled")
        >>> x = g.tensor("x", ("rows", 8))
        >>> w = g.weight("w", torch.ones(8))
        >>> y = (x * w).sum(-1).output("y")
        >>> [node.op for node in g.hlir().nodes]
        ['Input', 'Input', 'Mul', 'SumReduce']

    Arguments:
        name: For titles.
    """

    def __init__(self, name: str = "graph"):
        self.builder, self.name = Builder(name), name
        self.path: list[str] = []
        self.busy = False
        self._dims: dict[str, Size] = {}
        self._inputs: dict[str, Tensor] = {}
        self._outputs: list[tuple[str, Raw]] = []
        self._updates: dict[str, Raw] = {}

    # ------------------------------------------------------------------ inputs
    @op
    def dim(
        self, name: str, low: int = 1, high: int = LARGEST, hint: int | None = None
    ) -> Size:
        """A dim whose size each call decides; arithmetic on it gives symbolic sizes.

        Arguments:
            name: An identifier; in shapes, the name alone stands for it too.
            low: Its least value, at least 1.
            high: Its greatest value.
            hint: The size that kernels are tuned for.

        Raises:
            TensorError: when it is declared already with other bounds.
        """
        if not name.isidentifier():
            raise TensorError(f"{name!r} is no name of a dim", fix="an identifier, such as 's'")
        made = symbol(name, low, high, hint)
        if self._dims.setdefault(name, made) != made:
            raise TensorError(f"the dim {name!r} is used already, with other bounds or hint")
        return made

    def _shape(self, shape: Any) -> tuple[Dim, ...]:
        given = shape if isinstance(shape, (tuple, list)) else (shape,)
        out: list[Dim] = []
        for n in given:
            if isinstance(n, str):
                out.append(self._dims[n] if n in self._dims else self.dim(n))
            elif is_symbolic(n) or (isinstance(n, int) and n >= 0):
                out.append(n)
            else:
                raise TensorError(f"{n!r} is no size", fix="an int, or a dim's name")
        return tuple(out)

    @op
    def tensor(self, name: str, shape: Any, dtype: Any = "f32") -> Tensor:
        """An input of the program; calls pass inputs in the order of their declaration.

        Arguments:
            name: Unique in the program.
            shape: A size or several: ints, names of dims (`"s"`), expressions of `g.dim(…)`.
            dtype: A short name (`"bf16"`), a torch name or a `torch.dtype`.
        """
        raw = self.builder.input(name, self._shape(shape), known_dtype(dtype))
        self._inputs[name] = made = Tensor(self, raw)
        return made

    @op
    def weight(
        self, name: str, value: Any = None, shape: Any = None, dtype: Any = None
    ) -> Tensor:
        """An input that is given once: here, or by `load`.

        Arguments:
            name: Unique in the program, such as `"layers.0.weight"`.
            value: A torch tensor (kept by reference) or an array; None to give it later.
            shape: Its shape, when there is no value yet.
            dtype: Its dtype, f32 when there is no value either.
        """
        if value is None:
            if shape is None:
                raise TensorError(f"the weight {name!r} needs a value or a shape")
            made = known_dtype(dtype or F32)
            raw = self.builder.input(name, self._shape(shape), made, "weight")
        else:
            held = as_torch(value, dtype)
            raw = self.builder.input(
                name, tuple(held.shape), known_dtype(held.dtype), "weight", value=held
            )
        self._inputs[name] = out = Tensor(self, raw)
        return out

    def parameter(self, name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """A weight of a module: the one of that name, where there is one already."""
        if name not in self._inputs:
            if value is not None:
                return self.weight(name, value)
            return self.weight(name, shape=shape, dtype=dtype)
        known, held = self._inputs[name], self.builder.weights.get(name)
        if value is not None and held is not None and held is not value:
            raise TensorError(
                f"two weights are called {name!r}", fix="make the modules parts of one module"
            )
        if known.shape != shape:
            raise TensorError(f"{name!r} is {shown(known)}, and not of shape {shape}")
        return known

    @op
    def load(self, values: Mapping[str, Any], strict: bool = True) -> None:
        """Give weights their values by name, such as a module's `state_dict()`.

        Arguments:
            values: Torch tensors (kept by reference) or arrays.
            strict: Whether each value must have a weight and each weight a value.

        Raises:
            TensorError: when a shape or dtype differs, or (`strict`) a name is missing.
        """
        weights = [s.name for s in self.builder.inputs if s.kind == "weight"]
        for name in weights:
            if name in values:
                self._hold(name, values[name])
        extra = [n for n in values if n not in weights]
        missing = [n for n in weights if self.builder.weights[n] is None]
        if strict and (extra or missing):
            told = [f"no value for {', '.join(missing[:5])}"] if missing else []
            told += [f"no weight called {', '.join(extra[:5])}"] if extra else []
            raise TensorError("; ".join(told), fix="strict=False takes what fits")

    def _hold(self, name: str, value: Any) -> None:
        declared = self._inputs[name]
        held = as_torch(value, None)
        if tuple(held.shape) != declared.shape or known_dtype(held.dtype) != declared.dtype:
            raise TensorError(
                f"the weight {name!r} is {shown(declared)}, its value "
                f"{known_dtype(held.dtype)}{list(held.shape)}",
                fix="cast the value, or declare the weight like it",
            )
        self.builder.weights[name] = held

    # ------------------------------------------------------------------ known values
    @op
    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """A number, a symbolic size (0-d), or an array that the program holds.

        Numbers are bool, i64 or f32 when no dtype is given, arrays as they are.
        """
        if isinstance(value, (bool, int, float, Size)):
            kind = BOOL if isinstance(value, bool) else F32 if isinstance(value, float) else I64
            known = kind if dtype is None else known_dtype(dtype)
            return Tensor(self, self.builder.constant(value, known))
        held = as_torch(value, dtype)
        if not held.numel():
            return self.full(tuple(held.shape), 0, held.dtype)
        name = f"constant{sum(s.kind == 'constant' for s in self.builder.inputs)}"
        while any(s.name == name for s in self.builder.inputs):
            name += "_"
        raw = self.builder.input(
            name, tuple(held.shape), known_dtype(held.dtype), "constant", value=held
        )
        return Tensor(self, raw)

    @op
    def full(self, shape: Any, value: Scalar, dtype: Any = "f32") -> Tensor:
        """A tensor of one value."""
        return Tensor(self, self.builder.full(self._shape(shape), value, known_dtype(dtype)))

    def zeros(self, shape: Any, dtype: Any = "f32") -> Tensor:
        """A tensor of zeros."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = "f32") -> Tensor:
        """A tensor of ones."""
        return self.full(shape, 1, dtype)

    @op
    def iota(self, shape: Any, dim: int = -1, dtype: Any = "i64") -> Tensor:
        """At each point of `shape` its index along a dim.

        Integer arithmetic on it is free: `i * 64 + j` of two of them is an index expression,
        no tensor in memory.
        """
        dims = self._shape(shape)
        if not dims or not -len(dims) <= dim < len(dims):
            raise TensorError(f"no dim {dim} in {dims}")
        index = axes_of(dims)[dim % len(dims)]
        return Tensor(self, self.builder.iota(index, dims, I64).cast(known_dtype(dtype)))

    @op
    def arange(self, *bounds: Any, dtype: Any = None) -> Tensor:
        """`arange(end)`, `arange(start, end)` or `arange(start, end, step)`, a vector.

        i64 when all are whole numbers or sizes, f32 otherwise.
        """
        if not 1 <= len(bounds) <= 3:
            raise TensorError(f"arange takes 1 to 3 numbers, not {len(bounds)}")
        start, end = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else 1
        floats = any(isinstance(x, float) for x in (start, end, step))
        out = known_dtype(dtype) if dtype is not None else F32 if floats else I64
        if is_symbolic(step) or step == 0:
            raise TensorError(f"a step of {step}")
        if floats and any(map(is_symbolic, (start, end))):
            raise TensorError("a range of a size and a fraction", fix="whole numbers")
        if floats and not out.is_float:  # as PyTorch
            start, end, step = int(start), int(end), int(step)
            floats = False
        if floats:
            n = max(0, math.ceil((end - start) / step))
            i = self.builder.iota(Index.axis(out_axis(0)), (n,), I64).cast(F64)
            return Tensor(self, (i * float(step) + float(start)).cast(out))
        gap = end - start if step > 0 else start - end
        n = largest(ceildiv(gap, abs(step)), 0)
        index = (Index() if n == 1 else Index.axis(out_axis(0))) * step + start
        return Tensor(self, self.builder.iota(index, (n,), I64).cast(out))

    @contextmanager
    def module(self, *path: str) -> Iterator[None]:
        """Operations inside belong to a module path (`"layers.3"`).

        Blocks under numbered paths that compute the same thing with other weights are found as
        repeats of one region: saturated and searched once.
        """
        with self.at(".".join([*self.path, *path])):
            yield

    @contextmanager
    def at(self, path: str) -> Iterator[None]:
        """Likewise, with the whole path."""
        before = self.path
        self.path = [path] if path else []
        try:
            yield
        finally:
            self.path = before

    # ------------------------------------------------------------------ results
    def add_output(self, x: Tensor, name: str | None) -> None:
        """What `Tensor.output` does."""
        name = f"out{len(self._outputs)}" if name is None else name
        if any(name == n for n, _ in self._outputs):
            raise TensorError(f"two outputs are called {name!r}")
        self._outputs.append((name, x.raw))

    def make_weight(self, x: Tensor, value: Any) -> None:
        """What `Tensor.persist` does."""
        name = self._input_name(x)
        kept = [s for s in self.builder.inputs if s.kind == "arg" and s.name != name]
        position = {s.name: k for k, s in enumerate(kept)}
        self.builder.inputs = [
            replace(s, kind="weight", position=None)
            if s.name == name
            else replace(s, position=position.get(s.name))
            for s in self.builder.inputs
        ]
        self.builder.weights.setdefault(name, None)
        if any(map(is_symbolic, x.shape)):
            raise TensorError(f"a weight of the symbolic shape {x.shape}")
        if value is not None:
            self._hold(name, value)

    def add_update(self, x: Tensor, value: Raw) -> None:
        """What `Tensor.assign` does."""
        name = self._input_name(x)
        if (value.shape, value.dtype) != (x.shape, x.dtype):
            raise TensorError(f"{shown(value)} into {shown(x)}", fix="cast or reshape it")
        if name in self._updates:
            raise TensorError(f"{name!r} is assigned twice")
        self._updates[name] = value

    def _input_name(self, x: Tensor) -> str:
        for name, made in self._inputs.items():
            if made is x or made.raw == x.raw:
                return name
        raise TensorError("this tensor is computed, not an input or a weight")

    @op
    def hlir(self) -> Hlir:
        """The program, for `ll.saturate` and all that follows.

        Returns:
            Its user outputs are those marked by `output`, in that order: calling the program
            gives one tensor, or a tuple of several.

        Raises:
            TensorError: when nothing is marked, or a weight that it needs has no value.
        """
        if not self._outputs and not self._updates:
            raise TensorError("the graph has no outputs", fix="mark them: y.output('y')")
        updates = [
            (raw, {"name": f"{name}.new", "mutates": name})
            for name, raw in self._updates.items()
        ]
        outputs = [(raw, {"name": name}) for name, raw in self._outputs]
        spec = None
        if len(outputs) == 1:
            from torch.utils._pytree import tree_flatten

            spec = tree_flatten(0)[1]
        made = self.builder.finish(*updates, *outputs, out_spec=spec)
        missing = [name for name, value in made.weights.items() if value is None]
        if missing:
            raise TensorError(
                f"no value for the weight{'s' * (len(missing) > 1)} {', '.join(missing[:5])}",
                fix="g.load({name: value, …})",
            )
        return made.check()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n}: {shown(x)}" for n, x in list(self._inputs.items())[:6])
        more = ", …" if len(self._inputs) > 6 else ""
        outputs = ", ".join(f"{n}: {shown(x)}" for n, x in self._outputs) or "nothing yet"
        return (
            f"Graph({self.name}: ({inputs}{more}) -> {outputs}; "
            f"{len(self.builder.nodes)} nodes)"
        )


def as_torch(value: Any, dtype: Any) -> Any:
    """A torch tensor as it is, an array as one that shares its memory where it can.

    Raises:
        TensorError: for what is neither, and for dtypes that HLIR has no type for.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TensorError(f"{type(value).__name__} is no array: {error}") from None
    if dtype is not None:
        value = value.to(getattr(torch, known_dtype(dtype).torch_name))
    known_dtype(value.dtype)
    return value
