"""What is run: a model, how, and in which dtype."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Arguments:
        suite: `"language"`, `"families"`, `"vision"`, `"layers"` or `"traces"`.
        model: Its name in that suite.
        mode: `"forward"`, `"generate"`, `"train"` …, with the variant after a space.
        dtype: Of the weights.
    """

    suite: str
    model: str
    mode: str = "forward"
    dtype: str = "float32"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from others."""
        return (self.suite, self.model, self.mode, self.dtype)


@dataclass
class Program:
    """A module and what it is called with.

    Arguments:
        module: In evaluation mode.
        args, kwargs: Of the call.
        options: Of `generate`, for what writes text.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


Maker = Callable[[Case], Program]


def suites() -> dict[str, tuple[Callable[[], Sequence[Case]], Maker]]:
    """By name: the cases of a suite, and what makes the program of one."""
    from tests.models import families, language, layers, traces, vision

    return {
        "language": (language.cases, language.program),
        "families": (families.cases, families.program),
        "vision": (vision.cases, vision.program),
        "layers": (layers.cases, layers.program),
        "traces": (traces.cases, traces.program),
    }


def cases(suite: str, pattern: str = "") -> list[Case]:
    """The cases of a suite, or of all; `pattern` is one for `model mode dtype`."""
    known = suites()
    chosen = list(known) if suite == "all" else [suite]
    return [
        case
        for name in chosen
        for case in known[name][0]()
        if not pattern or re.search(pattern, f"{case.model} {case.mode} {case.dtype}")
    ]


def program(case: Case) -> Program:
    """The program of a case, the same one in every process."""
    return suites()[case.suite][1](case)
