"""Times of collectives against every published table of measured ones.

stas00/ml-engineering, network/README.md @744d01e: bus bandwidth is 2 (n - 1) / n bytes / time of an all-reduce,
(n - 1) / n bytes / time of the others. Fitted to these tables, and in the catalogue with their derivation: of each chip
a peak rate and one step's latency, of the network its rate and latency. Everything between is predicted.
"""

import dataclasses

import numpy as np
import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place

MIB, GB = 2**20, 1e9
SIZES = 32768 * 2.0 ** np.arange(20)  # 32 KiB to 16 GiB


def group(machine, **sizes):
    """The links of the whole machine, or of its innermost `tensor` chips."""
    tensor = sizes.get("tensor", 1)
    axes = {"data": 1, "fsdp": machine.devices // tensor, "tensor": tensor}
    return place(machine, axes).links("tensor" if tensor > 1 else "fsdp").achieved()


def bus_gb_per_s(kind, nbytes, links):
    passes = 2 if kind == "all-reduce" else 1
    return passes * (links.size - 1) / links.size * nbytes / seconds(kind, nbytes, links) / GB


# all-reduces of 8 H200 (in the switch at large sizes, NCCL 2.27), 8 B200 (NCCL 2.27.7), 32 B200 over EFA
H200 = [1.44, 2.93, 5.73, 11.74, 23.94, 39.93, 64.53, 107.16, 155.53, 219.89, 275.84, 346.51, 401.93, 436.15, 450.29]
H200 += [463.58, 469.17, 473.1, 477.45, 482.26]
B200 = [1.2, 2.17, 4.86, 9.54, 18.71, 36.06, 63.09, 76.48, 126.49, 254.96, 325.97, 400.6, 568.38, 646.11, 688.99]
B200 += [723.34, 734.97, 740.64, 839.07, 845.67]
EFA = [0.01, 0.04, 0.45, 1.33, 2.84, 5.37, 10.38, 18.9, 35.12, 64.43, 91.19, 156.74, 197.94, 229.09, 326.9]
EFA += [361.99, 372.42, 377.34, 380.39, 381.8]


@pytest.mark.parametrize(
    ("mesh", "family", "published", "first", "mean", "worst"),
    [
        ("1x8", "dgx-h200", H200, 0, 0.04, 0.15),
        # the table itself falls back at 4 and 8 MiB: 96 and 116 us, and then 115 us at 16 MiB
        ("1x8", "dgx-b200", B200, 0, 0.075, 0.30),
        # 32 to 128 KiB took 6349, 3174 and 564 us, longer than 256 KiB (382 us): of the benchmark's first executions
        ("4x8", "aws-p6-b200", EFA, 3, 0.055, 0.28),
    ],
)
def test_all_reduce_from_latency_to_bandwidth(mesh, family, published, first, mean, worst):
    links = group(catalogue.machine(mesh, None, family))
    error = np.abs(np.array(published) / bus_gb_per_s("all-reduce", SIZES, links) - 1)[first:]
    assert error.mean() < mean and error.max() < worst


@pytest.mark.parametrize(("mesh", "family"), [("1x8", "dgx-h200"), ("1x8", "dgx-b200"), ("4x8", "aws-p6-b200")])
def test_one_protocol_alone_is_further_off(mesh, family):
    """A straight line from the smallest to the largest message misses the sizes between."""
    published, first = {"dgx-h200": (H200, 0), "dgx-b200": (B200, 0), "aws-p6-b200": (EFA, 3)}[family]
    links = group(catalogue.machine(mesh, None, family))
    line = dataclasses.replace(links, two_protocols=False)
    found = [bus_gb_per_s("all-reduce", SIZES, each) for each in (links, line)]
    errors = [np.abs(np.array(published) / each - 1)[first:] for each in found]
    assert errors[0].mean() < 0.8 * errors[1].mean()


# last: the tolerance; rows that the catalogue's figures were taken from are within 2% by that
LARGE = [
    ("1x8", "dgx-a100", "all-reduce", 16384 * MIB, 234.89, 0.02),
    ("1x8", "dgx-h200", "all-gather", 16384 * MIB, 361.4, 0.02),
    ("1x8", "dgx-h200", "reduce-scatter", 16384 * MIB, 362.9, 0.02),  # not in the catalogue
    ("4x8", "aws-p5en", "all-reduce", 4096 * MIB, 364.87, 0.02),
    ("1x8", "mi300x-host", "all-reduce", 4096 * MIB, 312.91, 0.02),
]


@pytest.mark.parametrize(("mesh", "family", "kind", "nbytes", "published", "error"), LARGE)
def test_large_messages(mesh, family, kind, nbytes, published, error):
    found = bus_gb_per_s(kind, nbytes, group(catalogue.machine(mesh, None, family)))
    assert found == pytest.approx(published, rel=error)


@pytest.mark.parametrize(("chip", "published", "error"), [("h200", 367.61, 0.03), ("b200", 682.2, 0.02)])
def test_without_reduction_in_the_switch(chip, published, error):
    """Rings, as where the switch cannot add: 16 GiB over 8, the same source."""
    machine = catalogue.machine("1x8", chip)
    without = dataclasses.replace(machine, chip=dataclasses.replace(machine.chip, switch_reduce_fraction=0.0))
    assert bus_gb_per_s("all-reduce", 16384 * MIB, group(without)) == pytest.approx(published, rel=error)


def test_mi300x_pair_uses_one_link():
    """Same source: 47.67 GB/s between 2 of 8 GPUs. Predicted from the rate of 8: 44.7, 6% low."""
    links = group(catalogue.machine("1x8", "mi300x"), tensor=2)
    assert bus_gb_per_s("all-reduce", 4096 * MIB, links) == pytest.approx(47.67, rel=0.07)


# AI-Hypercomputer/accelerator-microbenchmarks, Ironwood/guides/collectives/all_gather.md: groups of 4, a device a chip,
# GB/s of transferred bytes. Rate from the last row of 2x2x1 and latency from its first are in the catalogue.
IRONWOOD = [(1572864, 71.77, 69.53), (6291456, 129.19, 127.39), (25165824, 161.9, 162.09)]
IRONWOOD += [(100663296, 174.77, 174.67), (402653184, 178.77, 178.76)]


@pytest.mark.parametrize(("nbytes", "on_2x2x1", "on_2x2x2"), IRONWOOD)
def test_ironwood_all_gather(nbytes, on_2x2x1, on_2x2x2):
    for mesh, published in (("2x2x1", on_2x2x1), ("2x2x2", on_2x2x2)):
        machine = catalogue.machine(mesh, "tpu7x")
        rest = machine.devices // 8
        links = place(machine, {"data": rest, "fsdp": 4, "tensor": 2}).links("fsdp")
        # the other device of each chip is idle, so that this one has all links
        alone = dataclasses.replace(links, all_gather_bytes_per_s=2 * links.all_gather_bytes_per_s).achieved()
        transferred = nbytes / seconds("all-gather", nbytes * 4 / 3, alone)
        assert transferred / GB == pytest.approx(published, rel=0.05)


def test_trillium_all_reduce_is_slower_than_its_links():
    """What is measured of 16x16 TPU v6e is no more than the four links of a chip give, and not less than half of it.

    Not fitted: only this one row of a reduction over two axes was published, so the links' own rate is kept.
    """
    machine = catalogue.machine("16x16", "v6e")
    found = bus_gb_per_s("all-reduce", 606076928, group(machine))
    published = machine.chip.measured["all_reduce_256_bus_bytes_per_s"] / GB
    assert 0.5 * found < published < found
