import re

import pytest

from luminal_lab.views import diff, units
from luminal_lab.views.highlight import code, coloured
from luminal_lab.views.html import (
    GROUNDS,
    PALETTE,
    TEXT_COLOURS,
    Figure,
    Html,
    el,
    fragment,
    page,
    table,
    text,
)
from tests.views.check import check_html
from tests.views.conftest import HOSTILE


def test_everything_that_is_not_markup_is_escaped():
    assert el("p", HOSTILE, title=HOSTILE).count("<") == 2
    assert text(el("b", "x")) == "<b>x</b>"
    assert text("<b>") == "&lt;b&gt;"
    check_html(el("div", [HOSTILE, el("i", HOSTILE)], aria_label=HOSTILE))


def test_attributes():
    assert el("details", open=True) == "<details open></details>"
    assert el("details", open=False, class_=None) == "<details></details>"
    assert el("line", x1=1) == '<line x1="1"/>'


def _luminance(colour: str) -> float:
    def linear(part: int) -> float:
        s = part / 255
        return s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4

    r, g, b = (linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["bg", "surface", "soft"])
@pytest.mark.parametrize("name", TEXT_COLOURS)
def test_contrast(name, ground, theme):
    grounds = [PALETTE[ground][theme], *([GROUNDS[ground]] if theme else [])]
    for colour in grounds:
        pair = sorted(_luminance(c) for c in (PALETTE[name][theme], colour))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


def test_style_sheet_touches_nothing_outside_of_its_class():
    style = re.search(r"<style>(.*?)</style>", fragment("x"), re.S)[1]
    for selectors in re.findall(r"([^{}]+)\{", style):
        for selector in selectors.split(","):
            assert ".ll" in selector, selector


def test_long_tables_say_what_they_hide():
    html = table(["a", ("b", "num")], [[k, k] for k in range(1000)], label="numbers", limit=10)
    assert "showing 10 of 1,000 rows" in check_html(html)
    assert html.count("<tr") == 11


def test_a_page_and_a_figure_stand_alone(tmp_path):
    check_html(page(HOSTILE, el("h1", HOSTILE)).removeprefix("<!DOCTYPE html>"))
    figure = Figure(fragment(el("p", "x")), "plain")
    assert repr(figure) == "plain"
    assert set(figure._repr_mimebundle_()) == {"text/html", "text/plain"}
    figure.save(tmp_path / "x.html", HOSTILE)
    assert "<!DOCTYPE html>" in (tmp_path / "x.html").read_text("utf8")


@pytest.mark.parametrize("language", ["c", "triton", "metal", "egg", "unknown"])
def test_highlighting_keeps_the_text(language):
    source = f'int f(void) {{ return 1 < 2 && "{HOSTILE}"; }} // {HOSTILE}\n'
    assert HOSTILE in check_html(code(source, language))


def test_highlighting_without_pygments(monkeypatch):
    monkeypatch.setattr("luminal_lab.views.highlight.find_spec", lambda name: None)
    assert coloured("a < b", "c") == "a &lt; b"


def test_diff_marks_by_sign_too():
    html = diff.to_html("a\nb\nc", f"a\n{HOSTILE}\nc", "left", HOSTILE)
    shown = check_html(html)
    assert "− b" in shown
    assert f"+ {HOSTILE}" in shown


def test_diff_folds_what_is_equal():
    same = "\n".join(map(str, range(100)))
    assert "equal lines" in check_html(diff.to_html(same + "\nx", same + "\ny"))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (1.0, "1.00 s"), (0.9996, "1.00 s"), (123.4, "123 s"), (1e-9, "1.00 ns"),
     (float("nan"), "–"), (None, "–"), (2.5e-11, "0.0250 ns")],
)  # fmt: skip
def test_seconds(seconds, shown):
    assert units.seconds(seconds) == shown


def test_html_shows_itself_in_a_notebook():
    assert Html("<b>x</b>")._repr_html_() == "<b>x</b>"
