"""The design system of the views: markup that escapes by construction, one style sheet, tables.

Every view returns a self-contained piece of HTML: no script, no external resource, readable
without its style sheet (GitHub strips it), in light and dark. Text that comes from models, rule
files or kernels is escaped because `el` escapes whatever is not `Html` already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROWS_SHOWN = 300  # a static table longer than this says what it hides


class Html(str):
    """Markup. Anything else that is put into markup gets escaped."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


VOID = frozenset({"br", "hr", "meta", "path", "line", "rect", "circle", "polyline", "polygon"})


def text(value: object) -> Html:
    """Any value as escaped text; `Html` passes unchanged."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Pieces one after the other, escaped where needed; None is skipped."""
    return Html(separator.join(text(p) for p in parts if p is not None))


def el(tag: str, *children: object, **attrs: object) -> Html:
    """One element.

    Arguments:
        tag: Its name.
        children: Markup, text (escaped), lists of both, or None (skipped).
        attrs: Attributes: `class_` for class, `_` for `-`. None and False leave one out, True
            gives a bare one.

    >>> el("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    spelled = []
    for name, value in attrs.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            spelled.append(f" {name}")
        elif value is not None and value is not False:
            spelled.append(f' {name}="{escape(str(value))}"')
    head = f"<{tag}{''.join(spelled)}>"
    if tag in VOID and not children:
        return Html(f"{head[:-1]}/>")
    inner = join(c if not isinstance(c, (list, tuple)) else join(c) for c in children)
    return Html(f"{head}{inner}</{tag}>")


# ------------------------------------------------------------------------------- style sheet

# Each colour once, as (light, dark). Text colours have a contrast of 4.5 or more on `bg`,
# `surface` and `soft`; tests/views/test_html.py computes it.
PALETTE = {
    "bg": ("#ffffff", "#0d1117"),
    "surface": ("#f6f8fa", "#161b22"),
    "soft": ("#eef2f6", "#1d242d"),
    "line": ("#d1d9e0", "#3d444d"),
    "fg": ("#1f2328", "#e6edf3"),
    "muted": ("#57606a", "#9da7b1"),
    "accent": ("#0757b5", "#6cb0ff"),
    "good": ("#116329", "#57c76a"),
    "warn": ("#7d4e00", "#e0ad43"),
    "bad": ("#b01824", "#ff8b84"),
    "purple": ("#6639ba", "#c297ff"),
    "teal": ("#0b5f73", "#56c8d8"),
}
# Dark grounds inside of a widget, where JupyterLab's own dark ground shows between our pieces.
GROUNDS = {"bg": "#212121", "surface": "#292c30", "soft": "#30353b", "line": "#4b5259"}
TEXT_COLOURS = ("fg", "muted", "accent", "good", "warn", "bad", "purple", "teal")

_VARS = ";".join(f"--{k}:light-dark({a},{b})" for k, (a, b) in PALETTE.items())
_GREY = ";".join(f"--{k}:{v}" for k, v in GROUNDS.items())

# What an SVG needs when it stands alone; part of the full sheet.
BASE_CSS = (
    f".ll{{color-scheme:light dark;{_VARS};color:var(--fg);background:var(--bg);"
    "font:13px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "[data-jp-theme-light=true] .ll,.vscode-light .ll,"
    "[data-md-color-scheme=default] .ll{color-scheme:light}"
    "[data-jp-theme-light=false] .ll,.vscode-dark .ll,"
    "[data-md-color-scheme=slate] .ll{color-scheme:dark}"
    f"[data-jp-theme-light=false] .jupyter-widgets .ll{{{_GREY};"
    "--bg:var(--jp-layout-color1);background:none}"
)
SVG_CSS = """
.ll text{fill:var(--fg);font:11.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.ll text.sub{fill:var(--muted);font-size:10.5px}
.ll text.b{font-weight:600}
.ll .edge{fill:none;stroke:var(--muted);stroke-width:1.1;opacity:.75}
.ll .edge.dash{stroke-dasharray:4 3}
.ll .tip{fill:var(--muted)}
.ll .box{fill:var(--surface);stroke:var(--line);stroke-width:1}
.ll .bar{fill:var(--muted)}
.ll .k-accent .bar,.ll .f-accent{fill:var(--accent)}
.ll .k-purple .bar,.ll .f-purple{fill:var(--purple)}
.ll .k-warn .bar,.ll .f-warn{fill:var(--warn)}
.ll .k-good .bar,.ll .f-good{fill:var(--good)}
.ll .k-bad .bar,.ll .f-bad{fill:var(--bad)}
.ll .k-teal .bar,.ll .f-teal{fill:var(--teal)}
.ll .f-muted{fill:var(--muted)}
.ll .k-buffer .box{fill:var(--bg);stroke-dasharray:3 2;stroke:var(--muted)}
.ll .k-mark .box{fill:var(--soft);stroke:var(--accent);stroke-width:2}
.ll .grid{stroke:var(--line);stroke-width:1}
.ll .frame{fill:none;stroke:var(--muted);stroke-width:1}
.ll .curve{fill:none;stroke-width:1.8}
.ll .s-accent{stroke:var(--accent)}.ll .s-purple{stroke:var(--purple)}
.ll .s-warn{stroke:var(--warn)}.ll .s-good{stroke:var(--good)}
.ll .s-bad{stroke:var(--bad)}.ll .s-teal{stroke:var(--teal)}.ll .s-muted{stroke:var(--muted)}
"""
PAGE_CSS = """
.ll{padding:2px 0;max-width:100%;box-sizing:border-box}
.ll *{box-sizing:border-box}
.ll .card{border:1px solid var(--line);border-radius:8px;padding:12px 16px;overflow:hidden}
.ll .card+.card{margin-top:10px}
.ll h1,.ll h2,.ll h3,.ll h4{color:var(--fg);line-height:1.25;font-weight:600}
.ll h1{font-size:24px;margin:0 0 6px}.ll h2{font-size:18px;margin:28px 0 8px}
.ll h3{font-size:15px;margin:0 0 4px}.ll h4{font-size:13px;margin:14px 0 4px}
.ll p{margin:4px 0 8px;max-width:78ch;color:var(--fg)}
.ll .muted{color:var(--muted)}.ll .good{color:var(--good)}.ll .warn{color:var(--warn)}
.ll .bad{color:var(--bad)}.ll b{font-weight:600}
.ll ul.facts{display:flex;flex-wrap:wrap;gap:4px 18px;margin:2px 0 8px;padding:0;
 list-style:none}
.ll .facts li{margin:0;padding:0;white-space:nowrap}
.ll .facts b{font-variant-numeric:tabular-nums}
.ll .scroll{overflow:auto;max-height:440px;border:1px solid var(--line);border-radius:6px;
 margin:6px 0}
.ll .scroll.tall{max-height:820px}
.ll .scroll:focus-visible,.ll summary:focus-visible{outline:2px solid var(--accent);
 outline-offset:1px}
.ll table{border-collapse:separate;border-spacing:0;width:100%;margin:0;font-size:12.5px;
 color:var(--fg);background:var(--bg);table-layout:auto;border:0}
.ll tr,.ll tbody tr:nth-child(odd),.ll tbody tr:nth-child(even){background:var(--bg)}
.ll tbody tr:hover td{background:var(--soft)}
.ll th{position:sticky;top:0;background:var(--surface);color:var(--muted);font-weight:600;
 text-align:left;border:0;border-bottom:1px solid var(--line);padding:5px 10px;
 white-space:nowrap;z-index:1}
.ll td{border:0;border-bottom:1px solid var(--line);padding:4px 10px;vertical-align:baseline;
 text-align:left}
.ll tbody tr:last-child td{border-bottom:0}
.ll td.num,.ll th.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.ll td.code,.ll code{font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
 color:var(--fg)}
.ll code{background:none;padding:0}
.ll td.code{overflow-wrap:break-word;min-width:9ch}
.ll pre,.ll pre code{white-space:pre;word-break:normal;overflow-wrap:normal}
.ll tr.mark td{background:var(--soft);font-weight:600}
.ll caption{caption-side:bottom;text-align:left;color:var(--muted);padding:5px 10px}
.ll details{margin:6px 0;border:0;padding:0}
.ll summary{cursor:pointer;color:var(--accent);padding:2px 0;font-weight:500}
.ll details details{margin-left:16px}
.ll pre{margin:0;padding:10px 12px;overflow:auto;max-height:520px;background:var(--surface);
 border:1px solid var(--line);border-radius:6px;color:var(--fg);white-space:pre;tab-size:4;
 font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.ll .cols{display:grid;gap:10px;margin:8px 0;
 grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr))}
