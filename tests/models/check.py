"""One case: eager PyTorch, the compiled program, and how they differ."""

from __future__ import annotations

import copy
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.utils import same
from torch.utils._pytree import tree_leaves, tree_map

from luminal_lab.capture.dynamo import Options
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import Hlir
from tests.models import traces
from tests.models.cases import Case, Program, program

# From best to worst.
OUTCOMES = ("right", "unbuilt", "untraceable", "refused", "timeout", "crash", "error", "WRONG")
NONE = {"effort": "none"}
STEPS = 50
_SELF, _CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
Row = dict[str, Any]


def row(case: Case) -> Row:
    """What is known of a case before it has run."""
    return {
        "suite": case.suite, "model": case.model, "mode": case.mode, "dtype": case.dtype,
        "outcome": "right", "error": 0.0, "compiles": 0, "fallbacks": [], "seconds": 0.0,
        "text": "",
    }  # fmt: skip


def judge(case: Case) -> Row:
    """Run a case and compare it with eager PyTorch."""
    out = row(case)
    try:
        made = program(case)
        run = _MODES[case.mode.split()[0]]
        want = run(made, case, None)
    except Exception as error:  # noqa: BLE001  (eager itself raised)
        return out | {"outcome": "unbuilt", "text": _text(error)}
    started = cpu_seconds()
    with counted() as graphs:
        try:
            whole = case.suite == "traces"
            got = run(made, case, _compiler("luminal_lab", NONE, fullgraph=whole))
        except Exception as error:  # noqa: BLE001  (whatever comes out is the verdict)
            out |= {"outcome": _blame(made, case, run, error), "text": _text(error)}
        else:
            out |= _compared(made, case, run, want, got)
    out["compiles"] = len(graphs)
    bound = traces.BOUNDS.get(case.mode)
    if out["outcome"] == "right" and bound is not None and len(graphs) > bound:
        out |= {"outcome": "WRONG", "text": f"{len(graphs)} compilations, {bound} at most"}
    out["seconds"] = round(cpu_seconds() - started, 1)
    custom = {n.attrs["target"] for g in graphs for n in g.nodes if n.op == "Custom"}
    out["fallbacks"] = sorted(custom)
    return out


def cpu_seconds() -> float:
    """Of this process and what it has started and ended: other load does not count."""
    own, others = (resource.getrusage(who) for who in (_SELF, _CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


@contextmanager
def counted() -> Iterator[list[Hlir]]:
    """The graphs that the backend compiles."""
    graphs: list[Hlir] = []
    compile_ = Options.compile

    def noted(self: Options, hlir: Hlir) -> Callable[..., Any]:
        graphs.append(hlir)
        return compile_(self, hlir)

    Options.compile = noted  # type: ignore[method-assign]
    try:
        yield graphs
    finally:
        Options.compile = compile_  # type: ignore[method-assign]


Compiler = Callable[[Callable[..., Any]], Callable[..., Any]] | None


def _compiler(
    backend: str, options: dict[str, Any] | None = None, fullgraph: bool = False
) -> Compiler:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, options=options, fullgraph=fullgraph)

    return compiled


# ---------------------------------------------------------------------- ways to run a model
def _forward(made: Program, case: Case, compiler: Compiler) -> list[torch.Tensor]:
    call = compiler(made.module) if compiler else made.module
    with torch.no_grad():
        result = call(*made.args, **made.kwargs)
    return [x.clone() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]


def _generate(made: Program, case: Case, compiler: Compiler) -> list[torch.Tensor]:
    module: Any = copy.deepcopy(made.module)
    if compiler:
        module.forward = compiler(module.forward)
    with torch.no_grad():
        return [module.generate(**made.kwargs, **made.options)]


def _train(made: Program, case: Case, compiler: Compiler) -> list[torch.Tensor]:
    """The losses of 50 steps of AdamW."""
    module = copy.deepcopy(made.module)
    call = compiler(module) if compiler else module
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call(*made.args, **made.kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses)]


def loss_of(result: Any) -> torch.Tensor:
    """Of classes along the last dim, or of a regression for one value an example."""
    x = result.logits if hasattr(result, "logits") else result
    if x.shape[-1] == 1 or x.dim() == 4:
        target = torch.linspace(0, 1, x.numel(), dtype=x.dtype).view_as(x)
        return F.mse_loss(x, target)
    x = x.flatten(0, -2)
    return F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1])


