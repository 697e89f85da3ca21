import copy
import gc
import sys
import threading

import pytest
import torch
from torch.utils._pytree import tree_flatten

from luminal_lab.errors import CallError, LuminalError
from luminal_lab.hlir.graph import InputSpec, OutputSpec
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.building import NoCompilerWarning, build
from luminal_lab.runtime.executable import fresh_copy
from luminal_lab.runtime.memory import in_huge_pages
from luminal_lab.runtime.program import Routine
from tests.runtime import programs

pytestmark = pytest.mark.usefixtures("c_compiler")
SHAPE = (64, 40)


def reference(x, w):
    return x * (w * w) + x


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("freeze", [True, False])
def test_it_computes_twice(freeze):
    exe, w = programs.built(freeze=freeze)
    for _ in range(2):
        x = torch.randn(SHAPE)
        close(exe(x), reference(x, w))
    assert len(exe.program.at_build) == freeze


def test_weights_are_shared_and_a_change_is_noticed(affine):
    exe, w = affine
    x = torch.randn(SHAPE)
    assert exe.program.weights.current["w"].data_ptr() == w.data_ptr()
    exe(x)
    w.mul_(2)
    close(exe(x), reference(x, w))
    w.data = torch.randn(SHAPE)
    close(exe(x), reference(x, w))
    w.data = torch.randn(SHAPE).t().contiguous().t()
    close(exe(x), reference(x, w))
    w.add_(1)
    close(exe(x), reference(x, w))
    assert exe.program.weights.copied_bytes == w.numel() * 4


def test_a_weight_of_another_shape_is_refused(affine):
    exe, w = affine
    w.data = torch.randn(3, 3)
    with pytest.raises(CallError, match="the weight 'w'"):
        exe(torch.randn(SHAPE))


def test_outputs_are_fresh(affine):
    exe, _ = affine
    x = torch.randn(SHAPE)
    first = exe(x)
    kept = first.clone()
    exe(torch.randn(SHAPE))
    assert torch.equal(first, kept)


def test_after_the_inputs_are_gone(affine):
    exe, w = affine
    x = torch.randn(SHAPE)
    want = reference(x, w)
    y = exe(x)
    del x
    gc.collect()
    close(y, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(40, 64).t(),
        lambda: torch.randn(40).expand(64, 40),
        lambda: torch.randn(64, 80)[:, ::2],
        lambda: torch.randn(SHAPE, requires_grad=True),
        lambda: torch.randn(64 * 40 + 1)[1:].view(SHAPE),
        lambda: torch.nn.Parameter(torch.randn(SHAPE)),
        lambda: torch._neg_view(torch.randn(SHAPE)),
    ],
    ids=["transposed", "expanded", "strided", "grad", "offset", "parameter", "negated"],
)
def test_inputs_of_any_layout(affine, make):
    exe, w = affine
    x = make()
    y = exe(x)
    assert not y.requires_grad
    assert y.is_contiguous()
    close(y, reference(x.detach(), w))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.randn(40, 64), r"got shape \(40, 64\); expected \(64, 40\)"),
        (
            torch.randn(SHAPE, dtype=torch.float64),
            "got dtype torch.float64; expected torch.float32",
        ),
        (torch.empty(SHAPE, device="meta"), "got a tensor on meta"),
        (torch.randn(SHAPE).to_sparse(), "layout torch.sparse_coo"),
        ([1.0], "got list where a tensor float32"),
        (None, "got NoneType"),
        (1.0, "got float"),
    ],
    ids=["shape", "dtype", "device", "layout", "list", "none", "number"],
)
def test_wrong_inputs(affine, given, message):
    exe, w = affine
    with pytest.raises(CallError, match=message) as caught:
        exe(given)
    if not isinstance(given, list):
        assert "argument 'x' of affine" in str(caught.value)
    x = torch.randn(SHAPE)
    close(exe(x), reference(x, w))  # and it still works


