"""Profiles that do not tell all: one message each, and what can still be shown."""

import os
import shutil
from pathlib import Path

import pytest
from made_spaces import HLO, PERIOD, Plane, gpu, space, tpu
from recorded_program import AXES

from jaxplan.compile.hlo import parse
from jaxplan.compile.xspace import xspace
from jaxplan.errors import InputError
from jaxplan.profile.measured import measure
from jaxplan.profile.trace import read


def put(folder, raw: bytes, session: str = "one", host: str = "worker-0"):
    path = folder / "plugins" / "profile" / session / f"{host}.xplane.pb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def refused(path) -> str:
    with pytest.raises(InputError) as error:
        read(path)
    return str(error.value)


def test_nothing_there(tmp_path) -> None:
    assert "is not there" in refused(tmp_path / "nowhere")
    assert "holds no profile" in refused(tmp_path)
    assert "is empty" in refused(put(tmp_path, b""))


def test_programs_that_were_only_compiled(tmp_path) -> None:
    module = b"\x0a\x08jit_step"
    said = refused(put(tmp_path, xspace([b"\x0a\x0a" + module]), "compiled-plan"))
    assert "nothing that ran" in said
    assert "jaxplan run" in said


def test_a_profile_in_which_nothing_ran(tmp_path) -> None:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    jax.profiler.stop_trace()
    assert "has no operations" in refused(tmp_path)


def test_a_profile_without_the_hosts_events_loses_the_operations(tmp_path) -> None:
    import jax
    import jax.numpy as jnp

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = options.host_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    jnp.ones(8).sum().block_until_ready()
    jax.profiler.stop_trace()
    said = refused(tmp_path)
    assert "host_tracer_level of at least 1" in said


def test_a_truncated_profile_says_what_is_left(recorded, tmp_path) -> None:
    raw = recorded.file.read_bytes()
    said = refused(put(tmp_path, raw[: len(raw) // 2]))
    assert "cut off" in said
    assert "programs' HLO" in said
    # a plane that is whole is shown, whatever comes after it
    whole = space(Plane("/host:other"))
    trace = read(put(tmp_path, raw + whole[: len(whole) // 3], "two"))
    assert len(trace.steps) == len(read(recorded.file).steps)
    assert any("cut off" in note for note in trace.notes)


def test_a_gpu_that_may_not_be_profiled(tmp_path) -> None:
    plane = Plane("/device:GPU:0")
    said = refused(put(tmp_path, space(plane, said="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")))
    assert "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in said
    assert "NVreg_RestrictProfilingToAdminUsers" in said


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch) -> None:
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    put(tmp_path, tpu())
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "cannot be read: Permission denied" in refused(tmp_path)


def test_several_sessions_the_latest_with_operations_counts(recorded, tmp_path) -> None:
    first = put(tmp_path, tpu(), "first")
    second = put(tmp_path, gpu(), "second")
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    put(tmp_path, space(Plane("/host:metadata")), "compiled-plan")     # a program without a run, as a search leaves it
    trace = read(tmp_path)
    assert trace.platform == "gpu"
    assert any("second is read, not" in note and "first" in note for note in trace.notes)
    shutil.rmtree(second.parent)
    assert read(tmp_path).platform == "tpu"


def test_two_programs_in_one_profile_are_said(tmp_path) -> None:
    plane = Plane("/device:TPU:0")
    for step in range(3):
        at = step * PERIOD
        for name, begin, length in (("jit_step(1)", 0, 300), ("jit_evaluate(2)", 300, 100)):
            plane.add("XLA Modules", plane.metadata(name), at + begin, length, run_id=step)
            row = plane.metadata(f"%fusion.{begin}", hlo_category="loop fusion")
            plane.add("XLA Ops", row, at + begin, length)
    trace = read(put(tmp_path, space(plane)))
    assert trace.programs[trace.main].name == "jit_step"
    assert any("other programs than jit_step" in note and "jit_evaluate 25%" in note for note in trace.notes)
    operations = {one.name: one.seconds for one in measure(trace).operations}
    assert operations == pytest.approx({"fusion.0": 300e-6, "fusion.300": 100e-6})


def test_another_version_wrote_it(tmp_path) -> None:
    plane = Plane("/host:metadata")
    plane.own = plane.stat("jax_version", "0.4.1")
    trace = read(put(tmp_path, space(plane) + tpu()))
    assert trace.versions == {"jax_version": "0.4.1"}
    assert any(note.startswith("jax 0.4.1 wrote the profile, ") for note in trace.notes)


def test_a_step_that_compiles_is_said(tmp_path) -> None:
    host = Plane("/host:CPU")
    host.add("python", host.metadata("backend_compile_and_load"), 100, 50)
    trace = read(put(tmp_path, tpu() + space(host)))
    assert any("compiled in the profile, in step 0 (50.0 µs)" in note for note in trace.notes)


def test_an_hlo_of_another_program_is_said_and_names_still_tell(recorded) -> None:
    measured = measure(read(recorded.folder), parse(HLO.replace("jit_step", "jit_other")), AXES)
    assert any("jit_other" in note for note in measured.notes)
    assert measured.unknown > 0.5
    assert sum(entry.seconds for entry in measured.ledger) == pytest.approx(measured.step_s)
