"""The user's source lines, each with the nodes that were captured from it."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from luminal_lab.hlir.graph import Hlir
from luminal_lab.views import folding, units
from luminal_lab.views.html import Html, el, table

_LINE = re.compile(r"(.*):(\d+) in (.*)", re.DOTALL)
_CELL = re.compile(r"ipykernel_\d+[/\\]|<ipython-input-")


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program.

    Arguments:
        source: As nodes name it: `"/home/me/model.py:12 in forward"`.
        file: Its path.
        line: From 1 on.
        function: What it belongs to.
        nodes: The HLIR nodes that came from it.
    """

    source: str
    file: str
    line: int
    function: str
    nodes: tuple[int, ...]

    @property
    def place(self) -> str:
        """Where it is, in short: `model.py:12`."""
        name = "cell" if _CELL.search(self.file) else PurePath(self.file).name
        return f"{name}:{self.line}"

    @property
    def text(self) -> str:
        """What is written there; empty where the file is not Python, or is gone."""
        if not (self.file.endswith(".py") or _CELL.search(self.file)):
            return ""
        return linecache.getline(self.file, self.line).strip()


def source_lines(hlir: Hlir) -> list[SourceLine]:
    """The lines that a program was captured from, file by file from top to bottom.

    >>> import torch, luminal_lab as ll
    >>> from luminal_lab.views.sources import source_lines
    >>> hlir = ll.capture(lambda x: torch.relu(x) * 2.0, (torch.ones(4),))
    >>> len(source_lines(hlir))
    1
    """
    found: dict[str, list[int]] = {}
    for n, node in enumerate(hlir.nodes):
        if node.source.line:
            found.setdefault(node.source.line, []).append(n)
    files: dict[str, int] = {}
    lines = []
    for source, nodes in found.items():
        match = _LINE.fullmatch(source)
        file, line, function = match.groups() if match else (source, "0", "")
        files.setdefault(file, len(files))
        lines.append(SourceLine(source, file, int(line), function, tuple(nodes)))
    return sorted(lines, key=lambda s: (files[s.file], s.line, s.function))


def lines_of(hlir: Hlir, nodes: Iterable[int]) -> list[SourceLine]:
    """The lines that any of some nodes came from."""
    wanted = frozenset(nodes)
    return [line for line in source_lines(hlir) if wanted.intersection(line.nodes)]


def operators(hlir: Hlir, line: SourceLine) -> str:
    """The ATen operators that a line called: `linear, _softmax`."""
    said = [hlir.nodes[n].source.aten for n in line.nodes]
    names = Counter(s.split(".")[1] if s.count(".") > 1 else s for s in said if s)
    return ", ".join(names)


def work(hlir: Hlir, line: SourceLine) -> float | None:
    """Operations of a line's nodes; None where a size is unknown."""
    return folding.total([folding.flops(hlir, n) for n in line.nodes])


def line_table(hlir: Hlir) -> Html:
    """A row per source line."""
    rows = []
    for line in source_lines(hlir):
        where = el("code", line.place, title=line.source)
        rows.append([
            where,
            line.function,
            el("code", line.text),
            operators(hlir, line),
            f"{len(line.nodes):,}",
            units.count(work(hlir, line), "FLOP"),
        ])  # fmt: skip
    head = ["line", "function", "source", "operators", ("nodes", "num"), ("work", "num")]
    return table(head, rows, label="source lines")
