"""What explains a gap: one rule a file, each saying when it applies and what to change."""

from __future__ import annotations

from jaxplan.profile.findings import (
    extra_collectives,
    host,
    idle,
    slow_compute,
    slow_links,
    stragglers,
    unhidden,
    unsteady,
)

RULES = (
    host.find,
    idle.find,
    stragglers.find,
    slow_compute.find,
    slow_links.find,
    unhidden.find,
    extra_collectives.find,
    unsteady.find,
)
