"""From the kernels of each region to one program: buffers, calls, and who shares what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Origin, ScatterTo, Value
from luminal_lab.errors import SearchError
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.sizes import hint
from luminal_lab.hlir.view import out_axis
from luminal_lab.search.candidate import BufferKind, Call, Candidate, LibraryKernel
from luminal_lab.search.canonical import Canonical, canonical
from luminal_lab.search.cost import CostModel, kernel_cost
from luminal_lab.search.cost_terms import Term
from luminal_lab.search.extract import Body, Extraction, Space
from luminal_lab.search.kernel_text import AnyKernel, kernel_text
from luminal_lab.search.layouts import Layouts, image_layouts
from luminal_lab.search.machine import Machine

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, ENode
    from luminal_lab.hlir.dtypes import DType
    from luminal_lab.hlir.graph import OutputSpec


@dataclass(frozen=True, eq=False)
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


class _Made:
    """What is known about a body, with some of its operands constant.

    Attributes:
        kernel: With the region's own names.
        order: The terms of its values, arguments first; empty for a library kernel.
        seconds: Predicted for one call; negative when nobody asked yet.
        step: None when nobody asked yet.
    """

    __slots__ = ("kernel", "order", "seconds", "step")

    def __init__(self, kernel: AnyKernel, order: tuple[Term, ...] = ()):
        self.kernel, self.order, self.seconds = kernel, order, -1.0
        self.step: Step | None = None


class _Pick:
    """What an e-node of a V-class brings into a kernel."""

    __slots__ = ("attrs", "dtype", "kids", "nodes", "op", "rule")

    def __init__(
        self, op: str, attrs: tuple, dtype: DType, kids: tuple, rule: str, nodes: tuple
    ):
        self.op, self.attrs, self.dtype = op, attrs, dtype
        self.kids, self.rule, self.nodes = kids, rule, nodes


class RegionKernels:
    """Makes the kernels of one region; each distinct body is built once.

    Arguments:
        space: The region's choices.
        machine: For predictions.
        variable: Names of region inputs that are not constant in every instance.
        layouts: Strides of the T-classes that do not lie row-major.
        weights: Bytes of all weights of the program.
    """

    def __init__(
        self,
        space: Space,
        machine: Machine,
        variable: frozenset[str] = frozenset(),
        layouts: Layouts | None = None,
        weights: int = 0,
    ):
        self.space, self.part, self.machine = space, space.part, machine
        self.layouts = layouts or {}
        self.constant_inputs = frozenset(
            t
            for t, name in enumerate(space.inputs)
            if name is not None and self._is_constant(name, variable)
        )
        self.sized = bool(self.part.hlir.symbols)
        self.built = 0  # kernels: each distinct body makes one
        self._made: dict[tuple, _Made] = {}
        self._picks: dict[tuple[int, int], _Pick] = {}
        self._terms: dict[tuple, Term] = {}  # by e-node and arguments: bodies share terms
        self._costs = CostModel(machine, self.part.extents, self.sized, weights)
        self._canonical = Canonical()
        self._any_beside = any(cls.beside for cls in self.part.classes)
        self._combined: dict[tuple, tuple[Step, tuple[Step, ...]]] = {}
        self._buffers: dict[tuple[int, bool], Buffer] = {}
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
        found = self._buffers.get((t, constant))
        if found is None:
            cls = self.part.classes[t]
            found = Buffer(self.name(t), cls.shape, cls.dtype, self.layouts.get(t), constant)
            self._buffers[t, constant] = found
        return found

    def constants(self, extraction: Extraction) -> frozenset[int]:
        """The T-classes that depend on constants alone, as this extraction makes them.

        What depends on the sizes of a call is not constant.
        """
        found = extraction.memo.get("constants")
        if found is None:
            found = extraction.memo["constants"] = self._constants(extraction)
        return found

    def _constants(self, extraction: Extraction) -> frozenset[int]:
        out = set(self.constant_inputs)
        for body in extraction.bodies:
            reads = body.reads
            if (reads and reads[0] not in out) or not out.issuperset(reads):
                continue
            op = self.part.classes[body.tensor].nodes[body.producer].op
            if op != "custom" and not (self.sized and self.kernel(body, frozenset()).symbols):
                out.add(body.tensor)
        return frozenset(out)

    def _of(self, body: Body, constants: frozenset[int]) -> _Made:
        key = (body, tuple([r in constants for r in body.reads]))
        found = self._made.get(key)
        if found is None:
            made = self.part.classes[body.tensor].nodes[body.producer]
            derived = made.op in ("kernel", "scatter")
            build = self._derived if derived else self._library
            found = self._made[key] = build(body, made, constants)
            self.built += 1
        return found

    def kernel(self, body: Body, constants: frozenset[int]) -> AnyKernel:
        """The kernel of one body, with the region's own names."""
        return self._of(body, constants).kernel

    def seconds(self, extraction: Extraction) -> list[float]:
        """Predicted seconds of one call of each kernel of an extraction."""
        return [self._priced(made) for made in self._all(extraction)]

    def _all(self, extraction: Extraction) -> list[_Made]:
        found = extraction.memo.get("kernels")
        if found is None:
            constants = self.constants(extraction)
            found = [self._of(body, constants) for body in extraction.bodies]
            extraction.memo["kernels"] = found
        return found

    def _priced(self, made: _Made) -> float:
        if made.seconds < 0:
            made.seconds = self._costs.cost(made.kernel, made.order).seconds
        return made.seconds

    def _pick(self, pick: tuple[int, int]) -> _Pick:
        c, k = pick
        cls = self.part.classes[c]
        e = cls.nodes[k]
        attrs = (self.name(e.children[0]), *e.attrs) if e.op == "load" else e.attrs
        nodes: tuple[int, ...] = ()
        if not (e.op == "load" and self.space.inputs[e.children[0]] is None):
            nodes = tuple(n for t, _ in self.space.reads[c] for n in self._nodes_of.get(t, ()))
        made = _Pick(e.op, attrs, cls.dtype, self.space.kids[c][k], e.rule, nodes)
        self._picks[pick] = made
        return made

    def _derived(self, body: Body, made: ENode, constants: frozenset[int]) -> _Made:
        terms: dict[int, Term] = {}
        nodes = set(self._nodes_of.get(body.tensor, ()))
        rules = {made.rule}
        buffers = {self.name(r): self.buffer(r, r in constants) for r in body.reads}
        picks, known = self._picks, self._terms
        for pick in body.picks:
            e = picks.get(pick) or self._pick(pick)
            rules.add(e.rule)
            if e.nodes:
                nodes.update(e.nodes)
            args = [terms[child] for child in e.kids]
            key = (pick, *args)
            term = known.get(key)
            if term is None:
                value = Value(e.op, tuple([a.value for a in args]), e.attrs, dtype=e.dtype)
                term = known[key] = self._costs.term(value, buffers)
            terms[pick[0]] = term
        out = self._output(body.tensor, made, {c: t.value for c, t in terms.items()})
        buffers[out.buffer] = self.buffer(body.tensor, False)
        kernel = Kernel(
            (out,),
            buffers,
            self.part.extents,
            tuple(sorted(nodes)),
            tuple(sorted(rules - {"encode"})),
            origin=Origin(self.part.region, body.tensor, body.producer, body.picks),
        )
        return _Made(kernel, tuple(dict.fromkeys(terms.values())))

    def _output(self, t: int, made: ENode, values: Mapping[int, Value]) -> KernelOutput:
        """What a derived kernel stores."""
        if made.op == "kernel":
            return KernelOutput(self.name(t), made.attrs[0], values[made.children[0]])
        mode, points, index = made.attrs
        into, value, *at = made.children
        axes = tuple(a for i in points for a in sorted(i.axes))
        to = ScatterTo(self.name(into), mode, axes, tuple(values[v] for v in at))
        return KernelOutput(self.name(t), index, values[value], to)

    def _library(self, body: Body, made: ENode, constants: frozenset[int]) -> _Made:
        buffers = {self.name(r): self.buffer(r, r in constants) for r in body.reads}
        buffers[self.name(body.tensor)] = self.buffer(body.tensor, False)
        nodes = tuple(self._nodes_of.get(body.tensor, ()))
        kernel = LibraryKernel(
            made.op,
            tuple(self.name(t) for t in made.children),
            (self.name(body.tensor),),
            buffers,
            self._attributes(made),
            nodes,
            () if made.rule == "encode" else (made.rule,),
        )
        return _Made(kernel)

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
        for body, made in zip(extraction.bodies, self._all(extraction)):
            step = made.step or self._step(made, body, constants)
            if isinstance(step.kernel, LibraryKernel) and step.kernel.routine == "custom":
                call = (step.kernel.attrs.get("call"), body.reads)
                if call in calls and call[0] is not None:
                    before = out[calls[call]]
                    merged = partial(self._merged, before, step)
                    out[calls[call]] = self._once(merged, "merged", before, step)
                    continue
                calls[call] = len(out)
            out.append(step)
        out = self._together(out, constants)
        return [
            self._once(partial(self._without_call, s), "plain", s)
            if _is_custom(s.kernel)
            else s
            for s in out
        ]

    def _together(self, steps: list[Step], constants: frozenset[int]) -> list[Step]:
        """Steps that rules put beside each other as one, where nothing is in the way."""
        if not self._any_beside:
            return steps
        out: list[Step] = []
        classes = self.part.classes
        for step in steps:
            beside = {b for t in step.writes for b in classes[t].beside}
            if not beside:
                out.append(step)
                continue
            single = (k for k, s in enumerate(out) if s.body and beside.issuperset(s.writes))
            at = next(single, None)
            # What is made since then must not be what this one reads.
            since = {t for s in out[at or 0 :] for t in s.writes}
            if at is None or step.body is None or since & set(step.tensors.values()):
                out.append(step)
            else:
                before = out[at]
                joint = partial(self._joint, before, step, constants)
                out[at] = self._once(joint, "joint", before, step)
        return out

    def _once(self, make: Callable[[], Step], kind: str, *parts: Step) -> Step:
        """A step that is made of others, unless it was made of them before."""
        key = (kind, *map(id, parts))
        if key not in self._combined:
            self._combined[key] = make(), parts  # the parts live on, so that the key is theirs
        return self._combined[key][0]

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

    def step(self, body: Body, constants: frozenset[int]) -> Step:
        """The step of one body: its kernel under canonical names, and what it costs."""
        made = self._of(body, constants)
        return made.step or self._step(made, body, constants)

    def _step(self, made: _Made, body: Body, constants: frozenset[int]) -> Step:
        kernel: AnyKernel
        if isinstance(made.kernel, Kernel):
            kernel, text, back = self._canonical.derived(made.kernel, made.order, self.sized)
        else:
            kernel, text, back = canonical(made.kernel)
        tensors = {self.name(t): t for t in (*body.reads, body.tensor)}
        made.step = Step(
            kernel,
            text,
            {new: tensors[old] for new, old in back.items()},
            (body.tensor,),
            body.tensor in constants,
            self._priced(made),
            body,
        )
        return made.step

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
        assert isinstance(kernel, LibraryKernel)
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
        weights = self._weights()
        self.regions = tuple(
            RegionKernels(
                Space(part, frozenset(rows)), machine, self._variable(r), rows, weights
            )
            for r, (part, rows) in enumerate(zip(egraph.parts, layouts, strict=True))
        )
        self._buffers: dict[tuple, Buffer] = {}
        self._placed: dict[tuple[str, str], AnyKernel] = {}
        self.uses: dict[tuple[Step, int], _Use] = {}  # by step and instance
        self._inputs: tuple[dict[str, Buffer], dict[str, BufferKind], dict[str, str]] | None = (
            None
        )

    def _weights(self) -> int:
        hlir = self.program.hlir
        nodes = [
            hlir.nodes[s.node] for s in hlir.inputs if self.kinds_of_inputs[s.name] != "arg"
        ]
        return sum(hint(math.prod(n.shape)) * n.dtype.bytes for n in nodes)

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
            if isinstance(kernel, Kernel):  # (replace() is slow)
                made = Kernel(
                    kernel.outputs, kernel.buffers, kernel.extents, nodes, kernel.rules,
                    kernel.schedule, kernel.origin,
                )  # fmt: skip
            else:
                made = replace(kernel, nodes=nodes)
            self._placed[key] = made
        return made

    def inputs(self) -> tuple[dict[str, Buffer], dict[str, BufferKind], dict[str, str]]:
        """Where a program begins: the buffers of its inputs, their kinds and their names."""
        if self._inputs is None:
            buffers: dict[str, Buffer] = {}
            kinds: dict[str, BufferKind] = {}
            hlir = self.program.hlir
            for spec in hlir.inputs:
                node = hlir.nodes[spec.node]
                constant = self.kinds_of_inputs[spec.name] != "arg"
                buffers[spec.name] = self.buffer(spec.name, node.shape, node.dtype, constant)
                kinds[spec.name] = spec.kind
            self._inputs = buffers, kinds, {name: name for name in buffers}
        buffers, kinds, names = self._inputs
        return dict(buffers), dict(kinds), dict(names)

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


