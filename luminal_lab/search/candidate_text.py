"""How a candidate reads: its summary, its text form, its table, its graph, its differences."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from luminal_lab.egraph.values import BINDERS, postorder
from luminal_lab.errors import SearchError
from luminal_lab.hlir.copies import span
from luminal_lab.hlir.sizes import hint, symbols_in
from luminal_lab.search.candidate import BufferKind, Call, Candidate, LibraryKernel
from luminal_lab.search.kernel_text import (
    AnyKernel,
    buffer_text,
    kernel_text,
    parse_buffer,
    parse_kernel,
    parse_sizes,
    reads_of,
    sizes_lines,
    writes_of,
)

if TYPE_CHECKING:
    from graphviz import Digraph
    from pandas import DataFrame

_HEADER = "candidate 1"
_SHOWN = 12  # kernels that a summary lists


def digest(candidate: Candidate) -> str:
    """Twelve hex digits of the program's kernels, schedules and calls."""
    sha = hashlib.sha256()
    for line in _program_lines(candidate):
        sha.update(line.encode())
    return sha.hexdigest()[:12]


def title(kernel: AnyKernel) -> str:
    """A kernel in a few words: what it reduces and computes, and the shape that it stores."""
    if isinstance(kernel, LibraryKernel):
        what = str(kernel.attrs.get("target", kernel.routine))
        return f"{what} -> {_shape(kernel)}"
    counts: Counter[str] = Counter()
    for value in postorder(kernel.values()):
        if value.op in BINDERS:
            counts["online" if value.op == "online" else f"{value.attrs[0]}-reduction"] += 1
        elif value.op not in ("load", "const", "iota"):
            counts["pointwise"] += 1
    parts = [f"{n} {name}" for name, n in sorted(counts.items())]
    return f"{', '.join(parts) or 'copy'} -> {_shape(kernel)}"


def _shape(kernel: AnyKernel) -> str:
    out = kernel.buffers[writes_of(kernel)[0]]
    return f"{out.dtype}[{', '.join(map(str, out.shape))}]"


def summary(candidate: Candidate) -> str:
    """One screen."""
    calls = Counter(c.kernel for c in candidate.calls if not c.at_build)
    built = sum(c.at_build for c in candidate.calls)
    head = (
        f"Candidate {digest(candidate)}: {len(candidate.kernels)} kernels,"
        f" {sum(calls.values())} calls on {candidate.target}"
    )
    if built:
        head += f", {built} more when built"
    if candidate.predicted:
        head += f", predicted {candidate.seconds * 1e3:.3f} ms"
    lines = [head]
    for k, kernel in enumerate(candidate.kernels[:_SHOWN]):
        time = f"{candidate.predicted[k] * 1e6:9.1f} us" if candidate.predicted else ""
        lines.append(f"  {k:3d} ×{calls[k]:<3d}{time}  {title(kernel)}")
    if len(candidate.kernels) > _SHOWN:
        lines.append(f"  … {len(candidate.kernels) - _SHOWN} more: see .table()")
    return "\n".join(lines)


# ------------------------------------------------------------------------------- text form


def _program_lines(candidate: Candidate) -> list[str]:
    symbols = symbols_in(n for b in candidate.buffers.values() for n in b.shape)
    lines = [f"target {candidate.target}", *sizes_lines(sorted(symbols))]
    for name, buffer in candidate.buffers.items():
        lines.append(f"{candidate.kinds[name]} {buffer_text(buffer)}")
    for k, kernel in enumerate(candidate.kernels):
        schedule = candidate.schedules[k] if k < len(candidate.schedules) else None
        lines.append(f"kernel {k} {json.dumps(schedule, sort_keys=True)}")
        lines.extend("  " + line for line in kernel_text(kernel).splitlines())
    for k, text in sorted(candidate.written.items()):
        lines.append(f"written {k} {json.dumps(text)}")
    for call in candidate.calls:
        bind = ", ".join(f"{a}={b}" for a, b in call.bind.items())
        when = " at build" if call.at_build else ""
        where = f" in {call.region}" if call.region else ""
        lines.append(f"call {call.kernel} ({bind}){when}{where}")
    return lines


