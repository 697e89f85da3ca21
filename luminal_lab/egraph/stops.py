"""Where saturation was stopped: which rules were held back, and what is missing for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph, Part
    from luminal_lab.egraph.rulebook import RuleInfo

FULL = "saturated"
CAPPED = "saturated but for capped rules"


@dataclass(frozen=True)
class HeldBack:
    """A capped rule that had more matches than its cap, and so was skipped.

    Arguments:
        rule: The rule.
        iterations: In which iterations.
    """

    rule: RuleInfo
    iterations: tuple[int, ...]


def held_back(part: Part, rules: Sequence[RuleInfo]) -> tuple[HeldBack, ...]:
    """The rules that were skipped in a region.

    A capped rule counts as many matches in an iteration as there are, old ones included: they
    do not become none, unless there are too many.
    """
    later = [it for it in part.report.iterations if it.number > 0]
    out = []
    for rule in rules:
        if rule.cap is None:
            continue
        names = {rule.name, f"{rule.name}=>", f"{rule.name}<="}
        counts = [sum(it.matches.get(n, 0) for n in names) for it in later]
        first = next((it.number for it, n in zip(later, counts) if n), None)
        if first is None:
            continue  # whether it could not match or was always skipped, counts do not say
        skipped = tuple(
            it.number for it, n in zip(later, counts) if not n and it.number > first
        )
        if skipped:
            out.append(HeldBack(rule, skipped))
    return tuple(out)


def report(egraph: EGraph) -> str:
    """How saturation ended in each region, and what is missing where it was stopped."""
    return "\n".join(line for part in egraph.parts for line in _lines(egraph, part))


def _lines(egraph: EGraph, part: Part) -> Iterator[str]:
    used = sum(1 for i in egraph.program.instances if i.region == part.region)
    done = part.report
    often = f" (× {used})" if used > 1 else ""
    limits = {
        "row limit": f" of {egraph.limits.rows:,} e-nodes",
        "iteration limit": f" of {egraph.limits.iterations}",
        "time limit": f" of {egraph.limits.seconds:g} s",
    }
    why = done.stopped + limits.get(done.stopped, "")
    last = done.iterations[-1]
    head = f"region {part.region}{often}: {why} after {last.number} iterations"
    yield f"{head}, {last.rows:,} e-nodes"
    for held in held_back(part, egraph.rules):
        cap = held.rule.cap or 0
        yield (
            f"  {held.rule.name} was skipped in {_span(held.iterations)}, for more than {cap:,}"
            f" matches. Missing: what it would have found there ({held.rule.law})"
        )
    never = [r for r in egraph.rules if r.cap is not None and not _matched(part, r)]
    if done.stopped != FULL and never:
        names = ", ".join(f"{r.name} (cap {r.cap:,})" for r in never)
        yield f"  never ran, for want of matches or for more than the cap: {names}"
    if done.stopped not in (FULL, CAPPED):
        busy = sorted(last.matches.items(), key=lambda item: (-item[1], item[0]))[:3]
        told = ", ".join(f"{name} ({n:,} matches)" for name, n in busy)
        yield (
            "  Missing: what further iterations would find. Most active in the last one: "
            + (told or "none")
        )
    if done.counts.skipped:
        yield (
            f"  {done.counts.skipped} renamed copies are over the limit of"
            f" {egraph.limits.copies:,}: there, values are read from memory only"
        )


def _matched(part: Part, rule: RuleInfo) -> bool:
    return any(it.matches.get(rule.name) for it in part.report.iterations)


def _span(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"iteration {numbers[0]}"
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    shown = f"{numbers[0]}–{numbers[-1]}" if whole else ", ".join(map(str, numbers))
    return f"iterations {shown}"
