"""Finalists: whole programs, verified, timed in a fresh process; ties go to the simpler one."""

import time

import pytest
import torch

import luminal_lab as ll
from luminal_lab.runtime import finalists
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.search import Budget, Database, Measurement, search
from luminal_lab.search.finalists import expected_outputs, written
from luminal_lab.search.run import Search
from tests.search.fake import FakeTarget
from tests.search.models import saturated


def quick(egraph, target, database=None):
    database = Database(":memory:") if database is None else database
    return search(egraph, Budget("quick"), target=target, database=database)


@pytest.fixture(scope="module")
def block():
    return saturated("block")


def test_finalists_are_whole_programs_in_the_table(block):
    result = quick(block, FakeTarget())
    table = result.final_table()
    assert 1 <= len(table) <= result.budget.level.finalists
    assert table["chosen"].sum() == 1
    assert (table["status"] == "verified").all()
    rows = result.table()
    assert rows["program_ms"].notna().sum() == len(table)
    assert rows["chosen"].sum() == 1
    assert rows[rows["chosen"]]["program_ms"].notna().all()


def test_the_fastest_whole_program_wins_whatever_its_kernels_say(block):
    slow = {}

    def seconds(candidate):
        return slow.setdefault(candidate.name, 1.0 / (1 + len(slow)))

    target = FakeTarget()
    target.program_seconds = seconds
    result = quick(block, target)
    assert len(slow) > 1
    assert result.best.name == min(slow, key=slow.__getitem__)


def test_a_tie_goes_to_fewer_kernels(block):
    target = FakeTarget()
    target.program_seconds = lambda c: 1e-3 * (1 - 1e-3 * len(c.calls))
    result = quick(block, target)
    assert len(target.programs_run) > 1
    assert len(result.best.calls) == min(len(c.calls) for c in target.programs_run)


def test_a_wrong_finalist_is_rejected_and_counted(block):
    target = FakeTarget()
    wrong = []

    def spoil(candidate, got):
        wrong.append(candidate.name)
        return {n: v + 1 for n, v in got.items()} if len(wrong) == 1 else got

    target.spoil_program = spoil
    result = quick(block, target)
    table = result.final_table().set_index("candidate")
    assert table.loc[wrong[0], "status"] == "rejected"
    assert table.loc[wrong[0], "reason"] == "wrong"
    assert result.best.name != wrong[0]
    counted = result.rejections().table().set_index("reason")["count"]
    assert counted["wrong"] == 1
    assert counted.sum() == result.considered


def test_times_of_finalists_are_remembered(block, tmp_path):
    with Database(tmp_path / "db") as database:
        first = quick(block, FakeTarget(), database)
        target = FakeTarget()
        second = quick(block, target, database)
    assert first.timings > 0
    assert second.timings == 0
    assert target.programs_run == target.measured == []
    assert second.final_table().equals(first.final_table())


def test_effort_none_times_no_program(block):
    target = FakeTarget()
    result = search(block, Budget("none"), target=target)
    assert target.programs_run == []
    assert result.finalists == ()


def test_the_program_as_written_uses_no_rule(block):
    run = Search(block, Budget("none"))
    made = written(block, run.assembler)
    assert made is not None
    assert not any(k.rules for k in made.kernels)


def program(fn, *args):
    egraph = ll.saturate(ll.capture(fn, args))
    run = Search(egraph, Budget("none"))
    run.run()
    return run


class Counter(torch.nn.Module):
    """Mutates a buffer, and returns two outputs, one of them an integer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return torch.softmax(x, -1), (x > 0).sum(-1)


def sized():
    """A program whose first size is decided by the call."""
    rows = torch.export.Dim("rows", min=2, max=300)
    x = torch.randn(40, 16)
    hlir = ll.capture(
        lambda a: torch.softmax(a @ a.T, -1) @ a + a.mean(0), (x,), dynamic_shapes=({0: rows},)
    )
    assert hlir.symbols
    return ll.saturate(hlir)


def test_programs_that_take_sizes_have_finalists():
    target = FakeTarget()
    result = quick(sized(), target)
    assert result.finalists
    assert all(f.measurement is not None and f.measurement.ok for f in result.finalists)
    assert len(target.programs_run) == len(result.finalists)


@pytest.mark.parametrize("kind", ["plain", "mutates", "half", "sized"])
def test_programs_run_in_a_process_of_their_own(kind):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    if kind == "mutates":
        run = program(Counter(), x)
    elif kind == "sized":
        run = Search(sized(), Budget("none"))
        run.run()
    elif kind == "half":
        run = program(lambda a: (a * 2).sum(-1), x.to(torch.bfloat16))
    else:
        run = program(lambda a: torch.softmax(a, -1) @ a.T, x)
    candidate = run.result().best
    from luminal_lab.search.finalists import Entry

    expected = expected_outputs(run.egraph, run.assembler, [Entry([], candidate, 0.0)])
    assert set(expected[0]) == {o.name for o in run.egraph.program.hlir.outputs}
    (measurement,) = CpuTarget().programs([candidate], expected)
    assert measurement is not None
    assert measurement.ok, measurement.message
    assert measurement.seconds
    assert measurement.max_error < 0.1


def test_a_program_with_a_wrong_output_is_told():
    run = program(lambda a: torch.softmax(a, -1), torch.randn(4, 5))
    candidate = run.result().best
    from luminal_lab.search.finalists import Entry

    expected = expected_outputs(run.egraph, run.assembler, [Entry([], candidate, 0.0)])
    (name,) = expected[0]
    expected[0][name].values.add_(1.0)
    (measurement,) = CpuTarget().programs([candidate], expected)
    assert isinstance(measurement, Measurement)
    assert measurement.reason == "wrong"
    assert name in measurement.message


@pytest.mark.parametrize(
    ("always", "order", "last"),
    [
        (False, [[0, 1, 2], [0, 2, 1]], ""),
        (True, [[0, 1, 2], [0, 2, 1], [0, 2]], "crashed"),
    ],
)
def test_a_program_that_ends_its_process_has_a_second_try(monkeypatch, always, order, last):
    lives: list[list[int]] = []

    def race(path, todo, out, expected, threads, seed, deadline):
        lives.append(list(todo))
        if 1 in todo and (len(lives) < 2 or always):
            out[1] = Measurement(False, reason="crashed")
            return 1
        for k in todo:
            out[k] = Measurement(True, (1.0,))
        return None

    monkeypatch.setattr(finalists, "_race", race)
    monkeypatch.setattr(finalists, "_write", lambda path, candidates: None)
    got = finalists.time_programs([None] * 3, [{}] * 3, threads=1)
    assert lives == order
    assert [m.reason for m in got] == ["", last, ""]


def test_a_deadline_leaves_programs_untimed():
    run = program(lambda a: torch.softmax(a, -1), torch.randn(4, 5))
    got = CpuTarget().programs([run.result().best], [{}], deadline=time.monotonic() + 0.1)
    assert got == [None]
