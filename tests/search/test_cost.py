"""The order in which the cost model puts forms of one computation; no absolute times."""

import math
from dataclasses import asdict, replace

import pytest

from luminal_lab.egraph.gemm import GemmForm
from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.hlir.dtypes import BOOL, F32, I64
from luminal_lab.hlir.index import Index
from luminal_lab.search import LibraryKernel, Machine, kernel_cost
from luminal_lab.search.cost import KernelCost

MACHINE = Machine()


def load(name: str, axes: str) -> Value:
    return Value("load", (), (name, tuple(Index.axis(a) for a in axes)), dtype=F32)


def op(name: str, *args: Value) -> Value:
    return Value(name, args, dtype=F32)


def const(x: float) -> Value:
    return Value("const", (), (x,), dtype=F32)


def red(which: str, axis: str, x: Value) -> Value:
    return Value("red", (x,), (which, axis), dtype=F32)


def seconds(out: str, value: Value, extents: dict[str, int], constant: str = "") -> float:
    """The cost of the kernel that stores `value` over the axes `out`."""
    buffers = {}
    todo = [value]
    while todo:
        at = todo.pop()
        todo.extend(at.args)
        if at.op == "load":
            shape = tuple(extents[i.single] for i in at.attrs[1])
            buffers[at.attrs[0]] = Buffer(
                at.attrs[0], shape, F32, constant=at.attrs[0] in constant
            )
    buffers["out"] = Buffer("out", tuple(extents[a] for a in out), F32)
    index = tuple(Index.axis(a) for a in out)
    kernel = Kernel((KernelOutput("out", index, value),), buffers, extents)
    return kernel_cost(kernel, MACHINE).seconds


def scores() -> Value:
    return op(
        "mul", red("add", "d", op("mul", load("q", "htd"), load("k", "hsd"))), const(0.125)
    )


def one_pass(s: Value) -> Value:
    def online(w: Value) -> Value:
        return Value("online", (s, const(1.44), w), ("s",), dtype=F32)

    return op("mul", op("recip", online(const(1.0))), online(load("v", "hse")))


def exponent(s: Value) -> Value:
    return op(
        "exp2", op("mul", op("add", s, op("mul", red("max", "s", s), const(-1.0))), const(1.44))
    )


@pytest.mark.parametrize("s", [16, 64, 256, 1024, 4096])
def test_one_pass_attention_costs_least(s):
    e = {"h": 12, "t": s, "s": s, "d": 64, "e": 64}
    stored = seconds("hts", scores(), e)
    fused = seconds("hte", one_pass(scores()), e)
    kept = load("S", "hts")
    p = exponent(kept)
    phases = op(
        "mul", op("recip", red("add", "s", p)), red("add", "s", op("mul", p, load("v", "hse")))
    )
    assert fused < stored + seconds("hte", one_pass(kept), e)
    assert fused < stored + seconds("hte", phases, e)
    softmax = op("mul", p, op("recip", red("add", "s", p)))
    product = red("add", "s", op("mul", load("P", "hts"), load("v", "hse")))
    assert fused < stored + seconds("hts", softmax, e) + seconds("hte", product, e)
    p = exponent(scores())
    inline = op(
        "mul", op("recip", red("add", "s", p)), red("add", "s", op("mul", p, load("v", "hse")))
    )
    assert fused < seconds("hte", inline, e)


def test_a_causal_mask_saves_work_only_while_it_is_a_test_on_axes():
    e = {"h": 12, "t": 1024, "s": 1024, "d": 64, "e": 64}
    i, j = (Value("iota", (), (Index.axis(a),), dtype=I64) for a in "ts")
    later = Value("lessthan", (i, j), dtype=BOOL)
    masked = op("select", later, const(-math.inf), scores())
    mask = Value("load", (), ("m", (Index.axis("t"), Index.axis("s"))), dtype=BOOL)
    stored = op("select", mask, const(-math.inf), scores())
    whole = seconds("hte", one_pass(scores()), e)
    assert seconds("hte", one_pass(masked), e) < 0.75 * whole
    assert seconds("hte", one_pass(stored), e) > whole


def product(x: Value) -> Value:
    return red("add", "k", op("mul", x, load("w", "nk")))


def rms(x: Value, k: int) -> Value:
    mean = op("mul", red("add", "k", op("mul", x, x)), const(1 / k))
    return op("recip", op("sqrt", op("add", mean, const(1e-5))))


@pytest.mark.parametrize("m", [32, 256, 1024])
@pytest.mark.parametrize("kn", [(384, 384), (576, 1536), (1024, 1024)])
def test_fused_products_cost_less(m, kn):
    e = {"m": m, "k": kn[0], "n": kn[1]}
    x, plain = load("x", "mk"), seconds("mn", product(load("x", "mk")), e, "w")
    scaled = seconds("mn", op("mul", rms(x, e["k"]), product(x)), e, "w")
    normed = seconds("mk", op("mul", rms(x, e["k"]), x), e)
    assert scaled < normed + plain  # RMSNorm -> Linear
    y = load("y", "mn")

    def gelu(a: Value) -> Value:
        return op("mul", a, op("add", op("erf", op("mul", a, const(0.7))), const(1.0)))

    assert seconds("mn", gelu(product(x)), e, "w") < plain + seconds("mn", gelu(y), e)
    prologue = seconds("mn", product(gelu(x)), e, "w")
    assert prologue < plain + seconds("mk", gelu(x), e)


