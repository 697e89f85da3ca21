"""The Metal shim runs what is right, and says what is wrong."""

from __future__ import annotations

import pytest
import torch

from luminal_lab.errors import CallError, CompilerError, VerificationError
from luminal_lab.runtime import metal_tools
from luminal_lab.runtime.metal_source import problems, signatures

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
ROW_SUM = (
    HEAD
    + """
[[max_total_threads_per_threadgroup(64)]]
kernel void row_sum(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                    constant uint& n [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]]) {
  threadgroup float s[64];
  float a = 0.0f;
  for (uint i = t; i < n; i += 64) a += x[row * n + i];
  s[t] = a;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint w = 32; w > 0; w /= 2) {
    if (t < w) s[t] += s[t + w];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) y[row] = s[0];
}
"""
)
BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"


def run_row_sum(source: str, n: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randn(3, 100), torch.zeros(3)
    metal_tools.compile_shim(source).run("row_sum", [x, y, n], (3,), (64,))
    return x, y


@pytest.fixture(autouse=True)
def _needs_a_compiler(c_compiler: str) -> None:
    """The shim is C++; its compiler comes with the C compiler or is missing with it."""


def test_a_reduction_over_threadgroup_memory() -> None:
    metal_tools.lint(ROW_SUM)
    x, y = run_row_sum(ROW_SUM)
    torch.testing.assert_close(y, x.sum(1))


def test_a_missing_barrier_shows_in_the_reverse_order() -> None:
    with pytest.raises(VerificationError, match="barrier is missing"):
        run_row_sum(ROW_SUM.replace(BARRIER, ""))


def test_a_barrier_that_not_all_threads_reach() -> None:
    body = f"if (t < w) {{ s[t] += s[t + w];\n{BARRIER} }}\n"
    source = ROW_SUM.replace("if (t < w) s[t] += s[t + w];\n" + BARRIER, body)
    with pytest.raises(CompilerError, match=r"divergence: thread 31 waits at line 16"):
        run_row_sum(source)


def test_a_read_out_of_bounds() -> None:
    with pytest.raises(CompilerError, match=r"buffer 0 is accessed at byte 1200"):
        run_row_sum(ROW_SUM.replace("row * n", "row * 100"), 101)


def test_a_write_before_the_first_element() -> None:
    with pytest.raises(CompilerError, match=r"buffer 1 is written before its first byte"):
        run_row_sum(ROW_SUM.replace("y[row] =", "y[(int)row - 1] ="))


def test_stale_threadgroup_memory_does_not_look_right() -> None:
    source = ROW_SUM.replace("  s[t] = a;\n", "  if (row == 0) s[t] = a;\n")
    _, y = run_row_sum(source)
    assert not y[0].isnan()
    assert y[1:].isnan().all()


@pytest.mark.parametrize("type_", ["half", "bfloat"])
def test_16_bit_floats_round_as_torch_does(type_: str) -> None:
    dtype = torch.float16 if type_ == "half" else torch.bfloat16
    source = HEAD + (
        f"kernel void k(device const float* x [[buffer(0)]], device {type_}* y [[buffer(1)]],\n"
        "  device float* z [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
        f"  y[i] = {type_}(x[i]); z[i] = float(y[i]);\n}}\n"
    )
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int64).int()
    x = bits.view(torch.float32).clone()
    x[:1024] = torch.randn(1024)
    x[1024:2048] = torch.randn(1024) * 1e-6
    x[:8] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.0, 65520.0, 6e-8])
    y, z = torch.zeros(4096, dtype=dtype), torch.zeros(4096)
    metal_tools.compile_shim(source).run("k", [x, y, z], (16,), (256,))
    expected = x.to(dtype)
    same = y.view(torch.int16) == expected.view(torch.int16)
    assert (same | (y.isnan() & expected.isnan())).all()
    assert torch.equal(z.nan_to_num(0.5), expected.float().nan_to_num(0.5))


def test_simdgroup_operations_and_matrices() -> None:
    source = (
        HEAD
        + """
kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
              uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_load(a, x, 8);
  simdgroup_load(b, x, 8, ulong2{0, 0}, true);
  simdgroup_multiply_accumulate(c, a, b, c);
  if (t < 32) simdgroup_store(c, y, 8);
  y[64 + t] = simd_sum(float(t)) + simd_shuffle_xor(float(lane), 1);
}
"""
    )
    x, y = torch.randn(8, 8), torch.zeros(128)
    metal_tools.compile_shim(source).run("k", [x, y], (1,), (64,))
    torch.testing.assert_close(y[:64].view(8, 8), x @ x.T + 1)
    lanes = torch.arange(64)
    sums = torch.where(lanes < 32, sum(range(32)), sum(range(32, 64)))
    torch.testing.assert_close(y[64:], (sums + (lanes % 32 ^ 1)).float())


