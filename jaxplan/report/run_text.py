"""What `run` measured, as lines of text, from its document (schema jaxplan.run/1). Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxplan.report.words import count_words
from jaxplan.units import format_bytes, format_count, format_seconds, significant

SHOWN = 12          # rows of the table
COLUMN = 14
NAME = 36


def run_lines(document: Mapping[str, Any]) -> list[str]:
    """The verdict last, what it rests on before."""
    return [
        *_where(document),
        *_speed(document),
        *_memory(document),
        *_training(document),
        *_compared(document),
        *[f"note: {note}" for note in document["notes"]],
        *_verdict(document),
    ]


def _where(document: Mapping[str, Any]) -> list[str]:
    ran = document["ran_on"]
    if ran is None:
        return []
    processes = f" in {count_words(ran['processes'], 'process', 'es')}" if ran["processes"] > 1 else ""
    scaled = "" if ran["scaled"] is None else "  (scaled: see the notes)"
    work = document["workload"]
    name = work["model"]["name"] if work["model"] else work["reference"].rpartition("/")[2]
    return [
        f"Ran on    {ran['devices']} x {ran['device_kind']}{processes}",
        f"Plan      {document['label']}{scaled}",
        f"Work      {name}, {work['batch']:,} x {work['seq']:,} tokens, {work['optimizer']}",
    ]


def _speed(document: Mapping[str, Any]) -> list[str]:
    times = document["step_time_s"]
    if times is None:
        return []
    spread = ", ".join(f"{name} {format_seconds(times[name])}" for name in ("p10", "p90", "worst"))
    steps = f"{count_words(len(times['all']), 'step')} after {document['warmup']} to warm up"
    lines = [f"Step      {format_seconds(times['median'])} median ({spread}; {steps}), measured"]
    rate = f"Rate      {format_count(document['tokens_per_s'])} tokens/s"
    if document["mfu"] is not None:
        rate += f", MFU {document['mfu']['value']:.1%}"
    lines.append(rate)
    profiler = document["profiler"]
    if profiler["overhead"] is not None:
        lines.append(f"Profiler  {profiler['overhead']:+.1%} on {count_words(profiler['steps'], 'step')} with it")
    behind = [one for one in document["stragglers"] if one["behind_s"] > 0]
    if behind:
        worst = ", ".join(f"device {one['device']} by {format_seconds(one['behind_s'])}" for one in behind[:3])
        lines.append(f"Behind    {worst}")
    return lines


def _memory(document: Mapping[str, Any]) -> list[str]:
    memory = document["memory_bytes"]
    peaks = memory["peak_per_device"]
    if peaks:
        fullest, emptiest = format_bytes(max(peaks)), format_bytes(min(peaks))
        return [f"Memory    {fullest} on the fullest device, {emptiest} on the emptiest"]
    return [f"Memory    not known: {memory['why_not']}"] if document["step_time_s"] is not None else []


def _training(document: Mapping[str, Any]) -> list[str]:
    losses, parity, lines = document["loss"], document["parity"], []
    if losses:
        first, last = (("not finite" if loss is None else significant(loss, 5)) for loss in (losses[0], losses[-1]))
        lines.append(f"Loss      {first} -> {last}")
    if parity["checked"]:
        said = "agrees with" if parity["passed"] else "differs from"
        allowed = parity["tolerance"]
        lines.append(
            f"Parity    {said} one device ({parity['what']}): loss {_off(parity['loss_difference'])} off (allowed "
            f"{allowed['loss']:.0e}), gradients' norms {_off(parity['gradient_norm_difference'])} "
            f"({allowed['gradient_norm']:.0e})"
        )
    elif losses:
        lines.append(f"Parity    not checked: {parity['why_not']}")
    return lines


def _off(difference: float | None) -> str:
    return "infinitely" if difference is None else f"{difference:.1e}"


def _compared(document: Mapping[str, Any]) -> list[str]:
    """The profiled step by what the devices spend it on."""
    rows = document["compared"]
    if not rows:
        return []
    columns = ("estimated_s", "compiled_s", "measured_s")
    columns = tuple(name for name in columns if any(row[name] is not None for row in rows))
    head = "".join(f"{name.removesuffix('_s'):>{COLUMN}}" for name in columns)
    lines = ["", f"{'A step goes to':<{NAME}}{head}"]
    for row in rows[:SHOWN]:
        cells = "".join(f"{'-' if row[name] is None else format_seconds(row[name]):>{COLUMN}}" for name in columns)
        lines.append(f"  {row['name']:<{NAME - 2}}{cells}")
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more in run.json")
    for finding in document["findings"]:
        lines.append(f"{finding['title']} ({format_seconds(finding['seconds'])}): {finding['detail']}")
    return [*lines, ""]


def _verdict(document: Mapping[str, Any]) -> list[str]:
    return [f"AGAINST   {line}" for line in document["against"]]