class _Use:
    """How a step is called in one instance of its region: the same in all candidates.

    Attributes:
        bind: The program's buffer for each of the kernel's names.
        reads: The buffers that it reads, besides what it writes.
        writes: The T-classes that it makes, what they are called, and of which kind they are.
        may_be_constant: Whether it runs once when all that it reads is constant.
        buffers: Those that it writes, by whether they are constant, when they were asked for.
        calls: The calls, by the kernel's number and whether it runs once.
    """

    __slots__ = ("bind", "buffers", "calls", "may_be_constant", "reads", "writes")

    def __init__(
        self,
        bind: Mapping[str, str],
        reads: Sequence[str] = (),
        writes: Sequence[tuple[int, str, BufferKind]] = (),
        may_be_constant: bool = False,
    ):
        self.bind, self.reads, self.writes = bind, reads, writes
        self.may_be_constant = may_be_constant
        self.buffers: dict[bool, list[tuple[str, Buffer, BufferKind]]] = {}
        self.calls: dict[tuple[int, bool], Call] = {}


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
        self.buffers, self.kinds, self.alias = self.assembler.inputs()
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
        uses, buffers, kinds = self.assembler.uses, self.buffers, self.kinds
        for step in steps:
            use = uses.get((step, k))
            if use is None:
                use = uses[step, k] = self._use(step, k, values, local)
            constant = use.may_be_constant
            if constant:
                for name in use.reads:
                    if not buffers[name].constant:
                        constant = False
                        break
            for t, name, _ in use.writes:
                local[t] = name
            for name, buffer, kind in use.buffers.get(constant) or self._written(
                use, region, constant
            ):
                buffers[name] = buffer
                kinds[name] = kind
            self._call(step.kernel, step.text, use, inst, constant, step.seconds)
        for t, names in values.items():
            for name in names:
                self.alias[name] = local[t]
                if name in self.outputs and name != local[t]:
                    self._copy(local[t], name, inst)
                    self.alias[name] = name

    def _use(
        self, step: Step, k: int, values: Mapping[int, list[str]], local: Mapping[int, str]
    ) -> _Use:
        writes: list[tuple[int, str, BufferKind]] = []
        final = False
        for t in step.writes:
            names = values.get(t, [])
            outputs = [n for n in names if n in self.outputs]
            name = outputs[0] if outputs else names[0] if names else f"{k}.t{t}"
            final = final or bool(outputs)
            writes.append((t, name, "output" if outputs else "temp"))
        called = {t: name for t, name, _ in writes}
        bind = {n: called.get(t) or local[t] for n, t in step.tensors.items()}
        reads = [bind[n] for n, t in step.tensors.items() if t not in called]
        fixed = final or _is_custom(step.kernel)
        if not fixed and self.hlir.symbols:
            fixed = bool(step.kernel.symbols)
        return _Use(bind, reads, writes, not fixed)

    def _written(
        self, use: _Use, region: RegionKernels, constant: bool
    ) -> list[tuple[str, Buffer, BufferKind]]:
        made: list[tuple[str, Buffer, BufferKind]] = []
        for t, name, kind in use.writes:
            cls, strides = region.part.classes[t], region.layouts.get(t)
            buffer = self.assembler.buffer(name, cls.shape, cls.dtype, constant, strides)
            made.append((name, buffer, kind))
        use.buffers[constant] = made
        return made

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
        use: _Use,
        inst: Any,
        constant: bool,
        seconds: float,
    ) -> None:
        number = self.numbers.get(text)
        if number is None:
            if inst is not None:
                kernel = self.assembler.placed(kernel, text, inst)
            number = self.numbers[text] = len(self.kernels)
            self.predicted.append(seconds)
            self.kernels[text] = kernel
        call = use.calls.get((number, constant))
        if call is None:
            where = inst.name if inst is not None else ""
            call = use.calls[number, constant] = Call(number, use.bind, where, constant)
        self.calls.append(call)

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
        self.buffers[name] = replace(src, name=name, constant=False)
        self.kinds[name] = "output"
        where = {"src": source, "dst": name}
        seconds = kernel_cost(kernel, self.assembler.machine).seconds
        use = _Use({new: where[old] for new, old in back.items()})
        self._call(kernel, text, use, None, False, seconds)

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
