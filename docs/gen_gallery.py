"""Make the gallery: each notebook as a page of the site, with its saved outputs.

MkDocs runs this file as a hook. The pages need no kernel, no network and no scripts: cells are
Markdown, outputs are the HTML that the notebooks hold, each in a shadow root, so that neither
the site's style sheet nor the output's own reaches the other.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
_LINES = 14  # of a text that stands for a picture
_SHOWN = 60  # lines of a text output; the rest is cut, and said so
_OUTPUTS: dict[str, list[str]] = {}  # page -> HTML of its outputs

INTRO = """# Gallery

Notebooks that teach one thing each. They are tests as well: every one runs in `make test`.
Open them with `make lab`, or read them here as they were saved.
"""
_CARD = (
    "border:1px solid var(--md-default-fg-color--lightest);border-radius:8px;"
    "padding:0 16px 12px;margin:0 0 20px;overflow:hidden"
)


def book(path: Path) -> dict[str, Any]:
    """A notebook's data."""
    return json.loads(path.read_text("utf8"))


def words(path: Path) -> tuple[str, str]:
    """A notebook's title, and its first paragraph."""
    first = "".join(book(path)["cells"][0]["source"])
    title, _, rest = first.partition("\n")
    paragraph = rest.strip().split("\n\n")[0]
    return title.lstrip("# ").strip(), " ".join(paragraph.split())


def apart(html: str) -> str:
    """HTML that shares no styles with the page."""
    frame = "<style>table.dataframe{border-collapse:collapse;font-size:.8rem}"
    frame += ".dataframe td,.dataframe th{border:0;padding:2px 10px;text-align:right}</style>"
    root = f'<template shadowrootmode="open">{frame}{html}</template>'
    return f'<div style="overflow-x:auto">{root}</div>'


def shown(output: dict[str, Any]) -> str:
    """An output as HTML, `""` for one that says nothing."""
    data = output.get("data", {})
    if "text/html" in data:
        return apart("".join(data["text/html"]))
    if "image/svg+xml" in data:
        return apart("".join(data["image/svg+xml"]))
    text = "".join(output.get("text", data.get("text/plain", "")))
    if not text.strip():
        return ""
    lines = text.rstrip().splitlines()
    more = f"\n… {len(lines) - _SHOWN} lines more" if len(lines) > _SHOWN else ""
    return f"<pre><code>{escape(chr(10).join(lines[:_SHOWN]) + more)}</code></pre>"


def joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs with the pieces of one stream put together."""
    out: list[dict[str, Any]] = []
    for o in outputs:
        if o["output_type"] == "stream":
            if out and out[-1].get("name") == o.get("name"):
                out[-1] = {**out[-1], "text": out[-1]["text"] + "".join(o["text"])}
                continue
            o = {**o, "text": "".join(o["text"])}
        if o["output_type"] != "stream" or o.get("name") == "stdout":
            out.append(o)
    return out


def links(text: str) -> str:
    """Links as they are seen from the page: to other pages; other files lose theirs."""

    def seen(link: re.Match[str]) -> str:
        label, target = link[1], link[2]
        path, mark, part = target.partition("#")
        if path.startswith("../docs/"):
            return f"[{label}](../{target.removeprefix('../docs/')})"
        if path.endswith(".ipynb") and (NOTEBOOKS / path).is_file():
            return f"[{label}]({path.removesuffix('.ipynb')}.md{mark}{part})"
        return label if path.startswith("../") or path.endswith(".ipynb") else link[0]

    return re.sub(r"(?<!!)\[([^\]\[]*)\]\(([^)\s]+)\)", seen, text)


def page(path: Path) -> str:
    """A notebook as Markdown; its outputs are put in when the page is HTML."""
    parts: list[str] = []
    outputs: list[str] = []
    for cell in book(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(links(source))
        elif cell["cell_type"] == "code" and source.strip():
            language = "lisp" if source.startswith("%%rules") else "python"
            parts.append(f"```{language}\n{source}\n```")
            for output in joined(cell.get("outputs", [])):
                if html := shown(output):
                    parts.append(f'<div class="output-{len(outputs)}"></div>')
                    outputs.append(html)
    _OUTPUTS[f"gallery/{path.stem}.md"] = outputs
    note = f"*This page is `notebooks/{path.name}` as it was saved.*"
    return "\n\n".join([*parts, note]) + "\n"


def picture(path: Path) -> str:
    """What shows a notebook best: its first drawing, or the beginning of its longest text."""
    texts = [""]
    for cell in book(path)["cells"]:
        for output in joined(cell.get("outputs", [])):
            html = "".join(output.get("data", {}).get("text/html", ""))
            drawing = re.search(r"<svg.*?</svg>", html, re.S)
            if drawing:
                style = re.search(r"<style>.*?</style>", html, re.S)
                return apart(f'<div class="ll">{style[0] if style else ""}{drawing[0]}</div>')
            plain = output.get("data", {}).get("text/plain", "")
            texts.append("".join(output.get("text", plain)))
    longest = max(texts, key=len).rstrip().splitlines()
    cut = "\n".join(line[:100] for line in longest[:_LINES])
    return f"<pre><code>{escape(cut)}</code></pre>"


def index(paths: list[Path]) -> str:
    """The page with a card for each notebook."""
    out, pictures = [INTRO], []
    for path in paths:
        title, text = words(path)
        head = f"## [{title}]({path.stem}.md)\n\n{links(text)}"
        spot = f'<div class="output-{len(pictures)}"></div>'
        out.append(f'<div style="{_CARD}" markdown>\n\n{head}\n\n{spot}\n\n</div>')
        pictures.append(
            f'<div style="max-height:340px;overflow:hidden" role="img" '
            f'aria-label="From the notebook: {escape(title)}">{picture(path)}</div>'
        )
    _OUTPUTS["gallery/index.md"] = pictures
    return "\n\n".join(out) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """MkDocs hook: add the gallery and its pages."""
    from mkdocs.structure.files import File

    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    files.append(File.generated(config, "gallery/index.md", content=index(paths)))
    for path in paths:
        uri = f"gallery/{path.stem}.md"
        files.append(File.generated(config, uri, content=page(path)))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """MkDocs hook: put the outputs into a page, untouched by Markdown."""
    for k, output in enumerate(_OUTPUTS.get(page.file.src_uri, [])):
        html = html.replace(f'<div class="output-{k}"></div>', output)
    return html
