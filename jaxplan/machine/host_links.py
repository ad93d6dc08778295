"""The links of a group of virtual CPU devices: the host's memory, as it was measured. No JAX here."""

from __future__ import annotations

from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.links import Links

#: Bytes that one device of n sends in a collective of one byte, as `machine.collectives` counts them.
RING = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1}
SLOWEST_BYTE_S = 1e-9       # chosen: where a fit found no price for a byte, none is as slow


def host_links(calibration: AttachedCalibration, devices: int, size: int) -> Links:
    """The links of a group of `size` of so many devices, all groups at work at once.

    Raises:
        ValueError: the calibration has no collectives.
    """
    rates, starts = {}, {}
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"):
        start = calibration.collective(f"{kind} start", devices, size)
        byte = calibration.collective(f"{kind} byte", devices, size)
        if start is None or byte is None:
            raise ValueError(f"{calibration.name} has no {kind} of {size} devices: calibrate with several devices")
        moved = RING.get(kind, 1) * (size - 1) / size if kind in RING else 1.0
        rates[kind], starts[kind] = moved / max(byte, 1e-3 * SLOWEST_BYTE_S), start
    return Links(
        size=size,
        bytes_per_s=rates["all-gather"],
        all_gather_bytes_per_s=rates["all-gather"],
        reduce_scatter_bytes_per_s=rates["reduce-scatter"],
        all_reduce_bytes_per_s=rates["all-reduce"],
        all_to_all_bytes_per_s=rates["all-to-all"],
        permute_bytes_per_s=rates["collective-permute"],
        latency_s=max(starts["all-gather"], starts["reduce-scatter"]),
        all_reduce_latency_s=starts["all-reduce"],
        hop_latency_s=starts["collective-permute"],
        exchange_latency_s=starts["all-to-all"],
        medium=f"host memory: {size} devices",
    )
