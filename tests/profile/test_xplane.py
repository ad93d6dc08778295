"""The reader of xplane.pb: event by event what JAX's own reader says, and what that does not say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_spaces import Plane, space, tpu

from jaxplan.errors import InputError
from jaxplan.profile.messages import WireError, buffer, children, fields, varints
from jaxplan.profile.xplane import ABSENT, load


def encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_varints_of_every_length(values) -> None:
    parts = [encoded(value) for value in values]
    at = np.cumsum([0, *map(len, parts)])
    found, after = varints(buffer(b"".join(parts)), at[:-1])
    assert found.tolist() == values
    assert after.tolist() == at[1:].tolist()


def test_fields_of_a_message_that_is_cut_off_are_those_that_are_whole() -> None:
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x19" + bytes(8)
    data = buffer(message)
    for size, count in ((len(message), 3), (len(message) - 1, 2), (7, 1), (0, 0)):
        found = fields(data, np.array([0]), np.array([size]))
        assert found.number.tolist() == [1, 2, 3][:count]
    whole = fields(data, np.array([0]), np.array([len(message)]))
    assert (whole.value[0], whole.length[1], int(whole.value[1])) == (150, 3, 5)
    with pytest.raises(WireError, match="wire type 7"):
        fields(buffer(b"\x0f"), np.array([0]), np.array([1]))
    with pytest.raises(WireError, match="wire type 7"):
        children(buffer(b"\x0f"), 0, 1, 1)


def test_every_event_is_what_jax_reads(recorded) -> None:
    from jax.profiler import ProfileData

    found = load(recorded.file)
    planes = list(ProfileData.from_file(str(recorded.file)).planes)
    assert [plane.name for plane in found.planes] == [plane.name for plane in planes]
    compared = 0
    for own, other in zip(found.planes, planes, strict=True):
        codes, texts = own.texts("hlo_op")
        runs = own.integers("run_id")
        for line, events in zip(own.lines, other.lines, strict=True):
            for i, event in zip(range(line.first, line.first + line.count), events.events, strict=True):
                stats = dict(event.stats)
                assert own.names[own.metadata[i]] == event.name
                assert own.duration_ps[i] == pytest.approx(event.duration_ns * 1000, abs=1)
                assert (texts[codes[i]] if codes[i] != ABSENT else None) == stats.get("hlo_op")
                assert (runs[i] if runs[i] != ABSENT else None) == stats.get("run_id")
                compared += 1
    assert compared > 1000


def test_what_stands_with_the_names_is_every_events(tmp_path) -> None:
    path = tmp_path / "worker-0.xplane.pb"
    path.write_bytes(tpu())
    plane = load(path).plane("/device:TPU:0")
    assert plane is not None
    codes, texts = plane.texts("hlo_category")
    said = {plane.names[plane.metadata[i]]: texts[codes[i]] for i in range(plane.count) if codes[i] != ABSENT}
    assert said["dot.1"] == "convolution"
    assert plane.full_names[plane.names.index("dot.1")].startswith("%dot.1 = f32[64,64]")
    assert set(plane.integers("program_id")) == {20, ABSENT}


def test_an_events_own_statistic_counts_more_than_its_names(tmp_path) -> None:
    plane = Plane("/device:TPU:0")
    row = plane.metadata("a", flops=3)
    plane.add("XLA Ops", row, 0, 1)
    plane.add("XLA Ops", row, 1, 1, flops=5)
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(space(plane))
    found = load(path).planes[0]
    assert found.integers("flops").tolist() == [3, 5]
    assert found.start_ps.tolist() == [0, 1_000_000]


@pytest.mark.parametrize(
    ("raw", "said"), [(b"", "is empty"), (b"PK\x03\x04 a zip, say", "is no profile"), (b'{"json": 1}', "is no profile")]
)
def test_what_is_no_profile_is_said(tmp_path, raw, said) -> None:
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=said):
        load(path)


def test_a_file_that_is_cut_off_gives_what_is_whole(recorded, tmp_path) -> None:
    raw = recorded.file.read_bytes()
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(raw[: len(raw) // 2])
    found = load(path)
    assert "cut off" in found.cut
    path.write_bytes(raw)
    whole = load(path)
    assert whole.cut == "" and len(found.planes) < len(whole.planes)
    assert [p.name for p in found.planes] == [p.name for p in whole.planes[: len(found.planes)]]
