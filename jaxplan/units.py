"""Units: inside jaxplan everything is SI base units (bytes, seconds, FLOP, bytes per second).

GB is 10^9 bytes and GiB is 2^30 bytes; they are converted here, by the readers and by the formatters, nowhere else.
"""

from __future__ import annotations

import math

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
TERA = 10**12
GBIT = GB / 8


def significant(value: float, digits: int = 3) -> str:
    """`value` with that many significant digits and no exponent (12.3, 1,230, 0.0123)."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits - 1 - math.floor(math.log10(abs(value)))):,.{decimals}f}"


def format_bytes(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1 (`11.9 GiB`)."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds in the unit that leaves at least 1 (`9.81 s`, `310 ms`, `12.0 µs`)."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{significant(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{significant(seconds / 1e-9)} ns"


def format_range_seconds(value: float, low: float, high: float) -> str:
    """A time with its bounds, in the value's unit (`465 ms (385 to 495)`)."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{significant(value / size)} {unit} ({significant(low / size)} to {significant(high / size)})"
    return format_seconds(value)


def format_count(count: float) -> str:
    """A large count in words that engineers use (`8.03 B`, `70.6 B`, `512`)."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if abs(count) >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:,.0f}"
