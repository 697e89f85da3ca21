"""Results that choose by place: a store for each part, in which nothing is left to choose."""

from __future__ import annotations

import pytest

from luminal_lab import codegen
from luminal_lab.codegen.tile import Store, values_of, walk
from luminal_lab.egraph.values import Buffer, Kernel, Value, postorder
from luminal_lab.hlir.dtypes import BF16, F32, I32, I64, DType
from luminal_lab.hlir.index import Index
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs

A = Index.axis


def below(i: str | Index, n: int) -> Value:
    return K.less(K.iota(i), K.const(n, I64))


def stores(kernel: Kernel) -> list[Store]:
    """The stores of a kernel, which gives what float64 gives."""
    compiled, inputs = Compiled(kernel), random_inputs(kernel)
    check(kernel, inputs, compiled(inputs))
    found = [n for n, _ in walk(codegen.lower(kernel, None, MACHINE).body)]
    return [n for n in found if isinstance(n, Store)]


def chooses(s: Store) -> bool:
    return any(v.op == "select" for v in postorder(list(values_of(s))))


def concatenated(m: int, parts: list[int], dtype: DType = F32, first: bool = False) -> Kernel:
    """Tensors side by side, each doubled; along the first dim, or the last one."""
    total, at = sum(parts), 0
    buffers = [Buffer("y", (total, m) if first else (m, total), dtype)]
    values = []
    for k, n in enumerate(parts):
        i = (A("j") - at, "i") if first else ("i", A("j") - at)
        x = K.load(f"x{k}", *i, dtype=dtype)
        values.append((at + n, K.add(x, x)))
        buffers.append(Buffer(f"x{k}", (n, m) if first else (m, n), dtype))
        at += n
    value = values[-1][1]
    for end, v in reversed(values[:-1]):
        value = K.select(below("j", end), v, value)
    index = ("j", "i") if first else ("i", "j")
    return K.kernel([("y", index, value)], {"i": m, "j": total}, buffers)


@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_a_concatenation_is_a_store_for_each_part(dtype, first):
    made = stores(concatenated(37, [40, 64, 21], dtype, first))
    assert len(made) == 3
    assert not any(chooses(s) for s in made)


def test_parts_shorter_than_a_vector_stay_one_loop_along_memory():
    assert len(stores(concatenated(37, [3, 64, 5]))) == 1
    assert len(stores(concatenated(37, [3, 64, 5], first=True))) == 3


def test_more_parts_than_a_few_stay_a_choice():
    assert len(stores(concatenated(9, [20] * 12, first=True))) == 1


def test_a_product_beside_its_operand():
    x, w = K.load("x", "i", A("j") - 48), K.load("w", "k", "j")
    product = K.red("add", "k", K.mul(K.load("x", "i", "k"), w))
    buffers = [Buffer("x", (40, 64), F32), Buffer("w", (64, 48), F32, constant=True)]
    buffers.append(Buffer("y", (40, 112), F32))
    value = K.select(below("j", 48), product, x)
    made = stores(K.kernel([("y", ("i", "j"), value)], {"i": 40, "j": 112, "k": 64}, buffers))
    assert len(made) == 2


def test_a_place_that_two_axes_give():
    at = A("h") * 32 + A("j")
    value = K.select(below(at, 96), K.load("a", at, "i"), K.exp(K.load("b", at - 96, "i")))
    buffers = [
        Buffer("a", (96, 20), F32),
        Buffer("b", (96, 20), F32),
        Buffer("y", (192, 20), F32),
    ]
    made = stores(K.kernel([("y", (at, "i"), value)], {"h": 6, "j": 32, "i": 20}, buffers))
    assert len(made) == 2
    at = A("h") * 64 + A("j")  # the second half of h = 1 is another part
    value = K.select(below(at, 96), K.load("a", at, "i"), K.exp(K.load("b", at - 96, "i")))
    made = stores(K.kernel([("y", (at, "i"), value)], {"h": 3, "j": 64, "i": 20}, buffers))
    assert len(made) == 4
    assert not any(chooses(s) for s in made)


