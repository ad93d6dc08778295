"""What is left of machines, against the catalogue's own machines of that size and the rules of slices."""

import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.left import Unit, smaller_slices, unit_of, without


def left(mesh, chip, lost, machine=None):
    found = catalogue.machine(mesh, chip, machine)
    return without(found, lost, catalogue.family(found.family))


@pytest.mark.parametrize(
    ("mesh", "chip", "unit"),
    [
        ("16x8", "h100", Unit("host", 1, 16)),
        ("2x(8x16)", "v5e", Unit("slice", 16, 2)),      # 128 chips, 8 a host
        ("8x16", "v5e", Unit("size", 16, 1)),
        ("4x4x8", "v5p", Unit("size", 32, 1)),          # 4 a host
    ],
)
def test_in_what_a_machine_shrinks(mesh, chip, unit):
    assert unit_of(catalogue.machine(mesh, chip, None)) == unit


@pytest.mark.parametrize(
    ("mesh", "chip", "lost", "smaller"),
    [
        ("16x8", "h100", 1, "15x8"),
        ("16x8", "h100", 2, "14x8"),
        ("2x8", "mi300x", 1, "1x8"),
        ("4x(8x16)", "v5e", 1, "3x(8x16)"),
        ("2x(8x16)", "v5e", 1, "8x16"),
        ("8x16", "v5e", 1, "8x8"),
        ("8x16", "v5e", 2, "4x8"),
        ("16x16", "v6e", 1, "8x16"),
        ("4x4x8", "v5p", 1, "4x4x4"),
    ],
)
def test_what_is_left_is_the_machine_of_that_size(mesh, chip, lost, smaller):
    assert left(mesh, chip, lost) == catalogue.machine(smaller, chip, None)


@pytest.mark.parametrize(("mesh", "chip", "lost"), [("2x8", "h100", 2), ("2x(8x16)", "v5e", 2), ("1x1", "v5e", 1)])
def test_nothing_is_left(mesh, chip, lost):
    assert left(mesh, chip, lost) is None


def test_hosts_with_a_part_of_their_chips_keep_it():
    assert left("9x4", "h100", 1).shape == (8, 4)       # as a mesh "8x4" would be 4 hosts of 8


def test_the_users_share_of_memory_stays(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert left("4x8", "h100", 1).memory_fraction == 0.9


def test_domains_stay_whole_or_it_is_said():
    assert left("18x4", None, 1, "gb200-nvl72").domain_chips == 68         # the one domain, less a host
    found = left("36x4", None, 1, "gb200-nvl72")                          # 140 chips: no 72, no 68; 28 divides
    assert found.domain_chips == 28 and "not whole domains of 72" in found.notes[0]


def test_smaller_slices_are_parts_of_the_box():
    rule = catalogue.family("v5p").slices
    found = smaller_slices((4, 8, 8), rule)
    assert found[:2] == ((4, 4, 8), (4, 4, 4))          # 4x4x12 has fewer chips, too, but lies in no 4x8x8
    assert list(found) == sorted(found, key=lambda shape: -shape[0] * shape[1] * shape[2])


def test_without_a_family_there_is_no_smaller_slice():
    assert without(catalogue.machine("8x16", "v5e", None), 1, None) is None
    assert without(catalogue.machine("16x8", "h100", None), 1, None).hosts == 15


def test_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        left("2x8", "h100", -1)
