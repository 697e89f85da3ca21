"""What the pages show runs, and says what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOWTO = Path(__file__).parent.parent / "docs" / "howto"
PAGE = HOWTO / "ask-why.md"


def test_the_questions_of_the_page_have_answers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    space: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, str(PAGE), "exec"), space)
    assert max(space["why"].verify()) < 1e-9
    assert space["steps"].egraph.parts[0].classes == space["egraph"].parts[0].classes
    shown = re.search(r"```text\n(Rule max-constant.*?)```", text, re.S)
    assert shown is not None
    said = repr(space["egraph"].why_not("max-constant", 7))
    for line in shown[1].strip().splitlines():
        assert line in said, said


@pytest.mark.parametrize(
    "page", ["write-a-program", "buckets", "custom-operators", "build-a-model"]
)
def test_the_blocks_of_a_page_run(page: str) -> None:
    path = HOWTO / f"{page}.md"
    space: dict = {}
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
        exec(compile(block, str(path), "exec"), space)
