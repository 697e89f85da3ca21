"""Golden text: tile programs and the C of a few kernels, and what all generated C keeps to."""

from __future__ import annotations

import re

import pytest

from luminal_lab import codegen
from luminal_lab.search.machine import Machine
from tests.codegen import kernels as K

MACHINE = Machine()  # the same text on every machine

GOLDEN = {
    "row_sum": lambda: K.reduce_rows(64, 100),
    "softmax": lambda: K.softmax(64, 256),
    "column_sum": lambda: K.reduce_columns(64, 256),
    "linear": lambda: K.linear(24, 64, 64),
    "causal_attention": lambda: K.attention(1, 2, 256, 256, 32, causal="select"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_tile_program(name: str, snapshot):
    assert codegen.lower(GOLDEN[name](), None, MACHINE).text() == snapshot


@pytest.mark.parametrize("name", ["row_sum", "softmax", "column_sum", "linear"])
def test_c(name: str, snapshot):
    program = codegen.lower(GOLDEN[name](), None, MACHINE)
    assert codegen.render(program, "c", name).text == snapshot


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_keeps_the_rules(name: str):
    source = codegen.render(codegen.lower(GOLDEN[name](), None, MACHINE), "c", "entry")
    text = codegen.prelude(MACHINE) + source.text
    assert "#include" not in text
    assert "#pragma" not in text
    functions = re.findall(r"^(?:static )?void (\w+)\(", source.text, re.MULTILINE)
    assert functions
    assert all(f.startswith("entry") for f in functions)
    assert source.params == (*GOLDEN[name]().reads(), *GOLDEN[name]().writes())
