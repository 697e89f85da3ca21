"""The command line, stage after stage, as a user would type it."""

from __future__ import annotations

import pytest

import luminal_lab as ll
from luminal_lab.cli import main

PROGRAM = """
import torch

def softmax():
    return torch.nn.Softmax(-1), (torch.randn(4, 16),)

def nothing():
    return 1
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_each_stage_from_the_file_of_the_one_before(program, capsys):
    assert main(["capture", "program.py:softmax", "-o", "a.hlir"]) == 0
    assert "MaxReduce" in capsys.readouterr().out
    assert main(["saturate", "a.hlir", "-o", "a.egraph"]) == 0
    assert "fusion" in capsys.readouterr().out
    assert main(["search", "a.egraph", "--effort", "none", "-o", "a.result"]) == 0
    assert "predicted_ms" in capsys.readouterr().out
    for language, sign in (
        ("c", "ll_exp2"),
        ("triton", "@triton.jit"),
        ("metal", "kernel void"),
    ):
        assert main(["source", "a.result", "--language", language]) == 0
        assert sign in capsys.readouterr().out
    assert main(["profile", "a.result", "-o", "a.profile"]) == 0
    assert ll.load("a.profile").total > 0


def test_a_search_by_another_strategy_is_replayed_from_its_file(program, capsys):
    assert main(["saturate", "program.py:softmax", "-o", "a.egraph"]) == 0
    search = ["search", "a.egraph", "--effort", "none", "--candidates", "5"]
    assert main([*search, "--strategy", "beam", "-o", "a.result"]) == 0
    capsys.readouterr()
    assert main(["search", "a.egraph", "--replay", "a.result"]) == 0
    first = ll.load("a.result").table()
    assert len(first) == 5
    assert first.to_string(index=False) in capsys.readouterr().out


def test_the_command_line_knows_all_strategies():
    from luminal_lab import cli
    from luminal_lab.search import STRATEGIES

    assert tuple(sorted(STRATEGIES)) == cli.STRATEGIES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capture", "missing.py:f"], "no file missing.py"),
        (["capture", "program.py:g"], "has no function g"),
        (["capture", "program.py:nothing"], "must return"),
        (["capture", "no.such.module:f"], "cannot import"),
        (["capture", "neither"], "names no program"),
        (["source", "program.py:softmax", "--effort", "none", "--kernel", "7"], "no kernel 7"),
        (["saturate", "program.py:softmax", "--rules", "missing.egg"], "missing.egg"),
        (["search", "program.py:softmax", "--strategy", "luck"], "unknown strategy 'luck'"),
        (["saturate", "program.py"], "not a file that a stage object saved"),
    ],
)
def test_bad_input_is_said_on_one_screen(program, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_needs_no_program(capsys):
    assert main(["rules"]) == 0
    assert "online" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    assert "C compiler" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cuda", "mps", "tpu"])
def test_targets_that_cannot_run_are_refused(name):
    import torch

    with pytest.raises(ll.LuminalError, match=name):
        ll.compile(torch.nn.ReLU(), (torch.ones(2),), target=name)
