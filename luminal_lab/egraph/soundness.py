"""Is a rule true? Random instances, all members of every class compared in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from luminal_lab.egraph.audit import Disagreement, audit_classes
from luminal_lab.egraph.custom_check import Call, operators_of, programs
from luminal_lab.egraph.egraph import EClass, ENode
from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.instances import Terms, facts_of, instances, lemmas_of
from luminal_lab.egraph.language import SIGNATURES
from luminal_lab.egraph.library import Declaration
from luminal_lab.egraph.process import Child, Limits, PartFailed
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.readout import extents_of, read_classes
from luminal_lab.egraph.rulebook import (
    TOLERANCES,
    Rulebook,
    RuleInfo,
    Tolerance,
    pointed,
    refuse_commands,
    rule_info,
    rulebook,
)
from luminal_lab.egraph.sexpr import Atom, Expr, Form, List, forms
from luminal_lab.errors import LuminalError, RuleError, SaturationError
from luminal_lab.resources import rules_dir

if TYPE_CHECKING:
    from torch import Tensor

_TOLERANCE = {"exact": 1e-12, "reassociates": 1e-9, "approximate": 2.0**-5}
_LIMITS = Limits(iterations=3, rows=3000, seconds=10.0, memory=1 << 30)
_BATCH = 20  # instances in one e-graph


@dataclass(frozen=True)
class Failure:
    """An instance on which the two sides of a rule differ.

    Arguments:
        left, right: The two members of one class, written out.
        error: Their largest relative difference (infinite for unlike NaN or inf); None when
            one of them is ill-formed (another dtype, for example).
        inputs: Which inputs showed it: `"finite"` or `"hostile"` (inf, NaN, zeros).
        said: The complaint of egglog or of the evaluator, when there is no number.
    """

    left: str
    right: str
    error: float | None
    inputs: str
    said: str = ""

    def __str__(self) -> str:
        if self.error is None:
            if self.said.startswith("it "):
                return self.said
            return f"it makes an ill-formed term: {self.said}"
        return (
            f"{self.left}\n  is not\n{self.right}\n  ({self.inputs} inputs: {self.error:.3g})"
        )


@dataclass(frozen=True)
class RuleCheck:
    """The verdict on a rule.

    Arguments:
        rule: What the rule states about itself.
        tried: Instances tried.
        fired: How often the rule matched.
        failure: The smallest instance on which it is false, None when there is none.
        problem: Why it could not be tested, `""` when it could.
    """

    rule: RuleInfo
    tried: int
    fired: int
    failure: Failure | None
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it fired and was never false."""
        return self.failure is None and self.fired > 0 and not self.problem

    @property
    def verdict(self) -> str:
        """`"true"`, `"FALSE"` or `"not tested"`."""
        return "true" if self.ok else "FALSE" if self.failure is not None else "not tested"

    @property
    def said(self) -> str:
        """The verdict in words."""
        if self.failure is not None:
            return f"FALSE: {self.failure}"
        if self.problem:
            return f"not tested: {self.problem}"
        if not self.fired:
            return f"never matched in {self.tried} instances: nothing was tested"
        return f"true: {self.fired} matches in {self.tried} instances"

    def __repr__(self) -> str:
        head = f"rule {self.rule.name!r} ({self.rule.tolerance}): {self.rule.law}"
        return f"{head}\n{self.said}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.rules")
        return {"text/plain": repr(self), "text/html": str(view.check_html(self))}


def check_rule(
    rule: str,
    tried: int = 80,
    seed: int = 0,
    kernels: Mapping[str, Declaration] | None = None,
) -> RuleCheck:
    """Test a rule on random well-typed instances of its left side.

    Arguments:
        rule: Its text with the comments that state its law and its class (and relations that it
            declares), or the name of a built-in rule.
        tried: How many instances.
        seed: Same seed, same instances.
        kernels: Hand-written kernels that it may call, by name.

    Returns:
        The verdict; with the smallest failing instance when it is false.

    Raises:
        RuleError: it does not parse, states no law, or its left side cannot be instantiated.

    Example:
        >>> check_rule('''
        ... ;; law: x+x = x (it is not)
        ... ;; class: exact
        ... (rewrite (Add x x) x :name "wrong")''').ok
        False
    """
    builtin = builtin_sources()
    if "(" not in rule:
        for file, text in builtin:
            for form in rules_in(forms(text, file)):
                if rule_info(form, file).name == rule:
                    return check_form(form, file, builtin, tried, seed)
        raise RuleError(f"there is no rule called {rule!r}")
    given = [("rule", rule)]
    try:
        refuse_commands(forms(rule, "rule"), "rule")
        mine = list(rules_in(forms(rule, "rule")))
        if len(mine) != 1:
            raise RuleError(
                f"expected the text of one rule, found {len(mine)}",
                fix="luminal_lab.egraph.check_rules tests several",
            )
        found = check_form(mine[0], "rule", builtin + given, tried, seed, kernels)
        if found.problem and not found.fired:  # egglog itself knows the place, if it is one
            import_module("luminal_lab.egraph.ruleset").check_types(given[0])
    except RuleError as error:
        raise pointed(error, given) from None
    if found.problem and not found.fired:
        raise RuleError(found.problem, where=f"rule:{found.rule.line}:1")
    return found


