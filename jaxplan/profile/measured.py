"""What a profile measured, joined to what the HLO knows.

    measured = measure(read(folder), module=None, axes={"data": 4, "tensor": 2})
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxplan.compile.hlo import Module
from jaxplan.compile.source_lines import SourceLines
from jaxplan.compile.timeline import Entry
from jaxplan.errors import InputError
from jaxplan.profile.figures import CollectiveTime, DeviceTime, Measured, OperationTime
from jaxplan.profile.kinds import Class, Kind, Kinds, by_name
from jaxplan.profile.ledger import HOST, IDLE, Segments, Shares, segments, shares
from jaxplan.profile.program import module_of
from jaxplan.profile.readers.form import NO_STEP
from jaxplan.profile.trace import Trace
from jaxplan.profile.xplane import PS

__all__ = ["CollectiveTime", "DeviceTime", "Measured", "OperationTime", "measure"]


def measure(trace: Trace, module: Module | None = None, axes: Mapping[str, int] | None = None) -> Measured:
    """The figures of a trace.

    Args:
        module: the program's HLO; None: the profile's own, where it holds it.
        axes: the mesh that the program was compiled for: name -> size, major first. Without it collectives are told
            apart by kind, not by axes.

    Raises:
        InputError: the profile has no whole step.
    """
    if not trace.steps:
        raise InputError(f"{trace.paths[0]}: no step is whole", "one step at least", "profiling a few steps more")
    notes = list(trace.notes)
    program = trace.programs[trace.main].name
    if module is None:
        module, why = module_of(trace)
        if why:
            notes.append(f"{why}: operations are told apart by their names (--hlo FILE gives the text)")
    elif program and module.name != program:
        notes.append(f"the HLO given is of {module.name}, the devices spend most time in {program}")
    kinds = Kinds(module, axes)
    return _Measuring(trace, kinds, program, notes + kinds.notes).result()


class _Measuring:
    """The columns that all figures of one trace share."""

    def __init__(self, trace: Trace, kinds: Kinds, program: str, notes: list[str]) -> None:
        self.trace, self.kinds, self.program, self.notes = trace, kinds, program, notes
        steps = trace.step_s
        self.median = sorted(range(len(steps)), key=lambda i: steps[i])[(len(steps) - 1) // 2]
        self.in_step = self._in_step()
        self._tell_kinds()
        self.own: Segments = segments(trace.track, trace.start_ps, trace.duration_ps)
        self.own_ps = self.own.self_time(trace.device.size)
        self._share()

    def _in_step(self) -> np.ndarray:
        """Which operations are the median step's: its own, and those of no step that begin within it."""
        trace = self.trace
        host = np.array([device.host for device in trace.devices])[trace.device]
        begin, end = trace.windows_ps[host, self.median].T
        within = (trace.start_ps >= begin) & (trace.start_ps < end)
        return (trace.step == self.median) | ((trace.step == NO_STEP) & within)

    def _tell_kinds(self) -> None:
        """`labels`: the kinds that occur; `label`: which one each operation is; `key`: its row among `keys`."""
        trace = self.trace
        columns = np.stack([trace.program, trace.name, trace.hint, trace.named, trace.beside], axis=1)
        self.keys, self.key = np.unique(columns, axis=0, return_inverse=True)
        self.key = self.key.reshape(-1)
        self.of_key = [self._kind(*row) for row in self.keys.tolist()]

    def _kind(self, program: int, name: int, hint: int, named: int, beside: int) -> Kind:
        trace = self.trace
        said, hinted = trace.names[name], trace.hints[hint]
        kind = self.kinds.of(said, hinted, bool(named)) if self._is_main(program) else by_name(said, hinted)
        if beside and kind.group is Class.COMPUTE:
            return Kind(kind.entry, kind.kind, Class.COPY, instruction=kind.instruction)
        return kind

    def _is_main(self, program: int) -> bool:
        """Whether a program is the one that the HLO is of: not every event carries its number."""
        main, other = self.trace.programs[self.trace.main], self.trace.programs[program]
        return other.name == main.name and (other.ident == main.ident or min(other.ident, main.ident) < 0)

    def _share(self) -> None:
        trace = self.trace
        labels: dict[tuple, int] = {}
        of_key = [labels.setdefault((k.entry, k.kind, k.axes, k.recomputed, k.group), len(labels)) for k in self.of_key]
        self.labels = list(labels)
        label = np.array(of_key, np.int64)[self.key]
        group = [one[-1] for one in self.labels]
        host = [device.host for device in trace.devices]
        owner = trace.device[self.own.operation]
        self.shares: list[Shares] = []
        for device in range(len(trace.devices)):
            mine = owner == device
            rows = self.own.operation[mine]
            self.shares.append(
                shares(
                    label[rows], group, self.own.start[mine], self.own.end[mine],
                    trace.windows_ps[host[device]], self._first(device, host[device]),
                )
            )  # fmt: skip

    def _first(self, device: int, host: int) -> np.ndarray:
        """When a device's first operation of each step begins; the step's begin where it has none."""
        trace = self.trace
        chosen = (trace.device == device) & (trace.step != NO_STEP)
        first = np.full(len(trace.steps), np.iinfo(np.int64).max)
        np.minimum.at(first, trace.step[chosen], trace.start_ps[chosen])
        begin, end = trace.windows_ps[host, :, 0], trace.windows_ps[host, :, 1]
        return np.where(first > end, begin, np.maximum(first, begin))

    def result(self) -> Measured:
        trace = self.trace
        table = np.mean([one.by_step[self.median] for one in self.shares], axis=0) * PS
        entries: dict[str, float] = {}
        recompute: dict[str, float] = {}
        for (entry, _, _, recomputed, _), spent in zip(self.labels, table[:-2], strict=True):
            entries[entry] = entries.get(entry, 0.0) + float(spent)
            if recomputed:
                recompute[entry] = recompute.get(entry, 0.0) + float(spent)
        entries[HOST], entries[IDLE] = float(table[-2]), float(table[-1])
        known = np.array([kind.instruction is not None for kind in self.of_key])[self.key]
        own = float(self.own_ps.sum())
        unknown = float(self.own_ps[~known].sum()) / own if own else 0.0
        return Measured(
            platform=trace.platform,
            program=self.program,
            steps=trace.step_s,
            step=self.median,
            ledger=_entries(entries),
            recompute=_entries(recompute),
            devices=self._devices(),
            operations=self._operations(),
            collectives=self._collectives(),
            attributed_s=own * PS,
            total_s=_busy(trace) * PS,
            unknown=unknown,
            axes=self.kinds.axes,
            notes=tuple(self.notes),
            trace=trace,
            kinds=tuple(self.of_key),
            kind_of_operation=self.key,
        )

    def _devices(self) -> tuple[DeviceTime, ...]:
        mean = np.array([one.by_step.mean(axis=0) for one in self.shares]) * PS
        collective = np.array([label[-1] is Class.COLLECTIVE for label in self.labels])
        exposed = mean[:, :-2][:, collective].sum(axis=1)
        work = mean[:, :-2][:, ~collective].sum(axis=1)
        behind = work - np.median(work)
        return tuple(
            DeviceTime(self.trace.hosts[device.host], device.ordinal, *(float(one[i]) for one in columns))
            for columns in [(work, exposed, mean[:, -2:].sum(axis=1), behind)]
            for i, device in enumerate(self.trace.devices)
        )

    def _operations(self) -> tuple[OperationTime, ...]:
        trace, inside, devices = self.trace, self.in_step, len(self.trace.devices)
        spent = np.bincount(self.key[inside], weights=self.own_ps[inside], minlength=len(self.keys)) * PS
        counts = np.bincount(self.key[inside & ~trace.beside], minlength=len(self.keys))
        lines = SourceLines(self.kinds.module) if self.kinds.module is not None else None
        out = []
        for row in np.argsort(-spent, kind="stable").tolist():
            kind, columns = self.of_key[row], self.keys[row]
            one = kind.instruction
            nbytes = kind.collective.nbytes if kind.collective else self.kinds.nbytes(one) if one is not None else 0
            out.append(
                OperationTime(
                    name=trace.names[columns[1]],
                    kind=kind.kind,
                    entry=kind.entry,
                    axes=kind.axes,
                    executions=float(counts[row]) / devices,
                    seconds=float(spent[row]) / devices,
                    flops=self.kinds.flops(one) if one is not None and kind.group is Class.COMPUTE else 0.0,
                    nbytes=float(nbytes) if kind.group is not Class.LOOP else 0.0,
                    source=lines.of(one) if lines is not None and one is not None else "",
                    op_name=one.op_name if one is not None else "",
                    program=trace.programs[columns[0]].name,
                )
            )
        return tuple(one for one in out if one.executions or one.seconds)

    def _collectives(self) -> tuple[CollectiveTime, ...]:
        """Sums by kind and axes; a span is counted where it begins, and its wait where that is."""
        trace, sums, devices = self.trace, {}, len(self.trace.devices)
        exposed: dict[tuple[str, tuple[str, ...]], float] = {}
        every = np.sum([one.by_step[self.median] for one in self.shares], axis=0)
        for (_, kind, axes, _, group), spent in zip(self.labels, every[:-2], strict=True):
            if group is Class.COLLECTIVE:
                exposed[kind, axes] = exposed.get((kind, axes), 0.0) + float(spent)
        spans = {(k.kind, k.axes) for k, key in zip(self.of_key, self.keys, strict=True) if key[4]}
        for row, kind in enumerate(self.of_key):
            if kind.group is not Class.COLLECTIVE:
                continue
            mine = self.in_step & (self.key == row)
            total = sums.setdefault((kind.kind, kind.axes), np.zeros(3))
            if not self.keys[row][4] and (kind.kind, kind.axes) in spans and self._is_asynchronous(kind):
                continue    # issues or awaits what stands on a line of its own from begin to end
            executed = int(mine.sum()) if kind.begins else 0
            moved = executed * (kind.collective.nbytes if kind.collective else 0)
            total += (executed, float(trace.duration_ps[mine].sum()), moved)
        return tuple(
            CollectiveTime(
                kind,
                axes,
                float(executed) / devices,
                float(spent) * PS / devices,
                exposed.get((kind, axes), 0.0) * PS / devices,
                float(moved) / devices,
            )
            for (kind, axes), (executed, spent, moved) in sorted(sums.items(), key=lambda item: -item[1][1])
        )

    @staticmethod
    def _is_asynchronous(kind: Kind) -> bool:
        if kind.collective is not None:
            return kind.collective.asynchronous
        return kind.instruction is not None and kind.instruction.opcode.endswith(("-start", "-done"))


def _entries(found: Mapping[str, float]) -> tuple[Entry, ...]:
    return tuple(Entry(name, spent) for name, spent in sorted(found.items(), key=lambda one: -one[1]) if spent > 0)


def _busy(trace: Trace) -> float:
    """Time that the tracks are busy, the union of their operations: counted apart from `segments`, to compare."""
    order = np.lexsort((trace.start_ps, trace.track))
    track, start = trace.track[order], trace.start_ps[order]
    end = start + trace.duration_ps[order]
    total = 0.0
    for one in np.unique(track):
        mine = track == one
        reached = np.maximum.accumulate(end[mine])
        before = np.concatenate([start[mine][:1], reached[:-1]])
        total += float((reached - np.maximum(start[mine], before)).clip(0).sum())
    return total
