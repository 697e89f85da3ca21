"""The cache folder: content-addressed files that several processes may write at once.

A file enters under a temporary name, beside a checksum, and is renamed into place, so a reader
never sees half of one; a file whose checksum disagrees (a crash, a full disk) is dropped and
made again. A cache that cannot be written is replaced by a temporary folder, with one warning.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from luminal_lab.errors import CacheError

_FALLBACK: dict[str, Path] = {}  # unusable cache folder -> the temporary folder that stands in


class CacheWarning(UserWarning):
    """The cache folder cannot be used; the session goes on with a temporary one."""


def cache_root() -> Path:
    """The folder that caches live in: `$LUMINAL_CACHE`, or the user's cache folder."""
    if named := os.environ.get("LUMINAL_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "luminal-lab"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "luminal-lab"


def digest(*parts: str | bytes) -> str:
    """A hex digest of the parts; the borders between parts count."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:40]


class FileCache:
    """Files by key in one subfolder of the cache.

    Arguments:
        folder: Name of the subfolder, such as `"c"`.
    """

    def __init__(self, folder: str):
        self.folder = folder

    @property
    def root(self) -> Path:
        """The folder in use now (the temporary one once the real one has failed)."""
        real = cache_root()
        return _FALLBACK.get(str(real), real) / self.folder

    def get(self, key: str, suffix: str) -> Path | None:
        """The file of a key, or None when there is none or it is damaged."""
        path = self.root / f"{key}{suffix}"
        try:
            expected = path.with_name(path.name + ".sha256").read_text()
            if hashlib.sha256(path.read_bytes()).hexdigest() == expected:
                return path
        except (OSError, ValueError):
            return None
        self.drop(path)
        return None

    def put(self, key: str, suffix: str, data: bytes) -> Path:
        """Store `data` and return its path.

        Raises:
            CacheError: when neither the cache nor a temporary folder can be written.
        """
        try:
            return self._write(self.root / f"{key}{suffix}", data)
        except OSError as error:
            self._fall_back(error)
        try:
            return self._write(self.root / f"{key}{suffix}", data)
        except OSError as error:
            raise CacheError(
                f"no folder can be written: {error}",
                where=str(self.root),
                fix="free some disk space, or point LUMINAL_CACHE (or TMPDIR) to a folder that "
                "can be written",
            ) from error

    def drop(self, path: Path) -> None:
        """Forget a file (a damaged one, or one that does not load)."""
        for victim in (path, path.with_name(path.name + ".sha256")):
            try:
                victim.unlink(missing_ok=True)
            except OSError as error:
                self._fall_back(error)

    def _write(self, path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        checksum = path.with_name(path.name + ".sha256")
        # The checksum goes last: without it the file does not exist for a reader.
        for target, content in ((path, data), (checksum, _sha(data))):
            handle, temporary = tempfile.mkstemp(prefix=".part-", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.chmod(temporary, 0o644)
                os.replace(temporary, target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        return path

    def _fall_back(self, error: OSError) -> None:
        """Use a temporary folder from now on in place of the cache that failed."""
        real = cache_root()
        if str(real) in _FALLBACK:
            raise CacheError(
                f"the temporary cache failed too: {error}",
                where=str(_FALLBACK[str(real)]),
                fix="free some disk space, or set TMPDIR",
            ) from error
        try:
            temporary = Path(tempfile.mkdtemp(prefix="luminal-cache-"))
        except OSError as second:
            raise CacheError(
                f"the cache cannot be written ({error}), nor can a temporary folder ({second})",
                where=str(real),
                fix="point LUMINAL_CACHE (or TMPDIR) to a folder that can be written",
            ) from error
        _FALLBACK[str(real)] = temporary
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        warnings.warn(
            f"the cache {real} cannot be written ({error.strerror or error}): compiled kernels "
            "are kept for this session only; set LUMINAL_CACHE to a folder that can be written",
            CacheWarning,
            stacklevel=2,
        )


def _sha(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
