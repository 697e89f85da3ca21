"""What every view must be: well-formed, self-contained, escaped, labelled."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from luminal_lab.views.html import VOID

_VOID = VOID | {"img", "input", "link"}
_LOADING = {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.text: list[str] = []
        self.attrs: list[tuple[str, str, str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        names = [n for n, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute"
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}> runs script"
            self.attrs.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_html(html: str) -> str:
    """Assert the rules on a piece of HTML; returns its visible text."""
    assert isinstance(html, str)
    checker = _Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open, f"left open: {checker.open}"
    assert not {"script", "iframe", "object", "link", "img"} & set(checker.seen)
    for tag, name, value in checker.attrs:
        if name in _LOADING:
            assert value.startswith("#"), f"<{tag} {name}={value!r}> loads something"
        assert "javascript:" not in value.lower().replace("xmlns", "")
    style = " ".join(re.findall(r"<style>(.*?)</style>", html, re.S))
    assert "url(" not in style
    assert "@import" not in style
    assert len(checker.ids) == len(set(checker.ids)), "ids repeat"
    pictures = [a for a in checker.attrs if a[0] == "svg" and a[1] == "aria-label"]
    assert len(pictures) == checker.seen.get("svg", 0), "a picture has no alternative text"
    assert all(value for *_, value in pictures)
    scopes = sum(a[:2] == ("th", "scope") for a in checker.attrs)
    assert scopes == checker.seen.get("th", 0), "a heading does not say what it heads"
    return "".join(checker.text)
