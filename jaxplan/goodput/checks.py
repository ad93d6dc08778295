"""What every figure of this package must be: finite, and positive or at least not negative."""

from __future__ import annotations

import math


def positive(**values: float) -> None:
    """Raises ValueError, naming the value, where one is not a finite number above 0."""
    for name, value in values.items():
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a positive number, got {value}")


def not_negative(**values: float) -> None:
    """Raises ValueError, naming the value, where one is not a finite number of at least 0."""
    for name, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a number of at least 0, got {value}")


def share(**values: float) -> None:
    """Raises ValueError, naming the value, where one is not strictly between 0 and 1."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {value}")
