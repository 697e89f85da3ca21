"""From the kernels of each region to one program: buffers, calls, and who shares what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Origin, ScatterTo, Value
from luminal_lab.errors import SearchError
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.view import out_axis
from luminal_lab.search.candidate import BufferKind, Call, Candidate, LibraryKernel
from luminal_lab.search.cost import kernel_cost
from luminal_lab.search.extract import Body, Extraction, Space
from luminal_lab.search.kernel_text import AnyKernel, canonical, kernel_text
from luminal_lab.search.layouts import Layouts, image_layouts
from luminal_lab.search.machine import Machine

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, ENode
    from luminal_lab.hlir.dtypes import DType
    from luminal_lab.hlir.graph import OutputSpec


@dataclass(frozen=True)
class Step:
    """One kernel of a region, with the T-classes that its buffers are.

    Arguments:
        kernel: In canonical form.
        text: Its canonical text.
        tensors: The T-class of each canonical buffer name.
        writes: The T-classes that it makes.
        constant: Whether it reads nothing but constants.
        seconds: Predicted for one call.
        body: What it was made from; None for several custom results made by one call.
    """

    kernel: AnyKernel
    text: str
    tensors: Mapping[str, int]
    writes: tuple[int, ...]
    constant: bool
    seconds: float
    body: Body | None = None


class RegionKernels:
    """Makes the kernels of one region; each distinct body is built once.

    Arguments:
        space: The region's choices.
        machine: For predictions.
        variable: Names of region inputs that are not constant in every instance.
        layouts: Strides of the T-classes that do not lie row-major.
    """

    def __init__(
        self,
        space: Space,
        machine: Machine,
        variable: frozenset[str] = frozenset(),
        layouts: Layouts | None = None,
    ):
        self.space, self.part, self.machine = space, space.part, machine
        self.layouts = layouts or {}
        self.constant_inputs = frozenset(
            t
            for t, name in enumerate(space.inputs)
            if name is not None and self._is_constant(name, variable)
        )
        self._local: dict[tuple, AnyKernel] = {}
        self._steps: dict[tuple, Step] = {}
        self._seconds: dict[tuple, float] = {}
        self._values: dict[tuple, Value] = {}  # by e-node and arguments: bodies share terms
        self._nodes_of: dict[int, list[int]] = {}
        for node, t in sorted(self.part.node_class.items()):
            self._nodes_of.setdefault(t, []).append(node)

    def _is_constant(self, name: str, variable: frozenset[str]) -> bool:
        kinds = {spec.name: spec.kind for spec in self.part.hlir.inputs}
        return kinds.get(name, "arg") != "arg" and name not in variable

    def name(self, t: int) -> str:
        """What a T-class is called within the region."""
        return self.space.inputs[t] or f"t{t}"

    def buffer(self, t: int, constant: bool) -> Buffer:
        """The buffer of a T-class."""
        cls = self.part.classes[t]
        return Buffer(self.name(t), cls.shape, cls.dtype, self.layouts.get(t), constant)

    def constants(self, extraction: Extraction) -> frozenset[int]:
        """The T-classes that depend on constants alone, as this extraction makes them.

        What depends on the sizes of a call is not constant.
        """
        out = set(self.constant_inputs)
        for body in extraction.bodies:
            op = self.part.classes[body.tensor].nodes[body.producer].op
            if op != "custom" and all(r in out for r in body.reads):
                if not (self.part.hlir.symbols and self.kernel(body, frozenset()).symbols):
                    out.add(body.tensor)
        return frozenset(out)

    def kernel(self, body: Body, constants: frozenset[int]) -> AnyKernel:
        """The kernel of one body, with the region's own names."""
        key = (body, tuple(r in constants for r in body.reads))
        if key not in self._local:
            made = self.part.classes[body.tensor].nodes[body.producer]
            derived = made.op in ("kernel", "scatter")
            build = self._derived if derived else self._library
            self._local[key] = build(body, made, constants)
        return self._local[key]

    def seconds(self, body: Body, constants: frozenset[int]) -> float:
        """Predicted seconds of the kernel of one body."""
        key = (body, tuple(r in constants for r in body.reads))
        if key not in self._seconds:
            kernel = self.kernel(body, constants)
            self._seconds[key] = kernel_cost(kernel, self.machine).seconds
        return self._seconds[key]

    def _value(self, c: int, k: int, args: tuple[Value, ...]) -> Value:
        key = (c, k, args)
        if key not in self._values:
            cls = self.part.classes[c]
            e = cls.nodes[k]
            attrs = (self.name(e.children[0]), *e.attrs) if e.op == "load" else e.attrs
            self._values[key] = Value(e.op, args, attrs, dtype=cls.dtype)
        return self._values[key]

    def _derived(self, body: Body, made: ENode, constants: frozenset[int]) -> Kernel:
        classes = self.part.classes
        values: dict[int, Value] = {}
        nodes: dict[int, None] = dict.fromkeys(self._nodes_of.get(body.tensor, ()))
        rules = {made.rule}
        for c, k in body.picks:
            e = classes[c].nodes[k]
            rules.add(e.rule)
            stored = e.op == "load" and self.space.inputs[e.children[0]] is None
            if not stored:
                for t, _ in self.space.reads[c]:
                    nodes.update(dict.fromkeys(self._nodes_of.get(t, ())))
            args = tuple(values[child] for child in self.space.kids[c][k])
            values[c] = self._value(c, k, args)
        out = self._output(body.tensor, made, values)
        buffers = {self.name(r): self.buffer(r, r in constants) for r in body.reads}
        buffers[out.buffer] = self.buffer(body.tensor, False)
        return Kernel(
            (out,),
            buffers,
            self.part.extents,
            tuple(sorted(nodes)),
            tuple(sorted(rules - {"encode"})),
            origin=Origin(self.part.region, body.tensor, body.producer, body.picks),
        )

    def _output(self, t: int, made: ENode, values: Mapping[int, Value]) -> KernelOutput:
        """What a derived kernel stores."""
        if made.op == "kernel":
            return KernelOutput(self.name(t), made.attrs[0], values[made.children[0]])
        mode, points, index = made.attrs
        into, value, *at = made.children
        axes = tuple(a for i in points for a in sorted(i.axes))
        to = ScatterTo(self.name(into), mode, axes, tuple(values[v] for v in at))
        return KernelOutput(self.name(t), index, values[value], to)

    def _library(self, body: Body, made: ENode, constants: frozenset[int]) -> LibraryKernel:
        buffers = {self.name(r): self.buffer(r, r in constants) for r in body.reads}
        buffers[self.name(body.tensor)] = self.buffer(body.tensor, False)
        nodes = tuple(self._nodes_of.get(body.tensor, ()))
        return LibraryKernel(
            made.op,
            tuple(self.name(t) for t in made.children),
            (self.name(body.tensor),),
            buffers,
            self._attributes(made),
            nodes,
            () if made.rule == "encode" else (made.rule,),
        )

    def _attributes(self, made: ENode) -> dict[str, object]:
        if made.op in ("gemm", "library"):
            form = made.attrs[0]
            return {f.name: getattr(form, f.name) for f in fields(form)}
        node = self.part.hlir.nodes[made.attrs[0]]
        attrs = {k: node.attrs[k] for k in ("target", "template", "result")}
        return {**attrs, "call": node.attrs.get("call")}

    def steps(self, extraction: Extraction) -> list[Step]:
        """The kernels of an extraction in order.

        Results of one custom call are one step, and so are scatters that may be made together.
        """
        constants = self.constants(extraction)
        out: list[Step] = []
        calls: dict[object, int] = {}
        for body in extraction.bodies:
            step = self._step(body, constants)
            if isinstance(step.kernel, LibraryKernel) and step.kernel.routine == "custom":
                call = (step.kernel.attrs.get("call"), body.reads)
                if call in calls and call[0] is not None:
                    out[calls[call]] = self._merged(out[calls[call]], step)
                    continue
                calls[call] = len(out)
            out.append(step)
        return [self._without_call(s) for s in self._together(out, constants)]

    def _together(self, steps: list[Step], constants: frozenset[int]) -> list[Step]:
        """Steps that rules put beside each other as one, where nothing is in the way."""
        out: list[Step] = []
        for step in steps:
            beside = {b for t in step.writes for b in self.part.classes[t].beside}
            single = (k for k, s in enumerate(out) if s.body and beside.issuperset(s.writes))
            at = next(single, None)
            # What is made since then must not be what this one reads.
            since = {t for s in out[at or 0 :] for t in s.writes}
            if at is None or step.body is None or since & set(step.tensors.values()):
                out.append(step)
            else:
                out[at] = self._joint(out[at], step, constants)
        return out

    def _joint(self, a: Step, b: Step, constants: frozenset[int]) -> Step:
        """Two derived kernels as one with the outputs of both."""
        bodies = [s.body for s in (a, b) if s.body is not None]
        one, other = (self.kernel(body, constants) for body in bodies)
        assert isinstance(one, Kernel)
        assert isinstance(other, Kernel)
        both = Kernel(
            (*one.outputs, *other.outputs),
            {**one.buffers, **other.buffers},
            one.extents,
            tuple(sorted({*one.nodes, *other.nodes})),
            tuple(sorted({*one.rules, *other.rules})),
        )
        kernel, text, back = canonical(both)
        tensors = {self.name(t): t for body in bodies for t in (*body.reads, body.tensor)}
        return Step(
            kernel,
            text,
            {new: tensors[old] for new, old in back.items()},
            (*a.writes, *b.writes),
            a.constant and b.constant,
            kernel_cost(kernel, self.machine).seconds,
        )

    def _step(self, body: Body, constants: frozenset[int]) -> Step:
        key = (body, tuple(r in constants for r in body.reads))
        if key not in self._steps:
            kernel, text, back = canonical(self.kernel(body, constants))
            tensors = {self.name(t): t for t in (*body.reads, body.tensor)}
            self._steps[key] = Step(
                kernel,
                text,
                {new: tensors[old] for new, old in back.items()},
                (body.tensor,),
                body.tensor in constants,
                self.seconds(body, constants),
                body,
            )
        return self._steps[key]

    def _merged(self, a: Step, b: Step) -> Step:
        """Two results of one custom call, made by one call."""
        one, other = a.kernel, b.kernel
        assert isinstance(one, LibraryKernel)
        assert isinstance(other, LibraryKernel)
        name = f"b{len(one.buffers)}"
        results = _results(one) + _results(other)
        kernel = replace(
            one,
            writes=(*one.writes, name),
            buffers={**one.buffers, name: replace(other.buffers[other.writes[0]], name=name)},
            attrs={**one.attrs, "result": results},
            nodes=tuple(sorted({*one.nodes, *other.nodes})),
        )
        tensors = {**a.tensors, name: b.writes[0]}
        seconds = max(a.seconds, b.seconds)
        return Step(kernel, "", tensors, (*a.writes, *b.writes), False, seconds)

    def _without_call(self, step: Step) -> Step:
        kernel = step.kernel
        if not isinstance(kernel, LibraryKernel) or kernel.routine != "custom":
            return step
        attrs = {k: v for k, v in kernel.attrs.items() if k != "call"}
        results = _results(kernel)
        attrs["result"] = results if len(results) > 1 else next(iter(results))
        kernel, text, _ = canonical(replace(kernel, attrs=attrs))
        return replace(step, kernel=kernel, text=text)


