"""Random well-typed instances of a rule's left side, as encodings that the rule can be run on.

The facts of a rule are read as equations between variables and terms. Facts over relations
that other rules derive (`shifted`, `product`) are replaced by the facts of one of those rules.
Types are inferred by unification, and variables are then filled with random terms: loads of
small tensors over random axes, constants, reductions. Guards are not read here: egglog
evaluates them.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from luminal_lab.egraph.encode import Counts, Encoding, Tensor, Term
from luminal_lab.egraph.language import SIGNATURES, holds
from luminal_lab.egraph.sexpr import Atom, Expr, Form, List
from luminal_lab.egraph.tiles import SIZES, Tiles
from luminal_lab.errors import RuleError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import BINARY, OPS, UNARY

_POOL = {"i": 2, "j": 3, "k": 4, "z": 0}  # axes and their extents
_AXES = (*"ijk" * 4, "z")
# Axes of windows: places g and h, taps e and f, and both by tiles of each size.
_WINDOWS = {"g": 4, "h": 5, "e": 3, "f": 3}
_TILED = {
    f"{a}.{m}": m + 2 if n == 3 else -(-n // m) for a, n in _WINDOWS.items() for m in SIZES
}
_EXTENTS = {**_POOL, **_WINDOWS, **_TILED}
_PREFERRED = (*("f32",) * 6, "f64", "bf16", "f16", "i64", *("i32",) * 3, "u8", "bool")
_NUMBERS = (1.0, -1.0, 0.0, 0.5, 2.0, -2.0, 3.0, float("inf"), float("-inf"), 1.001)
_NEAR = re.compile(r"\(< \(abs \(- (\S+) ([\d.]+)\)\)")
_MEAN = re.compile(r"\(< \(abs \(- (?:\(\* )+(\w+) .*\) ([-\d.]+)\)\)")
_INTEGERS = (0, 1, 2, 3, -1, -2, 40_000, 60_000, 1 << 30)


def facts_of(form: Form) -> list[List]:
    """The facts that a rule matches, with its left side as one of them."""
    expr = form.expr
    if expr.head == "rule":
        facts = expr.items[1]
        return (
            [f for f in facts.items if isinstance(f, List)] if isinstance(facts, List) else []
        )
    out = [List((Atom("="), Atom("root__"), expr.items[1]))]
    for option, value in itertools.pairwise(expr.items):
        if isinstance(option, Atom) and option.text == ":when" and isinstance(value, List):
            out += [f for f in value.items if isinstance(f, List)]
    return out


def lemmas_of(forms: Sequence[Form], functions: bool = False) -> dict[str, list[Form]]:
    """The rules that derive each relation (and set each function), by its name."""
    kinds = ("relation", "function") if functions else ("relation",)
    declared = {f.expr.items[1] for f in forms if f.expr.head in kinds}
    names = {r.text for r in declared if isinstance(r, Atom)}
    out: dict[str, list[Form]] = {name: [] for name in sorted(names)}
    for form in forms:
        if form.expr.head == "rule" and isinstance(form.expr.items[2], List):
            for action in form.expr.items[2].items:
                of = action.items[1] if _sets(action) else action
                if isinstance(of, List) and of.head in out and form not in out[of.head]:
                    out[of.head].append(form)
    return out


def _sets(action: Expr) -> TypeGuard[List]:
    return isinstance(action, List) and action.head == "set"


@dataclass
class _Types:
    """Unification of dtypes: each class of keys has a set of dtypes that it may be."""

    up: dict[str, str] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)

    def find(self, key: str) -> str:
        while key in self.up:
            key = self.up[key]
        return key

    def of(self, key: str) -> frozenset[str]:
        named = frozenset({key[1:]}) & DTYPES.keys() if key.startswith("=") else DTYPES.keys()
        return self.allowed.get(key, frozenset(named))

    def unite(self, a: str, b: str) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            both = self.of(a) & self.of(b)
            if b.startswith("="):
                a, b = b, a
            self.up[b] = a
            self.allowed[a] = both

    def restrict(self, key: str, to: frozenset[str]) -> None:
        root = self.find(key)
        self.allowed[root] = self.of(root) & to


_FLOATS = frozenset(d.name for d in DTYPES.values() if d.is_float and d.bits >= 16)
_INTS = frozenset(d.name for d in DTYPES.values() if d.is_int)
_BOOL = frozenset({"bool"})
_INDEX = frozenset({"i32", "i64"})


@dataclass
class Terms:
    """Terms of one or several instances."""

    values: list[Term] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    indices: dict[str, tuple[Index, ...]] = field(default_factory=lambda: {"": ()})
    free: list[frozenset[str]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    divides: bool = False  # integers must not be 0: they may be divisors
    tiles: list[Tiles] = field(default_factory=list)

    def encoding(self) -> Encoding:
        """All of them, to be loaded."""
        values, tensors = tuple(self.values), tuple(self.tensors)
        inputs = (t.term.attrs[0] for t in tensors if t.term.op == "Input")
        weights = frozenset(name for name in inputs if name.startswith("w"))
        extents = _EXTENTS if self.tiles else _POOL
        return Encoding(
            values, tensors, (), self.indices, dict(extents), {}, (), Counts(), weights,
            tiles=tuple(self.tiles),
        )  # fmt: skip

    def buffers(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each input."""
        inputs = [t for t in self.tensors if t.term.op == "Input"]
        return {t.term.attrs[0]: (t.shape, t.dtype.name) for t in inputs}


