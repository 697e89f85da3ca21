"""From the user's call to flat inputs, and from flat outputs to the user's structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from luminal_lab.errors import CallError
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.structure import Structure


class Signature:
    """The calling convention of a captured program.

    Arguments:
        hlir: The program; `in_spec` is the pytree of `(args, kwargs)`, None for tensors only.
    """

    def __init__(self, hlir: Hlir):
        self.name, self.in_spec, self.out_spec = hlir.name, hlir.in_spec, hlir.out_spec
        positions = [s.position for s in hlir.inputs if s.kind == "arg"]
        self.count = 1 + max((p for p in positions if p is not None), default=-1)
        self._plain_args = self.count
        self._plain_kwargs: tuple[str, ...] | None = ()
        if self.in_spec is not None:
            self.count = self.in_spec.num_leaves
            self._plain_args, self._plain_kwargs = self._plain()
        self._single = self._tuple = False
        if self.out_spec is not None and not isinstance(self.out_spec, Structure):
            self._single = self.out_spec.is_leaf()
            self._tuple = self.out_spec.type is tuple and _leaves(self.out_spec)

    def _plain(self) -> tuple[int, tuple[str, ...] | None]:
        """Number of positional and names of keyword inputs when each is one leaf, else None."""
        try:
            args, kwargs = _children(self.in_spec)
        except ValueError:
            return 0, None
        if _leaves(args) and _leaves(kwargs) and kwargs.type is dict:
            return args.num_leaves, tuple(kwargs.context or ())
        return 0, None

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The inputs by position.

        Raises:
            CallError: when their number or structure is not the captured one.
        """
        names = self._plain_kwargs
        if names is not None:
            if len(args) == self._plain_args and len(kwargs) == len(names):
                if not names:
                    return args
                try:
                    return (*args, *map(kwargs.__getitem__, names))
                except KeyError:
                    pass  # told below, with what is expected
            raise CallError(
                f"got {_count(len(args), kwargs)}; expected {_count(self._plain_args, names)}",
                where=f"call of {self.name}",
                fix="pass the inputs as they were passed to capture",
            )
        from torch.utils._pytree import tree_flatten

        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        if spec != self.in_spec:
            leaves = self._reordered(args, kwargs)
        return leaves

    def _reordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Keyword arguments in another order are the same call."""
        from torch.utils._pytree import tree_flatten

        _, wanted = _children(self.in_spec)
        names = tuple(wanted.context or ()) if wanted.type is dict else ()
        if sorted(names) == sorted(kwargs):
            leaves, spec = tree_flatten((tuple(args), {n: kwargs[n] for n in names}))
            if spec == self.in_spec:
                return leaves
        _, spec = tree_flatten((tuple(args), dict(kwargs)))
        raise CallError(
            f"the structure of the inputs is {spec}; expected {self.in_spec}",
            where=f"call of {self.name}",
            fix="pass the inputs as they were passed to capture",
        )

    def structure(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs from inputs by position: `flatten` undone."""
        if self.in_spec is None:
            return tuple(leaves), {}
        from torch.utils._pytree import tree_unflatten

        args, kwargs = tree_unflatten(list(leaves), self.in_spec)
        return tuple(args), dict(kwargs)

    def unflatten(self, outputs: list[Any]) -> Any:
        """The user's outputs in the module's structure; a tuple for a flat program."""
        if self._single:
            return outputs[0]
        if self.out_spec is None or self._tuple:
            return tuple(outputs)
        return self.out_spec.unflatten(outputs)


def _children(spec: Any) -> list[Any]:
    return list(spec.children())


def _leaves(spec: Any) -> bool:
    return all(child.is_leaf() for child in _children(spec))


def _count(positional: int, keywords: Any) -> str:
    text = f"{positional} positional input{'' if positional == 1 else 's'}"
    return f"{text} and keywords {', '.join(sorted(keywords))}" if keywords else text
