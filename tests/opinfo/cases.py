"""The cases: operators of `op_db` by dtype, and their sample inputs as flat functions."""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

# Their values are whatever was in memory: shape and dtype are compared.
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
             "new_empty_strided")  # fmt: skip


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# OpInfo seeds random operators within the call, where a tracer does not see it; we do outside.
for _module in list(sys.modules.values()):
    if hasattr(_module, "wrapper_set_seed") and "torch.testing" in _module.__name__:
        _module.wrapper_set_seed = _unseeded


@dataclass(frozen=True)
class Case:
    """An operator in one dtype.

    Arguments:
        op: Its name in `op_db`.
        variant: Which of the entries of that name.
        dtype: Name of the dtype of its samples, `"float32"`.
    """

    op: str
    variant: str
    dtype: str

    @property
    def name(self) -> str:
        """The operator with its variant."""
        return f"{self.op}:{self.variant}" if self.variant else self.op

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from other cases."""
        return self.op, self.variant, self.dtype


@dataclass(frozen=True)
class Sample:
    """One call: a function of tensors only, and the tensors."""

    fn: Callable[..., Any]
    args: Sequence[torch.Tensor]

    def copies(self) -> list[torch.Tensor]:
        """The tensors, of their own memory, laid out the same way."""
        return [_copy(a) for a in self.args]

    def in_float64(self) -> Sample:
        """The same call with every float in double precision, dtype arguments too."""
        wide = [a.double() if a.is_floating_point() else a for a in self.args]
        return Sample(_Flat(*self.fn.parts, wide=True), wide)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides into a copy of the same storage, which views may need."""
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        return x.detach().clone()
    storage = x.untyped_storage().clone()
    return x.new_empty(0).set_(storage, x.storage_offset(), x.shape, x.stride())


class _Flat:
    """A call as a function of its tensors alone."""

    def __init__(self, call: Any, leaves: Any, spec: Any, places: Any, wide: bool = False):
        self.parts = (call, leaves, spec, places)
        self.wide = wide

    def __call__(self, *tensors: torch.Tensor) -> Any:
        call, leaves, spec, places = self.parts
        leaves = list(leaves)
        if self.wide:
            leaves = [_double(x) for x in leaves]
        for place, tensor in zip(places, tensors):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, spec)
        return call(*args, **kwargs)


def _double(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def cases(dtypes: Sequence[str] | None = None, ops: str = "") -> list[Case]:
    """Cases in the order of `op_db`.

    Arguments:
        dtypes: Names of dtypes; all when None.
        ops: A regular expression that an operator's whole name matches; all when empty.
    """
    found = []
    for info in op_db:
        made = [
            Case(info.name, info.variant_test_name, str(d).removeprefix("torch."))
            for d in sorted(info.supported_dtypes("cpu"), key=str)
        ]
        found += [
            case
            for case in made
            if (dtypes is None or case.dtype in dtypes)
            and (not ops or re.fullmatch(ops, case.op) or re.fullmatch(ops, case.name))
        ]
    return found


_BY_NAME = {(info.name, info.variant_test_name): info for info in op_db}


def samples(case: Case) -> Iterator[Sample]:
    """The sample inputs of a case, the same ones in every process."""
    info = _BY_NAME[case.op, case.variant]
    seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(info.sample_inputs("cpu", getattr(torch, case.dtype), requires_grad=False))
    for sample in made:
        yield flat_sample(info.get_op(), (sample.input, *sample.args), dict(sample.kwargs))


def flat_sample(call: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Sample:
    """A call as a sample: its tensors, wherever they are in its arguments."""
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    places = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    return Sample(_Flat(call, leaves, spec, places), [leaves[k] for k in places])


def seed(number: int) -> None:
    """Seed every generator that samples and random operators draw from."""
    random.seed(number)
    numpy.random.seed(number)  # noqa: NPY002 (OpInfo's samples draw from it)
    torch.manual_seed(number)


def clones(values: Any) -> Any:
    """A tree of results, of its own memory."""
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values)