def check_form(
    form: Form,
    file: str,
    sources: Sequence[tuple[str, str]],
    tried: int,
    seed: int,
    kernels: Mapping[str, Declaration] | None = None,
) -> RuleCheck:
    """`check_rule`, of a form of one of `sources`; `kernels` are those that it may call."""
    info = rule_info(form, file)
    try:
        return _check(form, info, sources, tried, seed, kernels or {})
    except SaturationError as died:
        said = " ".join(died.what.split())
        return RuleCheck(info, tried, 1, Failure("", "", None, "", f"it does not end: {said}"))
    except RuleError as error:
        if error.where:  # egglog rejects it: there is a place to show
            raise
        return RuleCheck(info, 0, 0, None, error.what)


def _check(
    form: Form,
    info: RuleInfo,
    sources: Sequence[tuple[str, str]],
    tried: int,
    seed: int,
    kernels: Mapping[str, Declaration],
) -> RuleCheck:
    every = [f for name, text in sources for f in forms(text, name)]
    book = replace(_book(info, form, sources, every), kernels=kernels)
    if operators := operators_of(facts_of(form)):
        return _check_calls(info, book, operators)
    judged = replace(info, tolerance=_loosest(info, form, every))
    # Some instances in one e-graph: fast, and never so many that a limit keeps rules from them.
    # Only where that shows something wrong, one by one.
    batches = [range(k, min(k + _BATCH, tried)) for k in range(0, tried, _BATCH)]
    together = [instances(form, every, batch, seed) for batch in batches]
    states, failed = _run(book, together)
    fired = sum(_fired(state, info.name) for state in states)
    bad = [
        batch
        for batch, terms, state in zip(batches, together, states)
        if (state is None and failed is not None) or _wrong(terms, state, book, judged)
    ]
    if not bad:
        return RuleCheck(info, tried, fired, None)
    alone = [instances(form, every, (k,), seed) for batch in bad for k in batch]
    states, failed = _run(book, alone)
    for terms, state in sorted(zip(alone, states), key=lambda pair: len(pair[0].values)):
        if failure := _wrong(terms, state, book, judged):
            return RuleCheck(info, tried, max(1, fired), failure)
    said = failed or "several instances together, not one by one"
    return RuleCheck(info, tried, max(1, fired), Failure("", "", None, "", said))


def _wrong(
    terms: Terms, state: Mapping[str, Any] | None, book: Rulebook, info: RuleInfo
) -> Failure | None:
    return _judge(terms, state, book, info) if _fired(state, info.name) else None


def _check_calls(info: RuleInfo, book: Rulebook, operators: Sequence[str]) -> RuleCheck:
    """A rule about operators of the user's own, on programs that call them."""
    try:
        found = [call for target in operators for call in programs(target)]
    except LuminalError as error:
        return RuleCheck(info, 0, 0, None, error.what)
    states, failed = _run_programs(book, [call.commands(book.wanted) for call in found])
    fired = sum(_fired(s, info.name) for s in states)
    for call, state in sorted(zip(found, states), key=lambda pair: len(pair[0].values)):
        if state is not None and (failure := _judge_call(call, state, book, info)):
            return RuleCheck(info, len(found), fired, failure)
    if failed is not None:
        return RuleCheck(info, len(found), 1, Failure("", "", None, "", failed))
    return RuleCheck(info, len(found), fired, None)


def _judge_call(
    call: Call, state: Mapping[str, Any], book: Rulebook, info: RuleInfo
) -> Failure | None:
    encoding = encode(call.hlir)
    try:
        classes, _, _, _ = read_classes(
            state["tables"], encoding, book.rules, keep_all=True, kernels=book.kernels
        )
        extents = extents_of(state["tables"], encoding)
        wide = all((x.dtype.is_floating_point and x.dtype.itemsize > 2) or
                   not x.dtype.is_floating_point for x in call.inputs.values())  # fmt: skip
        # The operator computes in the dtype of its inputs, not in float64.
        tolerance = 1e-5 if wide else 2.0**-6
        found = audit_classes(classes, extents, call.inputs, call.hlir, tolerance)
    except (RuntimeError, LuminalError) as error:
        return Failure("", "", None, "finite", f"{type(error).__name__}: {error}")
    return _failure(found[0], classes, "finite") if found else None


