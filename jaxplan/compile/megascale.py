"""Collectives between slices, as libtpu writes them: one module for every slice, and host transfers between these.

A program for several slices is compiled to the module that each slice runs. Its partitions, replica groups and
source-target pairs number the devices of one slice, in mesh order. What crosses slices is a pair of `send` and `recv`
with `is_host_transfer=true` (and their `-done`), handled by `xla_megascale_runtime`; frontend attributes say what it
is:

    _xla_megascale_transfer_type="ALL_REDUCE"      or ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, ONE_TO_ONE
    _xla_megascale_target="{1,2}x{0:7}"            each device of 0 to 7 with the same one of slices 1 and 2
    _xla_megascale_target={{100000,200004},...}    groups of device ids: slice (from 1) x 100,000 + device of the slice
    _xla_megascale_target={{100000->200000},...}   the pairs of a permute

The device of a slice is its canonical index there (`machine.placement`). Read from HLO of libtpu 0.0.42.1 for 2 and 4
slices of v5e.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from jaxplan.compile.hlo import Computation, HloError, Instruction
from jaxplan.compile.replica_groups import replica_groups
from jaxplan.machine.placement import Placement

IDS_PER_SLICE = 100_000
KINDS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
_TYPE, _TARGET, _RENDEZVOUS = "_xla_megascale_transfer_type", "_xla_megascale_target=", "_xla_host_transfer_rendezvous"
_PRODUCT = re.compile(r'"\{([\d,:]+)\}x\{([\d,:]+)\}"')


@dataclass(frozen=True, eq=False)
class Slices:
    """Where the devices of each slice stand in the mesh.

    Attributes:
        places: int[slices, devices of one]: the place in the mesh (row-major) of each device, in canonical order.
    """

    places: np.ndarray

    @classmethod
    def of(cls, placement: Placement) -> Slices | None:
        """The slices of a placement; None where there is only one, whose modules need no reading like this."""
        count = placement.machine.slices
        return cls(np.argsort(placement.order.reshape(-1)).reshape(count, -1)) if count > 1 else None

    def of_partitions(self, members: np.ndarray) -> np.ndarray:
        """Mesh places of groups (or pairs) of partitions, int[groups, members], in every slice after each other."""
        in_order = np.sort(self.places, axis=1)
        if members.size and int(members.max()) >= in_order.shape[1]:
            raise HloError(f"a collective names partition {int(members.max())}; a slice has {in_order.shape[1]}")
        return in_order[:, members].reshape(-1, members.shape[1])

    def of_ids(self, ids: np.ndarray) -> np.ndarray:
        """Mesh places of groups of device ids, int[groups, members]."""
        slices, devices = ids // IDS_PER_SLICE - 1, ids % IDS_PER_SLICE
        count, size = self.places.shape
        if ids.size and (slices.min() < 0 or slices.max() >= count or devices.max() >= size):
            raise HloError(f"a transfer names a device outside of {count} slices of {size} devices")
        return self.places[slices, devices]


def is_transfer(instruction: Instruction) -> bool:
    """Whether an instruction starts a collective between slices."""
    return instruction.opcode == "send" and _TYPE in instruction.attribute_text


def kind(transfer: Instruction) -> str:
    """Which collective it is.

    Raises:
        HloError: a transfer of an unknown type.
    """
    found = transfer.quoted(_TYPE)
    if found not in KINDS:
        raise HloError(f"{transfer.name} is a transfer between slices of an unknown type: {found!r}")
    return KINDS[found]


def members(transfer: Instruction, slices: Slices | None) -> np.ndarray:
    """Mesh places of its groups or pairs, int[groups, members].

    Raises:
        HloError: groups in an unknown spelling or of devices that there are not; or no slices are known.
    """
    if slices is None:
        raise HloError(f"{transfer.name} sends to another slice, and the machine is given as one slice")
    text = transfer.attribute_text
    text = text[text.find(_TARGET) + len(_TARGET) :]
    product = _PRODUCT.match(text)
    if product:
        return slices.of_ids(_numbers(product[1])[None] * IDS_PER_SLICE + _numbers(product[2])[:, None])
    if not text.startswith("{{"):
        raise HloError(f"the target of {transfer.name} is spelled in an unknown way: {text[:80]!r}")
    listed = text[: text.index("}}") + 2].replace("->", ",")
    return slices.of_ids(replica_groups(listed, 0))


def _numbers(text: str) -> np.ndarray:
    """`0:2,5` as 0, 1, 2, 5."""
    parts = [part.partition(":") for part in text.split(",")]
    return np.concatenate([np.arange(int(first), int(last or first) + 1) for first, _, last in parts])


def awaited(transfer: Instruction, computation: Computation) -> int | None:
    """Place in the schedule where what the others sent is awaited; None where it is not in this computation."""
    name = transfer.quoted(_RENDEZVOUS)
    received = {
        one.name for one in computation.instructions if one.opcode == "recv" and one.quoted(_RENDEZVOUS) == name
    }
    for place, one in enumerate(computation.instructions):
        if one.opcode == "recv-done" and received.intersection(one.operand_names):
            return place
    return None
