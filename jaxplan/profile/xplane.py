"""Reading xplane.pb, the file that `jax.profiler` writes: planes of lines of events, as columns.

The messages and their field numbers are those of XLA's `xplane.proto` (openxla/xla, third_party/tsl/tsl/profiler/
protobuf): a space has planes (one a device, one for the host's threads, one with the programs), a plane lines, a line
events. An event's name, and the statistics that all events of one name share, stand once in the plane's metadata.
Times are kept as whole picoseconds since the space's earliest line began.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from jaxplan.errors import InputError
from jaxplan.profile.messages import Fields, Message, WireError, buffer, children, fields, text

SUFFIX = ".xplane.pb"
ABSENT = -(1 << 63)       # of a statistic that an event does not have, and of a code of no text
_PLANE, _ERROR, _WARNING, _HOSTNAME = 1, 2, 3, 4    # fields of XSpace
_LINE, _EVENT_METADATA, _STAT_METADATA, _PLANE_STAT = 3, 4, 5, 6
_DOUBLE, _UINT, _INT, _TEXT, _BYTES, _REFERENCE = 2, 3, 4, 5, 6, 7      # fields of XStat that hold its value
PS = 1e-12                  # seconds
_PS_PER_NS = 1000
_MOST_NS = (1 << 63) - 1


@dataclass(frozen=True)
class Line:
    """One line of a plane: its events are `first` to `first + count` of the plane's."""

    name: str
    timestamp_ns: int
    first: int
    count: int

    @property
    def events(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class _Stats:
    """Statistics as a table: whose, which (a statistic's id), the field that holds the value, and where."""

    owner: np.ndarray
    which: np.ndarray
    field: np.ndarray
    value: np.ndarray
    length: np.ndarray


class Plane:
    """One plane.

    Attributes:
        name: `/device:GPU:0`, `/host:CPU`, ...
        lines: in the file's order.
        metadata: int[events], the row of each event's name in `names`.
        start_ps, duration_ps: int[events].
        names: by row of the metadata: the display name where there is one.
        full_names: the names themselves (on a TPU the instruction's text).
    """

    def __init__(self, data: np.ndarray, start: int, end: int) -> None:
        self._data = data
        plane = children(data, start, end, _LINE)
        self.name = plane.text(data, 2)
        self._read_metadata(plane.spans)
        self._read_lines(plane)
        self._plane_stats = _spans(plane.spans.get(_PLANE_STAT, []))
        self._integers: dict[str, np.ndarray] = {}
        self._texts: dict[str, tuple[np.ndarray, list[str]]] = {}

    def _read_metadata(self, spans: dict[int, list[tuple[int, int]]]) -> None:
        data = self._data
        stat_names = _map_values(data, spans.get(_STAT_METADATA, []))
        named = stat_names.members.of(2)
        self.stat_names = {
            int(stat_names.keys[o]): text(data, int(v), int(n))
            for o, v, n in zip(named.owner, named.value, named.length, strict=True)
        }
        events = _map_values(data, spans.get(_EVENT_METADATA, []))
        rows = events.keys.size + 1     # the last is for events whose name the file does not tell
        self.full_names, self.names = [""] * rows, [""] * rows
        for number, target in ((2, self.full_names), (4, self.names)):
            found = events.members.of(number)
            for o, v, n in zip(found.owner.tolist(), found.value.tolist(), found.length.tolist(), strict=True):
                target[o] = text(data, v, n)
        self.names = [display or name for display, name in zip(self.names, self.full_names, strict=True)]
        self._rows = {int(key): row for row, key in enumerate(events.keys)}
        stats = events.members.of(5)
        self._metadata_stats = self._stats(stats.owner, stats.value, stats.length)

    def _read_lines(self, plane: Message) -> None:
        lines, begins, stops, origins = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
        first = 0
        for start, end in zip(plane.starts.tolist(), plane.ends.tolist(), strict=True):
            line = children(self._data, start, end, 4)
            name = line.text(self._data, 11) or line.text(self._data, 2)
            lines.append(Line(name, line.integer(3) & _MOST_NS, first, line.starts.size))
            begins.append(line.starts)
            stops.append(line.ends)
            origins.append(np.full(line.starts.size, lines[-1].timestamp_ns, np.int64))
            first += line.starts.size
        self.lines = tuple(lines)
        self._timestamp_ns = np.concatenate(origins) if origins else np.zeros(0, np.int64)
        self._fields = fields(self._data, np.concatenate(begins), np.concatenate(stops))
        self.count = first
        keys = self._fields.scalars(1, first)
        unique, inverse = np.unique(keys, return_inverse=True)
        rows = np.array([self._rows.get(int(key), len(self.names) - 1) for key in unique], np.int64)
        self.metadata = rows[inverse] if first else np.zeros(0, np.int64)
        self.duration_ps = self._fields.scalars(3, first)
        self.start_ps = self._fields.scalars(2, first)      # until `begin_at`: since each line's own begin

    def begin_at(self, origin_ns: int) -> None:
        """Count all times from `origin_ns` on."""
        self.start_ps = self.start_ps + (self._timestamp_ns - origin_ns) * _PS_PER_NS

    def _stats(self, owner: np.ndarray, start: np.ndarray, length: np.ndarray) -> _Stats:
        start = start.astype(np.int64)
        found = fields(self._data, start, start + length)
        which = found.scalars(1, start.size)
        values = found.number > 1
        at = found.owner[values]
        return _Stats(owner[at], which[at], found.number[values], found.value[values], found.length[values])

    @cached_property
    def _event_stats(self) -> _Stats:
        stats = self._fields.of(4)
        return self._stats(stats.owner, stats.value, stats.length)

    @property
    def stats(self) -> dict[str, object]:
        """The plane's own statistics by name."""
        start, end = self._plane_stats
        table = self._stats(np.zeros(start.size, np.int64), start, end - start)
        return {self.stat_names.get(int(table.which[i]), ""): self._value(table, i) for i in range(table.which.size)}

    def metadata_bytes(self, stat: str) -> Iterator[tuple[int, bytes]]:
        """(row of the metadata, value) of a statistic in bytes."""
        table = self._metadata_stats
        for i in np.flatnonzero(self._is(table, stat) & (table.field == _BYTES)):
            yield int(table.owner[i]), self._data[int(table.value[i]) :][: int(table.length[i])].tobytes()

    def integers(self, stat: str) -> np.ndarray:
        """int64[events]: a statistic of each event, or what its metadata says; ABSENT where neither does."""
        if stat not in self._integers:
            self._integers[stat] = self._column(stat, (_UINT, _INT), self._integer)
        return self._integers[stat]

    def metadata_integers(self, stat: str) -> np.ndarray:
        """int64[names]: the same of the metadata only."""
        return self._by_owner(self._metadata_stats, stat, (_UINT, _INT), len(self.names), self._integer)

    def texts(self, stat: str) -> tuple[np.ndarray, list[str]]:
        """(int64[events] codes, their texts): a statistic of each event, or of its metadata; ABSENT without one."""
        if stat not in self._texts:
            texts: dict[str, int] = {}
            codes = self._column(stat, (_TEXT, _REFERENCE), self._coder(texts))
            self._texts[stat] = codes, list(texts)
        return self._texts[stat]

    def _column(self, stat: str, kinds: tuple[int, ...], read) -> np.ndarray:
        shared = self._by_owner(self._metadata_stats, stat, kinds, len(self.names), read)
        own = self._by_owner(self._event_stats, stat, kinds, self.count, read)
        return np.where(own != ABSENT, own, shared[self.metadata])

    def _is(self, table: _Stats, stat: str) -> np.ndarray:
        return np.isin(table.which, [key for key, name in self.stat_names.items() if name == stat])

    def _by_owner(self, table: _Stats, stat: str, kinds: tuple[int, ...], count: int, read) -> np.ndarray:
        out = np.full(count, ABSENT, np.int64)
        chosen = np.flatnonzero(self._is(table, stat) & np.isin(table.field, kinds))
        out[table.owner[chosen]] = read(table, chosen)
        return out

    @staticmethod
    def _integer(table: _Stats, chosen: np.ndarray) -> np.ndarray:
        return table.value[chosen].astype(np.int64)

    def _coder(self, texts: dict[str, int]):
        def code(table: _Stats, chosen: np.ndarray) -> np.ndarray:
            keys = np.stack([table.field[chosen], table.value[chosen].astype(np.int64), table.length[chosen]], axis=1)
            reference = keys[:, 0] == _REFERENCE
            keys[~reference, 1] = table.value[chosen][~reference].astype(np.int64)
            unique, inverse = np.unique(keys, axis=0, return_inverse=True)
            said = [
                self.stat_names.get(int(v), "") if f == _REFERENCE else text(self._data, int(v), int(n))
                for f, v, n in unique
            ]
            codes = np.array([texts.setdefault(one, len(texts)) for one in said], np.int64)
            return codes[inverse.reshape(-1)] if chosen.size else np.zeros(0, np.int64)

        return code

    def _value(self, table: _Stats, i: int) -> object:
        field, value = int(table.field[i]), int(table.value[i])
        if field == _DOUBLE:
            return struct.unpack("<d", struct.pack("<Q", value))[0]
        if field == _TEXT:
            return text(self._data, value, int(table.length[i]))
        if field == _BYTES:
            return self._data[value : value + int(table.length[i])].tobytes()
        if field == _REFERENCE:
            return self.stat_names.get(value, "")
        return value - (1 << 64) if field == _INT and value >> 63 else value


@dataclass(frozen=True)
class _Map:
    """A protobuf map from integers to messages: keys, and the fields of the values."""

    keys: np.ndarray
    members: Fields


def _spans(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _map_values(data: np.ndarray, entries: list[tuple[int, int]]) -> _Map:
    start, end = _spans(entries)
    found = fields(data, start, end)
    keys, values = found.scalars(1, start.size), found.of(2)
    value_start = np.zeros(start.size, np.int64)
    value_end = np.zeros(start.size, np.int64)
    value_start[values.owner] = values.value.astype(np.int64)
    value_end[values.owner] = value_start[values.owner] + values.length
    return _Map(keys, fields(data, value_start, value_end))


@dataclass(frozen=True)
class Space:
    """One file.

    Attributes:
        said: the profiler's own errors and warnings.
        cut: what is missing at its end, in words; empty where the file is whole.
    """

    path: Path
    planes: tuple[Plane, ...]
    hostname: str
    said: tuple[str, ...] = ()
    cut: str = ""

    def plane(self, name: str) -> Plane | None:
        """The plane of that name."""
        return next((plane for plane in self.planes if plane.name == name), None)


def load(path: Path) -> Space:
    """Read a file; of one that is cut off what is whole.

    Raises:
        InputError: it cannot be read, is empty, or is no profile.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "a file *.xplane.pb of jax.profiler") from error
    if not raw:
        raise InputError(f"{path} is empty", "a profile", "profiling again: the program ended before it was written")
    data = buffer(raw)
    try:
        return _space(path, data, len(raw))
    except (WireError, IndexError) as error:
        raise InputError(f"{path} is no profile ({error})", "an xplane.pb as jax.profiler writes it") from error


def _space(path: Path, data: np.ndarray, size: int) -> Space:
    found = children(data, 0, size, _PLANE)
    strange = sorted({*found.spans, *found.integers} - {_ERROR, _WARNING, _HOSTNAME})
    if strange or (not found.starts.size and data[0] != _PLANE << 3 | 2):
        raise WireError(f"no planes: fields {', '.join(map(str, strange)) or 'none'}")
    planes = [Plane(data, start, end) for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
    origin = min((line.timestamp_ns for plane in planes for line in plane.lines if line.count), default=0)
    for plane in planes:
        plane.begin_at(origin)
    names, errors, warnings = (
        [text(data, start, end - start) for start, end in found.spans.get(number, [])]
        for number in (_HOSTNAME, _ERROR, _WARNING)
    )
    last = max([0, *found.ends.tolist(), *(end for spans in found.spans.values() for _, end in spans)])
    cut = f"it is cut off: its last {size - last:,} of {size:,} bytes are the begin of a plane" if last < size else ""
    hostname = names[0] if names else path.name.removesuffix(SUFFIX)
    return Space(path, tuple(planes), hostname, (*errors, *warnings), cut)
