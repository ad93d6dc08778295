"""The catalogue's own files, and what happens with a user's bad ones."""

import dataclasses
import re
import subprocess
import sys

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue, files
from jaxplan.machine.files import Figure

DATE = re.compile(r"\[20\d\d-\d\d(-\d\d)?\]$")


@pytest.mark.parametrize("chip", catalogue.chips(), ids=lambda c: c.id)
def test_every_figure_of_a_chip_has_a_source_and_a_date(chip):
    figures = {"hbm_bytes", "hbm_usable_bytes", "hbm_bytes_per_s", "link_bytes_per_s"}
    figures |= {f"matmul_flops_per_s.{k}" for k in chip.matmul_flops_per_s} | {
        f"measured.{k}" for k in chip.measured
    }
    assert figures <= set(chip.sources)
    for name, source in chip.sources.items():
        assert DATE.search(source) and len(source) > 12, (name, source)


@pytest.mark.parametrize("family", catalogue.families(), ids=lambda f: f.id)
def test_every_figure_of_a_machine_has_a_source_and_a_date(family):
    assert "dcn_bytes_per_s_per_host" in family.sources
    for flag in family.fixed["compiler_flags"]:
        assert f"compiler_flags.{flag}" in family.sources
    for name, source in family.sources.items():
        assert DATE.search(source), (name, source)


def test_the_chips_that_were_promised():
    promised = "v3 v4 v5e v5p v6e tpu7x a100-40 a100-80 a100-80-pcie h100 h100-96-hbm2e h100-pcie h800 h200 gh200"
    promised = (promised + " b200 b300 gb200 gb300 mi300x mi325x mi355x").split()
    assert {c.id for c in catalogue.chips()} == set(promised)
    assert {f.chip.id for f in catalogue.families() if f.default} == set(promised)


@pytest.mark.parametrize(
    "name",
    [
        *["tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x", "a100-40", "a100-80", "a100-80-pcie"],
        *["h100-sxm", "h100-96-hbm2e", "h100-pcie", "h200", "gh200", "h800", "b200", "gb200", "b300", "gb300"],
        *["mi300x", "mi325x", "mi355x"],
    ],
)
def test_published_names_find_a_chip_and_its_machine(name):
    chip = catalogue.chip(name)
    assert catalogue.family_of_chip(chip).chip is chip
    if chip.kind == "gpu":
        assert catalogue.machine(None, name).chips == catalogue.family_of_chip(chip).domain_chips


def test_a_chip_of_another_kind_is_refused():
    """Trainium is neither a TPU nor a GPU: its torus of NeuronCores has no model here."""
    with pytest.raises(InputError, match="unknown chip 'trainium2'"):
        catalogue.chip("trainium2")


def test_a_name_means_one_chip():
    names = [name for chip in catalogue.chips() for name in (chip.id, *chip.aliases)]
    assert len(names) == len(set(names))
    aliases = {
        "h100-sxm": "h100",
        "trillium": "v6e",
        "Ironwood": "tpu7x",
        "v5litepod": "v5e",
        "A100": "a100-80",
    }
    for alias, id in aliases.items():
        assert catalogue.chip(alias).id == id


@pytest.mark.parametrize("chip", [c for c in catalogue.chips() if c.kind == "tpu"], ids=lambda c: c.id)
def test_array_times_clock_is_the_peak(chip):
    """The compiler counts cycles; this clock must turn them into the data sheet's peak."""
    peak = chip.clock_hz * chip.matmul_flops_per_cycle * chip.devices_per_chip
    assert peak == pytest.approx(chip.flops_per_s("bfloat16"), rel=2.5e-3)  # v5e: 196.6


def test_units():
    assert Figure(value=2, unit="GB/s", source="x", date="2026-11").si == 2e9
    assert Figure(value=2, unit="GiB", source="x", date="2026-11").si == 2**31
    assert Figure(value=2, unit="us", source="x", date="2026-11").si == 2e-6


def _copy(tmp_path, name, old, new):
    text = (files.folder("meshes/chips") / f"{name}.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id = "h100"', "", ["key id is missing"]),
        ('kind = "gpu"', 'kind = "fpga"', ["key kind is 'fpga'", "tpu"]),
        ('unit = "GiB"', 'unit = "GB/h"', ["key figures.hbm_bytes.unit", "GB/s"]),
        ("links = 1", "lnks = 1", ["key lnks is not known"]),
        ("links = 1", "links = ", ["not valid TOML"]),
        ("core_count = 132", "core_count = -1", ["core_count must be positive"]),
        ("hbm_bytes_per_s", "hbm_bytes_a_s", ["key figures.hbm_bytes_a_s is not known", "hbm_bytes_per_s"]),
        ("hbm_bytes_per_s = {", "# {", ["key figures.hbm_bytes_per_s is missing"]),
        ("value = 3350", "value = nan", ["key figures.hbm_bytes_per_s.value is nan. Expected a finite number"]),
        ("value = 3350", "value = true", ["value is True. Expected a valid number"]),
        ("links = 1", "links = true", ["key links is True. Expected a valid integer"]),
        ("bfloat16 = { value = ", "bfloat16 = { value = -", ["matmul_flops_per_s.bfloat16 must be positive"]),
        ('source = "', 'sauce = "', ["source is missing"]),
    ],
)
def test_a_bad_file_is_one_message(tmp_path, old, new, words):
    path = _copy(tmp_path, "h100", old, new)
    with pytest.raises(InputError) as error:
        catalogue.chip(path)
    assert path in str(error.value)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_no_such_file():
    with pytest.raises(InputError, match=r"cannot read .*nowhere\.toml: No such file"):
        catalogue.chip("nowhere.toml")


