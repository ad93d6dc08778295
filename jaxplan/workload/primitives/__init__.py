"""Rules that name the dims of each primitive's results, one file a family."""

from jaxplan.workload.primitives import contraction, convolution, elementwise, lookup, reduction, shaping
from jaxplan.workload.primitives.registry import RULES, Rule

__all__ = ["RULES", "Rule", "contraction", "convolution", "elementwise", "lookup", "reduction", "shaping"]
