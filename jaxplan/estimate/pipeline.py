"""What a pipeline costs: its bubble, the activations it holds, the parameters and the time of each stage.

Two ways to the same figures: closed forms for equal stages, over any number of plans at once, and `simulate`, which
plays out one plan task by task and takes stages that differ. The symbols p, m, v, F, B, W are those of
`jaxplan.estimate.schedules.form`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxplan.estimate.schedules import looped
from jaxplan.estimate.schedules.dualpipe import DUALPIPE
from jaxplan.estimate.schedules.form import Form, Plans, Times
from jaxplan.estimate.schedules.interleaved import INTERLEAVED
from jaxplan.estimate.schedules.one_forward_one_backward import ONE_FORWARD_ONE_BACKWARD
from jaxplan.estimate.schedules.timeline import Timeline, play
from jaxplan.estimate.schedules.zero_bubble import ZERO_BUBBLE
from jaxplan.plan.schedule import reason, schedule

FORMS: Mapping[str, Form] = {
    "gpipe": looped.SCAN,
    "circular": looped.SCAN,
    "1f1b": ONE_FORWARD_ONE_BACKWARD,
    "interleaved": INTERLEAVED,
    "zero-bubble": ZERO_BUBBLE,
    "dualpipe": DUALPIPE,
}


def _form(name: str, textbook: bool) -> Form:
    return looped.TEXTBOOK if textbook and schedule(name).executable else FORMS[schedule(name).name]


def _counts(stages: ArrayLike, microbatches: ArrayLike, repeats: ArrayLike) -> tuple[Plans, Plans, Plans]:
    counts = stages, microbatches, repeats
    arrays = [np.asarray(count, dtype=float) for count in counts]
    if any(np.any(array < 1) for array in arrays):
        raise ValueError(f"stages, microbatches and repeats must be at least 1, got {counts}")
    return arrays[0], arrays[1], arrays[2]


def _idle_and_busy(
    name: str,
    stages: ArrayLike,
    microbatches: ArrayLike,
    repeats: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike,
    overlapped_s: ArrayLike | None,
) -> tuple[Plans, Plans]:
    form, counts = _form(name, textbook=False), _counts(stages, microbatches, repeats)
    forward, backward, weight = (np.asarray(seconds, dtype=float) for seconds in (forward_s, backward_s, weight_s))
    in_turn = forward + backward + weight
    overlapped = in_turn if overlapped_s is None else np.asarray(overlapped_s, dtype=float)
    times = Times(forward, backward, weight, overlapped)
    return form.idle(*counts, times), form.busy(*counts, times)


def bubble_fraction(
    name: str,
    stages: ArrayLike,
    microbatches: ArrayLike,
    repeats: ArrayLike = 1,
    forward_s: ArrayLike = 1.0,
    backward_s: ArrayLike = 1.0,
    weight_s: ArrayLike = 1.0,
    overlapped_s: ArrayLike | None = None,
) -> Plans:
    """Idle over busy time of the device that waits longest, for equal stages and free sends.

    Args:
        stages, microbatches, repeats: [plans] p, m and v, of plans that `reason` finds nothing against.
        forward_s, backward_s, weight_s: [plans] F, B and W; only their ratios matter, and those only to zero-bubble
            and dualpipe. Equal unless given, as Qi et al. 2023 (arXiv:2401.10241) have them in their comparison.
        overlapped_s: [plans] dualpipe's F&B; F + B + W, nothing gained, unless given.

    Raises:
        ValueError: there is no such schedule, or a count is below one.
    """
    idle, busy = _idle_and_busy(
        name, stages, microbatches, repeats, forward_s, backward_s, weight_s, overlapped_s
    )
    return idle / busy


def pipeline_time(
    name: str,
    stages: ArrayLike,
    microbatches: ArrayLike,
    repeats: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    overlapped_s: ArrayLike | None = None,
) -> Plans:
    """Seconds of a step, bubble and all, for equal stages and free sends; the arguments are `bubble_fraction`'s."""
    idle, busy = _idle_and_busy(
        name, stages, microbatches, repeats, forward_s, backward_s, weight_s, overlapped_s
    )
    return idle + busy


