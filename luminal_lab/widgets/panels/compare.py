"""Compare: saved sessions side by side."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import ipywidgets as w

from luminal_lab.errors import LuminalError
from luminal_lab.session import Session, is_session, safe_name
from luminal_lab.views import session as session_view
from luminal_lab.views.html import el
from luminal_lab.widgets.panels.base import Panel, button, html, nothing, put, row


class ComparePanel(Panel):
    """Two or more saved sessions side by side; this one can be saved and exported."""

    title = "Compare"

    def build(self) -> Iterable[w.Widget]:
        """Make the children."""
        self.path = w.Text(
            value="", placeholder="name.session", description="session file",
            layout=w.Layout(width="380px"), style={"description_width": "initial"},
        )  # fmt: skip
        self.files = w.SelectMultiple(
            options=[], description="sessions", rows=5,
            layout=w.Layout(width="520px"), style={"description_width": "initial"},
        )  # fmt: skip
        save = button("Save session", "Write all stages into one file", self.save)
        page = button("Export HTML", "Write one page that opens offline", self.export)
        look = button("Refresh", "Look for session files in this folder", self.refresh)
        go = button(
            "Compare", "Show the chosen sessions side by side", self.compare, primary=True
        )
        self.note = html()
        self.view = html(nothing("Choose two sessions or more (Ctrl or Shift)."))
        self.refresh()
        return [row(self.path, save, page), self.note, row(self.files, look, go), self.view]

    def refresh(self) -> None:
        """List the session files of this folder."""
        found = sorted(p for p in glob.glob("*.session") if is_session(p))
        self.files.options = found
        if self.state.session is not None:
            self.path.value = str(self.state.session.path)
        elif self.state.hlir is not None and not self.path.value:
            self.path.value = f"{safe_name(self.state.hlir.name)}.session"

    def save(self) -> None:
        """Write the session to the file that is named."""
        self._do(lambda: self.state.save(self.path.value), "Saved")
        self.refresh()

    def export(self) -> None:
        """Write the session as a page beside its file."""

        def work() -> Path:
            target = Path(self.path.value).with_suffix(".html")
            self.state.save(self.path.value).export(target)
            return target

        self._do(work, "Wrote")

    def _do(self, work, said: str) -> None:
        try:
            done = work()
        except LuminalError as error:
            put(self.note, el("p", str(error), class_="bad"))
            return
        where = done.path if isinstance(done, Session) else done
        size = Path(where).stat().st_size / 1e6
        put(self.note, el("p", f"{said} {where} ({size:.2f} MB)", class_="good"))

    def compare(self) -> None:
        """Show the chosen sessions."""
        if len(self.files.value) < 2:
            put(self.view, nothing("Choose two sessions or more (Ctrl or Shift)."))
            return
        with ExitStack() as stack:
            try:
                opened = [stack.enter_context(Session(p)) for p in self.files.value]
                self.view.value = str(session_view.comparison(opened).html)
            except LuminalError as error:
                put(self.view, el("p", str(error), class_="bad"))
