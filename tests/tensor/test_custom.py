"""Operators of the user's own: through every way in, with kernels, with meanings, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import LuminalError, RuleError, SearchError, TensorError
from luminal_lab.hlir import run

QUICK = ll.Budget("quick", candidates=4)
X, S = torch.randn(33, 40), torch.randn(33)

KERNEL = """\
// kernel: NAME
// law: y[m, n] = x[m, n] * s[m] * the number
// roles: m n
// read x: f32 m n
// read s: f32 m
// write y: f32 m n
// unit: x.n y.n
// parallel: m
// cost: vector 2*m*n
// reference: x * s[:, None] * (numbers[0] if numbers else 1.0)
static void NAME(const float *restrict x, const float *restrict s, float *restrict y,
                 long lo, long hi) {
  for (long m = lo; m < hi; ++m)
    for (long n = 0; n < N; ++n) y[m * Y_M + n] = x[m * X_M + n] * s[m * S_M]MORE;
}
"""
MEANING = """
;; law: a scaled row is a product
;; class: exact
(rule ((= t (Custom k ts)) (= "test.NAME.default" (calls k)) (= maps (reads k))
       (= io (stored-at k)))
      ((union t (Kernel (OP (Load (vec-get ts 0) (vec-get maps 0))
                            (Load (vec-get ts 1) (vec-get maps 1))) io)))
      :name "meaning-of-NAME")