@pytest.mark.parametrize("m", [32, 1024])
def test_a_product_within_a_product_costs_more_than_two(m):
    e = {"m": m, "k": 384, "f": 1536, "n": 384}
    hidden = red("add", "k", op("mul", load("x", "mk"), load("w", "fk")))
    both = seconds("mn", red("add", "f", op("mul", hidden, load("u", "nf"))), e, "wu")
    first = seconds("mf", hidden, e, "w")
    second = seconds("mn", red("add", "f", op("mul", load("h", "mf"), load("u", "nf"))), e, "u")
    assert first + second < both


def test_a_sum_over_two_axes_is_one_product():
    e = {"m": 1024, "k": 384, "n": 384, "h": 12, "d": 32}
    flat = seconds("mn", product(load("x", "mk")), e, "w")
    inner = red("add", "d", op("mul", load("x", "mhd"), load("w", "nhd")))
    assert seconds("mn", red("add", "h", inner), e, "w") == pytest.approx(flat, rel=0.1)


def test_layernorm_is_one_kernel():
    e = {"m": 2048, "k": 4096}
    x = load("x", "mk")

    def centred(mean: Value) -> Value:
        return op("add", x, op("mul", mean, const(-1.0)))

    mean = op("mul", red("add", "k", x), const(1 / 4096))
    var = op("mul", red("add", "k", op("mul", centred(mean), centred(mean))), const(1 / 4096))
    whole = op("mul", centred(mean), op("recip", op("sqrt", var)))
    kept = centred(load("a", "m"))
    parts = (
        seconds("m", mean, e)
        + seconds("m", op("mul", red("add", "k", op("mul", kept, kept)), const(1 / 4096)), e)
        + seconds("mk", op("mul", kept, op("recip", op("sqrt", load("b", "m")))), e)
    )
    assert seconds("mk", whole, e) < 0.8 * parts


def test_what_must_be_recomputed_for_each_column_costs_that():
    """A column statistic and a row statistic: one loop order cannot hoist both."""
    e = {"i": 4096, "j": 4096}
    x = load("x", "ij")
    rows = red("add", "j", op("exp2", x))
    columns = red("add", "i", op("exp2", x))
    both = seconds("ij", op("mul", op("mul", x, rows), columns), e)
    apart = seconds("j", columns, e) + seconds(
        "ij", op("mul", op("mul", x, rows), load("c", "j")), e
    )
    assert apart < both


def test_pointwise_chains_cost_less_fused():
    e = {"i": 64, "j": 64}
    a, b = op("exp2", load("x", "ij")), op("recip", load("t", "ij"))
    assert seconds("ij", op("recip", a), e) < seconds("ij", a, e) + seconds("ij", b, e)


def test_constant_operands_are_packed_when_built():
    e = {"m": 256, "k": 512, "n": 512}
    scaled = op("mul", load("w", "nk"), load("g", "k"))
    constant = seconds("mn", red("add", "k", op("mul", load("x", "mk"), scaled)), e, "wg")
    variable = seconds("mn", red("add", "k", op("mul", load("x", "mk"), scaled)), e)
    assert constant < variable


def test_a_library_product_is_priced_by_its_form():
    names = {n: Buffer(n, (1024, 1024), F32) for n in "abc"}
    form = GemmForm(((2, 0, 0, 0),), 1024, 1024, 512, (512, 1), (1024, 1), (1024, 1))

    def priced(form: GemmForm) -> KernelCost:
        kernel = LibraryKernel("gemm", ("a", "b"), ("c",), names, asdict(form))
        return kernel_cost(kernel, MACHINE)

    cost = priced(form)
    assert cost.dot == 2 * 2 * 1024 * 1024 * 512
    assert cost.bound == "compute"
    rectified, curved = (priced(replace(form, act=act)).seconds for act in ("relu", "gelu"))
    assert cost.seconds < rectified < curved  # one more pass, and then exponentials in it


def test_a_library_does_not_like_few_rows():
    def seconds(rows: int) -> float:
        names = {n: Buffer(n, s, F32) for n, s in
                 (("a", (rows, 512)), ("b", (512, 512)), ("c", (rows, 512)))}  # fmt: skip
        form = GemmForm(((1, 0, 0, 0),), rows, 512, 512, (512, 1), (512, 1), (512, 1))
        kernel = LibraryKernel("gemm", ("a", "b"), ("c",), names, asdict(form))
        return kernel_cost(kernel, Machine()).seconds

    assert seconds(16) > seconds(32)
