"""The structure of a program's result when some of its leaves are no tensors of HLIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Structure:
    """A pytree whose leaves are tensors, but for some that are known already or complex.

    It stands for a torch TreeSpec in `Hlir.out_spec`: both have `unflatten`.

    Arguments:
        spec: The TreeSpec of the whole result.
        constants: Leaves that are None, numbers or strings, by position.
        complex: Positions of the leaves that are complex: the program gives their real and
            imaginary parts, along a last dim of size 2.
    """

    spec: Any
    constants: Mapping[int, Any] = field(default_factory=dict)
    complex: tuple[int, ...] = ()

    @property
    def num_leaves(self) -> int:
        """Number of tensors that `unflatten` takes."""
        return self.spec.num_leaves - len(self.constants)

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """The result, from its tensors in order."""
        rest = iter(tensors)
        leaves = [
            self.constants[k] if k in self.constants else next(rest)
            for k in range(self.spec.num_leaves)
        ]
        if self.complex:
            import torch

            for k in self.complex:
                leaves[k] = torch.view_as_complex(leaves[k])
        return self.spec.unflatten(leaves)
