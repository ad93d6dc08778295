"""`jaxplan search --tokens`: sizes of a machine beside each other by days, money, goodput. Estimates only."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jaxplan.cli.console import console, print_json
from jaxplan.cli.goodput_flags import Flags, checked, parsed
from jaxplan.cli.goodput_inputs import report_of
from jaxplan.cli.request import attention_kernel
from jaxplan.cli.stamped import new_folder, stamp
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError, JaxplanError
from jaxplan.goodput.checks import positive
from jaxplan.goodput.choice import Choice, Option, option_of
from jaxplan.machine import catalogue
from jaxplan.machine.attached_machine import calibrated
from jaxplan.machine.family import Family
from jaxplan.machine.topology import Machine
from jaxplan.plan.files import save
from jaxplan.plan.record import Part, PlanRecord, TimeLedger, leaf_specs
from jaxplan.report.choice import ChoiceReport, choice_grid, choice_json, choice_lines
from jaxplan.report.goodput import GoodputReport
from jaxplan.report.grid import rich_table
from jaxplan.report.words import decision_words
from jaxplan.search.rank import Ranking, rank
from jaxplan.search.space import enumerate_space
from jaxplan.units import format_seconds, parse_count, parse_duration
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

HALVINGS, DOUBLINGS = 3, 4      # chosen: an eighth of the machine that was asked for to sixteen times it
NO_FIT = 1


def choose(
    workload: Workload,
    machine: Machine,
    flags: Flags,
    deadline: str | None,
    most: float | None,
    out: Path,
    as_json: bool,
) -> int:
    """Compares the sizes, writes choice.json and prints the table: the exit code of `search --tokens`.

    Args:
        flags: what `goodput` takes; `tokens` is in it.
        deadline: a duration, such as 30d.
        most: money that may be spent.

    Raises:
        InputError: a figure that cannot be.
    """
    stderr = console(sys.stderr)
    checked(lambda: positive(tokens=parsed("--tokens", flags.tokens, parse_count) or 0.0))
    deadline_s = parsed("--deadline", deadline, parse_duration)
    if deadline_s is not None and deadline_s <= 0:
        raise InputError(f"--deadline {deadline}", "more than 0 s")
    if most is not None and not most > 0:
        raise InputError(f"--budget {most:g}", "more than 0")
    if most is not None and flags.price is None:
        raise InputError("--budget without a price", "--price-per-chip-hour as well")
    with Tiers(machine, 1) as tiers:
        table = tiers.trace(workload)
    report = compare(workload, table, machine, flags, deadline_s, most, lambda line: stderr.print(line, markup=False))
    document = choice_json(report)
    path = new_folder(out, stamp("choice")) / "choice.json"
    save(path, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        stdout = console(sys.stdout)
        stdout.print(rich_table(choice_grid(report).narrowed(stdout.width), not stdout.is_terminal))
        for line in choice_lines(report, stdout.width):
            stdout.print(line, markup=False)
    stderr.print(f"Written to {path}", markup=False)
    return 0 if report.choice.cheapest is not None else NO_FIT


def compare(
    workload: Workload,
    table: Table,
    machine: Machine,
    flags: Flags,
    deadline_s: float | None,
    most: float | None,
    say: Callable[[str], None],
) -> ChoiceReport:
    """Every size's best plan, by the estimate, at the same batch. An interrupt keeps what is known."""
    options: list[Option] = []
    refused: list[tuple[str, str]] = []
    known: GoodputReport | None = None
    for size in sizes(machine):
        try:
            record = _best(workload, table, size)
        except KeyboardInterrupt:
            if not options:
                raise
            refused.append((size.name, "interrupted, this size and the larger ones were not priced"))
            break
        except JaxplanError as error:
            refused.append((size.name, str(error)))
            continue
        if record is None:
            refused.append((size.name, "no plan fits its memory"))
            continue
        report = report_of(flags, record, None)
        if known is None or size == machine:
            known = report
        options.append(_option(size, record, report))
        say(f"estimate   {size.name:<16} {options[-1].plan}, {format_seconds(options[-1].step_s)} a step")
    batch = f"The batch is {workload.batch:,} sequences on every size: more chips do not make another training of it."
    return ChoiceReport(
        choice=Choice(tuple(options), deadline_s, most),
        tokens=known.assessment.question.work.tokens if known and known.assessment.question.work else 0.0,
        price_per_chip_hour=flags.price,
        refused=tuple(refused),
        inputs=known.inputs if known else (),
        assumptions=(batch, *(known.assumptions if known else ())),
    )


def _option(machine: Machine, record: PlanRecord, report: GoodputReport) -> Option:
    time = record.time
    assert time is not None
    words = decision_words(record.plan)
    return checked(
        lambda: option_of(machine.mesh, machine.name, words, report.assessment, time.low_s, time.high_s)
    )


def sizes(machine: Machine) -> Iterator[Machine]:
    """Machines of the same family, from an eighth to sixteen times the chips.

    Where several slices were asked for, more or fewer of them; past the largest slice, several of the largest one.
    All at the rates of a calibration, where the machine is. A calibrated CPU comes in its own size only.
    """
    if machine.kind == "cpu":
        yield machine
        return
    family = catalogue.family(machine.family)
    rule = family.slices
    if machine.slices > 1:
        shape: tuple[int, ...] | None = machine.shape
    else:
        shape = rule.of_chips(rule.max_chips) if rule is not None else None
    for doubling in range(-HALVINGS, DOUBLINGS + 1):
        chips = machine.chips * 2**doubling
        if doubling == 0:
            yield machine
        elif chips >= 1 and chips == int(chips):
            found = _of_chips(family, int(chips), shape)
            if found is not None:
                found = replace(found, memory_fraction=machine.memory_fraction)
                yield found if machine.attached is None else calibrated(found, machine.attached)


def _of_chips(family: Family, chips: int, shape: tuple[int, ...] | None) -> Machine | None:
    """Slices of that shape where there are chips for more than one, else one machine; None where there is none."""
    try:
        if shape is not None and chips > math.prod(shape):
            count, rest = divmod(chips, math.prod(shape))
            return None if rest else family.machine(shape, slices=count)
        return family.of_chips(chips)
    except (JaxplanError, ValueError):
        return None


def _best(workload: Workload, table: Table, machine: Machine) -> PlanRecord | None:
    """The plan with the least estimated time, with where its arrays lie; None where none fits."""
    ranking = rank(enumerate_space(workload, table, machine), table, machine)
    order = ranking.order()
    return _record(ranking, int(order[0]), workload, table, machine) if len(order) else None


def _record(ranking: Ranking, row: int, workload: Workload, table: Table, machine: Machine) -> PlanRecord:
    kernel = attention_kernel(machine, workload)
    plan = ranking.space.plan(row, machine, workload, kernel, machine.compiler_flags)
    parameters, optimizer, batch = leaf_specs(table, plan.rules, tuple(plan.sizes))
    value = float(ranking.value_s[row])
    time = TimeLedger((Part("step", value, "estimated"),), float(ranking.low_s[row]), float(ranking.high_s[row]))
    return PlanRecord(plan=plan, parameters=parameters, optimizer=optimizer, batch=batch, time=time)
