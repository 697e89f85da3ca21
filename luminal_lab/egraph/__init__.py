"""Hlir → e-graph: encoding, rules, saturation, read-out, and the check that rules are true.

`saturate` and `evaluate` live in the modules of their names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "EClass": "egraph",
    "EGraph": "egraph",
    "ENode": "egraph",
    "Iteration": "egraph",
    "Limits": "process",
    "Part": "egraph",
    "Report": "egraph",
    "RuleInfo": "rulebook",
    "RuleSet": "ruleset",
    "check_rule": "soundness",
    "check_rules": "ruleset",
    "load_rules": "rulebook",
    "rule_catalogue": "rulebook",
}

__all__ = [
    "EClass",
    "EGraph",
    "ENode",
    "Iteration",
    "Limits",
    "Part",
    "Report",
    "RuleInfo",
    "RuleSet",
    "check_rule",
    "check_rules",
    "load_rules",
    "rule_catalogue",
]

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EClass, EGraph, ENode, Iteration, Part, Report
    from luminal_lab.egraph.process import Limits
    from luminal_lab.egraph.rulebook import RuleInfo, load_rules, rule_catalogue
    from luminal_lab.egraph.ruleset import RuleSet, check_rules
    from luminal_lab.egraph.soundness import check_rule


def __getattr__(name: str) -> Any:
    # Lazily: the saturation child imports this package and must start fast.
    if name in _HOME:
        return getattr(import_module(f"luminal_lab.egraph.{_HOME[name]}"), name)
    raise AttributeError(f"module 'luminal_lab.egraph' has no attribute {name!r}")
