"""Units: inside jaxplan everything is SI base units (bytes, seconds, FLOP, bytes per second).

GB is 10^9 bytes and GiB is 2^30 bytes; they are converted here, by the readers and by the formatters, nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

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


MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
DURATIONS = {"ms": 1e-3, "s": 1.0, "min": MINUTE_S, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
SIZES = {"B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "PB": 10**15, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_QUANTITY = re.compile(r"^\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*$")


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `24h`, `30d`, `1.5h`, `250ms`; a number alone is seconds.

    Raises:
        ValueError: no number, or a unit that is not known.
    """
    return _quantity(text, DURATIONS, "a duration such as 90s, 15min, 24h or 30d")


def parse_bytes(text: str) -> float:
    """Bytes of `5.7TB`, `96GiB`, `96e9`; a number alone is bytes. GB is 10^9, GiB 2^30.

    Raises:
        ValueError: no number, or a unit that is not known.
    """
    return _quantity(text, SIZES, "a size such as 5.7TB, 96GiB or 96e9")


def parse_rate(text: str) -> float:
    """Bytes per second of `2GB/s` or `2e9`.

    Raises:
        ValueError: no number, or a unit that is not known.
    """
    try:
        return parse_bytes(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise ValueError("a rate such as 2GB/s or 2e9 (bytes per second)") from error


def parse_count(text: str) -> float:
    """`15T`, `15e12`, `300B`.

    Raises:
        ValueError: no number, or a unit that is not known.
    """
    return _quantity(text, COUNTS, "a number such as 15e12 or 15T")


def _quantity(text: str, units: Mapping[str, float], expected: str) -> float:
    """A number with a unit; the error says only what was expected, its caller knows what was given."""
    match = _QUANTITY.match(text)
    if match is None or (match[2] and match[2] not in units):
        raise ValueError(expected)
    return float(match[1].replace(",", "").replace("_", "")) * (units[match[2]] if match[2] else 1.0)


def format_duration(seconds: float) -> str:
    """A time in the unit in which people say it (`9.81 s`, `18.6 min`, `3.09 h`, `30.2 d`)."""
    for unit, size, least in (("d", DAY_S, 2 * DAY_S), ("h", HOUR_S, 2 * HOUR_S), ("min", MINUTE_S, 2 * MINUTE_S)):
        if abs(seconds) >= least:
            return f"{significant(seconds / size)} {unit}"
    return format_seconds(seconds)
