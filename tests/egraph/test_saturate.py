"""Saturation: what it finds, how far it goes, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from luminal_lab.capture.export import capture
from luminal_lab.egraph import process
from luminal_lab.egraph.egraph import EGraph, Iteration, Part
from luminal_lab.egraph.process import Child, Limits
from luminal_lab.egraph.rulebook import load_rules
from luminal_lab.egraph.saturate import saturate
from luminal_lab.errors import LuminalError, RuleError, SaturationError
from luminal_lab.hlir.graph import Hlir
from tests.egraph.programs import Attention, BertLayer, Stack, program
from tests.runtime.processes import PATIENCE, ctrl_c

EXPLODING = """
;; law: (a+b)+c = a+(b+c)
;; class: reassociates
(rewrite (Add (Add a b) c) (Add a (Add b c)) :name "free-add-associates")

;; law: a+b = b+a
;; class: exact
(rewrite (Add a b) (Add b a) :name "free-add-commutes")
"""

SQUARING = """
;; law: nothing: it makes a sum of each two sums
;; class: exact
(rule ((= e (Add a b)) (= f (Add c d))) ((Add e f)) :name "squaring")
"""


class Scaled(torch.nn.Module):
    def forward(self, x):
        return (x * 2.0 * 0.5).sum(1)


def chain(terms: int) -> Hlir:
    """A sum of many terms: associativity and commutativity explode on it."""

    def total(*xs: torch.Tensor) -> torch.Tensor:
        out = xs[0]
        for x in xs[1:]:
            out = out + x
        return out

    class Total(torch.nn.Module):
        def forward(self, *xs):
            return total(*xs)

    return capture(Total(), tuple(torch.randn(4) for _ in range(terms)))


def attention(causal: bool = False, s: int = 1024, d: int = 64) -> Hlir:
    qkv = tuple(torch.empty(1, 12, s, d) for _ in range(3))
    return capture(Attention(causal=causal), qkv)


def one_kernel_online(part: Part, output: int) -> bool:
    """Whether a tensor has a one-kernel form in one pass: no maximum over all keys.

    Chooses online forms where there are any, never reads an intermediate tensor, and looks at
    the reductions that are left.
    """
    inputs = {c.id for c in part.classes if any(n.op == "input" for n in c.nodes)}
    chosen: dict[int, tuple[int, tuple[str, ...]]] = {}  # class -> (reductions, their axes)
    changed = True
    while changed:
        changed = False
        for c in part.classes:
            for n in c.nodes:
                if c.sort != "V" or (n.op == "load" and n.children[0] not in inputs):
                    continue
                below = n.children[1:] if n.op == "load" else n.children
                if not all(x in chosen for x in below):
                    continue
                axes = [a for x in below for a in chosen[x][1]]
                if n.op == "red":
                    axes.append("/".join(n.attrs))
                elif n.op == "online":
                    axes.append(f"online/{n.attrs[0]}")
                key = tuple(sorted(set(axes)))
                cost = sum(10 if a.startswith("max/") else 1 for a in key)
                if c.id not in chosen or cost < chosen[c.id][0]:
                    chosen[c.id] = (cost, key)
                    changed = True
    kernels = [n for n in part.classes[output].nodes if n.op == "kernel"]
    forms = [chosen[n.children[0]][1] for n in kernels]
    for axes in forms:
        online = {a.split("/")[1] for a in axes if a.startswith("online/")}
        maxima = {a.split("/")[1] for a in axes if a.startswith("max/")}
        if maxima < online:  # within a block of keys the maximum is part of the online state
            return True
    return False


@pytest.mark.parametrize("causal", [False, True])
def test_naive_attention_ends_as_one_online_kernel(causal: bool) -> None:
    egraph = saturate(attention(causal))
    (part,) = egraph.parts
    assert part.report.stopped == "saturated"
    assert part.size < 2000
    assert one_kernel_online(part, dict(part.outputs)["y0"])


@pytest.mark.parametrize("name", ["llama", "bert", "masked", "window", "bf16", "softmax"])
def test_attention_is_online_inside_real_blocks(name: str) -> None:
    hlir, _ = program(name)
    egraph = saturate(hlir)
    (part,) = egraph.parts
    assert part.size < 2000
    online = [c for c in part.classes if any(n.op == "online" for n in c.nodes)]
    assert online
    if name not in ("llama", "bert", "softmax"):  # softmax needs the maximum itself, too
        assert one_kernel_online(part, part.outputs[0][1])


@pytest.mark.parametrize("name", ["split-keys", "key-cache"])
def test_keys_over_two_axes_are_online_in_blocks(name: str) -> None:
    hlir, _ = program(name)
    (part,) = saturate(hlir).parts
    assert part.report.stopped.startswith("saturated")
    assert part.by_rule["online-block"] > 0
    roots = [c for _, c in part.outputs if len(part.classes[c].shape) > 2]
    assert any(one_kernel_online(part, c) for c in roots)


def test_rms_scale_leaves_the_sum_of_a_linear() -> None:
    hlir, _ = program("rmsnorm-linear")
    (part,) = saturate(hlir).parts
    root = part.classes[part.outputs[0][1]]
    (kernel,) = [n for n in root.nodes if n.op == "kernel"]
    value = part.classes[kernel.children[0]]
    # (scale) * (sum of x*g*W): the scale, which has no feature axis, is outside of the sum.
    outside = [n for n in value.nodes if n.op == "mul"]
    assert any(
        any(m.op == "red" for m in part.classes[x].nodes) for n in outside for x in n.children
    )


def test_twelve_equal_layers_are_one_region() -> None:
    torch.manual_seed(0)
    args = (torch.randn(2, 5, 16), torch.zeros(2, 1, 1, 5))
    sizes = []
    for layers in (1, 12):
        stack = Stack([BertLayer(16, 4, 32) for _ in range(layers)]).eval()
        egraph = saturate(capture(stack, args))
        sizes.append([(p.size, len(p.report.iterations)) for p in egraph.parts])
        assert len(egraph.program.instances) == layers
    assert sizes[0] == sizes[1]


def test_the_same_program_gives_the_same_classes_in_another_process(tmp_path: Path) -> None:
    hlir, _ = program("llama")
    egraph = saturate(hlir)
    hlir.save(tmp_path / "llama.hlir")
    code = (
        "from luminal_lab.hlir.graph import Hlir;"
        "from luminal_lab.egraph.saturate import saturate;"
        f"print(saturate(Hlir.load({str(tmp_path / 'llama.hlir')!r})).text())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == egraph.text().strip()


def test_progress_sees_every_iteration() -> None:
    seen: list[tuple[int, Iteration]] = []
    hlir, _ = program("attention")
    egraph = saturate(hlir, progress=lambda part, it: seen.append((part, it)))
    assert [it for _, it in seen] == list(egraph.parts[0].report.iterations)
    assert seen[0][1].number == 0


def test_tables_and_text() -> None:
    hlir, _ = program("attention")
    egraph = saturate(hlir)
    table = egraph.table()
    assert set(table["rule"]) == {r.name for r in egraph.rules}
    assert table["new e-nodes"].sum() + egraph.parts[0].by_rule["encode"] == egraph.size
    assert (table.loc[table["rule"] == "fusion", "matches"] > 0).all()
    assert len(egraph.growth()) == len(egraph.parts[0].report.iterations)
    assert "e-nodes" in repr(egraph)
    assert "text/plain" in egraph._repr_mimebundle_()
    assert "digraph" in egraph.graph().source
    tensor, *values = egraph.classes_of(max(egraph.parts[0].node_class))
    assert tensor.sort == "T"
    assert all(v.sort == "V" for v in values)
    assert egraph.rule("fusion").tolerance == "exact"
    with pytest.raises(LuminalError, match="no rule 'nope'"):
        egraph.rule("nope")
    assert egraph.diff(saturate(hlir, rules="distribution"))["there"].sum() > 0


def test_save_and_load(tmp_path: Path) -> None:
    hlir, _ = program("llama")
    egraph = saturate(hlir)
    egraph.save(tmp_path / "x.egraph")
    again = EGraph.load(tmp_path / "x.egraph")
    assert [p.classes for p in again.parts] == [p.classes for p in egraph.parts]
    assert [p.outputs for p in again.parts] == [p.outputs for p in egraph.parts]
    assert again.rules == egraph.rules
    assert again.parts[0].report == egraph.parts[0].report
    whole = saturate(hlir, regions=False)
    whole.save(tmp_path / "whole.egraph")
    assert len(EGraph.load(tmp_path / "whole.egraph").parts) == 1
    (tmp_path / "x.egraph").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(SaturationError, match="not a readable saved egraph"):
        EGraph.load(tmp_path / "x.egraph")
    with pytest.raises(SaturationError, match="cannot write"):
        egraph.save(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize("name", ["conv", "images", "integers"])
def test_every_kind_of_node_is_read_back(name: str, tmp_path: Path) -> None:
    egraph = saturate(program(name)[0])
    egraph.save(tmp_path / "x.egraph")
    again = EGraph.load(tmp_path / "x.egraph")
    assert [p.classes for p in again.parts] == [p.classes for p in egraph.parts]


# ---------------------------------------------------------------------- limits and failures


def test_an_explosion_ends_in_a_reported_stop() -> None:
    egraph = saturate(chain(12), rules=EXPLODING, limits=Limits(rows=5000))
    assert egraph.parts[0].report.stopped == "row limit"
    assert egraph.parts[0].size > 0


def test_an_iteration_that_squares_the_rows_ends_in_a_reported_stop() -> None:
    limits = Limits(rows=2000, memory=800 << 20)
    egraph = saturate(chain(12), rules=SQUARING, limits=limits)
    assert egraph.parts[0].report.stopped not in ("saturated", "iteration limit", "time limit")
    assert egraph.parts[0].size > 0


def test_a_capped_rule_runs_as_soon_as_there_is_what_it_looks_up() -> None:
    later = """
        (relation seen (V))
        ;; law: a sum is seen
        ;; class: exact
        (rule ((= s (Add a b))) ((seen s)) :name "sees")
        ;; cap: 100
        ;; law: what is seen is itself times one
        ;; class: exact
        (rule ((seen s) (= d (dtype s)) (floating d)) ((union s (Mul s (Const 1.0 d))))
          :name "once-seen")
    """
    book = load_rules(later)
    assert ("=", "dtype", "floating", "seen") in [tuple(r) for r in book.needs["capped-100"]]
    sums, none = (
        saturate(capture(f, (torch.ones(3),)), rules=later)
        for f in (lambda x: x + x * x, lambda x: x * x)
    )
    fired = [sum(i.matches.get("once-seen", 0) for i in e.parts[0].report.iterations)
             for e in (sums, none)]  # fmt: skip
    assert fired[0] > 0 == fired[1]


def test_a_choice_between_equals_makes_no_more_choices() -> None:
    # x = Select(p, x, x) must not become a choice by each conjunction of conditions.
    class Twice(torch.nn.Module):
        def forward(self, x):
            return torch.maximum(x, x).transpose(-1, -2) @ torch.maximum(x, x)

    egraph = saturate(capture(Twice(), (torch.randn(5, 16, 2),)))
    assert egraph.parts[0].report.stopped == "saturated"
    assert egraph.size < 150


def test_a_gathered_tensor_may_be_split_by_what_else_reads_it() -> None:
    class Split(torch.nn.Module):
        def forward(self, x, at):
            y = x.exp()
            return y.reshape(4, 3, 5).sum(1), y[at], torch.gather(y, 0, at[:, None] + 0 * at)

    x, at = torch.randn(12, 5), torch.tensor([11, 0, 5])
    egraph = saturate(capture(Split(), (x, at)))
    assert egraph.parts[0].report.stopped == "saturated"


def test_built_in_rules_do_not_explode_on_a_long_sum() -> None:
    egraph = saturate(chain(40))
    assert egraph.size < 2000


def test_constants_are_collected_and_never_factored() -> None:
    # 1 = 2*0.5 must not become 4*0.25 and so on: the class of x would grow without end.
    hlir = capture(Scaled(), (torch.randn(4, 8),))
    egraph = saturate(hlir)
    assert egraph.parts[0].report.stopped == "saturated"
    assert egraph.size < 40


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: (x * 0.0) * 3.0, (4, 5)),  # a*(0*x) is 0*x
        (lambda x: (x + torch.finfo(torch.float32).min) + 1.0, (4, 5)),
        (lambda x: (x * float("inf")) * -2.0 * 3.0, (4, 5)),
        (lambda x: (x[:, None, None].expand(4, 3, 5) * 2).mean((1, 2)).exp(), (4,)),
        (lambda x: torch.softmax(x[:, None].expand(4, 3) * 3, -1) @ torch.ones(3, 2), (4,)),
        (lambda x: torch.group_norm(x, 1), (2, 0, 3)),
        (lambda x: torch.nn.functional.gelu(torch.group_norm(x, 3)).sum(), (0, 3, 4)),
    ],
)
def test_numbers_that_take_up_others_make_none_without_end(f, shape: tuple[int, ...]) -> None:
    class Program(torch.nn.Module):
        def forward(self, x):
            return f(x)

    (part,) = saturate(capture(Program(), (torch.ones(shape),))).parts
    assert part.report.stopped == "saturated"
    assert len(part.classes) < 100


def test_running_out_of_memory_keeps_what_was_reached() -> None:
    limits = Limits(rows=10**9, memory=600 << 20, iterations=50)
    egraph = saturate(chain(14), rules=EXPLODING, limits=limits)
    assert "died" in egraph.parts[0].report.stopped
    assert egraph.parts[0].size > 0


def test_iteration_and_time_limits() -> None:
    hlir, _ = program("llama")
    egraph = saturate(hlir, limits=Limits(iterations=2))
    assert egraph.parts[0].report.stopped == "iteration limit"
    assert len(egraph.parts[0].report.iterations) == 3
    egraph = saturate(hlir, limits=Limits(seconds=0.0))
    assert egraph.parts[0].report.stopped == "time limit"


def test_the_tolerance_limit_leaves_rules_out() -> None:
    hlir, _ = program("bf16")
    egraph = saturate(hlir, limits=Limits(tolerance="exact"))
    assert {r.tolerance for r in egraph.rules} == {"exact"}


def test_a_cancel_keeps_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE", PATIENCE)
    hlir, _ = program("llama")

    def cancel(part: int, iteration: Iteration) -> None:
        if iteration.number == 2:
            signal.raise_signal(signal.SIGINT)

    egraph = saturate(hlir, progress=cancel)
    assert egraph.parts[0].report.stopped in ("interrupted", "saturated but for capped rules")
    assert egraph.parts[0].size > 0


LONG_STEP = """
import signal
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.saturate import saturate
from tests.egraph.test_saturate import EXPLODING, chain
limits = Limits(rows=10**9, iterations=100, seconds=3600.0, memory=2 << 30)
hlir = chain(16)
try:
    print("started", flush=True)
    egraph = saturate(hlir, rules=EXPLODING, limits=limits)
    assert egraph.parts[0].size > 0