def test_strided_tensors_are_passed_from_first_to_last_element() -> None:
    source = HEAD + (
        "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
        "  x[i * 3] = float(i);\n}\n"
    )
    x = torch.zeros(30)
    metal_tools.compile_shim(source).run("k", [x[2::3]], (1,), (10,))
    assert x.tolist() == [k // 3 if k % 3 == 2 else 0 for k in range(30)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("double a = x[0];", "no double"),
        ("float a = 1.0 * x[0];", "literal as 1.0f"),
        ("auto f = [&](float v) { return v; };", "no lambdas"),
        ("std::swap(x, x);", "no standard library"),
        ('char const* s = "text";', "no string literals"),
        ("threadgroup float s[8193];", "32772 bytes of threadgroup memory"),
    ],
)
def test_words_that_are_not_metal(bad: str, message: str) -> None:
    source = HEAD + f"kernel void k(device float* x [[buffer(0)]]) {{\n  {bad}\n}}\n"
    assert len(problems(source)) == 1
    with pytest.raises(CompilerError, match=message):
        metal_tools.lint(source)


def test_words_in_comments_are_not_read() -> None:
    assert problems(HEAD + '// a double "string", new\n/* std::x\n goto */\n') == []


def test_too_many_threads() -> None:
    assert problems("[[max_total_threads_per_threadgroup(2048)]]\nkernel void k() {}")
    with pytest.raises(CallError, match="at most 1024"):
        metal_tools.compile_shim(ROW_SUM).run(
            "row_sum", [torch.zeros(1), torch.zeros(1), 1], (1,), (2048,)
        )


def test_more_threadgroup_memory_than_there_is_when_extents_are_not_literals() -> None:
    source = ROW_SUM.replace("float s[64]", "float s[N]").replace(
        "[[max", "constant int N = 9000;\n[[max", 1
    )
    with pytest.raises(CompilerError, match="36000 bytes of threadgroup memory"):
        run_row_sum(source)


def test_a_signature_is_read() -> None:
    (kernel,) = signatures(ROW_SUM).values()
    assert [p.name for p in kernel.buffers] == ["x", "y", "n"]
    assert kernel.buffers[2].reference
    assert kernel.parameters[3].attribute == "threadgroup_position_in_grid"
    with pytest.raises(CompilerError, match="dynamic threadgroup memory"):
        signatures("kernel void k(threadgroup float* s [[threadgroup(0)]]) {}")


def test_wrong_arguments_are_named() -> None:
    library = metal_tools.compile_shim(ROW_SUM)
    with pytest.raises(CallError, match="no kernel 'k'"):
        library.run("k", [], (1,), (1,))
    with pytest.raises(CallError, match=r"takes 3 buffers \(x, y, n\)"):
        library.run("row_sum", [], (1,), (1,))
    with pytest.raises(CallError, match="'n' takes a number"):
        library.run("row_sum", [torch.zeros(1)] * 3, (1,), (1,))


def test_a_compile_error_names_the_line() -> None:
    with pytest.raises(CompilerError, match=r"kernel\.metal:11"):
        metal_tools.compile_shim(ROW_SUM.replace("float a = 0.0f", "floot a = 0.0f"))


def test_an_endless_kernel_is_stopped() -> None:
    source = HEAD + (
        "kernel void k(device volatile float* x [[buffer(0)]]) {\n"
        "  while (x[0] == 0.0f) {}\n}\n"
    )
    with pytest.raises(CompilerError, match="was stopped"):
        metal_tools.compile_shim(source).run("k", [torch.zeros(1)], (1,), (1,), timeout=1)


BAD_SPACES = [
    "const float* p = x;",  # a plain pointer to device memory
    "threadgroup float s[4]; threadgroup float* p = s; x = p;",
    "n = 3;",  # a write through constant
]


@pytest.mark.skipif(metal_tools.find_clang() is None, reason="needs clang 15 or later")
@pytest.mark.parametrize("bad", ["", *BAD_SPACES])
def test_address_spaces_are_checked(bad: str) -> None:
    source = HEAD + (
        "kernel void k(device float* x [[buffer(0)]], constant int& n [[buffer(1)]]) {\n"
        f"  {bad}\n}}\n"
    )
    if not bad:
        metal_tools.lint(source, address_spaces=True)
        return
    with pytest.raises(CompilerError, match=r"kernel\.metal:4"):
        metal_tools.lint(source, address_spaces=True)


def test_without_a_compiler_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUMINAL_CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(metal_tools, "_zig", lambda: None)
    with pytest.raises(CompilerError, match="install g"):
        metal_tools.find_cxx()
    with pytest.raises(CompilerError, match="clang 15"):
        metal_tools.lint(ROW_SUM, address_spaces=True)
