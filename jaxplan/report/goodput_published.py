"""Published useful shares of time beside predicted ones, as a page of markdown. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.goodput.published import AGREES, IN_REACH, MISSES, NOTHING, Comparison
from jaxplan.machine.failures import PublishedRun, Rate, cited
from jaxplan.report.grid import Grid, markdown
from jaxplan.units import format_duration, significant

HEAD = """# Goodput: predicted beside published

Written by `python benchmarks/goodput_published.py --write`; inputs and sources are
`profiling/failures/published_goodput.toml`. Nothing is fitted. Each prediction is the closed form of
`jaxplan/goodput/expected.py` on the run's published inputs. A range runs over all corners of inputs that are ranges, or
that were not published and are borrowed from elsewhere (named below): the wider it is, the less agreement says.
*agrees*: the whole range does, within 0.02; *in reach*: a part of it; *misses*: none of it. "second-hand": read in
texts that quote the source; "recalled": not read again.
"""


def page(runs: Sequence[PublishedRun], found: Sequence[Comparison], rates: Sequence[Rate]) -> str:
    """Everything: the table, each run's inputs and source, the failure rates."""
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in (AGREES, IN_REACH, MISSES, NOTHING)}
    said = ", ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    lines = [HEAD, f"{len(found)} runs; {said}.", "", *markdown(table(runs, found), 2)]
    lines += ["## Inputs and sources", ""]
    for run in runs:
        lines += [f"- **{run.name}**: {inputs(run)} Source: {cited(run.source, run.read)}.", ""]
    lines += markdown(rates_grid(rates), 2)
    return "\n".join(lines).rstrip() + "\n"


def table(runs: Sequence[PublishedRun], found: Sequence[Comparison]) -> Grid:
    """One row a run."""
    body = []
    for run, one in zip(runs, found, strict=True):
        gpus = f"{run.gpus:,}" if run.gpus is not None else ""
        interval = "" if one.interval_s is None else f"{_range(one.interval_s)}{'' if run.interval_s else ' (best)'}"
        predicted = "" if one.predicted is None else _shares(one.predicted)
        body.append((run.name, gpus, interval, predicted, _published(run), one.verdict, run.explained))
    head = ("run", "GPUs", "interval", "predicted", "published", "", "why")
    return Grid("Useful share of time", head, tuple(body), right=(1, 2, 3, 4))


def inputs(run: PublishedRun) -> str:
    """A run's inputs in words, with those that are not its own."""
    parts = []
    if run.per_1000_node_days is not None:
        parts.append(f"{_numbers(run.per_1000_node_days)} failures per 1,000 node-days on {run.nodes:,} nodes")
    if run.failures is not None and run.days is not None:
        parts.append(f"{_numbers(run.failures)} failures in {_numbers(run.days)} days on {run.nodes:,} nodes")
    for name, pair in (
        ("a failure every", run.mtbf_s), ("a save every", run.interval_s), ("stops", run.block_s),
        ("durable after", run.write_s), ("restart", run.restart_s),
    ):
        if pair is not None and pair[1] > 0:
            parts.append(f"{name} {_range(pair)}")
    said = f"{'; '.join(parts)}." if parts else "no inputs were published."
    names = ", ".join(name.removesuffix("_s") for name in run.assumed)
    return f"{said} Not its own: {names} ({run.because})." if run.assumed else said


def rates_grid(rates: Sequence[Rate]) -> Grid:
    """The published failure rates that `--failures` takes."""
    body = tuple(
        (rate.id, significant(rate.value), rate.what, f"{rate.citation}{f'; {rate.notes}' if rate.notes else ''}")
        for rate in rates
    )
    return Grid("Failure rates", ("--failures", "per 1,000 node-days", "what", "source"), body, right=(1,))


def _published(run: PublishedRun) -> str:
    if run.value is not None:
        return f"{run.value:.0%}"
    return f"over {run.at_least:.0%}" if run.at_least is not None else run.said


def _shares(pair: tuple[float, float]) -> str:
    low, high = (f"{value:.1%}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _range(pair: tuple[float, float]) -> str:
    low, high = (format_duration(value) for value in pair)
    return low if low == high else f"{low} to {high}"


def _numbers(pair: tuple[float, float]) -> str:
    low, high = (f"{value:g}" for value in pair)
    return low if low == high else f"{low} to {high}"
