"""An Hlir in one file: a zip of its text and its weights as raw bytes. Nothing is pickled.

hlir.txt         the text form
weights.json     {input name: {"dtype", "shape", "file"}}; tied weights share a file
weights/0 …      row-major little-endian elements
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.text import dump_spec, parse, text

_STAMP = (1980, 1, 1, 0, 0, 0)  # equal programs give equal files


def save(hlir: Hlir, path: str | os.PathLike[str]) -> None:
    """Write a program with its weights; the file appears whole or not at all.

    Raises:
        HlirError: when it cannot be written, or the structure of its inputs or outputs has no
            serialised form.
    """
    for name in ("in_spec", "out_spec"):
        spec = getattr(hlir, name)
        if spec is not None and dump_spec(spec) is None:
            raise HlirError(
                f"{name} of {hlir.name} cannot be saved: {spec!r}",
                fix="register its types with torch.utils._pytree and a serialized_type_name",
            )
    with _whole(Path(path)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        _write(archive, "hlir.txt", text(hlir).encode())
        index: dict[str, Any] = {}
        files: dict[tuple, str] = {}
        for name, tensor in hlir.weights.items():
            if tensor is None:
                continue
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in files or tensor.numel() == 0:
                files[key] = f"weights/{len(files)}"
                _write(archive, files[key], _bytes(tensor))
            index[name] = {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "file": files[key],
            }
        _write(archive, "weights.json", json.dumps(index, indent=1).encode())


def load(path: str | os.PathLike[str]) -> Hlir:
    """Read what `save` wrote.

    Raises:
        HlirError: when the file is missing, damaged, or something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read("weights.json"))
            seen: dict[str, Any] = {}
            weights = {}
            for name, entry in index.items():
                file = entry["file"]
                if file not in seen:
                    seen[file] = _tensor(archive.read(file), entry)
                weights[name] = seen[file]
            return parse(archive.read("hlir.txt").decode(), weights)
    except FileNotFoundError:
        raise HlirError(f"there is no file {os.fspath(path)!r}") from None
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        raise HlirError(
            f"{os.fspath(path)!r} is not a saved Hlir: {error}",
            fix="save it again with hlir.save(path)",
        ) from error


@contextmanager
def _whole(path: Path) -> Iterator[Any]:
    """A temporary file beside `path` that takes its place when the block succeeds."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            yield file
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise HlirError(f"cannot write {str(path)!r}: {error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _STAMP), data)


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
