"""Legal slices and their rings, against Google Cloud's topology tables and the scaling book's wrap rule."""

import math

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.slices import SliceRule


def rule(family):
    return catalogue.family(family).slices


@pytest.mark.parametrize("family", ["v5e", "v6e"])
def test_flat_generations(family):
    # Google Cloud documentation, TPU v5e and v6e, table of topologies
    shapes = {"x".join(map(str, s)) for s in rule(family).shapes()}
    assert shapes == {"1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"}


@pytest.mark.parametrize(
    ("family", "shape", "legal"),
    [
        ("v5e", (16, 8), True),  # any order of the axes
        ("v5e", (4, 16), False),
        ("v5p", (4, 4, 12), True),  # whole cubes
        ("v5p", (4, 4, 6), False),
        ("v5p", (2, 2, 8), False),
        ("v5p", (16, 20, 28), True),  # the whole pod of 8,960 chips (scaling book)
        ("v5p", (20, 20, 28), False),
        ("v4", (16, 16, 16), True),
        ("v4", (16, 16, 20), False),
        ("tpu7x", (16, 16, 36), True),  # 9,216 chips
        ("tpu7x", (16, 16, 40), False),
    ],
)
def test_legal(family, shape, legal):
    assert rule(family).legal(shape) is legal


@pytest.mark.parametrize(
    ("family", "shape", "wraps"),
    [
        ("v5e", (8, 16), (False, True)),
        ("v5e", (16, 16), (True, True)),
        ("v6e", (8, 8), (False, False)),
        ("v5p", (2, 4, 4), (False, False, False)),
        ("v5p", (4, 4, 4), (True, True, True)),
        ("v4", (2, 2, 4), (False, False, False)),
        ("tpu7x", (8, 4, 4), (True, True, True)),
    ],
)
def test_rings(family, shape, wraps):
    assert rule(family).wraps(shape) == wraps


def test_every_listed_slice_is_legal_and_makes_a_machine():
    for family in catalogue.families():
        for shape in family.slices.shapes() if family.slices else ():
            assert family.slices.legal(shape)
            if math.prod(shape) <= 256:
                assert family.machine(shape).chips == math.prod(shape)


def test_refusal_names_the_nearest_slices():
    with pytest.raises(InputError) as error:
        catalogue.machine("7x13")
    # the sentence of the command line's promise
    assert str(error.value).startswith(
        "7x13 is not a TPU v5e slice. Slices near 91 chips: 8x8 (64), 8x16 (128)."
    )
    assert "jaxplan catalog machines v5e" in str(error.value)


def test_a_rule_is_one_or_the_other():
    with pytest.raises(ValueError, match="wrap_length or cube"):
        SliceRule("x", ((2, 2),), 4, wrap_length=16, cube=4)
