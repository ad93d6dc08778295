"""Calibrations as files, and machines made from them."""

import json
import math

import made_calibrations as made
import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.attached import SCHEMA, Figure, between, load, written
from jaxplan.machine.attached_machine import attached_machine, calibrated
from jaxplan.machine.collectives import KINDS, seconds
from jaxplan.machine.placement import place
from jaxplan.machine.reached import (
    attention_fraction,
    matmul_fraction,
    memory_fraction,
    slowed_by_collectives,
    sustained_fraction,
)
from jaxplan.machine.topology import Machine


@pytest.mark.parametrize("found", [made.of_cpu(), made.of_gpu(), made.of_cpu(complete=False, drift=0.4)])
def test_a_file_reads_back_as_what_was_written(found, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(written(found))
    assert load(str(path)) == found
    assert load(str(path)).noisy is (found.drift > 0.15)


def test_names_with_quotes_survive(tmp_path):
    found = made.of_cpu(device_kind='A "quoted" \\ name')
    (tmp_path / "x.toml").write_text(written(found))
    assert load(str(tmp_path / "x.toml")).device_kind == found.device_kind


def test_a_name_is_looked_for_here_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"calibration mine.*jaxplan calibrate"):
        load("mine")
    folder = tmp_path / "profiling" / "calibrations"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(written(made.of_cpu()))
    assert load("mine").name == "by-hand"


GOOD = written(made.of_cpu())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema is None"),
        ("x = ", "not valid TOML"),
        (GOOD.replace(SCHEMA, "jaxplan.calibration/9"), "jaxplan.calibration/9"),
        (GOOD.replace('unit = "FLOP/s"', 'unit = "GFLOP/s"'), "GFLOP/s"),
        (GOOD.replace("cores = 2", "cores = 0"), "positive"),
        (GOOD.replace("cores = 2\n", ""), "cores"),
        (GOOD.replace('date = "2026-01-02"', 'date = "2026-01-02"\nfurther = 1'), "further"),
        (GOOD.replace("value = 1e-11", "value = -1.0"), "expected a positive value"),
        (GOOD.replace("value = 1e-11", "value = nan"), "expected a positive value"),
        (GOOD.replace("value = 1e-11", 'value = "fast"'), "no calibration"),
        (GOOD[: GOOD.index("[[figure]]")], "expected figures"),
        ('schema = "jaxplan.calibration/1"\nfigure = 3', "no calibration"),
    ],
)
def test_a_bad_file_is_told_in_one_message(text, said, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=str(said)) as caught:
        load(str(path))
    assert "bad.toml" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        load(str(tmp_path / "bad.toml"))


def test_between_measured_counts_values_are_straight_in_the_logarithm():
    assert between({1: 10.0, 4: 30.0}, 2) == pytest.approx(20.0)
    assert between({1: 10.0, 4: 30.0}, 1) == 10.0
    assert between({2: 10.0}, 1) == 10.0 and between({2: 10.0}, 8) == 10.0


def test_more_devices_than_measured_share_the_same_cores():
    found = made.of_cpu()
    assert found.rate("memory", 8) == pytest.approx(found.rate("memory", 4) / 2)
    assert found.rate("launch", 8) == pytest.approx(found.rate("launch", 4) * 2)
    assert found.prices(8)["arithmetic"] == pytest.approx(2 * found.prices(4)["arithmetic"])
    assert found.rate("no such", 1) is None and found.collective("no such", 4, 2) is None


def test_units_and_counts_of_figures_are_proven():
    with pytest.raises(ValueError, match="unit"):
        Figure("rate", "memory", 1.0, "GB/s", 1)
    with pytest.raises(ValueError, match="group"):
        Figure("collective", "all-gather start", 1.0, "s", 2, 4)


