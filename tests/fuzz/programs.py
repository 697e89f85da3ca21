"""Random programs: a few lines of PyTorch calls over inputs of many dtypes, by a seed.

A program is Python source, so that a wrong one can be read, shortened and sent to somebody. It
is made line by line: a call is drawn, run on the values so far, and dropped if PyTorch refuses
it, so every program runs in eager PyTorch. The last lines are its results.
"""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
FLOATS = (torch.float32,) * 4 + (torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.int8)
HOSTILE = (math.nan, math.inf, -math.inf, -0.0, 0.0)
LARGEST_INPUT, LARGEST_VALUE = 3000, 20000  # elements
RESULTS = 3

UNARY = (
    "torch.exp", "torch.tanh", "torch.sigmoid", "torch.sin", "torch.cos", "torch.abs",
    "torch.neg", "torch.relu", "F.gelu", "F.silu", "torch.floor", "torch.sign",
    "torch.square", "torch.reciprocal", "torch.sqrt", "torch.rsqrt", "torch.log1p",
    "torch.expm1", "torch.erf", "torch.round", "F.softplus", "F.elu", "F.leaky_relu",
    "torch.isnan", "torch.isfinite", "torch.logical_not", "torch.trunc", "torch.frac",
    "torch.nan_to_num", "F.hardswish", "F.mish", "torch.atan", "torch.log", "torch.log2",
    "torch.sinh", "torch.asinh", "F.logsigmoid", "F.relu6", "F.selu", "F.tanhshrink",
    "F.softsign", "torch.exp2",
)  # fmt: skip
BINARY = (
    "torch.add", "torch.sub", "torch.mul", "torch.div", "torch.maximum", "torch.minimum",
    "torch.atan2", "torch.eq", "torch.lt", "torch.ge", "torch.remainder", "torch.fmod",
    "torch.logical_and", "torch.floor_divide", "torch.pow", "torch.copysign", "torch.fmax",
    "torch.hypot", "torch.logaddexp", "torch.ne", "torch.bitwise_and", "torch.bitwise_xor",
    "torch.xlogy",
)  # fmt: skip
REDUCTIONS = (
    "torch.sum", "torch.mean", "torch.amax", "torch.amin", "torch.prod", "torch.any",
    "torch.all", "torch.logsumexp", "torch.argmax", "torch.argmin",
    "torch.linalg.vector_norm", "torch.max", "torch.min", "torch.std", "torch.nansum",
)  # fmt: skip
SEVERAL_DIMS = ("torch.sum", "torch.mean", "torch.amax", "torch.std", "torch.logsumexp")
DTYPES = ("float32", "bfloat16", "float16", "int32", "int64", "float64", "bool")
HEAD = """import torch
import torch.nn.functional as F


def fill_first(x):
    z = x.clone()
    z.select(0, 0).fill_(0)
    return z


def add_to_first(x):
    z = x.clone()
    z[..., :1] += 1
    return z


def scale_swapped(x, dim):
    z = x.clone()
    z.transpose(0, dim).mul_(2)
    return z


"""


@dataclass(frozen=True)
class Program:
    """A random program.

    Arguments:
        seed: What it was made from.
        lines: Its statements, `v0 = torch.exp(a0)`, in order.
        results: The names that it returns.
        inputs: Tensors for `a0`, `a1`, …; some are not contiguous.
    """

    seed: int
    lines: tuple[str, ...]
    results: tuple[str, ...]
    inputs: tuple[Tensor, ...]

    @property
    def text(self) -> str:
        """Its source: a module with a function `f`."""
        names = ", ".join(f"a{k}" for k in range(len(self.inputs)))
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"{HEAD}def f({names}):\n{body}    return ({', '.join(self.results)},)\n"

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The function; its source can be found, as Dynamo wants."""
        name = f"<program {self.seed}: {hash(self.lines)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(True), name)
        scope: dict[str, Any] = {}
        exec(compile(self.text, name, "exec"), scope)
        return scope["f"]


@dataclass
class Draft:
    """A program being made.

    Arguments:
        draw: Where choices come from.
        values: Every name's value so far.
        lines: The statements so far.
    """

    draw: random.Random
    values: dict[str, Tensor]
    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)

    def one(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.draw.choice(choices)

    def step(self) -> None:
        """Draw one more line; nothing is added when PyTorch refuses it."""
        names = list(self.values)
        late = 1 - self.draw.random() ** 2  # prefer what was computed last
        x = names[min(len(names) - 1, int(late * len(names)))]
        y = self.draw.choice(names)
        kind = self.draw.choices(list(KINDS), [w for w, _ in KINDS.values()])[0]
        try:
            text = KINDS[kind][1](Operand(self, x), y)
            if text is None:
                return
            value = eval(text, self.scope, self.values)
        except Exception:  # noqa: BLE001  (whatever PyTorch refuses is no line of a program)
            return
        if isinstance(value, Tensor) and value.numel() <= LARGEST_VALUE:
            if value.is_complex():
                return
            name = f"v{len(self.lines)}"
            self.lines.append(f"{name} = {text}")
            self.values[name] = value


class Operand:
    """The operand of a line: its name, and what lines want to know of its value."""

    def __init__(self, draft: Draft, name: str):
        self.draft, self.draw, self.one, self.x = draft, draft.draw, draft.one, name
        self.value = draft.values[name]
        self.shape = tuple(self.value.shape)
        self.rank = len(self.shape)
        self.dim = self.draw.randrange(self.rank) if self.rank else 0
        self.n = self.shape[self.dim] if self.rank else 1
        self.floating = self.value.dtype.is_floating_point
        self.real = name if self.floating else f"{name}.float()"
        self.before = ":, " * self.dim  # of an index into the dim

    def __str__(self) -> str:
        return self.x

    def with_shape(self, y: str) -> str:
        """`y`, or one element of it where its shape does not fit."""
        try:
            torch.broadcast_shapes(self.shape, self.draft.values[y].shape)
        except RuntimeError:
            return f"{y}.reshape(-1)[:1]"
        return y

    def positions(self) -> str:
        """An index tensor of the operand's shape, into its dim."""
        return f"(torch.arange({self.value.numel()}).reshape({self.shape}) * 7) % {self.n}"


