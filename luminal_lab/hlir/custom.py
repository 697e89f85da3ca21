"""Operators of the user's own: what capture, the e-graph and the search know of them.

An operator is registered by name in this process (`ll.custom_op`). Its signature names the dims
of its operands, as einops does: `"x[m, n], s[m] -> [m, n]"`. A dim of a result may be an
expression of them or a number. The named dims are the *roles* that its axes play for kernels
and rules, and a Custom node carries them: nothing later asks the registry for shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import HlirError, LuminalError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.sizes import Dim

if TYPE_CHECKING:
    from luminal_lab.hlir.graph import Hlir

OURS = ("aten", "prims", "quantized", "prim")
"""Namespaces whose operators every process has that imports torch."""

_OPERAND = re.compile(r"\s*([A-Za-z_]\w*)?\s*\[([^\]]*)\]\s*(?:,|$)")


@dataclass(frozen=True)
class Signature:
    """What an operator takes and gives.

    Arguments:
        names: Of its operands.
        operands: The dims of each, names or numbers.
        results: The dims of each result, which may be expressions.
    """

    names: tuple[str, ...]
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """The named dims, in the order of their first appearance among operands."""
        every = (d for dims in self.operands for d in dims if d.isidentifier())
        return tuple(dict.fromkeys(every))

    def bind(self, shapes: Sequence[Sequence[Dim]]) -> dict[str, Dim]:
        """The sizes of the named dims.

        Raises:
            HlirError: when the shapes do not fit.
        """
        known: dict[str, Dim] = {}
        if len(shapes) != len(self.operands):
            raise HlirError(f"{len(self.operands)} tensors are expected, not {len(shapes)}")
        for name, dims, shape in zip(self.names, self.operands, shapes):
            if len(dims) != len(shape):
                raise HlirError(
                    f"{name} has shape {tuple(shape)}, expected [{', '.join(dims)}]"
                )
            for d, n in zip(dims, shape):
                want = known.setdefault(d, n) if d.isidentifier() else int(d)
                if want != n:
                    raise HlirError(
                        f"{name} has shape {tuple(shape)}, expected [{', '.join(dims)}] with "
                        f"{d} = {want}"
                    )
        return known

    def shapes(self, known: Mapping[str, Dim]) -> list[tuple[Dim, ...]]:
        """The shapes of the results."""
        return [tuple(sizes.parse(d, known) for d in dims) for dims in self.results]

    def roles(self, result: int) -> tuple[tuple[str, ...], ...] | None:
        """The named dims of each operand, then of a result; None when one is not a name."""
        dims = (*self.operands, self.results[result])
        for each in dims:
            if len(set(each)) != len(each) or not all(d in self.letters for d in each):
                return None
        return dims

    def __str__(self) -> str:
        left = [f"{n}[{', '.join(d)}]" for n, d in zip(self.names, self.operands)]
        right = [f"[{', '.join(d)}]" for d in self.results]
        return f"{', '.join(left)} -> {', '.join(right)}"


def signature(text: str) -> Signature:
    """Read `"x[m, n], s[m] -> [m, n]"`.

    Raises:
        LuminalError: when it is not understood.

    >>> signature("x[m, n] -> [m, 2*n], [m]").shapes({"m": 3, "n": 4})
    [(3, 8), (3,)]
    """
    left, arrow, right = text.partition("->")
    operands, results = _listed(left, text), _listed(right, text)
    names = [name for name, _ in operands]
    if not arrow or not operands or not results or None in names:
        raise _misread(text)
    made = Signature(
        tuple(n or "" for n in names),
        tuple(d for _, d in operands),
        tuple(d for _, d in results),
    )
    for d in (d for dims in made.operands for d in dims):
        if not (d.isidentifier() or d.isdigit()):
            raise _misread(text)
    if len(set(names)) != len(names):
        raise _misread(text)
    try:
        made.shapes({d: sizes.symbol(d) for d in made.letters})
    except HlirError as error:
        raise LuminalError(f"the signature {text!r}: {error.what}") from None
    return made


def _listed(text: str, whole: str) -> list[tuple[str | None, tuple[str, ...]]]:
    out, at = [], 0
    text = text.strip()
    while at < len(text):
        found = _OPERAND.match(text, at)
        if found is None:
            raise _misread(whole)
        dims = tuple(d.strip() for d in found[2].split(",") if d.strip())
        out.append((found[1], dims))
        at = found.end()
    return out


def _misread(text: str) -> LuminalError:
    return LuminalError(
        f"the signature {text!r} is not understood",
        fix='name each operand and its dims: "x[m, n], s[m] -> [m, n]"',
    )


@dataclass(frozen=True)
class Registered:
    """An operator that was registered in this process.

    Arguments:
        target: `"demo.row_scale.default"`, as in `torch.ops`.
        signature: Its operands and results.
        text: Rules about it.
        kernels: Sources of hand-written kernels that the rules call.
        digest: Of its implementation: what was found about another one says nothing of it.
    """

    target: str
    signature: Signature
    text: str = ""
    kernels: tuple[str, ...] = ()
    digest: str = ""

    @property
    def source(self) -> tuple[str, str]:
        """The name for places in error messages, and the text of the rules."""
        return (self.target, self.text)


_REGISTERED: dict[str, Registered] = {}


def register(op: Registered) -> None:
    """Make an operator known; a second registration of one name takes the first one's place."""
    _REGISTERED[op.target] = op


def registered(target: str) -> Registered | None:
    """What is known of an operator."""
    return _REGISTERED.get(target)


def registered_in(hlir: Hlir) -> list[Registered]:
    """The registered operators that a program calls, in order."""
    targets = dict.fromkeys(own_operators(hlir))
    return [op for t in targets if (op := _REGISTERED.get(t)) is not None]


def own_operators(hlir: Hlir) -> list[str]:
    """The targets of calls that another process may not know: those outside of PyTorch."""
    return [str(n.attrs["target"]) for n in hlir.nodes if n.op == "Custom" and is_own(n.attrs)]


def is_own(attrs: Mapping[str, Any]) -> bool:
    """Whether a Custom node, or the call of one, is of an operator outside of PyTorch."""
    return str(attrs.get("target", "aten")).split(".")[0] not in OURS


def node_attrs(target: str, result: int, numbers: Iterable[Any]) -> dict[str, Any]:
    """What a Custom node says about a registered operator: its roles and its numbers."""
    op = _REGISTERED.get(target)
    roles = None if op is None else op.signature.roles(result)
    if roles is None:
        return {}
    plain = tuple(float(n) for n in numbers if isinstance(n, (bool, int, float)))
    return {"roles": roles, "numbers": plain}
