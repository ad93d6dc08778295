"""The collectives of a compiled module: what, how big, along which mesh axes, how often, hidden behind what.

Each is one record, whatever it looks like in the text: a plain operation, a pair of start and done, a TPU's
asynchronous fusions (start, steps, done), a SparseCore call, or a TPU's reduce-scatter, which is written as
a fusion of an all-reduce and a slice. Bytes follow `jaxplan.machine.collectives`: the gathered result of an
all-gather, the input of a reduce-scatter, the tensor of an all-reduce, the local bytes of an all-to-all,
the message of a permute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from jaxplan.compile import megascale
from jaxplan.compile.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    PERMUTE,
    REDUCE_SCATTER,
    Collective,
    by_axes,
    moved_by_axes,
    ring_bytes,
)
from jaxplan.compile.collective_form import (
    KINDS,
    async_key,
    base_kind,
    is_sliced_all_reduce,
    rounded_to_bf16,
    slices_of,
    sum_of,
    widened_from_bf16,
)
from jaxplan.compile.hlo import BITS, Computation, HloError, Instruction, Module
from jaxplan.compile.hlo_cost import FlopCounter
from jaxplan.compile.megascale import Slices
from jaxplan.compile.replica_groups import group_text, mesh_axes, replica_groups, source_target_pairs
from jaxplan.compile.trip_count import trip_count

__all__ = ["Collective", "by_axes", "collectives", "moved_by_axes", "ring_bytes"]

_COMPUTE = frozenset(("fusion", "dot", "convolution", "custom-call", "while", "conditional", "call"))


def collectives(
    module: Module, axes: Mapping[str, int], order: np.ndarray | None = None, slices: Slices | None = None
) -> tuple[Collective, ...]:
    """Every collective of `module`, in schedule order, loops entered once.

    Args:
        module: parsed HLO.
        axes: the mesh the module was compiled for: name -> size, major first.
        order: int[sizes], the number that the text gives to the device at each place of the mesh. Leave it
        out for
            jitted programs: they number partitions by place.
        slices: of a machine of several slices, where they stand in the mesh; the module is then that of one slice,
            if it is a TPU's.

    Raises:
        HloError: replica groups in an unknown spelling or of devices outside the mesh.
    """
    return tuple(_Reader(module, axes, order, slices).read(module.entry, 1, True))


class _Reader:
    def __init__(
        self, module: Module, axes: Mapping[str, int], order: np.ndarray | None, slices: Slices | None
    ) -> None:
        self._module, self._axes, self._order = module, axes, order
        self._slices = slices if module.backend == "tpu" else None
        self._widened = module.backend == "cpu"
        self._flops = FlopCounter(module)
        self._axes_of: dict[str, tuple[tuple[str, ...], bool]] = {}

    def read(self, computation: Computation, times: int, bounded: bool) -> Iterator[Collective]:
        """Collectives of `computation`, which runs `times`, and of all that it calls."""
        seen: set[object] = set()
        for place, instruction in enumerate(computation.instructions):
            opcode = instruction.opcode
            if opcode == "while":
                trips = trip_count(self._module, instruction)
                body = self._module.callee(instruction, "body")
                known = trips.count is not None
                yield from self.read(
                    body, times * (trips.count if trips.count is not None else 1), bounded and known
                )
            elif opcode == "conditional":
                yield from self._costliest_branch(instruction, times, bounded)
            elif opcode in ("call", "fusion", "async-start", "call-start"):
                for inner in self._inside(instruction):
                    key = async_key(inner)
                    if key is None or key not in seen:
                        seen.add(key)
                        yield from self._records(inner, computation, place, times, bounded)
            elif base_kind(opcode) in KINDS or megascale.is_transfer(instruction):
                yield from self._records(instruction, computation, place, times, bounded)

    def _costliest_branch(self, conditional: Instruction, times: int, bounded: bool) -> list[Collective]:
        names = conditional.called["branches"]
        branches = [list(self.read(self._module.computation(name), times, bounded)) for name in names]
        return max(branches, key=lambda found: sum(one.moved_bytes for one in found))

    def _inside(self, caller: Instruction) -> Iterator[Instruction]:
        """Collectives in a fusion or called computation, at any depth."""
        for instruction in self._module.callee(caller, "calls", "to_apply").instructions:
            if base_kind(instruction.opcode) in KINDS:
                yield instruction
            elif instruction.opcode in ("fusion", "call", "async-start", "call-start"):
                yield from self._inside(instruction)

    def _records(
        self, instruction: Instruction, computation: Computation, place: int, times: int, bounded: bool
    ) -> Iterator[Collective]:
        members, size, axes, whole = self._members(instruction)
        if not axes:
            return  # every device talks to itself
        caller = computation.instructions[place]
        end = self._end(caller, instruction, computation, place)
        hidden_by = computation.instructions[place + 1 : end] if end is not None else []
        work = [one for one in hidden_by if one.opcode in _COMPUTE and base_kind(one.opcode) not in KINDS]
        counts = [self._flops.of_instruction(one) for one in work]
        crosses = megascale.is_transfer(instruction)
        kind = megascale.kind(instruction) if crosses else base_kind(instruction.opcode)
        if kind == PERMUTE:
            size = int(np.prod([self._axes[name] for name in axes]))
        if kind == ALL_REDUCE and is_sliced_all_reduce(instruction):
            kind = REDUCE_SCATTER
        for sliced, nbytes, target_nbytes in self._parts(instruction, kind, size):
            yield Collective(
                name=instruction.name,
                computation=computation.name,
                kind=kind,
                nbytes=nbytes,
                axes=axes,
                group_size=size,
                whole_axes=whole or kind == PERMUTE,
                executions=times,
                bounded=bounded,
                place=place,
                end=end,
                direction=_direction(members, sizes=self._axes) if kind == PERMUTE else 0,
                between=len(work),
                between_flops=sum(count.total for count in counts if count is not None),
                op_name=instruction.op_name or caller.op_name,
                reads_as_reduce_scatter=sliced,
                target_nbytes=target_nbytes,
                emitter=_emitter(instruction) or _emitter(caller),
                part="whole" if self._slices is None else "network" if crosses else "slice",
            )

    def _members(self, instruction: Instruction) -> tuple[np.ndarray, int, tuple[str, ...], bool]:
        """(groups or pairs, members of one, mesh axes, whether these are covered wholly)."""
        if megascale.is_transfer(instruction):
            places = megascale.members(instruction, self._slices)
            return places, places.shape[1], *mesh_axes(places, self._axes)
        if base_kind(instruction.opcode) == PERMUTE:
            pairs = self._in_every_slice(source_target_pairs(instruction))
            return pairs, 2, *mesh_axes(pairs, self._axes, self._order)
        text = group_text(instruction)
        if text is None:
            raise HloError(f"{instruction.name} ({instruction.opcode}) names no replica groups")
        groups = self._in_every_slice(replica_groups(text, self._module.devices))
        if text not in self._axes_of:  # texts repeat, and groups of a large machine are long
            self._axes_of[text] = mesh_axes(groups, self._axes, self._order)
        return groups, groups.shape[1], *self._axes_of[text]

    def _in_every_slice(self, numbered: np.ndarray) -> np.ndarray:
        return numbered if self._slices is None else self._slices.of_partitions(numbered)

    def _parts(self, instruction: Instruction, kind: str, size: int) -> Iterator[tuple[bool, int, int]]:
        """(reads as reduce-scatter, bytes, bytes on the target), of the arrays that share one fate."""
        factor = size if kind == ALL_GATHER else 1
        operands = instruction.operands
        if megascale.is_transfer(instruction):
            operands = operands[:1]  # what follows is a token
        elif kind == "ragged-all-to-all":
            # rows to send, and where to write: the rows that move fit into both
            operands = [min(operands[:2], key=lambda operand: operand.nbytes)]
        elif kind == PERMUTE and "slice_sizes=" in instruction.structure:
            operands = operands[:1]  # what follows is where to write, in place
        total: dict[bool, list[int]] = {}
        sums: set[str] = set()
        for index, operand in enumerate(operands):
            nbytes = operand.nbytes * factor
            sliced, target = self._on_target(
                instruction, kind, size, None if len(operands) == 1 else index, sums
            )
            bytes_of = total.setdefault(sliced, [0, 0])
            bytes_of[0] += nbytes
            bytes_of[1] += int(nbytes * target)
        for sliced, (nbytes, target_nbytes) in total.items():
            yield sliced, nbytes, target_nbytes

    def _on_target(
        self, instruction: Instruction, kind: str, size: int, index: int | None, sums: set[str]
    ) -> tuple[bool, float]:
        """How an accelerator would move host XLA's array: (as reduce-scatter?, share of the bytes)."""
        if not self._widened:
            return False, 1.0
        sliced = kind == ALL_REDUCE and slices_of(self._module, instruction, index) == size
        if kind == ALL_REDUCE and index is not None:
            together = sum_of(self._module, instruction, index)
            if together and together in sums:
                return sliced, 0.0
            sums.add(together)
        narrow = rounded_to_bf16(self._module, instruction, index)
        if kind not in (ALL_REDUCE, REDUCE_SCATTER):  # sums may be meant in float32
            narrow = narrow or widened_from_bf16(self._module, instruction.operand(index or 0))
        return sliced, BITS["bf16"] / BITS["f32"] if narrow else 1.0

    def _end(
        self, caller: Instruction, instruction: Instruction, computation: Computation, place: int
    ) -> int | None:
        """Place of the end of an asynchronous collective; None where it is synchronous."""
        if megascale.is_transfer(instruction):
            return megascale.awaited(instruction, computation)
        if caller.config.get("collective_backend_config", {}).get("is_sync"):
            return None
        later = computation.instructions[place + 1 :]
        if caller.opcode.endswith("-start"):
            names = {caller.name}
            for offset, one in enumerate(later, place + 1):
                if names.intersection(one.operand_names):
                    if one.opcode.endswith("-done"):
                        return offset
                    names.add(one.name)  # an update between start and done
            return None
        key = async_key(instruction)
        if key is None:
            return None
        ends = [
            offset
            for offset, one in enumerate(later, place + 1)
            if one.opcode == "fusion" and any(async_key(inner) == key for inner in self._inside(one))
        ]
        return ends[-1] if ends else None


def _direction(pairs: np.ndarray, sizes: Mapping[str, int]) -> int:
    """The way round that most pairs of a permute go: the shorter way, in the numbering of places."""
    count = int(np.prod(list(sizes.values())))
    steps = (pairs[:, 1] - pairs[:, 0]) % count
    return 1 if 2 * int((2 * steps <= count).sum()) >= len(steps) else -1


def _emitter(instruction: Instruction) -> str:
    config = instruction.config.get("collective_algorithm_config", {})
    return str(config.get("emitter", "")) if isinstance(config, dict) else ""