def unary(x: Operand, y: str) -> str:
    return f"{x.one(*UNARY)}({x})"


def binary(x: Operand, y: str) -> str:
    return f"{x.one(*BINARY)}({x}, {x.with_shape(y)})"


def constant(x: Operand, y: str) -> str:
    k = x.one("0", "1", "2", "-1", "0.5", "-2.5", "3", "1e-3", "True")
    return x.one(
        f"{x} + {k}", f"{k} - {x}", f"{x} * {k}", f"{x} / {k}", f"{x} > {k}", f"{x} ** 2",
        f"torch.clamp({x}, -1, 1)", f"{x} % 3", f"{x} // 2", f"2 ** {x}", f"{x} ** 3",
        f"{x}.clamp(min=0)",
    )  # fmt: skip


def reduction(x: Operand, y: str) -> str:
    op, dims = x.one(*REDUCTIONS), str(x.dim)
    if x.rank > 1 and op in SEVERAL_DIMS and x.draw.random() < 0.4:
        dims = str(tuple(sorted(x.draw.sample(range(x.rank), 2))))
    operand = x.real if op == "torch.mean" else x
    return f"{op}({operand}, dim={dims}, keepdim={x.draw.random() < 0.5})"


def view(x: Operand, y: str) -> str:
    start = x.draw.randint(0, x.n - 1) if x.n else 0
    order = x.draw.sample(range(x.rank), x.rank)
    wide = "".join(f", {n}" for n in x.shape)
    return x.one(
        f"{x}.transpose(0, -1)", f"{x}.reshape(-1)", f"{x}.reshape({(*x.shape, 1)[0]}, -1)",
        f"{x}.unsqueeze({x.draw.randint(0, x.rank)})", f"{x}.squeeze()",
        f"{x}.unsqueeze(0).expand({x.one(2, 3, 5)}{wide})", f"{x}.flip({x.dim})",
        f"{x}[{x.before}{start}:]", f"torch.roll({x}, {x.draw.randint(-3, 3)}, {x.dim})",
        f"{x}.narrow({x.dim}, 0, {max(1, x.n // 2)})", f"{x}.chunk(2, {x.dim})[-1]",
        f"{x}[{x.before}::2]", f"torch.diagonal({x}, 0, 0, -1)", f"{x}.permute({order})",
        f"{x}.unfold({x.dim}, {min(x.n, 3)}, {x.one(1, 2)})",
        f"{x}.repeat({'1, ' * (x.rank - 1)}2)", f"{x}.select({x.dim}, {start})",
        f"{x}.repeat_interleave(2, {x.dim})",
        f"torch.split({x}, [{x.n // 2}, {x.n - x.n // 2}], {x.dim})[{x.one(0, 1)}]",
    )  # fmt: skip


def product(x: Operand, y: str) -> str:
    for name, v in reversed(x.draft.values.items()):
        fits = v.dim() == 2 and v.dtype == x.value.dtype and x.rank and x.floating
        if fits and v.shape[0] == x.shape[-1]:
            return f"{x} @ {name}"
        if fits and v.shape[1] == x.shape[-1]:
            return f"F.linear({x}, {name})"
    if x.rank == 1:
        return f"torch.outer({x.real}, {x.real})"
    swapped = f"{x.real}.transpose(-1, -2)"
    return x.one(f"{x.real} @ {swapped}", f"{swapped} @ {x.real}")


