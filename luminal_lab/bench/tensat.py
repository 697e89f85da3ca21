"""The seven models of the TENSAT and TASO papers, written out in plain PyTorch.

Each has the published architecture at batch 1 with random weights: BERT (base), ResNeXt-50
(32x4d), NasRNN, NasNet-A, Inception-v3, SqueezeNet 1.1 and VGG-19. NasRNN and NasNet-A have
the sizes of TASO's examples (a cell of 512 units over 5 steps; three stages of five cells with
128, 256 and 512 channels). Weights are scaled so that activations keep their size through the
depth, and batch normalisation has statistics that differ from channel to channel.

Sources: Yang et al., "Equality Saturation for Tensor Graph Superoptimization" (MLSys 2021); Jia
et al., "TASO" (SOSP 2019); and the papers of the models themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


# ------------------------------------------------------------------------------------ pieces
class ConvNorm(nn.Module):
    """Convolution, batch normalisation, and relu if wanted: `(1, c, y, x)`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        relu: bool = True,
    ):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Apply the three."""
        x = self.norm(self.conv(x))
        return F.relu(x) if self.relu else x


class Branches(nn.Module):
    """Branches of one input, their results concatenated along the channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """All branches, side by side."""
        return torch.cat([b(x) for b in self.branches], 1)


# ------------------------------------------------------------------------------------ VGG-19
def vgg19() -> nn.Module:
    """VGG-19 (Simonyan and Zisserman, configuration E), 224x224."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(4096, 1000))


# -------------------------------------------------------------------------------- SqueezeNet
class Fire(nn.Module):
    """Squeeze to few channels, expand by 1x1 and 3x3."""

    def __init__(self, inputs: int, squeeze: int, expand: int):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.one = nn.Conv2d(squeeze, expand, 1)
        self.three = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """`(1, inputs, y, x)` to `(1, 2 expand, y, x)`."""
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al.), 224x224."""

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), pool(),
        Fire(64, 16, 64), Fire(128, 16, 64), pool(),
        Fire(128, 32, 128), Fire(256, 32, 128), pool(),
        Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


# -------------------------------------------------------------------------------- ResNeXt-50
class ResNeXtBlock(nn.Module):
    """1x1, grouped 3x3, 1x1, and the residual sum."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int):
        super().__init__()
        self.reduce = ConvNorm(inputs, width, 1)
        self.group = ConvNorm(width, width, 3, stride, 1, groups=32)
        self.expand = ConvNorm(width, outputs, 1, relu=False)
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(1, inputs, y, x)` to `(1, outputs, y/stride, x/stride)`."""
        return F.relu(self.expand(self.group(self.reduce(x))) + self.short(x))


def resnext50() -> nn.Module:
    """ResNeXt-50, 32x4d (Xie et al.), 224x224."""
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width, outputs = 128 << stage, 256 << stage
        for k in range(count):
            stride = 2 if stage and not k else 1
            layers.append(ResNeXtBlock(inputs, width, outputs, stride))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


# ------------------------------------------------------------------------------ Inception-v3
def _chain(inputs: int, *rows: tuple) -> nn.Module:
    """Convolutions one after another: (outputs, size, stride, padding)."""
    layers = []
    for outputs, size, *rest in rows:
        layers.append(ConvNorm(inputs, outputs, size, *rest))
        inputs = outputs
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, outputs, 1))


