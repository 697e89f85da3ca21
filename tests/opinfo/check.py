"""One sample at one level: what came out, in one word, and why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import same
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils._pytree import tree_flatten

import luminal_lab as ll
from luminal_lab.capture.dynamo import (
    decompositions,
    is_complex,
    lower_graph,
    parts_of,
    results_of,
)
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import Hlir, check, run
from tests.opinfo.cases import UNDEFINED, Case, Sample, clones, seed

# From best to worst; a case is as bad as its worst sample.
# `as traced`: what PyTorch's own trace of the call computes, which is not what eager does.
OUTCOMES = (
    "right", "random", "as traced", "untraceable", "refused", "timeout", "crash", "error",
    "WRONG",
)  # fmt: skip
LEVELS = ("lower", "capture", "compiled")
TOLERANCE = {torch.float64: 1e-8, torch.float16: 1e-3, torch.bfloat16: 1e-3}
_TABLE = decompositions()


@dataclass
class Verdict:
    """What became of a sample.

    Arguments:
        outcome: One of `OUTCOMES`.
        text: The message, when it is not right.
        fallbacks: Custom operators, with the reason.
        traced: Runs PyTorch's trace of the call.
    """

    outcome: str
    text: str = ""
    fallbacks: dict[str, str] = field(default_factory=dict)
    traced: Any = None


def judge(case: Case, sample: Sample, level: str) -> Verdict:
    """Run a sample and compare it with eager PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed(1)
        want = clones(sample.fn(*sample.copies()))
        verdict = Verdict("right")
        try:
            got = _LEVELS[level](sample, verdict)
        except LuminalError as error:
            if level == "capture" and _cause_is_export(error):
                return _untraceable(sample, verdict, "torch.export", error)
            return Verdict("refused", _text(error), verdict.fallbacks)
        except _Untraceable as error:
            return _untraceable(sample, verdict, "AOTAutograd", error.__cause__)
        except Exception as error:  # noqa: BLE001  (whatever comes out is the verdict)
            inner = _luminal(error)
            if inner is not None:
                return Verdict("refused", _text(inner), verdict.fallbacks)
            if level == "compiled" and (shown := _eager_backend(sample)):
                return Verdict("untraceable", shown, verdict.fallbacks)
            return Verdict("error", _text(error), verdict.fallbacks)
        return _compared(case, sample, want, got, verdict)


def _compared(case: Case, sample: Sample, want: Any, got: Any, verdict: Verdict) -> Verdict:
    want, got = tree_flatten(want)[0], tree_flatten(got)[0]
    difference = _facts(want, got)
    if difference:
        return _or_as_traced(sample, got, difference, verdict)
    if case.op in UNDEFINED:
        return verdict
    tensor = next((w for w in want if isinstance(w, torch.Tensor)), None)
    difference = _values(sample, want, got)
    if not difference or tensor is None:
        return verdict if not difference else Verdict("WRONG", difference, verdict.fallbacks)
    seed(2)  # another seed: does eager agree with itself?
    again = tree_flatten(clones(sample.fn(*sample.copies())))[0]
    if _facts(want, again) or _values(sample, want, again):
        return Verdict("random", "shape and dtype were compared", verdict.fallbacks)
    return _or_as_traced(sample, got, difference, verdict)


def _or_as_traced(
    sample: Sample, got: Sequence[Any], difference: str, verdict: Verdict
) -> Verdict:
    """Wrong, unless PyTorch's own trace of the call gives the same."""
    if verdict.traced is not None:
        traced = tree_flatten(verdict.traced())[0]
        if not _facts(traced, got) and not _values(sample, traced, got):
            return Verdict("as traced", difference, verdict.fallbacks)
    return Verdict("WRONG", difference, verdict.fallbacks)


