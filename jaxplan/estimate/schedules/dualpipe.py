"""DualPipe: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 and table 2.

Half of the microbatches enter at either end. Device s holds stage s for those that go down (chunk 0) and stage
p - 1 - s for those that go up (chunk 1), and hides the forward of one direction behind the backward of the other. The
order of a device is that of the published implementation (github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py,
`DualPipe.step`, steps 1 to 8). The table's B is a whole backward pass, here B + W.
"""

from __future__ import annotations

from collections import Counter, deque

from jaxplan.estimate.schedules.form import Cell, Form, Needs, Plans, Task, Times, along

DOWN, UP = 0, 1


def _idle(p: Plans, m: Plans, v: Plans, times: Times) -> Plans:
    """(p/2 - 1)(F&B + B - 3W), table 2, for W no longer than F or the backward pass to the inputs.

    Exact where those two are equal. Otherwise off by no more than their difference, (p/2 - 1) times: played out with
    every F and B from 1 to 8, p from 4 to 12 and m from 2p to 4p.
    """
    whole = times.backward + times.weight
    return (p / 2 - 1) * (times.overlapped + whole - 3 * times.weight)


def _busy(p: Plans, m: Plans, v: Plans, times: Times) -> Plans:
    """The work of the middle devices, which wait longest: m - p - 1 forwards are hidden behind a backward there."""
    return m * times.work - (m - p - 1) * (times.work - times.overlapped)


def _held(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """p + 1 on every device, table 2."""
    return p + 1 + 0 * (s + m + v)


def _steps(h: int, p: int, m: int) -> list[str]:
    """What the device at distance h from its end does, in its own directions: 0 away from that end, 1 towards it.

    `F0&B1` overlap, `B` is a whole backward pass, `b` one that leaves its weight gradient to the next `W`.
    """
    inner = p // 2 - h - 1
    main = ["F0&B1", "F1&B0"] * (m // 2 - p + h + 1)
    if inner == 0:
        main[:1] = ["F0", "B1"]  # the two middle devices take turns once, which shortens the bubble
    backwards = ["B1", "B0"] * (h + 1)
    return [
        *["F0"] * (2 * inner),
        *["F0", "F1"] * (h + 1),
        *["b1", "W", "F1"] * inner,
        *main,
        *["B1", "F1&B0"] * inner,
        *backwards[: h + 1],
        *(step.lower() for step in backwards[h + 1 :]),
        *["W", "b0"] * inner,
        *["W"] * (h + 1),
    ]


def _order(s: int, p: int, m: int) -> list[Cell]:
    """The cells of device s; microbatches 0 to m/2 - 1 go down, m/2 to m - 1 go up."""
    flipped = s >= p // 2
    taken: Counter[tuple[str, int]] = Counter()
    owed: deque[Task] = deque()

    def task(step: str) -> Task:
        if step == "W":
            return owed.popleft()._replace(kind="W")
        kind, way = step[0].upper(), UP if (step[1] == "1") != flipped else DOWN
        found = Task(kind, way * (m // 2) + taken[kind, way], way)
        taken[kind, way] += 1
        if step[0] == "b":
            owed.append(found)
        return found

    return [tuple(task(step) for step in cell.split("&")) for cell in _steps(min(s, p - 1 - s), p, m)]


def _both_ways(p: int, m: int, v: int) -> Needs:
    return along([[(s, DOWN) for s in range(p)], [(s, UP) for s in reversed(range(p))]])


DUALPIPE = Form(
    idle=_idle,
    in_flight=_held,
    orders=lambda p, m, v: [_order(s, p, m) for s in range(p)],
    needs=_both_ways,
    busy=_busy,
)
