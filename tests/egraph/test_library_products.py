"""What a library does to a product on its way to memory is found as one call."""

from __future__ import annotations

import pytest
import torch

import luminal_lab as ll
from luminal_lab.egraph.audit import audit
from luminal_lab.egraph.saturate import saturate
from luminal_lab.search.candidate import LibraryKernel
from tests.egraph.programs import inputs_of

gelu = torch.nn.functional.gelu
W, BIAS, MATRIX = torch.randn(24, 40), torch.randn(40), torch.randn(16, 40)

# The program of x, and the epilogue that the library is to take: alpha, beta, activation.
EPILOGUES = {
    "alpha": (lambda x: -0.5 * (x @ W), (-0.5, None, "")),
    "bias": (lambda x: x @ W + BIAS, (1.0, 1.0, "")),
    "matrix": (lambda x: x @ W + MATRIX, (1.0, 1.0, "")),
    "rows": (lambda x: MATRIX[:, :1] + x @ W, (1.0, 1.0, "")),
    "alpha-beta": (lambda x: torch.addmm(MATRIX, x, W, beta=0.25, alpha=3.0), (3.0, 0.25, "")),
    "relu": (lambda x: torch.relu(x @ W), (1.0, None, "relu")),
    "bias-relu": (lambda x: torch.relu(x @ W + BIAS), (1.0, 1.0, "relu")),
    "bias-gelu": (lambda x: gelu(x @ W + BIAS), (1.0, 1.0, "gelu")),
    "all": (lambda x: gelu(0.5 * (x @ W) + 2.0 * MATRIX), (0.5, 2.0, "gelu")),
    "batched": (lambda x: torch.relu(x.view(2, 8, 24) @ W + BIAS), (1.0, 1.0, "relu")),
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.usefixtures("c_compiler")
def test_one_call_computes_product_and_epilogue(name: str) -> None:
    fn, wanted = EPILOGUES[name]
    x = torch.randn(16, 24)
    egraph = saturate(ll.capture(fn, (x,)))
    (part,) = egraph.parts
    forms = [n.attrs[0] for c in part.classes for n in c.nodes if n.op == "gemm"]
    found = [(f.alpha, None if f.plus is None else f.beta, f.act) for f in forms]
    assert wanted in found, found
    assert audit(part, inputs_of(egraph, (x,))) == []

    def called(candidate: ll.Candidate) -> bool:
        (one, *others) = candidate.kernels
        return (
            not others
            and isinstance(one, LibraryKernel)
            and (one.attrs["alpha"], one.attrs["act"]) == (wanted[0], wanted[2])
        )

    candidates = ll.sample(egraph, 40)
    (chosen, *_) = [c for c in candidates if called(c)]
    torch.testing.assert_close(ll.build(chosen)(x), fn(x), rtol=1e-5, atol=1e-5)
