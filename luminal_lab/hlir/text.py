"""The text form of an Hlir: one node per line, and it reads back to an equal program.

    hlir 'mlp'
    symbol s0 [1, 64] integer positive
    %0 f32[s0, 3] = Input {name='x'}
    %1 f32[s0] = SumReduce %0[i0, r] {extent=3} @ 'model.py:7 in forward', 'head', 'aten.sum'
    input 'x' %0 arg 0
    output 'out0' %1[i0] [s0]

Weights are named, not printed: `parse` takes them from its argument, or leaves them out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir import literals, sizes
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.graph import Hlir, InputSpec, Node, Operand, OutputSpec, Source
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.structure import Structure
from luminal_lab.hlir.symbolic import symbols_of
from luminal_lab.hlir.view import View


# ---------------------------------------------------------------------- printing
def text(hlir: Hlir, *, sources: bool = True) -> str:
    """The text form.

    Arguments:
        hlir: The program.
        sources: Whether to print where each node came from.
    """
    return "\n".join(_lines(hlir, sources)) + "\n"


def node_text(node: Node, *, source: bool = False) -> str:
    """One node, without its number."""
    kind = f"{node.dtype}{literals.show_shape(node.shape)}"
    parts = [f"{kind} = {node.op}"]
    if node.operands:
        parts.append(", ".join(map(_operand_text, node.operands)))
    if node.attrs:
        shown = (f"{k}={literals.show(node.attrs[k])}" for k in sorted(node.attrs))
        parts.append("{" + ", ".join(shown) + "}")
    if source and node.source != Source():
        s = node.source
        parts.append(f"@ {s.line!r}, {s.module!r}, {s.aten!r}")
    return " ".join(parts)


def _lines(hlir: Hlir, sources: bool) -> Iterator[str]:
    yield f"hlir {hlir.name!r}"
    for name, symbol in symbols_of(hlir).items():
        yield f"symbol {name} [{symbol.low}, {symbol.high}] tuned at {symbol.hint}"
    for n, node in enumerate(hlir.nodes):
        yield f"%{n} {node_text(node, source=sources)}"
    for spec in hlir.inputs:
        position = "" if spec.position is None else f" {spec.position}"
        yield f"input {spec.name!r} %{spec.node} {spec.kind}{position}"
    for out in hlir.outputs:
        facts = {"stride": out.stride, "mutates": out.mutates, "aliases": out.aliases}
        shown = "".join(f" {k}={literals.show(v)}" for k, v in facts.items() if v is not None)
        value = f"{_operand_text(out.value)} {literals.show_shape(out.shape)}"
        yield f"output {out.name!r} {value}{shown}"
    for name in ("in_spec", "out_spec"):
        spec = getattr(hlir, name)
        if spec is not None:
            dumped = dump_spec(spec)
            yield (
                f"{name} {dumped!r}"
                if dumped
                else f"# {name} has no text form: {' '.join(repr(spec).split())}"
            )


def _operand_text(operand: Operand) -> str:
    return f"%{operand.node}{view_text(operand.view)}"


def view_text(view: View) -> str:
    """`[i0-1, i1] if i0-1>=0 else 0.0`."""
    out = "[" + ", ".join(map(str, view.index)) + "]"
    if view.guard:
        guards = " & ".join(f"{g}>=0" for g in view.guard)
        out += f" if {guards} else {literals.show(view.fill)}"
    return out


def dump_spec(spec: Any) -> str | None:
    """A pytree structure as JSON; None when one of its types has no serialised form."""
    from torch.utils import _pytree

    try:
        if isinstance(spec, Structure):
            facts = {
                "spec": dump_spec(spec.spec),
                "constants": literals.show(dict(spec.constants)),
                "complex": list(spec.complex),
            }
            return json.dumps(facts)
        return _pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError, HlirError):
        return None


def _load_spec(dumped: str) -> Any:
    from torch.utils import _pytree

    try:
        if isinstance(fields := json.loads(dumped), dict):
            return Structure(
                _load_spec(fields["spec"]),
                literals.read(fields["constants"]),
                tuple(fields["complex"]),
            )
        return _pytree.treespec_loads(dumped)
    except (NotImplementedError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise HlirError(
            f"the structure of the inputs or outputs cannot be read: {error}",
            fix="import the package that defines its types first",
        ) from error


# ---------------------------------------------------------------------- parsing
_HEAD = re.compile(r"hlir (?P<name>'.*'|\".*\")$")
_SYMBOL = re.compile(
    r"symbol (?P<name>\w+) \[(?P<low>\d+), (?P<high>\d+)\] tuned at (?P<hint>\d+)$"
)
_NODE = re.compile(r"%(?P<id>\d+) (?P<dtype>\w+)\[")
_INPUT = re.compile(
    r"input (?P<name>'.*'|\".*\") %(?P<node>\d+) (?P<kind>\w+)(?: (?P<position>\d+))?$"
)
_OPERAND = re.compile(r"%(\d+)\[")
_FILL = re.compile(r"[-+.\w]+")


def parse(source: str, weights: Mapping[str, Any] | None = None) -> Hlir:
    """Read back what `text` printed.

    Arguments:
        source: The text.
        weights: Tensors by input name; those that the program does not name are ignored.

    Raises:
        HlirError: names the line that cannot be read.
    """
    reader = _Reader()
    for number, line in enumerate(source.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                reader.line(line.strip())
            except HlirError as error:
                where = f"line {number}: {line.strip()}"
                raise HlirError(error.what, where=where, fix=error.fix) from error
    return reader.finish(weights or {})


class _Reader:
    def __init__(self) -> None:
        self.name: str | None = None
        self.bounds: dict[str, tuple[int, int]] = {}
        self.symbols: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.inputs: list[InputSpec] = []
        self.outputs: list[OutputSpec] = []
        self.specs: dict[str, Any] = {}

    def line(self, line: str) -> None:
        if self.name is None:
            if not (m := _HEAD.match(line)):
                raise HlirError("the text of an Hlir starts with: hlir 'name'")
            self.name = literals.read(m["name"])
        elif m := _SYMBOL.match(line):
            low, high, hint = (int(m[k]) for k in ("low", "high", "hint"))
            self.bounds[m["name"]] = (low, high)
            self.symbols[m["name"]] = sizes.symbol(m["name"], low, high, hint)
        elif m := _NODE.match(line):
            if int(m["id"]) != len(self.nodes):
                raise HlirError(f"expected node %{len(self.nodes)}")
            self.nodes.append(self.node(_Cursor(line, m.end() - 1), m["dtype"]))
        elif m := _INPUT.match(line):
            position = None if m["position"] is None else int(m["position"])
            name, kind = literals.read(m["name"]), m["kind"]
            if kind not in ("arg", "weight", "constant"):
                raise HlirError(f"an input is an arg, a weight or a constant, not a {kind!r}")
            self.inputs.append(InputSpec(int(m["node"]), name, kind, position))
        elif line.startswith("output "):
            self.outputs.append(self.output(_Cursor(line, len("output "))))
        elif line.startswith(("in_spec ", "out_spec ")):
            key, dumped = line.split(" ", 1)
            self.specs[key] = _load_spec(literals.read(dumped))
        else:
            raise HlirError("not a line of an Hlir")

    def node(self, at: _Cursor, dtype: str) -> Node:
        if dtype not in DTYPES:
            raise HlirError(f"there is no dtype {dtype!r}; there are {', '.join(DTYPES)}")
        shape = tuple(literals.read(at.bracketed(), self.symbols))
        at.expect(" = ")
        op = at.match(re.compile(r"\w+"))
        operands = []
        at.skip(" ")
        while at.startswith("%"):
            operands.append(self.operand(at))
            at.skip(", ")
        at.skip(" ")
        attrs = self.attrs(at.bracketed()) if at.startswith("{") else {}
        source = Source()
        if at.skip(" @ ") or at.skip("@ "):
            fields = literals.read(at.rest())
            if not (isinstance(fields, tuple) and [type(f) for f in fields] == [str] * 3):
                raise HlirError("a source is three strings: line, module, ATen operator")
            source = Source(*fields)
        else:
            at.end()
        return Node(op, tuple(operands), shape, DTYPES[dtype], attrs, source)

    def operand(self, at: _Cursor) -> Operand:
        node = int(at.match(_OPERAND)[1:-1])
        at.place -= 1
        inner = at.bracketed()[1:-1]
        index = tuple(map(self.index, filter(None, inner.split(","))))
        guard: tuple[Index, ...] = ()
        fill: Any = 0
        if at.skip(" if "):
            guards = at.until(" else ").split(" & ")
            guard = tuple(self.index(g.removesuffix(">=0")) for g in guards)
            fill = literals.read(at.match(_FILL))
        return Operand(node, View(index, guard, fill))

    def index(self, text: str) -> Index:
        return Index.parse(text, None, self.symbols)

    def attrs(self, braces: str) -> dict[str, Any]:
        inner = _Cursor(braces, 1)
        out: dict[str, Any] = {}
        while not inner.startswith("}"):
            key = inner.match(re.compile(r"\w+"))
            inner.expect("=")
            out[key] = literals.read(inner.item(), self.symbols)
            inner.skip(", ")
        return out

    def output(self, at: _Cursor) -> OutputSpec:
        name = literals.read(at.string())
        at.expect(" ")
        value = self.operand(at)
        at.expect(" ")
        shape = tuple(literals.read(at.bracketed(), self.symbols))
        facts: dict[str, Any] = {}
        while at.skip(" "):
            key = at.match(re.compile(r"stride|mutates|aliases"))
            at.expect("=")
            text = at.bracketed() if at.startswith("(") else at.string()
            facts[key] = literals.read(text, self.symbols)
        at.end()
        return OutputSpec(value, shape, name, **facts)

    def finish(self, weights: Mapping[str, Any]) -> Hlir:
        if self.name is None:
            raise HlirError("the text is empty; that of an Hlir starts with: hlir 'name'")
        named = [s.name for s in self.inputs if s.kind != "arg"]
        return Hlir(
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(self.outputs),
            {name: weights[name] for name in named if name in weights},
            self.bounds,
            self.specs.get("in_spec"),
            self.specs.get("out_spec"),
            self.name,
        )


class _Cursor:
    """A place in a line."""

    def __init__(self, line: str, place: int = 0):
        self.line = line
        self.place = place

    def startswith(self, text: str) -> bool:
        return self.line.startswith(text, self.place)

    def skip(self, text: str) -> bool:
        found = self.startswith(text)
        self.place += len(text) if found else 0
        return found

    def expect(self, text: str) -> None:
        if not self.skip(text):
            raise HlirError(f"expected {text!r} before {self.rest()!r}")

    def match(self, pattern: re.Pattern[str]) -> str:
        m = pattern.match(self.line, self.place)
        if m is None:
            raise HlirError(f"cannot read {self.rest()!r}")
        self.place = m.end()
        return m[0]

    def until(self, mark: str) -> str:
        end = self.line.find(mark, self.place)
        if end < 0:
            raise HlirError(f"expected {mark!r} after {self.rest()!r}")
        out = self.line[self.place : end]
        self.place = end + len(mark)
        return out

    def rest(self) -> str:
        return self.line[self.place :]

    def end(self) -> None:
        if self.rest().strip():
            raise HlirError(f"unexpected {self.rest().strip()!r}")

    def string(self) -> str:
        """A quoted string, with its quotes."""
        return self.match(re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""))

    def bracketed(self) -> str:
        """From an opening bracket to the one that closes it."""
        start, self.place = self.place, self.place + 1
        depth = 1
        while depth:
            depth += self._step()
        return self.line[start : self.place]

    def item(self) -> str:
        """Up to the next comma or closing bracket at this level."""
        start, depth = self.place, 0
        while not (depth == 0 and self.rest()[:1] in (",", "}")):
            depth += self._step()
        return self.line[start : self.place]

    def _step(self) -> int:
        """Pass a character or a string; how the bracket depth changes."""
        head = self.rest()[:1]
        if not head:
            raise HlirError("a bracket is not closed")
        if head in "'\"":
            self.string()
            return 0
        self.place += 1
        return (head in "([{") - (head in ")]}")
