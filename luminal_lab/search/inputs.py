"""Inputs for verification and timing: small, random, finite, never zero, indices in bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.graph import Hlir, InputSpec

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 4  # integers that index nothing are below this


@dataclass(frozen=True)
class Recipe:
    """How a random input is made: a few numbers that can travel in place of the tensor.

    Arguments:
        shape: Of the tensor.
        dtype: Its name.
        seed: Of the generator.
        scale: Of floats.
        high: Integers are below it.

    >>> float(Recipe((2, 3), "f32", seed=1).make().abs().min()) >= 0.05
    True
    """

    shape: tuple[int, ...]
    dtype: str
    seed: int
    scale: float = 1.0
    high: int = _SMALL

    def make(self) -> Tensor:
        """The tensor, the same on every machine."""
        import torch

        rng = torch.Generator().manual_seed(self.seed)
        kind = DTYPES[self.dtype]
        dtype = torch_dtype(kind, "native")
        if kind.is_float:
            magnitude = 0.05 + 0.6 * torch.randn(self.shape, generator=rng).abs()
            sign = torch.randint(0, 2, self.shape, generator=rng) * 2 - 1
            return (magnitude * sign * self.scale).to(dtype)
        if self.dtype == "bool":
            return torch.rand(self.shape, generator=rng) < 0.8
        return torch.randint(0, self.high, self.shape, generator=rng).to(dtype)


def search_inputs(
    hlir: Hlir, weights: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """A tensor for each input of a program.

    Arguments:
        hlir: The program; its dims are ints.
        weights: The real weights, by input name; those that are missing or not finite are
            replaced by random ones.
        seed: The same seed gives the same tensors.

    Returns:
        Tensors of the declared shapes and dtypes. Floats have magnitudes between 0.05 and about
        1.5 (divided by the root of the last dim for weights with several dims); integers are
        valid indices into whatever they index; four of five bools are true.
    """
    recipes = input_recipes(hlir, weights, seed)
    return {
        spec.name: recipes[spec.name].make()
        if spec.name in recipes
        else (weights or {})[spec.name].detach()
        for spec in hlir.inputs
    }


def input_recipes(
    hlir: Hlir, weights: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, Recipe]:
    """How each input that is no usable weight is made; see `search_inputs`."""
    bounds = index_bounds(hlir)
    out: dict[str, Recipe] = {}
    for k, spec in enumerate(hlir.inputs):
        given = (weights or {}).get(spec.name)
        if given is None or not usable(given):
            out[spec.name] = _recipe(hlir, spec, bounds, seed * 7919 + k)
    return out


def usable(tensor: Tensor) -> bool:
    """Whether all elements are finite."""
    import torch

    return not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())


def _recipe(hlir: Hlir, spec: InputSpec, bounds: Mapping[str, int], seed: int) -> Recipe:
    node = hlir.nodes[spec.node]
    shape = tuple(int(n) for n in node.shape)
    scale = 1.0
    if spec.kind != "arg" and len(shape) > 1:
        scale = 1 / math.sqrt(max(1, shape[-1]))
    return Recipe(shape, node.dtype.name, seed, scale, max(1, bounds.get(spec.name, _SMALL)))


def index_bounds(hlir: Hlir) -> dict[str, int]:
    """For each integer input that indexes something (in a Gather or Scatter), its upper bound.

    Only the smallest extent that it may index counts; arithmetic on the way (as `x + 1`) is
    guarded by the program itself or leaves the values in bounds by lowering.
    """
    reach: dict[int, int] = {}  # node -> the bound of what it indexes
    for n in reversed(range(len(hlir.nodes))):
        node = hlir.nodes[n]
        extents: list[Any] = []
        if node.op == "Gather":
            extents = list(node.attrs["extents"])
            indices = node.operands[1:]
        elif node.op == "Scatter":
            extents = list(hlir.nodes[node.operands[0].node].shape)
            indices = node.operands[2:]
        else:
            indices = ()
        for operand, extent in zip(indices, extents):
            old = reach.get(operand.node)
            reach[operand.node] = int(extent) if old is None else min(old, int(extent))
        if n in reach and not node.dtype.is_float:
            for operand in node.operands:
                if node.op in ("Gather", "Scatter") and operand is not node.operands[0]:
                    continue
                if not hlir.nodes[operand.node].dtype.is_float:
                    old = reach.get(operand.node)
                    reach[operand.node] = reach[n] if old is None else min(old, reach[n])
    return {s.name: reach[s.node] for s in hlir.inputs if s.node in reach}
