"""A compiled program as a profile: what the memory viewer of TensorBoard's Profile tab opens, though nothing has run.

The viewer reads HLO protos from the events' metadata of a plane `/host:metadata` (openxla/xla,
tsl/profiler/protobuf/xplane.proto: XSpace, XPlane, XEventMetadata, XStat; field numbers below are theirs).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.compile.wire import fields, text

HOST = "jaxplan"
PLANE = "/host:metadata"
HLO_PROTO, PROGRAM_ID = 1, 2        # our ids of the two statistics
STATISTICS = {HLO_PROTO: "Hlo Proto", PROGRAM_ID: "program_id"}


def xspace(programs: Sequence[bytes]) -> bytes:
    """A serialized XSpace that holds programs and no events.

    The viewer calls program n (from 1) `NAME(n)`, with the name that its module has.

    Args:
        programs: serialized HloProtos (with the buffer assignment, if memory is to be seen).

    Raises:
        HloError: a program is no HloProto.
    """
    plane = [_number(1, 0), _bytes(2, PLANE.encode())]
    for number, proto in enumerate(programs, 1):
        shown = f"{module_name(proto)}({number})".encode()
        statistics = [
            _bytes(5, _number(1, HLO_PROTO) + _bytes(6, proto)),
            _bytes(5, _number(1, PROGRAM_ID) + _number(3, number)),
        ]
        metadata = b"".join([_number(1, number), _bytes(2, shown), _bytes(4, shown), *statistics])
        plane.append(_bytes(4, _number(1, number) + _bytes(2, metadata)))
    for number, name in STATISTICS.items():
        plane.append(_bytes(5, _number(1, number) + _bytes(2, _number(1, number) + _bytes(2, name.encode()))))
    return _bytes(1, b"".join(plane)) + _bytes(4, HOST.encode())


def module_name(proto: bytes) -> str:
    """The name of the module in a serialized HloProto (hlo.proto: HloProto.hlo_module, HloModuleProto.name)."""
    module = dict(fields(memoryview(proto))).get(1, 0)
    return "" if isinstance(module, int) else text(dict(fields(module)).get(1, 0))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