def program_text(candidate: Candidate) -> str:
    """See `Candidate.text`."""
    extra = [
        f"predicted {json.dumps(candidate.predicted)}",
        f"choice {json.dumps(candidate.choice)}",
        f"nodes {json.dumps([k.nodes for k in candidate.kernels])}",
        f"rules {json.dumps([k.rules for k in candidate.kernels])}",
    ]
    return "\n".join([_HEADER, *_program_lines(candidate), *extra]) + "\n"


def parse_program(text: str, hlir: Any) -> Candidate:
    """See `Candidate.parse`."""
    lines = text.splitlines()
    if not lines or lines[0] != _HEADER:
        raise SearchError(
            f"this is not the text of a candidate: it starts with {lines[:1]}",
            fix=f"the first line must be {_HEADER!r}",
        )
    reader = _Reader(hlir)
    for number, line in enumerate(lines[1:], 2):
        try:
            reader.read(line)
        except (SearchError, ValueError, KeyError, TypeError) as error:
            raise SearchError(f"line {number}: {error}") from error
    return reader.result()


class _Reader:
    def __init__(self, hlir: Any):
        self.fields: dict[str, Any] = {"hlir": hlir}
        self.sizes: dict[str, Any] = {}
        self.buffers: dict[str, Any] = {}
        self.kinds: dict[str, BufferKind] = {}
        self.bodies: list[list[str]] = []
        self.schedules: list[Any] = []
        self.written: dict[int, str] = {}
        self.calls: list[Call] = []

    def read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if line.startswith("  "):
            self.bodies[-1].append(line)
        elif word == "sizes":
            self.sizes = parse_sizes(rest)
        elif word == "target":
            self.fields["target"] = rest
        elif word in ("arg", "weight", "constant", "output", "temp"):
            buffer = parse_buffer(rest, self.sizes)
            self.buffers[buffer.name] = buffer
            self.kinds[buffer.name] = cast(BufferKind, word)
        elif word == "kernel":
            self.bodies.append([])
            self.schedules.append(json.loads(rest.partition(" ")[2]))
        elif word == "written":
            kernel, _, text = rest.partition(" ")
            self.written[int(kernel)] = json.loads(text)
        elif word == "call":
            self.calls.append(_call(rest))
        elif word in ("predicted", "choice", "nodes", "rules"):
            self.fields[word] = _tuples(json.loads(rest))
        else:
            raise SearchError(f"not a line of a candidate: {line!r}")

    def result(self) -> Candidate:
        kernels = []
        nodes = self.fields.pop("nodes", ())
        rules = self.fields.pop("rules", ())
        for k, body in enumerate(self.bodies):
            kernel = parse_kernel("\n".join(body))
            object.__setattr__(kernel, "nodes", nodes[k] if k < len(nodes) else ())
            object.__setattr__(kernel, "rules", rules[k] if k < len(rules) else ())
            kernels.append(kernel)
        return Candidate(
            kernels=tuple(kernels),
            schedules=tuple(self.schedules),
            calls=tuple(self.calls),
            buffers=self.buffers,
            kinds=self.kinds,
            written=self.written,
            **self.fields,
        )


def _call(text: str) -> Call:
    head, _, tail = text.partition(")")
    kernel, _, bind = head.partition(" (")
    at_build = tail.startswith(" at build")
    _, _, region = tail.partition(" in ")
    pairs = (p.partition("=") for p in bind.split(", ") if p)
    return Call(int(kernel), {a: b for a, _, b in pairs}, region, at_build)


def _tuples(data: Any) -> Any:
    return tuple(_tuples(d) for d in data) if isinstance(data, list) else data


# --------------------------------------------------------------------------- other views


