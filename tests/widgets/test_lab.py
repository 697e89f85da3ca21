"""The workbench in a real JupyterLab: every panel, by mouse and by keyboard.

Screenshots go to `$LUMINAL_SCREENSHOTS` when it is set, to be looked at.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CODE = """\
import torch, luminal_lab as ll
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, dim=-1) @ v
bench = ll.Workbench(attention, [torch.randn(1, 2, 128, 64) for _ in range(3)])
bench.search.effort.value = "none"
bench
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab server with one notebook; its address."""
    pytest.importorskip("jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        {"cell_type": "code", "id": f"c{k}", "execution_count": None, "metadata": {},
         "outputs": [], "source": source}
        for k, source in enumerate([CODE, "6 * 7"])
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "bench.ipynb").write_text(json.dumps(book))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = str(Path(__file__).resolve().parents[2])
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.token=", "--ServerApp.password=", f"--ServerApp.root_dir={folder}"],
        env={**os.environ, "PYTHONPATH": root, "JUPYTER_CONFIG_DIR": str(folder / "config")},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/api").close()
                break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(scope="module")
def notebook(browser: Any, lab: str) -> Iterator[Any]:
    """The notebook with the workbench shown."""
    page = browser.new_page(viewport={"width": 1300, "height": 1100})
    page.set_default_timeout(90_000)
    errors: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(f"{lab}/doc/tree/bench.ipynb")
    page.wait_for_selector(".jp-Notebook-cell")
    page.wait_for_selector(".jp-NotebookPanel-toolbar")
    page.wait_for_timeout(2500)  # the kernel's session
    page.click(".jp-Notebook-cell .cm-content >> nth=0")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(".ll-graph [data-key]")
    yield page
    assert not errors
    page.close()


def shot(page: Any, name: str) -> None:
    folder = os.environ.get("LUMINAL_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def tab(page: Any, title: str) -> None:
    page.locator(f".lm-TabBar-tab:has-text('{title}'):visible").last.click()


def test_the_stages_run_in_the_background(notebook: Any) -> None:
    page = notebook
    shot(page, "model")
    page.click("button:has-text('Run all')")
    page.click(".jp-Notebook-cell .cm-content >> nth=-1")
    page.keyboard.press("Shift+Enter")  # another cell, meanwhile
    page.wait_for_selector(".jp-OutputArea-output:has-text('42')")
    page.wait_for_selector("text=Timeline of a run")
    shot(page, "profile")


def test_each_panel_shows_its_stage(notebook: Any) -> None:
    page = notebook
    tab(page, "E-graph")
    page.wait_for_selector("text=rules made e-nodes >> visible=true")
    tab(page, "Forms of a node")
    page.wait_for_selector("text=as captured >> visible=true")
    shot(page, "e-graph")
    tab(page, "Search")
    page.wait_for_selector(".ll-table tbody tr >> visible=true")
    page.click(".ll-table tbody tr >> nth=1")
    shot(page, "search")
    tab(page, "Candidate")
    page.wait_for_selector(".ll-graph [data-key^=c] >> visible=true")
    shot(page, "candidate")
    tab(page, "Kernels")
    page.wait_for_selector("pre:has-text('tl.load') >> visible=true")
    shot(page, "kernels")
    tab(page, "Compare")
    page.wait_for_selector("button:has-text('Save session') >> visible=true")


def test_an_edited_kernel_is_verified(notebook: Any) -> None:
    page = notebook
    tab(page, "Kernels")
    tab(page, "Edit by hand")
    page.click("button:has-text('Compile, verify, time'):visible")
    page.wait_for_selector("text=kernel trial: done")
    shot(page, "edited")
    page.wait_for_selector("text=✓ right >> visible=true")
    shot(page, "edited")


def test_what_was_tried_is_kept_as_a_candidate(notebook: Any) -> None:
    page = notebook
    page.click("button:has-text('Keep as a candidate') >> visible=true")
    page.wait_for_selector("text=compilation: done")
    tab(page, "Candidate")
    page.wait_for_selector(".widget-dropdown:has-text('by hand:') >> visible=true")
    shot(page, "kept")


def test_the_keyboard_reaches_the_graph(notebook: Any) -> None:
    page = notebook
    tab(page, "Model")
    page.locator("svg.canvas:visible").first.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".ll-graph .node.chosen >> visible=true")
    page.keyboard.press("/")
    page.keyboard.type("exp2")
    page.wait_for_selector("text=found in >> visible=true")
    page.keyboard.press("Enter")
    page.wait_for_selector("aside >> text=Exp2 (unary) >> visible=true")


ACTIVE = """([css, text]) => {
  const e = document.activeElement;
  const said = [e.getAttribute("aria-label"), e.title, e.textContent].join(" ");
  return e.matches(css) && said.includes(text);
}"""


def reach(page: Any, css: str, text: str = "") -> None:
    """Press Tab until what has the focus is such an element."""
    for _ in range(200):
        if page.evaluate(ACTIVE, [css, text]):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {css} {text!r}")


def turn(page: Any, title: str) -> None:
    """From a bar of tabs that is reached by Tab, to one of its tabs by arrows."""
    bar = ".ll-panel .lm-TabBar-tab"
    for _ in range(40):
        reach(page, bar)
        names = page.evaluate(
            "() => [...document.activeElement.parentElement.children].map(e => e.textContent)"
        )
        if title in names:
            break
        page.keyboard.press("Tab")
    for _ in range(len(names)):
        if page.evaluate(ACTIVE, [bar, title]):
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")


def choose_in_graph(page: Any, title: str) -> None:
    """Open a panel, and choose a node of its graph."""
    turn(page, title)
    reach(page, "svg.canvas")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".ll-graph .node.chosen >> visible=true")


def test_every_panel_by_the_keyboard_alone(browser: Any, lab: str) -> None:
    """No click after the cell has been run: from running all stages to saving a session."""
    page = browser.new_page(viewport={"width": 1300, "height": 1100})
    page.set_default_timeout(90_000)
    errors: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(f"{lab}/doc/tree/bench.ipynb?reset")
    page.wait_for_selector(".jp-Notebook-cell")
    page.wait_for_timeout(2500)
    page.click(".jp-Notebook-cell .cm-content >> nth=0")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".ll-graph [data-key]")
    reach(page, "button", "Saturate, search, build and profile")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Timeline of a run")

    choose_in_graph(page, "Model")
    turn(page, "E-graph")
    page.wait_for_selector("text=rules made e-nodes >> visible=true")
    turn(page, "Forms of a node")
    page.wait_for_selector("text=as captured >> visible=true")
    turn(page, "Search")
    reach(page, ".ll-table .rows")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".ll-table tbody tr[aria-selected=true] >> visible=true")
    choose_in_graph(page, "Candidate")
    reach(page, "button", "Compile it to one library")  # another row was chosen
    page.keyboard.press("Enter")
    page.wait_for_selector("text=compilation: done")
    turn(page, "Kernels")
    turn(page, "Edit by hand")
    reach(page, "textarea")
    page.keyboard.press("Tab")  # it is left as it was entered
    reach(page, "button", "Compile, verify, time")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=kernel trial: done")
    turn(page, "Profile")
    reach(page, "button", "PyTorch")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=comparison: done")
    turn(page, "Compare")
    reach(page, "button", "Save session")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=saved")
    assert not errors
    page.close()


PANELS = ("Model", "E-graph", "Search", "Candidate", "Kernels", "Profile", "Compare")


def test_no_serious_accessibility_violation_in_our_widgets(notebook: Any) -> None:
    axe = pytest.importorskip("axe_core_python.sync_playwright")
    page = notebook
    bad = []
    for name in PANELS:
        tab(page, name)
        page.wait_for_timeout(500)
        shot(page, f"axe-{name}")
        for v in axe.Axe().run(page, context=".ll-panel")["violations"]:
            if v["impact"] in ("serious", "critical"):
                bad += [(name, v["id"], n["html"][:300]) for n in v["nodes"]]
    assert not bad, "\n".join(map(str, dict.fromkeys(bad)))
