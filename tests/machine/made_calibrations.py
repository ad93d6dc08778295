"""Calibrations made by hand, with round figures."""

from jaxplan.machine.attached import AttachedCalibration, Figure, Residual

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
PRICES = {"matmul f32 FLOPs": 1e-11, "bytes read": 1e-10, "bytes written": 2e-10, "arithmetic": 3e-10}
PRICES |= {"operations": 1e-6, "bytes taken anew": 1e-9}


def of_cpu(**changed):
    """Two cores: one device alone has twice the rates that each of four has."""
    figures = []
    for devices, slower in ((1, 1), (4, 4)):
        rates = {"matmul peak float32": 1e11, "matmul float32": 8e10, "matmul peak bfloat16": 2e11}
        rates |= {"matmul bfloat16": 1e11, "attention": 5e10}
        figures += [Figure("rate", name, value / slower, "FLOP/s", devices) for name, value in rates.items()]
        figures += [Figure("rate", "memory", 1e10 / slower, "B/s", devices)]
        figures += [Figure("rate", "launch", 1e-5 * slower, "s", devices)]
        figures += [Figure("price", name, value * slower, "s", devices) for name, value in PRICES.items()]
    for kind in COLLECTIVES:
        for group in (2, 4):
            figures.append(Figure("collective", f"{kind} start", 1e-5 * group, "s", 4, group))
            figures.append(Figure("collective", f"{kind} byte", 1e-9, "s/B", 4, group))
    about = {"name": "by-hand", "platform": "cpu", "device_kind": "Made CPU, 2 cores", "date": "2026-01-02"}
    about |= {"devices": 4, "devices_per_host": 4, "cores": 2, "memory_bytes": 2**34, "figures": tuple(figures)}
    about |= {"residuals": (Residual("kernels", 1, 9, 0.05, 0.3),), "versions": {"jax": "0.10.2"}}
    return AttachedCalibration(**{**about, **changed})


def of_gpu(kind="NVIDIA H100 80GB HBM3", **changed):
    """Eight H100 of one host: half of the links' rate, six tenths of the peak."""
    peak, link = 989.4e12, 450e9
    rates = {"matmul peak bfloat16": 0.7 * peak, "matmul bfloat16": 0.6 * peak, "attention": 0.5 * peak}
    figures = [Figure("rate", name, value, "FLOP/s", 8) for name, value in rates.items()]
    figures += [Figure("rate", "memory", 2.5e12, "B/s", 8), Figure("rate", "launch", 2e-5, "s", 8)]
    figures += [Figure("rate", "hidden", 0.9, "1", 8)]
    for kind_of in COLLECTIVES:
        for group in (2, 4, 8):
            figures.append(Figure("collective", f"{kind_of} start", 2e-5, "s", 8, group))
            figures.append(Figure("collective", f"{kind_of} byte", (group - 1) / group / (0.5 * link), "s/B", 8, group))
    about = {"name": "host", "platform": "gpu", "device_kind": kind, "date": "2026-01-02"}
    about |= {"devices": 8, "devices_per_host": 8, "cores": 64, "memory_bytes": 2**40, "figures": tuple(figures)}
    return AttachedCalibration(**{**about, **changed})