def test_wrong_number_of_inputs(affine):
    exe, _ = affine
    x = torch.randn(SHAPE)
    with pytest.raises(CallError, match="got 2 positional inputs; expected 1 positional input"):
        exe(x, x)
    with pytest.raises(CallError, match="keywords y"):
        exe(x, y=x)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_under_every_mode(affine, mode):
    exe, w = affine
    x = torch.randn(SHAPE)
    with mode():
        y = exe(x)
    close(y, reference(x, w))
    close(exe(x), reference(x, w))


def test_from_several_threads(affine):
    exe, w = affine
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x = torch.randn(SHAPE, generator=generator)
            if not torch.allclose(exe(x), reference(x, w), rtol=1e-5, atol=1e-5):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(affine, threads):
    exe, w = affine
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(SHAPE)
        close(exe(x), reference(x, w))
    finally:
        torch.set_num_threads(before)


def test_strides_of_outputs_are_eagers():
    exe, w = programs.built(stride=(1, 64))
    x = torch.randn(SHAPE)
    y = exe(x)
    assert y.stride() == (1, 64)
    close(y, reference(x, w))


def test_a_copy_with_repeated_elements():
    value = torch.randn(3, 1, 4).expand(3, 5, 4)
    out = fresh_copy(value, (4, 0, 1))
    assert out.stride() == (4, 0, 1)
    assert torch.equal(out, value)
    assert out.untyped_storage().nbytes() == 48


def test_a_mutated_input_is_written_back():
    candidate, code, w = programs.affine(mutates="x")
    exe = build(candidate, code=code)
    for x in (
        torch.randn(SHAPE),
        torch.randn(40, 64).t(),
        torch.randn(SHAPE, requires_grad=True),
    ):
        want = reference(x.detach(), w).clone()
        assert exe(x) == ()
        close(x.detach(), want)


def test_a_mutated_weight_is_written_back():
    candidate, code, w = programs.affine(mutates="w")
    exe = build(candidate, code=code)
    x = torch.randn(SHAPE)
    for _ in range(2):
        want = reference(x, w.clone())
        exe(x)
        close(w, want)


def test_an_output_that_is_an_input():
    candidate, code, w = programs.affine()
    alias = OutputSpec(candidate.hlir.outputs[0].value, SHAPE, "z", aliases="x")
    spec = tree_flatten((w, w))[1]
    hlir = programs.changed(
        candidate.hlir, outputs=(*candidate.hlir.outputs, alias), out_spec=spec
    )
    exe = build(programs.changed(candidate, hlir=hlir), code=code)
    x = torch.randn(SHAPE, requires_grad=True)
    y, z = exe(x)
    assert z is x
    close(y, reference(x.detach(), w))


def test_keywords_and_structures():
    candidate, code, w = programs.affine()
    x = torch.randn(SHAPE)
    cases = [
        (((), {"x": x}), lambda exe: exe(x=x)),
        ((([x],), {}), lambda exe: exe([x])),
        (((), {"a": {"x": x}}), lambda exe: exe(a={"x": x})),
    ]
    for structure, call in cases:
        hlir = programs.changed(
            candidate.hlir,
            in_spec=tree_flatten(structure)[1],
            out_spec=tree_flatten({"y": x})[1],
        )
        exe = build(programs.changed(candidate, hlir=hlir), code=code)
        close(call(exe)["y"], reference(x, w))
        with pytest.raises(CallError):
            exe(x)


def test_keywords_in_any_order():
    candidate, code, w = programs.affine()
    x = torch.randn(SHAPE)
    spec = tree_flatten(((), {"unused": x, "x": x}))[1]
    inputs = (InputSpec(0, "x", "arg", 1), candidate.hlir.inputs[1])
    hlir = programs.changed(candidate.hlir, in_spec=spec, inputs=inputs)
    exe = build(programs.changed(candidate, hlir=hlir), code=code)
    close(exe(x=x, unused=x), reference(x, w))
    close(exe(unused=x, x=x), reference(x, w))


def test_python_steps_between_compiled_ones():
    candidate, code, w = programs.affine()

    def multiply(reads, writes):
        torch.mul(reads[0], reads[1], out=writes[0])

    for freeze in (True, False):
        exe = build(candidate, code={**code, 0: Routine("mul", multiply)}, freeze=freeze)
        x = torch.randn(SHAPE)
        with torch.inference_mode():
            close(exe(x), reference(x, w))
        w.add_(1)
        close(exe(x), reference(x, w))


