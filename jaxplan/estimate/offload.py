"""What a plan keeps in its hosts' memory, and what that moves between a device and its host, in term form.

Values that a rematerialization policy offloads go to the host in the forward pass and come back in the backward pass;
an offloaded optimizer's state comes for the update and goes back after it (Ren et al. 2021, arXiv:2101.06840, move the
same bytes of activations; there the update is the host's). The link is full duplex, but nothing here uses both ways at
the same time for long: a step takes the sum of both ways over the rate of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.estimate.terms import Terms, total
from jaxplan.estimate.view import View, once


@dataclass(frozen=True)
class Offload:
    """One device's share of its host.

    Attributes:
        activations: bytes that go to the host in a step, and come back: what the policy offloads, of all microbatches
            (a pipeline's bubble moves as much as a microbatch does).
        optimizer: bytes that come from the host in a step, and go back: the optimizer's state, where the plan's
            variable `offloaded` is 1.
        held: bytes in the host's memory when most are there.
    """

    activations: Terms
    optimizer: Terms
    held: Terms

    @property
    def moved(self) -> Terms:
        """Bytes of a step, both ways."""
        return (self.activations + self.optimizer) * 2.0


@once
def offload(view: View) -> Offload:
    """What every plan under the view's rules and cut keeps on the host and moves."""
    table, parts, held = view.table, [], []
    for value in view.cut.offloaded:
        dims, inside = table.values[value].dims, value in view.inside
        nbytes = table.nbytes(value) * view.cut.copies(table, value)
        parts.append(view.per_step(nbytes, dims, view.owners(dims, inside), "forward", inside))
        held.append(view.stacked(value))
    optimizer = view.optimizer_bytes.times(offloaded=1)
    return Offload(total(parts), optimizer, total(held) + optimizer)