except KeyboardInterrupt:
    pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ended")
"""


def test_a_cancel_of_a_long_step_ends_the_child() -> None:
    # Explodes within one step: the child cannot answer and is killed.
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LONG_STEP],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    time.sleep(1.0)
    with ctrl_c(parent):
        assert parent.communicate(timeout=PATIENCE)[0] == "ended\n"


def test_a_killed_child_is_an_error_with_its_exit_code() -> None:
    hlir, _ = program("attention")
    with Child() as child:
        child._process.kill()
        from luminal_lab.egraph.encode import encode
        from luminal_lab.egraph.program import commands
        from luminal_lab.egraph.rulebook import load_rules

        with pytest.raises(SaturationError, match="exit code -9"):
            child.run(load_rules(), [commands(encode(hlir))], Limits())


def test_unknown_rule_file() -> None:
    hlir, _ = program("softmax")
    with pytest.raises(RuleError, match=r"no rule file 'nowhere/my.egg'"):
        saturate(hlir, rules="nowhere/my.egg")
    with pytest.raises(RuleError, match=r"or one of distribution"):
        saturate(hlir, rules=["nonesuch"])


@pytest.mark.parametrize(
    ("body", "place", "said"),
    [
        ('(rewrite (Mull a b) (Mul b a) :name "x")', "4:12", "Unbound function Mull"),
        ('(rewrite (Mul a) (Mul a a) :name "x")', "4:12", "Arity mismatch"),
        ('(rewrite (Mul a b) (Kernel a "") :name "x")', "4:", "type"),
        ('(rewrite (Mul a b) (Mul b c) :name "x")', "4:29", "Unbound symbol c"),
        ('(rewrite (Mul a b) (Mul b a) :name "x"', "4:3", "never closed"),
        ('(rule (= a b) :name "x")', "4:", "parse error|Unbound|could not"),
        ('(rewrite (Mul a b) :name "x")', "4:", "."),
    ],
)
def test_a_wrong_rule_is_an_error_with_its_place(
    tmp_path: Path, body: str, place: str, said: str
) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(f"; my rules\n  ;; law: something\n  ;; class: exact\n  {body}\n")
    hlir, _ = program("softmax")
    with pytest.raises(RuleError, match=said) as caught:
        saturate(hlir, rules=path)
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{path}:{place}")


def test_uniting_different_dtypes_is_an_error_that_says_so() -> None:
    hlir, _ = program("causal")
    wrong = """
    ;; law: a comparison is a number (it is not)
    ;; class: exact
    (rewrite (LessThan a b) a :name "wrong")
    """
    with pytest.raises(SaturationError, match="Illegal merge attempted for function dtype"):
        saturate(hlir, rules=wrong)


def test_symbolic_dims_are_extents() -> None:
    dim = torch.export.Dim("n", min=2, max=64)
    hlir = capture(torch.nn.ReLU(), (torch.randn(8, 4),), dynamic_shapes={"input": {0: dim}})
    (part,) = saturate(hlir).parts
    assert sorted(map(str, part.extents.values())) == ["4", *hlir.symbols]


def test_the_child_does_not_import_torch() -> None:
    code = "import sys, luminal_lab.egraph.worker; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(out.strip().lower()) is False


def test_a_choice_that_is_its_own_branch_does_not_grow() -> None:
    def positions(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(1) + 0
        return table[torch.where(at < 0, at + 20, at)] + x

    def masks(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.where(m, torch.where(m & (m & (x > 0)), x, 0.0), 0.0)

    for fn, args in (
        (positions, (torch.randn(20, 4), torch.randn(1, 4))),
        (masks, (torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool))),
    ):
        for part in saturate(capture(fn, args)).parts:
            assert part.report.stopped == "saturated"
            assert part.report.iterations[-1].rows < 100
