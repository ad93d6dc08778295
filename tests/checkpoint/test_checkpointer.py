"""Saving, restoring, falling back: what is restored is equal to the bit, or refused with its reason."""

import json
import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from small_state import abstract, bits, mesh, put, state_of

from jaxplan.checkpoint import Checkpointer, Position
from jaxplan.errors import CheckpointError, InputError, NotFiniteError


def folder(saved) -> Path:
    return Path(os.fspath(saved.folder.path))


def array_file(step: Path) -> Path:
    """The file that holds the arrays; what orbax leaves under `ocdbt.process_0` is not read again."""
    return max((step / "state" / "d").iterdir(), key=lambda p: p.stat().st_size)


def flip(path: Path, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(raw))


def test_the_newest_comes_back_to_the_bit(saved, target):
    found = saved.restore(target)
    assert (found.step, found.passed_over, found.notes) == (2, (), ())
    assert bits(found.state) == bits(state_of(2))
    assert found.state["params"]["w"].sharding == target["params"]["w"].sharding


@pytest.mark.parametrize("layout", [((8, 1), ("a", None)), ((1, 4), ("b", "a")), ((2, 2), ())])
def test_another_mesh_gets_the_same_bits(saved, layout):
    sizes, spec = layout
    found = saved.restore(abstract(put(state_of(), mesh(*sizes), spec)))
    assert bits(found.state) == bits(state_of(2))
    assert "saved from mesh {'a': 2, 'b': 4}" in found.notes[0]


def test_an_empty_folder_restores_nothing(tmp_path, target):
    with Checkpointer(tmp_path / "new") as new:
        assert new.restore(target) is None


def test_a_donated_state_was_copied_before_save_returned(tmp_path):
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = put({"w": jnp.zeros((256, 256))}, mesh(2, 4))
    with Checkpointer(tmp_path) as saved:
        target = abstract(state)
        for i in range(3):
            saved.save(i, state)
            state = step(step(state))
        assert [saved.restore(target, i).state["w"][0, 0] for i in range(3)] == [0, 2, 4]


def test_orbax_alone_reads_the_files(saved, target):
    manager = ocp.CheckpointManager(folder(saved), item_names=("state", "jaxplan"))
    assert list(manager.all_steps()) == [1, 2]
    found = manager.restore(2, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
    assert bits(found.state) == bits(state_of(2))


def test_what_was_said_at_the_save_comes_back(tmp_path, target):
    place = Position(4096, shards=4, seed=7)
    with Checkpointer(tmp_path) as saved:
        saved.save(3, put(state_of(), mesh(2, 4)), loss=jnp.float32(1.5), position=place, notes={"plan": "abc"})
        found = saved.restore(target)
    assert (found.position, found.record.loss, found.record.notes) == (place, 1.5, {"plan": "abc"})
    assert found.record.versions["jax"] == jax.__version__


def test_flipped_bits_are_found_and_the_older_step_is_taken(saved, target):
    draw = random.Random(0)
    kept = folder(saved).parent / "kept"
    shutil.copytree(folder(saved) / "2", kept)
    for _ in range(8):
        file = array_file(folder(saved) / "2")
        flip(file, draw.randrange(8 * file.stat().st_size))
        found = saved.restore(target)
        assert (found.step, found.passed_over[0][0]) == (1, 2)
        assert bits(found.state) == bits(state_of(1))
        assert saved.steps() == [1]
        shutil.copytree(kept, folder(saved) / "2")


def damaged_record(step: Path) -> None:
    path = step / "jaxplan" / "metadata"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "loss": 0.25}))


def wrong_digest(step: Path) -> None:
    shutil.copytree(step.parent / "1" / "state", step / "state", dirs_exist_ok=True)


