"""Source text with colours, by Pygments where it is installed (Jupyter brings it)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from luminal_lab.views.html import Html, el, join, text

# Our language names -> Pygments lexers; Metal is C++ with a few more words.
_LEXERS = {
    "c": "CLexer",
    "metal": "CppLexer",
    "triton": "PythonLexer",
    "python": "PythonLexer",
    "egg": "SchemeLexer",
    "asm": "GasLexer",
}
# The first entry that contains the token decides; classes are in the style sheet.
_CLASSES = (
    (("Comment", "Preproc"), "tp"),
    (("Comment",), "tc"),
    (("Keyword", "Type"), "tt"),
    (("Keyword",), "tk"),
    (("Literal", "String"), "ts"),
    (("Literal", "Number"), "tn"),
    (("Name", "Function"), "tf"),
    (("Name", "Decorator"), "tp"),
    (("Name", "Builtin"), "tt"),
)


def code(source: str, language: str, label: str = "") -> Html:
    """A `<pre>` of source text.

    Arguments:
        source: The text.
        language: `"c"`, `"metal"`, `"triton"`, `"python"`, `"egg"` or `"asm"`.
        label: What it is, for screen readers.
    """
    return el(
        "pre", el("code", coloured(source, language)), tabindex="0", role="region",
        aria_label=label or f"{language} source",
    )  # fmt: skip


def coloured(source: str, language: str) -> Html:
    """Source text with its tokens in spans."""
    if language not in _LEXERS or find_spec("pygments") is None:
        return text(source)
    lexers = import_module("pygments.lexers")
    lexer = getattr(lexers, _LEXERS[language])(stripnl=False, ensurenl=False)
    return join(_token(tuple(kind), value) for kind, value in lexer.get_tokens(source))


def _token(kind: tuple[str, ...], value: str) -> Html:
    for prefix, css in _CLASSES:
        if kind[: len(prefix)] == prefix:
            return el("span", value, class_=css)
    return text(value)
