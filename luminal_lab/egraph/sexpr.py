"""Top-level forms of `.egg` text, with the places where they stand.

egglog's own parser is used for parsing; this reader exists because the text must be given to
it form by form (one long text costs quadratic memory), because comments above a rule carry its
law and its tolerance class, and because every rule is instrumented with provenance before it
is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from luminal_lab.errors import RuleError


@dataclass(frozen=True)
class Atom:
    """A symbol, number or quoted string, as written."""

    text: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class List:
    """A parenthesised list."""

    items: tuple[Expr, ...]
    line: int = 0
    column: int = 0

    @property
    def head(self) -> str:
        """The first symbol, `""` when there is none."""
        first = self.items[0] if self.items else None
        return first.text if isinstance(first, Atom) else ""

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.items))})"


Expr = Atom | List


@dataclass(frozen=True)
class Form:
    """A top-level form: its expression, its source, and the comment lines right above it."""

    expr: List
    text: str
    comments: tuple[str, ...]

    @property
    def padded(self) -> str:
        """The text at its line and column, so that a parser's positions are the file's."""
        return "\n" * (self.expr.line - 1) + " " * (self.expr.column - 1) + self.text


@lru_cache(maxsize=64)
def forms(text: str, file: str) -> tuple[Form, ...]:
    """Split a text into its top-level forms.

    Raises:
        RuleError: on unbalanced parentheses, an unfinished string, or text outside of a form.
    """
    reader = _Reader(text, file)
    return tuple(reader.forms())


def call(head: str, *args: Expr | str) -> List:
    """A list expression; strings stand for atoms."""
    return List((Atom(head), *(Atom(a) if isinstance(a, str) else a for a in args)))


class _Reader:
    def __init__(self, text: str, file: str):
        self.text, self.file = text, file
        self.at, self.line, self.start = 0, 1, 0

    def forms(self) -> Iterator[Form]:
        comments: list[str] = []
        fresh = True  # whether the current line holds nothing but what was skipped
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                if fresh:  # a blank line: the comments above it are about the file
                    comments = []
                self._newline()
                fresh = True
            elif char.isspace():
                self.at += 1
            elif char == ";":
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                comments.append(self.text[self.at : end].lstrip("; ").rstrip())
                self.at = end
                fresh = False
            elif char == "(":
                begin = self.at
                expr = self._list()
                yield Form(expr, self.text[begin : self.at], tuple(comments))
                comments, fresh = [], False
            else:
                raise self._error(
                    f"unexpected {char!r} outside of a form", self.line, self._column
                )

    @property
    def _column(self) -> int:
        return self.at - self.start + 1

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        self.start = self.at

    def _error(self, what: str, line: int, column: int) -> RuleError:
        return RuleError(
            what, where=f"{self.file}:{line}:{column}", fix="balance the parentheses"
        )

    def _list(self) -> List:
        stack: list[tuple[list[Expr], int, int]] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self._newline()
            elif char.isspace():
                self.at += 1
            elif char == ";":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "(":
                stack.append(([], self.line, self._column))
                self.at += 1
            elif char == ")":
                items, line, column = stack.pop()
                self.at += 1
                done = List(tuple(items), line, column)
                if not stack:
                    return done
                stack[-1][0].append(done)
            else:
                stack[-1][0].append(self._atom())
        _, line, column = stack[-1]
        raise self._error("this ( is never closed", line, column)

    def _atom(self) -> Atom:
        begin, line, column = self.at, self.line, self._column
        if self.text[begin] == '"':
            self.at += 1
            while self.at < len(self.text) and self.text[self.at] != '"':
                if self.text[self.at] == "\n":
                    raise self._error("this string is never closed", line, column)
                self.at += 2 if self.text[self.at] == "\\" else 1
            if self.at >= len(self.text):
                raise self._error("this string is never closed", line, column)
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ' \t\r\n();"':
                self.at += 1
        return Atom(self.text[begin : self.at], line, column)
