"""Files of stage objects: one zip each, which says what it holds. Nothing in them is code.

Every stage file starts with an entry `kind`; the other entries are text, JSON or raw bytes. A
file is written beside its place and renamed, so it is there whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from luminal_lab.errors import LuminalError

_STAMP = (1980, 1, 1, 0, 0, 0)  # equal objects give equal files
_KIND = "kind"


@contextmanager
def whole(path: str | os.PathLike[str], error: type[LuminalError]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block succeeds.

    Raises:
        LuminalError: of the type `error`, when the file cannot be written.
    """
    path = Path(path)
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            yield file
        os.chmod(temporary, 0o644)  # temporary files are private, this one is not
        os.replace(temporary, path)
        temporary = None
    except OSError as reason:
        raise error(f"cannot write {str(path)!r}: {reason}") from reason
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


class Writer:
    """Entries of a stage file that is being written."""

    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive

    def put(self, name: str, data: bytes | str, *, compress: bool = False) -> None:
        """Add an entry."""
        info = zipfile.ZipInfo(name, _STAMP)
        info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._archive.writestr(info, data)


@contextmanager
def writing(
    path: str | os.PathLike[str], kind: str, error: type[LuminalError]
) -> Iterator[Writer]:
    """Write a stage file of a kind (`"hlir"`, `"egraph"`, …), entry by entry.

    Raises:
        LuminalError: of the type `error`, when the file cannot be written.
    """
    with whole(path, error) as file, zipfile.ZipFile(file, "w") as archive:
        writer = Writer(archive)
        writer.put(_KIND, kind)
        yield writer


@contextmanager
def reading(
    path: str | os.PathLike[str], kind: str, error: type[LuminalError]
) -> Iterator[zipfile.ZipFile]:
    """Read a stage file of a kind. What the block raises on bad contents is translated.

    Raises:
        LuminalError: of the type `error`: the file is missing, damaged, or of another kind.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.read(_KIND).decode()
            if found != kind:
                raise error(
                    f"the file holds a saved {found}, not a saved {kind}",
                    where=os.fspath(path),
                    fix="luminal_lab.load(path) reads any kind",
                )
            yield archive
    except FileNotFoundError:
        raise error("there is no such file", where=os.fspath(path)) from None
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
    ) as reason:
        raise error(
            f"not a readable saved {kind}: {type(reason).__name__}: {reason}",
            where=os.fspath(path),
            fix="save it again with .save(path)",
        ) from reason


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a stage file holds.

    Raises:
        LuminalError: when it is missing, or not a stage file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(_KIND).decode()
    except FileNotFoundError:
        raise LuminalError("there is no such file", where=os.fspath(path)) from None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as reason:
        raise LuminalError(
            f"not a file that a stage object saved: {reason}", where=os.fspath(path)
        ) from reason


def load_any(path: str | os.PathLike[str], loaders: dict[str, Any]) -> Any:
    """Read a stage file with the loader of its kind.

    Raises:
        LuminalError: when there is no loader for it, or it cannot be read.
    """
    kind = kind_of(path)
    if kind not in loaders:
        raise LuminalError(f"no stage is called {kind!r}", where=os.fspath(path))
    return loaders[kind](path)