def _inception_a(inputs: int, pool: int) -> nn.Module:
    return Branches(
        _chain(inputs, (64, 1)),
        _chain(inputs, (48, 1), (64, 5, 1, 2)),
        _chain(inputs, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
        _pooled(inputs, pool),
    )


def _inception_c(width: int) -> nn.Module:
    row, col = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    return Branches(
        _chain(768, (192, 1)),
        _chain(768, (width, 1), (width, *row), (192, *col)),
        _chain(768, (width, 1), (width, *col), (width, *row), (width, *col), (192, *row)),
        _pooled(768, 192),
    )


def _inception_e(inputs: int) -> nn.Module:
    def split() -> nn.Module:
        return Branches(
            ConvNorm(384, 384, (1, 3), 1, (0, 1)), ConvNorm(384, 384, (3, 1), 1, (1, 0))
        )

    return Branches(
        _chain(inputs, (320, 1)),
        nn.Sequential(_chain(inputs, (384, 1)), split()),
        nn.Sequential(_chain(inputs, (448, 1), (384, 3, 1, 1)), split()),
        _pooled(inputs, 192),
    )


def inception_v3() -> nn.Module:
    """Inception-v3 without its auxiliary classifier (Szegedy et al.), 299x299."""
    return nn.Sequential(
        _chain(3, (32, 3, 2), (32, 3), (64, 3, 1, 1)), nn.MaxPool2d(3, 2),
        _chain(64, (80, 1), (192, 3)), nn.MaxPool2d(3, 2),
        _inception_a(192, 32), _inception_a(256, 64), _inception_a(288, 64),
        Branches(
            _chain(288, (384, 3, 2)),
            _chain(288, (64, 1), (96, 3, 1, 1), (96, 3, 2)),
            nn.MaxPool2d(3, 2),
        ),
        _inception_c(128), _inception_c(160), _inception_c(160), _inception_c(192),
        Branches(
            _chain(768, (192, 1), (320, 3, 2)),
            _chain(
                768, (192, 1), (192, (1, 7), 1, (0, 3)), (192, (7, 1), 1, (3, 0)), (192, 3, 2)
            ),
            nn.MaxPool2d(3, 2),
        ),
        _inception_e(1280), _inception_e(2048),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000),
    )  # fmt: skip


# ---------------------------------------------------------------------------------- NasNet-A
class Separable(nn.Module):
    """Relu, a depthwise convolution, and a pointwise one."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1):
        super().__init__()
        self.depth = nn.Conv2d(
            inputs, inputs, size, stride, size // 2, groups=inputs, bias=False
        )
        self.point = ConvNorm(inputs, outputs, 1, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(1, inputs, y, x)` to `(1, outputs, y/stride, x/stride)`."""
        return self.point(self.depth(F.relu(x)))


class NormalCell(nn.Module):
    """The normal cell: five sums of two branches each, concatenated."""

    def __init__(self, before: int, inputs: int, width: int, reduce: int):
        super().__init__()
        self.fit = ConvNorm(before, width, 1, reduce)  # brings `before` to the size of `now`
        self.squeeze = ConvNorm(inputs, width, 1)
        self.now3, self.now5 = Separable(width, width, 3), Separable(width, width, 5)
        self.old3, self.old3b = Separable(width, width, 3), Separable(width, width, 3)
        self.old5 = Separable(width, width, 5)

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        """Two inputs `(1, c, y, x)`; result `(1, 5 width, y, x)`."""
        old, now = self.fit(before), self.squeeze(now)
        mean = F.avg_pool2d(old, 3, 1, 1)
        parts = [
            self.now3(now) + now,
            self.old3(old) + self.now5(now),
            F.avg_pool2d(now, 3, 1, 1) + old,
            mean + mean,
            self.old5(old) + self.old3b(old),
        ]
        return torch.cat(parts, 1)


class ReductionCell(nn.Module):
    """The reduction cell: half the size, four parts."""

    def __init__(self, before: int, inputs: int, width: int):
        super().__init__()
        self.fit, self.squeeze = ConvNorm(before, width, 1), ConvNorm(inputs, width, 1)
        self.old7, self.old7b = Separable(width, width, 7, 2), Separable(width, width, 7, 2)
        self.old5, self.now5 = Separable(width, width, 5, 2), Separable(width, width, 5, 2)
        self.mix3 = Separable(width, width, 3)

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        """Two inputs `(1, c, y, x)`; result `(1, 4 width, y/2, x/2)`."""
        old, now = self.fit(before), self.squeeze(now)
        largest = F.max_pool2d(now, 3, 2, 1)
        first = self.old7(old) + self.now5(now)
        second = largest + self.old7b(old)
        third = F.avg_pool2d(now, 3, 2, 1) + self.old5(old)
        return torch.cat(
            [second, third, F.avg_pool2d(first, 3, 1, 1) + second, self.mix3(first) + largest],
            1,
        )


