"""The workbench without a browser: stages in the background, cancel, trials of kernels."""

from __future__ import annotations

import itertools
import threading
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import LuminalError
from luminal_lab.polling import poll
from luminal_lab.search import Candidate
from luminal_lab.search.progress import SearchEvent
from luminal_lab.session import Session
from luminal_lab.views.result import pareto_svg
from luminal_lab.widgets import Workbench
from luminal_lab.widgets.jobs import Job
from luminal_lab.widgets.panels import egraph as egraph_panel
from luminal_lab.widgets.panels.profile import doubt
from tests.runtime.processes import PATIENCE, until


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.5, -1)


@pytest.fixture
def bench() -> Workbench:
    return Workbench(softmax, (torch.randn(32, 64),))


def ready(bench: Workbench) -> None:
    bench.state.saturate()
    bench.state.job.wait()
    bench.state.search(ll.Budget("none"))
    bench.state.job.wait()
    assert not bench.state.job.failed, bench.state.job.message


def test_all_stages_run_one_after_the_other(bench: Workbench) -> None:
    bench.search.effort.value = "none"
    bench.run_all()
    assert until(lambda: bench.state.profile is not None or bench.state.job.failed)
    assert not bench.state.job.failed, bench.state.job.message
    bench.state.job.wait()
    assert repr(bench) == "Workbench(softmax: captured, saturated, searched, built, profiled)"
    assert bench.tabs.selected_index == 5


def test_every_panel_shows_its_stage(bench: Workbench) -> None:
    ready(bench)
    assert "e-nodes" in bench.egraph.facts.value
    assert len(bench.search.table.rows) == len(bench.state.result.rows)
    assert bench.candidate.graph.graph.nodes
    bench.explain()
    assert bench.tabs.selected_index == 3
    assert "bound by" in bench.candidate.why.value
    assert "as captured: one kernel per operation" in bench.candidate.why.value
    assert "static void" in bench.kernels.editor.value
    bench.tabs.selected_index = 4  # sources are drawn when they are looked at
    assert "@triton.jit" in bench.kernels.sources.value.replace("</span>", "").replace(
        '<span class="tp">', ""
    )


def test_the_slider_of_iterations_marks_the_curve_and_lists_what_was_made(
    bench: Workbench,
) -> None:
    ready(bench)
    panel = bench.egraph
    panel.iteration.value = 0
    first, curve = panel.born.value, panel.growth.value
    assert "The encoder made" in first
    panel.iteration.value = 1
    assert "Iteration 1 added" in panel.born.value
    assert panel.growth.value != curve
    assert panel.growth.value.count("edge dash") == 1


def test_the_controls_of_the_search_reach_it(bench: Workbench) -> None:
    panel, asked = bench.search, []
    search, bench.state.search = bench.state.search, lambda *a, **k: asked.append((a, k))
    try:
        assert panel.heat.disabled
        panel.strategy.value, panel.heat.value = "annealing", 0.2
        panel.wanted.value, panel.memory.value, panel.seconds.value = 5, 3, 1.5
        assert not panel.heat.disabled
        panel.search()
        panel.heat.value = -1.0
        panel.search()
        assert "temperature" in panel.facts.value
    finally:
        bench.state.search = search
        panel.strategy.value, panel.heat.value = "genetic", 0.05
        panel.wanted.value, panel.memory.value, panel.seconds.value = 0, 0, 0
    (((budget, seed), options),) = asked
    assert (budget.candidates, budget.memory, budget.seconds, seed) == (5, 3 << 20, 1.5, 0)
    assert options == {"strategy": "annealing:0.2"}


def test_a_new_stage_drops_what_came_from_the_old_one(bench: Workbench) -> None:
    ready(bench)
    bench.state.saturate()
    bench.state.job.wait()
    assert bench.state.result is None
    assert bench.state.candidate is None


def test_a_selection_goes_through_the_panels(bench: Workbench) -> None:
    ready(bench)
    hlir = bench.state.hlir
    target = next(n for n, node in enumerate(hlir.nodes) if node.op == "Exp2")
    bench.model.graph.selected = f"n{target}"
    assert bench.state.nodes == (target,)
    assert hlir.nodes[target].op in bench.egraph.node.label
    assert bench.candidate.graph.highlighted


