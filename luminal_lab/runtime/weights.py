"""The weights of a program: shared with PyTorch, and watched for changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from luminal_lab.errors import CallError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.search.candidate import Candidate

if TYPE_CHECKING:
    from torch import Tensor


class Weights:
    """The weights of a program, by reference, and how to tell that one has changed.

    A weight whose layout is not what the kernels read is copied; the copy follows its original.

    Arguments:
        candidate: The program.
        given: Tensors by name.
        updated: Those that the program writes in place, which is no change from outside.
    """

    def __init__(
        self,
        candidate: Candidate,
        given: Mapping[str, Tensor],
        updated: frozenset[str] = frozenset(),
    ):
        from operator import attrgetter

        import torch

        self.names = tuple(
            n for n, kind in candidate.kinds.items() if kind in ("weight", "constant")
            and n in given
        )  # fmt: skip
        self.buffers = {n: candidate.buffers[n] for n in self.names}
        self.original = {n: given[n].detach() for n in self.names}
        for name in self.names:
            self._check(name)
        self.current = {n: self._laid_out(n) for n in self.names}
        # Tensors made under inference mode keep no version; their pointer is all that tells.
        # So it does of what the program itself updates in place: nothing else depends on it.
        self._tracked = [
            given[n]
            for n in self.names
            if not given[n].is_inference()
            and (n not in updated or self.current[n].data_ptr() != given[n].data_ptr())
        ]
        self._given = [given[n] for n in self.names]
        self._version, self._pointer = attrgetter("_version"), torch.Tensor.data_ptr
        self._versions = list(map(self._version, self._tracked))
        self._sum = sum(self._versions)
        self._pointers = list(map(self._pointer, self._given))

    @property
    def changed(self) -> bool:
        """Whether one was written or replaced since it was last read (versions only grow)."""
        return (
            sum(map(self._version, self._tracked)) != self._sum
            or list(map(self._pointer, self._given)) != self._pointers
        )

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that had to be copied for their layout."""
        return sum(
            t.numel() * t.element_size()
            for n, t in self.current.items()
            if t.data_ptr() != self.original[n].data_ptr()
        )

    def update(self) -> frozenset[str]:
        """Follow what changed; the names of the weights that did."""
        pointers = list(map(self._pointer, self._given))
        versions = list(map(self._version, self._tracked))
        moved = {id(t) for t, a, b in zip(self._given, pointers, self._pointers) if a != b}
        moved |= {id(t) for t, a, b in zip(self._tracked, versions, self._versions) if a != b}
        names = [n for n, t in zip(self.names, self._given) if id(t) in moved]
        for name, tensor in zip(self.names, self._given):
            if name in names:
                self.original[name] = tensor.detach()
                self._check(name)
                self.current[name] = self._laid_out(name)
        self._versions, self._sum, self._pointers = versions, sum(versions), pointers
        return frozenset(names)

    def _laid_out(self, name: str) -> Tensor:
        import torch

        tensor, buffer = self.original[name], self.buffers[name]
        if same_layout(tensor.stride(), buffer.element_strides, buffer.shape):
            return tensor
        with torch.inference_mode(False), torch.no_grad():
            out = torch.empty_strided(buffer.shape, buffer.element_strides, dtype=tensor.dtype)
            return out.copy_(tensor)

    def _check(self, name: str) -> None:
        tensor, buffer = self.original[name], self.buffers[name]
        expected = torch_dtype(buffer.dtype)
        if tensor.device.type != "cpu":
            raise CallError(
                f"the weight {name!r} is on {tensor.device}, and the program runs on the CPU",
                fix="move the module with .cpu() before it is captured",
            )
        if tuple(tensor.shape) != buffer.shape or tensor.dtype != expected:
            raise CallError(
                f"the weight {name!r} is {tensor.dtype}{list(tensor.shape)}; the program was "
                f"compiled for {expected}{list(buffer.shape)}",
                fix="compile again after changing a weight's shape or dtype",
            )


def same_layout(a: Sequence[int], b: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether two strides mean the same; those of dims of one element do not count."""
    return 0 in shape or all(x == y or n == 1 for x, y, n in zip(a, b, shape))
