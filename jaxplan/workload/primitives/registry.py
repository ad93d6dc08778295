"""The table from a primitive's name to its rule.

A rule takes the recorder, the equation and its operands' labels, records what the equation costs and returns its
results' labels. What has no rule is uncovered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder

Rule = Callable[[Recorder, Any, Sequence[Array]], list[Array]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name} has two rules")
            RULES[name] = function
        return function

    return register