def choice(x: Operand, y: str) -> str:
    other = x.with_shape(y)
    number = x.one("0.0", "1.0", "float('-inf')")
    return x.one(
        f"torch.where({y}.bool(), {x}, {x} * 0 + 1)",
        f"torch.where({other} > 0, {x}, {number})",
        f"{x}.masked_fill({other} > 0, {x.one('0', chr(45) + '1e9')})",
    )


def cast(x: Operand, y: str) -> str:
    if x.floating and x.draw.random() < 0.3:  # to integers, in their range
        bounded = f"torch.round({x}.clamp(-50, 50)).nan_to_num()"
        return f"{bounded}.to(torch.{x.one('int32', 'int64', 'int8')})"
    return f"{x}.to(torch.{x.one(*DTYPES)})"


def softmax(x: Operand, y: str) -> str:
    return f"{x.one('torch.softmax', 'torch.log_softmax', 'F.softmin')}({x.real}, dim={x.dim})"


def norm(x: Operand, y: str) -> str:
    last = (x.shape or (1,))[-1]
    return x.one(
        f"F.layer_norm({x.real}, ({last},))", f"F.rms_norm({x.real}, ({last},))",
        f"F.normalize({x.real}, dim={x.dim})",
    )  # fmt: skip


def join(x: Operand, y: str) -> str:
    def rest(shape: Sequence[int]) -> list[int]:
        return [n for d, n in enumerate(shape) if d != x.dim]

    fits = [
        name
        for name, v in x.draft.values.items()
        if v.dim() == x.rank and rest(v.shape) == rest(x.shape)
    ]
    return x.one(
        f"torch.cat([{x}, {x.one(*fits)}, {x}], {x.dim})",
        f"torch.stack([{x}, {x} + {x}], {x.dim})",
    )


def index(x: Operand, y: str) -> str:
    at = [x.draw.randrange(-x.n, x.n) for _ in range(4)]
    inside = [k % x.n for k in at]
    rows = [k % (x.shape or (1,))[0] for k in at]
    return x.one(
        f"{x}.index_select({x.dim}, torch.tensor({inside}))",
        f"{x}.reshape(-1)[torch.tensor({inside})]",
        f"torch.gather({x}, {x.dim}, {x.positions()})",
        f"F.embedding(torch.tensor({rows}), {x})", f"{x}[{x.before}torch.tensor({at})]",
        f"torch.take_along_dim({x}, {x}.argsort({x.dim}, stable=True), {x.dim})",
    )  # fmt: skip


def in_place(x: Operand, y: str) -> str:
    other = x.with_shape(y)
    return x.one(
        f"{x}.clone().add_(1)", f"{x}.clone().mul_({other})", f"fill_first({x})",
        f"add_to_first({x})", f"scale_swapped({x}, {x.dim})", f"{x}.clone().copy_({other})",
    )  # fmt: skip


def scan(x: Operand, y: str) -> str:
    return x.one(
        f"torch.cumsum({x}, {x.dim})", f"torch.cumprod({x}, {x.dim})",
        f"torch.cummax({x}, {x.dim})[{x.one(0, 1)}]", f"torch.logcumsumexp({x.real}, {x.dim})",
    )  # fmt: skip


def pool(x: Operand, y: str) -> str | None:
    if x.rank not in (3, 4):
        return None
    d = x.rank - 2
    return x.one(
        f"F.max_pool{d}d({x.real}, 2)", f"F.avg_pool{d}d({x.real}, 2, 1)",
        f"F.max_pool{d}d({x.real}, 3, 2, 1)", f"F.adaptive_avg_pool{d}d({x.real}, 1)",
        f"F.interpolate({x.real}, scale_factor=2)",
    )  # fmt: skip


def sort(x: Operand, y: str) -> str:
    return x.one(
        f"torch.sort({x}, {x.dim}, stable=True)[{x.one(0, 1)}]",
        f"torch.topk({x}, {min(2, x.n)}, {x.dim})[0]", f"torch.median({x}, {x.dim})[0]",
        f"torch.kthvalue({x}, 1, {x.dim})[0]",
    )  # fmt: skip


def pad(x: Operand, y: str) -> str:
    width = f"({x.draw.randint(0, 2)}, {x.draw.randint(-1, 2)})"
    mode = x.one("reflect", "replicate", "circular")
    return x.one(
        f"F.pad({x}, {width}, value={x.one(0, 1)})", f"F.pad({x.real}, (1, 1), mode='{mode}')"
    )


