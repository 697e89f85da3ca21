"""One application of an op to torch tensors: what the reference interpreter computes with.

Two modes. `float64`: every float is held in float64, and only a Cast to a type of 16 bits or
less rounds; integers and bools keep their own type. `native`: every node is computed in its own
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from luminal_lab.errors import HlirError
from luminal_lab.hlir.dtypes import BY_TORCH_NAME, DType
from luminal_lab.hlir.graph import ComplexRef, Node, Ref, TorchName
from luminal_lab.hlir.ops import OPS

if TYPE_CHECKING:
    from torch import Tensor

Compute = Literal["float64", "native"]


def torch_dtype(dtype: DType, compute: Compute = "native") -> Any:
    """The torch dtype in which a value of `dtype` is held."""
    import torch

    wide = compute == "float64" and dtype.is_float
    return torch.float64 if wide else getattr(torch, dtype.torch_name)


def scalar(value: bool | int | float, dtype: DType, compute: Compute) -> Tensor:
    """A 0-d tensor that holds a constant, or the fill of a guarded view."""
    import torch

    return torch.tensor(value, dtype=torch_dtype(dtype, compute))


def cast(x: Tensor, dtype: DType, compute: Compute) -> Tensor:
    """Cast: rounds to `dtype`; in float64 mode only 16- and 8-bit floats round."""
    if compute == "float64" and dtype.is_float:
        import torch

        rounded = x.to(torch_dtype(dtype)) if dtype.bits <= 16 else x
        return rounded.to(torch.float64)
    return x.to(torch_dtype(dtype))


def elementwise(node: Node, args: Sequence[Tensor], compute: Compute) -> Tensor:
    """A unary, binary, select or cast node on operands that broadcast against each other."""
    if node.op == "Cast":
        return cast(args[0], node.dtype, compute)
    reference = OPS[node.op].reference
    assert reference is not None, node.op
    if compute == "native" and any(_is_8bit_float(a) for a in args):
        import torch

        # torch has no arithmetic on 8-bit floats: a float32 result is rounded once.
        out = reference(*(a.to(torch.float32) if _is_8bit_float(a) else a for a in args))
        return out.to(torch_dtype(node.dtype))
    return reference(*args)


def _is_8bit_float(x: Tensor) -> bool:
    return x.dtype.is_floating_point and x.dtype.itemsize == 1


def reduce_last(op: str, x: Tensor) -> Tensor:
    """SumReduce or MaxReduce over the last dim; the identity where that dim is empty."""
    import torch

    if _is_8bit_float(x):
        return reduce_last(op, x.to(torch.float32)).to(x.dtype)
    if x.dtype == torch.bool:
        return x.any(dim=-1)
    if op == "SumReduce":
        return x.sum(dim=-1, dtype=x.dtype)
    if x.shape[-1] == 0:
        is_float = x.dtype.is_floating_point
        lowest = float("-inf") if is_float else torch.iinfo(x.dtype).min
        return torch.full(x.shape[:-1], lowest, dtype=x.dtype)
    return x.amax(dim=-1)


def place_last(x: Tensor, p: Tensor) -> Tensor:
    """ArgMaxReduce over the last dim: the least p where x is greatest; of none, the largest."""
    import torch

    if not x.shape[-1]:
        return torch.full(x.shape[:-1], torch.iinfo(p.dtype).max, dtype=p.dtype)
    if _is_8bit_float(x):
        x = x.to(torch.float32)
    best = reduce_last("MaxReduce", x)[..., None]
    hit = x == best
    if x.dtype.is_floating_point:
        hit |= torch.isnan(x)
    return torch.where(hit, p, torch.iinfo(p.dtype).max).amin(dim=-1)


def combine(op: str) -> Callable[[Tensor, Tensor], Tensor]:
    """How two partial results of a reduction are joined."""
    import torch

    reference = OPS["Add"].reference
    assert reference is not None
    return reference if op == "SumReduce" else torch.maximum


def scatter(dest: Tensor, src: Tensor, index: Sequence[Tensor], mode: str) -> Tensor:
    """`dest` with `src` stored at `index` (one index tensor per dim of `dest`).

    Points are stored in row-major order: with mode `"set"` the last of several wins.
    """
    import torch

    out = dest.clone(memory_format=torch.contiguous_format)
    if src.numel() == 0:
        return out
    points = torch.broadcast_tensors(src, *index)
    values = points[0].reshape(-1)
    place = torch.zeros_like(values, dtype=torch.int64)
    for n, i in zip(dest.shape, points[1:]):
        place = place * n + i.reshape(-1).to(torch.int64)
    flat = out.view(-1)
    if mode == "set":
        order = torch.argsort(place, stable=True)
        ordered = place[order]
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        flat[ordered[last]] = values[order[last]]
    elif mode == "add" and out.dtype == torch.bool:
        flat[place[values]] = True
    elif mode == "add":
        flat.index_add_(0, place, values)
    else:
        raise HlirError(f"a Scatter's mode is 'set' or 'add', not {mode!r}")
    return out


def call_aten(node: Node, operands: Sequence[Tensor]) -> tuple[Any, ...]:
    """Call the ATen operator of a Custom node; its results, complex ones as their parts.

    Results that it was asked not to compute (`output_mask`) are None, and left out here as they
    are left out of the trace.

    Arguments:
        node: The Custom node.
        operands: Values of its operands in their own dtypes.

    Raises:
        HlirError: when there is no such operator, or when it raises.
    """
    import torch

    target = str(node.attrs["target"])
    found: Any = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise HlirError(
            f"there is no operator {target!r}", where=node.source.line or None
        ) from None
    args, kwargs = node.attrs["template"]
    # HLIR has no strides, and some of ATen's inner operators take for granted what the outer
    # ones, which were traced away, see to: that their operands are contiguous.
    operands = [x.contiguous() for x in operands]
    try:
        out = found(*fill_template(args, operands), **fill_template(kwargs, operands))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise HlirError(f"{target} failed: {error}", where=node.source.line or None) from error
    results = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(
        torch.view_as_real(x.resolve_conj())
        if isinstance(x, torch.Tensor) and x.is_complex()
        else x
        for x in results
        if x is not None
    )


def as_traced(node: Node, result: Tensor, shape: Sequence[int]) -> Tensor:
    """A result of `call_aten` that has the shape which PyTorch's trace gave it.

    Raises:
        HlirError: when it has another one, so that what reads it would be wrong.
    """
    if tuple(result.shape) != tuple(shape):
        raise HlirError(
            f"{node.attrs['target']} returned a tensor of shape {tuple(result.shape)} where "
            f"PyTorch's trace of it says {tuple(shape)}",
            where=node.source.line or None,
            fix="this is a defect of PyTorch: run the operator outside of what is compiled",
        )
    return result


def fill_template(template: Any, operands: Sequence[Any]) -> Any:
    """A Custom's template with its leaves replaced by what torch takes."""
    import torch

    match template:
        case Ref(operand):
            return operands[operand]
        case ComplexRef(operand):
            return torch.view_as_complex(operands[operand].contiguous())
        case TorchName(name):
            return getattr(torch, name)
        case DType():
            return torch_dtype(template)
        case tuple() | list():
            return type(template)(fill_template(t, operands) for t in template)
        case dict():
            return {k: fill_template(v, operands) for k, v in template.items()}
        case _:
            return template


def dtype_of(x: Tensor) -> DType:
    """The DType of a torch tensor.

    Raises:
        KeyError: for complex and quantised tensors.
    """
    return BY_TORCH_NAME[str(x.dtype).removeprefix("torch.")]
