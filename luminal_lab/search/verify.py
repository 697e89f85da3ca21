"""Verification: what each kernel must compute, and which rule is to blame when it does not.

What a kernel reads and what it must write are values of HLIR nodes, computed by the reference
interpreter in float64 from random inputs. The tolerance follows from the dtypes and from the
tolerance classes of the rules that made the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import Kernel, Value, postorder
from luminal_lab.errors import SearchError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.interpreter import Reference
from luminal_lab.hlir.ops import REDUCTIONS
from luminal_lab.search.assemble import RegionKernels, Step
from luminal_lab.search.execute import stored, value_at
from luminal_lab.search.inputs import search_inputs
from luminal_lab.search.target import Expected, Tolerance

if TYPE_CHECKING:
    from torch import Tensor

    from luminal_lab.egraph.egraph import EGraph

_WHOLE = 1 << 17  # outputs with more elements are compared at some points only
_BLOCK = 4096  # elements at either end that always are among those points
_POINTS = 24576  # points drawn from the middle

# Relative error that one dtype allows: of exact laws, of reassociation, of approximate laws.
BASE: dict[str, tuple[float, float, float]] = {
    "f64": (1e-12, 1e-10, 1e-7),
    "f32": (2e-5, 5e-5, 1e-3),
    "f16": (3e-3, 3e-3, 6e-3),
    "bf16": (2e-2, 2e-2, 3e-2),
    "f8e4m3": (0.15, 0.15, 0.2),
    "f8e5m2": (0.3, 0.3, 0.35),
}
_CLASSES = ("exact", "reassociates", "approximate")


class RegionVerifier:
    """What the kernels of one region must compute.

    Arguments:
        egraph: What was saturated.
        kernels: Makes the region's kernels.
        region: Which region.
        seed: For the inputs.
    """

    def __init__(self, egraph: EGraph, kernels: RegionKernels, region: int, seed: int = 0):
        self.egraph, self.kernels, self.part = egraph, kernels, kernels.part
        self.space = kernels.space
        self.tolerances = {r.name: r.tolerance for r in egraph.rules}
        weights = _weights_of(egraph, region)
        self.reference = Reference(self.part.hlir, search_inputs(self.part.hlir, weights, seed))
        self._node_of: dict[int, int] = {}
        for node, t in sorted(self.part.node_class.items()):
            if self._same_layout(node, t):
                self._node_of.setdefault(t, node)
        self._tensors: dict[int, Tensor] = {}
        self._truths: dict[int, Value] = {}

    def _same_layout(self, node: int, t: int) -> bool:
        """Whether a T-class stores a node: all of it, or once along dims that it ignores."""
        want = self.part.hlir.nodes[node].shape
        have = self.part.classes[t].shape
        return len(want) == len(have) and all(h in (w, 1) for w, h in zip(want, have))

    # ---------------------------------------------------------------------------- tensors

    def tensor(self, t: int) -> Tensor:
        """The float64 (or exact integer) value of a T-class, of its stored shape."""
        if t not in self._tensors:
            cls = self.part.classes[t]
            if t in self._node_of:
                value = self.reference.value(self._node_of[t])
                cut = tuple(slice(0, n) for n in cls.shape)
                self._tensors[t] = value[cut]
            else:
                self._tensors[t] = self._derived(t)
        return self._tensors[t]

    def _derived(self, t: int) -> Tensor:
        """The value of a tensor that is no HLIR node, as the encoder or a rule first wrote it."""
        nodes = self.part.classes[t].nodes
        kernel = next((e for e in nodes if e.op == "kernel"), None)
        if kernel is None:
            raise SearchError(f"T-class {t} has neither an HLIR node nor a kernel")
        value = self.truth(kernel.children[0])
        shape = self.part.classes[t].shape
        return stored(value, kernel.attrs[0], shape, self.part.extents, self._buffers(value))

    def _buffers(self, value: Value) -> dict[str, Tensor]:
        names = {v.attrs[0] for v in postorder([value]) if v.op == "load"}
        return {n: self.tensor(self._class_of(n)) for n in sorted(names)}

    def _class_of(self, name: str) -> int:
        for t, known in enumerate(self.space.inputs):
            if known == name:
                return t
        return int(name.removeprefix("t"))

    # ------------------------------------------------------------------------------- jobs

    def job(self, step: Step) -> tuple[dict[str, Tensor], dict[str, Expected]]:
        """Inputs for a kernel's canonical buffers, and what it must write."""
        inputs: dict[str, Tensor] = {}
        expected: dict[str, Expected] = {}
        tolerance = self.tolerance(step)
        for name, t in step.tensors.items():
            cls = self.part.classes[t]
            if t in step.writes:
                expected[name] = self._expected(t, tolerance)
            else:
                inputs[name] = self.tensor(t).to(torch_dtype(cls.dtype, "native")).contiguous()
        return inputs, expected

    def _expected(self, t: int, base: float) -> Expected:
        import torch

        cls = self.part.classes[t]
        total = 1
        for n in cls.shape:
            total *= n
        if total <= _WHOLE or t in self._tensors or t not in self._node_of:
            values = self.tensor(t).reshape(-1)
            points = None if total <= _WHOLE else _points(total)
            picked = values if points is None else values[points]
        else:
            points = _points(total)
            index = torch.unravel_index(points, cls.shape)
            picked = self.reference.sample(self._node_of[t], index)
        scale = _scale(picked)
        return Expected(points, picked.clone(), Tolerance(base * scale, base))

    def tolerance(self, step: Step) -> float:
        """The relative error that a kernel may have."""
        level = 0
        for name in step.kernel.rules:
            level = max(level, _CLASSES.index(self.tolerances.get(name, "exact")))
        dtypes: list[DType] = [b.dtype for b in step.kernel.buffers.values()]
        if isinstance(step.kernel, Kernel):
            values = list(postorder(o.value for o in step.kernel.outputs))
            dtypes += [v.dtype for v in values]
            if level == 0 and any(v.op in ("red", "online") for v in values):
                level = 1  # every generated reduction is in an order of its own
        return max((BASE[d.name][level] for d in dtypes if d.is_float), default=0.0)

    # ------------------------------------------------------------------------------ blame

    def truth(self, c: int) -> Value:
        """What a V-class means: a read of an HLIR reduction's value, or the encoder's term."""
        if c not in self._truths:
            self._truths[c] = self._truth(c, [])
        return self._truths[c]

    def _truth(self, c: int, above: list[int]) -> Value:
        if c in self._truths:
            return self._truths[c]
        cls = self.part.classes[c]
        for t, k in self.space.reads[c]:
            node = self._node_of.get(t)
            if node is not None and self.part.hlir.nodes[node].op in REDUCTIONS:
                if cls.nodes[k].rule == "encode" and not self.space.kids[c][k]:
                    return self._as_value(c, k, ())
        order = sorted(range(len(cls.nodes)), key=lambda k: (cls.nodes[k].iteration, k))
        for k in order:
            if cls.nodes[k].op == "load" and cls.nodes[k].children[0] not in self._node_of:
                if self.space.inputs[cls.nodes[k].children[0]] is None:
                    continue  # a derived tensor: its value would need this one
            kids = self.space.kids[c][k]
            if c in kids or any(kid in above for kid in kids):
                continue
            args = tuple(self._truth(kid, [*above, c]) for kid in kids)
            made = self._as_value(c, k, args)
            if not above:
                self._truths[c] = made
            return made
        raise SearchError(f"V-class {c} has no term that is not cyclic")

    def _as_value(self, c: int, k: int, args: tuple[Value, ...]) -> Value:
        cls = self.part.classes[c]
        e = cls.nodes[k]
        attrs = e.attrs
        if e.op == "load":
            attrs = (self.kernels.name(e.children[0]), e.attrs[0])
        return Value(e.op, args, attrs, dtype=cls.dtype)

    def blame(self, step: Step) -> str:
        """The rule that made a kernel wrong, `""` when all its e-nodes are right.

        Each e-node of the kernel is compared, arguments first, with what its class means, in
        float64 at some points. The first that differs names its rule.
        """
        body = step.body
        if body is None:
            return ""
        for c, k in body.picks:
            e = self.part.classes[c].nodes[k]
            args = tuple(self.truth(kid) for kid in self.space.kids[c][k])
            if not self._equal(self._as_value(c, k, args), self.truth(c)):
                return e.rule if e.rule != "encode" else self._uniter(c)
        return ""

    def _uniter(self, c: int) -> str:
        """A rule whose other e-nodes in a class that mixes two different terms are wrong."""
        rules = sorted({e.rule for e in self.part.classes[c].nodes} - {"encode"})
        return rules[0] if len(rules) == 1 else f"one that united e-class {c}"

    def _equal(self, a: Value, b: Value) -> bool:
        import torch

        if a == b:
            return True
        axes = _some_points(a.free | b.free, self.part.extents)
        buffers = {**self._buffers(a), **self._buffers(b)}
        x = value_at(a, self.part.extents, buffers, axes)
        y = value_at(b, self.part.extents, buffers, axes)
        if not a.dtype.is_float:
            return bool((x == y).all())
        base = 1e-9 if a.dtype.bits >= 32 else BASE[a.dtype.name][0]
        scale = _scale(y)
        close = (x - y).abs() <= base * (y.abs() + scale)
        return bool((close | (x == y) | (torch.isnan(x) & torch.isnan(y))).all())


def _weights_of(egraph: EGraph, region: int) -> dict[str, Any]:
    """The real weights of a region's first instance, by the region's names."""
    for inst in egraph.program.instances:
        if inst.region == region:
            weights: Mapping[str, Any] = egraph.program.hlir.weights
            return {n: weights[v] for n, v in inst.bind.items() if v in weights}
    return {}


def _points(total: int) -> Tensor:
    import torch

    rng = torch.Generator().manual_seed(total)
    middle = torch.randint(_BLOCK, total - _BLOCK, (_POINTS,), generator=rng)
    ends = torch.cat([torch.arange(_BLOCK), torch.arange(total - _BLOCK, total)])
    return torch.cat([ends, middle]).unique()


def _scale(values: Tensor) -> float:
    import torch

    if not values.dtype.is_floating_point:
        return 0.0
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _some_points(axes: frozenset[str], extents: Mapping[str, int]) -> dict[str, Tensor]:
    import torch

    out = {}
    for axis in sorted(axes):
        n = extents[axis]
        rng = torch.Generator().manual_seed(n)
        some = torch.randint(0, n, (3,), generator=rng).tolist()
        out[axis] = torch.tensor(sorted({0, n - 1, *some}))
    return out
