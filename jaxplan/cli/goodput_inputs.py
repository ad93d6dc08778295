"""What goodput is asked of: flags before the plan before published figures, each with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from jaxplan.cli.goodput_flags import Flags, checked, pairs, parsed
from jaxplan.errors import InputError
from jaxplan.goodput import checkpoint
from jaxplan.goodput.assessment import Assessment, LocalSave, Question
from jaxplan.goodput.budget import Work
from jaxplan.goodput.checkpoint import State, Storage
from jaxplan.goodput.failures import Failures
from jaxplan.goodput.restart import DETECTION, OTHER, PHASES, RESTORE, Phase
from jaxplan.machine import failures as published
from jaxplan.plan.record import PlanRecord
from jaxplan.report.goodput import GoodputReport, Input
from jaxplan.report.words import decision_words
from jaxplan.units import parse_bytes, parse_count, parse_duration, parse_rate

GIVEN, NODE_CHIPS = "given", 8      # published failure rates are of nodes with 8 accelerators
LOCAL_KEYS = ("block", "restore", "share")


@dataclass
class Inputs:
    """Collects the figures that go in."""

    flags: Flags
    record: PlanRecord | None
    taken: list[Input] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, name: str, unit: str, flag: str, *choices: tuple[float | None, str]) -> float | None:
        """The first figure that there is, kept with its source."""
        for value, source in choices:
            if value is not None:
                self.taken.append(Input(name, value, unit, source, "" if source == GIVEN else flag))
                return value
        return None


def report_of(flags: Flags, record: PlanRecord | None, path: Path | None) -> GoodputReport:
    """The assessment of what the flags and the plan say.

    Raises:
        InputError: a figure that is missing, negative, zero where it may not be, not finite or not readable.
    """
    inputs = Inputs(flags, record)
    nodes, chips = _nodes(inputs)
    state = _state(inputs)
    failures = _failures(inputs, nodes)
    saves = _saves(inputs, state, nodes)
    step_s, step_source = _step(inputs)
    probability = published.defaults().spares_probability
    question = checked(lambda: Question(
        failures=failures,
        kind=flags.checkpoint,
        block_s=saves.block_s,
        write_s=saves.write_s,
        phases=_phases(inputs, saves.restore_s),
        chips_per_node=chips,
        repair_s=_seconds(inputs, "repair of a node", "--repair", flags.repair, published.defaults().repair_s),
        spares_probability=_share(inputs, flags.spares_probability, probability.value, probability.citation),
        spare_nodes=flags.spares,
        local=_local(flags.local),
        step_s=step_s,
        interval_s=parsed("--interval", flags.interval, parse_duration),
        work=_work(inputs, step_s),
        price_per_chip_hour=_price(inputs),
        shape=_shape(inputs),
        seed=flags.seed,
    ))
    return GoodputReport(
        assessment=checked(lambda: Assessment(question)),
        label=decision_words(record.plan) if record is not None else "",
        inputs=tuple(inputs.taken),
        plan=str(path) if path is not None else None,
        machine=record.plan.machine.name if record is not None else "",
        state_bytes=state.bytes if state is not None else None,
        step_source=step_source,
        assumptions=(*inputs.notes, *ASSUMED),
    )


ASSUMED = (
    "Failures strike nodes independently and stop the whole job; each takes one node out until it is repaired.",
    "Every host saves and restores at once; the first start of a run is counted once, without detection and restore.",
    "A step's time holds its own waits for data: data loading is what a restart needs.",
)


@dataclass(frozen=True)
class Saves:
    """Seconds of a save and of a restore."""

    block_s: float
    write_s: float
    restore_s: float


def _nodes(inputs: Inputs) -> tuple[int, int]:
    flags, record = inputs.flags, inputs.record
    machine = record.plan.machine if record is not None else None
    for flag, count in (("--nodes", flags.nodes), ("--chips-per-node", flags.chips_per_node)):
        if count is not None and count < 1:
            raise InputError(f"{flag} {count}", "at least 1")
    if flags.nodes is None and machine is None:
        raise InputError("neither a plan nor --nodes was given", "a plan.json, or --nodes N", "--nodes 2048")
    hosts = machine.hosts if machine is not None else None
    nodes = inputs.take("nodes", "", "--nodes", (flags.nodes, GIVEN), (hosts, "hosts of the plan's machine"))
    own = machine.chips_per_host if machine is not None else None
    chips = inputs.take(
        "chips of a node", "", "--chips-per-node",
        (flags.chips_per_node, GIVEN), (own, "the plan's machine"), (NODE_CHIPS, "assumed"),
    )
    assert nodes is not None and chips is not None
    if hosts is not None and nodes != hosts:
        inputs.notes.append(f"The plan is of {hosts} hosts; its step time is taken for {int(nodes)} nodes as it is.")
    return int(nodes), int(chips)


def _state(inputs: Inputs) -> State | None:
    """Bytes of the training state; None where nobody knows them and saves are given or assumed in seconds."""
    given = parsed("--state-bytes", inputs.flags.state_bytes, parse_bytes)
    record = inputs.record
    leaves = (*record.parameters, *record.optimizer) if record is not None else ()
    own = float(sum(leaf.nbytes for leaf in leaves)) or None
    if given is not None and given <= 0:
        raise InputError(f"--state-bytes {inputs.flags.state_bytes}", "more than 0 bytes")
    total = inputs.take(
        "training state", "B", "--state-bytes",
        (given, GIVEN), (own, "the plan's arrays: parameters and optimizer state, each once"),
    )
    if total is None:
        return None
    if given is not None or record is None:
        return State(total, total)
    held = sum(leaf.local_bytes(record.plan.sizes) for leaf in leaves)
    return State(total, float(held * record.plan.machine.devices))


def _failures(inputs: Inputs, nodes: int) -> Failures:
    flags = inputs.flags
    if flags.rate is not None and flags.fleet is not None:
        raise InputError("--failures-per-1000-node-days and --failures were given", "one of them")
    chip = inputs.record.plan.machine.chip.id if inputs.record is not None else None
    if flags.fleet is not None:
        known, measured = published.rate(flags.fleet), True
    else:
        known, measured = published.rate_of_chip(chip)
    said = f"{known.what}: {known.citation}"
    flag = "--failures-per-1000-node-days, --failures"
    rate = inputs.take("failures per 1,000 node-days", "", flag, (flags.rate, GIVEN), (known.value, said))
    assert rate is not None
    if not math.isfinite(rate) or rate <= 0:
        raise InputError(f"--failures-per-1000-node-days {rate:g}", "a number above 0", "--failures rsc-1")
    if flags.rate is None and not measured:
        what = f"{chip} nodes" if chip is not None else "these nodes"
        inputs.notes.append(f"Nobody published a failure rate of {what}: that of {known.id} stands in.")
    return Failures(rate, nodes)


def _saves(inputs: Inputs, state: State | None, nodes: int) -> Saves:
    """Seconds of saves and restores: given; else bytes over rates; else what was published of a 405B model."""
    flags, defaults = inputs.flags, published.defaults()
    storage = _storage(inputs, state is not None)
    write = restore = None
    if state is not None and storage is not None:
        write, restore = checkpoint.save_s(state, storage, nodes), checkpoint.restore_s(state, storage, nodes)
    block, how, link = None, "state over the link to the host: the copy alone", _host_link(inputs)
    if state is not None and link is not None:
        block = checkpoint.block_s(state, nodes, link)
    if flags.checkpoint == "blocking":
        block, how = 0.0, "the write is the whole of a blocking save"
    known = defaults.block_s, defaults.write_s, defaults.restore_s
    return Saves(
        _seconds(inputs, "block of a save", "--block", flags.block, known[0], block, how),
        _seconds(inputs, "write of a save", "--write", flags.write, known[1], write, "state over storage"),
        _seconds(inputs, "restore", "--restore", flags.restore, known[2], restore, "state with replicas over storage"),
    )


def _host_link(inputs: Inputs) -> float | None:
    """Between the devices of one host and its memory, bytes per second; None where nobody says."""
    machine = inputs.record.plan.machine if inputs.record is not None else None
    if machine is None or machine.device_host_bytes_per_s is None:
        return None
    return machine.device_host_bytes_per_s * machine.devices_per_host


def _storage(inputs: Inputs, needed: bool) -> Storage | None:
    """`host=1GB/s,total=2TB/s`, either or both; else the published rate of a host."""
    default = published.defaults().storage_bytes_per_s_per_host
    example = "host=1GB/s,total=2TB/s"
    given = pairs("--storage-bytes-per-s", inputs.flags.storage, ("host", "total"), parse_rate, example)
    if not needed and given:
        raise InputError("--storage-bytes-per-s without a state", "--state-bytes, or a plan", "--state-bytes 5.7TB")
    if not needed:
        return None
    for name, value in given.items():
        if value <= 0:
            raise InputError(f"--storage-bytes-per-s {name}={value:g}", "more than 0 bytes per second")
        inputs.taken.append(Input(f"storage, {name}", value, "B/s", GIVEN))
    if not given:
        inputs.take("storage, host", "B/s", "--storage-bytes-per-s", (default.value, default.citation))
        return Storage(default.value)
    return Storage(given.get("host", math.inf), given.get("total", math.inf))


def _phases(inputs: Inputs, restore_s: float) -> tuple[Phase, ...]:
    """`10m`, or `detection=60s,program startup=2m,...`; the restore comes on top."""
    text = inputs.flags.restart
    default = published.defaults().initialization_s
    if text is None:
        inputs.take("restart but for the restore", "s", "--restart", (default.value, default.citation))
        return Phase("initialization", default.value), Phase(RESTORE, restore_s)
    example = "10min, or detection=60s,initialization=2min"
    names = (DETECTION, *(name for name in PHASES if name not in (OTHER, RESTORE)))
    if "=" not in text:
        seconds = {"initialization": parsed("--restart", text, parse_duration)}
    else:
        seconds = pairs("--restart", text, names, parse_duration, example)
    found = [Phase(OTHER if name == DETECTION else name, value or 0.0) for name, value in seconds.items()]
    inputs.taken += [Input(f"restart, {phase.name}", phase.seconds, "s", GIVEN) for phase in found]
    return (*found, Phase(RESTORE, restore_s))


def _step(inputs: Inputs) -> tuple[float | None, str]:
    """(step time, the tier that says it)."""
    given = parsed("--step-time", inputs.flags.step_time, parse_duration)
    if given is not None and given <= 0:
        raise InputError(f"--step-time {inputs.flags.step_time}", "more than 0 s")
    tier, own = "", None
    if inputs.record is not None:
        known = inputs.record.compared("step_time_s")
        tier, own = known[-1] if known and not inputs.record.stale else ("", None)
        if own is None and inputs.record.time is not None:
            tier, own = inputs.record.time.source, inputs.record.time.value_s
    seconds = inputs.take("step time", "s", "--step-time", (given, GIVEN), (own, f"the plan, {tier}"))
    return seconds, GIVEN if given is not None else tier


def _work(inputs: Inputs, step_s: float | None) -> Work | None:
    flags = inputs.flags
    tokens = parsed("--tokens", flags.tokens, parse_count)
    if tokens is None:
        return None
    inputs.take("tokens", "", "--tokens", (tokens, GIVEN))
    own = inputs.record.plan.workload.tokens if inputs.record is not None else None
    given = parsed("--tokens-per-step", flags.tokens_per_step, parse_count)
    per_step = inputs.take("tokens of a step", "", "--tokens-per-step", (given, GIVEN), (own, "the plan's batch"))
    if step_s is None or per_step is None:
        missing = "--step-time" if step_s is None else "--tokens-per-step"
        raise InputError(f"--tokens without {missing}", "both, or a plan that has them")
    return checked(lambda: Work(tokens, per_step, step_s))


def _local(text: str | None) -> LocalSave | None:
    """`block=2s,restore=30s,share=0.8`: all three, nobody published what to assume."""
    if text is None:
        return None
    example = "block=2s,restore=30s,share=0.8"
    found = pairs("--local", text, LOCAL_KEYS, parse_duration, example)
    missing = [key for key in LOCAL_KEYS if key not in found]
    if missing:
        raise InputError(f"--local {text}", f"{', '.join(missing)} as well", f"--local {example}")
    if not 0 < found["share"] < 1:
        raise InputError(f"--local share={found['share']:g}", "a share of the failures, between 0 and 1")
    if found["block"] <= 0:
        raise InputError(f"--local block={found['block']:g}", "more than 0 s")
    return LocalSave(found["block"], found["restore"], found["share"])


def _price(inputs: Inputs) -> float | None:
    price = inputs.flags.price
    if price is not None and (not math.isfinite(price) or price < 0):
        raise InputError(f"--price-per-chip-hour {price:g}", "a number of at least 0")
    return inputs.take("price of a chip-hour", "", "--price-per-chip-hour", (price, GIVEN))


def _shape(inputs: Inputs) -> float:
    default, given = published.defaults().weibull_shape, inputs.flags.weibull
    if given is not None and (not math.isfinite(given) or given <= 0):
        raise InputError(f"--weibull {given:g}", "a shape above 0, such as 0.7")
    shape = inputs.take("shape of bursts (Weibull)", "", "--weibull", (given, GIVEN), (default.value, default.citation))
    assert shape is not None
    return shape


def _share(inputs: Inputs, given: float | None, default: float, source: str) -> float:
    if given is not None and not 0 < given < 1:
        raise InputError(f"--spares-probability {given:g}", "a probability between 0 and 1, such as 0.99")
    if inputs.flags.spares is not None and inputs.flags.spares < 0:
        raise InputError(f"--spares {inputs.flags.spares}", "at least 0")
    found = inputs.take("spares are enough", "", "--spares-probability", (given, GIVEN), (default, source))
    assert found is not None
    return found


def _seconds(
    inputs: Inputs,
    name: str,
    flag: str,
    text: str | None,
    default: published.Default,
    derived: float | None = None,
    how: str = "",
) -> float:
    """A duration: given, else derived, else published."""
    given = parsed(flag, text, parse_duration)
    found = inputs.take(name, "s", flag, (given, GIVEN), (derived, how), (default.value, default.citation))
    assert found is not None
    return found
