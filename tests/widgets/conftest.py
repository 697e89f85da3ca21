"""A browser, and a page that renders a widget without a notebook around it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from luminal_lab.widgets import assets

PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class _Site:
    """Serves the page, the widget's files and its state from memory."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {
            "/": ("text/html", PAGE.encode()),
            "/favicon.ico": ("image/x-icon", b""),
            "/graphviz.js": ("text/javascript", assets.data("vendor/graphviz.js")),
        }
        files = self.files

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, body = files.get(self.path, ("", b""))
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def put(self, widget: Any) -> None:
        keys = [k for k in widget.keys if not k.startswith("_")]
        state = {k: v for k, v in widget.get_state(keys).items() if _plain(v)}
        self.files["/state.json"] = ("application/json", json.dumps(state).encode())
        self.files["/widget.js"] = ("text/javascript", str(widget._esm).encode())
        self.files["/widget.css"] = ("text/css", str(widget._css).encode())


def _plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs the program chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site() -> Iterator[_Site]:
    site = _Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def show(browser: Any, site: _Site) -> Iterator[Any]:
    """`show(widget)` renders it and returns the page; console errors fail the test."""
    pages, errors = [], []

    def run(widget: Any) -> Any:
        site.put(widget)
        page = browser.new_page(viewport={"width": 1200, "height": 700})
        page.set_default_timeout(120_000)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.goto(site.url)
        page.wait_for_function("globalThis.rendered")
        pages.append(page)
        return page

    yield run
    for page in pages:
        page.close()
    assert not errors