def test_after_an_exception_in_a_step():
    candidate, code, w = programs.affine()
    fail = True

    def add(reads, writes):
        if fail:
            raise ValueError("no")
        torch.add(reads[0], reads[1], out=writes[0])

    exe = build(candidate, code={**code, 1: Routine("add", add)})
    x = torch.randn(SHAPE)
    with pytest.raises(ValueError, match="no"):
        exe(x)
    fail = False
    close(exe(x), reference(x, w))
    assert len(exe.program.tuned.frames) == 1


def test_packed_weights_follow_their_originals():
    candidate, code, w = programs.packed()
    for freeze in (True, False):
        exe = build(candidate, code=code, freeze=freeze)
        x = torch.randn(SHAPE)
        close(exe(x), x * (w + 1))
        w.mul_(3)
        close(exe(x), x * (w + 1))
        assert (exe.plan.persistent_bytes > 0) == freeze


def test_no_compiler_runs_the_interpreter(monkeypatch):
    from luminal_lab.errors import CompilerError

    def nothing():
        raise CompilerError("there is no C compiler", fix="install gcc")

    monkeypatch.setattr(cc, "discover", nothing)
    candidate, code, w = programs.affine(stride=(1, 64))
    with pytest.warns(NoCompilerWarning, match="reference interpreter"):
        exe = build(candidate, code=code)
    x = torch.randn(SHAPE)
    close(exe(x), reference(x, w))
    assert exe(x).stride() == (1, 64)
    with pytest.raises(CallError, match="expected"):
        exe(x.double())
    with pytest.raises(LuminalError, match="no memory plan"):
        exe.plan


def test_another_target_is_refused():
    candidate, code, _ = programs.affine()
    with pytest.raises(LuminalError, match="'cuda'"):
        build(programs.changed(candidate, target="cuda"), code=code)


def test_copies_share_the_program(affine):
    exe, _ = affine
    assert copy.deepcopy(exe) is exe


def test_its_views(affine):
    exe, _ = affine
    assert "1 done at build time" in repr(exe).replace("\n", " ")
    assert "k_mul(b0=x, b1=w2, b2=t)" in exe.text()
    assert list(exe.table()["at_build"]) == [True, False, False]
    assert "k_add" in exe.graph().source
    assert exe.diff(exe) == ""
    assert "void k_mul(" in exe.source()
    assert "text/plain" in exe._repr_mimebundle_()


def test_progress_is_reported(fresh_cache):
    candidate, code, _ = programs.affine(SHAPE)
    seen = []
    build(candidate, code=code, progress=lambda *event: seen.append(event))
    assert [(done, total) for done, total, _ in seen] == [(1, 2), (2, 2)]
    assert {name for *_, name in seen} == {"k_mul", "k_add"}


@pytest.mark.skipif(sys.platform != "linux", reason="advice of Linux")
def test_a_large_result_asks_for_huge_pages(monkeypatch):
    import luminal_lab as ll

    asked = []
    monkeypatch.setattr(
        "luminal_lab.runtime.executable.in_huge_pages", lambda *a: asked.append(a)
    )
    for rows, large in ((8192, True), (4096, False)):
        x = torch.ones(rows, 1024)
        exe = ll.build(
            ll.search(ll.saturate(ll.capture(torch.neg, (x,))), ll.Budget("none")).best
        )
        y = exe(x)
        assert asked == ([(y.data_ptr(), 4 * x.numel())] if large else [])
        assert torch.equal(y, -x)
        asked.clear()


def test_advice_about_memory_harms_nothing():
    x = torch.arange(1 << 20, dtype=torch.float32)
    in_huge_pages(x.data_ptr(), 4 * x.numel())
    in_huge_pages(x.data_ptr(), 0)
    in_huge_pages(x.data_ptr() + 4, 4)
    assert torch.equal(x, torch.arange(1 << 20, dtype=torch.float32))
