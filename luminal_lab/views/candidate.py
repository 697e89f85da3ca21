"""A Candidate: kernels, the buffers between them, what each computes, and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import graphviz

from luminal_lab.egraph.values import Buffer, Kernel, Value, postorder
from luminal_lab.hlir.copies import span
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.candidate import Call, Candidate, LibraryKernel
from luminal_lab.search.differences import CandidateDiff
from luminal_lab.views import diff, units
from luminal_lab.views.html import (
    Figure,
    Html,
    card,
    columns,
    el,
    facts,
    fold,
    fragment,
    meter,
    scroll,
    table,
)
from luminal_lab.views.svg import Arrow, Box, Diagram, capped, draw, to_digraph
from luminal_lab.views.terms import terms

BUFFERS_DRAWN = 40  # programs with more calls are drawn without the temporaries in between
WEIGHTS_DRAWN = 6  # programs with more calls are drawn without their weights
_NAME = 34  # characters of a buffer's name
_SHOWN = 40  # kernels whose mathematics is written out


def to_html(candidate: Candidate) -> str:
    """The candidate as HTML: figures, graph, kernels, calls."""
    return fragment(card(f"Candidate {candidate.name}", *body(candidate)))


def body(candidate: Candidate) -> list[Html]:
    """The content of `to_html`."""
    graph = capped(diagram(candidate))
    return [
        summary(candidate),
        scroll(draw(graph), label="kernels and buffers", tall=True),
        el("p", "Dashed boxes are buffers; rest the pointer on a kernel for its mathematics"
           + (f"; {graph.note}." if graph.note else "."), class_="muted"),
        kernel_table(candidate),
        fold("What each kernel computes", *mathematics(candidate)),
        fold(f"All {units.plural(len(candidate.calls), 'call')}", call_table(candidate)),
    ]  # fmt: skip


def summary(candidate: Candidate) -> Html:
    """A line of figures."""
    calls = [c for c in candidate.calls if not c.at_build]
    early = len(candidate.calls) - len(calls)
    derived = sum(isinstance(k, Kernel) for k in candidate.kernels)
    library = len(candidate.kernels) - derived
    known = bool(candidate.predicted) and math.isfinite(candidate.seconds)
    return facts(
        [
            units.counted(len(candidate.kernels),
                          f"kernel ({derived} derived, {library} library)",
                          f"kernels ({derived} derived, {library} library)"),
            units.counted(len(calls), "call"),
            *([units.counted(early, "call at build time", "calls at build time")]
              if early else []),
            (units.size(candidate.temporaries), "of temporaries"),
            (units.seconds(candidate.seconds) if known else None, "predicted"),
            (candidate.target, "target"),
        ]
    )  # fmt: skip


def to_svg(candidate: Candidate) -> str:
    """The kernel graph as a standalone SVG file."""
    return draw(diagram(candidate), standalone=True)


def to_dot(candidate: Candidate) -> graphviz.Digraph:
    """The kernel graph as DOT."""
    return to_digraph(diagram(candidate))


# ---------------------------------------------------------------------------------- graph


@dataclass(frozen=True)
class _Shown:
    """A call that is drawn, and how many equal ones it stands for."""

    call: Call
    position: int
    times: int


def diagram(candidate: Candidate) -> Diagram:
    """Calls and buffers; equal layers are drawn once."""
    shown, twins = _folded(candidate)
    with_temporaries = len(shown) <= BUFFERS_DRAWN
    with_weights = len(shown) <= WEIGHTS_DRAWN
    boxes: list[Box] = []
    arrows: dict[tuple[str, str], Arrow] = {}
    maker: dict[str, str] = {}
    drawn: set[str] = set()

    def buffer_box(name: str, region: str) -> str:
        key = f"b{name}"
        if name not in drawn:
            drawn.add(name)
            boxes.append(_buffer_box(candidate, name, region))
        return key

    for s in shown:
        kernel = candidate.kernels[s.call.kernel]
        key = f"c{s.position}"
        bound = [s.call.bind[b] for b in _reads(kernel)]
        reads = [twins.get(name, name) for name in bound]
        for name in dict.fromkeys(reads):
            if name in maker:
                _arrow(arrows, maker[name], key, _describe(candidate, name))
            elif candidate.kinds[name] == "arg" or with_temporaries:
                if candidate.kinds[name] in ("weight", "constant") and not with_weights:
                    continue
                box = buffer_box(name, s.call.region)
                _arrow(arrows, box, key, _describe(candidate, name))
        boxes.append(_call_box(candidate, s))
        for name in dict.fromkeys(s.call.bind[b] for b in _writes(kernel)):
            if candidate.kinds[name] == "output" or with_temporaries:
                box = buffer_box(name, s.call.region)
                _arrow(arrows, key, box, _describe(candidate, name))
                maker[name] = f"b{name}"
            else:
                maker[name] = key
    for name, twin in twins.items():  # the last copy may make an output
        if candidate.kinds[name] == "output" and twin in maker:
            where = next((s.call.region for s in shown if twin in s.call.bind.values()), "")
            _arrow(arrows, maker[twin], buffer_box(name, where), _describe(candidate, name))
    notes = []
    if twins:
        notes.append("a kernel with ×n stands for n equal layers, each fed by the one before")
    if not with_weights:
        notes.append("weights are not drawn")
    note = "; ".join(notes)
    return Diagram(f"Kernels of candidate {candidate.name}", tuple(boxes),
                   tuple(arrows.values()), note)  # fmt: skip


def _folded(candidate: Candidate) -> tuple[list[_Shown], dict[str, str]]:
    """Calls at run time, equal layers once; and for each buffer of the others, its twin."""
    runs: list[tuple[str, list[tuple[int, Call]]]] = []
    for position, call in enumerate(candidate.calls):
        if call.at_build:
            continue
        if not runs or runs[-1][0] != call.region or not call.region:
            runs.append((call.region, []))
        runs[-1][1].append((position, call))
    first: dict[tuple[int, ...], int] = {}
    times: dict[int, int] = {}
    twins: dict[str, str] = {}
    for k, (region, calls) in enumerate(runs):
        shape = tuple(c.kernel for _, c in calls)
        if region and shape in first:
            original = first[shape]
            times[original] += 1
            for (_, mine), (_, theirs) in zip(calls, runs[original][1]):
                for own in _writes(candidate.kernels[mine.kernel]):
                    twins[mine.bind[own]] = theirs.bind[own]
        else:
            first.setdefault(shape, k)
            times[k] = 1
    return [_Shown(c, p, times[k]) for k in times for p, c in runs[k][1]], twins


def _arrow(arrows: dict[tuple[str, str], Arrow], tail: str, head: str, title: str) -> None:
    arrows.setdefault((tail, head), Arrow(tail, head, title))


def _call_box(candidate: Candidate, shown: _Shown) -> Box:
    call = shown.call
    kernel = candidate.kernels[call.kernel]
    times = f" ×{shown.times}" if shown.times > 1 else ""
    time = units.seconds(candidate.predicted[call.kernel]) if candidate.predicted else ""
    many = len({c.region for c in candidate.calls}) > 1
    return Box(
        f"c{shown.position}",
        f"k{call.kernel} {describe(kernel)}{times}",
        ", ".join(t for t in (time, call.region if many else "") if t),
        f"kernel {call.kernel}{times}\n{mathematics_of(kernel, call.bind)}",
        "accent" if isinstance(kernel, Kernel) else "warn",
    )


def _buffer_box(candidate: Candidate, name: str, region: str) -> Box:
    buffer = candidate.buffers[name]
    kind = f"{buffer.dtype} {units.shape(buffer.shape)}"
    return Box(f"b{name}", short(name, region), kind, _describe(candidate, name), "buffer")


def _describe(candidate: Candidate, name: str) -> str:
    buffer: Buffer = candidate.buffers[name]
    return (
        f"{candidate.kinds[name]} {name}\n{buffer.dtype} {units.shape(buffer.shape)}, "
        f"{units.size(hint(buffer.nbytes))}"
    )


def _reads(kernel: Kernel | LibraryKernel) -> Sequence[str]:
    return kernel.reads() if isinstance(kernel, Kernel) else kernel.reads


def _writes(kernel: Kernel | LibraryKernel) -> Sequence[str]:
    return kernel.writes() if isinstance(kernel, Kernel) else kernel.writes


# ------------------------------------------------------------------------------ the kernels


def describe(kernel: Kernel | LibraryKernel) -> str:
    """A kernel in a word or two: `Σ 64, online 1024` or the routine's name."""
    if isinstance(kernel, LibraryKernel):
        return str(kernel.attrs.get("target", kernel.routine))
    loops: dict[str, None] = {}
    stack = list(kernel.values())
    seen: set = set()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        stack.extend(reversed(value.args))
        if value.op == "online":
            loops.setdefault(f"online {kernel.extents.get(value.attrs[0], '?')}")
        elif value.op in ("red", "carry"):
            sign = "Σ" if value.attrs[0] == "add" else value.attrs[0]
            loops.setdefault(f"{sign} {kernel.extents.get(value.attrs[1], '?')}")
    names = list(loops)
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "") or "pointwise"