def in_flight(
    name: str,
    stages: ArrayLike,
    microbatches: ArrayLike,
    repeats: ArrayLike = 1,
    stage: ArrayLike = 0,
    textbook: bool = False,
) -> Plans:
    """The most activations that a device holds at once, in microbatches of one stage (all its chunks).

    Args:
        stages, microbatches, repeats: [plans] p, m and v.
        stage: [plans] the device; the first, which holds the most in every schedule, unless given.
        textbook: gpipe and circular as frameworks without a scan run them, instead of our program.

    Raises:
        ValueError: there is no such schedule, a count is below one, or there is no such stage.
    """
    counts, device = _counts(stages, microbatches, repeats), np.asarray(stage, dtype=float)
    if np.any(device < 0) or np.any(device >= counts[0]):
        raise ValueError(f"stage must be from 0 to stages - 1, got {stage} of {stages}")
    return _form(name, textbook).in_flight(device, *counts)


def stage_times(
    layers_s: Float[np.ndarray, " layers"], embed_s: float, loss_s: float, stages: int, repeats: int = 1
) -> Float[np.ndarray, "stages repeats"]:
    """What each chunk of each stage takes, where the first also embeds and the last also computes the loss.

    Layers are dealt out in order: chunk c of stage s is group c p + s of p v. Our own program embeds and computes
    the loss outside of the pipeline: there both are zero.

    Raises:
        ValueError: the stages times the repeats do not divide the layers.
    """
    layers = np.asarray(layers_s, dtype=float)
    if layers.size % (stages * repeats):
        raise ValueError(f"{stages} stages times {repeats} repeats must divide the layers, got {layers.size}")
    times = layers.reshape(repeats, stages, -1).sum(axis=2).T.copy()
    times[0, 0] += embed_s
    times[-1, -1] += loss_s
    return times


def stage_bytes(
    name: str,
    layers_bytes: Float[np.ndarray, " layers"],
    embed_bytes: float,
    loss_bytes: float,
    stages: int,
    repeats: int = 1,
) -> Float[np.ndarray, " stages"]:
    """Bytes of parameters on each stage; with dualpipe a device holds stage s and stage p - 1 - s.

    Raises:
        ValueError: there is no such schedule, or the stages times the repeats do not divide the layers.
    """
    return _held_by(name, stage_times(layers_bytes, embed_bytes, loss_bytes, stages, repeats)).sum(axis=1)


def _held_by(name: str, stages: Float[np.ndarray, "stages chunks"]) -> Float[np.ndarray, "devices chunks"]:
    """What the chunks of each device are, from what the chunks of each stage are."""
    return np.hstack([stages, stages[::-1]]) if schedule(name).parameter_copies == 2 else stages


def _per_chunk(seconds: ArrayLike, stages: int, repeats: int) -> Float[np.ndarray, "stages repeats"]:
    """Seconds of each chunk: those given, or an even part of each stage's."""
    given = np.asarray(seconds, dtype=float)
    if given.shape not in ((), (stages,), (stages, repeats)):
        raise ValueError(f"seconds must be one, {stages} by stage or {stages}x{repeats} by chunk, got {given.shape}")
    if not np.all(np.isfinite(given) & (given >= 0)):
        raise ValueError(f"seconds must be finite and not negative, got {given}")
    return given if given.ndim == 2 else np.broadcast_to(given / repeats, (repeats, stages)).T


def simulate(
    name: str,
    stages: int,
    microbatches: int,
    repeats: int,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    send_s: float = 0.0,
    overlapped_s: ArrayLike | None = None,
    textbook: bool = False,
) -> Timeline:
    """Plays out one step, task by task.

    Args:
        forward_s, backward_s, weight_s: F, B and W of one microbatch: one number, [stages], or [stages, repeats] as
            `stage_times` gives them. Schedules that do not split the backward pass take B + W for it.
        send_s: from the end of a task to where the next stage may use its result. Sends run beside the computation;
            only the ring of our scan makes each tick wait for them.
        overlapped_s: [stages] dualpipe's F&B on each device; the sum of the two passes unless given.
        textbook: gpipe and circular as frameworks without a scan run them, instead of our program.

    Raises:
        ValueError: the schedule does not take these counts, or the times have a wrong shape or are negative.
    """
    why_not = reason(name, stages, microbatches, repeats, layers=stages * repeats)
    if why_not:
        raise ValueError(f"{why_not}, got {stages} stages, {microbatches} microbatches, {repeats} repeats")
    kinds = {"F": forward_s, "B": backward_s, "W": weight_s}
    seconds = {kind: _held_by(name, _per_chunk(given, stages, repeats)) for kind, given in kinds.items()}
    form, counts = _form(name, textbook), (stages, microbatches, repeats)
    together = None if overlapped_s is None else _per_chunk(overlapped_s, stages, 1)[:, 0]
    return play(form.orders(*counts), form.needs(*counts), seconds, together, repeats, send_s)
