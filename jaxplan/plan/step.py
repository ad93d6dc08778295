"""A train step jitted under a plan: shardings pinned on both sides, the state donated, the compile checked.
Imports JAX when called.

The step is `train_step(state, batch, *rest) -> state` or `-> (state, *others)`. The state comes back where
it went in, so that the next step finds it there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxplan.errors import InputError
from jaxplan.units import MIB, format_bytes

if TYPE_CHECKING:
    from jax.sharding import Mesh

REPLICATED_LIMIT_BYTES = MIB  # results as small as metrics may be whole on every device
DONATED_FRACTION = (
    0.95  # of the state's bytes must be reused; what XLA pads or keeps apart is less than the rest
)
SHOWN = 5


class PlanWarning(UserWarning):
    """Something in the use of a plan is legal but costs memory or time."""


@dataclass
class PlannedStep:
    """A train step under a plan; call it as the step itself. Compiled once for each set of shapes.

    Attributes:
        function: the train step.
        mesh: where it runs.
        shardings_of: the shardings of a state, and of a batch.
        donate: whether the state's memory is reused for the new state.
    """

    function: Callable[..., Any]
    mesh: Mesh
    shardings_of: tuple[Callable[[Any], Any], Callable[[Any], Any]]
    donate: bool = True
    _compiled: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __call__(self, state: Any, batch: Any, *rest: Any) -> Any:
        """One step.

        Raises:
            InputError: as `compile` does, or the state lies elsewhere than the plan says.
        """
        key = _signature((state, batch, *rest))
        if key not in self._compiled:
            _check_placed(state, self.shardings_of[0](state))
            self._compiled[key] = self.compile(state, batch, *rest)
        return self._compiled[key](state, batch, *rest)

    def lower(self, state: Any, batch: Any, *rest: Any) -> Any:
        """The step lowered for these arguments; ShapeDtypeStructs will do.

        Raises:
            InputError: a leaf of the state or batch has no place, or the step does not return a state.
        """
        import jax

        shardings = (self.shardings_of[0](state), self.shardings_of[1](batch))
        with jax.set_mesh(self.mesh):
            result = jax.eval_shape(self.function, state, batch, *rest)
            outputs = _outputs(state, result, shardings[0])
            jitted = jax.jit(
                self.function,
                in_shardings=(*shardings, *[None] * len(rest)),
                out_shardings=outputs,
                donate_argnums=(0,) if self.donate else (),
            )
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message="Some donated buffers were not usable"
                )  # said by us, below
                return jitted.lower(state, batch, *rest)

    def compile(self, state: Any, batch: Any, *rest: Any) -> Any:
        """The step compiled, and its result's shardings compared with the plan's.

        Raises:
            InputError: a large result is replicated, or the state comes back sharded otherwise.
        """
        import jax

        lowered = self.lower(state, batch, *rest)
        with jax.set_mesh(self.mesh), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            compiled = lowered.compile()
            result = jax.eval_shape(self.function, state, batch, *rest)
        wanted = self.shardings_of[0](state)
        returned, others = _split(state, result)
        got_state, got_others = (
            (compiled.output_shardings, ()) if others is None else _halves(compiled.output_shardings)
        )
        _check_state(returned, wanted, got_state)
        _check_replicated(others, got_others, self.mesh.size)
        if self.donate:
            _check_donation(state, returned, wanted, compiled)
        return compiled


def _signature(arguments: Any) -> Any:
    import jax

    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((getattr(x, "shape", ()), str(getattr(x, "dtype", type(x)))) for x in leaves)


def _halves(result: Any) -> tuple[Any, tuple[Any, ...]]:
    return result[0], tuple(result[1:])


def _split(state: Any, result: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """The state within a step's result, and what else is returned (None: the state is the result)."""
    import jax

    wanted = jax.tree.structure(state)
    if jax.tree.structure(result) == wanted:
        return result, None
    if isinstance(result, tuple) and result and jax.tree.structure(result[0]) == wanted:
        return _halves(result)
    raise InputError(
        "the train step returns something else than the state that it was given",
        f"the new state, or (state, ...), with the structure {_short(wanted)}; "
        f"got {_short(jax.tree.structure(result))}",
    )


