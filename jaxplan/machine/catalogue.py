"""What is known: chips, machines and models. The one module that other layers ask. No JAX here."""

from __future__ import annotations

from jaxplan.machine.lookup import chip, chips, families, family, family_of_chip
from jaxplan.machine.models import model, models
from jaxplan.machine.request import machine, parse_shape

__all__ = [
    "chip",
    "chips",
    "families",
    "family",
    "family_of_chip",
    "machine",
    "model",
    "models",
    "parse_shape",
]
