"""Users' programs: loaded whatever their form, named, and trained under a plan as they train alone."""

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.plan.record import PlanRecord, leaf_specs
from jaxplan.plan.use import LoadedPlan
from jaxplan.search.dims import roles_of_dims
from jaxplan.workload.loading import load, traced
from jaxplan.workload.shape import Workload
from jaxplan.workload.step import build
from jaxplan.workload.user import AS_WRITTEN, Reference

FOLDER = Path(__file__).parent / "user_programs"
AXES = ("data", "fsdp", "tensor")
FORMS = ("linen_lm", "nnx_vit", "conv_net")


def work_of(file: str, batch: int = 16, seq: int = 32, name: str = "program", **more) -> Workload:
    reference = Reference.parse(f"{FOLDER / file}.py:{name}" if "/" not in file else f"{file}:{name}")
    return Workload(None, batch, seq, reference=str(reference), program_hash=reference.digest(), **more)


def plan_of(work: Workload, sizes=(1, 1, 1), microbatches: int = 1, zero1: bool = False) -> Plan:
    axes = tuple(MeshAxis(n, s, n) for n, s in zip(AXES, sizes, strict=True))
    machine = SimpleNamespace(devices=int(np.prod(sizes)), name="virtual CPU devices")
    return Plan(machine, work, axes, AS_WRITTEN, microbatches, AS_WRITTEN, zero1)


def mesh_of(sizes) -> Mesh:
    return Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), AXES)


def names(table) -> dict[str, list[list[str]]]:
    return {leaf.path: [[table.dims[d].name for d in s] for s in leaf.shape] for leaf in table.parameters}


def arrays(batch):
    """Random arrays of a batch's shapes; ids are below every table's and classifier's size."""

    def make(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(7)
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jax.random.randint(jax.random.key(3), leaf.shape, 0, 10, leaf.dtype)
        return jax.random.normal(jax.random.key(4), leaf.shape, leaf.dtype)

    return jax.tree.map(make, batch)


def losses(step) -> list[float]:
    """Of two steps from one initial state: the second sees the first's update."""
    state, found = step.init(jax.random.key(0)), []
    for _ in range(2):
        state, metrics = step.jit(state, arrays(step.abstract_batch))
        found.append(float(metrics["loss"]))
    return found


@pytest.fixture(scope="module", params=FORMS)
def alone(request) -> tuple[Workload, list[float]]:
    work = work_of(request.param)
    return work, losses(build(plan_of(work)))


@pytest.mark.parametrize(
    ("sizes", "microbatches", "zero1"), [((2, 2, 2), 1, True), ((1, 8, 1), 1, False), ((2, 2, 2), 2, False)]
)
def test_training_is_that_of_one_device(alone, sizes, microbatches: int, zero1: bool) -> None:
    work, expected = alone
    if microbatches > 1 and not work.name.startswith("linen_lm"):
        pytest.skip("batch statistics and dropout masks are a microbatch's own")
    step = build(plan_of(work, sizes, microbatches, zero1), mesh_of(sizes))
    assert losses(step) == pytest.approx(expected, rel=1e-5)
    assert expected[0] != expected[1]


def test_names_come_from_the_boxes_and_from_the_program() -> None:
    found = names(traced(work_of("linen_lm")))
    kernel = next(dims for path, dims in found.items() if path.endswith("Dense_0.kernel"))
    assert kernel == [["layers"], ["embed"], ["mlp"]]       # `hidden` is no name that a rule knows
    assert found["Embed_0.embedding"] == [["vocab"], ["embed"]]


def test_a_network_without_attention_has_hidden_dims_and_storage() -> None:
    found = names(traced(work_of("conv_net")))
    assert found["blocks.1.a"][2:] == [["embed"], ["mlp"]]
    assert found["blocks.1.b"][2:] == [["mlp"], ["embed"]]
    assert found["blocks.1.skip"][2:] == [["embed"], ["embed"]]
    assert "mlp" not in str(found["stem"]) and "mlp" not in str(found["head"])


def test_the_example_of_the_readme_is_named() -> None:
    """24 blocks of 4 D^2 (attention) and 2 D F, with their biases and norms; the table is tied."""
    table = traced(work_of(str(FOLDER.parents[2] / "examples" / "my_model.py"), 8, 128))
    width, mlp = 1024, 4096
    block = 4 * width * width + 2 * width * mlp + (4 + 1) * width + mlp + 2 * 2 * width
    assert table.parameter_count == 24 * block + (50304 + 128) * width + 2 * width
    assert table.uncovered == {} and table.compute_dtype == "bfloat16"
    assert roles_of_dims(table)[1] == "tensor shards heads 16, mlp 4096, vocab 50304"


def test_classes_are_no_vocabulary_and_a_variable_is_no_key() -> None:
    found = names(traced(work_of("nnx_vit")))
    assert found["head.kernel"] == [["embed"], ["classes"]]
    assert found["blocks.0.attention.query.kernel"] == [["embed"], ["heads"], ["head_dim"]]


@pytest.mark.parametrize("file", FORMS)
def test_state_lies_where_the_plan_file_says(file: str) -> None:
    work, sizes = work_of(file), (2, 2, 2)
    plan = plan_of(work, sizes, zero1=True)
    step = build(plan, mesh_of(sizes))
    for specs, tree in zip(
        leaf_specs(traced(work), plan.rules, AXES),
        (step.abstract_state.params, step.abstract_state.optimizer, step.abstract_batch),
        strict=True,
    ):
        for leaf, array in zip(specs, jax.tree.leaves(tree), strict=True):
            found = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in array.sharding.spec]
            assert (leaf.shape, leaf.spec) == (array.shape, tuple(found))
            leaf.check(plan.sizes)