def mutants(form: Form) -> Iterator[tuple[str, Form]]:
    """The rule without one of its guards, for each guard: `(the guard, the rule)`.

    A guard is a fact that binds no variable: a comparison, a set test, a dtype family.
    """
    for fact in facts_of(form):
        if not _is_guard(fact, form):
            continue
        text = _without(form.expr, fact)
        yield str(fact), Form(text, str(text), form.comments)


def _is_guard(fact: List, form: Form) -> bool:
    if fact.head == "=":
        left, right = fact.items[1], fact.items[2]
        return all(
            not isinstance(e, Atom) or e.text[0] in '"-0123456789' for e in (left, right)
        )
    return fact.head in (
        "!=", "<", ">", "<=", ">=", "set-not-contains", "set-contains",
        "wide", "floating", "exactly",
    )  # fmt: skip


def _without(expr: List, fact: List) -> List:
    def drop(e: Expr) -> Expr:
        if not isinstance(e, List):
            return e
        return List(tuple(drop(x) for x in e.items if x is not fact), e.line, e.column)

    out = drop(expr)
    assert isinstance(out, List)
    items = list(out.items)
    for k, item in enumerate(items):  # an empty :when goes with its last guard
        if isinstance(item, Atom) and item.text == ":when" and items[k + 1] == List(()):
            del items[k : k + 2]
            break
        after = items[k + 1] if k + 1 < len(items) else None
        if isinstance(item, Atom) and item.text == ":when" and isinstance(after, List):
            if not after.items:
                del items[k : k + 2]
                break
    return List(tuple(items), expr.line, expr.column)


# ---------------------------------------------------------------------- running


def builtin_sources() -> list[tuple[str, str]]:
    paths = sorted(p for p in rules_dir().rglob("*.egg") if p.name != "language.egg")
    return [(p.name, p.read_text(encoding="utf-8")) for p in paths]


def rules_in(found: Sequence[Form]) -> Iterator[Form]:
    return (f for f in found if f.expr.head in ("rewrite", "birewrite", "rule"))


def _book(
    info: RuleInfo, form: Form, sources: Sequence[tuple[str, str]], every: Sequence[Form]
) -> Rulebook:
    """The rule, those that derive the relations it matches, and those that use its own."""
    lemmas = lemmas_of(every, functions=True)
    wanted, pending = [info.name], [form]
    for user in _users(form, every):
        wanted.append(rule_info(user, "").name)
        pending.append(user)
    while pending:
        facts = facts_of(pending.pop())
        heads = [part.head for fact in facts for part in (fact, *fact.items) if _has_head(part)]
        for head in dict.fromkeys(heads):
            for lemma in lemmas.get(head, ()):
                name = rule_info(lemma, "").name
                if name not in wanted:
                    wanted.append(name)
                    pending.append(lemma)
    declared = "\n".join(f.text for f in every if f.expr.head in ("relation", "function"))
    texts = [("declarations", declared)]
    comments = "\n".join(f";; {c}" for c in form.comments)
    texts.append((info.file, f"{comments}\n{form.text}"))
    for f in rules_in(every):
        name = rule_info(f, "").name
        if name in wanted and name != info.name:
            texts.append((name, "\n".join([*(f";; {c}" for c in f.comments), f.text])))
    return rulebook(texts)


def _users(form: Form, every: Sequence[Form]) -> list[Form]:
    """The rules that match a relation which the rule derives: what it says is seen in them."""
    derived = {r for r, made in lemmas_of([*every, form]).items() if form in made}
    return [u for u in rules_in(every) if derived & {fact.head for fact in facts_of(u)}]


def _loosest(info: RuleInfo, form: Form, every: Sequence[Form]) -> Tolerance:
    """The class of what is concluded from a rule: its own, or of what uses its relation."""
    classes: list[Tolerance] = [
        info.tolerance,
        *(rule_info(u, "").tolerance for u in _users(form, every)),
    ]
    return max(classes, key=TOLERANCES.index)


def _has_head(part: Expr) -> TypeGuard[List]:
    return isinstance(part, List) and bool(part.items)


def _run(
    book: Rulebook, found: Sequence[Terms]
) -> tuple[list[dict[str, Any] | None], str | None]:
    """The state after saturating each instance; and what egglog said if it refused one."""
    return _run_programs(book, [commands(i.encoding(), book.wanted) for i in found])


