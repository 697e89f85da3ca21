"""Make the rule catalogue from `rules/*.egg`, as a page of the site.

A rule is one top-level form `(rewrite …)`, `(birewrite …)` or `(rule …)`. The comment lines
right above it say what it is:

    ;; law: a factor that does not depend on j leaves a sum over j
    ;; class: exact

MkDocs runs this file as a hook; `python docs/gen_rules.py` prints the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RULES = Path(__file__).resolve().parents[1] / "rules"
BLANK = re.compile(r"[ \t]*\n")
KINDS = ("rewrite", "birewrite", "rule")
CLASSES = {
    "exact": "bit-identical, or identical over the reals with no new rounding",
    "reassociates": "equal over the reals; the order of rounding changes",
    "approximate": "equal within a stated tolerance",
}


@dataclass(frozen=True)
class Rule:
    """One rule as the catalogue shows it."""

    name: str
    law: str
    tolerance: str
    text: str
    file: str
    line: int


def forms(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield `(line, comments right above, text)` of each top-level form."""
    comments: list[str] = []
    depth, start, start_line, line = 0, 0, 1, 1
    position = 0
    while position < len(text):
        char = text[position]
        if char == ";":
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            if depth == 0:
                comments.append(text[position:end].lstrip("; ").rstrip())
            position = end
            continue
        if char == '"':
            position += 1
            while position < len(text) and text[position] != '"':
                line += text[position] == "\n"
                position += 2 if text[position] == "\\" else 1
        elif char == "(":
            if depth == 0:
                start, start_line = position, line
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                yield start_line, comments, text[start : position + 1]
                comments = []
        elif char == "\n":
            line += 1
            # A blank line ends a comment block: what is above it is about the file.
            if depth == 0 and BLANK.match(text, position + 1):
                comments = []
        position += 1


def _field(comments: list[str], key: str) -> str:
    """Return the text after `key:`, with the lines that continue it."""
    found: list[str] = []
    for comment in comments:
        head = re.match(r"(\w+):\s*(.*)", comment)
        if head and head[1] in ("law", "class"):
            if found:
                break
            if head[1] == key:
                found.append(head[2])
        elif found:
            found.append(comment)
    return " ".join(found).strip()


def read_rules(folder: Path) -> list[Rule]:
    """Return the rules of every `.egg` file beneath a folder, in order of file and line."""
    rules = []
    for path in sorted(folder.rglob("*.egg")):
        file = path.relative_to(folder).as_posix()
        for line, comments, text in forms(path.read_text(encoding="utf-8")):
            kind = re.match(r"\(\s*([\w-]+)", text)
            if not kind or kind[1] not in KINDS:
                continue
            name = re.search(r':name\s+"([^"]*)"', text)
            rules.append(
                Rule(
                    name=name[1] if name else "",
                    law=_field(comments, "law"),
                    tolerance=_field(comments, "class"),
                    text=text,
                    file=file,
                    line=line,
                )
            )
    return rules


def page(rules: list[Rule]) -> str:
    """Return the catalogue as Markdown."""
    lines = [
        "# Rule catalogue",
        "",
        "Everything that the compiler knows about programs, generated from `rules/*.egg`.",
        "Rules without a name serve analyses and are counted, not listed.",
        "",
        "| class | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in CLASSES.items()),
    ]
    if not rules:
        return "\n".join([*lines, "", "This checkout has no rule files."]) + "\n"
    for file in dict.fromkeys(rule.file for rule in rules):
        mine = [rule for rule in rules if rule.file == file]
        named = [rule for rule in mine if rule.name]
        lines += ["", f"## `{file}`", ""]
        unnamed = len(mine) - len(named)
        if unnamed:
            lines += [f"{unnamed} rules for analyses, without a name.", ""]
        if not named:
            continue
        lines += ["| rule | law | class |", "|---|---|---|"]
        for rule in named:
            law = (rule.law or "–").replace("|", "\\|")
            lines.append(f"| `{rule.name}` | {law} | {rule.tolerance or '–'} |")
        for rule in named:
            body = "\n".join(f"    {text}" for text in rule.text.splitlines())
            title = f"{rule.name}, {rule.file}:{rule.line}".replace('"', "'")
            lines += ["", f'??? note "{title}"', "", "    ```lisp", body, "    ```"]
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """MkDocs hook: add the page `rules.md`."""
    from mkdocs.structure.files import File

    rules = read_rules(RULES) if RULES.is_dir() else []
    files.append(File.generated(config, "rules.md", content=page(rules)))
    return files


if __name__ == "__main__":
    sys.stdout.write(page(read_rules(RULES)))
