"""`%%rules` in a real IPython shell: rules of one's own, checked before they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from IPython.core.error import UsageError
from IPython.testing.globalipapp import start_ipython

import luminal_lab as ll
from luminal_lab.egraph.ruleset import RuleSet, check_rules, forget, names
from luminal_lab.errors import RuleError

GOOD = """
;; law: x+x = 2*x
;; class: exact
(rewrite (Add x x) (Mul (Const 2.0 d) x) :when ((= d (dtype x)) (floating d)) :name "double")
"""
FALSE = """
;; law: x+x = x (it is not)
;; class: exact
(rewrite (Add x x) x :name "wrong")
"""


@pytest.fixture(scope="module")
def shell():
    ip = start_ipython()
    ip.run_line_magic("load_ext", "luminal_lab")
    return ip


@pytest.fixture(autouse=True)
def empty_shelf():
    yield
    forget(names())


def program():
    return ll.capture(lambda x: x + x, (torch.ones(3),))


def test_a_cell_of_rules_is_registered_under_its_name(shell) -> None:
    found = shell.run_cell_magic("rules", "mine", GOOD)
    assert isinstance(found, RuleSet)
    assert found.ok
    assert found.table()["verdict"].tolist() == ["true"]
    for given in ("mine", found, [found]):
        egraph = ll.saturate(program(), rules=given)
        assert egraph.parts[0].by_rule["double"] > 0
    assert shell.user_ns["mine"] is found
    assert egraph.why_not("double", "out0").fired
    assert set(found._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_the_line_magic_lists_shows_and_removes(shell) -> None:
    assert shell.run_line_magic("rules", "").shape[0] == 0
    shell.run_cell_magic("rules", "mine", GOOD)
    assert shell.run_line_magic("rules", "")["rule"].tolist() == ["double"]
    assert shell.run_line_magic("rules", "mine").name == "mine"
    shell.run_line_magic("rules", "--remove mine")
    with pytest.raises(UsageError, match="no rules are called 'mine'"):
        shell.run_line_magic("rules", "mine")
    with pytest.raises(RuleError, match="no rule file 'mine'"):
        ll.saturate(program(), rules="mine")
    with pytest.raises(UsageError, match="needs a name"):
        shell.run_cell_magic("rules", "", GOOD)


def test_a_false_rule_is_refused_with_the_smallest_instance(shell) -> None:
    with pytest.raises(RuleError, match="line 5, wrong: FALSE") as caught:
        shell.run_cell_magic("rules", "mine", FALSE)
    assert "is not" in str(caught.value)
    assert names() == ()
    with pytest.raises(RuleError, match=r"'wrong' .* is not fit for use"):
        ll.saturate(program(), rules=FALSE)
    forced = shell.run_cell_magic("rules", "mine --force", FALSE)
    assert not forced.ok
    assert "FALSE" in repr(forced)
    assert "smallest instance" in forced._repr_mimebundle_()["text/html"]
    with pytest.raises(RuleError, match="not fit for use"):
        ll.saturate(program(), rules="mine")
    egraph = ll.saturate(program(), rules="mine", check=False)
    assert "wrong" in {r.name for r in egraph.rules}


@pytest.mark.parametrize(
    ("body", "said", "place", "caret"),
    [
        ('(rewrite (Mull a b) (Mul b a) :name "x")', "Unbound function Mull", "mine:4:", 9),
        ('(rewrite (Mul a b) (Mul b c) :name "x")', "Unbound symbol c", "mine:4:", 26),
        ('(rewrite (Mul a b) (Mul b a) :name "x"', "never closed", "mine:4:1", 0),
        ("(rewrite (Mul a b) (Mul b a))", "has no name", "mine:4:1", 0),
        ("(run 1000000)", "is a command", "mine:4:1", 0),
        ('(include "/etc/passwd")', "is a command", "mine:4:1", 0),
    ],
)
def test_errors_point_into_the_cell(shell, body, said, place, caret) -> None:
    with pytest.raises(RuleError, match=said) as caught:
        shell.run_cell_magic("rules", "mine", f";; law: x\n;; class: exact\n{body}\n")
    error = caught.value
    assert error.where is not None
    assert error.where.startswith(place)
    source, pointer = str(error).splitlines()[1:3]
    assert source.endswith(body)
    assert pointer.index("^") - source.index(body) == caret
    assert error._render_traceback_() == [f"RuleError: {error}"]


def test_the_same_errors_come_from_text() -> None:
    text = ';; law: x\n;; class: exact\n(rewrite (Mull a b) (Mul b a) :name "x")'
    with pytest.raises(RuleError, match=r"3 \| \(rewrite \(Mull a b\)"):
        ll.saturate(program(), rules=text, check=False)
    with pytest.raises(RuleError, match=r"3 \| \(rewrite \(Mull a b\)"):
        ll.check_rule(text)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        # Another dtype in one class: egglog panics.
        ('(rewrite (Add a b) (LessThan a b) :name "x")', "Illegal merge"),
        # More and more terms.
        (
            "(rewrite (Add a b) (Add (Add a (Const 0.0 d)) (Add b (Const 0.0 d)))"
            ' :when ((= d (dtype a)) (floating d)) :name "x")',
            "",
        ),
        # Never matches anything.
        ('(rewrite (Add a b) (Add b a) :when ((< 1 0)) :name "x")', "never matched"),
    ],
)
def test_a_bad_rule_costs_a_child_only(rule: str, said: str) -> None:
    found = check_rules(f";; law: x\n;; class: approximate\n{rule}", "mine", 20)
    (check,) = found.checks
    assert said in check.said
    assert said == "" or not found.ok


def test_endless_growth_is_stopped_and_reported() -> None:
    rule = """
    ;; law: a product with more and more factors of one
    ;; class: exact
    (rewrite (Mul a b) (Mul (Mul a (Const 1.0 d)) (Mul b (Const 1.0 d)))
      :when ((= d (dtype a)) (floating d)) :name "grow")
    """
    egraph = ll.saturate(
        ll.capture(lambda x, y: x * y, (torch.ones(3), torch.ones(3))),
        rules=rule,
        limits=ll.Limits(rows=400, iterations=200),
    )
    assert egraph.parts[0].report.stopped


def test_importing_the_package_does_not_import_ipython() -> None:
    code = "import sys, luminal_lab; print('IPython' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "False"


def test_check_rule_shows_itself() -> None:
    found = ll.check_rule(FALSE)
    assert not found.ok
    assert found.verdict == "FALSE"
    assert "smallest instance" in found._repr_mimebundle_()["text/html"]
    assert ll.check_rule("mul-one").verdict == "true"