def mathematics_of(
    kernel: Kernel | LibraryKernel, bind: Mapping[str, str] | None = None
) -> str:
    """What a kernel stores, as text.

    Arguments:
        kernel: The kernel.
        bind: What its buffers are called in the program; its own names when None.
    """
    names = bind or {}

    def called(buffer: str) -> str:
        return names.get(buffer, buffer)

    if isinstance(kernel, LibraryKernel):
        attrs = ", ".join(f"{k}={v}" for k, v in kernel.attrs.items())
        call = f"{kernel.routine}({', '.join(map(called, kernel.reads))})"
        return f"{', '.join(map(called, kernel.writes))} = {call}  {attrs}"
    found = terms(_renamed(kernel.values(), names))
    lines = []
    rights = iter(found.results)
    for out in kernel.outputs:
        right = next(rights)
        where = ",".join(map(str, out.index))
        for k, place in zip(range(len(out.values) - 1), rights):
            where = where.replace(f"@{k}", place)
        sign = "+=" if out.scatter is not None and out.scatter.mode == "add" else "="
        lines.append(f"{called(out.buffer)}[{where}] {sign} {right}" if where else
                     f"{called(out.buffer)} {sign} {right}")  # fmt: skip
    lines += [f"  where {n} = {t}" if not k else f"        {n} = {t}"
              for k, (n, t) in enumerate(found.lets)]  # fmt: skip
    return "\n".join(lines)


