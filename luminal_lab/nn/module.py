"""Modules: named parameters and what is computed with them, in any graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luminal_lab.errors import TensorError
from luminal_lab.tensor.calls import known_dtype
from luminal_lab.tensor.graph import as_torch
from luminal_lab.tensor.tensor import Tensor


class Named:
    """What has a place in a tree of modules."""

    def __init__(self) -> None:
        self._parent: Module | None = None
        self._name = ""

    @property
    def path(self) -> str:
        """Its qualified name, `"layers.0.weight"`; `""` at the root."""
        above = self._parent.path if self._parent is not None else ""
        return f"{above}.{self._name}" if above else self._name


class Parameter(Named):
    """A weight of a module.

    Arguments:
        shape: Its dims.
        dtype: Its element type.
        fill: What `Module.reset` fills it with: a number, or None for random numbers.
    """

    def __init__(self, shape: Sequence[int], dtype: Any = "f32", fill: float | None = None):
        super().__init__()
        self.shape, self.dtype, self.fill = tuple(shape), known_dtype(dtype), fill
        self.value: Any = None

    def hold(self, value: Any) -> None:
        """Take a torch tensor (by reference) or an array as its value; its dtype becomes ours.

        Raises:
            TensorError: when it has another shape.
        """
        held = as_torch(value, None)
        if tuple(held.shape) != self.shape:
            raise TensorError(
                f"{self.path!r} has shape {self.shape}, its value {tuple(held.shape)}"
            )
        self.value, self.dtype = held.detach(), known_dtype(held.dtype)

    def on(self, x: Tensor) -> Tensor:
        """This weight in the graph of `x`; the same tensor each time."""
        return x.graph.parameter(self.path, self.value, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"Parameter({self.path}: {self.dtype}{list(self.shape)})"


class Module(Named):
    """A part of a model, like PyTorch's: parameters and modules are attributes.

    A module belongs to no graph. Calling it on Tensors adds to theirs; its parameters become
    weights with their qualified names, which are those of a `state_dict()`.

        >>> import torch, luminal_lab as ll
        >>> layer = ll.nn.Linear(8, 4)
        >>> layer.load_state_dict(torch.nn.Linear(8, 4).state_dict())
        >>> g = ll.Graph()
        >>> layer(g.tensor("x", ("n", 8))).output()
        Tensor(f32[n, 4])
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], Module):
                value = ModuleList(value)
            if isinstance(value, Named):
                value._parent, value._name = self, name
        object.__setattr__(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What it computes; subclasses say."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, with its nodes under this module's path."""
        graph = next(
            (a.graph for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None
        )
        if graph is None:
            raise TensorError(f"{type(self).__name__} is called on Tensors of a ll.Graph")
        with graph.at(self.path or ".".join(graph.path)):
            return self.forward(*args, **kwargs)

    # ------------------------------------------------------------------ parameters
    def parameters(self) -> Iterator[Parameter]:
        """All parameters, depth first, in the order of their definition."""
        for name, value in vars(self).items():
            if name.startswith("_"):
                continue
            if isinstance(value, Parameter):
                yield value
            elif isinstance(value, Module):
                yield from value.parameters()

    def load_state_dict(
        self, values: Mapping[str, Any], prefix: str = "", strict: bool = True
    ) -> None:
        """Take the parameters' values by their names.

        Arguments:
            values: Torch tensors (by reference) or arrays, such as a module's `state_dict()`.
            prefix: What stands before our names in it, such as `"model."`.
            strict: Whether each parameter must have a value, and each value a parameter.

        Raises:
            TensorError: for another shape, or (`strict`) a name that is missing or too many.
        """
        own = {p.path: p for p in self.parameters()}
        root = f"{self.path}." if self.path else ""
        given = {n[len(prefix) :]: v for n, v in values.items() if n.startswith(prefix)}
        names = {path[len(root) :]: p for path, p in own.items()}
        missing = [n for n in names if n not in given]
        extra = [n for n in given if n not in names]
        if strict and (missing or extra):
            told = [f"no value for {', '.join(missing[:5])}"] if missing else []
            told += [f"no parameter called {', '.join(extra[:5])}"] if extra else []
            raise TensorError("; ".join(told), fix="strict=False takes what fits")
        for name, parameter in names.items():
            if name in given:
                parameter.hold(given[name])

    def state_dict(self) -> dict[str, Any]:
        """The values of all parameters that have one, by name."""
        return {p.path: p.value for p in self.parameters() if p.value is not None}

    def reset(self, seed: int = 0) -> None:
        """Give every parameter a new value: random ones, and the ones and zeros of norms."""
        import torch

        rng = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            kind = getattr(torch, p.dtype.torch_name)
            if p.fill is not None:
                p.hold(torch.full(p.shape, p.fill, dtype=kind))
                continue
            scale = 1 / math.sqrt(max(1, math.prod(p.shape[1:])))
            p.hold((torch.randn(p.shape, generator=rng) * scale).to(kind))

    def __repr__(self) -> str:
        count = sum(math.prod(p.shape) for p in self.parameters())
        return f"{type(self).__name__}({self.path or 'root'}: {count:,} parameters)"


class ModuleList(Module):
    """Modules in a row, named by their numbers."""

    def __init__(self, modules: Sequence[Module]):
        super().__init__()
        self._modules = list(modules)
        for k, module in enumerate(self._modules):
            setattr(self, str(k), module)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, k: int) -> Module:
        return self._modules[k]
