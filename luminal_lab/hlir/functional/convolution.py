"""Convolution as a sum over windows."""

from __future__ import annotations

from collections.abc import Sequence

from luminal_lab.hlir.functional.precision import wide
from luminal_lab.hlir.tensor import Tensor


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
) -> Tensor:
    """`torch.convolution` in 1, 2 or 3 dims, in a float32 accumulator for 16-bit floats.

    Arguments:
        x: (n, c, *sizes) or (c, *sizes)
        weight: (o, c/groups, *taps); transposed: (c, o/groups, *taps)
        bias: (o,)
        stride: Steps between windows, one number for all dims or one for each.
        padding: Zeros on either side, likewise.
        dilation: Steps within a window, likewise.
        output_padding: What a transposed one adds at the end, likewise.
        transposed: Whether it is the transposed convolution.
        groups: Channels in so many groups.

    Returns:
        (n, o, *sizes) or (o, *sizes), wide, to be cast by the caller.
    """
    space = weight.rank - 2
    batched = x.rank == weight.rank
    x, w = wide(x if batched else x.unsqueeze(0)), wide(weight)
    stride, padding, dilation, output_padding = (
        list(v) * (space if len(v) == 1 else 1)
        for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        x, w = as_forward(x, w, stride, padding, dilation, output_padding, groups)
        stride, padding = [1] * space, [0] * space
    x = x.pad([(0, 0), (0, 0), *((p, p) for p in padding)], 0)
    out_channels, taps = w.shape[0], w.shape[2:]
    for d in range(space):
        x = x.windows(2 + d, taps[d], stride[d], dilation[d])
    n, c, sizes = x.shape[0], x.shape[1], x.shape[2 : 2 + space]
    # x: (n, g, 1, *sizes, c/g, *taps), w: (g, o/g, 1…, c/g, *taps)
    x = x.reshape((n, groups, c // groups, *sizes, *taps)).unsqueeze(2)
    move = [0, 1, 2, *range(4, 4 + space), 3, *range(4 + space, 4 + 2 * space)]
    x = x.permute(*move)
    w = w.reshape((groups, out_channels // groups, *(1,) * space, c // groups, *taps))
    if groups == 1:
        x, w = x.pick(1, 0), w.pick(0, 0)
    out = (x * w).sum(*range(-1 - space, 0))
    out = out.reshape((n, out_channels, *sizes))
    if bias is not None:
        out = out + wide(bias).reshape((out_channels, *(1,) * space))
    return out if batched else out.pick(0, 0)


def as_forward(
    x: Tensor,
    w: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> tuple[Tensor, Tensor]:
    """A transposed convolution as a forward one of stride 1.

    The input is spread with zeros between its elements and padded; the kernel (c, o/g, *taps)
    is turned around, to (o, c/g, *taps).
    """
    space = w.rank - 2
    for d in range(space):
        n = x.shape[2 + d]
        if stride[d] > 1:
            wide = x.unsqueeze(3 + d)
            wide = wide.pad([(0, stride[d] - 1 if k == 3 + d else 0) for k in range(wide.rank)])
            x = wide.reshape((*x.shape[: 2 + d], n * stride[d], *x.shape[3 + d :]))
            x = x.slice(2 + d, 0, (n - 1) * stride[d] + 1)
        edge = dilation[d] * (w.shape[2 + d] - 1) - padding[d]
        pads = [(0, 0)] * x.rank
        pads[2 + d] = (edge, edge + output_padding[d])
        x = x.pad(pads, 0)
    c, per_group, taps = w.shape[0], w.shape[1], w.shape[2:]
    w = w.reshape((groups, c // groups, per_group, *taps)).transpose(1, 2)
    w = w.reshape((groups * per_group, c // groups, *taps))
    return x, w.flip(*range(2, 2 + space))
