"""One run at a time, second by second of its story: an account of a run that shares no formula with the package."""

import random


def plain_run(
    mtbf_s: float,
    block_s: float,
    restart_s: float,
    write_s: float,
    wait_s: float,
    interval_s: float,
    failures: int,
    seed: int,
) -> tuple[float, float]:
    """(kept work, time) until that many failures, walking from event to event.

    Events: the restart is done, a save's block begins, it ends, the save in flight becomes durable. A failure cuts the
    story wherever it is; work goes back to the last durable save.
    """
    chance = random.Random(seed)
    kept = time = 0.0
    for _ in range(failures):
        left = chance.expovariate(1 / mtbf_s)       # until the next failure
        time += left + wait_s
        if left < restart_s:
            continue
        left -= restart_s
        work, snapshots = 0.0, []                   # (work in it, seconds until it is durable)
        while True:
            for length, is_block in ((interval_s, False), (block_s, True)):
                passed = min(left, length)
                snapshots = [(held, until - passed) for held, until in snapshots]
                kept_now = [held for held, until in snapshots if until <= 0]
                if kept_now:
                    kept += max(kept_now)
                    work -= max(kept_now)
                    snapshots = [(held - max(kept_now), until) for held, until in snapshots if until > 0]
                left -= passed
                if left <= 0:
                    break
                if is_block:
                    snapshots.append((work, write_s))
                else:
                    work += interval_s
            if left <= 0:
                break
    return kept, time