def test_halves_that_change_places():
    """Rotary embeddings: the second half of each row, negated, then the first."""
    x = K.load("x", "i", "j")
    turned = K.select(
        below("j", 32), K.neg(K.load("x", "i", A("j") + 32)), K.load("x", "i", A("j") - 32)
    )
    value = K.add(K.mul(x, K.load("c", "i", "j")), K.mul(turned, K.load("s", "i", "j")))
    buffers = [Buffer(name, (50, 64), F32) for name in ("x", "c", "s", "y")]
    made = stores(K.kernel([("y", ("i", "j"), value)], {"i": 50, "j": 64}, buffers))
    assert len(made) == 2


def test_a_reduction_that_binds_the_name_of_the_axis_keeps_it():
    x = K.load("x", "i", "j")
    row = K.red("add", "j", K.select(below("j", 30), K.load("x", "i", "j"), K.const(1.0)))
    value = K.select(
        below("j", 20), K.mul(row, K.load("x", "i", "j")), K.exp(K.mul(K.const(1e-2), x))
    )
    buffers = [Buffer("x", (33, 60), F32), Buffer("y", (33, 60), F32)]
    made = stores(K.kernel([("y", ("i", "j"), value)], {"i": 33, "j": 60}, buffers))
    assert len(made) == 2


@pytest.mark.parametrize("step", [2, -2])
@pytest.mark.parametrize("n", [16, 33, 61])
def test_every_second_element(n, step):
    """Two vectors give every second element; nothing outside of the buffer is read."""
    at = A("j") * step + (0 if step > 0 else 2 * n - 2)
    for dtype in (F32, BF16, I32):
        x = K.load("x", "i", at, dtype=dtype)
        buffers = [Buffer("x", (5, 2 * n - 1), dtype), Buffer("y", (5, n), dtype)]
        kernel = K.kernel([("y", ("i", "j"), K.add(x, x))], {"i": 5, "j": n}, buffers)
        compiled, inputs = Compiled(kernel), random_inputs(kernel)
        check(kernel, inputs, compiled(inputs))
        lanes = MACHINE.vector_bytes // 4
        text = compiled.source.text
        assert ("__builtin_shufflevector" in text) == (step == 2 and n >= lanes)


@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize(("n", "m", "step"), [(9, 14, 1), (3, 5, 1), (15, 12, 2)])
def test_a_large_window_leaves_out_what_lies_beyond_the_image(kind, n, m, step):
    """Loops over a window's points have the image's edges as bounds."""
    at_y, at_x = A("y") * step + A("u") - 3, A("x") * step + A("v") - 3
    inside = K.mul(below(at_y, n), below(at_x, m))
    for i in (at_y, at_x):
        inside = K.mul(inside, K.less(K.const(-1, I64), K.iota(i)))
    image = K.load("x", at_y, at_x, "c")
    value = K.mul(image, K.load("w", "u", "v", "c")) if kind == "add" else image
    chosen = K.select(inside, value, K.const(0.0 if kind == "add" else -K.INF))
    value = K.red(kind, "u", K.red(kind, "v", chosen))
    out = ((n + 5 - 6) // step + 1, (m + 5 - 6) // step + 1)
    buffers = [Buffer("x", (n, m, 40), F32), Buffer("w", (7, 7, 40), F32, constant=True)]
    buffers.append(Buffer("y", (*out, 40), F32))
    extents = {"y": out[0], "x": out[1], "c": 40, "u": 7, "v": 7}
    kernel = K.kernel([("y", ("y", "x", "c"), value)], extents, buffers)
    stores(kernel)
    text = codegen.lower(kernel, None, MACHINE).text()
    assert text.count(" from ") == 2
    assert "iota" not in text
