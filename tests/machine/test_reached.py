"""What steps reach of a chip's rates: the same for the estimate and for the compiled timeline."""

import pytest

from jaxplan.machine import calibration, catalogue
from jaxplan.machine.reached import attention_fraction, matmul_fraction, measured_step_s, sustained_fraction


@pytest.mark.parametrize("mesh, chip", [("1x8", "h100"), ("2x4", "v6e"), ("2x2x1", "tpu7x")])
def test_steps_reach_no_more_than_the_best_matmul(mesh, chip):
    """Published: 794.5 of 989 TFLOP/s (ml-engineering), 827.5 of 918 and 0.829 (AI-Hypercomputer/tpu-recipes)."""
    machine = catalogue.machine(mesh, chip)
    best = {"h100": 794.5 / 989, "v6e": 827.5 / 918, "tpu7x": 0.829}[chip]
    assert matmul_fraction(machine) == pytest.approx(best, rel=1e-3)
    # published runs tell the rate of a chip to a few percent only
    assert attention_fraction(machine) < sustained_fraction(machine) <= 1.05 * matmul_fraction(machine)


def test_narrow_matmuls_have_their_own_measurement():
    machine = catalogue.machine("1x8", "h100")
    assert matmul_fraction(machine, "float8") == machine.chip.measured["matmul_float8_fraction"]


def test_a_measured_step_has_the_hosts_work_and_the_slowest_host():
    known = calibration.load().values
    one, many = catalogue.machine("1x8", "h100"), catalogue.machine("64x8", "h100")
    assert measured_step_s(one, 1.0) == pytest.approx(1.0 + known["fixed_s"], rel=1e-12)
    slowest = 1 + 2.884 * known["jitter"]       # sqrt(2 ln 64) = 2.884
    assert measured_step_s(many, 1.0) == pytest.approx((1.0 + known["fixed_s"]) * slowest, rel=1e-5)