def _results(kernel: LibraryKernel) -> tuple[int | None, ...]:
    """Which results of its call a custom kernel writes, one for each buffer."""
    result = kernel.attrs.get("result")
    return result if isinstance(result, tuple) else (result,)


class Assembler:
    """Makes whole programs of an EGraph.

    Arguments:
        egraph: What was saturated.
        machine: For predictions.
        images: Whether tensors that are read through windows lie with their planes outermost.
    """

    def __init__(self, egraph: EGraph, machine: Machine, images: bool = True):
        self.egraph, self.machine = egraph, machine
        layouts = image_layouts(egraph) if images else ({},) * len(egraph.parts)
        self.images = any(layouts)
        self.program = egraph.program
        mutated = {o.mutates for o in self.program.hlir.outputs if o.mutates}
        self.kinds_of_inputs = {
            s.name: "arg" if s.name in mutated else s.kind for s in self.program.hlir.inputs
        }
        self.regions = tuple(
            RegionKernels(Space(part, frozenset(rows)), machine, self._variable(r), rows)
            for r, (part, rows) in enumerate(zip(egraph.parts, layouts, strict=True))
        )
        self._buffers: dict[tuple, Buffer] = {}
        self._placed: dict[tuple[str, str], AnyKernel] = {}

    def buffer(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        constant: bool,
        strides: tuple[int, ...] | None = None,
    ) -> Buffer:
        """A program's buffer; candidates share them."""
        key = (name, shape, dtype.name, constant, strides)
        made = self._buffers.get(key)
        if made is None:
            made = self._buffers[key] = Buffer(name, shape, dtype, strides, constant)
        return made

    def placed(self, kernel: AnyKernel, text: str, inst: Any) -> AnyKernel:
        """A region's kernel, covering the program's nodes; candidates share them."""
        key = (text, inst.name)
        made = self._placed.get(key)
        if made is None:
            nodes = tuple(sorted({inst.nodes[n] for n in kernel.nodes}))
            made = self._placed[key] = replace(kernel, nodes=nodes)
        return made

    def _variable(self, region: int) -> frozenset[str]:
        """Weights of a region that some instance binds to something that is not constant."""
        return frozenset(
            name
            for inst in self.program.instances
            if inst.region == region
            for name, value in inst.bind.items()
            if self.kinds_of_inputs.get(value, "arg") == "arg"
        )

    @cached_property
    def instances_of(self) -> tuple[int, ...]:
        """How often each region is called."""
        counts = [0] * len(self.regions)
        for inst in self.program.instances:
            counts[inst.region] += 1
        return tuple(counts)

    def texts(self, candidate: Candidate) -> list[str]:
        """The canonical texts of a candidate's kernels."""
        return [kernel_text(k) for k in candidate.kernels]

    def candidate(self, extractions: Sequence[Extraction]) -> Candidate:
        """The program that runs one extraction per region, once per instance of it."""
        return _Program(self, extractions).build()


