"""More cases: the modules of ModuleInfo, and the examples of `torch.export`'s database.

A module is a function of its parameters, its buffers and its arguments; what it leaves in its
buffers is compared too. Names tell them from operators: `nn.Linear`, `exportdb.cond_operands`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._export.db.examples import all_examples
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten

from tests.opinfo.cases import Case, Sample, flat_sample, seed

_MODULES = {info.name: info for info in module_db}
_EXAMPLES = all_examples()
MODES = ("eval", "train")


def module_cases(dtypes: Sequence[str] | None = None, names: str = "") -> list[Case]:
    """Modules in evaluation and in training, in the order of `module_db`."""
    return [
        Case(name, mode, str(dtype).removeprefix("torch."))
        for name, info in _MODULES.items()
        for dtype in info.dtypes
        for mode in MODES
        if (dtypes is None or str(dtype).removeprefix("torch.") in dtypes)
        and (not names or re.fullmatch(names, name))
        and (mode == "eval" or info.train_and_eval_differ)
    ]


def example_cases(names: str = "") -> list[Case]:
    """The examples that `torch.export` supports, and those that it does not."""
    return [
        Case(f"exportdb.{name}", "", "float32")
        for name in sorted(_EXAMPLES)
        if not names or re.fullmatch(names, name)
    ]


def is_module(case: Case) -> bool:
    """Whether a case is one of ours."""
    return case.op in _MODULES or case.op.startswith("exportdb.")


def samples(case: Case) -> Iterator[Sample]:
    """The sample inputs of a case, the same ones in every process."""
    if case.op.startswith("exportdb."):
        example = _EXAMPLES[case.op.removeprefix("exportdb.")]
        seed(0)
        yield flat_sample(example.model, example.example_args, example.example_kwargs or {})
        return
    info = _MODULES[case.op]
    dtype = getattr(torch, case.dtype)
    seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = info.module_inputs_func(
            info,
            device="cpu",
            dtype=dtype,
            requires_grad=False,
            training=case.variant == "train",
        )
    for given in made:
        build, call = given.constructor_input, given.forward_input
        if call is None:
            continue
        seed(0)
        module = info.module_cls(*build.args, **build.kwargs).to(dtype)
        if isinstance(module, LazyModuleMixin):
            module(*call.args, **call.kwargs)  # its weights exist from now on
        module.train(case.variant == "train").requires_grad_(False)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        run = partial(_run, module, list(state), [n for n, _ in module.named_buffers()])
        yield flat_sample(run, (list(state.values()), *call.args), call.kwargs)


def _run(
    module: torch.nn.Module, names: list[str], buffers: list[str], state: list[Any], *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """The module's result, and its buffers afterwards."""
    named = dict(zip(names, state))
    result = torch.func.functional_call(module, named, args, kwargs)
    return tree_flatten(result)[0], [named[n] for n in buffers]
