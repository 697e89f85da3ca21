"""An Executable: what was built, what it costs to keep, and the calls that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from luminal_lab.views import units
from luminal_lab.views.highlight import code
from luminal_lab.views.html import Html, card, facts, fold, fragment, table

if TYPE_CHECKING:
    from luminal_lab.runtime import Executable


def to_html(exe: Executable) -> str:
    """The executable as HTML."""
    return fragment(card(f"Executable · {exe.hlir.name}", *body(exe)))


def body(exe: Executable) -> list[Html]:
    """The content of `to_html`."""
    rows = exe.rows()
    built = sum(r["at_build"] for r in rows)
    stats = exe.stats
    out = [
        facts(
            [
                units.counted(len(exe.candidate.kernels), "kernel"),
                units.counted(len(rows) - built, "call"),
                (f"{built:,}" if built else None, "done at build time"),
                (units.size(stats.arena_bytes), "arena of one call"),
                (units.size(stats.persistent_bytes), "packed weights"),
                (units.seconds(stats.source_seconds), "for the sources"),
                (units.seconds(stats.compile_seconds), "to compile and load"),
            ]
        ),
        table(
            [("", "num"), ("kernel", "code"), ("region", "code"), "when", ("buffers", "code")],
            [
                [
                    str(r["call"]),
                    r["name"] or f"k{r['kernel']}",
                    r["region"],
                    "build" if r["at_build"] else "call",
                    ", ".join(f"{a}={b}" for a, b in r["binds"].items()),
                ]
                for r in rows
            ],
            label="calls",
            all_at="exe.table()",
        ),
    ]
    if exe.program is not None:
        out.append(fold("The C of all kernels", code(exe.source(), "c", "C source")))
    return out
