"""Protocol buffers in NumPy: the fields of very many messages of one kind at once.

The wire format is protobuf.dev/programming-guides/encoding; `compile.wire` reads single messages. A loop in Python over
a million fields takes seconds; here every step of the loop reads the next field of all messages together, so that a
message kind costs as many steps as its longest message has fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.errors import JaxplanError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
PADDING = 16        # bytes after the end of a buffer, so that a value that is cut off is read as zeros, not beyond it
_VARINT_BITS = 64


class WireError(JaxplanError):
    """Bytes that are no protobuf message."""


@dataclass(frozen=True)
class Fields:
    """Fields of many messages, unordered between messages, in order within one.

    Attributes:
        owner: int[n], the message that each belongs to.
        number: int[n], the field's number.
        value: uint64[n], of a varint or a fixed field the value, of bytes the place of the first.
        length: int[n], of bytes how many; 0 for the others.
    """

    owner: np.ndarray
    number: np.ndarray
    value: np.ndarray
    length: np.ndarray

    def of(self, number: int) -> Fields:
        """Those with one number."""
        chosen = np.flatnonzero(self.number == number)
        return Fields(self.owner[chosen], self.number[chosen], self.value[chosen], self.length[chosen])

    def scalars(self, number: int, count: int) -> np.ndarray:
        """int64[count]: the value of one field by message, 0 where it is absent, the last where it comes twice."""
        found = self.of(number)
        out = np.zeros(count, np.int64)
        out[found.owner] = found.value.astype(np.int64)
        return out


def buffer(data: bytes) -> np.ndarray:
    """uint8[len(data) + PADDING]."""
    return np.frombuffer(data + bytes(PADDING), np.uint8)


def varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(uint64 values of the varints that begin at these places, the places after them)."""
    byte = data[at]
    value = (byte & 127).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte >= 128)
    shift = 7
    while more.size and shift < _VARINT_BITS:
        byte = data[np.minimum(after[more], data.size - 1)]
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[byte >= 128]
        shift += 7
    return value, after


def fields(data: np.ndarray, start: np.ndarray, end: np.ndarray) -> Fields:
    """All fields of the messages that lie at these places; of one that is cut off those that are whole.

    Args:
        data: from `buffer`.
        start, end: int[messages], places in it.

    Raises:
        WireError: a wire type that no message has.
    """
    at, owner = start.astype(np.int64), np.arange(start.size)
    active = np.flatnonzero(at < end)
    parts: list[tuple[np.ndarray, ...]] = []
    while active.size:
        key, place = varints(data, at[active])
        number, wire = (key >> np.uint64(3)).astype(np.int64), (key & np.uint64(7)).astype(np.int64)
        value, after, length = _values(data, wire, place)
        whole = (after <= end[active]) & (number > 0)
        kept = active[whole]
        parts.append((owner[kept], number[whole], value[whole], length[whole]))
        at[kept] = after[whole]
        active = kept[at[kept] < end[kept]]
    if not parts:
        empty = np.zeros(0, np.int64)
        return Fields(empty, empty, empty.astype(np.uint64), empty)
    return Fields(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _values(data: np.ndarray, wire: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, place after it, length) of one field each, by wire type."""
    value, after = varints(data, at)
    length = np.zeros(at.size, np.int64)
    text = wire == BYTES
    if text.any():
        length[text] = np.minimum(value[text], np.uint64(1 << 62)).astype(np.int64)
        value[text] = after[text].astype(np.uint64)
        after[text] += length[text]
    for kind, width in ((FIXED64, 8), (FIXED32, 4)):
        fixed = np.flatnonzero(wire == kind)
        if fixed.size:
            places = np.minimum(at[fixed, None] + np.arange(width), data.size - 1)
            weights = np.uint64(8) * np.arange(width, dtype=np.uint64)
            value[fixed] = (data[places].astype(np.uint64) << weights).sum(axis=1, dtype=np.uint64)
            after[fixed] = at[fixed] + width
    strange = ~np.isin(wire, (VARINT, FIXED64, BYTES, FIXED32))
    if strange.any():
        raise WireError(f"wire type {wire[strange][0]} at byte {at[strange][0] - 1}: expected 0, 1, 2 or 5")
    return value, after, length


def text(data: np.ndarray, start: int, length: int) -> str:
    """Bytes at a place as text; what is no UTF-8 is replaced."""
    return data[start : start + length].tobytes().decode("utf-8", "replace")


@dataclass(frozen=True)
class Message:
    """One long message with very many children of one kind.

    Attributes:
        starts, ends: int[children], places of the children.
        integers: its varints by field number, in order.
        spans: (start, end) of its other fields with a length, by field number, in order.
    """

    starts: np.ndarray
    ends: np.ndarray
    integers: dict[int, list[int]]
    spans: dict[int, list[tuple[int, int]]]

    def integer(self, number: int) -> int:
        """The last value of a field, 0 where there is none."""
        return self.integers.get(number, [0])[-1]

    def text(self, data: np.ndarray, number: int) -> str:
        """The last value of a field as text, empty where there is none."""
        start, end = self.spans.get(number, [(0, 0)])[-1]
        return text(data, start, end - start)


def children(data: np.ndarray, start: int, end: int, number: int) -> Message:
    """The children with one field number, and the other fields, of the message that lies at a place.

    Of a message that is cut off what is whole is read.

    Raises:
        WireError: a wire type that no message has.
    """
    raw = memoryview(data)  # type: ignore[arg-type]  # NumPy's arrays are buffers, its stubs say so from 3.12 on
    starts: list[int] = []
    ends: list[int] = []
    integers: dict[int, list[int]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    at, key_of_child = start, number << 3 | BYTES
    while at < end:
        key, at = (raw[at], at + 1) if raw[at] < 128 else _varint(raw, at, end)
        kind = key & 7
        if kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
            continue
        if kind not in (VARINT, BYTES):
            raise WireError(f"wire type {kind} at byte {at - 1}: expected 0, 1, 2 or 5")
        value, at = _varint(raw, at, end)
        if kind == VARINT:
            integers.setdefault(key >> 3, []).append(value)
            continue
        if at + value > end:
            break
        if key == key_of_child:
            starts.append(at)
            ends.append(at + value)
        else:
            spans.setdefault(key >> 3, []).append((at, at + value))
        at += value
    return Message(np.array(starts, np.int64), np.array(ends, np.int64), integers, spans)


def _varint(raw: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return value, end
