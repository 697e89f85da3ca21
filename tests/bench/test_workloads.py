import json

import pytest
import torch

from luminal_lab.bench import workloads
from luminal_lab.bench.__main__ import chosen, main
from luminal_lab.bench.runner import in_float64, run_workload
from luminal_lab.bench.workloads import SUITES, WORKLOADS, Workload
from luminal_lab.errors import LuminalError


@pytest.fixture
def small(monkeypatch):
    """A workload that takes no time."""

    def make(generator):
        def double(x):
            return x + x

        return double, (torch.randn(8, generator=generator),)

    made = Workload("double", "small", make, bars={"eager": 0.0})
    from luminal_lab.bench import __main__ as command

    monkeypatch.setattr(command, "WORKLOADS", (made,))
    monkeypatch.setattr(command, "SUITES", ("small",))
    return made


def test_the_table():
    assert len({w.name for w in WORKLOADS}) == len(WORKLOADS)
    assert SUITES == ("kernels", "attention", "encoder")
    assert all(w.bars for w in WORKLOADS)


@pytest.mark.parametrize("workload", WORKLOADS[:9], ids=lambda w: w.name)
def test_every_workload_can_be_computed(workload):
    """What it moves at least follows from its operands and result."""
    fn, args = workload.make(torch.Generator().manual_seed(0))
    out = fn(*args)
    if workload.bytes and workload.suite == "kernels":
        moved = sum(a.numel() for a in args if a.dim() > 1) + (
            out.numel() if out.dim() > 1 else 0
        )
        assert workload.bytes == 4 * moved
    assert out.dtype == torch.float32


def test_causal_attention_is_causal():
    fn, (q, k, v) = workloads._causal_attention(torch.Generator().manual_seed(0))
    want = workloads.sdpa(q, k, v, causal=True)
    torch.testing.assert_close(fn(q, k, v), want, rtol=1e-4, atol=1e-5)


def test_names_choose_workloads():
    assert chosen([]) == WORKLOADS
    assert {w.suite for w in chosen(["attention"])} == {"attention"}
    assert [w.name for w in chosen(["SOFTMAX"])] == ["softmax 4096²"]
    with pytest.raises(LuminalError, match="'nothing'"):
        chosen(["nothing"])


def test_float64_reference_of_a_module():
    module = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    assert in_float64(module, (x,)).dtype == torch.float64
    assert module.weight.dtype == torch.float32


def test_an_unknown_peer(small):
    with pytest.raises(LuminalError, match="'tvm'"):
        run_workload(small, peers=("eager", "tvm"))


def test_the_command(small, tmp_path, capsys, c_compiler):
    path = tmp_path / "out.json"
    arguments = ["--peers", "eager", "--rounds", "3", "--json", str(path)]
    assert main(arguments) == 0
    assert "double" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["comparisons"]
    assert row["workload"] == "double"
    assert len(row["seconds"]["eager"]) == 3
    assert main(["nothing"]) == 2
    assert "no suite or workload" in capsys.readouterr().err


def test_against_our_compiler(small, c_compiler):
    made = run_workload(small, peers=("eager", "luminal"), effort="none", rounds=3)
    assert [c.name for c in made.contestants] == ["eager", "luminal"]
    assert made.wrong == ()
    assert made["luminal"].prepare > 0
