"""Layers with PyTorch's parameters and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.nn.module import Module, Parameter
from luminal_lab.tensor.tensor import Tensor


class Linear(Module):
    """`x @ weight.mT + bias`, (…, inputs) -> (…, outputs).

    Arguments:
        inputs, outputs: Sizes of the last dim.
        bias: Whether there is one.
        dtype: Of the parameters.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, dtype: Any = "f32"):
        super().__init__()
        self.weight = Parameter((outputs, inputs), dtype)
        self.bias = Parameter((outputs,), dtype, 0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x.linear(self.weight.on(x), self.bias.on(x) if self.bias else None)


class Embedding(Module):
    """Rows of a table: integers of any shape -> (…, width).

    Arguments:
        count: Number of rows.
        width: Size of each.
        dtype: Of the table.
    """

    def __init__(self, count: int, width: int, dtype: Any = "f32"):
        super().__init__()
        self.weight = Parameter((count, width), dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """See the class."""
        return self.weight.on(ids).embedding(ids)


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dims, then scaled and shifted.

    Arguments:
        shape: Sizes of these dims, or of the last one.
        eps: Added to the variance.
        bias: Whether it is shifted.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        bias: bool = True,
        dtype: Any = "f32",
    ):
        super().__init__()
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = Parameter(dims, dtype, 1.0)
        self.bias = Parameter(dims, dtype, 0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        bias = self.bias.on(x) if self.bias else None
        return x.layer_norm(len(self.weight.shape), self.weight.on(x), bias, self.eps)


class RMSNorm(Module):
    """Divided by the root of the mean square over the last dims, then scaled.

    Arguments:
        shape: Sizes of these dims, or of the last one.
        eps: Added to the mean square; None for the dtype's precision.
        dtype: Of the parameters.
    """

    def __init__(
        self, shape: int | Sequence[int], eps: float | None = None, dtype: Any = "f32"
    ):
        super().__init__()
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.weight = eps, Parameter(dims, dtype, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x.rms_norm(len(self.weight.shape), self.weight.on(x), self.eps)


class Conv2d(Module):
    """A convolution over images, (n, inputs, h, w) -> (n, outputs, h', w').

    Arguments:
        inputs, outputs: Numbers of channels.
        kernel: Size of the window, one number or two.
        stride, padding, dilation: One number or two.
        groups: Channels in so many groups.
        bias: Whether there is one.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = "f32",
    ):
        super().__init__()
        taps = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
        self.how = {"stride": stride, "padding": padding, "dilation": dilation}
        self.groups = groups
        self.weight = Parameter((outputs, inputs // groups, *taps), dtype)
        self.bias = Parameter((outputs,), dtype, 0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        bias = self.bias.on(x) if self.bias else None
        return x.conv(self.weight.on(x), bias, **self.how, groups=self.groups)


class Sequential(Module):
    """Modules and functions of one Tensor, one after the other.

    Arguments:
        *parts: Modules are named by their numbers.
    """

    def __init__(self, *parts: Any):
        super().__init__()
        self._parts = parts
        for k, part in enumerate(parts):
            if isinstance(part, Module):
                setattr(self, str(k), part)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        for part in self._parts:
            x = part(x)
        return x
