"""Plans that differ from a given one by one decision: what each decision is worth. Estimates only. No JAX here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.single import estimate_plan
from jaxplan.plan.plan import Plan
from jaxplan.plan.sharding import AXES
from jaxplan.search.dims import dim_sizes
from jaxplan.search.meshes import Sizes, searched_axes
from jaxplan.search.rank import MEMORY_MARGIN, rank
from jaxplan.search.space import Space, enumerate_space
from jaxplan.workload.table import Table

DECISIONS = (
    "mesh",
    "remat",
    "microbatches",
    "zero",
    "sequence_sharding",
    "context_attention",
    "schedule",
    "offload_optimizer",
    "loss_chunks",
)
FOLLOWING = ("microbatches", "loss_chunks")     # of another mesh: what is best, and what follows
Differences = Mapping[str, np.ndarray]      # of every candidate, by decision


@dataclass(frozen=True)
class Neighbour:
    """A plan with one decision changed.

    Attributes:
        decision: one of `DECISIONS`.
        also: further decisions that a new mesh does not allow to stay as they are.
        fits: estimated with the margin of a search, corrected by what is known of the plan that it is a neighbour of.
    """

    decision: str
    plan: Plan
    value_s: float
    total_bytes: float
    fits: bool
    also: tuple[str, ...] = ()


def neighbours(plan: Plan, table: Table, memory_ratio: float = 1.0) -> tuple[Neighbour, ...]:
    """All legal plans one decision away, the fastest first; of each mesh only the best.

    A new mesh is one prime factor moved from one axis to another, or two axes that swap their sizes. It keeps as many
    of the other decisions as it can; its microbatches are those with which it is fastest and fits.

    Args:
        memory_ratio: of the plan: what it is known to need over what is estimated.
    """
    plan = normal(plan)
    try:
        space = enumerate_space(plan.workload, table, plan.machine, only=[sizes_of(plan), *_near(plan, table)])
    except InputError:
        return ()       # a plan that no search would make, in a place where none can be made
    differs = differences(space, plan)
    space, differs = _few(space, differs)
    if not len(space):
        return ()
    ranking = rank(space, table, plan.machine)
    most = plan.machine.device_hbm_bytes / (1 + MEMORY_MARGIN) / memory_ratio
    found = []
    for row in _chosen(space, differs, ranking.value_s, ranking.total_bytes <= most, ranking.placeable):
        changed = [name for name in DECISIONS if differs[name][row]]
        made = space.plan(row, plan.machine, plan.workload, plan.attention, plan.compiler_flags)
        its = estimate_plan(made, table)        # as the plan itself is priced
        also = tuple(name for name in changed[1:] if name != "loss_chunks")
        found.append(Neighbour(changed[0], made, its.value_s, its.total_bytes, its.total_bytes <= most, also))
    return tuple(sorted(found, key=lambda neighbour: neighbour.value_s))


def normal(plan: Plan) -> Plan:
    """The plan with the decisions that make no difference on its mesh as a search leaves them."""
    changed: dict = {}
    if plan.size("tensor") * plan.size("group") == 1:
        changed["sequence_sharding"] = True
    if plan.size("context") == 1:
        changed["context_attention"] = "ring"
    if plan.stages == 1:
        changed |= {"schedule": "gpipe", "repeats": 1}
    if plan.size("data") == 1:
        changed |= {"zero1": False, "zero2": False}
    elif plan.stages > 1 or plan.microbatches == 1:
        changed["zero2"] = False
    return replace(plan, **changed)


def sizes_of(plan: Plan) -> Sizes:
    """The sizes of all `AXES`."""
    return tuple(plan.size(axis) for axis in AXES)


def differences(space: Space, plan: Plan) -> Differences:
    """Of every candidate, which decisions differ from a plan's, by `DECISIONS`; the plan is a `normal` one."""
    sets, names = space.rule_sets, np.array(space.schedules)[space.schedule]

    def of_rules(name: str) -> np.ndarray:
        return np.array([getattr(rules, name) for rules in sets])[space.rules]

    return {
        "mesh": (space.sizes[space.mesh] != np.array(sizes_of(plan))).any(axis=1),
        "remat": np.array(space.policies)[space.policy] != plan.remat,
        "microbatches": space.microbatches != plan.microbatches,
        "zero": (of_rules("zero1") != plan.zero1) | (of_rules("zero2") != plan.zero2),
        "sequence_sharding": of_rules("sequence_sharding") != plan.sequence_sharding,
        "context_attention": of_rules("context") != plan.context_attention,
        "schedule": (names != plan.schedule) | (space.repeats != plan.repeats),
        "offload_optimizer": of_rules("offload_optimizer") != plan.offload_optimizer,
        "loss_chunks": space.loss_chunks != plan.loss_chunks,
    }


def part_of(space: Space, rows: np.ndarray) -> Space:
    """The space of some candidates only, int [candidates], in that order."""
    arrays = {f.name: getattr(space, f.name) for f in fields(space)}
    return replace(space, **{name: array[rows] for name, array in arrays.items() if isinstance(array, np.ndarray)})


def _near(plan: Plan, table: Table) -> Iterator[Sizes]:
    """The meshes of one move: a prime factor from one axis to another, or two sizes swapped; each once."""
    axes = searched_axes(plan.workload, dim_sizes(table))
    sizes, seen = sizes_of(plan), {sizes_of(plan)}
    for one, other in itertools.permutations([AXES.index(axis) for axis in axes], 2):
        moves = [(sizes[one] // p, sizes[other] * p) for p in _primes(sizes[one])]
        for mine, its in [*moves, (sizes[other], sizes[one])]:
            near = list(sizes)
            near[one], near[other] = mine, its
            if tuple(near) not in seen:
                seen.add(tuple(near))
                yield tuple(near)


def _primes(n: int) -> list[int]:
    """The different prime factors."""
    found, p = [], 2
    while p * p <= n:
        if n % p == 0:
            found.append(p)
            while n % p == 0:
                n //= p
        p += 1
    return [*found, n] if n > 1 else found


def _few(space: Space, differs: Differences) -> tuple[Space, Differences]:
    """The candidates that differ by one decision, and of another mesh those that keep as much as it allows.

    Chunks of the loss follow from the other decisions, so that they are one only where nothing else differs.
    """
    moved = differs["mesh"]
    others = np.sum([differs[name] for name in DECISIONS if name not in ("mesh", *FOLLOWING)], axis=0)
    keeps = np.full(len(space.meshes), len(DECISIONS))
    np.minimum.at(keeps, space.mesh, others)
    changed = others + differs["microbatches"]
    one = ~moved & ((changed == 1) | ((changed == 0) & differs["loss_chunks"]))
    kept = np.flatnonzero(one | (moved & (others == keeps[space.mesh])))
    return part_of(space, kept), {name: array[kept] for name, array in differs.items()}


def _chosen(
    space: Space, differs: Differences, value_s: np.ndarray, fits: np.ndarray, placeable: np.ndarray
) -> Iterator[int]:
    """Every candidate of the plan's own mesh, and the best of each other: the fastest that fits, else the smallest."""
    best: dict[int, int] = {}
    for row in map(int, np.lexsort((value_s, ~fits))):
        if not placeable[row]:
            continue
        if not differs["mesh"][row]:
            yield row
        else:
            best.setdefault(int(space.mesh[row]), row)
    yield from best.values()

