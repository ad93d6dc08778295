"""Protocol buffers read without a schema compiler (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.compile.hlo import HloError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of one message: ints for varints, bytes for everything else.

    Raises:
        HloError: the message is cut off, or not a message.
    """
    position, end = 0, len(data)
    try:
        while position < end:
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind == _VARINT:
                value, position = _varint(data, position)
                yield tag >> 3, value
                continue
            if kind == _BYTES:
                size, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise HloError(f"not a protocol buffer: wire type {kind} at byte {position} of {end}")
            if position + size > end:
                raise HloError(
                    f"a protocol buffer is cut off: a field of {size} bytes at byte {position} of {end}"
                )
            yield tag >> 3, data[position : position + size]
            position += size
    except IndexError:
        raise HloError(f"a protocol buffer is cut off after {end} bytes") from None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def integers(value: int | memoryview) -> list[int]:
    """A repeated integer field: one of its values, or all of them packed."""
    if isinstance(value, int):
        return [value]
    found, position = [], 0
    while position < len(value):
        one, position = _varint(value, position)
        found.append(one)
    return found


def text(value: int | memoryview) -> str:
    """A string field."""
    return bytes(value).decode("utf-8", "replace") if not isinstance(value, int) else ""
