"""Is a rule about an operator of the user's own true? Calls of it, at several sizes.

Such a rule matches `(Custom k ts)` and names the operator by `(= "demo.scale.default" (calls
k))`. Random terms would not call it, so small programs that do are encoded, the rule is run on
them, and all members of each class are compared, the operator's own implementation among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.sexpr import List
from luminal_lab.errors import HlirError, LuminalError
from luminal_lab.hlir import apply
from luminal_lab.hlir.custom import Registered, registered
from luminal_lab.hlir.dtypes import DTYPES, DType
from luminal_lab.hlir.graph import Hlir, Ref
from luminal_lab.hlir.tensor import Graph

if TYPE_CHECKING:
    from torch import Tensor

_NAMED = re.compile(r'\(= "([\w.]+)" \(calls |\(= \(calls \w+\) "([\w.]+)"\)')
_SIZES = ((3, 4, 2, 5), (1, 6, 3, 2), (5, 1, 4, 3), (16, 33, 8, 7))
_DTYPES = ("f32", "f64", "bf16", "i64")


def operators_of(facts: Sequence[List]) -> list[str]:
    """The operators that a rule names, `[]` when it is not about operators."""
    text = " ".join(map(str, facts))
    return [a or b for a, b in _NAMED.findall(text)] if "(Custom " in text else []


@dataclass(frozen=True)
class Call:
    """A small program that calls an operator, as `soundness` runs it.

    Arguments:
        hlir: The program.
        inputs: Its inputs by name.
    """

    hlir: Hlir
    inputs: Mapping[str, Tensor]

    @property
    def values(self) -> Sequence[Any]:
        """Its nodes: the fewer, the smaller it is."""
        return self.hlir.nodes

    def commands(self, wanted: frozenset[str]) -> list[str]:
        """What loads it into an e-graph."""
        return commands(encode(self.hlir), wanted)


def programs(target: str) -> Iterator[Call]:
    """Calls of an operator at several sizes and dtypes; those that it refuses are left out.

    Raises:
        LuminalError: when nothing is registered under this name, or it takes nothing here.
    """
    op = registered(target)
    if op is None:
        raise LuminalError(
            f"no operator is registered as {target!r}",
            fix='register it first: ll.custom_op("namespace::name", "x[m, n] -> [m, n]")',
        )
    made = 0
    for numbers in _SIZES:
        for name in _DTYPES:
            call = _call(op, dict(zip(op.signature.letters, numbers * 4)), DTYPES[name])
            if call is not None:
                made += 1
                yield call
    if not made:
        raise LuminalError(f"{target} takes none of the inputs that it was tried with")


def _call(op: Registered, letters: Mapping[str, int], dtype: DType) -> Call | None:
    import torch

    rng = torch.Generator().manual_seed(0)
    shapes = [
        tuple(letters.get(d, 0) if d.isidentifier() else int(d) for d in dims)
        for dims in op.signature.operands
    ]
    inputs = {}
    for name, shape in zip(op.signature.names, shapes):
        x = torch.randn(shape, generator=rng, dtype=torch.float64)
        x = x if dtype.is_float else x.mul(3).round()
        inputs[name] = x.to(apply.torch_dtype(dtype))
    g = Graph(op.target)
    operands = [g.input(n, s, dtype) for n, s in zip(op.signature.names, shapes)]
    template = (tuple(Ref(k) for k in range(len(operands))), {})
    results = [(tuple(s), dtype) for s in op.signature.shapes(letters)]
    try:
        outs = g.custom(op.target, template, operands, results, single=len(results) == 1)
        node = g.nodes[outs[0].node]
        values = apply.call_aten(node, list(inputs.values()))
    except HlirError:
        return None  # a dtype that it does not take
    for value, (shape, _) in zip(values, results):
        if value.dtype != apply.torch_dtype(dtype) or tuple(value.shape) != shape:
            return None  # of another dtype than its operands: tested where it is not
    return Call(g.finish(*outs), inputs)