class _Program:
    def __init__(self, assembler: Assembler, extractions: Sequence[Extraction]):
        self.assembler, self.extractions = assembler, extractions
        self.program = assembler.program
        self.hlir = assembler.program.hlir
        self.buffers: dict[str, Buffer] = {}
        self.kinds: dict[str, BufferKind] = {}
        self.alias: dict[str, str] = {}  # program value -> buffer
        self.kernels: dict[str, AnyKernel] = {}  # by canonical text
        self.numbers: dict[str, int] = {}
        self.predicted: list[float] = []
        self.calls: list[Call] = []
        self.outputs = {o.name: o for o in self.hlir.outputs}

    def build(self) -> Candidate:
        """Flatten all instances into calls over program buffers."""
        for spec in self.hlir.inputs:
            node = self.hlir.nodes[spec.node]
            constant = self.assembler.kinds_of_inputs[spec.name] != "arg"
            self.buffers[spec.name] = self.assembler.buffer(
                spec.name, node.shape, node.dtype, constant
            )
            self.kinds[spec.name] = spec.kind
            self.alias[spec.name] = spec.name
        steps = [
            r.steps(e) for r, e in zip(self.assembler.regions, self.extractions, strict=True)
        ]
        for k, inst in enumerate(self.program.instances):
            self._instance(k, inst, steps[inst.region])
        for name, spec in self.outputs.items():
            if name not in self.buffers and spec.aliases is None:
                self._output_of_input(name, spec)
        return Candidate(
            hlir=self.hlir,
            kernels=tuple(self.kernels.values()),
            calls=tuple(self.calls),
            buffers=self.buffers,
            kinds=self.kinds,
            schedules=(None,) * len(self.kernels),
            choice=tuple(
                (r, *region.space.genes(e))
                for r, (region, e) in enumerate(zip(self.assembler.regions, self.extractions))
            ),
            predicted=tuple(self.predicted),
            target=self.assembler.egraph.target,
        )

    def _instance(self, k: int, inst: Any, steps: Iterable[Step]) -> None:
        region = self.assembler.regions[inst.region]
        part = region.part
        local: dict[int, str] = {}
        for t, name in enumerate(region.space.inputs):
            if name is not None and name in inst.bind:
                local[t] = self._buffer_of(inst.bind[name])
        values: dict[int, list[str]] = {}
        for name, t in part.outputs:
            if name in inst.bind:
                values.setdefault(t, []).append(inst.bind[name])
        for step in steps:
            for t in step.writes:
                names = values.get(t, [])
                final = [n for n in names if n in self.outputs]
                local[t] = final[0] if final else names[0] if names else f"{k}.t{t}"
            bind = {new: local[t] for new, t in step.tensors.items()}
            reads = [n for n, t in bind.items() if step.tensors[n] not in step.writes]
            constant = (
                all(self.buffers[bind[n]].constant for n in reads)
                and not any(local[t] in self.outputs for t in step.writes)
                and not _is_custom(step.kernel)
                and not step.kernel.symbols
            )
            for t in step.writes:
                cls, name = part.classes[t], local[t]
                strides = region.layouts.get(t)
                self.buffers[name] = self.assembler.buffer(
                    name, cls.shape, cls.dtype, constant, strides
                )
                self.kinds[name] = "output" if name in self.outputs else "temp"
            self._call(step.kernel, step.text, bind, inst, constant, step.seconds)
        for t, names in values.items():
            for name in names:
                self.alias[name] = local[t]
                if name in self.outputs and name != local[t]:
                    self._copy(local[t], name, inst)
                    self.alias[name] = name

    def _buffer_of(self, value: str) -> str:
        try:
            return self.alias[value]
        except KeyError:
            raise SearchError(
                f"the value {value!r} is read before any region makes it",
                fix="report it: the partition into regions is wrong",
            ) from None

    def _call(
        self,
        kernel: AnyKernel,
        text: str,
        bind: Mapping[str, str],
        inst: Any,
        constant: bool,
        seconds: float,
    ) -> None:
        if text not in self.kernels:
            if inst is not None:
                kernel = self.assembler.placed(kernel, text, inst)
            self.numbers[text] = len(self.kernels)
            self.predicted.append(seconds)
            self.kernels[text] = kernel
        self.calls.append(
            Call(self.numbers[text], bind, inst.name if inst is not None else "", constant)
        )

    def _copy(self, source: str, name: str, inst: Any) -> None:
        """Store a value under the name of a second program output."""
        src = self.buffers[source]
        axes = tuple(Index.axis(out_axis(d)) for d in range(len(src.shape)))
        load = Value("load", (), ("src", axes), dtype=src.dtype)
        buffers = {"src": replace(src, name="src"), "dst": replace(src, name="dst")}
        extents = {out_axis(d): n for d, n in enumerate(src.shape)}
        kernel, text, back = canonical(
            Kernel((KernelOutput("dst", axes, load),), buffers, extents)
        )
        self.buffers[name] = replace(src, name=name, constant=False, strides=None)
        self.kinds[name] = "output"
        where = {"src": source, "dst": name}
        seconds = kernel_cost(kernel, self.assembler.machine).seconds
        bind = {new: where[old] for new, old in back.items()}
        self._call(kernel, text, bind, None, False, seconds)

    def _output_of_input(self, name: str, spec: OutputSpec) -> None:
        source = next((s.name for s in self.hlir.inputs if s.node == spec.value.node), None)
        if source is None or not spec.value.view.is_identity:
            raise SearchError(
                f"no region makes the program output {name!r}",
                fix="report it: the partition into regions lost an output",
            )
        self._copy(source, name, None)


def _is_custom(kernel: AnyKernel) -> bool:
    return isinstance(kernel, LibraryKernel) and kernel.routine == "custom"
