"""Worked examples of How To Scale Your Model (jax-ml/scaling-book @0819a7d), through public functions."""

import math

import pytest

from jaxplan.estimate.network import Network
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import rate, seconds, start
from jaxplan.machine.placement import place
from jaxplan.plan.sharding import AXES
from jaxplan.workload.parameters import active_parameter_count

EMBED, MLP = 8192, 28672  # Llama 3 70B; the critical batch does not depend on them
DAY_S = 86400


@pytest.mark.parametrize(
    ("fsdp", "tensor", "tokens"),
    [
        (16, 256, 2550),  # training.md: C / W = 4.59e14 / 1.8e11 for a bidirectional ring on one axis of TPU v5p
        (4096, 1, 850),  # over all three axes: C / (3 W)
    ],
)
def test_critical_batch_of_fsdp_on_v5p(fsdp, tensor, tokens):
    """Tokens a chip above which the matmuls of a layer take longer than the gathers of their weights."""
    links = place(catalogue.machine("16x16x16", "v5p"), {"data": 1, "fsdp": fsdp, "tensor": tensor}).links("fsdp")
    peak = catalogue.chip("v5p").flops_per_s("bfloat16")
    assert peak / rate("all-gather", links) == pytest.approx(tokens, rel=1e-3)
    # the same from times: 4 B D F FLOP forward against two weights in bfloat16, of which 1 / n is already there
    gathered = 2 * 2 * EMBED * MLP
    moved_s = float(seconds("all-gather", gathered, links)) - start("all-gather", links)
    compute_s = 4 * tokens * EMBED * MLP / peak
    assert compute_s == pytest.approx(moved_s * fsdp / (fsdp - 1), rel=1e-3)


def test_the_estimate_prices_the_same_gather():
    """Whole plans are priced by the same 1.8e11 bytes/s."""
    machine = catalogue.machine("16x16x16", "v5p")
    sizes = {"fsdp": 16, "tensor": 256}
    network = Network(machine, [tuple(sizes.get(axis, 1) for axis in AXES)])
    byte_s = network.prices([("all-gather", ("fsdp",))]).ideal_byte_s[0, 0]
    assert byte_s == pytest.approx(15 / 16 / 1.8e11)


def test_days_of_llama_3_70b_on_v5p():
    """applied-training.md: 15e12 tokens, 6 FLOP a parameter and token, 18,823 TPU v5p at 50% MFU: about 17 days."""
    parameters = active_parameter_count(catalogue.model("llama3-70b"))
    flops = 6 * parameters * 15e12
    assert flops == pytest.approx(6.3e24, rel=0.01)
    days = flops / (18823 * catalogue.chip("v5p").flops_per_s("bfloat16") * 0.5) / DAY_S
    assert days == pytest.approx(17, abs=0.2)


def test_chips_of_llama_3_70b_on_v5p():
    """The same the other way round: at 8,960 chips (a whole pod) and 40% MFU it takes 44 days."""
    machine = catalogue.machine("16x20x28", "v5p")
    flops = 6 * active_parameter_count(catalogue.model("llama3-70b")) * 15e12
    rates = math.prod((machine.devices, machine.device_flops_per_s("bfloat16"), 0.4))
    assert flops / rates / DAY_S == pytest.approx(44, abs=0.7)
