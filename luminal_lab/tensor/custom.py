"""`custom_op`: an operator of the user's own, with a reference, and kernels or rules for it."""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from luminal_lab.errors import LuminalError, TensorError
from luminal_lab.hlir.custom import (
    Registered,
    Signature,
    register,
    registered,
    signature,
)
from luminal_lab.hlir.graph import Ref
from luminal_lab.hlir.tensor import Tensor as Raw
from luminal_lab.tensor.base import Base
from luminal_lab.tensor.calls import calling, known_dtype

_SCALARS = {bool: "bool", int: "int", float: "float", str: "str"}
Sources = str | Path | Sequence[str | Path] | Mapping[str, Any] | None


class CustomOp:
    """A registered operator: called with torch tensors, or with Tensors of a `ll.Graph`.

    Made by `ll.custom_op`.

    Arguments:
        entry: What is registered.
        run: PyTorch's operator.
        scalars: Names of the arguments that are no tensors, with their defaults.
        dtype: The dtype of results: None for that of the first operand, or a dtype.
    """

    def __init__(
        self,
        entry: Registered,
        run: Callable[..., Any],
        scalars: Mapping[str, Any],
        dtype: Any,
        redefine: Callable[[Callable[..., Any]], CustomOp],
    ):
        self.entry, self.scalars, self.dtype = entry, dict(scalars), dtype
        self._run, self._redefine = run, redefine

    @property
    def target(self) -> str:
        """Its name in programs, `"demo.row_scale.default"`."""
        return self.entry.target

    @property
    def signature(self) -> Signature:
        """Its operands and results."""
        return self.entry.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, or add it to the graph of its operands.

        Raises:
            TensorError: for Tensors whose shapes do not fit the signature.
        """
        first = next((a for a in (*args, *kwargs.values()) if isinstance(a, Base)), None)
        if first is None and len(args) == 1 and not kwargs and inspect.isfunction(args[0]):
            return self._redefine(args[0])  # a cell of a notebook that is run again
        if first is None:
            return self._run(*args, **kwargs)
        with calling(first.graph, self.target):
            return self._add(first, args, kwargs)

    def _add(self, first: Base, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = (*self.signature.names, *self.scalars)
        if len(args) > len(names) or not set(kwargs) <= set(names):
            raise TensorError(f"its arguments are {', '.join(names)}")
        given = {**self.scalars, **dict(zip(names, args)), **kwargs}
        missing = [n for n in names if n not in given]
        if missing:
            raise TensorError(f"no value for {', '.join(missing)}")
        operands = [first._tensor(given[n]) for n in self.signature.names]
        shapes = self.signature.shapes(self.signature.bind([x.shape for x in operands]))
        dtype = operands[0].dtype if self.dtype is None else known_dtype(self.dtype)
        plain = tuple(given[n] for n in self.scalars)
        template = ((*(Ref(k) for k in range(len(operands))), *plain), {})
        results = [(shape, dtype) for shape in shapes]
        made: list[Raw] = first.graph.builder.custom(
            self.target,
            template,
            operands,
            results,
            single=len(results) == 1,
            reason="an operator of your own",
        )
        out = tuple(first._of(raw) for raw in made)
        return out[0] if len(out) == 1 else out

    def __repr__(self) -> str:
        more = f", {len(self.entry.kernels)} kernels" if self.entry.kernels else ""
        return f"CustomOp({self.target}: {self.signature}{more})"


def custom_op(
    name: Any,
    signature_: str,
    run: Callable[..., Any] | None = None,
    *,
    dtype: Any = None,
    kernels: Sources = None,
    rules: str = "",
) -> Any:
    """Register an operator: it keeps its place in every program as one node, by its name.

    Arguments:
        name: `"namespace::name"` of a new operator; or one that exists, by its name or as
            `torch.library.custom_op` returned it.
        signature_: Its operands and their dims, and the dims of its results:
            `"x[m, n], s[m] -> [m, n]"`. Dims of results may be expressions (`2*m`).
        run: A function of torch tensors (and numbers, with defaults) that computes it. It is
            the reference: every kernel is verified against it. None makes this a decorator
            for a new operator.
        dtype: Of its results; that of the first operand when None.
        kernels: Sources or `.c` files of hand-written kernels for it (for the CPU; `{"cpu": …}`
            says so). Operands and roles bear the names of the signature.
        rules: Rules about it: `(Custom k ts)` with `(= "namespace.name.default" (calls k))`.

    Returns:
        A callable, for torch tensors, under `ll.capture` and `torch.compile`, and for Tensors
        of a `ll.Graph`.

    Raises:
        LuminalError: for a signature or a kernel that is not understood, or does not fit.

    >>> import torch, luminal_lab as ll
    >>> @ll.custom_op("doc::row_scale", "x[m, n], s[m] -> [m, n]")
    ... def row_scale(x, s, factor: float = 1.0):
    ...     return x * s[:, None] * factor
    >>> g = ll.Graph()
    >>> row_scale(g.tensor("x", (4, 8)), g.tensor("s", (4,)))
    Tensor(f32[4, 8])
    >>> row_scale(torch.ones(2, 2), torch.tensor([1.0, 2.0]), 3.0).tolist()
    [[3.0, 3.0], [6.0, 6.0]]
    """
    made = signature(signature_)
    sources = _sources(kernels)
    again = partial(custom_op, name, signature_, dtype=dtype, kernels=kernels, rules=rules)
    if run is None and not _exists(name):
        return again
    overload = _existing(name) if run is None else _define(name, made, run, dtype)
    target = f"{overload._schema.name.replace('::', '.')}.{overload._overloadname}"
    calls = [_calling(target, made, source) for source in sources]
    text = "\n".join([*calls, rules]).strip()
    entry = Registered(target, made, text, sources, _digest(run, target))
    register(entry)
    scalars = {
        a.name: a.default_value
        for a in overload._schema.arguments
        if a.name not in made.names and a.has_default_value()
    }
    names = [a.name for a in overload._schema.arguments]
    if names[: len(made.names)] != list(made.names):
        raise LuminalError(
            f"{target} takes {', '.join(names)}; the signature names {', '.join(made.names)}",
            fix="the tensors first, by their names and in their order",
        )
    return CustomOp(entry, overload, scalars, dtype, again)


def _digest(run: Callable[..., Any] | None, target: str) -> str:
    """What tells implementations of one name apart; an existing operator keeps its digest."""
    if run is None:
        known = registered(target)
        return known.digest if known is not None else ""
    try:
        text = inspect.getsource(run)
    except (OSError, TypeError):
        text = uuid.uuid4().hex
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _exists(name: Any) -> bool:
    import torch

    if not isinstance(name, str):
        return True
    space, _, leaf = name.partition("::")
    return hasattr(torch.ops, space) and hasattr(getattr(torch.ops, space), leaf)


def _existing(name: Any) -> Any:
    import torch

    if not isinstance(name, str):
        found = getattr(name, "_opoverload", name)
        if not hasattr(found, "_schema"):
            raise LuminalError(f"{name!r} is no operator", fix="its name, 'namespace::name'")
        return found
    space, _, leaf = name.partition("::")
    return getattr(getattr(torch.ops, space), leaf).default


def _define(name: Any, made: Signature, run: Callable[..., Any], dtype: Any) -> Any:
    import torch

    if not isinstance(name, str) or "::" not in name:
        raise LuminalError(f"{name!r} is no operator's name", fix="'namespace::name'")
    parameters = inspect.signature(run).parameters
    parts: list[str] = []
    for p in parameters.values():
        if p.name in made.names:
            parts.append(f"Tensor {p.name}")
            continue
        kind = p.annotation if p.annotation in _SCALARS else type(p.default)
        written = {n.__name__: n for n in _SCALARS}.get(str(p.annotation))  # of a string
        kind = written or kind
        if kind not in _SCALARS:
            raise LuminalError(
                f"the argument {p.name!r} of {name} is neither in the signature nor a number",
                fix="annotate it: bool, int, float or str",
            )
        default = "" if p.default is p.empty else f"={_literal(p.default)}"
        parts.append(f"{_SCALARS[kind]} {p.name}{default}")
    count = len(made.results)
    returns = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    schema = f"({', '.join(parts)}) -> {returns}"

    def fresh(*args: Any, **kwargs: Any) -> Any:
        """The implementation, whose results must not be its operands."""
        out = run(*args, **kwargs)
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        several = out if isinstance(out, (tuple, list)) else (out,)
        kept = tuple(
            y.clone() if any(y._is_view() or y is a for a in given) else y for y in several
        )
        return kept if isinstance(out, (tuple, list)) else kept[0]

    op = torch.library.custom_op(name, fresh, mutates_args=(), schema=schema)

    def fake(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(run).bind(*args, **kwargs).arguments
        tensors = [bound[n] for n in made.names]
        known = _bound(made, tensors)
        shapes = [
            [int(d) if d.isdigit() else _size(d, known) for d in dims] for dims in made.results
        ]
        like = tensors[0]
        kind = like.dtype if dtype is None else getattr(torch, known_dtype(dtype).torch_name)
        outs = tuple(like.new_empty(shape, dtype=kind) for shape in shapes)
        return outs if count > 1 else outs[0]

    op.register_fake(fake)
    return op._opoverload


def _bound(made: Signature, tensors: Sequence[Any]) -> dict[str, Any]:
    """The sizes of named dims as PyTorch has them, numbers or SymInts."""
    known: dict[str, Any] = {}
    for name, dims, x in zip(made.names, made.operands, tensors):
        if x.dim() != len(dims):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected [{', '.join(dims)}]")
        for d, n in zip(dims, x.shape):
            want = known.setdefault(d, n) if d.isidentifier() else int(d)
            if want != n:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, but {d} is {want}")
    return known


def _size(text: str, known: Mapping[str, Any]) -> Any:
    """An expression of dims, of numbers or SymInts."""
    if text in known:
        return known[text]
    return eval(text, {"__builtins__": {}}, {**known, "max": max, "min": min})


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


# ---------------------------------------------------------------------- kernels
def _sources(kernels: Sources) -> tuple[str, ...]:
    if isinstance(kernels, Mapping):
        other = [t for t in kernels if t != "cpu"]
        if other:
            raise LuminalError(
                f"hand-written kernels for {other[0]!r} cannot be called",
                fix="kernels={'cpu': …}: C for the CPU",
            )
        kernels = kernels.get("cpu")
    if kernels is None:
        return ()
    several = [kernels] if isinstance(kernels, (str, Path)) else list(kernels)
    return tuple(_text(k) for k in several)


def _text(kernel: str | Path) -> str:
    text = str(kernel)
    if "\n" in text:
        return text
    if not Path(text).is_file():
        raise LuminalError(f"there is no kernel {text!r}", fix="the path of a .c file, or C")
    return Path(text).read_text(encoding="utf-8")


def _calling(target: str, made: Signature, source: str) -> str:
    """The rule that calls a kernel for an operator of the same operands and dims."""
    from importlib import import_module

    said = import_module("luminal_lab.egraph.library").declared(source)
    want = dict(zip(made.names, made.operands))
    for operand in said.reads:
        if want.get(operand.name) != operand.roles:
            have = f"{operand.name}[{', '.join(operand.roles)}]"
            raise LuminalError(f"the kernel {said.name} reads {have}; {target} has {made}")
    if made.roles(0) is None or said.write.roles != made.results[0] or len(made.results) > 1:
        raise LuminalError(
            f"the kernel {said.name} writes [{', '.join(said.write.roles)}], not as {made}",
            fix="a kernel writes one result, whose dims all have names",
        )
    missing = [r for r in said.roles if r not in made.letters]
    if missing:
        raise LuminalError(
            f"the roles {', '.join(missing)} of {said.name} are no dims of {made}"
        )
    at = [made.names.index(o.name) for o in said.reads]
    tensors = " ".join(f"(vec-get ts {k})" for k in at)
    maps = " ".join(f"(vec-get maps {k})" for k in at)
    roles = " ".join(f"(vec-get all {made.letters.index(r)})" for r in said.roles)
    types = " ".join(
        f'(= "{o.dtype}" (stores (vec-get ts {k})))' for k, o in zip(at, said.reads)
    )
    return f"""
;; law: {target} is the kernel {said.name}, written by hand
;; class: reassociates
(rule ((= t (Custom k ts)) (= "{target}" (calls k)) (= maps (reads k)) (= io (stored-at k))
       (= all (roles k)) (= given (numbers k)) {types})
      ((union t (Lib "{said.name}" (vec-of {tensors}) (vec-of {maps}) io
                     (vec-of {roles}) given)))
      :name "call-{said.name}")
"""