def triangle(x: Operand, y: str) -> str:
    return x.one(f"torch.triu({x})", f"torch.tril({x}, -1)")


def scatter(x: Operand, y: str) -> str:
    zeros, where = f"torch.zeros_like({x})", x.positions()
    rows = [x.draw.randrange(x.n) for _ in range(x.n)]
    return x.one(
        f"{zeros}.scatter_add({x.dim}, {where}, {x})",
        f"{zeros}.index_add({x.dim}, torch.tensor({rows}), {x})",
        f"{x}.index_fill({x.dim}, torch.tensor([0]), 2)",
        f"{zeros}.scatter_reduce({x.dim}, {where}, {x}, '{x.one('amax', 'sum', 'amin')}')",
        f"{x}.index_copy({x.dim}, torch.tensor([0]), {x}.narrow({x.dim}, {x.n - 1}, 1))",
    )  # fmt: skip


def variance(x: Operand, y: str) -> str:
    biased = x.draw.random() < 0.5
    return x.one(
        f"torch.var({x.real}, {x.dim}, keepdim=True, unbiased={biased})",
        f"torch.std_mean({x.real}, {x.dim})[{x.one(0, 1)}]",
    )


def attention(x: Operand, y: str) -> str | None:
    if x.rank < 2:
        return None
    causal = x.draw.random() < 0.5
    return f"F.scaled_dot_product_attention({x.real}, {x.real}, {x.real}, is_causal={causal})"


def convolution(x: Operand, y: str) -> str | None:
    if x.rank != 3:
        return None
    dtype = x.value.dtype if x.floating else torch.float32
    shape = (2, x.shape[1], min(3, x.shape[2]))
    return f"F.conv1d({x.real}, torch.ones({shape}, dtype={dtype}) * 0.3, padding=1)"


Kind = tuple[int, Callable[[Operand, str], "str | None"]]
KINDS: dict[str, Kind] = {
    "unary": (6, unary),
    "binary": (7, binary),
    "constant": (5, constant),
    "reduction": (6, reduction),
    "view": (8, view),
    "product": (4, product),
    "choice": (3, choice),
    "cast": (3, cast),
    "softmax": (2, softmax),
    "norm": (2, norm),
    "join": (3, join),
    "index": (3, index),
    "in place": (2, in_place),
    "scan": (1, scan),
    "pool": (2, pool),
    "sort": (1, sort),
    "pad": (1, pad),
    "triangle": (1, triangle),
    "scatter": (1, scatter),
    "variance": (1, variance),
    "attention": (1, attention),
    "convolution": (1, convolution),
}


def program(seed: int, longest: int = 9) -> Program | None:
    """The program of a seed, or None when every line drawn was refused.

    Arguments:
        seed: Its number: the same program in every process, for one version of PyTorch.
        longest: Lines that are drawn at most.
    """
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    inputs = _inputs(draw, generator)
    draft = Draft(draw, {f"a{k}": t.clone() for k, t in enumerate(inputs)})
    exec(HEAD, draft.scope)
    for _ in range(draw.randint(2, longest)):
        draft.step()
    results = tuple(f"v{k}" for k in range(len(draft.lines)))[-RESULTS:]
    return Program(seed, tuple(draft.lines), results, inputs) if results else None


def _inputs(draw: random.Random, generator: torch.Generator) -> tuple[Tensor, ...]:
    out = []
    for _ in range(draw.randint(1, 3)):
        rank = draw.choice((1, 2, 2, 3, 3, 4))
        shape = [draw.choice(SIZES) for _ in range(rank)]
        while math.prod(shape) > LARGEST_INPUT:
            shape[draw.randrange(rank)] = 2
        dtype = draw.choice(FLOATS if draw.random() < 0.8 else INTEGERS)
        tensor = _tensor(shape, dtype, draw, generator)
        if draw.random() < 0.2 and rank > 1:
            tensor = tensor.transpose(0, 1)
        out.append(tensor)
    if draw.random() < 0.5:  # weights of a product
        first = out[0]
        weights = torch.randn(first.shape[-1], draw.choice((4, 8, 16)), generator=generator)
        out.append(weights.to(first.dtype if first.dtype.is_floating_point else torch.float32))
    return tuple(out)


def _tensor(
    shape: Sequence[int], dtype: torch.dtype, draw: random.Random, generator: torch.Generator
) -> Tensor:
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator)
        if draw.random() < 0.1:
            x.view(-1)[draw.randrange(x.numel())] = draw.choice(HOSTILE)
        return x.to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    low, high = (0, 20) if dtype == torch.uint8 else (-9, 10)
    return torch.randint(low, high, shape, generator=generator).to(dtype)