def _short(structure: Any) -> str:
    text = str(structure)
    return text if len(text) <= 200 else text[:197] + "..."


def _outputs(state: Any, result: Any, shardings: Any) -> Any:
    """Output shardings: the state's pinned, the others left to the compiler and checked afterwards."""
    _, others = _split(state, result)
    return shardings if others is None else (shardings, *[None] * len(others))


def _with_paths(tree: Any) -> list[tuple[str, Any]]:
    import jax

    return [
        (jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _nbytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _check_placed(state: Any, wanted: Any) -> None:
    """The state's arrays must lie where the plan says before the first step."""
    import jax

    wrong = []
    for (path, leaf), sharding in zip(_with_paths(state), jax.tree.leaves(wanted), strict=True):
        committed = isinstance(leaf, jax.Array) and leaf.committed
        if committed and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            wrong.append(f"{path} is {_spec(leaf.sharding)}, the plan says {_spec(sharding)}")
    if wrong:
        raise InputError(
            f"{len(wrong)} arrays of the state lie elsewhere than the plan says: {_listed(wrong)}",
            suggestion="making the state with jax.jit(init, out_shardings=plan.shardings(abstract_state)), "
            "or state = jax.device_put(state, plan.shardings(state))",
        )


def _check_state(returned: Any, wanted: Any, got: Any) -> None:
    import jax

    wrong = [
        f"{path} ({format_bytes(_nbytes(leaf))}) is {_spec(found)}, the plan says {_spec(sharding)}"
        for (path, leaf), sharding, found in zip(
            _with_paths(returned), jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True
        )
        if not found.is_equivalent_to(sharding, leaf.ndim)
    ]
    if wrong:
        raise InputError(f"the compiled step returns {len(wrong)} arrays sharded otherwise: {_listed(wrong)}")


def _check_replicated(others: Any, got: Any, devices: int) -> None:
    """Large results beside the state must not be whole on every device, unnoticed."""
    import jax

    if others is None or devices == 1:
        return
    large = [
        (path, leaf)
        for (path, leaf), sharding in zip(_with_paths(others), jax.tree.leaves(got), strict=True)
        if sharding.is_fully_replicated and _nbytes(leaf) > REPLICATED_LIMIT_BYTES
    ]
    if large:
        lines = [f"result{path} {leaf.shape} {format_bytes(_nbytes(leaf))}" for path, leaf in large]
        raise InputError(
            f"the compiled step returns arrays that are whole on each of {devices} devices: {_listed(lines)}",
            suggestion="returning metrics only, or jax.lax.with_sharding_constraint on them "
            "(a dim that its axes do not divide comes back replicated)",
        )


def _check_donation(state: Any, returned: Any, wanted: Any, compiled: Any) -> None:
    """Warns when the new state cannot take the old one's memory, and says why."""
    import jax

    reasons = [
        f"{path} comes in as {_show(old)} and goes out as {_show(new)}"
        for (path, old), (_, new) in zip(_with_paths(state), _with_paths(returned), strict=True)
        if hasattr(old, "dtype") and _show(old) != _show(new)
    ]
    shardings = jax.tree.leaves(wanted)
    local = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(jax.tree.leaves(returned), shardings, strict=True)
    )
    analysis = compiled.memory_analysis()
    reused = getattr(analysis, "alias_size_in_bytes", None)
    if not reasons and (reused is None or reused >= DONATED_FRACTION * local):
        return
    how = f"{format_bytes(reused)} of {format_bytes(local)}" if reused is not None else "not all"
    why = _listed(reasons) if reasons else "the compiler gives no reason"
    warnings.warn(
        f"donation is not used in full: {how} of the state's memory on a device is reused ({why})",
        PlanWarning,
        4,
    )


def _show(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _spec(sharding: Any) -> str:
    return str(getattr(sharding, "spec", sharding))


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more
