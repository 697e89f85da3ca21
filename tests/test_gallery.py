"""The gallery: every notebook is a page with its saved outputs; its links lead somewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_gallery", ROOT / "docs/gen_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_a_page(gallery: ModuleType, path: Path) -> None:
    title, text = gallery.words(path)
    assert title
    assert len(text.split()) > 10
    markdown = gallery.page(path)
    page = SimpleNamespace(file=SimpleNamespace(src_uri=f"gallery/{path.stem}.md"))
    html = gallery.on_page_content(markdown, page=page)
    assert "output-0" in markdown
    assert "output-" not in html.replace("nbval-ignore-output", "")
    assert "../docs/" not in markdown
    assert ".ipynb)" not in markdown
    assert gallery.picture(path)


def test_links_lead_to_pages_or_are_words(gallery: ModuleType) -> None:
    given = "[a](../docs/x.md#y) [b](00_tour.ipynb#z) [c](99_none.ipynb) [d](../rules/e.egg)"
    assert gallery.links(given) == "[a](../x.md#y) [b](00_tour.md#z) c d"
