"""What users type, and the machine that they get."""

import dataclasses

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.topology import Machine


@pytest.fixture(autouse=True)
def no_memory_fraction(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)


@pytest.mark.parametrize(
    ("mesh", "chip", "machine", "name", "chips", "hosts", "domain"),
    [
        ("8x16", None, None, "v5e 8x16", 128, 16, 128),
        ("16x8", "h100", None, "h100 16x8", 128, 16, 8),
        ("8x16", "h100", None, "h100 16x8", 128, 16, 8),  # order-free: 8 is a host
        ("2048x8", "h100", None, "h100 2048x8", 16384, 2048, 8),
        ("8", "h100", None, "h100 1x8", 8, 1, 8),
        ("18x4", "gb200", None, "gb200 18x4", 72, 18, 72),
        ("36x4", "gb200", None, "gb200 36x4", 144, 36, 72),
        (None, None, "gb200-nvl72", "gb200 18x4", 72, 18, 72),
        ("4x4x8", "v5p", None, "v5p 4x4x8", 128, 32, 128),
        ("2x2", "v5p", None, "v5p 2x2x1", 4, 1, 4),
        ("v5e:4x4", None, None, "v5e 4x4", 16, 2, 16),
        # names of products: v4 and v5p count TensorCores, two a chip (Google Cloud documentation)
        ("v5p-8", None, None, "v5p 2x2x1", 4, 1, 4),
        ("v4-256", None, None, "v4 4x4x8", 128, 32, 128),
        ("v5litepod-8", None, None, "v5e 2x4", 8, 1, 8),
        ("v5e-8", None, None, "v5e 2x4", 8, 1, 8),
        ("v6e-8", None, None, "v6e 2x4", 8, 1, 8),
        (None, "v5p-8", None, "v5p 2x2x1", 4, 1, 4),
        (None, None, "v5litepod-256", "v5e 16x16", 256, 32, 256),
        ("2x2x1", "v7x", None, "tpu7x 2x2x1", 4, 1, 4),
        ("16x8", "H100", None, "h100 16x8", 128, 16, 8),
    ],
)
def test_machine(mesh, chip, machine, name, chips, hosts, domain):
    made = catalogue.machine(mesh, chip, machine)
    assert (made.name, made.chips, made.hosts, made.domain_chips) == (name, chips, hosts, domain)


@pytest.mark.parametrize(
    ("mesh", "chip", "machine", "slices", "name", "chips", "hosts", "domain"),
    [
        ("2x(8x16)", None, None, None, "v5e 2x(8x16)", 256, 32, 128),
        ("8x16", None, None, 2, "v5e 2x(8x16)", 256, 32, 128),
        ("2x(8x16)", None, None, 2, "v5e 2x(8x16)", 256, 32, 128),
        ("2 × (8 × 16)", None, None, None, "v5e 2x(8x16)", 256, 32, 128),
        ("1x(8x16)", None, None, None, "v5e 8x16", 128, 16, 128),
        (None, None, None, 3, "v5e 3x(8x16)", 384, 48, 128),
        ("v6e:4x(16x16)", None, None, None, "v6e 4x(16x16)", 1024, 128, 256),
        ("2x(v5p-8)", None, None, None, "v5p 2x(2x2x1)", 8, 2, 4),
        (None, None, "v4-256", 2, "v4 2x(4x4x8)", 256, 64, 128),
        ("2x(32)", "v5e", None, None, "v5e 2x(4x8)", 64, 8, 32),
        ("2x(2x2x1)", "tpu7x", None, None, "tpu7x 2x(2x2x1)", 8, 2, 4),
        # GPUs: as many hosts more in the same network; NVLink does not reach from one group to the other
        ("2x(16x8)", "h100", None, None, "h100 32x8", 256, 32, 8),
        ("16x8", "h100", None, 2, "h100 32x8", 256, 32, 8),
        ("2x(18x4)", "gb200", None, None, "gb200 36x4", 144, 36, 72),
        ("2x(9x4)", "gb200", None, None, "gb200 18x4", 72, 18, 36),
    ],
)
def test_slices(mesh, chip, machine, slices, name, chips, hosts, domain):
    made = catalogue.machine(mesh, chip, machine, slices)
    assert (made.name, made.chips, made.hosts, made.domain_chips) == (name, chips, hosts, domain)
    assert made.devices == chips * made.chip.devices_per_chip