def _facts(want: Sequence[Any], got: Sequence[Any]) -> str:
    if len(want) != len(got):
        return f"{len(got)} results, eager gives {len(want)}"
    for k, (w, g) in enumerate(zip(want, got)):
        if isinstance(w, torch.Tensor) != isinstance(g, torch.Tensor):
            return f"result {k} is a {type(g).__name__}, eager's a {type(w).__name__}"
        if isinstance(w, torch.Tensor) and (w.dtype, w.shape) != (g.dtype, g.shape):
            return f"result {k} is {g.dtype}{list(g.shape)}, eager's {w.dtype}{list(w.shape)}"
    return ""


def _values(sample: Sample, want: Sequence[Any], got: Sequence[Any]) -> str:
    exact: Sequence[Any] | None = None
    for k, (w, g) in enumerate(zip(want, got)):
        if not isinstance(w, torch.Tensor):
            if w != g and not (w != w and g != g):
                return f"result {k} is {g}, eager's {w}"
            continue
        if not w.numel() or (w.is_sparse and torch.equal(w.to_dense(), g.to_dense())):
            continue
        if not (w.is_floating_point() or w.is_complex()):
            if not torch.equal(w, g):
                return f"result {k}: {int((w != g).sum())} of {w.numel()} differ{_at(w, g)}"
            continue
        if w.dtype.itemsize == 1:
            w, g = w.float(), g.float()
        if same(w, g, None, tol=TOLERANCE.get(w.dtype, 1e-4), equal_nan=True, log_error=_quiet):
            continue
        exact = exact if exact is not None else _exact(sample, len(want))
        e = exact[k] if exact[k] is not None and exact[k].shape == w.shape else None
        tol = TOLERANCE.get(w.dtype, 1e-4)
        if not same(w, g, e, tol=tol, equal_nan=True, log_error=_quiet):
            return f"result {k} differs{_at(w, g)}"
    return ""


def _quiet(*args: Any) -> None:
    pass


def _at(w: torch.Tensor, g: torch.Tensor) -> str:
    """The place of the largest difference."""
    if w.is_complex():
        w, g = torch.view_as_real(w), torch.view_as_real(g)
    gap = (w.double() - g.double()).abs()
    unlike = (w != g) & ~(w.isnan() & g.isnan())
    gap = torch.where(unlike & gap.isnan(), torch.inf, gap.nan_to_num(0.0, torch.inf))
    place = int(gap.flatten().argmax())
    at = [int(x) for x in numpy_index(place, w.shape)]
    return f" most at {at}: {g.flatten()[place].item()}, eager {w.flatten()[place].item()}"


def numpy_index(place: int, shape: Sequence[int]) -> list[int]:
    """The index of a flat position."""
    out: list[int] = []
    for n in reversed(shape):
        place, i = divmod(place, n)
        out.append(i)
    return out[::-1]


def _exact(sample: Sample, count: int) -> Sequence[Any]:
    """Eager's results in double precision; None where there are none."""
    wide = sample.in_float64()
    seed(1)
    try:
        out = tree_flatten(wide.fn(*wide.copies()))[0]
    except Exception:  # noqa: BLE001  (the operator has no double precision)
        return [None] * count
    return [
        x if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else None for x in out
    ]


# ---------------------------------------------------------------------- levels
class _Untraceable(Exception):
    """PyTorch's own tracer raised."""


