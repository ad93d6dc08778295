"""The checkpoint is restored on half of the devices, in other roles."""

from __future__ import annotations

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import refused

NAME = "other-mesh"
WHAT = "restored on half of the devices, in other roles"
SAFE = "the same bits, and losses that differ by rounding only"

REFUSES = "refused: a circular pipeline stores its layers in an order of its own"


def run(stage: Stage) -> Outcome:
    if stage.attached["devices"] < 2:
        return Outcome(NAME, WHAT, SAFE, "one device has no other mesh", None)
    order = stage.seeded(NAME, layout="other")
    came = stage.train(order)
    if stage.program["layer_order"]:    # the other layout has no repeats, and so another order
        return refused(stage, NAME, WHAT, REFUSES, came, "layers of a circular pipeline taken in another order")
    if not came.done:
        return Outcome(NAME, WHAT, SAFE, came.said, False)
    judged, whole = stage.judge(came), stage.restored_whole(came)
    bits = "the same bits" if whole else "other bits"
    near = judged.difference is not None and judged.difference <= stage.tolerance
    said = f"{bits}; {judged.compared} losses within {judged.difference:.1e} (allowed {stage.tolerance:.0e})"
    return Outcome(NAME, WHAT, SAFE, said, whole and near and judged.compared > 0)
