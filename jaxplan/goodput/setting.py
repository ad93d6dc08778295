"""What the useful share of a run depends on, in seconds; one level of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.goodput.checks import not_negative, positive


@dataclass(frozen=True)
class Setting:
    """Failures, saves and restarts of one job.

    Attributes:
        mtbf_s: M, mean time between failures of the whole job, while it has all its nodes.
        block_s: C, training stops for a save. A blocking save is all of it; an asynchronous one the copy to the host.
        restart_s: R, from a failure to training again: detection, start, restore. Failures may strike in it.
        write_s: T_save, from the end of the block until a save is durable; 0 for a blocking save.
        wait_s: D, waiting for a node to be repaired where no spare is there; nothing can fail in it.
    """

    mtbf_s: float
    block_s: float
    restart_s: float
    write_s: float = 0.0
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        positive(mtbf_s=self.mtbf_s)
        not_negative(
            block_s=self.block_s, restart_s=self.restart_s, write_s=self.write_s, wait_s=self.wait_s
        )
