"""A session: all stages of one program in one file, to go on with later or to compare.

The file is a SQLite database. Each stage is recorded when it ends and the progress of a search
as it comes, so a process that dies loses nothing that was finished. Everything in it is data:
opening it runs no code from it. Weights are left out unless they are asked for; a reopened
program can be looked at without them, and is built again with the module at hand.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from luminal_lab.errors import CacheError
from luminal_lab.hlir import storage

FORMAT = 1
_APPLICATION = 0x6C6C6162  # "llab", in the file's header
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE stages (name TEXT PRIMARY KEY, made REAL NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE candidates (rank INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE progress (seconds REAL NOT NULL, best REAL NOT NULL, stage TEXT NOT NULL)",
    "CREATE TABLE trials (made REAL NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL)",
)
STAGES = ("hlir", "egraph", "result", "candidate", "profile")
# What a new object of a stage makes void.
_AFTER = {
    "hlir": ("egraph", "result", "candidate", "profile"),
    "egraph": ("result", "candidate", "profile"),
    "result": ("candidate", "profile"),
    "candidate": ("profile",),
    "profile": (),
}


class Session:
    """A session file.

    Arguments:
        path: The file; it is made when there is none.
        weights: Whether stages are recorded with their weights.

    Raises:
        CacheError: when it is not a session, of another version, or cannot be written.

    >>> import torch, tempfile, luminal_lab as ll
    >>> hlir = ll.capture(torch.nn.GELU(), (torch.ones(4),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ll.Session(f"{folder}/gelu.session") as session:
    ...         session.record("hlir", hlir)
    ...     with ll.Session(f"{folder}/gelu.session") as again:
    ...         print(again, again.stage("hlir") == hlir)
    Session(GELU: hlir) True
    """

    def __init__(self, path: str | Path, *, weights: bool = False):
        self.path = Path(path)
        self.weights = weights
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                self.path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise CacheError(
                f"not a session that can be used: {error}", where=str(self.path)
            ) from error

    def _prepare(self) -> None:
        self._db.execute("BEGIN")  # another process may be making it
        application, version, new = self._head()
        self._db.execute("COMMIT")
        if new:
            self._db.execute("BEGIN IMMEDIATE")
            if self._head()[2]:
                for table in _SCHEMA:
                    self._db.execute(table)
                self._db.execute(f"PRAGMA application_id={_APPLICATION}")
                self._db.execute(f"PRAGMA user_version={FORMAT}")
            application, version, _ = self._head()
            self._db.execute("COMMIT")
        if application != _APPLICATION:
            raise CacheError("the file holds another kind of database", where=str(self.path))
        if version != FORMAT:
            raise CacheError(
                f"the session is of format {version}, this version reads {FORMAT}",
                where=str(self.path),
            )
        self._db.execute("PRAGMA synchronous=NORMAL")

    def _head(self) -> tuple[int, int, bool]:
        """The application that the file is of, its format, and whether it is empty."""
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return application, version, not tables and not application

    # ----------------------------------------------------------------------------- writing

    def record(self, name: str, stage: Any) -> None:
        """Keep a stage object; what was made from an older one is dropped.

        Arguments:
            name: One of `STAGES`.
            stage: The object; None only drops.

        Raises:
            CacheError: when the file cannot be written.
        """
        data = None if stage is None else _to_bytes(stage, self.weights)
        texts: list[str] = []
        if name == "result" and stage is not None:
            texts = [c.text() for c in list(stage.candidates)[:_LISTED]]
        with self._writing() as db:
            for later in (name, *_AFTER[name]):
                db.execute("DELETE FROM stages WHERE name = ?", (later,))
            if name in ("hlir", "egraph", "result"):
                db.execute("DELETE FROM candidates")
            if name in ("hlir", "egraph"):
                db.execute("DELETE FROM progress")
            if data is not None:
                db.execute("INSERT INTO stages VALUES (?, ?, ?)", (name, time.time(), data))
            db.executemany("INSERT INTO candidates VALUES (?, ?)", enumerate(texts))
            if name == "hlir" and stage is not None:
                db.execute("INSERT OR REPLACE INTO meta VALUES ('program', ?)", (stage.name,))

    def record_progress(self, seconds: float, best: float, stage: str) -> None:
        """Keep one step of a search's best so far."""
        with self._writing() as db:
            db.execute("INSERT INTO progress VALUES (?, ?, ?)", (seconds, best, stage))

    def record_trial(self, name: str, trial: dict[str, Any]) -> None:
        """Keep what became of one kernel that was tried by hand, as plain data."""
        with self._writing() as db:
            db.execute("INSERT INTO trials VALUES (?, ?, ?)", (time.time(), name,
                       json.dumps(trial)))  # fmt: skip

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise CacheError(
                    f"the session cannot be written: {error}", where=str(self.path),
                    fix="free space or choose another path; the file is as it was before",
                ) from error  # fmt: skip
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # ----------------------------------------------------------------------------- reading

    def stages(self) -> tuple[str, ...]:
        """The stages that it holds, in order."""
        found = {n for (n,) in self._read("SELECT name FROM stages")}
        return tuple(n for n in STAGES if n in found)

    def stage(self, name: str) -> Any:
        """A stage object; None when it is not there.

        Raises:
            LuminalError: when it is damaged, or of another version.
        """
        rows = self._read("SELECT data FROM stages WHERE name = ?", (name,))
        return _from_bytes(rows[0][0]) if rows else None

    def candidates(self) -> list[Any]:
        """The listed candidates of the search, best predicted first."""
        from luminal_lab.search import Candidate

        hlir = self.stage("hlir")
        rows = self._read("SELECT text FROM candidates ORDER BY rank")
        return [Candidate.parse(text, hlir) for (text,) in rows]

    def progress(self) -> list[tuple[float, float, str]]:
        """The best so far of the last search: seconds since its start, seconds, stage."""
        return self._read("SELECT seconds, best, stage FROM progress ORDER BY seconds")

    def trials(self) -> list[tuple[str, dict[str, Any]]]:
        """Kernels that were tried by hand: name, and plain data."""
        rows = self._read("SELECT name, data FROM trials ORDER BY made")
        return [(name, json.loads(data)) for name, data in rows]

    def _read(self, query: str, values: tuple = ()) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise CacheError(
                    f"the session cannot be read: {error}", where=str(self.path)
                ) from error

    def export(self, path: str | Path) -> None:
        """Write all stages as one HTML page that opens without a network.

        Raises:
            CacheError: when the page cannot be written.
        """
        from importlib import import_module

        from luminal_lab import files

        text = import_module("luminal_lab.views.session").page(self)
        with files.whole(path, CacheError) as out:
            out.write(text.encode("utf-8"))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rows = self._read("SELECT value FROM meta WHERE key = 'program'")
        name = rows[0][0] if rows else "empty"
        return f"Session({name}: {', '.join(self.stages()) or 'nothing yet'})"


_LISTED = 64  # candidates that are kept as text


def _to_bytes(stage: Any, weights: bool) -> bytes:
    """A stage's own file, as bytes."""
    handle, path = tempfile.mkstemp(prefix="luminal-", suffix=".stage")
    os.close(handle)
    try:
        if weights:
            stage.save(path)
        else:
            with storage.weightless():
                stage.save(path)
        return Path(path).read_bytes()
    finally:
        os.unlink(path)


def _from_bytes(data: bytes) -> Any:
    from luminal_lab.api import load

    handle, path = tempfile.mkstemp(prefix="luminal-", suffix=".stage")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return load(path)
    finally:
        os.unlink(path)


def is_session(path: str | Path) -> bool:
    """Whether a file is a session, by its header alone."""
    try:
        with open(path, "rb") as file:
            head = file.read(72)
    except OSError:
        return False
    return head.startswith(b"SQLite format 3\0") and head[68:72] == _APPLICATION.to_bytes(4)


def safe_name(name: str) -> str:
    """A name as part of a file name: letters, digits, dash and underscore."""
    kept = "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-")
    return kept[:80] or "program"
