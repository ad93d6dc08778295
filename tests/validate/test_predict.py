"""Rows of runs that are odd or unreadable: listed with a reason, never dropped, never fatal."""

import math

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.errors import InputError
from jaxplan.machine import calibration
from jaxplan.validate.predict import predict_all
from jaxplan.validate.published import PublishedModel, read

KNOWN = calibration.load()


def row(**changes):
    return predict_all([run(**changes)], KNOWN)[0]


def test_a_run_is_predicted():
    found = row()
    assert found.predicted and found.part == "check" and found.published_step_time_s == 1.0
    assert math.fsum(found.ledger_s.values()) == pytest.approx(found.predicted_step_time_s)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chip": "abacus"}, "abacus"),
        ({"model": PublishedModel(name="secret")}, "model.layers"),
        ({"global_batch": None}, "global_batch"),
        ({"unreadable": "seq_len: input should be a valid integer"}, "seq_len"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes, reason):
    found = row(**changes)
    assert not found.predicted and reason in (found.not_predicted or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "nobody's", "precision": None, "remat": None, "dp": None, "fsdp": None},
        {"model": LLAMA_8B.model_copy(update={"head_dim": None, "kv_heads": None, "mlp_matrices": None})},
        {"tp": 8, "fsdp": 1, "pp": 3, "n_devices": 24},
        {"chip": "tpu-v5p", "n_devices": 96, "fsdp": 96},
        {"global_batch": 0.5},
        {"remat": "a policy that nobody knows", "overlap_note": "?", "interconnect": "pigeons"},
    ],
)
def test_odd_runs_are_predicted_or_say_why(changes):
    found = row(**changes)
    if found.predicted:
        assert found.predicted_step_time_s and math.isfinite(found.predicted_step_time_s)
        assert found.low_s <= found.predicted_step_time_s <= found.high_s
    else:
        assert found.not_predicted


def test_unreadable_rows_are_kept(tmp_path):
    file = tmp_path / "runs.toml"
    file.write_text('[[run]]\nid = "bad"\nchip = "h100"\nn_devices = "many"\n[[run]]\nid = "worse"\nmodel = 3\n')
    found = predict_all(read(file), KNOWN)
    assert [r.id for r in found] == ["bad", "worse"] and all(r.not_predicted for r in found)


@pytest.mark.parametrize(
    "wrong", ["seq_len = -1", "global_batch = 0", "micro_batch = 0", "tp = 0", "step_time_s = nan", "memory_gib = -3.0"]
)
def test_impossible_numbers_make_a_row_unreadable(tmp_path, wrong):
    file = tmp_path / "runs.toml"
    file.write_text(f'[[run]]\nid = "a"\nchip = "h100"\nn_devices = 8\nframework = "x"\nmodel = {{}}\n{wrong}\n')
    (found,) = predict_all(read(file), KNOWN)
    assert wrong.split()[0] in (found.not_predicted or "")


def test_axes_that_are_not_the_devices_are_said():
    assert "multiply up to 64, it has 8" in (row(tp=8).doubt or "")
    assert row().doubt is None


@pytest.mark.parametrize("text", ["", "x = 1", "[[run", "run = 3"])
def test_files_without_runs_are_refused(tmp_path, text):
    file = tmp_path / "runs.toml"
    file.write_text(text)
    with pytest.raises(InputError):
        read(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        read(tmp_path / "absent.toml")