def _lower(sample: Sample, verdict: Verdict) -> Any:
    """The graph that AOTAutograd gives the backend, lowered and interpreted."""
    spec: Any = None

    def flat(*args: torch.Tensor) -> tuple[Any, ...]:
        nonlocal spec
        leaves, spec = tree_flatten(sample.fn(*args))
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in leaves)

    def pure(*args: torch.Tensor) -> tuple[Any, ...]:  # for operators that write their input
        return flat(*(a.clone() for a in args))

    def trace(fn: Callable[..., Any], table: Any = _TABLE) -> Any:
        with torch.no_grad():
            return aot_export_joint_simple(
                fn, sample.copies(), trace_joint=False, decompositions=table
            )

    try:
        try:
            traced = trace(flat)
        except Exception:  # noqa: BLE001  (the second attempt says it)
            traced = trace(pure)
    except Exception as error:
        raise _Untraceable from error
    hlir, constants = lower_graph(traced, {})
    verdict.traced = lambda: list(trace(pure, {})(*sample.copies()))[-spec.num_leaves :]
    check(hlir)
    _note(hlir, verdict)
    seed(1)
    inputs = [parts_of(a) if a.is_complex() else a for a in sample.copies()]
    made = iter(run(hlir, inputs, compute="native"))
    got = []
    for k, fx in enumerate(results_of(traced)):
        value = constants[k] if k in constants else next(made)
        got.append(torch.view_as_complex(value.contiguous()) if is_complex(fx) else value)
    return got[len(got) - spec.num_leaves :]  # tokens of effects come first


def _capture(sample: Sample, verdict: Verdict) -> Any:
    """`ll.capture`, interpreted."""

    def fn(*args: torch.Tensor) -> Any:
        return sample.fn(*args)

    with torch.no_grad():
        hlir = ll.capture(fn, sample.copies())
    check(hlir)
    _note(hlir, verdict)
    seed(1)
    values = run(hlir, sample.copies(), compute="native")
    values = [v for v, o in zip(values, hlir.outputs) if not o.mutates]
    return _structured(hlir, values)


def _structured(hlir: Hlir, values: list[Any]) -> Any:
    spec = hlir.out_spec
    return spec.unflatten(values) if hasattr(spec, "unflatten") else values


def _compiled(sample: Sample, verdict: Verdict) -> Any:
    """`torch.compile` with the backend, without search."""
    torch._dynamo.reset()

    def fn(*args: torch.Tensor) -> Any:
        return sample.fn(*args)

    seed(1)

    def traced() -> Any:
        torch._dynamo.reset()
        seed(1)
        with torch.no_grad():
            return clones(torch.compile(fn, backend="aot_eager")(*sample.copies()))

    verdict.traced = traced
    with torch.no_grad():
        compiled = torch.compile(fn, backend="luminal_lab", options={"effort": "none"})
        return clones(compiled(*sample.copies()))


_LEVELS: dict[str, Callable[[Sample, Verdict], Any]] = {
    "lower": _lower,
    "capture": _capture,
    "compiled": _compiled,
}


def _note(hlir: Hlir, verdict: Verdict) -> None:
    for node in hlir.nodes:
        if node.op == "Custom":
            verdict.fallbacks.setdefault(node.attrs["target"], node.attrs.get("reason", ""))


# ---------------------------------------------------------------------- who is to blame
def _untraceable(
    sample: Sample, verdict: Verdict, tracer: str, error: BaseException | None
) -> Verdict:
    shown = _eager_backend(sample)
    said = f"eager backend: {shown}" if shown else "the eager backend breaks the graph there"
    return Verdict("untraceable", f"{tracer}: {_text(error)}; {said}", verdict.fallbacks)


def _eager_backend(sample: Sample) -> str:
    """How `torch.compile` with the eager backend, in one graph, fails; empty if it does not."""
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(lambda *a: sample.fn(*a), backend="eager", fullgraph=True)(
                *sample.copies()
            )
    except Exception as error:  # noqa: BLE001  (that it fails is the answer)
        return _text(error)
    return ""


def _cause_is_export(error: LuminalError) -> bool:
    return "torch.export cannot trace" in str(error)


def _luminal(error: BaseException | None) -> LuminalError | None:
    """A LuminalError among the causes: Dynamo wraps what a backend raises."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, LuminalError):
            return error
        inner = getattr(error, "inner_exception", None)
        error = inner or error.__cause__ or error.__context__
        seen += 1
    return None


def _text(error: BaseException | None) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:300]
