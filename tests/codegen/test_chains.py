"""Sums of products that go on in the accumulators of the one before."""

from __future__ import annotations

import pytest

from luminal_lab import codegen
from luminal_lab.codegen.tile import Init, walk
from luminal_lab.egraph.values import Buffer, Kernel, Value
from luminal_lab.hlir.dtypes import F32
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE, Compiled, check, random_inputs


def product(x: str, w: str, k: str) -> Value:
    return K.red("add", k, K.mul(K.load(x, "i", k), K.load(w, k, "j")))


def sums(value: Value, m: int, n: int, depths: dict[str, int], constant: bool) -> Kernel:
    """y[i, j] = a value of the products xk @ wk."""
    buffers = [Buffer("y", (m, n), F32), Buffer("b", (n,), F32, constant=True)]
    for k, depth in depths.items():
        buffers += [Buffer(f"x{k}", (m, depth), F32), Buffer(f"w{k}", (depth, n), F32,
                                                              constant=constant)]  # fmt: skip
    return K.kernel([("y", ("i", "j"), value)], {"i": m, "j": n, **depths}, buffers)


def verified(kernel: Kernel) -> codegen.TileProgram:
    compiled, inputs = Compiled(kernel), random_inputs(kernel)
    check(kernel, inputs, compiled(inputs))
    return codegen.lower(kernel, None, MACHINE)


def begins(program: codegen.TileProgram) -> int:
    """How many accumulators of products a program begins."""
    return sum(isinstance(n, Init) for n, _ in walk(program.body))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("m", "n", "p", "q"), [(96, 80, 40, 24), (37, 53, 19, 19), (64, 7, 5, 90)]
)
def test_two_products_are_one_chain(m, n, p, q, constant):
    total = K.add(product("xp", "wp", "p"), product("xq", "wq", "q"))
    value = K.op("sqrt", K.mul(K.add(total, K.load("b", "j")), K.add(total, K.load("b", "j"))))
    program = verified(sums(value, m, n, {"p": p, "q": q}, constant))
    assert begins(program) == 1
    kept = [x for x in program.locals.values() if x.name.startswith("%r")]
    assert [x.space for x in kept] == ["register"]


def test_three_products_in_any_order_of_adding():
    p, q, r = (product(f"x{k}", f"w{k}", k) for k in "pqr")
    for value in (K.add(K.add(p, q), r), K.add(K.add(p, r), q), K.add(p, K.add(q, r))):
        program = verified(sums(value, 48, 64, {"p": 30, "q": 20, "r": 10}, True))
        assert begins(program) == 1


def test_a_product_that_is_wanted_alone_is_kept():
    p, q = product("xp", "wp", "p"), product("xq", "wq", "q")
    for value in (K.mul(K.add(p, q), p), K.mul(p, q), K.add(K.exp(p), q)):
        program = verified(sums(value, 48, 64, {"p": 30, "q": 20}, True))
        assert begins(program) == 2
        # what the second nest reads of the first is written once, and not at every step
        assert not any(
            x.space == "thread" and x.name in ("%r0", "%r1") for x in program.locals.values()
        )


def test_the_chain_holds_under_other_schedules():
    value = K.add(product("xp", "wp", "p"), product("xq", "wq", "q"))
    kernel = sums(value, 70, 90, {"p": 33, "q": 17}, True)
    for schedule in codegen.schedule_space(kernel, MACHINE)[:8]:
        compiled, inputs = Compiled(kernel, schedule), random_inputs(kernel)
        check(kernel, inputs, compiled(inputs))