def _run_programs(
    book: Rulebook, programs: Sequence[list[str]]
) -> tuple[list[dict[str, Any] | None], str | None]:
    try:
        with Child() as child:
            # Some iterations for the rule, also on its own terms; and one for each rule that
            # derives what it matches.
            limits = replace(_LIMITS, iterations=_LIMITS.iterations + len(book.rules) - 1)
            results = child.run(book, list(programs), limits)
    except PartFailed as failed:
        done, _ = _run_programs(book, programs[: failed.part]) if failed.part else ([], None)
        return [*done, *[None] * (len(programs) - len(done))], failed.said
    return [_with_matches(r) for r in results], None


def _with_matches(result: Any) -> dict[str, Any]:
    matches: dict[str, int] = {}
    for iteration in result.iterations:
        for name, count in iteration["matches"].items():
            matches[name] = matches.get(name, 0) + count
    return {"tables": result.state, "matches": matches}


def _fired(state: Mapping[str, Any] | None, name: str) -> int:
    if state is None:
        return 0
    return sum(state["matches"].get(n, 0) for n in (name, f"{name}=>", f"{name}<="))


def _judge(
    instance: Terms, state: Mapping[str, Any] | None, book: Rulebook, info: RuleInfo
) -> Failure | None:
    if state is None:
        return None
    encoding = instance.encoding()
    try:
        classes, _, _, _ = read_classes(
            state["tables"], encoding, book.rules, keep_all=True, kernels=book.kernels
        )
    except RuleError as error:
        return Failure("", "", None, "finite", str(error))
    kinds = ["finite"] if info.tolerance != "exact" else ["finite", "hostile"]
    for kind, seed in itertools.product(kinds, (1, 2)):
        buffers = _buffers(instance, kind == "hostile", seed)
        tolerance = _TOLERANCE[info.tolerance]
        try:
            extents = extents_of(state["tables"], encoding)
            found = audit_classes(classes, extents, buffers, tolerance=tolerance)
        except (
            RuntimeError,
            LuminalError,
        ) as error:  # the rule built a term that makes no sense
            return Failure("", "", None, kind, f"{type(error).__name__}: {error}")
        if found:
            return _failure(found[0], classes, kind)
    return None


def _failure(found: Disagreement, classes: Sequence[EClass], kind: str) -> Failure:
    return Failure(
        term_text(found.against, classes), term_text(found.node, classes), found.error, kind
    )


def term_text(node: ENode, classes: Sequence[EClass], depth: int = 6) -> str:
    """An e-node written out, with the smallest term of each class below it."""
    return _spelled(node, smallest(classes), depth)


def smallest(classes: Sequence[EClass]) -> dict[int, ENode]:
    """The e-node of each class whose term is the smallest."""
    size: dict[int, int] = {}
    chosen: dict[int, ENode] = {}
    changed = True
    while changed:
        changed = False
        for c in classes:
            for n in c.nodes:
                if all(x in size for x in n.children):
                    total = 1 + sum(size[x] for x in n.children)
                    if total < size.get(c.id, total + 1):
                        size[c.id], chosen[c.id] = total, n
                        changed = True
    return chosen


def _spelled(node: ENode, chosen: Mapping[int, ENode], depth: int) -> str:
    attrs = [
        f"[{', '.join(map(str, a))}]" if isinstance(a, tuple) else str(a) for a in node.attrs
    ]
    if depth == 0:
        return f"({node.op} …)"
    below = [_spelled(chosen[c], chosen, depth - 1) for c in node.children]
    return f"({' '.join([node.op, *attrs, *below])})"


def _buffers(instance: Terms, hostile: bool, seed: int) -> dict[str, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor([0.0, float("inf"), float("-inf"), float("nan"), 1.0, -2.0])
    out = {}
    for name, (shape, dtype) in instance.buffers().items():
        held = getattr(torch, dtype if dtype == "bool" else _torch_name(dtype))
        if held.is_floating_point:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            if hostile:
                pick = torch.randint(0, len(special), shape, generator=generator)
                x = torch.where(torch.rand(shape, generator=generator) < 0.5, special[pick], x)
        else:
            low, high = (0, 2) if dtype == "bool" else (int(instance.divides), 5)
            x = torch.randint(low, high, shape, generator=generator)
        out[name] = x.to(held)
    return out


def _torch_name(name: str) -> str:
    from luminal_lab.hlir.dtypes import DTYPES

    return DTYPES[name].torch_name


def builtin_rules() -> list[tuple[Path, Form]]:
    """Every built-in rule, opt-in themes included, with its file."""
    paths = sorted(p for p in rules_dir().rglob("*.egg") if p.name != "language.egg")
    return [
        (p, form)
        for p in paths
        for form in rules_in(forms(p.read_text(encoding="utf-8"), p.name))
    ]


__all__ = ["SIGNATURES", "Failure", "RuleCheck", "builtin_rules", "check_rule", "mutants"]