def _renamed(roots: Sequence[Value], names: Mapping[str, str]) -> list[Value]:
    """Values whose loads read the buffers by their names in the program."""
    done: dict[Value, Value] = {}
    for value in postorder(roots):
        attrs = value.attrs
        if value.op == "load":
            attrs = (names.get(attrs[0], attrs[0]), *attrs[1:])
        args = tuple(done[a] for a in value.args)
        done[value] = Value(value.op, args, attrs, dtype=value.dtype)
    return [done[r] for r in roots]


def short(name: str, region: str = "") -> str:
    """A buffer's name within its layer, cut at the front when it is long."""
    name = name.removeprefix(f"{region}.")
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def costliest(found: Candidate) -> int:
    """The kernel that takes the most time in a run, by prediction."""
    spent = [0.0] * len(found.kernels)
    for call in found.calls:
        if not call.at_build and found.predicted:
            spent[call.kernel] += found.predicted[call.kernel]
    return max(range(len(spent)), key=spent.__getitem__)


def first_bind(candidate: Candidate, kernel: int) -> Mapping[str, str]:
    """What the buffers of a kernel are called in its first call, without the layer's path."""
    for call in candidate.calls:
        if call.kernel == kernel:
            return {own: short(name, call.region) for own, name in call.bind.items()}
    return {}


def used_in(candidate: Candidate, kernel: int) -> str:
    """The copies of a region that call a kernel: `layers.0 … layers.11 ×12`."""
    return span(c.region for c in candidate.calls if c.kernel == kernel)


def mathematics(candidate: Candidate) -> list[Html]:
    """Each kernel's formula and the rules behind it."""
    out = []
    for k, kernel in enumerate(candidate.kernels[:_SHOWN]):
        out.append(el("h4", f"k{k} {describe(kernel)}"))
        bind = first_bind(candidate, k)
        out.append(el("div", mathematics_of(kernel, bind), class_="term"))
        if isinstance(kernel, Kernel):
            sizes = ", ".join(f"{a}<{n}" for a, n in kernel.extents.items())
            rules = ", ".join(kernel.rules) or "none"
            where = used_in(candidate, k)
            told = f"axes {sizes}; rules {rules}{f'; in {where}' if where else ''}"
            out.append(el("p", told, class_="muted"))
    if len(candidate.kernels) > _SHOWN:
        out.append(el("p", f"showing {_SHOWN} of {len(candidate.kernels)} kernels"))
    return out


