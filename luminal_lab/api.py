"""The stages, wired: what `import luminal_lab as ll` offers as functions.

Only this module (with the command line and the demo) may know all stages; each stage knows only
those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from luminal_lab.egraph import EGraph, Limits
    from luminal_lab.egraph.ruleset import RuleSet
    from luminal_lab.egraph.soundness import RuleCheck
    from luminal_lab.egraph.stepping import Stepping
    from luminal_lab.hlir import Bucket, Hlir
    from luminal_lab.runtime import Buckets, CpuTarget, Executable, Profile
    from luminal_lab.search import Budget, Candidate, Result, Strategy
    from luminal_lab.tensor import Graph

Rules: TypeAlias = "str | Path | RuleSet | Sequence[str | Path | RuleSet] | None"
TARGETS = ("cpu", "cuda", "mps")


def target_of(name: str, executor: Executor | Any = None) -> CpuTarget:
    """The runtime of a target.

    Arguments:
        name: Of the target.
        executor: Where to measure, see `search`.

    Raises:
        LuminalError: for an unknown target, or one that this machine or version cannot run.
    """
    if name not in TARGETS:
        raise LuminalError(f"unknown target {name!r}", fix=f"one of {', '.join(TARGETS)}")
    if name != "cpu":
        raise LuminalError(
            f"kernels for {name!r} can be rendered here, but not run",
            fix="target='cpu'; cand.kernels[i].source('triton' or 'metal') shows the sources",
        )
    from luminal_lab.runtime.cpu import CpuTarget

    return CpuTarget(executor=executor)


def capture(
    module_or_fn: Callable[..., Any] | Graph,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Hlir:
    """Capture a PyTorch module or function as an Hlir.

    Arguments:
        module_or_fn: An `nn.Module`, a function of tensors, or an `ExportedProgram`; a
            `ll.Graph` is a program already and takes no arguments.
        args: Example positional arguments; shapes and dtypes are taken from them.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for `torch.export.export`. The sizes of the examples are the ones
            that kernels are tuned for; a size is at least 1.

    Returns:
        The program in primitive ops. Weights are held by reference. Operators without a
        lowering are `Custom` nodes, listed by `hlir.fallbacks()`.

    Raises:
        CaptureError: when PyTorch cannot trace the program.

    >>> import torch, luminal_lab as ll
    >>> hlir = ll.capture(lambda x, y: x + y, (torch.ones(2), torch.ones(2)))
    >>> [node.op for node in hlir.nodes]
    ['Input', 'Input', 'Add']
    """
    from luminal_lab.tensor.graph import Graph

    if isinstance(module_or_fn, Graph):
        _refuse_examples(args, kwargs, dynamic_shapes)
        return module_or_fn.hlir()
    from luminal_lab.capture import capture as run

    return run(module_or_fn, tuple(args), kwargs, dynamic_shapes)


def _refuse_examples(*examples: Any) -> None:
    if any(examples):
        raise LuminalError(
            "a Graph declares its own inputs and takes no example arguments",
            fix="ll.compile(g)",
        )


@overload
def saturate(
    hlir: Hlir,
    target: str = "cpu",
    rules: Rules = None,
    limits: Limits | None = None,
    progress: bool | Callable[..., None] = False,
    *,
    step: Literal[False] = False,
    check: bool = True,
    regions: bool = True,
) -> EGraph: ...


@overload
def saturate(
    hlir: Hlir,
    target: str = "cpu",
    rules: Rules = None,
    limits: Limits | None = None,
    progress: bool | Callable[..., None] = False,
    *,
    step: Literal[True],
    check: bool = True,
    regions: bool = True,
) -> Stepping: ...


def saturate(
    hlir: Hlir,
    target: str = "cpu",
    rules: Rules = None,
    limits: Limits | None = None,
    progress: bool | Callable[..., None] = False,
    *,
    step: bool = False,
    check: bool = True,
    regions: bool = True,
) -> EGraph | Stepping:
    """Grow the e-graph of a program with the rules, in a child process.

    Arguments:
        hlir: A captured program.
        target: Whose rules (`rules/targets/<target>.egg`) to add.
        rules: More rules: `.egg` text, paths of `.egg` files, a `RuleSet`, the name under which
            `%%rules` registered one, or the name of a theme in `rules/optional/`.
        limits: Bounds on iterations, rows, seconds and bytes.
        progress: True for a progress bar, or a function called with the region's number and
            the record of each iteration.
        regions: Whether repeated blocks are found, saturated once and shared; False takes the
            program as one region.
        step: True for an iterator that runs one iteration at a time and gives what each added;
            its `.egraph` is the e-graph so far, in the end the same as without `step`.
        check: Whether rules that are given as text or files are first tested, as
            `ll.check_rule` does; a rule that is false is refused.

    Raises:
        RuleError: for a rule that does not parse or type-check, with `file:line:column`; for
            one that is false, with the smallest failing instance.
        SaturationError: when the child died.
    """
    rules = _with_operators(hlir, rules)
    if check and rules is not None:
        from luminal_lab.egraph.ruleset import refuse_false_rules

        refuse_false_rules(rules, target)
    if step:
        from luminal_lab.egraph.stepping import Stepping

        listen = progress if callable(progress) else None
        return Stepping(hlir, target, rules, limits, listen, regions=regions)
    from luminal_lab.egraph.saturate import saturate as run

    options: dict[str, Any] = {"target": target, "rules": rules, "limits": limits}
    options["regions"] = regions
    if callable(progress):
        return run(hlir, progress=progress, **options)
    if not progress:
        return run(hlir, **options)
    from tqdm.auto import tqdm

    with tqdm(desc="saturate", unit=" iterations", leave=False) as bar:

        def tell(part: int, record: Any) -> None:
            bar.update()
            bar.set_postfix_str(f"region {part}: {record.rows} rows", refresh=False)

        return run(hlir, progress=tell, **options)


def _with_operators(hlir: Hlir, rules: Rules) -> Rules:
    """The rules, and those of the registered operators that a program calls."""
    from luminal_lab.hlir.custom import registered_in

    own = [op for op in registered_in(hlir) if op.text]
    if not own:
        return rules
    one = isinstance(rules, (str, Path)) or hasattr(rules, "source")
    given: Any = [] if rules is None else [rules] if one else rules
    out: list[Any] = [*given, *own]
    return out


def check_rule(
    rule: str, tried: int = 80, seed: int = 0, kernels: str | Path | Sequence[str | Path] = ()
) -> RuleCheck:
    """Test a rule on random instances of its left side, both sides computed in float64.

    Arguments:
        rule: Its text with its `;; law:` and `;; class:` (and relations that it declares), or
            the name of a built-in rule.
        tried: How many instances.
        seed: The same seed gives the same instances.
        kernels: The `.c` files of hand-written kernels that it may call.

    Returns:
        The verdict; with the smallest failing instance when the rule is false.

    Raises:
        RuleError: it does not parse, is ill-typed, states no law, or cannot be instantiated.

    >>> import luminal_lab as ll
    >>> ll.check_rule("mul-one").ok
    True
    """
    from luminal_lab.egraph.rulebook import kernels_beside
    from luminal_lab.egraph.soundness import check_rule as run

    files = [kernels] if isinstance(kernels, (str, Path)) else kernels
    return run(rule, tried, seed, kernels_beside(files))


def sample(egraph: EGraph, n: int = 32, seed: int = 0) -> list[Candidate]:
    """`n` distinct candidates of the e-graph, unmeasured; fewer when it holds fewer."""
    from luminal_lab.search.run import sample as run

    return run(egraph, n=n, seed=seed)


def search(
    egraph: EGraph,
    budget: Budget | None = None,
    seed: int = 0,
    progress: bool | Callable[..., None] = False,
    *,
    strategy: str | Strategy = "genetic",
    replay: str | Path | Result | None = None,
    cancel: threading.Event | None = None,
    executor: Executor | Any = None,
) -> Result:
    """Find the fastest candidate that computes the right thing.

    Arguments:
        egraph: A saturated e-graph.
        budget: Effort (`"none"` ranks by the cost model alone, `"quick"` and `"full"` measure)
            and optional bounds on seconds, candidates and memory.
        seed: The same seed and budget give the same candidates, in any process.
        progress: True for a progress bar, or a function called with each event.
        strategy: How to explore: `"genetic"`, `"beam"`, `"sampling"`, `"annealing"`,
            `"descent"`, `"exhaustive"`, or a `search.Strategy` of your own. `"annealing:0.2"`
            starts at that temperature.
        replay: A saved result, or its file: its candidates are rebuilt without exploring or
            measuring, and the table is the saved one.
        cancel: Set it, from any thread, to end the search and keep what was found.
        executor: Where kernels are compiled, verified and timed: any
            `concurrent.futures.Executor` whose processes can import this package, or a dask
            `Client`. Its machines must be like this one: their times are compared. With None,
            kernels are compiled on all cores of this machine, and timed one at a time.

    Returns:
        `result.best` and everything that was tried. Ctrl-C ends the search and keeps what was
        found.

    Raises:
        SearchError: when nothing can be run, or a replay differs: it says in what.
    """
    from luminal_lab.search.budget import Budget
    from luminal_lab.search.run import search as run

    with target_of(egraph.target, executor) as target:
        return run(
            egraph,
            budget=budget or Budget(),
            seed=seed,
            target=target,
            progress=progress,
            strategy=strategy,
            replay=replay,
            cancel=cancel,
        )


def build(candidate: Candidate, *, freeze: bool = True, progress: bool = False) -> Executable:
    """Compile a candidate to one shared library, ready to be called like the module.

    Arguments:
        candidate: From `search` or `sample`.
        freeze: Compute and pack what depends on weights alone now, not at each call.
        progress: Show a progress bar.

    Raises:
        CompilerError: when there is no compiler or it rejects the source.
    """
    from luminal_lab.runtime.building import build as run

    return run(candidate, freeze=freeze, progress=progress)


def profile(exe: Executable | Buckets, args: Sequence[Any], **options: Any) -> Profile:
    """Time an executable kernel by kernel on `args`; see `Profile`.

    Of `Buckets` the part that runs `args` is timed; `exe.profiles()` times each.
    """
    from luminal_lab.runtime.buckets import Buckets
    from luminal_lab.runtime.profiling import profile as run

    if isinstance(exe, Buckets):
        exe = exe.part(*args, **options.get("kwargs") or {}).executable
    return run(exe, tuple(args), **options)


@overload
def compile(
    module_or_fn: Callable[..., Any] | Graph,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: None = None,
    target: str = "cpu",
    budget: Budget | None = None,
    seed: int = 0,
    rules: Rules = None,
    freeze: bool = True,
    progress: bool = False,
    executor: Executor | Any = None,
) -> Executable: ...


@overload
def compile(
    module_or_fn: Callable[..., Any] | Graph,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: Mapping[str, Bucket | Sequence[Bucket]],
    target: str = "cpu",
    budget: Budget | None = None,
    seed: int = 0,
    rules: Rules = None,
    freeze: bool = True,
    progress: bool = False,
    executor: Executor | Any = None,
) -> Buckets: ...


def compile(
    module_or_fn: Callable[..., Any] | Graph,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: Mapping[str, Bucket | Sequence[Bucket]] | None = None,
    target: str = "cpu",
    budget: Budget | None = None,
    seed: int = 0,
    rules: Rules = None,
    freeze: bool = True,
    progress: bool = False,
    executor: Executor | Any = None,
) -> Executable | Buckets:
    """Capture, saturate, search and build in one call.

    Arguments:
        module_or_fn: As for `capture`, like the next two.
        args: Example arguments; with `dynamic_shapes` their sizes are those tuned for.
        kwargs: Example keyword arguments.
        dynamic_shapes: Dims that may vary from call to call, as for `torch.export.export`: one
            compilation serves their whole range.
        buckets: Ranges of dims that get kernels of their own, by the name of the dim (of a
            `torch.export.Dim`, or `g.dim`): one search each, at the sizes that `tune_at` says.
        target: Where it runs.
        budget: How much to search.
        seed: For the search.
        rules: More rules, as for `saturate`.
        freeze: Compute what depends on weights alone now.
        progress: Show progress bars.
        executor: As for `search`.

    Returns:
        A callable with the module's own signature and result structure. Its stages are at
        `exe.candidate` and `exe.candidate.hlir`; with `buckets` a `Buckets` of several.

    >>> import torch, luminal_lab as ll
    >>> fn = ll.compile(torch.nn.GELU(), (torch.randn(16),), budget=ll.Budget("none"))
    >>> bool(torch.allclose(fn(torch.zeros(16)), torch.zeros(16)))
    True
    """
    hlir = capture(module_or_fn, args, kwargs, dynamic_shapes)
    run = partial(
        compile_hlir,
        target=target,
        budget=budget,
        seed=seed,
        rules=rules,
        freeze=freeze,
        progress=progress,
        executor=executor,
    )
    if buckets is None:
        return run(hlir)
    from luminal_lab.runtime.buckets import compiled

    return compiled(hlir, buckets, run)


def compile_hlir(
    hlir: Hlir,
    *,
    target: str = "cpu",
    budget: Budget | Mapping[str, Any] | None = None,
    seed: int = 0,
    rules: Rules = None,
    freeze: bool = True,
    progress: bool = False,
    executor: Executor | Any = None,
) -> Executable:
    """`compile` from a captured program on; the budget may be given as a Budget's fields."""
    target_of(target)  # a target that cannot run is refused before any work is done
    if isinstance(budget, Mapping):
        from luminal_lab.search.budget import Budget

        budget = Budget(**budget)
    egraph = saturate(hlir, target=target, rules=rules, progress=progress)
    result = search(egraph, budget=budget, seed=seed, progress=progress, executor=executor)
    return build(result.best, freeze=freeze, progress=progress)


def load(path: str | Path) -> Any:
    """Read back the stage object that `.save(path)` wrote, or open a session.

    A saved object is data: loading it runs no code from it.

    Raises:
        LuminalError: when the file is missing, damaged, or not one of ours.
    """
    from luminal_lab.egraph import EGraph
    from luminal_lab.files import load_any
    from luminal_lab.hlir import Hlir
    from luminal_lab.runtime import Buckets, Executable, Profile
    from luminal_lab.search import Candidate, Result
    from luminal_lab.session import Session, is_session

    if is_session(path):
        return Session(path)
    stages = (Hlir, EGraph, Candidate, Result, Executable, Buckets, Profile)
    return load_any(path, {stage.__name__.lower(): stage.load for stage in stages})