class Instance:
    """Builds one random instance into `terms`.

    Arguments:
        facts: The facts of the rule.
        lemmas: See `lemmas_of`.
        rng: The source of randomness.
        terms: Where the terms go.
    """

    def __init__(
        self,
        facts: Sequence[List],
        lemmas: Mapping[str, list[Form]],
        rng: random.Random,
        terms: Terms,
    ):
        self.rng, self.lemmas = rng, lemmas
        self.types = _Types()
        self.equations: dict[str, List] = {}
        self.same: dict[str, str] = {}  # variables that stand for one term
        self.fresh = itertools.count()
        self.sets: dict[str, str] = {}  # the variable whose `free` or `holds` a set is
        self.marks: dict[str, bool] = {}  # by that variable: whether it varies between calls
        self.near: dict[str, float] = {}  # what a number must be close to
        self.lasts: dict[str, str] = {}  # the index map whose last dim a variable is
        self.texts: dict[str, List] = {}  # what a variable is, put together from text
        self.marked = False  # whether the rule tells weights from what varies
        self.values, self.tensors, self.indices = terms.values, terms.tensors, terms.indices
        self.free, self.dtypes = terms.free, terms.dtypes
        self.tiles = terms.tiles
        self.sliding: tuple[str, str, int] | None = None  # variables for a value, by tiles; m
        self.sums = 0  # axes that a product of such a value is still to be summed over
        self.bound: dict[str, Any] = {}
        # Axes of the tensors in the order of their loads, so that products of matrices occur.
        self.matrices = ["ik", "jk", "j"] if rng.random() < 0.6 else []
        self.summed = ["k", "j"]  # the axes that such products sum over
        self.parts = False  # whether the rule looks at the dims of index maps
        # Whether relations that are asked for twice have one reason.
        self.alike, self.reasons = rng.random() < 0.5, dict[str, Form]()
        terms.divides = self.divides = "(Mod " in " ".join(map(str, facts))
        self._expand(facts)
        for fact in list(self.equations.items()):
            self.types.unite(f"v:{fact[0]}", self._infer(fact[1]))
        if not all(self.types.allowed.values()):
            raise RuleError("the left side of the rule has no well-typed instance")
        for name in list(self.equations):
            self._ground(Atom(name), "V")

    # ------------------------------------------------------------------ facts

    def _expand(self, facts: Sequence[List], depth: int = 0) -> None:
        for fact in facts:
            self._mark(fact)
            if "(lead " in str(fact) and not self.parts:
                self.parts = True
                more = "ik" if self.alike else self.rng.choice(("j", "jk"))
                self.matrices = ["ik", "jk", more, more]
            if fact.head == "=":
                self._equation(fact)
            elif fact.head == "<" and (found := _NEAR.match(str(fact))):
                self.near[found[1]] = float(found[2])
            elif fact.head == "<" and (found := _MEAN.match(str(fact))):  # times an extent
                axes = self.rng.sample("ijk", str(fact).count("(to-f64 "))
                self.near[found[1]] = float(found[2]) / math.prod(_POOL[a] for a in axes)
            elif fact.head in ("exactly", "!=") and str(fact.items[2])[0] == '"':
                self._family(fact)
            elif fact.head == "tiles":
                self._slide(fact)
            elif self.lemmas.get(fact.head):
                choices = self.lemmas[fact.head]
                lemma = choices[0] if depth > 2 else self.rng.choice(choices)
                if (
                    self.alike and not depth
                ):  # a relation that is asked for twice has one reason
                    lemma = self.reasons.setdefault(fact.head, lemma)
                if self.sliding:
                    lemma = self._nested(choices, fact.head) or lemma
                self._expand(self._apply(lemma, fact), depth + 1)

    def _slide(self, fact: List) -> None:
        """Name the axes of a value that is seen through windows, and of the same by tiles."""
        slides, tiled, size, *names = map(str, fact.items[1:])
        m = int(size) if size.isdigit() else self.bound.setdefault(size, self.rng.choice(SIZES))
        self.types.unite(f"v:{self._find(slides)}", f"v:{self._find(tiled)}")
        self.sliding = (slides, tiled, m)
        known = ("g", "h", "e", "f", *(f"{a}.{m}" for a in "ghef"))
        self.bound.update(zip(names, known))
        self.summed = self.rng.sample(["e", "f", "j"], 3)
        self.sums = self.rng.choice((2, 3, 3, 3))

    def _nested(self, lemmas: Sequence[Form], head: str) -> Form | None:
        """A reason that asks for the same relation again, for sums over several axes."""
        again = [m for m in lemmas if any(f.head == head for f in facts_of(m))]
        self.sums -= bool(again)
        if again and self.sums > 0:
            return again[0]
        return next((m for m in lemmas if m not in again), None)

    def _slid(self) -> None:
        """The two values: loads of one tensor."""
        assert self.sliding is not None
        slides, tiled, m = self.sliding
        channels = ["i", "j"] if self.rng.random() < 0.5 else ["j"]
        sizes = [_WINDOWS["g"] + 2, _WINDOWS["h"] + 2]
        dtype = self._dtype(f"v:{self._find(slides)}")
        term = Term("Input", (), (f"x{len(self.tensors)}",))
        shape = (*(_POOL[a] for a in channels), *sizes)
        self.tensors.append(Tensor(term, shape, DTYPES[dtype]))
        t = len(self.tensors) - 1
        for name, places in (
            (slides, [Index.parse("g + e"), Index.parse("h + f")]),
            (tiled, [Index.parse(f"{m}*{p}.{m} + {r}.{m}") for p, r in ("ge", "hf")]),
        ):
            index = (*map(Index.axis, channels), *places)
            text = ", ".join(map(str, index))
            self.indices[text] = index
            load = Term("Load", (t,), (text,))
            self.bound[self._find(name)] = self._value(load, self._axes(text), dtype)
        lists = [c for n in range(1, 5) for c in itertools.combinations("ghijk", n)]
        slid, by_tiles = (self.bound[self._find(name)] for name in (slides, tiled))
        axes = ("e", "f"), (f"g.{m}", f"h.{m}"), (f"e.{m}", f"f.{m}"), tuple(lists)
        self.tiles.append(Tiles(slid, by_tiles, m, (Index.axis("g"), Index.axis("h")), *axes))

    def _family(self, fact: List) -> None:
        """Take a dtype from those that `(exactly d "f32")` or `(!= d "f32")` leave."""
        named = str(fact.items[2]).strip('"')
        if named in DTYPES and isinstance(fact.items[1], Atom):
            fits = {d for d in DTYPES if (d != named if fact.head == "!=" else holds(d, named))}
            self.types.restrict(f"d:{fact.items[1].text}", frozenset(fits))

    def _mark(self, fact: List) -> None:
        """Note which variables must be weights, and which must vary."""
        if fact.head == "=" and isinstance(fact.items[2], List):
            of = fact.items[2]
            if of.head == "last" and isinstance(of.items[1], Atom):
                self.lasts.setdefault(str(fact.items[1]), of.items[1].text)
            if of.head in ("free", "holds") and isinstance(of.items[1], Atom):
                self.sets[str(fact.items[1])] = of.items[1].text
        elif fact.head in ("set-contains", "set-not-contains") and '"@' in str(fact):
            self.marked = True
            text = str(fact.items[2])
            if text == '"@"' and str(fact.items[1]) in self.sets:
                self.marks[self.sets[str(fact.items[1])]] = fact.head == "set-contains"

    def _varies(self, name: str) -> bool:
        """Whether the inputs below a variable are to vary between calls."""
        if not self.marked:
            return True
        return self.marks.get(name, self.rng.random() < 0.5)

    def _equation(self, fact: List) -> None:
        left, right = fact.items[1], fact.items[2]
        if isinstance(right, Atom):
            left, right = right, left
        if not isinstance(right, List):
            return
        if right.head in ("dtype", "stores"):
            of = right.items[1]
            if isinstance(of, Atom):
                self.types.unite(f"v:{of.text}", _dtype_key(left))
        elif right.head == "Input":
            pass  # every tensor that is filled in is one
        elif right.head in SIGNATURES and isinstance(left, Atom):
            self._unify(left, right)
        elif right.head == "+" and isinstance(left, Atom) and '"' in str(right):
            self.texts[left.text] = right

    def _find(self, name: str) -> str:
        while name in self.same:
            name = self.same[name]
        return name

    def _unify(self, a: Expr, b: Expr) -> None:
        """Make two patterns stand for one term."""
        if isinstance(a, List) and isinstance(b, List):
            if a.head == b.head:
                for x, y in zip(a.items[1:], b.items[1:]):
                    self._unify(x, y)
        elif isinstance(a, List):
            self._unify(b, a)
        elif _is_variable(a) and isinstance(b, List):
            name = self._find(a.text)
            if name in self.equations:
                self._unify(self.equations[name], b)
            else:
                self.equations[name] = b
        elif _is_variable(a) and isinstance(b, Atom) and _is_variable(b):
            self._alias(a.text, b.text)

    def _alias(self, a: str, b: str) -> None:
        first, second = self._find(a), self._find(b)
        if first == second:
            return
        self.same[second] = first
        for kind in ("v", "d"):
            self.types.unite(f"{kind}:{first}", f"{kind}:{second}")
        moved = self.equations.pop(second, None)
        if moved is not None:
            self._unify(Atom(first), moved)

    def _apply(self, lemma: Form, fact: List) -> list[List]:
        """The lemma's facts, with its variables renamed so that its head is `fact`."""
        number = next(self.fresh)
        actions = lemma.expr.items[2]
        assert isinstance(actions, List)
        heads = [a for a in actions.items if isinstance(a, List) and a.head == fact.head]
        head = heads[0] if len(heads) == 1 else self.rng.choice(heads)
        renamed: dict[str, Expr] = {}
        extra: list[tuple[Atom, Expr]] = []
        pairs = list(zip(fact.items[1:], head.items[1:]))
        while pairs:
            given, said = pairs.pop(0)
            if isinstance(said, Atom) and _is_variable(said):
                renamed[said.text] = given
            elif isinstance(said, List) and isinstance(given, List):
                if said.head == given.head:
                    pairs += zip(given.items[1:], said.items[1:])
            elif isinstance(given, Atom):
                extra.append((given, said))

        def rename(e: Expr) -> Expr:
            if isinstance(e, List):
                first, *rest = e.items
                return List((first, *(rename(x) for x in rest)))
            if not _is_variable(e):
                return e
            return renamed.setdefault(e.text, Atom(f"{e.text}.{number}"))

        out = []
        for f in facts_of(lemma):
            new = rename(f)
            if isinstance(new, List):
                out.append(new)
        out += [List((Atom("="), given, rename(said))) for given, said in extra]
        return [f for f in out if not (f.head == "=" and _sorts_axes(f))]

    # ------------------------------------------------------------------ types

    def _infer(self, term: Expr) -> str:
        """The type key of a term; unifies below it."""
        if isinstance(term, Atom):
            return f"v:{self._find(term.text)}"
        types, head, args = self.types, term.head, term.items[1:]
        key = f"t:{next(self.fresh)}"
        if head in UNARY:
            types.unite(key, self._infer(args[0]))
            if OPS[head].floats_only:
                types.restrict(key, _FLOATS)
        elif head in BINARY:
            a, b = self._infer(args[0]), self._infer(args[1])
            types.unite(a, b)
            types.unite(key, "=bool" if head == "LessThan" else a)
            if head == "Mod":
                types.restrict(key, _FLOATS | _INTS)
        elif head == "Select":
            types.unite(self._infer(args[0]), "=bool")
            a, b = self._infer(args[1]), self._infer(args[2])
            types.unite(a, b)
            types.unite(key, a)
        elif head in ("Const", "Int", "Iota"):
            types.unite(key, _dtype_key(args[1]))
            kinds = {"Const": _FLOATS, "Int": _INTS | _BOOL, "Iota": _INDEX}
            types.restrict(key, kinds[head])
        elif head == "NegZero":
            types.unite(key, _dtype_key(args[0]))
            types.restrict(key, _FLOATS)
        elif head == "Cast":
            self._infer(args[0])
            types.unite(key, _dtype_key(args[1]))
        elif head == "Red":
            types.unite(key, self._infer(args[2]))
        elif head == "Carry":
            x, y = self._infer(args[2]), self._infer(args[3])
            types.unite(key, y)
            if _literal(args[0]) == "spread":
                types.unite(x, y)
            types.restrict(y, _FLOATS if _literal(args[0]) == "spread" else _INDEX)
        elif head == "Online":
            for a in args[1:]:
                types.unite(key, self._infer(a))
            types.restrict(key, _FLOATS)
        elif head in ("Load", "Kernel"):
            types.unite(key, self._infer(args[0]))
        elif head == "Scatter":
            types.unite(key, self._infer(args[1]))
            types.unite(key, self._infer(args[2]))
        return key

    def _dtype(self, key: str) -> str:
        root = self.types.find(key)
        allowed = self.types.of(root)
        if not allowed:
            raise RuleError("the left side of the rule has no well-typed instance")
        if len(allowed) > 1:
            likely = [d for d in _PREFERRED if d in allowed] or sorted(allowed)
            self.types.allowed[root] = frozenset({self.rng.choice(likely)})
        return next(iter(self.types.of(root)))

    # ------------------------------------------------------------------ terms

    def _value(self, term: Term, free: frozenset[str], dtype: str) -> int:
        self.values.append(term)
        self.free.append(free)
        self.dtypes.append(dtype)
        return len(self.values) - 1

    def _ground(self, term: Expr, sort: str) -> Any:
        """A term with its variables filled in: an id, or a literal."""
        if isinstance(term, List):
            return self._build(term)
        if not _is_variable(term):
            return _literal(term)
        name = self._find(term.text)
        if name not in self.bound and self.sliding and term.text in self.sliding[:2]:
            self._slid()
        if name not in self.bound:
            if name in self.equations:
                self.bound[name] = self._build(self.equations[name])
            elif sort == "V":
                self.bound[name] = self._random_value(
                    self._dtype(f"v:{name}"), self._varies(name)
                )
            elif sort == "f64":
                near = [self.near[name]] * 2 if name in self.near else []
                self.bound[name] = self.rng.choice([*near, self.rng.choice(_NUMBERS)])
            elif sort == "i64":
                self.bound[name] = self.rng.choice(
                    [n for n in _INTEGERS if n or not self.divides]
                )
            elif sort == "axis":
                matrices = self.sliding or (self.matrices and self.rng.random() < 0.7)
                summed = self.summed.pop(0) if matrices and self.summed else ""
                self.bound[name] = summed or self.rng.choice(_AXES)
            elif sort == "Ix":
                self.bound[name] = self._index([self.rng.choice("ijk")])
            else:
                raise RuleError(f"a variable {name!r} of sort {sort} cannot be filled in")
        return self.bound[name]

    def _build(self, term: List) -> int:
        head, args = term.head, term.items[1:]
        if head == "Load":
            return self._load(args[0], args[1])
        if head == "Kernel":
            return self._kernel(args[0], args[1])
        if head == "Scatter":
            return self._scatter(args)
        if head in ("Const", "Int", "NegZero"):
            dtype = self._dtype(_dtype_key(args[-1]))
            sort = "f64" if head == "Const" else "i64"
            attrs = tuple(self._ground(a, sort) for a in args[:-1])
            if head == "Int" and dtype not in ("i64", "i32"):
                small = abs(attrs[0]) % (2 if dtype == "bool" else 100)
                attrs = (small or int(self.divides),)
            return self._value(Term(head, (), (*attrs, dtype)), frozenset(), dtype)
        if head == "Iota":
            index = args[0]
            if isinstance(index, List) and index.head == "Affine":
                text = self._affine(index.items[1])
            else:
                text = self._ground(index, "Ix")
            dtype = self._dtype(_dtype_key(args[1]))
            return self._value(Term("Iota", (), (text, dtype)), self._axes(text), dtype)
        if head == "Red":
            op, axis = _literal(args[0]), self._ground(args[1], "axis")
            x = self._ground(args[2], "V")
            return self._reduce(str(op), axis, x)
        if head == "Carry":
            axis = self._ground(args[1], "axis")
            children = tuple(self._ground(a, "V") for a in args[2:])
            free = self._union(children) - {axis}
            return self._value(
                Term("Carry", children, (_literal(args[0]), axis)),
                free,
                self.dtypes[children[1]],
            )
        if head == "Online":
            axis = self._ground(args[0], "axis")
            children = tuple(self._ground(a, "V") for a in args[1:])
            free = self._union(children) - {axis}
            return self._value(
                Term("Online", children, (axis,)), free, self.dtypes[children[0]]
            )
        if head not in SIGNATURES:
            raise RuleError(f"there is no op {head!r}; rules/language.egg has them all")
        children = tuple(self._ground(a, "V") for a in args[: 1 if head == "Cast" else None])
        dtype = self.dtypes[children[-1]]
        attrs: tuple[Any, ...] = ()
        if head == "Cast":
            dtype = self._dtype(_dtype_key(args[1]))
            attrs = (dtype,)
        elif head == "LessThan":
            dtype = "bool"
        return self._value(Term(head, children, attrs), self._union(children), dtype)

    def _union(self, children: Sequence[int]) -> frozenset[str]:
        return frozenset().union(*(self.free[c] for c in children))

    def _reduce(self, op: str, axis: str, x: int) -> int:
        term = Term("Red", (x,), (op, axis))
        return self._value(term, self.free[x] - {axis}, self.dtypes[x])

    def _axes(self, text: str) -> frozenset[str]:
        return frozenset().union(*(i.axes for i in self.indices[text]))

    def _affine(self, said: Expr) -> str:
        """The text of an index expression: an axis, or what a premise puts together."""
        name = said.text if isinstance(said, Atom) else ""
        if name in self.texts and name not in self.bound:
            parts = [self._ground(a, "axis") for a in self.texts[name].items[1:]]
            self.bound[name] = "".join(map(str, parts))
        text = str(self._ground(said, "axis"))
        self.indices[text] = (Index.parse(text),)
        return text

    def _index(self, axes: Sequence[str]) -> str:
        index = tuple(Index.axis(a) for a in axes)
        text = ", ".join(map(str, index))
        self.indices[text] = index
        return text

    def _random_axes(self, at_least: frozenset[str] = frozenset()) -> list[str]:
        if self.sliding:  # of weights: mostly those that suit
            likely = {"e": 0.9, "f": 0.9, "j": 0.95, "k": 0.7, "g": 0.1, "h": 0.1}
            axes = [a for a, share in likely.items() if self.rng.random() < share]
            return self.rng.sample(axes, len(axes))
        pool = sorted({*at_least, *(a for a in "ijk" if self.rng.random() < 0.5)})
        if "z" not in pool and self.rng.random() < 0.03:
            pool.append("z")
        self.rng.shuffle(pool)
        return pool

    def _input(self, axes: Sequence[str], dtype: str, varies: bool = True) -> int:
        shape = tuple(_EXTENTS[a] for a in axes)
        term = Term("Input", (), (f"{'x' if varies else 'w'}{len(self.tensors)}",))
        self.tensors.append(Tensor(term, shape, DTYPES[dtype]))
        return len(self.tensors) - 1

    def _random_value(self, dtype: str, varies: bool = True) -> int:
        kind = self.rng.random()
        narrow = DTYPES[dtype].is_float and DTYPES[dtype].bits < 32
        if kind < 0.15 and dtype != "bool":
            if DTYPES[dtype].is_float:
                number = self.rng.choice([n for n in _NUMBERS if abs(n) < 10 and n != 1.001])
                return self._value(Term("Const", (), (number, dtype)), frozenset(), dtype)
            number = self.rng.choice((1, 2, 3) if self.divides else (0, 1, 2, 3))
            return self._value(Term("Int", (), (number, dtype)), frozenset(), dtype)
        axes = self._random_axes()
        t = self._input(axes, dtype, varies)
        free = frozenset(axes)
        x = self._value(Term("Load", (t,), (self._index(axes),)), free, dtype)
        if (
            kind > 0.85 and not narrow
        ):  # a sum of narrow floats is held unrounded by the evaluator
            return self._reduce(self.rng.choice(("add", "max")), self.rng.choice("ijk"), x)
        return x

    def _load(self, tensor: Expr, index: Expr) -> int:
        if isinstance(tensor, List):
            t = self._ground(tensor, "T")
            text = self.bound[index.text] if isinstance(index, Atom) else ""
        elif self._find(tensor.text) in self.equations:  # a kernel, read at its own map
            t = self._ground(tensor, "T")
            text = str(self.tensors[t].term.attrs[0])
            if isinstance(index, Atom):
                self.bound[index.text] = text
        else:
            axes = self._random_axes()
            name = f"T:{self._find(tensor.text)}"
            if name in self.bound:  # a tensor that is read twice has one shape
                axes = list(self.bound[f"axes {name}"])
            elif isinstance(index, Atom) and self.lasts.get(index.text) in self.bound:
                axes = [a for a in self.bound[self.lasts[index.text]].split(", ")[-1:] if a]
            elif self.matrices:
                axes = list(self.matrices.pop(0))
                if not self.parts or self.rng.random() < 0.3:
                    self.rng.shuffle(axes)
            if not isinstance(index, Atom) or index.text in self.bound:
                raise RuleError("a Load of a tensor needs an index variable of its own")
            text = self.bound[index.text] = self._index(axes)
            if name not in self.bound:
                dtype = self._dtype(f"v:{tensor.text}")
                varies = self._varies(tensor.text)
                self.bound[name] = self._input(axes, dtype, varies)
                self.bound[f"axes {name}"] = tuple(axes)
            t = self.bound[name]
        dtype = self.tensors[t].dtype.name
        return self._value(Term("Load", (t,), (text,)), self._axes(text), dtype)

    def _scatter(self, args: Sequence[Expr]) -> int:
        """A tensor with rows stored at places that are data; its index of rows is below 5."""
        mode, into, value, points, index, at = args
        names = [str(e) for e in (points, index, at)]
        if names[0] not in self.bound:
            row, column = axes = self.rng.sample("ijk", 2)
            self.bound[names[0]] = self._index(axes)
            self.bound[names[1]] = self._index(["@0", column])
            place = self._input([row], "i64")
            text = self._index([row])
            free = frozenset({row})
            self.bound[names[2]] = self._value(Term("Load", (place,), (text,)), free, "i64")
        text = self.bound[names[0]]
        over = self._axes(text)
        column = next(a for a in self.indices[self.bound[names[1]]][1].axes)
        if isinstance(into, List):
            t = self._build(into)
        else:
            key = f"T:{into.text}"
            if key not in self.bound:
                dtype = self._dtype(f"v:{self._find(into.text)}")
                term = Term("Input", (), (f"x{len(self.tensors)}",))
                self.tensors.append(Tensor(term, (5, _POOL[column]), DTYPES[dtype]))
                self.bound[key] = len(self.tensors) - 1
            t = self.bound[key]
        dtype = self.tensors[t].dtype.name
        if isinstance(value, Atom) and value.text not in self.bound:
            made = self._random_value(dtype)
            while not self.free[made] <= over:
                made = self._random_value(dtype)
            self.bound[value.text] = made
        v = self._ground(value, "V")
        if isinstance(mode, Atom) and _is_variable(mode):
            known = self.bound.setdefault(mode.text, self.rng.choice(("set", "add")))
        else:
            known = _literal(mode)
        children = (t, v, self.bound[names[2]])
        term = Term("Scatter", children, (known, text, self.bound[names[1]]))
        self.tensors.append(Tensor(term, self.tensors[t].shape, DTYPES[dtype]))
        return len(self.tensors) - 1

    def _kernel(self, value: Expr, index: Expr) -> int:
        v = self._ground(value, "V")
        assert isinstance(index, Atom)
        axes = sorted(self.free[v])
        if not self.parts or self.rng.random() < 0.3:
            self.rng.shuffle(axes)
        if self.rng.random() < 0.3:
            axes = self._random_axes(self.free[v])
        self.bound[index.text] = text = self._index(axes)
        shape = tuple(_POOL[a] for a in axes)
        term = Term("Kernel", (v,), (text,))
        self.tensors.append(Tensor(term, shape, DTYPES[self.dtypes[v]]))
        t = len(self.tensors) - 1
        if self.parts:  # what it is part of is seen where it is read
            self._value(Term("Load", (t,), (text,)), frozenset(axes), self.dtypes[v])
        return t


