"""The text of a kernel: in canonical form (see `canonical`), the key under which it is known.

Sizes that a call decides keep their names, and the first line gives their bounds and hints. The
text parses back:

    buffer b0: f32[1024, 64]
    axes a0=1024 a1=64
    v0: f32 = load b0[a0, a1]
    v1: f32 = red add a1 v0
    store b1[a0] = v1

A scatter's last line is `scatter set into b1 over a0: b2[@0, a0] = v1 at v2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from luminal_lab.egraph.values import (
    Buffer,
    Kernel,
    KernelOutput,
    ScatterTo,
    Value,
    postorder,
)
from luminal_lab.errors import SearchError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index, shown
from luminal_lab.hlir.sizes import Dim, Symbol, symbol
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.plain import from_plain, to_plain

AnyKernel = Kernel | LibraryKernel
Symbols = Mapping[str, Dim]

index_text = lru_cache(maxsize=4096)(str)


def reads_of(kernel: AnyKernel) -> tuple[str, ...]:
    """The buffers that a kernel reads, in order."""
    return kernel.reads() if isinstance(kernel, Kernel) else kernel.reads


def writes_of(kernel: AnyKernel) -> tuple[str, ...]:
    """The buffers that a kernel writes, in order."""
    return kernel.writes() if isinstance(kernel, Kernel) else kernel.writes


# ------------------------------------------------------------------------------- printing


def sizes_lines(symbols: Iterable[Symbol]) -> list[str]:
    """`sizes n=[2,512]@128` for the sizes that a call decides; nothing when there are none."""
    said = [f"{s.name}=[{s.low},{s.high}]@{s.hint}" for s in symbols]
    return [f"sizes {' '.join(said)}"] if said else []


def parse_sizes(text: str) -> dict[str, Dim]:
    """What follows the word `sizes`."""
    found = re.findall(r"(\w+)=\[(\d+),(\d+)\]@(\d+)", text)
    return {n: symbol(n, int(low), int(high), int(hint)) for n, low, high, hint in found}


def buffer_text(buffer: Buffer, name: str | None = None) -> str:
    """`b0: f32[4, 8] strides(8, 1) constant`."""
    text = f"{name or buffer.name}: {buffer.dtype}[{', '.join(map(shown, buffer.shape))}]"
    if buffer.strides is not None:
        text += f" strides({', '.join(map(shown, buffer.strides))})"
    return text + (" constant" if buffer.constant else "")


def kernel_text(kernel: AnyKernel) -> str:
    """The kernel as text, one line per buffer, value and store."""
    if isinstance(kernel, LibraryKernel):
        return _text(kernel, ())
    return _text(kernel, postorder(kernel.values()))


def _text(kernel: AnyKernel, order: Iterable[Value]) -> str:
    lines = sizes_lines(kernel.symbols)
    lines += [f"buffer {buffer_text(b)}" for b in kernel.buffers.values()]
    if isinstance(kernel, LibraryKernel):
        attrs = {k: to_plain(v) for k, v in sorted(kernel.attrs.items())}
        lines.append(
            f"call {kernel.routine}({', '.join(kernel.reads)}) -> {', '.join(kernel.writes)}"
            f" {json.dumps(attrs, sort_keys=True)}"
        )
        return "\n".join(lines)
    lines.append("axes " + " ".join(f"{a}={shown(n)}" for a, n in kernel.extents.items()))
    names: dict[Value, str] = {}
    for value in order:
        names[value] = f"v{len(names)}"
        lines.append(f"{names[value]}: {value.dtype} = {_value_text(value, names)}".rstrip())
    for out in kernel.outputs:
        at = ", ".join(map(index_text, out.index))
        line = f"{out.buffer}[{at}] = {names[out.value]}"
        if out.scatter is None:
            lines.append(f"store {line}")
            continue
        to = out.scatter
        where = " ".join(names[v] for v in to.at)
        head = f"scatter {to.mode} into {to.into} over {' '.join(to.axes)}:"
        lines.append(f"{head} {line} at {where}".rstrip())
    return "\n".join(lines)


def _value_text(value: Value, names: Mapping[Value, str]) -> str:
    args = " ".join(names[a] for a in value.args)
    if value.op == "load":
        at = ", ".join(map(index_text, value.attrs[1]))
        return f"load {value.attrs[0]}[{at}] {args}"
    attrs = " ".join(repr(a) if value.op == "const" else str(a) for a in value.attrs)
    return " ".join(part for part in (value.op, attrs, args) if part)


# -------------------------------------------------------------------------------- parsing

_BUFFER = re.compile(
    r"(?P<name>[^:]+): (?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
    r"(?: strides\((?P<strides>[^)]*)\))?(?P<constant> constant)?$"
)
_VALUE = re.compile(r"(v\d+): (\w+) = (\w+)(?: (.*))?$")
_LOAD = re.compile(r"([^\[]+)\[([^\]]*)\] ?(.*)$")
_STORE = re.compile(r"store ([^\[]+)\[([^\]]*)\] = (v\d+)$")
_SCATTER = re.compile(r"scatter (set|add) into (\S+) over ([^:]*): (.*) at ?(.*)$")
_AXIS = re.compile(r"[\w'.@]+=(?:\{[^}]*\}|\d+)")
_CALL = re.compile(r"call (\S+)\(([^)]*)\) -> ((?:[^{ ]+)(?:, [^{ ]+)*) (\{.*\})$")


def _dim(text: str, symbols: Symbols) -> Dim:
    text = text.strip()
    if text.startswith("{"):
        return sizes.parse(text[1:-1].replace(";", ", "), symbols)
    return int(text)


def _dims(text: str, symbols: Symbols) -> tuple[Dim, ...]:
    return tuple(_dim(t, symbols) for t in text.split(",")) if text.strip() else ()


def _indices(text: str, symbols: Symbols) -> tuple[Index, ...]:
    if not text.strip():
        return ()
    return tuple(Index.parse(t, None, symbols) for t in text.split(","))


def parse_buffer(text: str, symbols: Symbols | None = None) -> Buffer:
    """Read what `buffer_text` wrote.

    Raises:
        SearchError: on anything else.
    """
    symbols = symbols or {}
    m = _BUFFER.match(text)
    if not m or m["dtype"] not in DTYPES:
        raise SearchError(f"not a buffer: {text!r}")
    strides = None if m["strides"] is None else _dims(m["strides"], symbols)
    shape = _dims(m["shape"], symbols)
    return Buffer(m["name"], shape, DTYPES[m["dtype"]], strides, m["constant"] is not None)


def parse_kernel(text: str) -> AnyKernel:
    r"""Read what `kernel_text` wrote.

        >>> text = "buffer b0: f32[4]\nbuffer b1: f32[]\naxes a0=4\nv0: f32 = load b0[a0]"
        >>> text += "\nv1: f32 = red add a0 v0\nstore b1[] = v1"
        >>> kernel_text(parse_kernel(text)) == text
        True

    Raises:
        SearchError: with the line that cannot be read.
    """
    buffers: dict[str, Buffer] = {}
    symbols: dict[str, Dim] = {}
    extents: dict[str, Dim] = {}
    values: dict[str, Value] = {}
    outputs: list[KernelOutput] = []
    for line in text.strip().splitlines():
        line = line.strip()
        word, _, rest = line.partition(" ")
        if word == "sizes":
            symbols = parse_sizes(rest)
        elif word == "buffer":
            buffer = parse_buffer(rest, symbols)
            buffers[buffer.name] = buffer
        elif word == "axes":
            pairs = (p.split("=") for p in _AXIS.findall(rest))
            extents = {a: _dim(n, symbols) for a, n in pairs}
        elif m := _CALL.match(line):
            attrs = {k: from_plain(v) for k, v in json.loads(m[4]).items()}
            reads = tuple(r for r in m[2].split(", ") if r)
            return LibraryKernel(m[1], reads, tuple(m[3].split(", ")), buffers, attrs)
        elif m := _STORE.match(line):
            index = _indices(m[2], symbols)
            outputs.append(KernelOutput(m[1], index, values[m[3]]))
        elif (m := _SCATTER.match(line)) and (n := _STORE.match(f"store {m[4]}")):
            at = tuple(values[w] for w in m[5].split())
            to = ScatterTo(m[2], "add" if m[1] == "add" else "set", tuple(m[3].split()), at)
            outputs.append(KernelOutput(n[1], _indices(n[2], symbols), values[n[3]], to))
        elif (m := _VALUE.match(line)) and m[2] in DTYPES:
            values[m[1]] = _parse_value(m[3], m[2], m[4] or "", values, line, symbols)
        else:
            raise SearchError(f"not a line of a kernel: {line!r}")
    if not outputs:
        raise SearchError("the text of a kernel ends without a store")
    return Kernel(tuple(outputs), buffers, extents)


def _parse_value(
    op: str,
    dtype: str,
    rest: str,
    values: Mapping[str, Value],
    line: str,
    symbols: Symbols,
) -> Value:
    try:
        if op == "load":
            m = _LOAD.match(rest)
            if not m:
                raise ValueError("not a load")
            attrs: tuple = (m[1], _indices(m[2], symbols))
            words = m[3].split()
        elif op == "const":
            attrs, words = (_number(rest),), []
        elif op == "iota":
            attrs, words = (Index.parse(rest, None, symbols),), []
        else:
            words = rest.split()
            taken = {"red": 2, "carry": 2, "online": 1, "table": 1}.get(op, 0)
            attrs, words = tuple(words[:taken]), words[taken:]
        return Value(op, tuple(values[w] for w in words), attrs, dtype=DTYPES[dtype])
    except (KeyError, ValueError) as error:
        raise SearchError(f"cannot read the value {line!r}: {error}") from error


def _number(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)
