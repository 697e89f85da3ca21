"""The tuning database: what is known about each kernel, kept between processes.

One row per kernel text, schedule, target and fingerprint: whether it is right, and how long
it takes. Several processes may use it at once (SQLite in WAL mode). A damaged file is set aside
and a new one started, with a warning; a folder that cannot be written is a `CacheError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from luminal_lab.errors import CacheError
from luminal_lab.search.target import Measurement

VERSION = 1  # of the table; another version's file is set aside
_WAIT = 20.0  # seconds to wait for another process's transaction
_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurements (
    key TEXT PRIMARY KEY, kernel TEXT NOT NULL, schedule TEXT NOT NULL, target TEXT NOT NULL,
    fingerprint TEXT NOT NULL, ok INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    seconds TEXT NOT NULL, max_error REAL NOT NULL, timed INTEGER NOT NULL, made REAL NOT NULL
) WITHOUT ROWID
"""


class DatabaseWarning(UserWarning):
    """The tuning database was damaged and has been set aside."""


def default_path() -> Path:
    """`$LUMINAL_CACHE/tuning.sqlite`, or the same in the user's cache folder."""
    if named := os.environ.get("LUMINAL_CACHE"):
        root = Path(named).expanduser()
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches" / "luminal-lab"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "luminal-lab"
    return root / "tuning.sqlite"


class Database:
    """A memo of measurements.

    Arguments:
        path: The file; `None` for `default_path()`, `":memory:"` for one that is not kept.

    Raises:
        CacheError: when the file can be neither opened nor made.
    """

    def __init__(self, path: str | Path | None = None):
        self.path = str(path or default_path())
        self._lock = threading.Lock()
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._unusable(error) from error
        for last in (False, True):
            before = self._identity()
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                raise self._unusable(error) from error
            except (sqlite3.DatabaseError, _OtherVersion) as error:
                if last:
                    raise self._unusable(error) from error
                self._set_aside(before, error)
        raise AssertionError

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA busy_timeout={int(_WAIT * 1000)}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise _OtherVersion(f"it is version {version}, this is version {VERSION}")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            with _transaction(connection):
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version={VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _set_aside(self, seen: tuple[int, int] | None, error: Exception) -> None:
        if self._identity() != seen or seen is None:
            return  # another process has replaced it meanwhile
        aside = f"{self.path}.damaged-{time.time_ns()}"
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        except OSError as failed:
            raise self._unusable(failed) from failed
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.rename(self.path + suffix, aside + suffix)
        warnings.warn(
            f"the tuning database {self.path} cannot be used ({error}); it was set aside as"
            f" {aside} and a new one started",
            DatabaseWarning,
            stacklevel=4,
        )

    def _unusable(self, error: Exception) -> CacheError:
        return CacheError(
            f"the tuning database cannot be read or written: {error}",
            where=self.path,
            fix="set LUMINAL_CACHE to a folder that can be written, or search with"
            " effort='none', which needs no database",
        )

    @staticmethod
    def key(kernel: str, schedule: Any, target: str, fingerprint: str) -> str:
        """The key of a row: a digest of everything that a measurement depends on."""
        parts = (kernel, _plain(schedule), target, fingerprint)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def get(
        self, kernel: str, schedule: Any, target: str, fingerprint: str, *, timed: bool = True
    ) -> Measurement | None:
        """What is known, None when nothing is (or only without a time, and `timed` is asked).

        Raises:
            CacheError: when the file cannot be read.
        """
        key = self.key(kernel, schedule, target, fingerprint)
        columns = "ok, seconds, reason, message, max_error, timed"
        with self._lock, self._guard():
            row = self._connection.execute(
                f"SELECT {columns} FROM measurements WHERE key = ?", (key,)
            ).fetchone()
        if row is None or (timed and row[0] and not row[5]):
            return None
        return Measurement(
            bool(row[0]), tuple(json.loads(row[1])), row[2], row[3], float(row[4])
        )

    def put(
        self,
        kernel: str,
        schedule: Any,
        target: str,
        fingerprint: str,
        measurement: Measurement,
    ) -> None:
        """Remember a measurement.

        Raises:
            CacheError: when the file cannot be written (a full disk, for one).
        """
        m = measurement
        error = m.max_error if m.max_error == m.max_error else float("inf")
        row = (
            self.key(kernel, schedule, target, fingerprint),
            kernel,
            _plain(schedule),
            target,
            fingerprint,
            int(m.ok),
            m.reason,
            m.message,
            json.dumps(list(m.seconds)),
            min(error, 1e300),
            int(bool(m.seconds)),
            time.time(),
        )
        marks = ", ".join("?" * len(row))
        with self._lock, self._guard(), _transaction(self._connection):
            self._connection.execute(
                f"INSERT OR REPLACE INTO measurements VALUES ({marks})", row
            )

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def __len__(self) -> int:
        with self._lock, self._guard():
            return self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0]

    def close(self) -> None:
        """Close the file; every write before this is kept in any case."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.path!r}, {len(self)} measurements)"


class _OtherVersion(Exception):
    """The file was written by another version of this module."""


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _plain(schedule: Any) -> str:
    return json.dumps(schedule, sort_keys=True)
