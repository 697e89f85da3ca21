"""Triton's interpreter, made right: exact low-precision types, bounds checks, no leaks.

Stock Triton interprets a kernel on numpy arrays, but it multiplies the *bit patterns* of bf16
and fp8 values, truncates when it rounds to bf16, drops NaN in reductions, takes a microsecond
per element for a reduction with an own combiner, only runs kernels that were decorated while
`TRITON_INTERPRET=1` was set, and dies of SIGSEGV on an access out of bounds. `interpreting`
patches each of these for the length of a `with` block and puts everything back.

The patched names are private to Triton; `tests/codegen/test_triton_interpreter.py` holds one
test per patch, so that a new Triton version fails there and not in silence.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from luminal_lab.errors import CompilerError, LuminalError

_LOCK = threading.RLock()


def require_triton() -> ModuleType:
    """Import Triton.

    Raises:
        CompilerError: Triton is not installed (there is none for macOS).
    """
    try:
        import triton
    except ImportError as error:
        raise CompilerError(
            "Triton is not installed, so Triton kernels can be printed but not compiled or run",
            fix="pip install 'luminal-lab[gpu]' on Linux (there is no Triton for macOS)",
        ) from error
    return triton


class OutOfBoundsError(LuminalError):
    """An interpreted kernel touched memory outside of its arguments."""


# ------------------------------------------------------------ numbers behind the bit patterns
def _coded(dtype: Any) -> bool:
    """Whether numpy holds this type as a bit pattern (bf16 and the fp8 types)."""
    scalar = dtype.scalar
    return scalar.is_bf16() or scalar.is_fp8()


def decode(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Bit patterns as float32 numbers; other types as they are."""
    if not _coded(dtype):
        return data
    import torch

    if dtype.scalar.is_bf16():
        return (data.astype(np.uint32) << 16).view(np.float32)
    raw = torch.from_numpy(np.ascontiguousarray(data).view(np.uint8))
    return raw.view(getattr(torch, _TORCH_FP8[dtype.scalar.name])).float().numpy()


def encode(numbers: np.ndarray, dtype: Any, np_dtype: np.dtype) -> np.ndarray:
    """Numbers as Triton stores them: to nearest even; fp8 saturates, as the hardware does."""
    if not _coded(dtype):
        return numbers.astype(np_dtype)
    import torch

    value = torch.from_numpy(np.ascontiguousarray(numbers))
    if dtype.scalar.is_bf16():
        return value.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    target = getattr(torch, _TORCH_FP8[dtype.scalar.name])
    top = torch.finfo(target).max
    return value.float().clamp(-top, top).to(target).view(torch.uint8).numpy()


_TORCH_FP8 = {
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}


# ------------------------------------------------------------------------------- the patches
def _numeric(ti: Any, method: Any, operands: int) -> Any:
    """A builder method that sees numbers where Triton keeps bit patterns."""

    def call(self: Any, *args: Any) -> Any:
        handles = args[:operands]
        if not any(_coded(h.dtype) for h in handles):
            return method(self, *args)
        dtype = handles[-1].dtype.scalar
        plain = [ti.TensorHandle(decode(h.data, h.dtype), ti.tl.float32) for h in handles]
        out = method(self, *plain, *args[operands:])
        if out.data.dtype == np.bool_:  # a comparison
            return out
        return ti.TensorHandle(encode(out.data, dtype, ti._get_np_dtype(dtype)), dtype)

    return call


def _cast(ti: Any) -> Any:
    def call(self: Any, src: Any, dst_type: Any, *_: Any) -> Any:
        dst = dst_type.scalar
        numbers = decode(src.data, src.dtype)
        return ti.TensorHandle(encode(numbers, dst, ti._get_np_dtype(dst)), dst)

    return call


