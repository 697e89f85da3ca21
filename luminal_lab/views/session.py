"""A session as one page, and two sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import hlir as hlir_view
from luminal_lab.views import kernels as kernels_view
from luminal_lab.views import profile as profile_view
from luminal_lab.views import result as result_view
from luminal_lab.views import units
from luminal_lab.views.html import Figure, Html, card, columns, el, fragment, table
from luminal_lab.views.html import page as document

if TYPE_CHECKING:
    from luminal_lab.session import Session


def page(session: Session) -> str:
    """All stages as one document, without scripts and without references to elsewhere."""
    hlir = session.stage("hlir")
    name = hlir.name if hlir is not None else session.path.name
    return str(document(f"Luminal Lab: {name}", el("h1", name), *sections(session)))


def sections(session: Session) -> list[Html]:
    """One card per stage that the session holds."""
    out = []
    hlir, egraph = session.stage("hlir"), session.stage("egraph")
    result, profile = session.stage("result"), session.stage("profile")
    candidate = session.stage("candidate") or (result.best if result is not None else None)
    if hlir is not None:
        out.append(card("Program", *hlir_view.body(hlir), level=2))
    if egraph is not None:
        out.append(card("E-graph", *egraph_view.body(egraph), level=2))
    if result is not None:
        out.append(card("Search", *result_view.body(result, with_best=False), level=2))
    if candidate is not None:
        out.append(
            card(f"Candidate {candidate.name}", *candidate_view.body(candidate), level=2)
        )
        out.append(card("Kernels", *kernels_view.all_sources(candidate), level=2))
    if profile is not None:
        out.append(card("Profile", *profile_view.body(profile), level=2))
    return out or [el("p", "The session is empty.", class_="muted")]


def comparison(sessions: Sequence[Session]) -> Figure:
    """Sessions side by side: figures of each stage, then the candidates' kernels.

    Arguments:
        sessions: Two or more.
    """
    rows: list[tuple[str, list[Any]]] = []
    found = [_figures(s) for s in sessions]
    for key in dict.fromkeys(k for f in found for k in f):
        rows.append((key, [f.get(key) for f in found]))
    names = [s.path.stem for s in sessions]
    head = ["", *((n, "num") for n in names)]
    body = [[el("b", key), *values] for key, values in rows]
    parts = [table(head, body, label="sessions")]
    best = [_best(s) for s in sessions]
    sides = [
        el("div", el("h4", n), candidate_view.kernel_table(c) if c is not None else
           el("p", "no candidate", class_="muted"))
        for n, c in zip(names, best)
    ]  # fmt: skip
    parts += [el("h4", "Kernels of the best candidates"), columns(*sides)]
    text = "\n".join(
        f"{key:<28}" + "".join(f"{v if v is not None else '–':>20}" for v in values)
        for key, values in rows
    )
    return Figure(fragment(card("Sessions", *parts)), " " * 28 + "".join(
        f"{n:>20}" for n in names) + "\n" + text)  # fmt: skip


def _best(session: Session) -> Any:
    result = session.stage("result")
    return session.stage("candidate") or (result.best if result is not None else None)


def _figures(session: Session) -> dict[str, Any]:
    """The figures of a session that are compared."""
    out: dict[str, Any] = {}
    hlir, egraph = session.stage("hlir"), session.stage("egraph")
    result, profile = session.stage("result"), session.stage("profile")
    if hlir is not None:
        out["program"] = hlir.name
        out["HLIR nodes"] = f"{len(hlir.nodes):,}"
    if egraph is not None:
        out["e-nodes"] = f"{egraph.size:,}"
        out["regions"] = f"{len(egraph.parts):,}"
        out["saturation"] = units.seconds(egraph.seconds.get("total"))
    if result is not None:
        out["effort"] = result.budget.effort
        out["seed"] = str(result.seed)
        out["genomes considered"] = f"{result.considered:,}"
        out["search"] = units.seconds(result.seconds)
    best = _best(session)
    if best is not None:
        out["best candidate"] = best.name
        out["kernels"] = f"{len(best.kernels):,}"
        out["calls"] = f"{len([c for c in best.calls if not c.at_build]):,}"
        out["temporaries"] = units.size(best.temporaries)
        out["predicted"] = units.seconds(best.seconds) if best.predicted else None
    if profile is not None:
        out["measured"] = units.seconds(profile.total)
        out["machine"] = profile.machine.name
    return out
