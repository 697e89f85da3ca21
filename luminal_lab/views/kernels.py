"""Kernel sources: C, Triton and Metal side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from luminal_lab.egraph.values import Kernel
from luminal_lab.errors import LuminalError
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.views import units
from luminal_lab.views.candidate import describe, first_bind, mathematics_of, used_in
from luminal_lab.views.highlight import code
from luminal_lab.views.html import (
    Figure,
    Html,
    card,
    columns,
    el,
    facts,
    fold,
    fragment,
    table,
)

LANGUAGES = ("c", "triton", "metal")
_TITLES = {"c": "C", "triton": "Triton", "metal": "Metal"}


def sources(
    candidate: Candidate, kernel: int = 0, languages: Sequence[str] = LANGUAGES
) -> Figure:
    """One kernel in several languages.

    Arguments:
        candidate: Where it is from.
        kernel: An index into `candidate.kernels`.
        languages: Some of `LANGUAGES`.
    """
    found = candidate.kernels[kernel]
    where = used_in(candidate, kernel)
    title = f"Kernel k{kernel} · {describe(found)}{f' · {where}' if where else ''}"
    html = fragment(card(title, *body(candidate, kernel, languages)))
    lines = [title, mathematics_of(found, first_bind(candidate, kernel))]
    for language in languages:
        lines += [f"--- {_TITLES[language]}", source_text(candidate, kernel, language)]
    return Figure(html, "\n".join(lines))


def body(candidate: Candidate, kernel: int, languages: Sequence[str] = LANGUAGES) -> list[Html]:
    """The content of `sources`."""
    found = candidate.kernels[kernel]
    bind = first_bind(candidate, kernel)
    out = [el("div", mathematics_of(found, bind), class_="term")]
    if isinstance(found, LibraryKernel):
        out.append(el("p", "A library routine: it has no generated source.", class_="muted"))
        return out
    sides = []
    for language in languages:
        text = source_text(candidate, kernel, language)
        size = units.plural(text.count("\n") + 1, "line")
        sides.append(
            el("div", el("h4", f"{_TITLES[language]} ", el("span", size, class_="muted")),
               code(text, language, f"kernel {kernel} in {_TITLES[language]}"))
        )  # fmt: skip
    out.append(columns(*sides))
    return out


def source_text(candidate: Candidate, kernel: int, language: str) -> str:
    """A kernel's source, or the reason why there is none."""
    try:
        source = candidate.source(kernel, language)
    except LuminalError as error:
        sign = "#" if language == "triton" else "//"
        return "\n".join(f"{sign} {line}" for line in f"not available: {error}".splitlines())
    return str(getattr(source, "text", source)).strip("\n")


def assembly(text: str) -> list[Html]:
    """A kernel's assembly, with how many of its instructions use the widest registers."""
    lines = [line for line in text.splitlines() if line.startswith("\t")]
    wide = sum("zmm" in line or "ymm" in line for line in lines)
    fused = sum(bool(re.search(r"\bv?fn?m(add|sub)|\bfml[as]\b", line)) for line in lines)
    return [
        facts([units.counted(len(lines), "instruction"), (f"{wide:,}", "on wide vectors"),
               (f"{fused:,}", "fused multiply-adds")]),
        code(text, "asm", "assembly"),
    ]  # fmt: skip


def gpu_code(reports: Mapping[str, Any]) -> list[Html]:
    """Resources per architecture, and PTX and SASS of each.

    Arguments:
        reports: A report of the ahead-of-time compiler by architecture, or its error.
    """
    rows, texts = [], []
    for arch, r in reports.items():
        if isinstance(r, LuminalError):
            rows.append([arch, *[None] * 6, el("span", str(r).splitlines()[0], class_="bad")])
            continue
        spills = el("span", units.size(r.spill_bytes), class_="bad" if r.spill_bytes else None)
        rows.append([
            arch, f"{r.registers:,}", spills, units.size(r.shared_bytes), str(r.num_warps),
            str(r.num_stages), f"{r.blocks_per_unit} ({r.occupancy:.0%})", "",
        ])  # fmt: skip
        for stage in ("ptx", "sass", "amdgcn"):
            if stage in r.stages:
                title = f"{stage.upper()} for {arch}"
                texts.append(fold(title, code(r.stages[stage], "asm", title)))
    head = ["architecture", ("registers", "num"), ("spilled", "num"), ("shared", "num"),
            ("warps", "num"), ("stages", "num"), ("blocks per SM, estimate", "num"),
            ""]  # fmt: skip
    note = "Compiled ahead of time; nothing here was measured on a device."
    return [table(head, rows, label="resources"), el("p", note, class_="muted"), *texts]


def all_sources(candidate: Candidate, opened: Sequence[int] = (0,)) -> list[Html]:
    """Every derived kernel, folded but for those of `opened`."""
    return [
        fold(
            f"k{k} {describe(kernel)} · {used_in(candidate, k)}".rstrip(" ·"),
            *body(candidate, k),
            open_=k in opened,
        )
        for k, kernel in enumerate(candidate.kernels)
        if isinstance(kernel, Kernel)
    ]