def _dot(ti: Any, method: Any) -> Any:
    def call(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        a, b = (
            ti.TensorHandle(decode(h.data, h.dtype), ti.tl.float32) if _coded(h.dtype) else h
            for h in (a, b)
        )
        return method(self, a, b, d, *rest)

    return call


def _reduce(ti: Any, method: Any) -> Any:
    """Stock sums and maxima on numbers; any other combiner by halving, by whole blocks."""
    tl = ti.tl
    known = (
        tl.standard._sum_combine,
        tl.standard._elementwise_max,
        tl.standard._elementwise_min,
    )

    def call(self: Any, input: tuple) -> Any:
        if self.combine_fn in known:
            dtype = input[0].dtype
            if not _coded(dtype):
                return method(self, input)
            numbers = decode(input[0].handle.data, dtype)
            plain = self.to_tensor(numbers, tl.float32)
            out = method(self, (plain,))
            data = encode(out.handle.data, dtype, ti._get_np_dtype(dtype))
            return tl.core.tensor(
                ti.TensorHandle(data, dtype.scalar), _block(tl, dtype, data.shape, out)
            )
        if self.axis is None or len(input) != 1:
            return method(self, input)
        return [_halve(self, input[0], self.axis)]

    return call


def _block(tl: Any, dtype: Any, shape: Sequence[int], like: Any) -> Any:
    return tl.block_type(dtype, list(shape)) if like.type.is_block() else dtype


def _halve(op: Any, block: Any, axis: int) -> Any:
    """Reduce a power of two of elements along `axis` with an associative combiner."""
    data = block.handle.data
    while data.shape[axis] > 1:
        half = data.shape[axis] // 2
        low, high = np.split(data, [half], axis=axis)
        out = op.combine_fn.fn(op.to_tensor(low, block.dtype), op.to_tensor(high, block.dtype))
        data = out.handle.data
    if not op.keep_dims:
        data = np.squeeze(data, axis=axis)
    return op.to_tensor(data, block.dtype)


class _Bounds:
    """The byte ranges that a kernel may touch."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ranges = np.zeros((0, 2), np.uint64)

    def set(self, args: Sequence[tuple[str, Any]]) -> None:
        self.names = [name for name, _ in args]
        rows = [
            (s.data_ptr(), s.data_ptr() + s.nbytes())
            for s in (tensor.untyped_storage() for _, tensor in args)
        ]
        self.ranges = np.array(rows, np.uint64).reshape(-1, 2)

    def check(self, what: str, ptrs: Any, mask: Any, grid_idx: Any) -> None:
        if not self.names:
            return
        active = np.broadcast_to(
            ptrs.data, np.broadcast_shapes(ptrs.data.shape, mask.data.shape)
        )
        active = active[np.broadcast_to(mask.data, active.shape)]
        if not active.size:
            return
        size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        first, last = active.min(), active.max()
        lo, hi = self.ranges[:, 0], self.ranges[:, 1]
        if bool(((lo <= first) & (last + np.uint64(size) <= hi)).any()):
            return
        inside = np.zeros(active.shape, bool)
        for begin, end in self.ranges:
            inside |= (begin <= active) & (active + np.uint64(size) <= end)
        if inside.all():
            return
        bad = int(active[~inside][0])
        near = min(
            range(len(lo)), key=lambda k: min(abs(bad - int(lo[k])), abs(bad - int(hi[k])))
        )
        raise OutOfBoundsError(
            f"the kernel {what} element {(bad - int(lo[near])) // size} near argument "
            f"{self.names[near]!r}, which has "
            f"{(int(hi[near]) - int(lo[near])) // size} elements",
            where=f"program {tuple(int(i) for i in grid_idx)}",
            fix="guard the access with mask=",
        )


def _checked(method: Any, bounds: _Bounds, what: str, mask_at: int) -> Any:
    def call(self: Any, ptrs: Any, *args: Any) -> Any:
        bounds.check(what, ptrs, args[mask_at], self.grid_idx)
        return method(self, ptrs, *args)

    return call


def _checked_rmw(method: Any, bounds: _Bounds) -> Any:
    def call(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        bounds.check("updates", ptr, mask, self.grid_idx)
        return method(self, op, ptr, val, mask, *rest)

    return call


def _device_function(ti: Any) -> Any:
    """Calls of `@triton.jit` functions from code that is interpreted."""
    cache: dict[Any, Any] = {}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in cache:
            cache[self.fn] = ti.InterpretedFunction(self.fn).rewrite()
        return cache[self.fn](*args, **kwargs)

    return call


@contextlib.contextmanager
def interpreting() -> Iterator[_Interpreter]:
    """Run kernels in this process, in the patched interpreter.

    One block at a time in a process (a lock), and no compilation inside of it. Yields an object
    whose `run(fn, grid, args)` launches a kernel.

    Raises:
        CompilerError: Triton is not installed.
    """
    triton = require_triton()
    import triton.language as tl
    from triton.runtime import interpreter as ti
    from triton.runtime.jit import JITFunction

    builder, bounds = ti.InterpreterBuilder, _Bounds()
    patches: list[tuple[Any, str, Any]] = [
        (JITFunction, "__call__", _device_function(ti)),
        (builder, "cast_impl", _cast(ti)),
        (builder, "create_fp_to_fp", _cast(ti)),
        (builder, "binary_op", _numeric(ti, builder.binary_op, 2)),
        (builder, "unary_op", _numeric(ti, builder.unary_op, 1)),
        (builder, "create_fma", _numeric(ti, builder.create_fma, 3)),
        (builder, "create_clampf", _numeric(ti, builder.create_clampf, 3)),
        (builder, "create_dot", _dot(ti, builder.create_dot)),
        (ti.ReduceOps, "apply_impl", _reduce(ti, ti.ReduceOps.apply_impl)),
        (
            builder,
            "create_masked_load",
            _checked(builder.create_masked_load, bounds, "reads", 0),
        ),
        (
            builder,
            "create_masked_store",
            _checked(builder.create_masked_store, bounds, "writes", 1),
        ),
        (builder, "create_atomic_rmw", _checked_rmw(builder.create_atomic_rmw, bounds)),
    ]
    with _LOCK, np.errstate(all="ignore"):
        interpret = triton.knobs.runtime.interpret
        saved = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        # Both modules at once: the device functions of tl use tl.core, and stock code would
        # patch it again, and not back, at each call.
        scope = ti._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        triton.knobs.runtime.interpret = True
        for owner, name, patch in patches:
            setattr(owner, name, patch)
        try:
            yield _Interpreter(ti, bounds)
        finally:
            for owner, name, original in saved:
                setattr(owner, name, original)
            triton.knobs.runtime.interpret = interpret
            scope.restore()


class _Interpreter:
    """A running `interpreting` block."""

    def __init__(self, ti: Any, bounds: _Bounds):
        self._ti, self._bounds = ti, bounds

    def run(self, fn: Any, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        """Launch `fn` (a `@triton.jit` function or a plain one) with `args` in order.

        Arguments:
            fn: The kernel.
            grid: Up to three extents.
            args: torch CPU tensors (read and written in place), numbers, constexpr values.

        Raises:
            OutOfBoundsError: an access outside of the tensors' storages.
            CompilerError: anything else that the kernel does wrong.
        """
        ti = self._ti
        plain = getattr(fn, "fn", fn)
        names = list(plain.__code__.co_varnames[: plain.__code__.co_argcount])
        tensors = [(n, a) for n, a in zip(names, args) if hasattr(a, "data_ptr")]
        self._bounds.set(tensors)
        try:
            ti.InterpretedFunction(plain)[tuple(grid)](*args)
        except ti.InterpreterError as error:
            cause = error.__cause__ or error
            if isinstance(cause, LuminalError):
                raise cause from None
            raise CompilerError(
                f"the Triton interpreter stopped in {plain.__name__}: {error}",
                where=_line(cause),
            ) from error
        finally:
            self._bounds.set([])


def _line(error: BaseException) -> str | None:
    """The innermost line of generated source in a traceback."""
    found, tb = None, error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if name.startswith("<luminal:"):
            found = f"{name}:{tb.tb_lineno}"
        tb = tb.tb_next
    return found
