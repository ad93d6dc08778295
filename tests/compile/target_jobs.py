"""What test_target asks workers for."""

from jaxplan.compile.target import devices
from jaxplan.machine.topology import Machine


def device_table(machine, platform):
    found = devices(Machine.from_json(machine), platform)
    return [(d.id, getattr(d, "core_on_chip", 0), list(getattr(d, "coords", []))) for d in found]