def kernel_table(candidate: Candidate) -> Html:
    """One row per kernel: what it does, what it moves, what it is predicted to take."""
    frame = candidate.table()
    total = sum(frame["total_us"].tolist()) if candidate.predicted else 0.0
    rows = []
    for row, kernel in zip(frame.to_dict("records"), candidate.kernels):
        each, whole = row["predicted_us"] / 1e6, row["total_us"] / 1e6
        built = f" + {row['at_build']} at build" if row["at_build"] else ""
        rows.append(
            [
                f"k{row['kernel']}",
                el("div", describe(kernel), el("br"),
                   el("span", row["computes"].replace("->", "→"), class_="muted"),
                   style="min-width:26ch"),
                row["region"],
                f"{row['calls']:,}{built}",
                units.size(row["reads_mb"] * 1e6),
                units.size(row["writes_mb"] * 1e6),
                units.seconds(each) if candidate.predicted else None,
                el("span", units.seconds(whole), meter(row["total_us"] / total))
                if total > 0 else None,
                f"{row['hlir_nodes']:,}",
                el("div", row["rules"], style="min-width:14ch"),
            ]
        )  # fmt: skip
    head = [("", "code"), "kernel", ("region", "code"), ("calls", "num"), ("reads", "num"),
            ("writes", "num"), ("predicted, each", "num"), ("predicted, all calls", "num"),
            ("HLIR nodes", "num"), "rules"]  # fmt: skip
    return table(head, rows, label="kernels", all_at="candidate.table()")


def call_table(candidate: Candidate) -> Html:
    """Every call with its buffers."""
    rows = []
    for n, call in enumerate(candidate.calls):
        kernel = candidate.kernels[call.kernel]
        rows.append(
            [
                str(n),
                f"k{call.kernel} {describe(kernel)}",
                ", ".join(call.bind[b] for b in _reads(kernel)),
                ", ".join(call.bind[b] for b in _writes(kernel)),
                call.region,
                "build" if call.at_build else "call",
            ]
        )
    head = [("", "num"), "kernel", ("reads", "code"), ("writes", "code"), ("region", "code"),
            "when"]  # fmt: skip
    return table(head, rows, label="calls", all_at="candidate.calls")


# -------------------------------------------------------------------------------- differences


def difference(a: Candidate, b: Candidate) -> Figure:
    """Two candidates side by side: graphs, then kernels line by line."""
    found = a.diff(b)
    return Figure(difference_html(found), str(found))


def difference_html(found: CandidateDiff) -> Html:
    """Two candidates: graphs, what became of each kernel and value, formulas line by line."""
    a, b = found.left, found.right
    sides = []
    for one in (a, b):
        known = bool(one.predicted) and math.isfinite(one.seconds)
        sides.append(
            el(
                "div",
                el("h4", f"Candidate {one.name}"),
                facts([units.counted(len(one.kernels), "kernel"),
                       units.counted(len(one.calls), "call"),
                       (units.size(one.temporaries), "temporaries"),
                       (units.seconds(one.seconds) if known else None, "predicted")]),
                scroll(draw(diagram(one)), label=f"kernels of {one.name}", tall=True),
            )
        )  # fmt: skip
    lines = diff.side_by_side(_formulas(a), _formulas(b), a.name, b.name)
    kernels = [
        [r["candidate"], f"k{r['kernel']}", r["status"], r["with"], r["computes"]]
        for r in found.table().to_dict("records")
    ]
    head = [("candidate", "code"), ("", "code"), "status", ("with", "code"), "computes"]
    parts = [table(head, kernels, label="kernels of both", all_at=".table()")]
    values = [
        [f"%{r['node']}", r["op"], r["left"], r["right"]]
        for r in found.values().to_dict("records")
    ]
    if values:
        head = [("node", "code"), "op", a.name, b.name]
        parts.append(el("h4", "What is stored or computed differently"))
        parts.append(table(head, values, label="values", all_at=".values()"))
    return fragment(card("Two candidates", columns(*sides), *parts, lines))


def _formulas(candidate: Candidate) -> str:
    return "\n".join(
        f"k{k} {describe(kernel)}\n  {mathematics_of(kernel, first_bind(candidate, k))}"
        for k, kernel in enumerate(candidate.kernels)
    )
