"""A family of machines: one catalogue file from which any machine of its kind is made. No JAX here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jaxplan.errors import InputError
from jaxplan.machine.chip import Chip
from jaxplan.machine.slices import Shape, SliceRule
from jaxplan.machine.topology import Machine

MAX_CLUSTER_CHIPS = 2**20  # chosen: larger than any cluster there is, so larger only by mistake


def text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _check_chips(given: str, chips: int) -> None:
    if chips > MAX_CLUSTER_CHIPS:
        raise InputError(f"{given} is {chips:,} chips", f"at most {MAX_CLUSTER_CHIPS:,}")


@dataclass(frozen=True)
class Family:
    """What all machines of one kind share.

    Attributes:
        slices: TPU: the legal slices; None for a cluster of GPU hosts.
        chips_per_host, domain_chips: of a whole host and of a whole NVLink domain (TPU: unused).
        chips_per_count: chips for each unit of the number in names such as `v5p-8`.
        fixed: the fields of `Machine` that every machine of the family has alike.
    """

    id: str
    name: str
    chip: Chip
    chips_per_host: int
    domain_chips: int
    slices: SliceRule | None
    default: bool = True
    chips_per_count: float = 1.0
    count_prefixes: tuple[str, ...] = ()
    topology_prefix: str = ""
    fixed: dict = field(default_factory=dict)
    sources: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("chips_per_host", "domain_chips", "chips_per_count"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{self.id}: {name} must be positive, got {getattr(self, name)}")

    def machine(
        self, shape: Shape, notes: tuple[str, ...] = (), defaults: tuple[str, ...] = (), slices: int = 1
    ) -> Machine:
        """The machine of that physical shape, or of `slices` times that shape.

        Slices of TPUs are joined by the data-centre network; hosts of GPUs are in one network, however many there are.

        Raises:
            InputError: no such slice, hosts of another size, or more chips than any machine has.
        """
        if slices < 1:
            raise InputError(f"{slices} slices", "at least 1")
        if self.slices is not None:
            return self._slice(shape, self.slices, notes, defaults, slices)
        return self._cluster(shape, notes, defaults, slices)

    def of_chips(
        self, chips: int, notes: tuple[str, ...] = (), defaults: tuple[str, ...] = (), slices: int = 1
    ) -> Machine:
        """The machine of `slices` times that many chips: one host or part of one, whole hosts, or the most cubic
        slice.
        """
        if self.slices is None:
            return self.machine((chips,), notes, defaults, slices)
        shape = self.slices.of_chips(chips)
        if shape is None:
            self.slices.check((chips,), self.chip.name)
            raise InputError(f"{chips} chips are no {self.chip.name} slice")
        return self.machine(shape, notes, defaults, slices)

    def _slice(
        self, shape: Shape, rule: SliceRule, notes: tuple[str, ...], defaults: tuple[str, ...], slices: int
    ) -> Machine:
        shape = rule.check(shape, self.chip.name)
        chips = math.prod(shape)
        _check_chips(f"{slices}x({text(shape)})", chips * slices)
        return Machine(
            name=f"{self.chip.id} {text(shape)}" if slices == 1 else f"{self.chip.id} {slices}x({text(shape)})",
            family=self.id,
            chip=self.chip,
            shape=shape,
            wraps=rule.wraps(shape),
            chips_per_host=min(self.chips_per_host, chips),
            domain_chips=chips,
            topology_name=f"{self.topology_prefix}:{text(shape)}",
            slices=slices,
            notes=notes,
            defaults=defaults,
            sources=self.sources,
            **self._options(shape),
        )

    def _options(self, shape: Shape) -> dict:
        """The fixed fields; a slice smaller than libtpu's host says so to it (v5e 1x1)."""
        fixed = dict(self.fixed)
        if math.prod(shape) == 1:
            bounds = [1, 1, 1]
            fixed["topology_options"] = {**fixed.get("topology_options", {}), "chips_per_host_bounds": bounds}
        return fixed

    def _cluster(
        self, shape: Shape, notes: tuple[str, ...], defaults: tuple[str, ...], pods: int = 1
    ) -> Machine:
        hosts, per_host, said = self._hosts(shape)
        _check_chips(f"{pods}x({text(shape)})", hosts * per_host * pods)
        domain, said_domain = self._domain(hosts * per_host, per_host)    # no NVLink from one pod to another
        if pods > 1:
            said = (*said, f"{pods}x({hosts}x{per_host}) is read as {pods * hosts} hosts: GPUs have one network")
            hosts *= pods
        return Machine(
            name=f"{self.chip.id} {hosts}x{per_host}",
            family=self.id,
            chip=self.chip,
            shape=(hosts, per_host),
            wraps=(False, False),
            chips_per_host=per_host,
            domain_chips=domain,
            topology_name=f"{hosts}x{per_host}x1",
            notes=(*notes, *said, *said_domain),
            defaults=defaults,
            sources=self.sources,
            **self.fixed,
        )

    def _hosts(self, shape: Shape) -> tuple[int, int, tuple[str, ...]]:
        """(hosts, chips per host, what must be said aloud) of a shape given in any order."""
        whole, chips = self.chips_per_host, math.prod(shape)
        given = text(shape)
        _check_chips(given, chips)
        if whole in shape:
            said = () if len(shape) == 2 else (f"{given} is read as {chips // whole} hosts of {whole}",)
            return chips // whole, whole, said if len(shape) != 1 else ()
        if self.domain_chips in shape or (len(shape) == 1 and chips % whole == 0):
            return chips // whole, whole, (f"{given} is read as {chips // whole} hosts of {whole}",)
        first, last = (shape[0], shape[-1]) if len(shape) > 1 else (1, chips)
        # HOSTSxCHIPS as written where that divides a host, else the other way round; a side of 1 is one host
        hosts = min(first, last) if 1 in (first, last) else first if whole % last == 0 else last
        per_host = chips // hosts
        if len(shape) <= 2 and (whole % per_host == 0 or (hosts == 1 and per_host < whole)):
            part = f"{hosts} host{'s' if hosts > 1 else ''} with {per_host} of the {whole} chips"
            return hosts, per_host, (f"neither side of {given} is {whole} chips per host: read as {part}",)
        near = max(1, round(chips / whole))
        raise InputError(
            f"{given} is not a whole number of {self.name} hosts: {whole} chips each",
            f"HOSTSx{whole}",
            f"{near}x{whole} ({near * whole} chips)"
            + (f" or {near + 1}x{whole}" if near * whole < chips else ""),
        )

    def _domain(self, chips: int, per_host: int) -> tuple[int, tuple[str, ...]]:
        """(chips of one NVLink domain, what must be said aloud)."""
        if self.domain_chips <= self.chips_per_host:
            return per_host, ()
        return even_domain(chips, per_host, self.domain_chips)


def even_domain(chips: int, per_host: int, largest: int) -> tuple[int, tuple[str, ...]]:
    """(chips of one NVLink domain, what must be said aloud), where all domains have whole hosts and are equal.

    Args:
        largest: chips of a whole domain.
    """
    if chips <= largest or chips % largest == 0:
        return min(chips, largest), ()
    domain = next(n for n in range(largest, per_host - 1, -1) if n % per_host == 0 and chips % n == 0)
    return domain, (
        f"{chips} chips are not whole domains of {largest}: taken as {chips // domain} domains of {domain}",
    )
