"""Values as JSON can say them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def finite(value: Any) -> Any:
    """The same with null for what is not finite, which JSON has no word for, and with no numbers of NumPy's.

    Not finite are the intensity of work that touches no memory and the ratio of an interval that begins at 0.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