def test_cpu_devices_share_the_host():
    machine = attached_machine(made.of_cpu(), 4)
    assert (machine.devices, machine.kind, machine.platform) == (4, "cpu", "cpu")
    assert machine.device_hbm_bytes == 2**34 // 4
    assert machine.device_flops_per_s("float32") == pytest.approx(1e11 / 4)
    assert sustained_fraction(machine, "float32") == pytest.approx(0.8)
    assert matmul_fraction(machine, "float32") == pytest.approx(1.0)
    assert attention_fraction(machine) == pytest.approx(5e10 / 2e11)
    assert memory_fraction(machine) == pytest.approx(1.0)
    assert "Made CPU" in machine.describe() and "by-hand" in machine.calibrated_by


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_of_cpu_devices_take_what_was_measured(kind):
    machine = attached_machine(made.of_cpu(), 4)
    both = place(machine, {"data": 2, "fsdp": 1, "tensor": 2})
    nbytes = 10**6
    assert float(seconds(kind, nbytes, both.links("tensor"))) == pytest.approx(2e-5 + 1e-9 * nbytes)
    assert float(seconds(kind, nbytes, both.links(("data", "tensor")))) == pytest.approx(4e-5 + 1e-9 * nbytes)
    assert float(seconds(kind, nbytes, both.links("fsdp"))) == 0


def test_a_machine_keeps_its_calibration_as_json():
    machine = attached_machine(made.of_cpu(), 4)
    again = Machine.from_json(json.loads(json.dumps(machine.to_json())))
    assert again == machine and again.attached == machine.attached
    assert "attached" not in catalogue.machine("1x8", "h100").to_json()


def test_a_calibrated_gpu_runs_at_measured_rates():
    plain = catalogue.machine("1x8", "h100")
    machine = calibrated(plain, made.of_gpu())
    peak = plain.device_flops_per_s("bfloat16")
    assert sustained_fraction(machine, "bfloat16") == pytest.approx(0.6 * 989.4e12 / peak)
    assert attention_fraction(machine) == pytest.approx(0.5 * 989.4e12 / peak)
    assert memory_fraction(machine) == pytest.approx(2.5e12 / plain.device_hbm_bytes_per_s)
    assert machine.chip.collective_fraction == pytest.approx(0.5)
    assert slowed_by_collectives(machine) == pytest.approx(0.1) and slowed_by_collectives(plain) == 0.189
    assert machine.dcn_fraction == plain.dcn_fraction       # one host says nothing of the network between hosts
    links = place(machine, {"data": 1, "fsdp": 8, "tensor": 1}).links("fsdp").achieved()
    assert links.all_gather_bytes_per_s == pytest.approx(0.5 * plain.chip.link_bytes_per_s)


def test_what_was_not_measured_stays_as_published():
    plain = catalogue.machine("1x8", "h100")
    few = tuple(f for f in made.of_gpu().figures if f.name == "memory")
    machine = calibrated(plain, made.of_gpu(figures=few, complete=False))
    assert sustained_fraction(machine, "bfloat16") == sustained_fraction(plain, "bfloat16")
    assert machine.chip.collective_fraction == plain.chip.collective_fraction


@pytest.mark.parametrize("found", [made.of_cpu(), made.of_gpu("NVIDIA A100-SXM4-80GB")])
def test_another_chips_calibration_is_refused(found):
    with pytest.raises(InputError, match=r"was made on .*; the machine h100 1x8 has"):
        calibrated(catalogue.machine("1x8", "h100"), found)


def test_no_cpu_devices_from_a_gpus_calibration():
    with pytest.raises(InputError, match="one of a CPU"):
        attached_machine(made.of_gpu(), 4)
    with pytest.raises(InputError, match="at least 1"):
        attached_machine(made.of_cpu(), 0)
    interrupted = made.of_cpu(figures=tuple(f for f in made.of_cpu().figures if f.name != "memory"))
    with pytest.raises(InputError, match="no rate 'memory'"):
        attached_machine(interrupted, 1)
    assert math.isinf(place(attached_machine(made.of_cpu(), 1), {"data": 1}).links("data").bytes_per_s)