DAMAGE = {
    "empty folder": (lambda step: [shutil.rmtree(step), step.mkdir()], "empty"),
    "no record": (lambda step: shutil.rmtree(step / "jaxplan"), "no digests"),
    "no arrays": (lambda step: shutil.rmtree(step / "state"), "cannot be read"),
    "array file gone": (lambda step: array_file(step).unlink(), "cannot be read"),
    "array file cut": (lambda step: os.truncate(array_file(step), 40), "cannot be read"),
    "metadata cut": (lambda step: os.truncate(step / "state" / "_METADATA", 20), "cannot be read"),
    "record cut": (lambda step: os.truncate(step / "jaxplan" / "metadata", 20), "record"),
    "record changed": (damaged_record, "changed after it was written"),
    "record of another step": (lambda step: [shutil.rmtree(step), shutil.copytree(step.parent / "1", step)], "step 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_falls_back_and_is_moved_not_deleted(saved, target, name):
    damage, reason = DAMAGE[name]
    damage(folder(saved) / "2")
    found = saved.restore(target)
    assert found.step == 1 and bits(found.state) == bits(state_of(1))
    assert reason in found.passed_over[0][1]
    assert saved.steps() == [1]
    assert reason in (folder(saved) / "quarantine" / "2.txt").read_text()
    saved.save(2, put(state_of(2), mesh(2, 4)))     # the step can be saved again
    assert saved.restore(target).step == 2


def test_a_step_that_is_asked_for_is_that_or_an_error(saved, target):
    assert bits(saved.restore(target, 1).state) == bits(state_of(1))
    with pytest.raises(InputError, match=r"step 7 of .*one of the steps 1; 2"):
        saved.restore(target, 7)
    shutil.rmtree(folder(saved) / "2" / "state")
    with pytest.raises(CheckpointError, match="step 2: its arrays"):
        saved.restore(target, 2)
    assert saved.steps() == [1, 2]


def test_what_may_not_be_read_is_not_taken_for_damaged(saved, target, monkeypatch):
    def forbidden(self, path, args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "restore", forbidden)
    with pytest.raises(InputError, match="may not be read"):
        saved.restore(target)
    monkeypatch.undo()
    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", forbidden)
    with pytest.raises(InputError, match="may not be read"):
        saved.restore(target)
    assert saved.steps() == [1, 2]


def test_a_full_disk_does_not_stop_a_restore(saved, target, monkeypatch):
    def full(self, step, why):
        raise OSError(28, "No space left on device")

    (folder(saved) / "3").mkdir()
    monkeypatch.setattr(type(saved.folder), "quarantine", full)
    found = saved.restore(target)
    assert found.step == 2 and "step 3 cannot be moved away" in found.notes[0]
    with pytest.raises(CheckpointError, match="not rolled back"):
        saved.rollback(1)


def test_where_no_step_can_be_used_nothing_is_moved(saved, target):
    for step in (1, 2):
        flip(array_file(folder(saved) / str(step)), 4000)
    with pytest.raises(CheckpointError, match=r"no step in .*step 2: .*step 1: .*Nothing was moved"):
        saved.restore(target)
    assert saved.steps() == [1, 2]


def test_a_reader_beside_the_training_moves_nothing(saved, target):
    shutil.rmtree(folder(saved) / "2" / "state")
    (folder(saved) / "3.orbax-checkpoint-tmp").mkdir()
    with Checkpointer(folder(saved), read_only=True) as reader:
        assert reader.restore(target).step == 1
        with pytest.raises(InputError, match="read-only"):
            reader.save(9, put(state_of(), mesh(2, 4)))
    assert saved.steps() == [1, 2] and (folder(saved) / "3.orbax-checkpoint-tmp").exists()


def test_another_model_is_refused_and_its_first_arrays_named(saved, target):
    wider = {**target, "params": {**target["params"], "w": jax.ShapeDtypeStruct(
        (16, 64), jnp.float32, sharding=target["params"]["w"].sharding)}}  # fmt: skip
    with pytest.raises(InputError, match=r"params\.w is float32\[16, 32\] in the checkpoint, asked for as .*64"):
        saved.restore(wider)
    sgd = {**target, "optimizer": target["optimizer"][:1]}
    with pytest.raises(InputError, match=r"optimizer\.1 is in the checkpoint only"):
        saved.restore(sgd)
    more = {**target, "ema": target["params"]["w"]}
    with pytest.raises(InputError, match="ema is not in the checkpoint"):
        saved.restore(more)
    assert saved.steps() == [1, 2]


def test_a_dtype_changes_only_where_asked(saved, target):
    w = target["params"]["w"]
    half = {**target, "params": {**target["params"], "w": jax.ShapeDtypeStruct(
        w.shape, jnp.bfloat16, sharding=w.sharding)}}  # fmt: skip
    with pytest.raises(InputError, match=r"params\.w is float32.*cast=True"):
        saved.restore(half)
    found = saved.restore(half, cast=True).state["params"]["w"]
    expected = np.asarray(state_of(2)["params"]["w"]).astype(jnp.bfloat16)
    assert found.dtype == jnp.bfloat16 and (np.asarray(found) == expected).all()
    data = jax.ShapeDtypeStruct((), jnp.uint32, sharding=target["key"].sharding)
    with pytest.raises(InputError, match=r"key is key<fry>\[\] in the checkpoint, asked for as uint32"):
        saved.restore({**target, "key": data}, cast=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_becomes_the_last_good(saved, target, value):
    bad = put(state_of(3), mesh(2, 4))
    bad["params"]["w"] = bad["params"]["w"].at[0, 0].set(value)
    with pytest.raises(NotFiniteError, match=r"params\.w not finite. Step 2 stands"):
        saved.save(3, bad)
    with pytest.raises(NotFiniteError, match="the loss"):
        saved.save(3, put(state_of(3), mesh(2, 4)), loss=value)
    assert saved.restore(target).step == 2


def test_rollback_moves_later_steps_away_so_that_they_are_saved_again(saved, target):
    with pytest.raises(InputError, match=r"another course.*rollback"):
        saved.save(2, put(state_of(9), mesh(2, 4)))
    assert saved.rollback(1) == [2]
    saved.save(2, put(state_of(9), mesh(2, 4)))
    assert bits(saved.restore(target).state) == bits(state_of(9))
    with pytest.raises(InputError, match="step 7 to roll back to"):
        saved.rollback(7)


def test_the_same_step_with_the_same_bits_is_no_error(saved):
    saved.save(2, put(state_of(2), mesh(8, 1)))
    assert saved.steps() == [1, 2]


def test_the_newest_good_steps_are_kept(tmp_path, target):
    with Checkpointer(tmp_path, keep=2) as saved:
        (tmp_path / "7.orbax-checkpoint-tmp").mkdir()       # of a crash
        for step in range(1, 5):
            saved.save(step, put(state_of(step), mesh(2, 4)))
        saved.wait()
        assert saved.steps() == [3, 4]
        assert not (tmp_path / "7.orbax-checkpoint-tmp").exists()


def test_a_damaged_newest_step_does_not_count_as_kept(tmp_path, target):
    with Checkpointer(tmp_path, keep=1) as saved:
        saved.save(1, put(state_of(1), mesh(2, 4)))
        saved.wait()
        (tmp_path / "2").mkdir()
        saved._settle()
        assert saved.restore(target).step == 1


def test_a_full_disk_is_said_before_anything_is_written(saved, target, monkeypatch):
    monkeypatch.setattr(type(saved.folder), "room", lambda self: 100)
    with pytest.raises(CheckpointError, match=r"step 3 is not saved: .* has 100 .*left. Step 2 stands"):
        saved.save(3, put(state_of(3), mesh(2, 4)))
    monkeypatch.undo()
    saved.save(3, put(state_of(3), mesh(2, 4)))
    assert saved.restore(target).step == 3


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"step": 3}, "step of the state is a int"),
        ({"w": np.zeros(3)}, "a ndarray"),
        ({}, "no arrays"),
        ({"w": jax.ShapeDtypeStruct((2,), jnp.float32)}, "no sharding"),
    ],
)
def test_a_state_that_cannot_be_saved_safely_is_refused(saved, state, said):
    with pytest.raises(InputError, match=said):
        saved.save(3, state)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Checkpointer(tmp_path / "file" / "saved")
    with pytest.raises(InputError, match="at least 1"):
        Checkpointer(tmp_path, keep=0)
    with pytest.raises(InputError, match="there is no folder"):
        Checkpointer(tmp_path / "none", read_only=True)


