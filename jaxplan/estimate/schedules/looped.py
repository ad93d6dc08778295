"""GPipe and circular: every forward, then every backward in reverse; the microbatches pass the devices v times.

GPipe (Huang et al. 2019, arXiv:1811.06965) is the case v = 1. Circular is the looped breadth-first schedule of
Lamy-Poirier 2022, arXiv:2211.05953: all microbatches finish one chunk before any starts the next.

Items are numbered n = chunk m + microbatch. Our JAX program scans m v + p - 1 ticks: at tick t device s works on
item n = t - s, passes the result on around the ring, and the next tick starts. Before its first item (n < 0) and
after its last (n >= m v) a device computes on values that nobody reads: the ticks of the bubble cost what the others
cost, and autodiff keeps their residuals too. `SCAN` is that program, `TEXTBOOK` what frameworks without a scan do.
"""

from __future__ import annotations

from jaxplan.estimate.schedules.form import Cell, Form, Needs, Place, Plans, Task, fill_and_drain, round_and_round


def ticks(p: Plans, m: Plans, v: Plans) -> Plans:
    """The ticks of the scan, each way: m v + p - 1."""
    return m * v + p - 1


def _item(kind: str, n: int, m: int) -> Task:
    """Item n; the chunk of an item of the bubble is negative, or v or more."""
    return Task(kind, n % m, n // m)


def _there_and_back(items: range, m: int) -> list[Cell]:
    return [(_item("F", n, m),) for n in items] + [(_item("B", n, m),) for n in reversed(items)]


def _all_held(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """Every microbatch is held, all its chunks, before the first backward: m."""
    return m + 0 * (s + p + v)


def _all_ticks_held(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """Reverse-mode differentiation of a scan keeps the residuals of each tick, a chunk's worth: (m v + p - 1) / v."""
    return ticks(p, m, v) / v + 0 * s


def _ring(p: int, m: int, v: int) -> Needs:
    """The needs of the scan: a tick needs what the ring delivered after the tick before.

    Forwards, tick t of device s reads tick t - 1 of device s - 1, and the first device that of the last. Backwards all
    is reversed; the loss, and with it the first backward tick, needs the last forward tick of every device.
    """
    last = m * v + p - 2

    def needs(device: int, task: Task) -> list[Place]:
        forward = task.kind == "F"
        tick = task.chunk * m + task.microbatch + device
        if tick == last and not forward:
            return [(other, _item("F", last - other, m)) for other in range(p)]
        if tick == 0 and forward:
            return []
        other, then = ((device - 1) % p, tick - 1) if forward else ((device + 1) % p, tick + 1)
        return [(other, _item(task.kind, then - other, m))]

    return needs


TEXTBOOK = Form(
    idle=fill_and_drain,
    in_flight=_all_held,
    orders=lambda p, m, v: [_there_and_back(range(m * v), m) for _ in range(p)],
    needs=round_and_round,
)

SCAN = Form(
    idle=fill_and_drain,
    in_flight=_all_ticks_held,
    orders=lambda p, m, v: [_there_and_back(range(-s, m * v + p - 1 - s), m) for s in range(p)],
    needs=_ring,
)
