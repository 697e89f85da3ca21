"""Verification: what each kernel must compute, and which rule is to blame when it does not.

What a kernel reads and what it must write are values of HLIR nodes, computed by the reference
interpreter in float64 from random inputs. The tolerance follows from the dtypes and from the
tolerance classes of the rules that made the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.egraph import ENCODED
from luminal_lab.egraph.sized import sized_part
from luminal_lab.egraph.soundness import check_rule
from luminal_lab.egraph.values import BINDERS, Kernel, Value, postorder
from luminal_lab.errors import SearchError
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.dtypes import DType
from luminal_lab.hlir.interpreter import Reference
from luminal_lab.hlir.ops import REDUCTIONS
from luminal_lab.resources import rules_dir
from luminal_lab.search.assemble import RegionKernels, Step
from luminal_lab.search.candidate import Candidate, LibraryKernel
from luminal_lab.search.close_calls import close_calls, is_close
from luminal_lab.search.execute import stored, value_at
from luminal_lab.search.inputs import Recipe, input_recipes, search_inputs
from luminal_lab.search.target import Expected, Tolerance

if TYPE_CHECKING:
    from torch import Tensor

    from luminal_lab.egraph.egraph import EGraph, ENode
    from luminal_lab.egraph.rulebook import RuleInfo

_WHOLE = 1 << 17  # outputs with more elements are compared at some points only
_POINTS = 1 << 16  # about so many
_FEW = 4096  # points at which two e-nodes are compared
_ANCHORS = 24  # points of a tensor that are compared with the HLIR interpreter

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
        symbols: The values of the program's size symbols, where it has some.
    """

    def __init__(
        self,
        egraph: EGraph,
        kernels: RegionKernels,
        region: int,
        seed: int = 0,
        symbols: Mapping[str, int] | None = None,
    ):
        self.egraph, self.kernels = egraph, kernels
        self.part = sized_part(kernels.part, symbols) if symbols else kernels.part
        self.space = kernels.space
        self.rules = {r.name: r for r in egraph.rules}
        weights = _weights_of(egraph, region)
        self.reference = Reference(self.part.hlir, search_inputs(self.part.hlir, weights, seed))
        self._recipes = input_recipes(self.part.hlir, weights, seed)
        self._node_of: dict[int, int] = {}
        for node, t in sorted(self.part.node_class.items()):
            if self._same_layout(node, t):
                self._node_of.setdefault(t, node)
        self._anchors_at = {
            t
            for t, node in self._node_of.items()
            if self.part.hlir.nodes[node].op in REDUCTIONS
        }
        self._tensors: dict[int, Tensor] = {}
        self._verdicts: dict[str, bool] = {}  # of rules that were tested
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
            value = self._opaque(t)
            if value is None:
                made = self._written(t)
                term = self._meaning(made.children[0], t)
                shape = self.part.classes[t].shape
                buffers = self._buffers(term)
                value = stored(term, made.attrs[0], shape, self.part.extents, buffers)
                if not self._anchored(t, value.reshape(-1), None):
                    value = self._from_interpreter(t)
            self._tensors[t] = value
            node = self._node_of.get(t)
            if node is not None:
                self.reference.assume(node, value.expand(self.part.hlir.nodes[node].shape))
        return self._tensors[t]

    def _opaque(self, t: int) -> Tensor | None:
        """The value of an input, or of what no derived kernel makes (scatter, custom).

        A rule may give an operator a meaning in other terms: the operator itself decides.
        """
        ops = {e.op for e in self.part.classes[t].nodes}
        if t in self._node_of and ("kernel" not in ops or "custom" in ops):
            for e in self.part.classes[t].nodes:
                for child in e.children:
                    if self.part.classes[child].sort == "T":
                        self.tensor(child)
            return self.reference.value(self._node_of[t])
        if self.space.inputs[t] is not None:
            return self.reference.value(self._node_of[t])
        return None

    def _written(self, t: int) -> ENode:
        """The kernel that the encoder, or else a rule, first wrote for a T-class."""
        kernel = next((e for e in self.part.classes[t].nodes if e.op == "kernel"), None)
        if kernel is None:
            raise SearchError(f"T-class {t} has neither an HLIR node nor a kernel")
        return kernel

    def _from_interpreter(self, t: int) -> Tensor:
        value = self.reference.value(self._node_of[t])
        return value[tuple(slice(0, n) for n in self.part.classes[t].shape)]

    def _anchored(self, t: int, flat: Tensor, points: Tensor | None) -> bool:
        """Whether a value is that of the HLIR interpreter, given the values of what it reads.

        Everything else here stands on the encoder's terms; this ties those to the program. They
        differ when a rule has united two classes of the program that are not equal.
        """
        import torch

        node = self._node_of.get(t)
        if node is None or not flat.numel():
            return True
        count = min(_ANCHORS, flat.numel())
        some = torch.arange(count) * (flat.numel() - 1) // max(1, count - 1)
        at = some if points is None else points[some]
        index = torch.unravel_index(at, self.part.classes[t].shape)
        want = self.reference.sample(node, index) if index else self.reference.value(node)
        return _close(flat[some], want.reshape(-1), self.part.classes[t].dtype)

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

    def recipes(self, step: Step) -> dict[str, Recipe]:
        """How to make again those inputs of a kernel that are random inputs of the region."""
        out: dict[str, Recipe] = {}
        for name, t in step.tensors.items():
            made = self._recipes.get(self.space.inputs[t] or "")
            if made is not None and t not in step.writes:
                if made.shape == tuple(self.part.classes[t].shape):
                    out[name] = made
        return out

    def _expected(self, t: int, base: float) -> Expected:
        cls = self.part.classes[t]
        total = math.prod(cls.shape)
        if total <= _WHOLE or t in self._tensors or self._opaque(t) is not None:
            points = None if total <= _WHOLE else _spread(total)
            values = self.tensor(t).reshape(-1)
            picked = values if points is None else values[points]
            close = self._close_calls(t, base, points)
        else:
            points, picked, close = self._sampled(t, base)
            if not self._anchored(t, picked, points):
                picked = self._from_interpreter(t).reshape(-1)[points]
        scale = scale_of(picked)
        # Where every place hangs on rounding, all are compared: no kernel goes unverified.
        if close is not None and bool(close.any()) and not bool(close.all()):
            points = (~close).nonzero()[:, 0] if points is None else points[~close]
            picked = picked[~close]
        return Expected(points, picked.clone(), Tolerance(base * scale, base))

    def _close_calls(self, t: int, base: float, points: Tensor | None) -> Tensor | None:
        """At which flat positions a place of a maximum may be another one, if anywhere."""
        if self._opaque(t) is not None:
            return None
        made = self._written(t)
        term = self._meaning(made.children[0], t)
        names = sorted(frozenset[str]().union(*(i.axes for i in made.attrs[0])))
        out: Tensor | None = None
        for pair in close_calls(term, names):
            buffers = self._buffers(pair[1])
            shape, extents = self.part.classes[t].shape, self.part.extents
            winner, second = (
                stored(v, made.attrs[0], shape, extents, buffers).reshape(-1) for v in pair
            )
            close = is_close(winner, second, base)
            close = close if points is None else close[points]
            out = close if out is None else out | close
        return out

    def _sampled(self, t: int, base: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some flat positions of a T-class and its values there: a box of points.

        The first and the last block of each axis are always among them. The last result says at
        which a place of a maximum may be another one.
        """
        import torch

        made = self._written(t)
        term = self._meaning(made.children[0], t)
        names = sorted(frozenset[str]().union(*(i.axes for i in made.attrs[0])))
        axes = _box(names, self.part.extents, _POINTS)
        values = value_at(term, self.part.extents, self._buffers(term), axes)
        grid = torch.meshgrid(*(axes[a] for a in names), indexing="ij")
        env = dict(zip(names, grid))
        flat = torch.zeros((), dtype=torch.int64)
        for n, index in zip(self.part.classes[t].shape, made.attrs[0]):
            flat = flat * n + index.evaluate(env)
        out: Tensor | None = None
        for pair in close_calls(term, names):
            buffers = self._buffers(pair[1])
            winner, second = (
                value_at(v, self.part.extents, buffers, axes).reshape(-1) for v in pair
            )
            close = is_close(winner, second, base)
            out = close if out is None else out | close
        return flat.expand(values.shape).reshape(-1), values.reshape(-1), out

    def tolerance(self, step: Step) -> float:
        """The relative error that a kernel may have."""
        return kernel_tolerance(step.kernel, {n: r.tolerance for n, r in self.rules.items()})

    # ------------------------------------------------------------------------------ blame

    def truth(self, c: int) -> Value:
        """What a V-class means: a read of an HLIR reduction's value, or the encoder's term."""
        if c not in self._truths:
            self._truths[c] = self._meaning(c, -1)
        return self._truths[c]

    def _meaning(self, root: int, own: int) -> Value:
        """What a V-class means, without reading the tensor `own`."""
        best: dict[int, Value] = {}
        above: set[int] = set()
        stack = [root]
        while stack:
            c = stack[-1]
            if c in best:
                stack.pop()
                continue
            k = self._first_term(c, own, above)
            kids = self.space.kids[c][k]
            missing = [kid for kid in kids if kid not in best]
            if missing:
                above.add(c)
                stack.extend(reversed(missing))
                continue
            best[c] = self._as_value(c, k, tuple(best[kid] for kid in kids))
            above.discard(c)
            stack.pop()
        return best[root]

    def _first_term(self, c: int, own: int, above: set[int]) -> int:
        nodes = self.part.classes[c].nodes
        for t, k in self.space.reads[c]:
            if t != own and t in self._anchors_at and nodes[k].rule == ENCODED:
                return k
        ways = [*self.space.options[c], *(k for _, k in self.space.reads[c])]
        for k in sorted(ways, key=lambda k: (nodes[k].iteration, k)):
            read = nodes[k].op == "load" and self.space.inputs[nodes[k].children[0]] is None
            if read and (
                nodes[k].children[0] == own or self._node_of.get(nodes[k].children[0]) is None
            ):
                continue
            if read and any(n.rule == ENCODED and n.op != "load" for n in nodes):
                continue  # its own term is nearer to the program
            if not above.intersection(self.space.kids[c][k]) and c not in self.space.kids[c][k]:
                return k
        for t, k in self.space.reads[c]:  # of a tensor that only rules know of, at other axes
            if t != own and self._node_of.get(t) is None:
                return k
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
        float64 at some points. In the first class where one differs, the rules that made false
        e-nodes are tested, the earliest first; the first that is false is named.
        """
        body = step.body
        if body is None:
            return ""
        if not isinstance(step.kernel, Kernel):  # it is called: by the rule that says it may be
            return next(iter(step.kernel.rules), "")
        for c, k in body.picks:
            nodes = self.part.classes[c].nodes
            written = [
                n
                for n, e in enumerate(nodes)
                if e.rule == ENCODED and (e.op != "load" or e.children[0] in self._anchors_at)
            ]
            if all(self._is_true(c, n) for n in dict.fromkeys([k, *written])):
                continue
            terms = (n for n, e in enumerate(nodes) if e.op != "load" or n in written)
            false = {nodes[n] for n in terms if not self._is_true(c, n)}
            made = [e for e in nodes if e in false and e.rule != ENCODED]
            if not made:
                return self._uniter
            made.sort(key=lambda e: (e.iteration, built_in(self.rules[e.rule])))
            rules = list(dict.fromkeys(e.rule for e in made))
            # A true rule makes false e-nodes too, once a false one has united its terms.
            return next((r for r in rules if self._is_false(r)), self._uniter)
        return ""

    def _is_false(self, rule: str) -> bool:
        if rule not in self._verdicts:
            failure = check_rule(_checkable(self.rules[rule])).failure
            self._verdicts[rule] = failure is not None
        return self._verdicts[rule]

    def instance(self, rule: str) -> str:
        """The smallest instance on which a rule is false, written out; `""` when none is."""
        info = self.rules.get(rule)
        failure = None if info is None else check_rule(_checkable(info)).failure
        return "" if failure is None else str(failure)

    def _is_true(self, c: int, k: int) -> bool:
        """Whether an e-node computes what its class means."""
        args = tuple(self.truth(kid) for kid in self.space.kids[c][k])
        return self._equal(self._as_value(c, k, args), self.truth(c))

    @cached_property
    def _uniter(self) -> str:
        """The rule that united two terms of the program: of those that matched, a false one.

        A rule that only unites leaves no e-node that bears its name, so each is tested.
        """
        matched = {name for it in self.part.report.iterations for name in it.matches}
        suspects = [r for r in self.egraph.rules if r.name in matched]
        for rule in sorted(suspects, key=built_in):  # a user's own rules first
            if self._is_false(rule.name):
                return rule.name
        return "unknown: it united two terms of the program"

    def _equal(self, a: Value, b: Value) -> bool:
        if a == b:
            return True
        axes = _box(sorted(a.free | b.free), self.part.extents, _FEW)
        buffers = {**self._buffers(a), **self._buffers(b)}
        x = value_at(a, self.part.extents, buffers, axes)
        y = value_at(b, self.part.extents, buffers, axes)
        return _close(x, y, a.dtype)


def _checkable(rule: RuleInfo) -> str:
    """What `check_rule` takes: the name of a rule that is built in, the text of another."""
    text = f";; law: {rule.law}\n;; class: {rule.tolerance}\n{rule.text}"
    return rule.name if built_in(rule) else text


def kernel_tolerance(kernel: Kernel | LibraryKernel, rules: Mapping[str, str]) -> float:
    """The relative error that a kernel may have.

    Arguments:
        kernel: The kernel.
        rules: The tolerance class of each rule.
    """
    level = max((_CLASSES.index(rules[name]) for name in kernel.rules), default=0)
    dtypes: list[DType] = [b.dtype for b in kernel.buffers.values()]
    if isinstance(kernel, Kernel):
        values = list(postorder(kernel.values()))
        dtypes += [v.dtype for v in values]
        if level == 0 and any(v.op in BINDERS for v in values):
            level = 1  # every generated reduction is in an order of its own
    return max((BASE[d.name][level] for d in dtypes if d.is_float), default=0.0)


def program_tolerance(candidate: Candidate, rules: Mapping[str, str]) -> float:
    """The relative error that one kernel of a program may have: that of its worst one."""
    return max((kernel_tolerance(k, rules) for k in candidate.kernels), default=0.0)


def built_in(rule: RuleInfo) -> bool:
    """Whether a rule ships with the compiler."""
    path = Path(rule.file)
    if path.is_absolute():
        return rules_dir() in path.parents
    return any(p.name == rule.file for p in rules_dir().rglob("*.egg"))


def _close(x: Tensor, y: Tensor, dtype: DType) -> bool:
    """Whether two float64 evaluations agree (integers: whether they are equal)."""
    import torch

    if not dtype.is_float:
        return bool((x == y).all())
    base = 1e-9 if dtype.bits >= 32 else BASE[dtype.name][0]
    close = (x - y).abs() <= base * (y.abs() + scale_of(y))
    return bool((close | (x == y) | (torch.isnan(x) & torch.isnan(y))).all())


def _weights_of(egraph: EGraph, region: int) -> dict[str, Any]:
    """The real weights of a region's first instance, by the region's names."""
    for inst in egraph.program.instances:
        if inst.region == region:
            weights: Mapping[str, Any] = egraph.program.hlir.weights
            return {n: weights[v] for n, v in inst.bind.items() if v in weights}
    return {}


def _spread(total: int) -> Tensor:
    """Flat positions: both ends, and as many drawn from the middle."""
    import torch

    rng = torch.Generator().manual_seed(total)
    end = _POINTS // 4
    middle = torch.randint(end, total - end, (2 * end,), generator=rng)
    return torch.cat([torch.arange(end), torch.arange(total - end, total), middle]).unique()


def scale_of(values: Tensor) -> float:
    """The largest finite magnitude; 0 for integers."""
    import torch

    if not values.dtype.is_floating_point:
        return 0.0
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _box(axes: Sequence[str], extents: Mapping[str, int], limit: int) -> dict[str, Tensor]:
    """Some points of each axis, both ends among them, `limit` in all."""
    import torch

    size = {a: extents[a] for a in axes}
    while math.prod(size.values()) > limit:
        longest = max(axes, key=lambda a: (size[a], a))
        size[longest] = max(2, size[longest] // 2)
        if all(n <= 2 for n in size.values()):
            break
    out = {}
    for a in axes:
        n, some = extents[a], size[a]
        if some >= n:
            out[a] = torch.arange(n)
            continue
        rng = torch.Generator().manual_seed(n)
        middle = torch.randperm(n, generator=rng)[: some // 2]
        ends = [torch.arange(max(1, some // 4)), torch.arange(n - max(1, some // 4), n)]
        out[a] = torch.cat([*ends, middle]).unique()
    return out
