"""Decisions that somebody asks about, as text: `data=8,tensor=16,remat=full`, or as the tables print a plan. No JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from jaxplan.errors import InputError
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import CONTEXT_ATTENTION
from jaxplan.plan.remat import POLICIES
from jaxplan.plan.schedule import SCHEDULES
from jaxplan.plan.sharding import AXES
from jaxplan.workload.user import AS_WRITTEN

Value = str | int | bool
EXAMPLE = "data=8,tensor=16,remat=full,microbatches=4"
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

#: What the tables of plans print without a value, and what it says.
WORDS: dict[str, dict[str, Value]] = {
    "zero1": {"zero1": True, "zero2": False},
    "zero2": {"zero1": True, "zero2": True},
    "whole-seq": {"sequence_sharding": False},
    "offload": {"offload_optimizer": True},
    **{name: {"context_attention": name} for name in CONTEXT_ATTENTION},
    **{name: {"schedule": name} for name in SCHEDULES},
}

#: ZeRO-2 shards more than ZeRO-1: who wants the second has the first, who does not want the first has neither.
ZERO: dict[tuple[str, bool], dict[str, Value]] = {
    ("zero1", True): {"zero1": True},
    ("zero1", False): {"zero1": False, "zero2": False},
    ("zero2", True): {"zero1": True, "zero2": True},
    ("zero2", False): {"zero2": False},
}


@dataclass(frozen=True)
class Asked:
    """What is asked about.

    Attributes:
        sizes: of the mesh's axes larger than 1; empty where the plan's own mesh is meant.
        decisions: other decisions by the plan's field; those that are not there are free.
    """

    text: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, Value] = field(default_factory=dict)


def parse(text: str, machine: Machine) -> Asked:
    """Reads what is asked about.

    Raises:
        InputError: a word or a value that is not known, a decision twice, sizes that do not make the machine's devices.
    """
    sizes: dict[str, int] = {}
    decisions: dict[str, Value] = {}
    for word in [word for word in re.split(r"[\s,]+", text.strip()) if word]:
        name, equals, value = word.partition("=")
        if name in AXES and equals:
            _add(sizes, name, _count(word, value))
        else:
            for key, said in _decision(word, name, equals, value).items():
                _add(decisions, key, said)
    if not sizes and not decisions:
        raise InputError("--why-not got nothing", "mesh axes and other decisions", f"--why-not {EXAMPLE}")
    if sizes and math.prod(sizes.values()) != machine.devices:
        raise _wrong_product(sizes, machine)
    return Asked(text.strip(), {axis: size for axis, size in sizes.items() if size > 1} or sizes, decisions)


def _add(found: dict, name: str, value: Value) -> None:
    if found.get(name, value) != value:
        raise InputError(f"--why-not has {name} twice: {found[name]} and {value}", "one of them")
    found[name] = value


def _decision(word: str, name: str, equals: str, value: str) -> Mapping[str, Value]:
    """What one word says: `remat=full`, `zero1`, `x4`."""
    if not equals:
        if name in WORDS:
            return WORDS[name]
        if re.fullmatch(r"x\d+", name):
            return {"repeats": _count(word, name[1:])}
    elif name in READERS:
        return READERS[name](word, value)
    known = ", ".join([*AXES, *READERS])
    raise InputError(f"--why-not has {word!r}", f"NAME=VALUE with a name among {known}", f"--why-not {EXAMPLE}")


def _count(word: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value) or int(value) < 1:
        raise InputError(f"--why-not has {word!r}", "a positive whole number")
    return int(value)


def _flag(word: str, value: str) -> bool:
    if value.lower() not in (*YES, *NO):
        raise InputError(f"--why-not has {word!r}", "true or false")
    return value.lower() in YES


def _one_of(key: str, known: Collection[str]) -> Callable[[str, str], dict[str, Value]]:
    def read(word: str, value: str) -> dict[str, Value]:
        if value not in known:
            raise InputError(f"--why-not has {word!r}", f"one of {', '.join(known)}")
        return {key: value}

    return read


def _zero(name: str) -> Callable[[str, str], Mapping[str, Value]]:
    return lambda word, value: ZERO[name, _flag(word, value)]


READERS: dict[str, Callable[[str, str], Mapping[str, Value]]] = {
    "remat": _one_of("remat", (*POLICIES, AS_WRITTEN)),
    "microbatches": lambda word, value: {"microbatches": _count(word, value)},
    "zero1": _zero("zero1"),
    "zero2": _zero("zero2"),
    "sequence_sharding": lambda word, value: {"sequence_sharding": _flag(word, value)},
    "context_attention": _one_of("context_attention", CONTEXT_ATTENTION),
    "schedule": _one_of("schedule", SCHEDULES),
    "repeats": lambda word, value: {"repeats": _count(word, value)},
    "offload_optimizer": lambda word, value: {"offload_optimizer": _flag(word, value)},
}


def _wrong_product(sizes: Mapping[str, int], machine: Machine) -> InputError:
    made = math.prod(sizes.values())
    words = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    missing = next((axis for axis in ("fsdp", "data") if axis not in sizes), "")
    more = f"--why-not {words},{missing}={machine.devices // made}" if machine.devices % made == 0 and missing else ""
    return InputError(
        f"--why-not {words} makes {made:,} devices", f"the {machine.devices:,} of {machine.name}", more
    )
