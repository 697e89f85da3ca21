"""What all panels share: a box over a state, and pieces of a view in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import ipywidgets as w

from luminal_lab.views.html import Html, el, fragment
from luminal_lab.widgets.state import State


class Panel(w.VBox):
    """A part of the workbench.

    Arguments:
        state: What it shows and changes; several panels may share one.
    """

    title = ""
    stage = ""  # the attribute of the state that it shows
    awake = True  # whether somebody looks at it; a workbench puts the others to sleep

    def __init__(self, state: State):
        super().__init__()
        self.state = state
        self.children = (sheet(), *self.build())
        self.layout.padding = "8px 2px"
        self.add_class("ll-panel")

    def build(self) -> Iterable[w.Widget]:
        """Make the children once."""
        raise NotImplementedError

    def wake(self) -> None:
        """Show what it did not while it was asleep."""

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data: Any = bundle[0] if isinstance(bundle, tuple) else bundle
        shown = self.shown()
        if data is not None and shown is not None:
            data["text/plain"] = repr(shown)
            data["text/html"] = shown._repr_mimebundle_().get("text/html", "")
        return bundle

    def shown(self) -> Any:
        """The stage object that stands in where widgets do not run; None when there is none."""
        return getattr(self.state, self.stage, None)

    def follow(self, names: str | list[str], react: Callable[[], None]) -> None:
        """Call `react` now and at each change of a stage object."""
        self.state.observe(lambda change: react(), names)
        react()


# What the controls of ipywidgets need: titles that are not cut off, fields that fit.
_CONTROLS = """
.ll-panel.ll-panel.ll-panel .lm-TabBar-content{flex-wrap:wrap}
.ll-panel.ll-panel.ll-panel .lm-TabBar-tab{min-width:max-content;flex:0 0 auto}
.ll-panel.ll-panel.ll-panel .lm-TabBar-tabLabel{color:var(--jp-ui-font-color1,inherit)}
.ll-panel.ll-panel .widget-html-content{min-width:0}
.ll-panel.ll-panel textarea{font:12px/1.45 var(--jp-code-font-family,monospace);white-space:pre}
.ll-panel{--jp-widgets-dropdown-arrow:url("data:image/svg+xml,\
%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E%3Cpath fill='%23808080' \
d='M5.2 5.9 9 9.7l3.8-3.8 1.2 1.2-4.9 5-4.9-5z'/%3E%3C/svg%3E")}
.ll-panel.ll-panel button:focus-visible{outline:2px solid currentColor;outline-offset:1px}
"""


def sheet() -> w.HTML:
    """The style sheet of the controls, which shows nothing by itself."""
    return w.HTML(f"<style>{_CONTROLS}</style>", layout=w.Layout(display="none"))


def html(*parts: Any) -> w.HTML:
    """A piece of a static view as a widget."""
    return w.HTML(str(fragment(*parts)), layout=w.Layout(width="100%", margin="0"))


def put(widget: w.HTML, *parts: Any) -> None:
    """Replace the content of `html`."""
    widget.value = str(fragment(*parts))


def nothing(text: str) -> Html:
    """What stands in a panel that has nothing to show yet."""
    return el("p", text, class_="muted")


def button(
    label: str, tip: str, react: Callable[[], Any], *, primary: bool = False, icon: str = ""
) -> w.Button:
    """A button that says what it does."""
    made = w.Button(
        description=label,
        tooltip=tip,
        button_style="primary" if primary else "",
        icon=icon,
        layout=w.Layout(width="auto"),
    )
    made.on_click(lambda _: react())
    return made


def offer(field: Any, options: list[tuple[str, Any]], value: Any = None) -> None:
    """Give a field other values to choose from, and choose one (by default the first)."""
    field.options = options
    field.value = value if value is not None else (options[0][1] if options else None)


def row(*children: w.Widget) -> w.HBox:
    """Controls side by side, wrapped on a narrow page."""
    layout = w.Layout(flex_flow="row wrap", align_items="center", grid_gap="4px 10px")
    return w.HBox(children, layout=layout)


def number(label: str, value: float, tip: str, *, whole: bool = True, wide: int = 150) -> Any:
    """A field for a number."""
    kind = w.IntText if whole else w.FloatText
    return kind(
        value=value,
        description=label,
        tooltip=tip,
        layout=w.Layout(width=f"{wide}px"),
        style={"description_width": "initial"},
    )


def choice(label: str, options: Any, tip: str, value: Any = None, wide: str = "auto") -> Any:
    """A field for one of several values."""
    made = w.Dropdown(
        options=options,
        description=label,
        tooltip=tip,
        layout=w.Layout(width=wide, max_width="100%"),
        style={"description_width": "initial"},
    )
    if value is not None:
        made.value = value
    return made