def loaded(file: str, sizes) -> LoadedPlan:
    work = work_of(file)
    plan = dataclasses.replace(plan_of(work, sizes, zero1=True), machine=catalogue.machine("2x4", "v5e", None))
    return LoadedPlan(PlanRecord(plan, *leaf_specs(traced(work), plan.rules, AXES)))


def test_the_plan_shards_the_real_linen_state(monkeypatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    model = importlib.import_module("linen_lm").Model()
    plan = loaded("linen_lm", (2, 2, 2))

    def init(key):
        params = model.init(key, jnp.zeros((1, 32), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    found = plan.shardings(jax.eval_shape(init, jax.random.key(0)), plan.mesh(virtual=True))
    assert found.params["Embed_0"]["embedding"].spec == P("tensor", "fsdp")
    assert found.opt_state[0].mu["Embed_0"]["embedding"].spec == P("tensor", ("fsdp", "data"))


def test_the_plan_shards_the_real_nnx_state(monkeypatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    module, plan = importlib.import_module("nnx_vit"), loaded("nnx_vit", (2, 2, 2))

    def make():
        model = module.Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    model, optimizer = plan.shardings(nnx.state(nnx.eval_shape(make)), plan.mesh(virtual=True)).values()
    assert model["blocks"][0]["up"]["kernel"].get_raw_value().spec == P("fsdp", "tensor")
    moment = optimizer["opt_state"][0]["mu"]["blocks"][0]["up"]["kernel"]
    assert moment.get_raw_value().spec == P(("fsdp", "data"), "tensor")


def write(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text("import jax, jax.numpy as jnp\nx = jnp.ones((8, 4))\n" + text)
    return str(folder / "mine.py")


MISTAKES = {
    "def program(batch, seq): return 3": "returned a int.*Expected jaxplan.Program",
    "def program(a, b, c): pass": r"takes \(a, b, c\).*Expected \(batch: int, seq: int\)",
    "program = 3": "is a int.*Expected a function",
    "def program(b, s): return 3, x, x": "its loss is a int",
    "def program(b, s): return lambda p, x: x @ p.T, x, x": "the loss is float32.8, 8.*Expected a floating",
    "def program(b, s): return lambda p, x: (p.sum(), x), x, x": "the loss returns a tuple.*Expected one scalar",
    "def program(b, s): return lambda p, x: p.sum(), x.astype(int), x": "params holds.*int32.*nnx.split",
    "def program(b, s): return lambda p, x: p.sum(), x, x[:3]": r"\[3, 4\].*Expected 8 as its leading dim",
    "def program(b, s): return lambda p, x: p.sum(), x, x, ('embed',)": r"dims \('embed',\).*Expected 2 names",
    "def program(b, s): return lambda p, x: p.sum(), x, x, None, (None, None)": "has the dim batch",
    "def program(b, s): raise SystemExit('enough')": "mine.py:program failed: SystemExit: enough",
    "import not_there\ndef program(b, s): pass": "failed: ModuleNotFoundError: No module named 'not_there'",
    "def program(b, s): return 1 +": "failed: SyntaxError",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_in_one_message(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"(?s){MISTAKES[text]}"):
        load(work_of(write(tmp_path / "a", text), 8), 8)


def test_the_traceback_is_the_users(tmp_path: Path) -> None:
    text = "def helper(p, x):\n    return (p @ x).sum()\ndef program(b, s):\n    return helper, x, x\n"
    with pytest.raises(InputError) as caught:
        load(work_of(write(tmp_path / "b", text), 8), 8)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("mine.py:program failed: TypeError: dot_general requires")
    files = [line.split('"')[1] for line in lines if line.startswith("  File")]
    assert files and set(files) == {str(tmp_path / "b" / "mine.py")}
    assert any("return (p @ x).sum()" in line for line in lines)


def test_an_edit_in_between_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c", "def program(b, s): return lambda p, x: (x @ p.T).mean(), x, x")
    work = work_of(path, 8)
    load(work, 8)
    write(tmp_path / "c", "def program(b, s): return lambda p, x: (x @ p.T).sum(), x, x")
    with pytest.raises(InputError, match="has changed"):
        load(work, 8)
