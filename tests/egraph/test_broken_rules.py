"""Laws broken on purpose: each is caught, named, and shown with a smallest failing instance.

A broken law is a true one with one thing changed: a guard dropped, a constant off, another
axis, another dtype.
"""

from __future__ import annotations

import pytest

from luminal_lab.egraph.rulebook import rule_info
from luminal_lab.egraph.soundness import builtin_rules, check_rule
from luminal_lab.errors import RuleError

# The rule, what is replaced in it, and by what.
BROKEN = [
    # guards dropped
    ("sum-linear", "(set-not-contains f j)", ""),
    ("max-shift", "(set-not-contains f j)", ""),
    ("max-constant", "(> n 0)", ""),
    ("max-scale", "(> k 0.0)", ""),
    ("fold-mul-int", "(< (abs a) 32768) (< (abs b) 32768)", ""),
    ("fold-sqrt", "(>= c 0.0)", ""),
    ("cast-through-wider", "(exactly a b)", "(exactly b c)"),
    # constants off
    ("sum-constant", "(to-f64 n)", "(to-f64 (+ n 1))"),
    ("sum-shift", "(Mul a (Const (to-f64 n) d))", "a"),
    ("collect-mul", "(Const (* a b) d)", "(Const (+ a b) d)"),
    ("recip-scale", "(/ 1.0 k)", "k"),
    ("winograd-2", "0.5 -0.5 0.5", "0.5 -0.5 -0.5"),
    ("winograd-4", "(Rem (Affine h) 4)", "(Rem (Affine h) 2)"),
    ("online-scale", "(Const (* k c) d) w", "(Const c d) w"),
    ("iota-scale", "(Times k a)", "(Times (+ k 1) a)"),
    ("not-less-left", "(Int (- k 1) d)", "(Int k d)"),
    # another axis
    ("sum-exchange", '(Red "add" j b))', '(Red "add" k b))'),
    ("max-select", '(Red "max" j y)', "y"),
    ("online", "(Online j s c w)", '(Online j s c (Red "add" j w))'),
    # another op, branch or operand
    ("select-and", "(Mul p q)", "(Add p q)"),
    ("sum-select-else", '(Const 0.0 d) (Red "add" j x))', '(Red "add" j x) (Const 0.0 d))'),
    ("online-unless", "(Select p (Red", '(Select (Mul p (Int 0 "bool")) (Red'),
    ("online-linear", "(Mul a (Online j s c w))", "(Online j s c w)"),
    (
        "online-block",
        "(Exp2 (Mul (Const c d) (Add m (Mul b (Const -1.0 d)))))",
        "(Const 1.0 d)",
    ),
    ("exp2-product", "(Exp2 (Add a b))", "(Exp2 (Mul a b))"),
    ("log2-product", "(Add a (Log2 b))", "(Add a b)"),
    ("scatter-again", '(Scatter "set" x w p i at) :name', '(Scatter "set" x v p i at) :name'),
    # another dtype
    ("cast-bool", "(Const 0.0 d)", "(Const 1.0 d)"),
    ("less-cast", "(LessThan a b)", "(LessThan (Cast a \"i32\") (Cast b \"i32\"))"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), BROKEN, ids=lambda x: str(x)[:28])
def test_a_broken_rule_is_caught_and_named(name: str, old: str, new: str) -> None:
    (form,) = [f for p, f in builtin_rules() if rule_info(f, p.name).name == name]
    text = " ".join(form.text.split())
    assert text.count(old) >= 1, text
    at = text.rindex(old)
    text = text[:at] + new + text[at + len(old) :]
    text = text.replace(":when ()", "").replace(f'"{name}"', f'"broken-{name}"')
    comments = "\n".join(f";; {c}" for c in form.comments)
    check = check_rule(f"{comments}\n{text}", tried=120)
    assert not check.ok
    assert check.failure is not None, check
    assert "FALSE" in repr(check)
    assert f"broken-{name}" in repr(check)
    assert check.failure.said or (check.failure.left and check.failure.right)
    assert len(str(check.failure)) < 2000


@pytest.mark.parametrize("op", ['(Un "exp2" a)', "(Sum j a)"])
def test_an_op_that_does_not_exist_is_pointed_at(op: str) -> None:
    text = f"""
;; law: no law
;; class: exact
(rewrite (Mul {op} b) b :name "unknown")"""
    with pytest.raises(RuleError, match=r"Unbound function (Un|Sum)") as caught:
        check_rule(text)
    line, caret = str(caught.value).splitlines()[1:3]
    assert line[caret.index("^") :].startswith(op)
