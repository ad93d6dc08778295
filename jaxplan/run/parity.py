"""The plan's step against the same step on one device: loss, and every gradient's norm. Imports JAX when called.

What is compared is a small step of the same roles in float32 (`scale.parity_plan`), so that what is left of a
difference is the order of additions, not the rounding of bfloat16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.plan.plan import Plan
from jaxplan.run.attached import Attached, machine_of
from jaxplan.run.batches import whole_batch
from jaxplan.run.train import SEED, compile_once, put
from jaxplan.units import GIB, format_bytes

if TYPE_CHECKING:
    from jax.sharding import Mesh

#: Relative; float32's are those that every role keeps in tests (README, "What is searched").
TOLERANCES = {"float32": {"loss": 1e-5, "gradient_norm": 1e-4}, "other": {"loss": 2**-7, "gradient_norm": 2**-5}}
#: Chosen: an array whose gradient is a smaller part of all is compared with that part: some gradients are nothing but
#: rounding (of a bias on keys, which softmax does not see).
LEAST_SHARE = 1e-3
MOST_BYTES = 4 * GIB        # chosen: of a user's parameters and gradients on one device


@dataclass(frozen=True)
class Parity:
    """How far a plan's step is from one device's.

    Attributes:
        loss, gradient_norm: relative differences, of the gradients' norms the largest of all arrays'; None where
            nothing was compared. array: whose that is.
        tolerance: for both, relative.
        why_not: why nothing was compared.
        what: which step was, in words.
    """

    loss: float | None = None
    gradient_norm: float | None = None
    tolerance: dict[str, float] | None = None
    why_not: str = ""
    what: str = ""
    array: str = ""

    @property
    def checked(self) -> bool:
        return self.loss is not None

    @property
    def passed(self) -> bool:
        """Whether both are within their tolerance; a difference that is no number is not."""
        if self.loss is None or self.gradient_norm is None or self.tolerance is None:
            return False
        return self.loss <= self.tolerance["loss"] and self.gradient_norm <= self.tolerance["gradient_norm"]

    def to_json(self) -> dict[str, Any]:
        return {
            "checked": self.checked,
            "passed": self.passed,
            "loss_difference": _json(self.loss),
            "gradient_norm_difference": _json(self.gradient_norm),
            "tolerance": self.tolerance or {},
            "why_not": self.why_not,
            "what": self.what,
            "array": self.array,
        }


def _json(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def parity(plan: Plan, mesh: Mesh, compute_dtype: str) -> Parity:
    """Loss and gradients' norms of a plan's first step, on its mesh and on one device, from the same parameters.

    Args:
        plan: small enough for one device (`scale.parity_plan`).
        compute_dtype: of its matmuls' operands.
    """
    import jax

    from jaxplan.workload.step import build

    exact = compute_dtype == "float32"
    tolerance = TOLERANCES["float32" if exact else "other"]
    work = plan.workload
    sizes = f"{work.batch} x {work.seq} tokens"
    if work.model is None:
        sizes = f"a batch of {work.batch} in {plan.microbatches} parts"
    what = f"{work.name}, {sizes}, in {compute_dtype}"
    with jax.default_matmul_precision("highest"):       # a TPU would multiply float32 in bfloat16 else
        step = build(plan, mesh)
        nbytes = 2 * sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(step.abstract_state.params))
        if nbytes > MOST_BYTES:
            held = f"one device would hold {format_bytes(nbytes)} of parameters and gradients"
            return Parity(why_not=held, what=what)
        batch = whole_batch(plan, step)
        with jax.default_device(jax.local_devices()[0]):
            params, wanted = _alone(plan, batch)
        placed = jax.tree.map(
            lambda leaf, like: put(leaf, like.sharding), _stored(plan, params), step.abstract_state.params
        )
        rows = jax.tree.map(lambda leaf, like: put(leaf, like.sharding), batch, step.abstract_batch)
        both = jax.jit(_loss_and_norms(step.gradients))
        got = jax.device_get(compile_once(both.lower(placed, rows))(placed, rows))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(step.abstract_state.params)]
    return _differences(got, wanted, paths, tolerance, what)


def _differences(got: Any, wanted: Any, paths: list[str], tolerance: dict[str, float], what: str) -> Parity:
    """Both as (loss, norm of each array's gradient)."""
    loss = abs(float(got[0]) - float(wanted[0])) / abs(float(wanted[0]))
    ours, theirs = np.array(got[1], float), np.array(wanted[1], float)
    base = np.maximum(theirs, LEAST_SHARE * math.hypot(*theirs))
    apart = np.nan_to_num(np.abs(ours - theirs) / base, nan=math.inf)
    worst = int(np.argmax(apart))
    return Parity(loss, float(apart[worst]), tolerance, what=what, array=paths[worst])


def _loss_and_norms(gradients: Any) -> Any:
    import jax

    from jaxplan.workload.step import global_norm

    def both(params: Any, batch: Any) -> tuple[Any, list[Any]]:
        loss, grads = gradients(params, batch)
        return loss, [global_norm(leaf) for leaf in jax.tree.leaves(grads)]

    return both


def _alone(plan: Plan, batch: Any) -> tuple[Any, tuple[Any, list[Any]]]:
    """Parameters, loss and norms of the same step on one device."""
    import jax

    init, gradients = _users(plan) if plan.workload.model is None else _decoders(plan)

    def run(key: Any, batch: Any) -> tuple[Any, tuple[Any, list[Any]]]:
        params = init(key)
        return params, _loss_and_norms(gradients)(params, batch)

    arguments = jax.random.key(SEED), batch
    return jax.device_get(compile_once(jax.jit(run).lower(*arguments))(*arguments))


def _decoders(plan: Plan) -> tuple[Any, Any]:
    """The whole batch at once, nothing rematerialized."""
    import jax

    from jaxplan.workload.decoder import Kernels, loss_function

    work = plan.workload
    assert work.model is not None
    # a mixture's groups of tokens are the plan's, or other tokens would find no room at their experts
    kernels = Kernels(dispatch=work.dispatch, capacity_factor=work.capacity_factor, expert_groups=plan.expert_groups)
    dtypes = {"compute_dtype": work.compute_dtype, "parameter_dtype": work.parameter_dtype}
    model = loss_function(work.model, work.batch, work.seq, kernels=kernels, **dtypes)
    return model.init, jax.value_and_grad(model.loss)


def _users(plan: Plan) -> tuple[Any, Any]:
    """The plan's own microbatches: statistics of a batch and dropout differ between them and the whole."""
    from jaxplan.workload.step import build

    axes = tuple(replace(axis, size=1) for axis in plan.axes)
    machine = machine_of(Attached("cpu", "cpu", 1), plan.machine, 1)
    step = build(replace(plan, machine=machine, axes=axes), impose=False)
    return step.model.init, step.gradients


def _stored(plan: Plan, params: Any) -> Any:
    """Layers in the order in which the plan's stages store them."""
    import jax

    from jaxplan.workload.pipeline import layer_order

    if plan.stages == 1 or plan.workload.model is None:
        return params
    order = np.array(layer_order(plan.workload.model.repeated_layers, plan.stages, plan.repeats))

    def put_in_order(path: Any, leaf: Any) -> Any:
        return leaf[order] if any(getattr(key, "key", None) == "layers" for key in path) else leaf

    return jax.tree_util.tree_map_with_path(put_in_order, params)