.ll .cols>div{min-width:0}
.ll .meter{display:inline-block;width:90px;height:8px;border-radius:4px;background:var(--soft);
 border:1px solid var(--line);overflow:hidden;vertical-align:middle;margin-left:8px}
.ll .meter i{display:block;height:100%;background:var(--accent)}
.ll .term{overflow-x:auto;white-space:pre-wrap;padding:6px 12px;margin:4px 0;
 border-left:3px solid var(--line);
 font:12.5px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.ll .term mark{background:var(--soft);color:var(--accent);font-weight:600;padding:1px 3px;
 border-radius:3px}
.ll ol.steps{list-style:none;margin:8px 0;padding:0}
.ll ol.steps>li{margin:0 0 12px;padding:0 0 0 14px;border-left:2px solid var(--line)}
.ll svg{display:block;height:auto;margin:0 auto}
.ll .tk{color:var(--purple)}.ll .tt{color:var(--teal)}.ll .ts{color:var(--good)}
.ll .tn{color:var(--accent)}.ll .tc{color:var(--muted);font-style:italic}
.ll .tf{color:var(--fg);font-weight:600}.ll .tp{color:var(--warn)}
.ll .add{background:light-dark(#dafbe1,#12301c)}.ll .del{background:light-dark(#ffebe9,#3a1618)}
"""
# A front end styles tables, lists and code inside outputs; ours must win without !important.
PAGE_CSS = PAGE_CSS.replace(".ll ", ".ll.ll.ll ")


def fragment(*children: object) -> Html:
    """A piece of a notebook: the style sheet and the content, scoped by a class."""
    style = Html(f"<style>{BASE_CSS}{SVG_CSS}{PAGE_CSS}</style>")
    return el("div", style, *children, class_="ll")


def page(title: str, *children: object) -> Html:
    """A whole document that opens offline."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        Html(
            f"<style>{BASE_CSS}{SVG_CSS}{PAGE_CSS}"
            "body{margin:0}body.ll{padding:28px max(20px,calc(50vw - 620px)) 60px}</style>"
        ),
    )
    document = el("html", head, el("body", *children, class_="ll"), lang="en")
    return join([Html("<!DOCTYPE html>"), document], "\n")


@dataclass(frozen=True)
class Figure:
    """A finished view: HTML for a front end that shows it, text for one that does not."""

    html: Html
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": str(self.html), "text/plain": self.text}

    def save(self, path: str | Path, title: str = "Luminal Lab") -> None:
        """Write a standalone HTML file."""
        Path(path).write_text(page(title, self.html), encoding="utf-8")


# -------------------------------------------------------------------------------- components


def card(title: str, *children: object, level: int = 3) -> Html:
    """A titled box."""
    return el("section", el(f"h{level}", title), *children, class_="card")


def facts(pairs: Iterable[tuple[object, str]]) -> Html:
    """A line of figures: `(value, what it counts)`; pairs whose value is None are left out."""
    return el(
        "ul",
        [el("li", el("b", v), " ", el("span", w, class_="muted")) for v, w in pairs
         if v is not None],
        class_="facts",
    )  # fmt: skip


def fold(summary: object, *children: object, open_: bool = False) -> Html:
    """Content behind a line that unfolds it."""
    return el("details", el("summary", summary), *children, open=open_)


def scroll(*children: object, label: str, tall: bool = False) -> Html:
    """A region that scrolls, reachable by keyboard."""
    return el(
        "div", *children, class_="scroll tall" if tall else "scroll", tabindex="0",
        role="region", aria_label=label,
    )  # fmt: skip


def columns(*children: object) -> Html:
    """Things side by side, one below the other on a narrow page."""
    return el("div", [el("div", c) for c in children], class_="cols")


def meter(share: float) -> Html:
    """A small bar that shows a share between 0 and 1; the number stands beside it."""
    width = f"{100 * min(max(share, 0.0), 1.0):.0f}%"
    return el("span", el("i", "", style=f"width:{width}"), class_="meter", aria_hidden="true")


Cell = object
Kind = str  # "" (text), "num" (right-aligned) or "code" (monospaced)


def table(
    head: Sequence[str | tuple[str, Kind]],
    rows: Sequence[Sequence[Cell]],
    *,
    label: str,
    limit: int = ROWS_SHOWN,
    marked: Callable[[int], bool] = lambda row: False,
    all_at: str = ".table()",
) -> Html:
    """A table with a header that stays in sight.

    Arguments:
        head: Column titles, or `(title, kind)`.
        rows: Cells; None shows as a dash.
        label: What it is, for screen readers.
        limit: Rows that are shown; a caption says how many there are.
        marked: Which rows to emphasise.
        all_at: Where the rest is found.
    """
    cols = [(h, "") if isinstance(h, str) else h for h in head]
    shown = rows[:limit]
    body = [
        el(
            "tr",
            [el("td", "–" if c is None else c, class_=k or None)
             for c, (_, k) in zip(r, cols, strict=True)],
            class_="mark" if marked(i) else None,
        )
        for i, r in enumerate(shown)
    ]  # fmt: skip
    caption = None
    if len(rows) > limit:
        caption = el("caption", f"showing {limit:,} of {len(rows):,} rows; {all_at} has all")
    titles = [el("th", t, class_="num" if k == "num" else None, scope="col") for t, k in cols]
    return scroll(
        el("table", caption, el("thead", el("tr", titles)), el("tbody", body)), label=label
    )
