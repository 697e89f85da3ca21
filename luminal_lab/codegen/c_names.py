"""Identifiers in C text: a buffer, a local and a loop may share a name, never an identifier."""

from __future__ import annotations

import re

from luminal_lab.hlir.sizes import Symbol

# What the text itself may contain: words of C, the prelude's types, and made-up names.
_RESERVED = re.compile(
    r"""
    auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline
    |int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|union
    |unsigned|void|volatile|while|asm|typeof
    |b|ctx|hi|lo|p|q|threads|W|LL_\w*|ll_\w*   # parameters, lanes, and the prelude
    |v[a-z]+(_u)?                              # its types
    |v\d+|last\d+|\w+_end|\w+_\d+              # temporaries, prefixes, ends, register points
    """,
    re.VERBOSE,
)


class Names:
    """The identifiers of one kernel.

    Arguments:
        entry: The kernel's entry, whose name begins all of its functions' names.
    """

    def __init__(self, entry: str):
        self.entry = entry
        self._names: dict[tuple[str, str], str] = {}
        self._used: set[str] = set()

    def memory(self, raw: str) -> str:
        """The pointer of a buffer or of a local in memory."""
        return self._name("memory", raw)

    def loop(self, raw: str) -> str:
        """A loop's variable."""
        return self._name("loop", raw)

    def register(self, raw: str, where: tuple[int, ...]) -> str:
        """The variable of one point of a register local."""
        return self._name("register", raw) + "".join(f"_{k}" for k in where)

    def size(self, symbol: Symbol) -> str:
        """The variable of a size that a call decides."""
        return self._name("size", symbol.name)

    def count(self, raw: str) -> str:
        """The variable of a number of lanes in use."""
        return self._name("count", raw)

    def _name(self, kind: str, raw: str) -> str:
        if (kind, raw) not in self._names:
            text = re.sub(r"\W", "_", raw.replace("%", "").replace("'", "_"), flags=re.ASCII)
            text = text if re.match(r"[a-zA-Z]", text) else "x" + text
            if _RESERVED.fullmatch(text) or text.startswith(self.entry):
                text += "_"
            while text in self._used:
                text += "_"
            self._used.add(text)
            self._names[kind, raw] = text
        return self._names[kind, raw]
