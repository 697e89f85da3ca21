"""What became of a random program: compiled, run twice, and compared with eager PyTorch.

A result is wrong where it is farther from float64 than eager's by more than the dtype allows.
Programs round on purpose and at random (an argmax of quotients, a cast to integers after one to
bfloat16), and then eager is no better judge than anybody: so the program also runs line by line
with noise of a few units in the last place on what each line computes, and elements that this
changes are not compared.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.fuzz.programs import HEAD, Program

# From best to worst. `as traced`: what PyTorch's own trace computes, and eager does not.
OUTCOMES = ("right", "empty", "as traced", "crash", "error", "WRONG")
TOLERANCE = {
    torch.float32: 2e-4,
    torch.float64: 1e-9,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}
NOISES = 8


@dataclass(frozen=True)
class Verdict:
    """One program's outcome, of `OUTCOMES`; `text` says what is not right."""

    outcome: str
    text: str = ""


def judge(program: Program, effort: str = "none") -> Verdict:
    """Compile a program, run it twice and compare."""
    f = program.function()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = f(*_copies(program))
        try:
            got = _compiled(program, "luminal_lab", {"effort": effort})
        except Exception as error:  # noqa: BLE001  (whatever comes out is the verdict)
            frames = traceback.extract_tb(error.__traceback__)
            at = next((x for x in reversed(frames) if "luminal_lab" in x.filename), frames[-1])
            text = f"{type(error).__name__} at {at.name}:{at.lineno}: {error}"
            return Verdict("error", text[:600])
        exact = _exact(program, want)
        masks = unsure(program, want, exact)
        if not (text := _differs(got, want, exact, masks)):
            return Verdict("right")
        try:
            traced = _compiled(program, "aot_eager", None)
        except Exception:  # noqa: BLE001  (then nobody can say)
            return Verdict("WRONG", text)
        same = not _differs(got, traced, exact, masks)
        return Verdict("as traced" if same else "WRONG", text)


def _copies(program: Program) -> list[Tensor]:
    return [x.clone() for x in program.inputs]


def _compiled(
    program: Program, backend: str, options: dict[str, str] | None
) -> Sequence[Tensor]:
    torch._dynamo.reset()
    call = torch.compile(
        program.function(), backend=backend, options=options, fullgraph=True, dynamic=False
    )
    first, second = call(*_copies(program)), call(*_copies(program))
    for x, y in zip(first, second, strict=True):
        if not torch.equal(x.nan_to_num() if x.is_floating_point() else x,
                           y.nan_to_num() if y.is_floating_point() else y):  # fmt: skip
            raise AssertionError("the second call gives another result")
    return second


def _exact(program: Program, want: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results in float64; eager's own where that changes what is computed."""
    wide = [x.double() if x.is_floating_point() else x for x in _copies(program)]
    try:
        exact = program.function()(*wide)
    except Exception:  # noqa: BLE001  (dtypes that no longer fit)
        return want
    same = all(x.shape == y.shape for x, y in zip(exact, want, strict=True))
    return exact if same else want


def unsure(
    program: Program, want: Sequence[Tensor], exact: Sequence[Tensor]
) -> Sequence[Tensor]:
    """For each result, which elements a little noise on every line changes."""
    masks = [torch.zeros(w.shape, dtype=torch.bool) for w in want]
    scope: dict = {}
    exec(HEAD, scope)
    for k in range(NOISES):
        generator = torch.Generator().manual_seed(k)
        values: dict[str, Tensor] = {f"a{n}": x for n, x in enumerate(_copies(program))}
        for line in program.lines:
            name, text = line.split(" = ", 1)
            values[name] = _noisy(eval(text, scope, values), generator)
        for mask, name, w, e in zip(masks, program.results, want, exact, strict=True):
            mask |= wrong(values[name], w, e)
    return masks


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    if not x.is_floating_point():
        return x
    step = 2 * torch.finfo(x.dtype).eps
    noise = 1 + step * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1)
    return (x.double() * noise).to(x.dtype)


def wrong(got: Tensor, want: Tensor, exact: Tensor) -> Tensor:
    """Which elements are not as good as those of eager."""
    if not want.is_floating_point():
        return got != want
    g, w, e = got.double(), want.double(), exact.double()
    finite = g.isfinite() & w.isfinite() & e.isfinite()
    scale = e[finite].abs().max().item() if finite.any() else 0.0
    allowed = 4 * (w - e).abs() + TOLERANCE[want.dtype] * (e.abs() + 1e-2 * scale + 1e-5)
    far = finite & ((g - e).abs() > allowed)
    numbers = ~g.isnan() & ~w.isnan()
    infinite = numbers & (g.isinf() | w.isinf()) & (g != w)
    # where eager overflows on its way and float64 does not, float64 is right
    near = (g == e) | (g.isnan() & e.isnan())
    near |= e.isfinite() & ((g - e).abs() <= TOLERANCE[want.dtype] * (e.abs() + 1e-2 * scale))
    return far | ((infinite | (g.isnan() != w.isnan())) & ~near)


def _differs(
    got: Sequence[Tensor],
    want: Sequence[Tensor],
    exact: Sequence[Tensor],
    masks: Sequence[Tensor],
) -> str:
    for k, (g, w, e, mask) in enumerate(zip(got, want, exact, masks, strict=True)):
        if (g.dtype, g.shape) != (w.dtype, w.shape):
            return f"result {k} is {g.dtype}{list(g.shape)}, eager's {w.dtype}{list(w.shape)}"
        bad = wrong(g, w, e) & ~mask
        if bad.any():
            at = bad.nonzero()[0].tolist()
            place = tuple(at)
            return (
                f"result {k}: {int(bad.sum())} of {w.numel()} differ, at {at} "
                f"{g[place].item()} for {w[place].item()} (float64 {e[place].item()})"
            )
    return ""


def shortened(program: Program, verdict: Verdict, effort: str = "none") -> Program:
    """The program without the lines and the results that its verdict does not need."""
    for result in reversed(program.results):
        alone = replace(program, results=(result,))
        if judge(alone, effort).outcome == verdict.outcome:
            program = alone
            break
    for k in reversed(range(len(program.lines))):
        fewer = replace(program, lines=program.lines[:k] + program.lines[k + 1 :])
        try:
            if judge(fewer, effort).outcome == verdict.outcome:
                program = fewer
        except Exception:  # noqa: BLE001  (the line is needed)
            continue
    return program
