"""Terms of the e-graph's language, written out: what explanations show and compute with.

A `Term` is a constructor of `language.egg` applied to terms, literals and vectors of terms. A
term of sort V becomes a `Value` when the tensors that it reads have names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.language import SIGNATURES
from luminal_lab.egraph.values import Value, numbers_text
from luminal_lab.errors import LuminalError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index

if TYPE_CHECKING:
    from torch import Tensor


class Term:
    """One term; compares and hashes by structure.

    Arguments:
        op: A constructor: `"Add"`, `"Load"`, `"Kernel"`, …
        args: Terms, literals (numbers, strings, sets of axes), or tuples of terms.
        dtype: The name of its dtype; `""` for an index expression.
        shape: For a tensor, the shape that is stored.
    """

    __slots__ = ("_hash", "args", "dtype", "op", "shape")

    def __init__(
        self, op: str, args: tuple[Any, ...] = (), dtype: str = "", shape: tuple[int, ...] = ()
    ):
        self.op, self.args, self.dtype, self.shape = op, args, dtype, shape
        self._hash = hash((op, args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Term)
            and self._hash == other._hash
            and self.op == other.op
            and self.args == other.args
        )

    @property
    def sort(self) -> str:
        """`"V"`, `"T"` or `"Ix"`."""
        return SIGNATURES[self.op].sort

    def children(self) -> Iterator[Term]:
        """The terms right below it."""
        for a in self.args:
            if isinstance(a, Term):
                yield a
            elif isinstance(a, tuple):
                yield from (x for x in a if isinstance(x, Term))

    def __repr__(self) -> str:
        return self.text()

    def text(self, depth: int | None = None) -> str:
        """It as rules write it; `…` for what is deeper than `depth`."""
        if depth == 0 and any(True for _ in self.children()):
            return f"({self.op} …)"
        below = None if depth is None else depth - 1
        parts = [_spell(a, below) for a in self.args]
        return f"({' '.join([self.op, *parts])})"


def _spell(a: Any, depth: int | None) -> str:
    if isinstance(a, Term):
        return a.text(depth)
    if isinstance(a, tuple):
        return f"(vec-of {' '.join(_spell(x, depth) for x in a)})"
    if isinstance(a, frozenset):
        return f"(set-of {' '.join(sorted(map(repr, a)))})"
    return f'"{a}"' if isinstance(a, str) else str(a)


def subterms(roots: Iterable[Term]) -> list[Term]:
    """Each distinct term below some terms once, arguments before users."""
    out: dict[Term, None] = {}
    for root in roots:
        stack: list[tuple[Term, bool]] = [(root, False)]
        while stack:
            term, done = stack.pop()
            if done:
                out[term] = None
            elif term not in out:
                stack.append((term, True))
                stack.extend((c, False) for c in term.children())
    return list(out)


def rebuilt(
    root: Term, replaced: Mapping[Term, Term], tensors: dict[Term, Term] | None = None
) -> Term:
    """A term with all occurrences of some terms replaced.

    Arguments:
        root: The term.
        replaced: What becomes of what.
        tensors: Gets, for each new tensor, the one in whose place it stands.
    """
    done: dict[Term, Term] = dict(replaced)

    def new(a: Any) -> Any:
        if isinstance(a, Term):
            return done[a]
        return tuple(map(new, a)) if isinstance(a, tuple) else a

    for term in subterms([root]):
        if term not in done:
            args = tuple(map(new, term.args))
            same = all(x is y for x, y in zip(args, term.args))
            done[term] = term if same else Term(term.op, args, term.dtype, term.shape)
    if tensors is not None:
        for old, now in done.items():
            if now is not old and now.sort == "T":
                tensors.setdefault(now, old)
    return done[root]


def index_of(term: Term, extents: Mapping[str, int]) -> Index:
    """The index expression that a term of sort Ix stands for."""
    match term.op:
        case "Affine":
            return Index.parse(term.args[0])
        case "Number":
            return Index.num(term.args[0])
        case "Plus":
            return index_of(term.args[0], extents) + index_of(term.args[1], extents)
        case "Times":
            return index_of(term.args[1], extents) * term.args[0]
        case "Rem":
            return index_of(term.args[0], extents).mod(term.args[1], extents)
    raise LuminalError(f"{term.op} makes no index expression")


def index_map(text: str) -> tuple[Index, ...]:
    """The index map that a text spells."""
    return tuple(Index.parse(p) for p in text.split(", ")) if text else ()


def value_of(root: Term, name: Callable[[Term], str], extents: Mapping[str, int]) -> Value:
    """A term of sort V as a Value.

    Arguments:
        root: The term.
        name: What each tensor that it reads is called.
        extents: The extent of every axis.
    """
    done: dict[Term, Value] = {}
    stack = [root]
    while stack:
        term = stack[-1]
        wanted = [c for c in term.children() if c.sort == "V" and c not in done]
        if wanted and term not in done:
            stack.extend(wanted)
            continue
        stack.pop()
        if term not in done:
            done[term] = _value(term, done, name, extents)
    return done[root]


def _value(
    term: Term,
    done: Mapping[Term, Value],
    name: Callable[[Term], str],
    extents: Mapping[str, int],
) -> Value:
    dtype = DTYPES[term.dtype]
    args = term.args

    def made(op: str, below: Iterable[Term] = (), attrs: tuple = ()) -> Value:
        return Value(op, tuple(done[x] for x in below), attrs, dtype=dtype)

    match term.op:
        case "Const":
            return made("const", (), (args[0],))
        case "NegZero":
            return made("const", (), (-0.0,))
        case "Int":
            number = bool(args[0]) if args[1] == "bool" else args[0]
            return made("const", (), (number,))
        case "Iota":
            return made("iota", (), (index_of(args[0], extents),))
        case "Table":
            return made("table", args[1:2], (numbers_text(args[0]),))
        case "Cast":
            return made("cast", args[:1])
        case "Red" | "Carry":
            return made(term.op.lower(), args[2:], args[:2])
        case "Online":
            return made("online", args[1:], args[:1])
        case "Load":
            return made("load", (), (name(args[0]), index_map(args[1])))
        case "LoadAt":
            return made("load", args[2], (name(args[0]), index_map(args[1])))
    return made(term.op.lower(), args)


class Computer:
    """Computes terms in float64, tensors included.

    Arguments:
        extents: The extent of every axis.
        buffers: A tensor for each input.
        hlir: The program, for its opaque nodes.
    """

    def __init__(self, extents: Mapping[str, int], buffers: Mapping[str, Tensor], hlir: Any):
        self.extents, self.buffers, self.hlir = extents, buffers, hlir
        self._tensors: dict[Term, Tensor] = {}

    def value(self, term: Term) -> tuple[Tensor, tuple[str, ...]]:
        """A term of sort V over its free axes, and these axes in order."""
        from luminal_lab.egraph.evaluate import evaluate

        names: dict[Term, str] = {}
        value = value_of(term, lambda t: names.setdefault(t, f"t{len(names)}"), self.extents)
        held = {n: self.tensor(t) for t, n in names.items()}
        return evaluate([value], self.extents, held)[0]

    def tensor(self, term: Term) -> Tensor:
        """What a term of sort T stores."""
        if term not in self._tensors:
            self._tensors[term] = self._tensor(term)
        return self._tensors[term]

    def _tensor(self, term: Term) -> Tensor:
        from luminal_lab.egraph.audit import store
        from luminal_lab.egraph.evaluate import align, hold
        from luminal_lab.hlir import apply

        if term.op == "Input":
            return hold(self.buffers[term.args[0]])
        if term.op == "Kernel":
            value, own = self.value(term.args[0])
            index = index_map(term.args[1])
            order = sorted(frozenset().union(*(i.axes for i in index))) if index else []
            return store(align(value, own, order), index, order, term.shape, self.extents)
        if term.op in ("Gemm", "GemmPlus"):
            return self._product(term)
        if term.op == "Scatter":
            return self._scatter(term)
        if term.op == "Lib":
            return self._called(term)
        spec = self.hlir.nodes[term.args[0]]
        args = [self.tensor(x) for x in term.args[1]]
        native = [a.to(apply.torch_dtype(DTYPES[x.dtype])) for a, x in zip(args, term.args[1])]
        results = apply.call_aten(spec, native)
        return hold(results[spec.attrs.get("result") or 0])

    def _called(self, term: Term) -> Tensor:
        from luminal_lab.egraph.gemm import Stored
        from luminal_lab.egraph.library import LIBRARY, library_form, reference, shipped_kernels

        name, tensors, maps, out, roles, numbers = term.args
        said = {**LIBRARY, **shipped_kernels()}.get(name)
        stored = [Stored(t.shape, index_map(i)) for t, i in zip((*tensors, term), (*maps, out))]
        dtypes = [t.dtype for t in (*tensors, term)]
        form = said and library_form(
            said, stored, dtypes, [sorted(r) for r in roles], numbers, self.extents
        )
        if form is None:
            raise LuminalError(f"the call of {name!r} cannot be computed from its term alone")
        return reference(form, [self.tensor(t) for t in tensors], term.shape)

    def _scatter(self, term: Term) -> Tensor:
        from luminal_lab.egraph.audit import scattered
        from luminal_lab.egraph.evaluate import align

        mode, into, value, axes, index, at = term.args
        order = [a for i in index_map(axes) for a in sorted(i.axes)]
        ordered = sorted(order)
        values = [align(*self.value(v), ordered) for v in (value, *at)]
        return scattered(
            self.tensor(into), values[0], values[1:], index_map(index), order,
            self.extents, mode,
        )  # fmt: skip

    def _product(self, term: Term) -> Tensor:
        """A library product by its definition: the sum, what is added, the activation."""
        from luminal_lab.egraph.audit import store
        from luminal_lab.egraph.evaluate import Points, align, contract, read
        from luminal_lab.egraph.gemm import activate
        from luminal_lab.hlir import apply

        if term.op == "Gemm":
            a, ia, b, ib, ic, _, alpha, act = term.args
            added, beta = (), 0.0
        else:
            a, ia, b, ib, d, id_, ic, _, alpha, beta, act = term.args
            added = (d, id_)
        points = Points(self.extents, {})
        order = sorted(frozenset().union(*(i.axes for i in index_map(ic))))

        def over(t: Term, text: str) -> tuple[Tensor, list[str]]:
            index = index_map(text)
            axes = sorted(frozenset().union(*(i.axes for i in index)))
            return read(self.tensor(t), index, axes, points), axes

        (x, xa), (y, ya) = over(a, ia), over(b, ib)
        out = alpha * contract(x, xa, y, ya, order)
        if added:
            z, own = over(*added)
            out = out + beta * align(z, own, order)
        out = activate(act, out)
        out = apply.cast(out, DTYPES[term.dtype], "float64")
        return store(out, index_map(ic), order, term.shape, self.extents)
