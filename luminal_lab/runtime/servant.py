"""A child of `LocalPool`: runs functions that it is sent, one after the other.

A message is its length (8 bytes) and a pickle: `(function, arguments)` one way; `BEGUN` when
that has arrived, and later `(True, result)` or `(False, exception)`, the other. Both ends are
the same program of the same user, connected by pipes. PyTorch is imported only by functions
that need it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import IO, Any

BEGUN = "begun"


def send(stream: IO[bytes], message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=5)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message.

    Raises:
        EOFError: when the other end has closed its side.
    """
    return pickle.loads(_read(stream))


def _read(stream: IO[bytes]) -> bytes:
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < size:
        raise EOFError("the other end is gone")
    return data


def main() -> None:
    """Serve until standard input ends, or SIGTERM asks to stop what runs and leave."""
    if sys.platform == "linux":  # be told when the parent dies
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, _leave)
    # Answers leave through a descriptor of their own: a function may print.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            task = _read(sys.stdin.buffer)
        except EOFError:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is leaving
            return
        send(answers, BEGUN)  # from here on a death may be the task's doing
        function, arguments = pickle.loads(task)
        send(answers, _outcome(function, arguments))


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: a second one would meet the exit
    raise SystemExit(0)  # on the way out compilers are ended and temporary files removed


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception as error:  # noqa: BLE001  (it is raised again at the other end)
        return False, error


if __name__ == "__main__":
    main()
