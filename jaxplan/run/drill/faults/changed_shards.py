"""The data comes from another number of readers than before."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import refused

NAME = "changed-shards"
WHAT = "4 data readers before, 8 after"
SAFE = "refused where each reader has its own files; where samples are dealt out, goes on at the same sample"


def run(stage: Stage) -> Outcome:
    own = stage.order(NAME, shards=4, order="shard", last=stage.early)
    stage.train(own)
    found = refused(stage, NAME, WHAT, SAFE, stage.train(replace(own, shards=8)), "taken without a word")
    if not found.passed:
        return found
    dealt = stage.order(f"{NAME}-dealt", shards=4, last=stage.early)
    stage.train(dealt)
    came = stage.train(replace(dealt, shards=8, last=stage.steps))
    first = came.first("resumed") or {}
    whole = came.done and first.get("samples") == stage.early * stage.program["batch"]
    judged = stage.judge(came)
    said = f"samples that are dealt out go on at {first.get('samples')}, {judged.words}"
    return found.and_said(said, whole and judged.exact)