def test_a_users_own_chip_and_machine(tmp_path):
    chip = _copy(tmp_path, "h100", "value = 3350", "value = 2400")
    machine = catalogue.machine("2x8", chip)
    assert machine.chip.hbm_bytes_per_s == 2400e9 and machine.chips == 16
    family = (
        (files.folder("meshes/machines") / "dgx-h100.toml").read_text().replace('"h100"', '"./mine.toml"')
    )
    (tmp_path / "cluster.toml").write_text(family)
    mine = catalogue.machine("4x8", None, str(tmp_path / "cluster.toml"))
    assert mine.chip.hbm_bytes_per_s == 2400e9 and mine.chips == 32


def test_neither_jax_nor_flax_is_imported():
    code = (
        "import sys\n"
        "from jaxplan.machine import catalogue\n"
        "from jaxplan.machine.placement import place\n"
        "from jaxplan.cli.catalog import rows\n"
        "place(catalogue.machine('8x16'), {'data': 1, 'fsdp': 16, 'tensor': 8}).links('fsdp')\n"
        "rows('models')\n"
        "print([m for m in ('jax', 'jaxlib', 'flax', 'optax') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "chip, rate",
    [
        *[("h100", 64e9), ("a100-80", 32e9), ("gb200", 450e9), ("v5e", 16e9), ("v6e", 32e9)],
        *[("tpu7x", None), ("b300", None)],
    ],
)
def test_link_to_the_host_is_as_published_or_unknown(chip, rate):
    """PCIe Gen5, Gen4 of NVIDIA's data sheets; GB200: NVLink-C2C; TPUs: the scaling book. Elsewhere nobody says."""
    found = catalogue.chip(chip)
    assert found.host_bytes_per_s == rate
    assert ("host_bytes_per_s" in found.sources) == (rate is not None)
    with pytest.raises(ValueError, match="host_bytes_per_s must be positive"):
        dataclasses.replace(found, host_bytes_per_s=0.0)


@pytest.mark.parametrize(
    ("id", "cores"),
    # data sheets and XLA's target files; GB200 and GB300 as XLA reads them back: 152
    [
        *[("a100-80", 108), ("a100-80-pcie", 108), ("h100", 132), ("h100-pcie", 114), ("h100-96-hbm2e", 132)],
        *[("h800", 132), ("h200", 132), ("gh200", 132), ("b200", 148), ("b300", 148), ("gb200", 152), ("gb300", 152)],
        *[("mi300x", 304), ("mi325x", 304), ("mi355x", 256)],
    ],
)
def test_cores_of_a_gpu(id, cores):
    chip = catalogue.chip(id)
    assert chip.core_count == cores and "core_count" in chip.sources and chip.mxu_size == 0


@pytest.mark.parametrize("id", ["v3", "v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_systolic_arrays_make_the_peak(id):
    """A cycle of a device is a whole number of arrays, each of two FLOP per cell (Google Cloud documentation)."""
    chip = catalogue.chip(id)
    assert chip.mxu_size == (256 if id in ("v6e", "tpu7x") else 128)
    arrays = chip.matmul_flops_per_cycle / (2 * chip.mxu_size**2)
    assert arrays == int(arrays) and arrays >= 2


def test_cores_of_a_chip_are_those_of_its_target():
    with pytest.raises(ValueError, match="core_count must be its target's 132, got 131"):
        dataclasses.replace(catalogue.chip("h100"), core_count=131)


@pytest.mark.parametrize(
    ("family", "gigabits"),
    [
        # NICs of a host: stas00/ml-engineering network/README.md, and the clusters' own descriptions
        *[("dgx-a100", 8 * 200), ("jean-zay-a100", 4 * 100), ("aws-p4d", 4 * 100), ("dgx-h100", 8 * 400)],
        *[("gcp-a3-high", 4 * 200), ("gcp-a3-mega", 8 * 200), ("llama3-h100", 8 * 400), ("aws-p5en", 16 * 200)],
        *[("dgx-b200", 8 * 400), ("aws-p6-b200", 8 * 400), ("dgx-b300", 8 * 800), ("gb200-nvl72", 4 * 400)],
    ],
)
def test_network_of_a_host(family, gigabits):
    machine = catalogue.machine(None, None, family)
    assert machine.dcn_bytes_per_s_per_host == pytest.approx(gigabits * 1e9 / 8)