def _megabytes(kernel: Any, names: tuple[str, ...]) -> float:
    """Size of some buffers, at the hints of symbolic sizes."""
    return sum(hint(kernel.buffers[n].nbytes) for n in names) / 1e6


def kernel_table(candidate: Candidate) -> DataFrame:
    """See `Candidate.table`."""
    import pandas as pd

    calls = Counter(c.kernel for c in candidate.calls if not c.at_build)
    built = Counter(c.kernel for c in candidate.calls if c.at_build)
    where: dict[int, list[str]] = {}
    for c in candidate.calls:
        where.setdefault(c.kernel, []).append(c.region)
    rows = []
    for k, kernel in enumerate(candidate.kernels):
        predicted = candidate.predicted[k] if candidate.predicted else float("nan")
        rows.append(
            {
                "kernel": k,
                "computes": title(kernel),
                "calls": calls[k],
                "at_build": built[k],
                "region": span(where.get(k, ())),
                "reads_mb": _megabytes(kernel, reads_of(kernel)),
                "writes_mb": _megabytes(kernel, writes_of(kernel)),
                "predicted_us": predicted * 1e6,
                "total_us": predicted * 1e6 * calls[k],
                "hlir_nodes": len(kernel.nodes),
                "rules": ", ".join(kernel.rules),
            }
        )
    return pd.DataFrame(rows)


def dot(candidate: Candidate) -> Digraph:
    """See `Candidate.graph`."""
    from graphviz import Digraph

    graph = Digraph("candidate", node_attr={"shape": "box", "fontname": "sans-serif"})
    used = {b for c in candidate.calls for b in c.bind.values()}
    for name, buffer in candidate.buffers.items():
        kind = candidate.kinds[name]
        if name in used and kind in ("arg", "output"):
            graph.node(
                f"b:{name}", f"{name}\\n{buffer.dtype}{list(buffer.shape)}", shape="ellipse"
            )
    maker: dict[str, str] = {}
    for n, call in enumerate(candidate.calls):
        kernel = candidate.kernels[call.kernel]
        where = f"\\n{call.region}" if call.region else ""
        graph.node(
            f"c:{n}", f"k{call.kernel}: {title(kernel)}{where}", tooltip=call.region or "call"
        )
        for name in reads_of(kernel):
            buffer = call.bind[name]
            if buffer in maker:
                graph.edge(maker[buffer], f"c:{n}", tooltip=buffer)
            elif candidate.kinds[buffer] == "arg":
                graph.edge(f"b:{buffer}", f"c:{n}")
        for name in writes_of(kernel):
            maker[call.bind[name]] = f"c:{n}"
            if candidate.kinds[call.bind[name]] == "output":
                graph.edge(f"c:{n}", f"b:{call.bind[name]}")
    return graph


def difference(a: Candidate, b: Candidate) -> str:
    """See `Candidate.diff`."""
    texts_a = {kernel_text(k): k for k in a.kernels}
    texts_b = {kernel_text(k): k for k in b.kernels}
    calls_a = Counter(kernel_text(a.kernels[c.kernel]) for c in a.calls)
    calls_b = Counter(kernel_text(b.kernels[c.kernel]) for c in b.calls)
    lines = [f"{digest(a)} against {digest(b)}"]
    both = [t for t in texts_a if t in texts_b]
    lines.append(f"  {len(both)} kernels in both")
    for t in both:
        if calls_a[t] != calls_b[t]:
            lines.append(f"  ~ {title(texts_a[t])}: {calls_a[t]} calls, {calls_b[t]} there")
    lines += [f"  - {title(k)} ×{calls_a[t]}" for t, k in texts_a.items() if t not in texts_b]
    lines += [f"  + {title(k)} ×{calls_b[t]}" for t, k in texts_b.items() if t not in texts_a]
    if a.predicted and b.predicted:
        lines.append(f"  predicted {a.seconds * 1e3:.3f} ms, {b.seconds * 1e3:.3f} ms there")
    return "\n".join(lines)
