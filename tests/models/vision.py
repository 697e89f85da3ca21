"""One small model of each family of `timm`, without weights to download.

`timm` asks for torchvision, whose wheels are built for one build of torch; what it takes from
there (a frozen batch norm, image transforms) is not needed to run a model and is stood in for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tests.models.cases import Case, Program
from tests.models.wake import wake

LARGEST = 140_000_000  # parameters
SIZES = (
    "atto", "femto", "pico", "nano", "test", "zepto", "xxs", "tiny", "_t", "xs", "mini",
    "small", "_s", "b0", "18", "050", "base",
)  # fmt: skip
SHORTLIST = 8  # names of a family whose parameters are counted


class _Anything(type):
    """Has every attribute; members of an enumeration, say."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of torchvision, with any class that is asked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)

        def any_class(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (nn.Module,), {})

        module.__getattr__ = any_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def timm() -> Any:
    """The library, whether or not torchvision is there.

    Raises:
        ImportError: when it is not installed.
    """
    if "timm" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("timm")
    stand_in = _Absent()
    sys.meta_path.append(stand_in)
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(stand_in)  # others look for it, too


def cases() -> Sequence[Case]:
    """The smallest model of each of timm's families, by name."""
    library = timm()
    return [Case("vision", name) for name in sorted(smallest(library))]


def smallest(library: Any) -> list[str]:
    """For each module of timm the fewest parameters, of the names that say the least."""

    def rank(name: str) -> tuple[int, int, str]:
        said = [k for k, size in enumerate(SIZES) if size in name]
        return min(said, default=len(SIZES)), len(name), name

    out = []
    for module in library.list_modules():
        names = library.list_models(module=module, pretrained=False)
        if names:
            few = sorted(names, key=rank)[:SHORTLIST]
            out.append(min(few, key=lambda n: (parameters(library, n), n)))
    return out


def parameters(library: Any, name: str) -> int:
    """Of a model, without making it."""
    with torch.device("meta"):
        return sum(p.numel() for p in library.create_model(name, pretrained=False).parameters())


def program(case: Case) -> Program:
    """A model at the smallest image size that it takes."""
    library = timm()
    torch.manual_seed(0)
    if (count := parameters(library, case.model)) > LARGEST:
        raise ValueError(f"{count / 1e6:.0f} million parameters")
    full = library.get_pretrained_cfg(case.model).input_size
    for side in (64, 96, 128, full[-1]):
        size = (full[0], side, side)
        for options in ({"img_size": side}, {}):
            torch.manual_seed(0)
            try:
                module = library.create_model(case.model, pretrained=False, **options)
                x = torch.randn(2, *size)
                wake(module, lambda: module(x))  # noqa: B023  (called here)
            except Exception:  # noqa: BLE001  (this size is not for this model)
                continue
            return Program(module, (x,))
    raise ValueError("no image size that it takes was found")