def test_a_machine_says_its_mesh_as_it_is_typed():
    for mesh, chip in (("2x(8x16)", "v5e"), ("4x4x8", "v5p"), ("16x8", "h100")):
        machine = catalogue.machine(mesh, chip)
        assert machine.mesh == mesh
        assert catalogue.machine(machine.mesh, chip) == machine


def test_defaults_are_named():
    assert catalogue.machine("8x16").defaults == ("chip",)
    assert catalogue.machine().defaults == ("chip", "mesh")
    assert catalogue.machine("8x16", "v5e").defaults == ()
    assert catalogue.machine("8x16") == catalogue.machine("8x16", "v5e")


@pytest.mark.parametrize(
    ("mesh", "chip", "word"),
    [
        ("4", "h100", "4 of the 8"),
        ("16", "h100", "2 hosts of 8"),
        ("32x4", "gb200", "2 domains of 64"),
        ("4x8x8", "h100", "32 hosts"),
        ("2x(16x8)", "h100", "32 hosts: GPUs have one network"),
    ],
)
def test_ambiguity_is_said_aloud(mesh, chip, word):
    assert word in " ".join(catalogue.machine(mesh, chip).notes)


@pytest.mark.parametrize(
    ("mesh", "chip", "machine", "words"),
    [
        ("axb", None, None, ["'axb' is not a shape", "8x16"]),
        ("0x8", None, None, ["not a shape"]),
        ("8x-16", None, None, ["not a shape"]),
        ("8x16", "h999", None, ["unknown chip 'h999'", "h100"]),
        ("8x16", None, "dgx9", ["unknown machine 'dgx9'", "dgx-h100"]),
        ("9x7", "h100", None, ["9x7", "8 chips each", "8x8"]),
        ("12", "h100", None, ["12 is not a whole number", "2x8"]),
        ("100000000x8", "h100", None, ["800,000,000 chips", "1,048,576"]),
        ("4x4x4", None, None, ["not a TPU v5e slice", "--chip v5p"]),
        ("2x3", "v5e", None, ["Slices near 6 chips: 2x2 (4), 2x4 (8)"]),
        ("8x16", "v5p", None, ["not a TPU v5p slice"]),
        ("8x8", "h100", "dgx-b200", ["b200 chips, not h100"]),
        ("v5p-7", None, None, ["TensorCores"]),
        ("2x2x2", None, "v5p-8", ["4 chips", "--mesh 2x2x2 is 8"]),
        ("3x(2x2x2)", None, "v5p-8", ["4 chips", "--mesh 2x2x2 is 8"]),
        ("2x(3x4)", "v5e", None, ["3x4 is not a TPU v5e slice", "2x4 (8)"]),
        ("2x(4x4x4)", None, None, ["not a TPU v5e slice", "--chip v5p"]),
        ("0x(8x16)", None, None, ["no slices"]),
        ("2x(8x16", None, None, ["not a shape", "2x(8x16)"]),
        ("2x()", None, None, ["not a shape"]),
        ("9999x(16x16)", None, None, ["2,559,744 chips", "1,048,576"]),
    ],
)
def test_bad_input_is_one_message(mesh, chip, machine, words):
    with pytest.raises(InputError) as error:
        catalogue.machine(mesh, chip, machine)
    assert error.value.exit_code == 2
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("mesh", "slices", "word"), [("2x(8x16)", 3, "is 2 slices, and --slices is 3"), ("8x16", 0, "--slices 0")]
)
def test_slices_that_contradict_each_other(mesh, slices, word):
    with pytest.raises(InputError, match=word):
        catalogue.machine(mesh, slices=slices)