def test_plain_orbax_steps_are_refused_and_left_alone(tmp_path, target):
    manager = ocp.CheckpointManager(tmp_path, item_names=("state",))
    manager.save(5, args=ocp.args.Composite(state=ocp.args.StandardSave(put(state_of(), mesh(2, 4)))))
    manager.close()
    with Checkpointer(tmp_path) as saved:
        with pytest.raises(CheckpointError, match="written by orbax alone"):
            saved.restore(target)
        assert saved.steps() == [5]


def test_layers_of_a_circular_pipeline_are_restored_in_their_own_order_only(tmp_path):
    state = {"layers": put({"w": jnp.arange(64.0).reshape(8, 8)}, mesh(2, 4))}
    with Checkpointer(tmp_path, layer_order=(0, 2, 1, 3)) as circular:
        circular.save(1, state)
        circular.wait()
        assert bits(circular.restore(abstract(state)).state) == bits(state)
    for other, words in (((), "the model's own order"), ((0, 1, 3, 2), "0; 1; 3; 2")):
        with Checkpointer(tmp_path, layer_order=other) as asked:
            with pytest.raises(InputError, match=f"holds its layers as 0; 2; 1; 3; asked for as {words}"):
                asked.restore(abstract(state))
            assert asked.steps() == [1]     # it is whole: nothing was moved
