"""Make the API reference pages: one for the public names, one for each stage's package.

MkDocs runs this file as a hook. A package that a checkout lacks gets a page that says so, so
the site builds at any commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "luminal_lab"
PAGES = {
    "api": "What `import luminal_lab as ll` offers.",
    "capture": "PyTorch programs become an `Hlir`.",
    "tensor": "Programs written directly: `Graph` and `Tensor`.",
    "hlir": "The graph of primitives, its text form and its reference interpreter.",
    "egraph": "Encoding, saturation, read-out and explanations.",
    "search": "Choices, extraction, cost, verification and the tuning database.",
    "codegen": "Schedules, tile programs and the renderers.",
    "runtime": "Targets: compile, plan memory, execute, profile.",
    "nn": "Modules and models written in the Tensor API.",
    "bench": "Benchmark suites and their database.",
    "views": "Figures, tables and diagrams of stage objects.",
    "widgets": "The interactive forms of the views.",
}


def page(name: str, summary: str) -> str:
    """Return the Markdown of one reference page."""
    module = f"luminal_lab.{name}"
    title = "luminal_lab" if name == "api" else module
    lines = [f"# `{title}`", "", summary, ""]
    if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name / "__init__.py").exists():
        lines += [f"::: {module}", "    options:", "      show_root_heading: false"]
        if name != "api":
            lines += ["      heading_level: 2"]
    else:
        lines.append(f"This checkout has no `{module}`.")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """MkDocs hook: add the pages `reference/*.md`."""
    from mkdocs.structure.files import File

    for name, summary in PAGES.items():
        uri = f"reference/{name}.md"
        files.append(File.generated(config, uri, content=page(name, summary)))
    return files