_MODES: dict[str, Callable[[Program, Case, Compiler], list[torch.Tensor]]] = {
    "forward": _forward,
    "generate": _generate,
    "train": _train,
    "sizes": traces.sizes,
    "cache": traces.cache,
    "speed": traces.speed,
}


# ---------------------------------------------------------------------- comparison
def _compared(
    made: Program, case: Case, run: Any, want: Sequence[torch.Tensor], got: Sequence[Any]
) -> Row:
    if case.mode == traces.SPEED:
        ratio = (got[0] / want[0]).item()
        said = f"{got[0]:.1f} s, PyTorch alone {want[0]:.1f} s: {ratio:.2f} times"
        return {"outcome": "right" if ratio < traces.SLOWER else "WRONG", "text": said}
    if len(want) != len(got):
        return {"outcome": "WRONG", "text": f"{len(got)} results, eager gives {len(want)}"}
    exact: Sequence[torch.Tensor] | None = None
    worst = 0.0
    for k, (w, g) in enumerate(zip(want, got)):
        if (w.dtype, w.shape) != (g.dtype, g.shape):
            text = f"result {k} is {g.dtype}{list(g.shape)}, eager's {w.dtype}{list(w.shape)}"
            return {"outcome": "WRONG", "text": text}
        gap = difference(w, g)
        worst = max(worst, gap)
        if case.mode == "train":
            relative = ((w - g).abs() / w.abs().clamp_min(1e-12)).max().item()
            if not relative <= 1e-4:
                return {"outcome": "WRONG", "error": relative, "text": "of the losses"}
            worst = max(worst, relative)
        elif not w.is_floating_point():
            if not torch.equal(w, g):
                n = int((w != g).sum())
                return {"outcome": "WRONG", "error": gap, "text": f"{n} of {w.numel()} differ"}
        elif w.dtype != torch.float32 or gap > 1e-4 * magnitude(w):
            if exact is None:
                exact = _exact(made, case, run)
            # Some models round their logits to float32, whatever they were computed in.
            e = exact[k].double() if exact is not None else None
            tol = magnitude(w) * (1e-4 if case.dtype in ("float32", "float64") else 1e-3)
            if not same(w, g, e, tol=tol, equal_nan=True, log_error=_quiet):
                off = difference(e, g) if e is not None else float("nan")
                own = difference(e, w) if e is not None else float("nan")
                text = f"result {k}: from float64 {off:.3g}, eager is {own:.3g}"
                return {"outcome": "WRONG", "error": gap, "text": text}
    return {"error": worst}


def magnitude(x: torch.Tensor) -> float:
    """Of the largest element that is finite; 1 at most: small results are told apart, too."""
    largest = x.abs().nan_to_num(0, 0, 0).max().item() if x.numel() else 0.0
    return min(largest, 1.0)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest one; NaN and infinities in the same places are none."""
    if not a.numel():
        return 0.0
    a, b = a.double(), b.double()
    unlike = (a != b) & ~(a.isnan() & b.isnan())
    gap = torch.where(unlike, (a - b).abs().nan_to_num(torch.inf, torch.inf), 0.0)
    return gap.max().item()


def _exact(made: Program, case: Case, run: Any) -> list[torch.Tensor] | None:
    """Eager's results in double precision, where it has one."""
    module: Any = copy.deepcopy(made.module).double()
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # the grouped product has no float64
    wide = tree_map(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
        (made.args, dict(made.kwargs)),
    )
    try:
        return run(Program(module, *wide), case, None)
    except Exception:  # noqa: BLE001  (a dtype that the model fixes)
        return None


def _quiet(*args: Any) -> None:
    pass


# ---------------------------------------------------------------------- who is to blame
def _blame(made: Program, case: Case, run: Any, error: BaseException) -> str:
    if _luminal(error) is not None:
        return "refused"
    try:
        run(made, case, _compiler("aot_eager"))
    except Exception:  # noqa: BLE001  (PyTorch cannot compile it either)
        return "untraceable"
    return "error"


def _luminal(error: BaseException | None) -> LuminalError | None:
    while error is not None:
        if isinstance(error, LuminalError):
            return error
        inner = getattr(error, "inner_exception", None)
        error = inner or error.__cause__ or error.__context__
    return None


def _text(error: BaseException) -> str:
    inner = _luminal(error) or getattr(error, "inner_exception", None) or error
    return f"{type(inner).__name__}: {inner}".replace("\n", " | ").replace("\t", " ")[:300]