class NasNet(nn.Module):
    """NasNet-A (Zoph et al.): stages of normal cells, a reduction cell after each."""

    def __init__(self, cells: int = 5, width: int = 128, classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList()
        channels = 64
        for _ in range(3):
            stage = nn.ModuleList()
            before, now = channels, channels
            for _ in range(cells):
                stage.append(NormalCell(before, now, width, 1))
                before, now = now, 5 * width
            stage.append(ReductionCell(before, now, 2 * width))
            channels, width = 8 * width, 2 * width
            self.stages.append(stage)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """`(1, 3, 224, 224)` to `(1, classes)`."""
        x = self.stem(x)
        for stage in self.stages:
            before = now = x
            for cell in cast(nn.ModuleList, stage):
                before, now = now, cell(before, now)
            x = now
        return self.head(x.mean((2, 3)))


# ------------------------------------------------------------------------------------ NasRNN
class NasRNN(nn.Module):
    """The recurrent cell that architecture search found (Zoph and Le), over a few steps."""

    def __init__(self, size: int = 512):
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(8))
        self.states = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(8))

    def forward(self, state: Tensor, *steps: Tensor) -> Tensor:
        """State and each step `(1, size)`; result `(1, size)`."""
        for x in steps:
            a = [u(x) + w(state) for u, w in zip(self.inputs, self.states)]
            first = F.relu(a[0]) + torch.sigmoid(a[3])
            second = torch.sigmoid(a[1]) + torch.tanh(a[2])
            third = torch.sigmoid(a[4]) * torch.tanh(a[5])
            fourth = torch.sigmoid(a[6]) * F.relu(a[7])
            left = torch.sigmoid(second) + torch.tanh(third)
            right = torch.tanh(first) * torch.tanh(fourth)
            state = torch.tanh(torch.tanh(left) * torch.tanh(right))
        return state


# -------------------------------------------------------------------------------------- BERT
class BertLayer(nn.Module):
    """Attention and a feed-forward network, each with its residual sum and normalisation."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def _split(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        return x.view(b, s, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """`(1, tokens, size)`."""
        q, k, v = (self._split(f(x)) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (1, heads, s, s)
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def bert(layers: int = 12, size: int = 768, heads: int = 12) -> nn.Module:
    """The encoder of BERT-base (Devlin et al.), without its embedding."""
    return nn.Sequential(*(BertLayer(size, heads) for _ in range(layers)))


# ------------------------------------------------------------------------------------- table
def _image(size: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda g: (torch.randn(1, 3, size, size, generator=g),)


def _steps(g: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, 512, generator=g) for _ in range(6))


def _tokens(g: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(1, 64, 768, generator=g),)


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, ...]]]] = {
    "BERT": (bert, _tokens),
    "ResNeXt-50": (resnext50, _image(224)),
    "NasRNN": (NasRNN, _steps),
    "NasNet-A": (NasNet, _image(224)),
    "Inception-v3": (inception_v3, _image(299)),
    "SqueezeNet": (squeezenet, _image(224)),
    "VGG-19": (vgg19, _image(224)),
}


def model(name: str, seed: int = 0) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model in evaluation mode, and inputs.

    Arguments:
        name: A key of `MODELS`.
        seed: Of weights and inputs.

    Returns:
        The module and the arguments of its `forward`.
    """
    make, inputs = MODELS[name]
    g = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make().eval()
    with torch.no_grad():
        for part in made.modules():
            _fill(part, g)
    return made, inputs(g)


def _fill(part: nn.Module, g: torch.Generator) -> None:
    """Random parameters that keep the size of activations."""
    if isinstance(part, nn.Conv2d | nn.Linear):
        gain = math.sqrt(2.0 / part.weight[0].numel())
        part.weight.normal_(0.0, gain, generator=g)
        if part.bias is not None:
            part.bias.normal_(0.0, 0.1, generator=g)
    elif isinstance(part, nn.BatchNorm2d):
        mean, var = part.running_mean, part.running_var
        assert mean is not None
        assert var is not None
        mean.normal_(0.0, 0.1, generator=g)
        for t in (var, part.weight):
            t.uniform_(0.5, 1.5, generator=g)
        part.bias.normal_(0.0, 0.1, generator=g)


def names(wanted: Sequence[str] = ()) -> list[str]:
    """The models whose names contain one of the given texts; all for none."""
    return [n for n in MODELS if not wanted or any(w.lower() in n.lower() for w in wanted)]
