"""All tables of a saturated region, as egglog left them, for questions about rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.language import datum
from luminal_lab.egraph.library import kernels_of
from luminal_lab.egraph.names import tensor_names
from luminal_lab.egraph.primitives import number
from luminal_lab.egraph.process import Child
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.queries import Schema
from luminal_lab.egraph.readout import Found, read_rows
from luminal_lab.egraph.tables import Store
from luminal_lab.egraph.witness import book_of, programme_of
from luminal_lab.errors import SaturationError

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, Part


@dataclass(frozen=True)
class Evidence:
    """The tables of a region.

    Arguments:
        part: The region's e-graph.
        store: The tables; classes have egglog's numbers.
        schema: What the tables are.
        found: The e-classes, and the rows that their e-nodes were read from.
        numbers: egglog's number of each e-class.
        tensors: What T-classes are called.
    """

    part: Part
    store: Store
    schema: Schema
    found: Found
    numbers: Mapping[int, int]
    tensors: Mapping[int, str]

    def name(self, c: int) -> str:
        """What a class is called: `v7`, or the name of a tensor."""
        k = self.found.number.get(c)
        if k is None:
            return "an index expression"
        return f"v{k}" if self.found.classes[k].sort == "V" else self.tensors.get(k, f"t{k}")

    def term(self, c: int, depth: int = 2) -> str:
        """A class as its first member, in the language of rules; names below `depth`."""
        k = self.found.number.get(c)
        if k is None or depth <= 0 or self.found.classes[k].sort == "T":
            return self._index(c) if k is None else self.name(c)
        # A value says more than "it is stored there" when it has another form.
        rows = self.found.sources[k]
        op, args = next((r for r in rows if r[0] != "Load"), rows[0])
        return self.row(op, args, depth - 1)

    def row(self, op: str, args: Sequence[Any], depth: int = 0) -> str:
        """A row in the language of rules."""
        sorts = self.schema.tables[op].args
        parts = [self.value(s, a, depth) for s, a in zip(sorts, args)]
        return f"({' '.join([op, *parts])})"

    def value(self, sort: str, value: Any, depth: int = 0) -> str:
        """A column of a row."""
        if self.schema.is_term(sort):
            return self.term(value, depth) if depth > 0 else self.term(value, 0)
        if isinstance(value, (list, tuple)) and self.schema.vector_of_terms(sort):
            return f"(vec-of {' '.join(self.term(v, 0) for v in value)})"
        return shown(value)

    def _index(self, c: int) -> str:
        for op in ("Affine", "Number", "Plus", "Times", "Rem"):
            rows = self.store.tables[op]
            for key in rows.by_value.get(c, {}):
                return self.row(op, key, 1)
        return "an index expression"


def shown(value: Any) -> str:
    """A literal as people read it."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(str, value))) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def evidence(egraph: EGraph, region: int) -> Evidence:
    """The tables of a region: it is saturated once more (in a child), and read out whole.

    Raises:
        SaturationError: when that does not come to the same e-graph.
    """
    kept = egraph.__dict__.setdefault("_evidence", {})
    if region not in kept:
        kept[region] = _evidence(egraph, region)
    return kept[region]


def _evidence(egraph: EGraph, region: int) -> Evidence:
    part = egraph.parts[region]
    book = book_of(egraph)
    encoding = encode(part.hlir, egraph.limits.copies, "tiles" in book.wanted)
    done = part.report.iterations[-1].number
    limits = replace(egraph.limits, iterations=done)
    with Child() as child:
        (result,) = child.run(book, [commands(encoding, book.wanted)], limits, everything=True)
    state = result.state or {}
    schema = programme_of(egraph).schema
    found = read_rows(state, encoding, book.rules, kernels_of(part.classes))
    if len(found.classes) != len(part.classes):
        raise SaturationError(
            f"region {region} was saturated again and has {len(found.classes)} e-classes, not"
            f" {len(part.classes)}",
            where=f"it had stopped with: {part.report.stopped}",
            fix="saturate with limits on iterations or rows, not on seconds",
        )
    store = Store(schema.tables)
    for name, rows in state.items():
        table = schema.tables.get(name)
        for *key, value in rows if table is not None else ():
            assert table is not None
            args = tuple(_datum(s, a) for s, a in zip(table.args, key))
            held = True if table.kind == "relation" else _datum(table.sort, value)
            store.tables[name].put(args, held, 1)
    numbers = {new: old for old, new in found.number.items()}
    return Evidence(part, store, schema, found, numbers, tensor_names(egraph, region))


def _datum(sort: str, value: Any) -> Any:
    return number(value) if isinstance(value, float) else datum(sort, value)
