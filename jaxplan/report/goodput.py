"""The report of `goodput` and its JSON, schema `jaxplan.goodput/1`; its keys do not change. Nothing is computed here.

The document (`goodput.json`, beside `plan.json`; `goodput-2.json` beside `plan-2.json`):

    schema              "jaxplan.goodput/1"
    plan, label         the plan's path and decisions; null and a name where everything was given by hand
    inputs              [{"name", "value", "unit", "source"}]: every figure that went in, and where it comes from
    nodes, chips        of the job
    mtbf_s              mean time between failures of the whole job
    failures_per_day
    checkpoint          {"kind": "blocking" | "async" | "two-level", "block_s": training stops for a save, "write_s": until
                        it is durable after that, "restore_s", "state_bytes", "local": null | {"block_s", "restart_s",
                        "share", "every": local saves between two remote ones}}
    restart             {"total_s", "repair_wait_s", "phases": [{"name": a name of badput, "seconds"}]}
    intervals           [{"name", "interval_s", "goodput", "valid", "why_not", "source"}]: Young, Daly, exact, ...
    interval            {"value_s", "steps": null | n, "floor_s", "given": whether the user asked for it}
    goodput             {"value", "source": "estimated", "first_order"}: useful share of the time, in the long run
    simulated           [{"law", "shape", "value", "low", "high", "confidence", "runs", "failures", "seed", "agrees",
                        "days": null | {"median", "p5", "p95"}}]: first exponential (which the formula must agree with)
    curve               {"interval_s": [...], "goodput": [...], "simulated": {"interval_s": [...], "goodput": [...],
                        "low": [...], "high": [...]}}: goodput over the interval between saves, ascending
    ledger              [{"name", "seconds", "share"}]: useful work first, then badput by its standard names; shares add up
                        to 1 and seconds to `total_s`
    total_s             the run's length where there is a budget of tokens, else one day
    spares              {"count", "wanted", "reached", "repair_s", "in_repair": mean number of nodes, "table":
                        [{"spares", "probability"}]}
    budget              null | {"tokens", "steps", "step_time_s", "step_time_source", "useful_s", "total_s", "days",
                        "failures", "chips", "spare_chips", "chip_hours", "price_per_chip_hour", "money"}
    sensitivity         [{"name", "value", "unit", "elasticity", "halved_goodput", "gain"}]: the largest gain first
    assumptions         [text]
"""
