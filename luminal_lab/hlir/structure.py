"""The structure of a program's result when some of its leaves are not tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Structure:
    """A pytree whose leaves are tensors, but for some that are known already.

    It stands for a torch TreeSpec in `Hlir.out_spec`: both have `unflatten`.

    Arguments:
        spec: The TreeSpec of the whole result.
        constants: Leaves that are None, numbers or strings, by position.
    """

    spec: Any
    constants: Mapping[int, Any]

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
        return self.spec.unflatten(leaves)
