"""Each rule tells the truth on random instances, and not without its guards."""

from __future__ import annotations

import pytest

from luminal_lab.egraph.rulebook import load_rules, rule_catalogue, rule_info
from luminal_lab.egraph.sexpr import forms
from luminal_lab.egraph.soundness import builtin_rules, check_rule, mutants
from luminal_lab.errors import RuleError

RULES = [r.name for r in rule_catalogue()]

# Guards whose absence makes a rule false. (Others keep precision, or the result usable.)
NEEDED = [
    ("and-absorbs", '"bool"'),
    ("and-same", '"bool"'),
    ("any-is-max", '"bool"'),
    ("argmax-cast", "(exactly s d)"),
    ("cast-back", "(floating n)"),
    ("cast-bool", '"bool"'),
    ("cast-through-wider", "(exactly a b)"),
    ("convolved", "(set-contains ks e)"),
    ("convolved", "(set-contains ks f)"),
    ("fold-mod-int", "(>= a 0)"),
    ("fold-recip", "(!= c"),
    ("fold-sqrt", "(>= c"),
    ("gemm", "(wide d)"),
    ("gemm-bf16", "(stores A)"),
    ("less-cast", "(exactly s d)"),
    ("less-false", "(>= a b)"),
    ("less-int-false", "(>= a b)"),
    ("less-int-true", "(< a b)"),
    ("less-true", "(< (+ a"),
    ("max-cast", "(floating d)"),
    ("max-constant", "(> n 0)"),
    ("max-constant", "(set-not-contains f j)"),
    ("max-exp2", "(> n 0)"),
    ("max-scale", "(> k 0.0)"),
    ("max-select", "(set-not-contains f j)"),
    ("max-shift", "(set-not-contains f j)"),
    ("online-linear", "(set-not-contains f j)"),
    ("online-scale", "(> (* k c) 0.0)"),
    ("online-unless", "(set-not-contains f j)"),
    ("or-absorbs", '"bool"'),
    ("or-same", '"bool"'),
    ("recip-scale", "(> (abs k) 1e-30)"),
    ("product-of-product", "(set-not-contains fb k)"),
    ("product-of-product", "(set-not-contains fx n)"),
    ("scale-into-weights", "(set-not-contains f j)"),
    ("select-scale-else", "(> k 0.0)"),
    ("select-scale-then", "(> k 0.0)"),
    ("spread", "(< (abs"),
    ("spread-within", "(set-not-contains f j)"),
    ("spread-within-two", "(set-not-contains f l)"),
    ("sum-constant", "(set-not-contains f j)"),
    ("sum-exchange", "(set-not-contains f j)"),
    ("sum-linear", "(set-not-contains f j)"),
    ("sum-push-in", "(set-not-contains f j)"),
    ("sum-select", "(set-not-contains f j)"),
    ("sum-select-else", "(set-not-contains f j)"),
    ("sum-shift", "(set-not-contains f j)"),
]


def test_the_rules_are_the_ones_that_are_loaded() -> None:
    loaded = [r.name for r in load_rules(["distribution", "stacking", "winograd"]).rules]
    assert sorted(loaded) == sorted(RULES)
    assert len(set(RULES)) == len(RULES)


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    check = check_rule(name, tried=60)
    assert check.ok, check


@pytest.mark.parametrize(("name", "guard"), NEEDED)
def test_rule_without_a_guard_is_caught(name: str, guard: str) -> None:
    (form,) = [f for p, f in builtin_rules() if rule_info(f, p.name).name == name]
    found = [m for said, m in mutants(form) if guard in said]
    assert len(found) == 1, [said for said, _ in mutants(form)]
    comments = "\n".join(f";; {c}" for c in form.comments)
    text = found[0].text.replace(f'"{name}"', '"mutant"')
    check = check_rule(f"{comments}\n{text}", tried=120)
    assert check.failure is not None, check


