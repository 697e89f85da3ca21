"""An Hlir in one file: a zip of its text and its weights as raw bytes. Nothing is pickled.

hlir.txt         the text form
weights.json     {input name: {"dtype", "shape", "file"}}; tied weights share a file
weights/0 …      row-major little-endian elements

The files of later stages hold the same entries, beside their own.
"""

from __future__ import annotations

import json
import math
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from luminal_lab import files
from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.text import dump_spec, parse, text

_WITH_WEIGHTS = ContextVar("with_weights", default=True)


@contextmanager
def weightless() -> Iterator[None]:
    """Stage files that are written inside hold programs without the values of their weights."""
    token = _WITH_WEIGHTS.set(False)
    try:
        yield
    finally:
        _WITH_WEIGHTS.reset(token)


def save(hlir: Hlir, path: str | os.PathLike[str]) -> None:
    """Write a program with its weights; the file appears whole or not at all.

    Raises:
        HlirError: when it cannot be written, or the structure of its inputs or outputs has no
            serialised form.
    """
    with files.writing(path, "hlir", HlirError) as out:
        put(hlir, out)


def load(path: str | os.PathLike[str]) -> Hlir:
    """Read what `save` wrote.

    Raises:
        HlirError: when the file is missing, damaged, or something else.
    """
    with files.reading(path, "hlir", HlirError) as archive:
        return get(archive)


def put(hlir: Hlir, out: files.Writer) -> None:
    """Add a program to a stage file.

    Raises:
        HlirError: when the structure of its inputs or outputs has no serialised form.
    """
    for name in ("in_spec", "out_spec"):
        spec = getattr(hlir, name)
        if spec is not None and dump_spec(spec) is None:
            raise HlirError(
                f"{name} of {hlir.name} cannot be saved: {spec!r}",
                fix="register its types with torch.utils._pytree and a serialized_type_name",
            )
    out.put("hlir.txt", text(hlir), compress=True)
    index: dict[str, Any] = {}
    places: dict[tuple, str] = {}
    for name, tensor in hlir.weights.items():
        if tensor is None or not _WITH_WEIGHTS.get():
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in places or tensor.numel() == 0:
            places[key] = f"weights/{len(places)}"
            out.put(places[key], _bytes(tensor))
        index[name] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "file": places[key],
        }
    out.put("weights.json", json.dumps(index, indent=1))


def get(archive: zipfile.ZipFile) -> Hlir:
    """The program that `put` added; what is wrong with its entries raises as it comes."""
    index = json.loads(archive.read("weights.json"))
    seen: dict[str, Any] = {}
    weights = {}
    for name, entry in index.items():
        file = entry["file"]
        if file not in seen:
            seen[file] = _tensor(archive.read(file), entry)
        weights[name] = seen[file]
    return parse(archive.read("hlir.txt").decode(), weights)


def _bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        raw = raw.reshape(-1, flat.element_size())[:, ::-1]
    return raw.tobytes()


def _tensor(data: bytes, entry: dict[str, Any]) -> Any:
    import torch

    known = {d.torch_name: d for d in DTYPES.values()}[entry["dtype"]]
    shape = [int(n) for n in entry["shape"]]
    if len(data) != math.prod(shape) * known.bytes:
        raise ValueError(f"{entry['file']} has {len(data)} bytes, expected {shape} {known}")
    if not data:
        return torch.empty(shape, dtype=getattr(torch, known.torch_name))
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if sys.byteorder == "big":
        raw = raw.view(-1, known.bytes).flip(1).reshape(-1)
    return raw.view(getattr(torch, known.torch_name)).reshape(shape)
