"""`--calibration`: whose rates, for which machines, and what is left of a recorded plan."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "machine"))
import made_calibrations as made

from jaxplan.cli.calibrated import at_rates_of, machine_of
from jaxplan.cli.main import main
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.attached import written
from jaxplan.machine.attached_machine import attached_machine
from jaxplan.plan.files import read, write
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.plan.record import Part, PlanRecord, TimeLedger
from jaxplan.workload.shape import Workload

PLAN = Plan(
    machine=catalogue.machine("1x8", "h100"),
    workload=Workload(model=catalogue.model("llama3.2-1b"), batch=32, seq=8192, optimizer="adamw"),
    axes=tuple(MeshAxis(name, size, name) for name, size in (("data", 2), ("fsdp", 4), ("tensor", 1))),
    remat="full",
    microbatches=4,
    attention="cudnn",
)
RECORD = PlanRecord(
    plan=PLAN, parameters=(), optimizer=(), batch=(), time=TimeLedger((Part("matmul", 2.0, "compiled"),), 1.0, 3.0),
    evidence={"compiled": {"total_bytes": 5, "step_time_s": 2.0, "schedule": {"value_s": 2.0}}},
)  # fmt: skip


@pytest.fixture
def gpu(tmp_path):
    path = tmp_path / "gpu.toml"
    path.write_text(written(made.of_gpu()))
    return str(path)


def test_a_machine_of_the_catalogue_says_whose_rates_it_has(gpu):
    machine = machine_of("1x8", "h100", None, None, gpu)
    assert machine.attached == made.of_gpu()
    assert "rates are calibrated on NVIDIA H100 80GB HBM3, 2026-01-02, host" in machine.notes
    assert machine_of("1x8", "h100", None, None, None) == catalogue.machine("1x8", "h100")


def test_cpu_devices_come_from_a_calibration_alone(tmp_path):
    path = tmp_path / "cpu.toml"
    path.write_text(written(made.of_cpu(drift=0.5, complete=False)))
    machine = machine_of("2x2", "cpu", None, None, str(path))
    assert (machine.devices, machine.kind) == (4, "cpu")
    assert sum("noisy" in note or "interrupted" in note for note in machine.notes) == 2
    with pytest.raises(InputError, match=r"no data sheet.*jaxplan calibrate"):
        machine_of("4", "cpu", None, None, None)


def test_a_record_at_measured_rates_keeps_memory_and_drops_time(gpu):
    found = at_rates_of(RECORD, gpu)
    assert found.plan.machine.attached == made.of_gpu() and not found.stale
    assert found.time is None and found.evidence == {"compiled": {"total_bytes": 5}}
    assert at_rates_of(RECORD, None) is RECORD
    assert at_rates_of(found, gpu) is found


def test_a_plan_file_keeps_its_machines_calibration(gpu, tmp_path):
    write(at_rates_of(RECORD, gpu), tmp_path / "plan.json")
    again = read(tmp_path / "plan.json")
    assert again.plan.machine.attached == made.of_gpu() and not again.stale


def test_another_chips_calibration_is_one_message(tmp_path, capsys):
    write(RECORD, tmp_path / "plan.json")
    (tmp_path / "a100.toml").write_text(written(made.of_gpu("NVIDIA A100-SXM4-80GB")))
    for command in ("explain", "check"):
        with pytest.raises(SystemExit) as done:
            main([command, str(tmp_path / "plan.json"), "--calibration", str(tmp_path / "a100.toml")])
        assert done.value.code == 2
        said = capsys.readouterr()
        assert "was made on NVIDIA A100-SXM4-80GB" in said.err and "Traceback" not in said.err and not said.out


def test_explanations_and_checks_name_the_calibration(gpu):
    from jaxplan.report.check import check_json, check_lines

    found = at_rates_of(RECORD, gpu)
    assert "times are calibrated on NVIDIA H100" in "\n".join(check_lines(found, ()))
    assert json.loads(json.dumps(check_json(found, ())))["calibration"].endswith("2026-01-02, host")


def test_what_would_fit_instead_is_priced_at_the_same_rates(gpu):
    from jaxplan.cli.advice import _more_chips, _more_larger_chips

    calibrated_machine = machine_of("1x8", "h100", None, None, gpu)
    assert all(other.attached == made.of_gpu() for other in _more_chips(calibrated_machine))
    assert all(other.attached is None for other in _more_larger_chips(calibrated_machine))
    assert list(_more_chips(attached_machine(made.of_cpu(), 4))) == []
