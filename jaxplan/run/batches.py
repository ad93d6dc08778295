"""The batches of a run: token ids for the decoder, made-up arrays for users' programs. Imports JAX when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.errors import InputError
from jaxplan.plan.plan import Plan
from jaxplan.run.tokens import Tokens, made_up
from jaxplan.run.train import SEED, put

if TYPE_CHECKING:
    from jaxplan.workload.step import TrainStep

MADE_UP_SEQUENCES = 1024        # chosen: of made-up ids so many windows are kept, then they come again
BatchOf = Callable[[int, "TrainStep"], Any]


def batches(plan: Plan, steps: int, given: Tokens | None) -> tuple[BatchOf, str]:
    """What gives the batch of each step, on the devices, and a word on it.

    Raises:
        InputError: token ids for a program that has a batch of its own; ids that do not go with the model.
    """
    work = plan.workload
    if work.model is None:
        if given is not None:
            raise InputError(f"--data for {work.name}", "none: a program of yours says what its batch is")
        return _users, (
            f"The batch of {work.name} is made up: normal floats, whole numbers 0 and 1 (of which every table has an "
            "entry)."
        )
    windows = steps * work.batch
    said = ""
    if given is None:
        given = made_up(work.model.vocab, work.seq, min(windows, max(MADE_UP_SEQUENCES, work.batch)), SEED)
    else:
        said = given.check(windows, work.seq, work.model.vocab)
    return _decoders(given, work.batch, work.seq), said


def _decoders(source: Tokens, batch: int, seq: int) -> BatchOf:
    def of(number: int, step: TrainStep) -> Any:
        arrays = _inputs(source.windows(number * batch, batch, seq))
        return {name: put(array, step.abstract_batch[name].sharding) for name, array in arrays.items()}

    return of


def _inputs(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def _users(number: int, step: TrainStep) -> Any:
    import jax

    return jax.tree.map(lambda made, like: put(made, like.sharding), _made(number, step), step.abstract_batch)


def whole_batch(plan: Plan, step: TrainStep) -> Any:
    """One made-up batch in the host's memory, the same in every process."""
    work = plan.workload
    if work.model is None:
        return _made(0, step)
    return _inputs(made_up(work.model.vocab, work.seq, work.batch, SEED).windows(0, work.batch, work.seq))


def _made(number: int, step: TrainStep) -> Any:
    """Arrays of a user's batch: normal floats, whole numbers 0 and 1, keys."""
    import jax
    import jax.numpy as jnp

    generator = np.random.default_rng((SEED, number))

    def filled(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(number), leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return generator.standard_normal(leaf.shape, dtype=np.float32).astype(leaf.dtype)
        return generator.integers(0, 2, leaf.shape).astype(leaf.dtype)

    return jax.tree.map(filled, step.abstract_batch)
