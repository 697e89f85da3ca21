from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.errors import SearchError
from luminal_lab.hlir.dtypes import BF16, BOOL, F32, I64
from luminal_lab.hlir.graph import Ref, TorchName
from luminal_lab.hlir.index import Index
from luminal_lab.search import LibraryKernel
from luminal_lab.search.canonical import canonical
from luminal_lab.search.kernel_text import kernel_text, parse_kernel
from luminal_lab.search.plain import from_plain, to_plain


def softmax_like(i: str, j: str, x: str, y: str) -> Kernel:
    """A kernel with a reduction, constants, a mask, a cast and a gather, under given names."""
    ii, jj = Index.axis(i), Index.axis(j)
    load = Value("load", (), (x, (ii * 4 + 1, jj)), dtype=BF16)
    wide = Value("cast", (load,), (), dtype=F32)
    rows = Value("iota", (), (ii.floordiv(2, {i: 8}),), dtype=I64)
    at = Value("load", (rows,), (y, (Index.axis("@0"), jj)), dtype=F32)
    low = Value("const", (), (float("-inf"),), dtype=F32)
    yes = Value("const", (), (True,), dtype=BOOL)
    body = Value("select", (yes, Value("mul", (wide, at), dtype=F32), low), dtype=F32)
    top = Value("red", (body,), ("max", j), dtype=F32)
    one = Value("const", (), (1.0,), dtype=F32)
    total = Value("online", (body, one, wide), (j,), dtype=F32)
    value = Value("add", (top, total), dtype=F32)
    buffers = {
        y: Buffer(y, (4, 6), F32, constant=True),
        x: Buffer(x, (33, 6), BF16, strides=(12, 1)),
        "out": Buffer("out", (8,), F32),
    }
    return Kernel((KernelOutput("out", (ii,), value),), buffers, {j: 6, i: 8, "unused": 3})


names = st.sampled_from(["i", "j'", "t12", "zz", "a0", "a1", "b0"])


@given(names, names, names, names)
def test_the_text_does_not_depend_on_names(i, j, x, y):
    if i == j or x == y:
        return
    _, text, back = canonical(softmax_like(i, j, x, y))
    _, other, _ = canonical(softmax_like("i", "j", "x", "y"))
    assert text == other
    assert back == {"b0": x, "b1": y, "b2": "out"}


def test_the_text_parses_back():
    kernel, text, _ = canonical(softmax_like("i", "j", "x", "y"))
    again = parse_kernel(text)
    assert again == kernel
    assert kernel_text(again) == text
    assert list(kernel.extents) == ["a0", "a1"]


def test_constants_that_compare_equal_have_different_texts():
    texts = set()
    for number, dtype in ((1.0, F32), (1, I64), (True, BOOL), (0.0, F32), (-0.0, F32)):
        value = Value("const", (), (number,), dtype=dtype)
        out = Buffer("o", (), dtype)
        texts.add(kernel_text(Kernel((KernelOutput("o", (), value),), {"o": out}, {})))
    assert len(texts) == 5


def test_library_kernels_too():
    template = ((Ref(0), 2, [None, 1.5], TorchName("strided")), {"dim": -1, "x": float("inf")})
    kernel = LibraryKernel(
        "custom",
        ("p", "q"),
        ("r",),
        {n: Buffer(n, (2,), F32) for n in "pqr"},
        {"target": "aten.sort.default", "template": template, "result": 1},
    )
    renamed, text, back = canonical(kernel)
    assert parse_kernel(text) == renamed
    assert back == {"b0": "p", "b1": "q", "b2": "r"}
    assert from_plain(to_plain(template)) == template


def test_what_is_no_kernel_is_refused_with_its_line():
    _, text, _ = canonical(softmax_like("i", "j", "x", "y"))
    with pytest.raises(SearchError, match="nonsense"):
        parse_kernel(text + "\nnonsense")
    with pytest.raises(SearchError, match="v99"):
        parse_kernel(text.replace("add v", "add v99 v", 1))
    with pytest.raises(SearchError, match="without a store"):
        parse_kernel("axes a0=1")
    with pytest.raises(SearchError, match="plain data"):
        to_plain(object())


def test_provenance_is_kept_but_is_not_identity():
    kernel = replace(softmax_like("i", "j", "x", "y"), nodes=(1,), rules=("law",))
    renamed, text, _ = canonical(kernel)
    assert renamed.nodes == (1,)
    assert renamed.rules == ("law",)
    assert text == canonical(replace(kernel, nodes=(), rules=()))[1]