@pytest.mark.parametrize("mesh", ["1x5", "5x1", "5"])
def test_some_of_a_hosts_gpus(mesh):
    found = catalogue.machine(mesh, "h100")
    assert (found.devices, found.hosts, found.domain_chips) == (5, 1, 5)
    assert "5 of the 8 chips" in " ".join(found.notes)


def test_gpu_memory_is_a_fraction_of_what_the_driver_shows(monkeypatch):
    # 84,942,979,072 B is what the driver shows of an H100 80GB; JAX takes 0.75 of it by default: 63.7 GB
    machine = catalogue.machine("1x8", "h100")
    assert machine.device_hbm_bytes == 63_707_234_304
    assert "84,942,979,072 B x 0.75 = 63,707,234,304 B" in machine.memory_note
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    more = catalogue.machine("1x8", "h100")
    assert machine.device_hbm_bytes < 70e9 < more.device_hbm_bytes
    assert "0.9" in " ".join(more.notes)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "90%")
    with pytest.raises(InputError, match="MEM_FRACTION"):
        catalogue.machine("1x8", "h100")


def test_tpu7x_has_two_devices_a_chip():
    machine = catalogue.machine("4x4x4", "tpu7x")
    assert (machine.chips, machine.devices, machine.devices_per_host) == (64, 128, 8)
    assert machine.device_flops_per_s("bfloat16") == 1153.5e12  # Google Cloud documentation, TPU7x
    assert machine.device_hbm_bytes == int(94.75 * 2**30)


@pytest.mark.parametrize(
    "mesh_chip",
    [
        *(("8x16", "v5e"), ("4x4x4", "tpu7x"), ("16x8", "h100")),
        *(("36x4", "gb200"), ("1x1", "v5e"), ("2x(4x4)", "v5e")),
    ],
)
def test_json_round_trip(mesh_chip):
    import json

    machine = catalogue.machine(*mesh_chip)
    again = Machine.from_json(json.loads(json.dumps(machine.to_json())))
    assert again == machine and hash(again) == hash(machine)
    assert again.device_hbm_bytes == machine.device_hbm_bytes
    assert catalogue.machine("2x2", "v5e") != machine


def test_a_machine_that_was_written_without_slices_has_one():
    machine = catalogue.machine("4x4", "v5e")
    old = {key: value for key, value in machine.to_json().items() if key != "slices"}
    assert Machine.from_json(old) == machine and Machine.from_json(old).slices == 1
    assert catalogue.machine("2x(4x4)", "v5e") != machine


@pytest.mark.parametrize(("mesh", "chip", "slices"), [("4x4", "v5e", 0), ("2x8", "h100", 2)])
def test_numbers_of_slices_that_no_machine_has(mesh, chip, slices):
    with pytest.raises(ValueError, match=f"got {slices}"):
        dataclasses.replace(catalogue.machine(mesh, chip), slices=slices)


def test_unknown_dtype_is_an_error():
    with pytest.raises(ValueError, match="no matmul peak for float64"):
        catalogue.machine("8x16").device_flops_per_s("float64")
    assert catalogue.machine("1x8", "h100").device_flops_per_s("float8_e4m3fn") == 1979e12


def test_a_machine_in_one_line():
    words = "TPU v5e 8x16: 128 chips, 16.0 GiB each, ICI torus (16 wraps, 8 does not), 16 hosts"
    assert catalogue.machine("8x16").describe() == words
    two = catalogue.machine("2x(8x16)").describe()
    assert two.startswith("TPU v5e 2 slices of 8x16: 256 chips")
    assert two.endswith("32 hosts, joined by data-centre network (25 GB/s a host)")
    assert "36 hosts of 4, domains of 72" in catalogue.machine("36x4", "gb200").describe()