def _dtype_key(e: Expr) -> str:
    text = str(e)
    return f"={text.strip(chr(34))}" if text.startswith('"') else f"d:{text}"


def _is_variable(atom: Atom) -> bool:
    text = atom.text
    return not (
        text[0] in '"-.' or text[0].isdigit() or text in ("inf", "NaN", "true", "false")
    )


def _literal(e: Expr) -> Any:
    text = str(e)
    if text.startswith('"'):
        return text.strip('"')
    if text in ("inf", "-inf", "NaN"):
        return float(text)
    return float(text) if "." in text or "e" in text else int(text)


def _sorts_axes(fact: List) -> bool:
    """Whether an equation is about sets of axes, which need no term."""
    return any(isinstance(e, List) and e.head.startswith("set-") for e in fact.items)


def instances(form: Form, forms: Sequence[Form], numbers: Iterable[int], seed: int) -> Terms:
    """Random instances of a rule, all in one.

    Arguments:
        form: The rule.
        forms: All rules, those of the relations that it matches among them.
        numbers: Which instances: each is drawn by itself, from its number and the seed.
        seed: See there.
    """
    terms, lemmas = Terms(), lemmas_of(forms)
    for k in numbers:
        Instance(facts_of(form), lemmas, random.Random(f"{seed}:{k}"), terms)
    return terms
