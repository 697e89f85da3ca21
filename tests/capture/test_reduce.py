"""Reductions, scans, softmax and normalisation, against eager."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from tests.capture.eager import agrees, special

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8)
ALL = (*FLOATS, *INTS, torch.bool)
INF, NAN = math.inf, math.nan


def some(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(3, 4, 5, dtype=torch.float64) * 3
    return (
        (x > 0)
        if dtype == torch.bool
        else x.abs().to(dtype)
        if dtype == torch.uint8
        else x.to(dtype)
    )


REDUCTIONS = {
    "sum": (lambda x: [x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x[:, :1].sum(1)], ALL),
    "sum dtype": (lambda x: [x.sum(0, dtype=torch.float32)], ALL),
    "sum view": (lambda x: [x.mT.sum(0), x[:, ::2].sum(1), x.expand(2, 3, 4, 5).sum(0)], ALL),
    "mean": (lambda x: [x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)], FLOATS),
    "var": (lambda x: [x.var((0, 2), correction=0, keepdim=True), x.std(-1), x.var()], FLOATS),
    "var_mean": (lambda x: [*torch.var_mean(x, 1), *torch.std_mean(x, (0, 1))], FLOATS),
    "amax": (lambda x: [x.amax(1), x.amax((0, 2), keepdim=True), x.max()], ALL),
    "amin": (lambda x: [x.amin(1), x.amin((0, 2), keepdim=True), x.min()], ALL),
    "max dim": (lambda x: [*x.max(1), *x.max(-1, keepdim=True)], ALL),
    "min dim": (lambda x: [*x.min(1), *x.min(-1, keepdim=True)], ALL),
    "argmax": (lambda x: [x.argmax(1), x.argmax(), x.argmin(2, True)], (*FLOATS, *INTS)),
    "any": (lambda x: [x.any(), x.any(1), torch.any(x, (0, 2))], ALL),
    "all": (lambda x: [x.all(), x.all(1, keepdim=True), torch.all(x, (0, 2))], ALL),
    "count_nonzero": (lambda x: [x.count_nonzero(), x.count_nonzero(1)], ALL),
    "norm": (
        lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (1, 2, 3, 0, INF, -INF)],
        FLOATS,
    ),
    "cumsum": (lambda x: [x.cumsum(1), x.cumsum(-1)], (torch.float32, *INTS, torch.bool)),
    "softmax": (lambda x: [x.softmax(-1), x.softmax(1)], FLOATS),
    "log_softmax": (lambda x: [x.log_softmax(-1), x.log_softmax(0)], FLOATS),
    "softmax dtype": (lambda x: [x.softmax(-1, dtype=torch.float32)], FLOATS),
    "logsumexp": (lambda x: [x.logsumexp(-1), x.logsumexp((0, 1), keepdim=True)], FLOATS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, ds) in REDUCTIONS.items() for d in ds], ids=str
)
def test_reductions(name: str, dtype: torch.dtype) -> None:
    x = some(dtype)
    agrees(REDUCTIONS[name][0], x)


@pytest.mark.parametrize("name", ["amax", "amin", "max dim", "min dim", "softmax", "logsumexp"])
def test_nan_and_infinities(name: str) -> None:
    x = torch.zeros(4, 4, 3)
    x[0, 1, 0], x[1, 2, 1], x[2, 0, 2], x[3] = NAN, INF, -INF, -INF
    agrees(REDUCTIONS[name][0], x)


def test_argmax_takes_the_first_of_equals_and_the_first_nan() -> None:
    x = torch.tensor([[1.0, 3, 3, 2], [NAN, 5, NAN, 5], [-INF, -INF, -INF, -INF]])
    agrees(lambda x: [x.argmax(1), x.argmin(1), *x.max(1), *x.min(1)], x)
    i = torch.tensor([[2**62, -(2**63), 2**63 - 1, -(2**63)]])
    agrees(lambda x: [x.argmax(1), x.argmin(1), x.amin(1), x.amax(1)], i)


def test_the_place_of_an_extreme_among_computed_floats_has_a_lowering() -> None:
    x, w = torch.randn(5, 16), torch.randn(16, 4)
    agrees(lambda x, w: [(x @ w).argmax(-1), *torch.softmax(x, -1).min(-1)], x, w)
    agrees(lambda x, w: [(x @ w).t().max(0)[1], *torch.aminmax(x @ w, dim=1)], x, w)
    agrees(lambda x: [x.double().argmin(), (x * 2).argmax()], x)
    agrees(lambda i: (i * 3 + 1).argmax(-1), torch.arange(12).reshape(3, 4) % 5)


def test_the_place_of_an_extreme_is_carried_with_it() -> None:
    hlir = agrees(lambda x: x.exp().argmax(1), torch.randn(3, 4))
    assert [n.op for n in hlir.nodes].count("ArgMaxReduce") == 1
    assert not any(n.op == "LessThan" for n in hlir.nodes)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_are_summed_as_eager_does(dtype: torch.dtype) -> None:
    agrees(lambda x: [x.sum(1), x.mean(1)], special(dtype).reshape(8, 3))


def test_empty_and_scalar_inputs() -> None:
    x, s = torch.randn(3, 0, 2), torch.tensor(2.5)
    agrees(lambda x: [x.sum(1), x.mean(1), x.sum(), x.any(1), x.all(1), x.softmax(0)], x)
    agrees(lambda s: [s.sum(), s.mean(), s.amax(), s.softmax(0), s.argmax(), s.cumsum(0)], s)
    agrees(lambda s: [s.var(correction=0), *s.max(0), s.logsumexp(0)], s)


def test_variance_of_one_element_is_nan() -> None:
    x = torch.randn(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager says that there are no degrees of freedom
        agrees(lambda x: [x.var(1), x.std(1, correction=2), *torch.var_mean(x, 1)], x)


def test_integer_sums_wrap() -> None:
    agrees(lambda x: [x.sum(), x.to(torch.int8).sum(dtype=torch.int8)], torch.full((9,), 2**62))


def test_a_bf16_sum_is_accumulated_in_f32() -> None:
    x = torch.ones(4096, dtype=torch.bfloat16)  # bf16 would stop at 256
    hlir = agrees(lambda x: x.sum(), x)
    assert [n.dtype.name for n in hlir.nodes if n.op == "SumReduce"] == ["f32"]


def test_softmax_has_the_form_that_the_online_law_knows() -> None:
    hlir = agrees(lambda x: x.softmax(-1), torch.randn(2, 5))
    ops = [n.op for n in hlir.nodes if n.op not in ("Input", "Constant")]
    assert ops == ["MaxReduce", "Mul", "Add", "Mul", "Exp2", "SumReduce", "Recip", "Mul"]


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (6,), w, b),
    "layer_norm plain": lambda x, w, b: F.layer_norm(x, (4, 6)),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (6,), w, 1e-6),
    "rms_norm eps": lambda x, w, b: F.rms_norm(x, (6,)),
    "group_norm": lambda x, w, b: F.group_norm(x.transpose(1, 2), 3, w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x.transpose(1, 2), weight=w, bias=b),
    "batch_norm": lambda x, w, b: F.batch_norm(x.transpose(1, 2), b, w.abs(), w, b),
    "batch_norm training": lambda x, w, b: F.batch_norm(x.mT, None, None, w, b, True),
    "batch_norm 2d": lambda x, w, b: F.batch_norm(x[0], b, w.abs()),
    "normalize": lambda x, w, b: F.normalize(x, dim=1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_normalisation(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 6).to(dtype)
    w, b = torch.rand(6).to(dtype) + 0.5, torch.randn(6).to(dtype)
    agrees(NORMS[name], x, w, b)


LOSSES = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y),
    "cross_entropy ignore": lambda x, y: F.cross_entropy(x, y, ignore_index=2),
    "cross_entropy smooth": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "nll": lambda x, y: F.nll_loss(x, y, reduction="none"),
    "mse": lambda x, y: F.mse_loss(x, y[:, None].float().expand(4, 5)),
    "l1": lambda x, y: F.l1_loss(x, y[:, None].float().expand(4, 5)),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y[:, None].float().expand(4, 5)),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "kl": lambda x, y: F.kl_div(x, x.softmax(-1), reduction="batchmean"),
    "cosine": lambda x, y: F.cosine_similarity(x, x.roll(1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    agrees(LOSSES[name], torch.randn(4, 5), torch.tensor([1, 2, 0, 4]))