"""


def scaled(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x * s[:, None]


def used(op: Any) -> Any:
    return lambda x, s: torch.relu(op(x + 1, s)).sum(-1)


def best(exe: ll.Executable) -> list[str]:
    return [k.routine if hasattr(k, "routine") else "derived" for k in exe.candidate.kernels]


plain = ll.custom_op("test::plain", "x[m, n], s[m] -> [m, n]", scaled)


def test_it_keeps_its_place_by_name() -> None:
    hlir = ll.capture(used(plain), (X, S))
    (node,) = [n for n in hlir.nodes if n.op == "Custom"]
    assert node.attrs["target"] == "test.plain.default"
    assert node.attrs["roles"] == (("m", "n"), ("m",), ("m", "n"))
    assert list(hlir.fallbacks()["op"]) == ["test.plain.default"]
    assert ll.hlir.parse(hlir.text()) == hlir
    exe = ll.compile(used(plain), (X, S), budget=QUICK)
    assert "custom" in best(exe)
    for x, s in ((X, S), (X * 2, S - 1)):
        torch.testing.assert_close(exe(x, s), used(plain)(x, s), rtol=1e-5, atol=1e-5)


def test_through_torch_compile() -> None:
    fast = torch.compile(used(plain), backend="luminal_lab", fullgraph=True)
    torch.testing.assert_close(fast(X, S), used(plain)(X, S), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fast(X, -S), used(plain)(X, -S), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_in_a_written_program(dtype: torch.dtype) -> None:
    g = ll.Graph()
    m = g.dim("m", 1, 9)
    x, s = g.tensor("x", (m, 4), dtype), g.tensor("s", (m,), dtype)
    plain(x, s=s).output()
    exe = ll.compile(g, budget=ll.Budget("none"))
    for n in (1, 5, 9):
        a, b = (torch.randn(n, 4) * 3).to(dtype), (torch.randn(n) * 3).to(dtype)
        assert torch.equal(exe(a, b), scaled(a, b))


def test_zero_size_and_hostile_values() -> None:
    exe = ll.compile(lambda x, s: plain(x, s) * 2, (X[:, :0], S), budget=ll.Budget("none"))
    assert exe(X[:, :0], S).shape == (33, 0)
    exe = ll.compile(lambda x, s: plain(x, s) * 2, (X, S), budget=ll.Budget("none"))
    x, s = X.clone(), S.clone()
    x[3], s[5], s[7] = float("nan"), float("inf"), 0
    torch.testing.assert_close(exe(x, s), scaled(x, s) * 2, equal_nan=True)


def test_a_hand_written_kernel_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "scale_kernel.c"
    file.write_text(KERNEL.replace("NAME", "scale_kernel").replace("MORE", ""))
    op = ll.custom_op("test::kernel", "x[m, n], s[m] -> [m, n]", scaled, kernels=file)
    egraph = ll.saturate(ll.capture(used(op), (X, S)))
    assert any(n.op == "library" for c in egraph.parts[0].classes for n in c.nodes)
    result = ll.search(egraph, QUICK)
    called = [e for e in result.best.kernels if getattr(e, "routine", "") == "library"]
    assert called, result
    exe = ll.build(result.best)
    assert "scale_kernel" in exe.text()
    torch.testing.assert_close(exe(X, S), used(op)(X, S), rtol=1e-5, atol=1e-5)
    # bf16 is not what the kernel reads: the operator itself runs
    other = ll.compile(used(op), (X.bfloat16(), S.bfloat16()), budget=ll.Budget("none"))
    assert "library" not in best(other)


def test_numbers_reach_the_kernel() -> None:
    def run_it(x: torch.Tensor, s: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return x * s[:, None] * factor

    source = KERNEL.replace("NAME", "scale_number").replace("MORE", " * (float)NUMBER0")
    op = ll.custom_op("test::number", "x[m, n], s[m] -> [m, n]", run_it, kernels=source)
    exe = ll.compile(lambda x, s: op(x, s, 2.5), (X, S), budget=QUICK)
    assert "library" in best(exe)
    torch.testing.assert_close(exe(X, S), scaled(X, S) * 2.5)


def test_a_wrong_kernel_is_caught() -> None:
    source = KERNEL.replace("NAME", "scale_wrong").replace("MORE", " + 1.0f")
    op = ll.custom_op("test::wrong", "x[m, n], s[m] -> [m, n]", scaled, kernels=source)
    result = ll.search(ll.saturate(ll.capture(used(op), (X, S))), QUICK)
    assert "library" not in [getattr(k, "routine", "") for k in result.best.kernels]
    assert "call-scale_wrong" in repr(result.rejections())


def test_a_kernel_whose_reference_is_another_function_is_refused() -> None:
    source = (
        KERNEL.replace("NAME", "scale_lies").replace("MORE", "").replace("x * s[", "x + s[")
    )
    op = ll.custom_op("test::lies", "x[m, n], s[m] -> [m, n]", scaled, kernels=source)
    with pytest.raises(RuleError, match=r"call-scale_lies.*is not fit for use"):
        ll.saturate(ll.capture(used(op), (X, S)))


def test_a_meaning_is_fused() -> None:
    text = MEANING.replace("NAME", "meaning").replace("OP", "Mul")
    op = ll.custom_op("test::meaning", "x[m, n], s[m] -> [m, n]", scaled, rules=text)
    result = ll.search(ll.saturate(ll.capture(used(op), (X, S))), QUICK)
    exe = ll.build(result.best)
    assert set(best(exe)) == {"derived"}
    torch.testing.assert_close(exe(X, S), used(op)(X, S), rtol=1e-5, atol=1e-5)
    assert ll.check_rule(text).ok


def test_a_false_meaning_is_refused_and_caught() -> None:
    text = MEANING.replace("NAME", "false").replace("OP", "Add")
    op = ll.custom_op("test::false", "x[m, n], s[m] -> [m, n]", scaled)
    assert not ll.check_rule(text).ok
    hlir = ll.capture(used(op), (X, S))
    with pytest.raises(RuleError, match="is not fit for use"):
        ll.saturate(hlir, rules=text)
    result = ll.search(ll.saturate(hlir, rules=text, check=False), QUICK)
    assert "meaning-of-false" in repr(result.rejections())
    exe = ll.build(result.best)
    torch.testing.assert_close(exe(X, S), used(op)(X, S), rtol=1e-5, atol=1e-5)


def test_an_operator_of_torch_library_gets_a_kernel() -> None:
    existing = torch.library.custom_op(
        "test::existing", scaled, mutates_args=(), schema="(Tensor x, Tensor s) -> Tensor"
    )
    existing.register_fake(lambda x, s: torch.empty_like(x))
    hlir = ll.capture(used(existing), (X, S))  # without us it is an opaque node
    exe = ll.compile(used(existing), (X, S), budget=QUICK)
    assert "custom" in best(exe)
    source = KERNEL.replace("NAME", "scale_existing").replace("MORE", "")
    op = ll.custom_op(existing, "x[m, n], s[m] -> [m, n]", kernels=source)
    assert op.target == "test.existing.default"
    again = ll.custom_op("test::existing", "x[m, n], s[m] -> [m, n]", kernels={"cpu": source})
    assert again.entry == op.entry
    exe = ll.compile(used(existing), (X, S), budget=QUICK)
    assert "library" in best(exe)
    torch.testing.assert_close(exe(X, S), used(scaled)(X, S), rtol=1e-5, atol=1e-5)
    assert "roles" not in next(n for n in hlir.nodes if n.op == "Custom").attrs


def test_several_results_and_other_shapes() -> None:
    @ll.custom_op("test::halves", "x[m, n] -> [m, 2*n], [m], [3]")
    def halves(x, up: bool = True):
        return torch.cat([x, x], 1), x.sum(1) if up else -x.sum(1), x.new_ones(3)

    x = torch.randn(4, 6)
    exe = ll.compile(lambda x: halves(x * 1.5, False), (x,), budget=ll.Budget("none"))
    want = halves(x * 1.5, False)
    for got, w in zip(exe(x), want, strict=True):
        torch.testing.assert_close(got, w)
    g = ll.Graph()
    n = g.dim("n", 1, 8)
    wide, sums, ones = halves(g.tensor("x", (4, n)), up=False)
    assert wide.shape == (4, 2 * n)
    for t in (wide, sums, ones):
        t.output()
    for got, w in zip(run(g.hlir(), [x]), halves(x, False), strict=True):
        torch.testing.assert_close(got, w.double())


def test_dynamic_shapes_and_buckets() -> None:
    m = torch.export.Dim("m", min=1, max=64)
    exe = ll.compile(
        used(plain), (X, S), dynamic_shapes=({0: m}, {0: m}), budget=ll.Budget("none"),
        buckets={"m": [ll.Bucket(1, 1), ll.Bucket(2, 64, tune_at=33)]},
    )  # fmt: skip
    for n in (1, 2, 33):
        torch.testing.assert_close(
            exe(X[:n], S[:n]), used(plain)(X[:n], S[:n]), rtol=1e-5, atol=1e-5
        )


def test_a_saved_program_has_it(tmp_path: Path) -> None:
    exe = ll.compile(used(plain), (X, S), budget=ll.Budget("none"))
    exe.save(tmp_path / "exe")
    assert torch.equal(ll.load(tmp_path / "exe")(X, S), exe(X, S))


def test_what_does_not_fit_is_told() -> None:
    g = ll.Graph()
    x = g.tensor("x", (4, 8))
    with pytest.raises(TensorError, match=r"s has shape \(5,\), expected \[m\] with m = 4"):
        plain(x, g.tensor("s", 5))
    with pytest.raises(TensorError, match="no value for s"):
        plain(x)
    with pytest.raises((LuminalError, ValueError, RuntimeError), match="m is 33"):
        ll.capture(used(plain), (X, S[:3]))
    with pytest.raises(LuminalError, match="is not understood"):
        ll.custom_op("test::bad", "x m n -> m n", scaled)
    with pytest.raises(LuminalError, match="neither in the signature nor a number"):
        ll.custom_op("test::bad", "x[m, n] -> [m, n]", scaled)
    with pytest.raises(LuminalError, match="no operator's name"):
        ll.custom_op("bad", "x[m, n], s[m] -> [m, n]", scaled)
    with pytest.raises(LuminalError, match=r"the kernel k reads s\[m\]"):
        ll.custom_op("test::bad2", "x[m, n], s[n] -> [m, n]", scaled,
                     kernels=KERNEL.replace("NAME", "k"))  # fmt: skip
    with pytest.raises(LuminalError, match="for 'cuda' cannot be called"):
        ll.custom_op("test::bad3", "x[m, n], s[m] -> [m, n]", scaled, kernels={"cuda": "x"})


def test_an_operator_that_fails_is_told() -> None:
    @ll.custom_op("test::fails", "x[n] -> [n]")
    def fails(x):
        raise RuntimeError("not today")

    hlir = ll.capture(lambda x: fails(x) + 1, (torch.ones(4),))
    with pytest.raises((SearchError, LuminalError), match=r"not today|crashed"):
        ll.search(ll.saturate(hlir), QUICK)


def test_a_new_definition_takes_the_place_of_the_old_one() -> None:
    """As when a cell of a notebook is run again: nothing that was found before counts."""
    text = MEANING.replace("NAME", "again").replace("OP", "Mul")

    def define(sign: float) -> Any:
        @ll.custom_op("test::again", "x[m, n], s[m] -> [m, n]", rules=text)
        def again(x, s):
            return x * s[:, None] if sign > 0 else x + s[:, None]

        return again

    op = define(1.0)
    assert ll.compile(used(op), (X, S), budget=QUICK)(X, S).shape == (33,)

    @ll.custom_op("test::again", "x[m, n], s[m] -> [m, n]", rules=text)
    def again(x, s):
        return x + s[:, None]

    assert torch.equal(again(X, S), X + S[:, None])
    with pytest.raises(RuleError, match="is not fit for use"):
        ll.saturate(ll.capture(used(again), (X, S)))
    again = ll.custom_op("test::again", "x[m, n], s[m] -> [m, n]", rules="")
    exe = ll.compile(used(again), (X, S), budget=QUICK)
    torch.testing.assert_close(exe(X, S), torch.relu(X + 1 + S[:, None]).sum(-1))


def test_workers_of_an_executor_need_not_know_it() -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    egraph = ll.saturate(ll.capture(used(plain), (X, S)))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        result = ll.search(egraph, QUICK, executor=pool)
    assert not any(c.reason == "crashed" for c in result.rejections().cases())
    exe = ll.build(result.best)
    torch.testing.assert_close(exe(X, S), used(plain)(X, S), rtol=1e-5, atol=1e-5)
