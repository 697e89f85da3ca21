"""Laws about products that are almost right: each is caught, and named."""

from __future__ import annotations

import pytest

from luminal_lab.egraph.rulebook import rule_info
from luminal_lab.egraph.soundness import builtin_rules, check_rule

# Each is a built-in rule with one thing changed: what, in which rule, from, to.
# fmt: off
WRONG = [
    ("B may have k", "product-of-product",
     "(= fb (free b)) (set-not-contains fb k)",
     "(= fb (free b))"),
    ("x may have n", "product-of-product",
     "(= fx (free x)) (set-not-contains fx n)",
     "(= fx (free x))"),
    ("sums in the wrong order", "product-of-product",
     '(Red "add" k (Mul x (Red "add" n (Mul a b))))',
     '(Red "add" n (Mul x (Red "add" k (Mul a b))))'),
    ("the other factor", "product-of-product",
     '(Red "add" n (Mul a b))',
     '(Red "add" n (Mul a x))'),
    ("a difference", "products-add",
     "(Mul x (Add a b))",
     "(Mul x (Add a (Mul (Const -1.0 d) b)))"),
    ("twice the first", "products-add",
     "(Add a b)",
     "(Add a a)"),
    ("the bias is lost", "bias-through-product",
     '(Add (Red "add" k (Mul x w)) (Red "add" k (Mul b w)))',
     '(Red "add" k (Mul x w))'),
    ("the bias is not multiplied", "bias-through-product",
     '(Red "add" k (Mul b w))',
     '(Red "add" k b)'),
    ("the scale varies along the sum", "scale-into-weights",
     "(set-not-contains f j) ",
     ""),
    ("the scale is squared", "scale-into-weights",
     "(Mul s q)",
     "(Mul s (Mul s q))"),
    ("the bias is not scaled", "scale-of-bias",
     "(Add (Mul s v) (Mul s b))",
     "(Add (Mul s v) b)"),
    ("one weight twice", "collect-weights",
     "(Add x (Add b c))",
     "(Add x (Add b b))"),
    ("the parts exchanged", "products-beside",
     "(Load A (+ b1 (+ c e1))) (Load B (+ b2 (+ c (+ s e2))))",
     "(Load B (+ b2 (+ c e2))) (Load A (+ b1 (+ c (+ s e1))))"),
    ("a part begins one early", "products-beside",
     '(+ " - " (to-string n1))',
     '(+ " - " (to-string (- n1 1)))'),
    ("a part is read one late", "products-beside",
     '(+ " + " (to-string n1))',
     '(+ " + " (to-string (+ n1 1)))'),
    ("the whole is read unshifted", "read-within",
     "(union l (Load J (+ i s)))",
     "(union l (Load J i))"),
]
# fmt: on


@pytest.mark.parametrize(("what", "name", "old", "new"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_law_is_caught_and_named(what: str, name: str, old: str, new: str) -> None:
    found = [(f, p.name) for p, f in builtin_rules()]
    (form,) = [f for f, file in found if rule_info(f, file).name == name]
    assert old in form.text, what
    comments = "\n".join(f";; {c}" for c in form.comments)
    text = form.text.replace(old, new).replace(f'"{name}"', f'"wrong-{name}"')
    tried = 240 if name == "product-of-product" else 60  # its guards leave few instances
    check = check_rule(f"{comments}\n{text}", tried=tried)
    assert check.failure is not None, check
    assert f"wrong-{name}" in repr(check)