def test_more_instances_are_the_same_and_others() -> None:
    """A rule that takes large terms, which crowd an e-graph when they are many."""
    few, many = (check_rule("products-above", tried=n) for n in (60, 160))
    assert 0 < few.fired < many.fired


def test_a_false_rule_is_shown_with_a_small_instance() -> None:
    check = check_rule("""
    ;; law: a-b = b-a (it is not)
    ;; class: reassociates
    (rewrite (Add a (Mul (Const -1.0 d) b)) (Add b (Mul (Const -1.0 d) a)) :name "wrong-minus")
    """)
    assert not check.ok
    assert check.failure is not None
    assert "FALSE" in repr(check)
    assert "wrong-minus" in repr(check)
    assert len(str(check.failure)) < 1000


def test_an_exact_rule_must_keep_nan_and_inf() -> None:
    text = """
    ;; law: x*0 = 0 (not for inf and NaN)
    ;; class: {}
    (rewrite (Mul x (Const 0.0 d)) (Const 0.0 d) :name "times-zero")
    """
    exact = check_rule(text.format("exact"))
    assert exact.failure is not None
    assert exact.failure.inputs == "hostile"
    assert check_rule(text.format("reassociates")).failure is None


def test_a_rule_that_mixes_dtypes_is_false() -> None:
    check = check_rule("""
    ;; law: a comparison is a number (it is a bool)
    ;; class: exact
    (rewrite (LessThan a b) (Add a b) :name "bool-is-number")
    """)
    assert check.failure is not None
    assert "Illegal merge" in str(check.failure)


def test_a_rule_that_never_matches_is_not_ok() -> None:
    check = check_rule("""
    ;; law: nothing
    ;; class: exact
    (rewrite (Mul a b) (Mul b a) :when ((< 1 0)) :name "never")
    """)
    assert not check.ok
    assert "never matched" in repr(check)


def test_a_rule_must_say_what_it_states() -> None:
    with pytest.raises(RuleError, match="no name"):
        load_rules(";; law: x\n;; class: exact\n(rewrite (Mul a b) (Mul b a))")
    with pytest.raises(RuleError, match="does not say its law"):
        load_rules('(rewrite (Mul a b) (Mul b a) :name "x")')
    with pytest.raises(RuleError, match="class 'fuzzy'"):
        load_rules(';; law: x\n;; class: fuzzy\n(rewrite (Mul a b) (Mul b a) :name "x")')
    with pytest.raises(RuleError, match="two rules are called 'mul-commutes'"):
        load_rules(
            ';; law: x\n;; class: exact\n(rewrite (Mul a b) (Mul b a) :name "mul-commutes")'
        )
    with pytest.raises(RuleError, match="no well-typed instance"):
        check_rule(
            ';; law: x\n;; class: exact\n(rewrite (Exp2 (LessThan a b)) (Exp2 a) :name "x")'
        )
    with pytest.raises(RuleError, match="no rule called"):
        check_rule("no-such-rule")


def test_forms_keep_comments_lines_and_columns() -> None:
    text = '; file\n\n;; law: one\n;;   two\n(a "x)" ; comment )\n  (b c))\n  (d)'
    first, second = forms(text, "f.egg")
    assert first.comments == ("law: one", "two")
    assert (first.expr.line, first.expr.column) == (5, 1)
    assert (second.expr.line, second.expr.column) == (7, 3)
    assert second.comments == ()
    assert first.padded.count("\n") == 5
    assert str(first.expr) == '(a "x)" (b c))'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("(a (b)", "f.egg:1:1"),
        ('(a "b', "f.egg:1:4"),
        ("(a))", "f.egg:1:4"),
        ("\n x", "f.egg:2:2"),
    ],
)
def test_unbalanced_text_is_an_error_with_its_place(text: str, where: str) -> None:
    with pytest.raises(RuleError) as caught:
        forms(text, "f.egg")
    assert caught.value.where == where