def two_lines(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(x)
    return y.cumsum(-1)


def test_source_lines_and_what_came_from_them_select_each_other() -> None:
    bench = Workbench(two_lines, (torch.randn(4, 8),))
    first, second = bench.model.lines.rows
    assert (first["function"], first["text"]) == ("two_lines", "y = torch.exp(x)")
    bench.model.lines.selected = first["key"]
    hlir = bench.state.hlir
    assert {hlir.nodes[n].source.line for n in bench.state.nodes} == {first["key"]}
    assert bench.model.graph.highlighted
    assert bench.model.lines.marked == [first["key"]]
    other = next(n for n, node in enumerate(hlir.nodes) if node.source.line == second["key"]
                 and f"n{n}" in {b.key for b in bench.model.graph.graph.nodes})  # fmt: skip
    bench.model.graph.selected = f"n{other}"
    assert bench.model.lines.marked == [second["key"]]
    assert bench.model.lines.selected == ""
    ready(bench)
    assert "y.cumsum(-1)" in bench.kernels.formula.value


def test_schedules_and_edited_source_are_tried(bench: Workbench) -> None:
    ready(bench)
    kernels = bench.kernels
    kernels.time()
    bench.state.job.wait()
    assert kernels.trials[-1][1].measurement.ok, kernels.trials
    right = kernels.editor.value
    assert "1.44269502f" in right
    kernels.editor.value = right.replace("1.44269502f", "1.5f")
    kernels.time_edited()
    bench.state.job.wait()
    assert kernels.trials[-1][1].measurement.reason == "wrong"
    assert kernels.keep.disabled
    kernels.editor.value = right.replace("{", "{ this is not C", 1)
    kernels.time_edited()
    bench.state.job.wait()
    assert kernels.trials[-1][1].measurement.reason == "compile failed"
    assert ".c:1" in kernels.trials[-1][1].measurement.message
    kernels.editor.value = right.replace("void sum_", "void other_")
    kernels.time_edited()
    bench.state.job.wait()
    assert "does not define" in kernels.said.value
    kernels.schedule.value = len(kernels.space) - 1  # not the default one: the entry has
    kernels._fresh()  # another name
    assert kernels.editor.value != right
    kernels.editor.value = f"/* by hand */\n{kernels.editor.value}"
    kernels.time_edited()
    bench.state.job.wait()
    assert not kernels.keep.disabled, kernels.trials[-1]
    before = bench.state.candidate
    kernels.keep_last()
    bench.state.job.wait()
    x = torch.randn(32, 64)
    assert torch.allclose(bench.state.executable(x), softmax(x), atol=1e-6)
    assert "by hand" in bench.state.executable.source()
    made = bench.state.candidate
    assert made.name != before.name
    assert "by hand" in made.source(0).text
    assert "by hand" in kernels.editor.value
    again = Candidate.parse(made.text(), made.hlir)
    assert (again.name, again.written) == (made.name, made.written)
    assert bench.candidate.pick.label == f"by hand: {made.name}"
    bench.candidate.pick.value = -1
    assert bench.state.candidate.name == before.name


def test_a_doubtful_profile_says_so_and_a_session_names_its_own_file(tmp_path: Path) -> None:
    found = types.SimpleNamespace(kernels=[types.SimpleNamespace(median=5e-3)])
    assert "50 times what the cost model predicts" in doubt(found, 1e-4)
    assert doubt(found, 2e-3) == doubt(found, float("nan")) == ""
    path = tmp_path / "mine.session"
    bench = Workbench(softmax, (torch.randn(4, 8),), session=path)
    assert bench.compare.path.value == str(path)


def test_a_search_that_was_killed_before_it_listed_anything_is_shown(bench: Workbench) -> None:
    ready(bench)
    early = replace(bench.state.result, rows=(), interrupted=True)
    bench.state.set_result(early)
    assert "stopped early" in bench.search.facts.value
    bench.explain()
    assert "What it wins against" in bench.candidate.why.value
    assert "<svg" in str(pareto_svg(early))


def test_of_a_large_e_graph_the_neighbourhood_is_drawn(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egraph_panel, "_WHOLE", 3)
    bench.state.saturate()
    bench.state.job.wait()
    panel = bench.egraph
    some = panel.graph.graph.groups
    title = panel.graph.graph.title
    assert "around" in title
    assert panel.graph.highlighted
    panel.whole.value = True
    assert len(panel.graph.graph.groups) > len(some)
    panel.whole.value = False
    panel.graph.selected = next(n.key for n in panel.graph.graph.nodes if n.hlir)
    assert panel.graph.selected  # what was clicked stays where it is
    drawn = panel.graph.graph
    panel.node.value = next(n for _, n in panel.node.options if n != panel.node.value)
    assert panel.graph.graph is not drawn


def test_the_why_of_a_rule_and_of_a_form(bench: Workbench) -> None:
    bench.state.saturate()
    bench.state.job.wait()
    panel = bench.egraph
    hlir = bench.state.hlir
    panel.node.value = max(n for n, _ in enumerate(hlir.nodes) if hlir.nodes[n].op == "Mul")
    panel.rule.value = "sum-linear"
    panel.why_not()
    bench.state.job.wait()
    assert "sum-linear" in panel.reason.value
    panel.goal.value = next(v for label, v in panel.goal.options if "(encode)" not in label)
    panel.explain()
    bench.state.job.wait()
    assert "bad" not in panel.reason.value.split("</style>")[1]


def test_a_wrong_rule_is_shown_and_not_used(bench: Workbench) -> None:
    egraph = bench.egraph
    egraph.editor.value = (
        ";; law: x + x = x (it is not)\n;; class: exact\n"
        '(rewrite (Add x x) x :when ((= d (dtype x)) (floating d)) :name "wrong-double")'
    )
    egraph.again()
    assert "FALSE" in egraph.verdict.value
    assert bench.state.egraph is None
    egraph.editor.value = "(rewrite (Add x"
    assert not egraph.check()
    assert "bad" in egraph.verdict.value


def test_pytorch_is_timed_in_the_same_rounds(bench: Workbench) -> None:
    ready(bench)
    bench.state.build()
    bench.state.job.wait()
    bench.profile.repeats.value = 3
    bench.profile.versus(inductor=False)
    bench.state.job.wait()
    assert not bench.state.job.failed, bench.state.job.message
    assert "eager" in bench.profile.others.value


def test_machine_code_on_demand(bench: Workbench) -> None:
    ready(bench)
    bench.kernels.show_assembly()
    bench.state.job.wait()
    assert "instructions" in bench.kernels.machine.value


def test_each_stage_has_a_panel_of_its_own_and_a_static_form(bench: Workbench) -> None:
    ready(bench)
    s = bench.state
    titles = {}
    for stage in (s.hlir, s.egraph, s.result, s.candidate):
        panel = stage.widget()
        titles[type(stage).__name__] = panel.title
        bundle: Any = panel._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert data["text/plain"] == repr(stage)
        assert "<svg" in data["text/html"] or "<table" in data["text/html"]
    assert titles == {
        "Hlir": "Model", "EGraph": "E-graph", "Result": "Search", "Candidate": "Candidate",
    }  # fmt: skip
    exe = ll.build(s.candidate)
    assert exe.widget().title == "Profile"
    assert ll.profile(exe, s.args, repeats=3).widget().title == "Profile"


def test_an_empty_session_is_refused(tmp_path: Path) -> None:
    empty = Session(tmp_path / "empty.session")
    with empty, pytest.raises(LuminalError, match="no program in this session"):
        Workbench(empty)


def test_a_session_is_kept_up_to_date_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "softmax.session"
    bench = Workbench(softmax, (torch.randn(32, 64),), session=path)
    ready(bench)
    with ll.load(path) as seen:  # as another process would, while the first one lives
        assert seen.stages() == ("hlir", "egraph", "result", "candidate")
    again = Workbench(ll.load(path))
    assert repr(again) == "Workbench(softmax: captured, saturated, searched)"
    assert again.state.candidate.name == bench.state.candidate.name
    assert len(again.search.table.rows) == len(bench.state.result.rows)
    assert again.state.best == [tuple(p) for p in bench.state.best]
    again.explain()  # as before: the e-graph is there, and so are all candidates
    assert "What each choice saves" in again.candidate.why.value
    again.candidate.tabs.selected_index = 2
    assert "As the program says it" in again.candidate.steps.value
    last = again.state.result.rows[-1]
    again.search.table.selected = f"{last.region}.{last.rank}"
    assert again.state.candidate.name == bench.state.result.candidates[last.rank].name


def test_sessions_are_saved_exported_and_compared(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ready(bench)
    for name in ("one", "two"):
        bench.compare.path.value = f"{name}.session"
        bench.compare.save()
    bench.compare.export()
    assert "MB" in bench.compare.note.value
    assert (tmp_path / "two.html").exists()
    bench.compare.files.value = ("one.session", "two.session")
    bench.compare.compare()
    assert "best candidate" in bench.compare.view.value
    bench.compare.path.value = "missing/three.session"
    bench.compare.save()
    assert "bad" in bench.compare.note.value


# ------------------------------------------------------------------------------------ jobs


def test_a_cancel_ends_the_work_and_keeps_what_it_returns() -> None:
    job, kept = Job(), []

    def work() -> str:
        try:
            while True:
                job.tell("working")
                time.sleep(0.01)
        except KeyboardInterrupt:
            return "half"

    assert job.start("work", work, kept.append)
    assert not job.start("other", work)
    job.cancel()
    job.wait(PATIENCE)
    assert kept == ["half"]
    assert job.state == "idle"
    assert "stopped" in job.message


def test_a_cancel_ends_what_waits_for_a_compiler() -> None:
    job = Job()

    def work() -> None:
        while True:
            poll()
            time.sleep(0.01)

    job.start("work", work, prompt=True)
    job.cancel()
    job.wait(PATIENCE)
    assert job.state == "idle"
    assert "canceled after" in job.message


def test_a_pause_holds_the_work() -> None:
    job, steps = Job(), []
    more = threading.Event()

    def work() -> None:
        for k in itertools.count():
            job.tell(f"step {k}")
            steps.append(k)
            more.wait(0.002)

    job.start("work", work)
    assert until(lambda: steps)
    job.pause()
    held = len(steps) + 1  # one step may be under way
    time.sleep(0.1)
    assert len(steps) <= held
    job.pause()
    assert until(lambda: len(steps) > held)
    job.cancel()
    job.wait(PATIENCE)
    assert "canceled" in job.message


@pytest.mark.parametrize("error", [LuminalError("what", fix="do this"), ValueError("odd")])
def test_an_error_is_a_message(error: Exception) -> None:
    job = Job()

    def work() -> Any:
        raise error

    job.start("work", work)
    job.wait(PATIENCE)
    assert job.failed
    assert str(error) in job.message


def test_what_was_measured_shows_while_the_search_runs(bench: Workbench) -> None:
    bench.state.saturate()
    bench.state.job.wait()
    bench.state.search(ll.Budget("quick", candidates=3))
    bench.state.job.wait()
    assert not bench.state.job.failed, bench.state.job.message
    assert {stage for _, _, stage in bench.state.best} <= {"explore", "measured"}
    seen = [seconds for _, seconds, stage in bench.state.best if stage == "measured"]
    assert all(s > 0 for s in seen)
    bench.state._look_after = 0.0
    event = SearchEvent("measure", 1, 2, result=lambda: bench.state.result)
    bench.state._look(event, 9.0)
    assert bench.state.best[-1][::2] == (9.0, "measured")


def test_a_search_can_be_canceled(bench: Workbench) -> None:
    bench.state.saturate()
    bench.state.job.wait()
    bench.state.search(ll.Budget("full"))
    assert until(lambda: bench.state.best or bench.state.job.state != "running")
    bench.state.job.cancel()
    bench.state.job.wait(PATIENCE)
    assert bench.state.job.state == "idle"
    assert bench.state.result is not None
