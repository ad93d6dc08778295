"""Rows of runs that are odd or unreadable: listed with a reason, never dropped, never fatal."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


def test_runs_together_are_runs_alone():
    """Arrays over runs equal scalars; order and company have no say. Every 25th of the published ones."""
    runs = read()
    together = predict_all(runs, KNOWN)
    assert [found.id for found in together] == [r.id for r in runs]
    for r, found in list(zip(runs, together, strict=True))[::25]:
        alone = predict_all([r], KNOWN)[0]
        assert alone.not_predicted == found.not_predicted and alone.fits == found.fits
        if found.predicted:
            figures = ("predicted_step_time_s", "low_s", "high_s", "predicted_memory_bytes", "model_flops")
            for name in figures:
                assert getattr(alone, name) == pytest.approx(getattr(found, name), rel=1e-9), (r.id, name)
            assert alone.ledger_s == pytest.approx(dict(found.ledger_s), rel=1e-9)


def test_rows_of_one_id_are_told_apart():
    first, second, third = predict_all([run(), run(global_batch=80), run(chip="abacus")], KNOWN)
    assert second.predicted_step_time_s > 5 * first.predicted_step_time_s
    assert (first.id, first.predicted, third.id, third.predicted) == ("made", True, "made", False)


def test_the_interval_of_the_calibration_is_around_every_prediction():
    for found in predict_all(read()[::10], KNOWN):
        if found.predicted:
            assert found.low_s <= found.predicted_step_time_s * KNOWN.below * (1 + 1e-9)
            assert found.high_s >= found.predicted_step_time_s * KNOWN.above * (1 - 1e-9)


def test_model_flops_are_those_of_the_tokens():
    """6 (8.03e9 - 0.53e9) + 6 x 32 x 4096 x 8192, the causal half, for one sequence of 8192 a device."""
    per_token = 6 * (8_030_261_248 - 65 * 4096 - 128256 * 4096) + 6 * 32 * 4096 * 8192
    assert row().model_flops == pytest.approx(8192 * per_token)
    assert row().tokens_per_step == 8 * 8192


def test_groups_of_the_statistics():
    mixture = LLAMA_8B.model_copy(update={"experts": 8, "top_k": 2, "moe_d_ff": 4096})
    groups = {"MaxText (JAX)": "JAX on GPU", "Megatron-Core": "Megatron", "torchtitan (FSDP2)": "FSDP"}
    for framework, group in groups.items():
        assert row(framework=framework, date="2025").group == group
        assert row(framework=framework, date="2025", model=mixture).group == "MoE"
    assert row(framework="MaxText (JAX)", chip="tpu-v5p").group == "TPU"


def test_runs_out_of_memory_have_no_published_figures():
    found = row(oom=True, memory_gib=70.0, memory_kind="max_reserved")
    assert found.oom and found.published_step_time_s is None and found.published_memory_bytes is None
    assert found.predicted_step_time_s and found.fits is not None
    ran = row(memory_gib=70.0, memory_kind="max_reserved")
    assert ran.published_memory_bytes == 70 * 2**30 and ran.memory_error is not None


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["h100-sxm", "a100-80", "mi355x", "b200"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 4]),
)
def test_physics_of_made_runs(chip, hosts, tp, pp):
    """More sequences take longer, a network that is twice as fast does not, and nothing beats the chip's peak."""
    devices = 8 * hosts
    if devices % (tp * pp):
        return
    fsdp = devices // (tp * pp)
    usual = {"chip": chip, "n_devices": devices, "fsdp": fsdp, "tp": tp, "pp": pp, "remat": "none"}
    found, more, wide, slow = predict_all(
        [
            run(**usual, global_batch=4 * fsdp),
            run(**usual, global_batch=8 * fsdp),
            run(**usual, global_batch=4 * fsdp, interconnect="1600 Gb/s per node"),
            run(**usual, global_batch=4 * fsdp, interconnect="800 Gb/s per node"),
        ],
        KNOWN,
    )
    assert found.predicted_step_time_s < more.predicted_step_time_s <= 2 * found.predicted_step_time_s * (1 + 1e-9)
    assert wide.predicted_step_time_s <= slow.predicted_step_time_s
    assert found.model_flops / found.low_s < found.peak_flops_per_s
    assert found.model_flops / found.predicted_step_time_s < 0.9 * found.peak_flops_per_s


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chip": "abacus"}, "abacus"),
        ({"model": PublishedModel(name="secret")}, "model.layers"),
        ({"global_batch": None}, "global_batch"),
        ({"unreadable": "seq_len: input should be a valid integer"}, "seq_len"),
        ({"interconnect": "8x0 Gb/s"}, "0 Gb/s"),
        ({"pp": 33, "fsdp": 1, "n_devices": 33}, "33 stages for 32 layers"),
        ({"model": LLAMA_8B.model_copy(update={"experts": 8, "top_k": 9})}, "9 of 8 experts"),
        ({"model": LLAMA_8B.model_copy(update={"experts": 8, "top_k": 2}), "ep": 16}, "16 ranks of experts for 8"),
        ({"model": LLAMA_8B.model_copy(update={"kv_heads": 64})}, "64 key heads"),
        ({"model": LLAMA_8B.model_copy(update={"first_dense_layers": 40})}, "40 dense layers"),
        ({"model": LLAMA_8B.model_copy(update={"heads": 10**6, "head_dim": 10**6})}, "1000000 heads of 1000000"),
        ({"model": LLAMA_8B.model_copy(update={"heads": 8192, "head_dim": None})}, "8192 heads on a width of 4096"),
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
        {"framework": "MaxText (JAX)", "moe_dispatch": "ragged all-to-all"},
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
    "wrong",
    [
        "seq_len = -1", "global_batch = 0", "micro_batch = 0", "tp = 0", "step_time_s = nan", "memory_gib = -3.0",
        "tp = true", "memory_gib = 1e300", "step_time_s = 5e-324", "global_batch = 1e300",
    ],
)  # fmt: skip
def test_impossible_numbers_make_a_row_unreadable(tmp_path, wrong):
    file = tmp_path / "runs.toml"
    file.write_text(f'[[run]]\nid = "a"\nchip = "h100"\nn_devices = 8\nframework = "x"\nmodel = {{}}\n{wrong}\n')
    (found,) = predict_all(read(file), KNOWN)
    assert wrong.split()[0] in (found.not_predicted or "")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_of_no_finite_time_is_no_end_of_the_others():
    beyond, usual = predict_all([run(micro_batch=1e300), run()], KNOWN)
    assert "out of its sizes" in (beyond.not_predicted or "") and usual.predicted


def test_dates_of_toml_are_read(tmp_path):
    file = tmp_path / "runs.toml"
    file.write_text('[[run]]\nid = "a"\nchip = "h100"\nn_devices = 8\nframework = "x"\nmodel = {}\ndate = 2024-05-01\n')
    (found,) = read(file)
    assert found.unreadable is None and found.date == "2024-05-01"


def test_axes_that_are_not_the_devices_are_said():
    assert "multiply up to 64, it has 8" in (row(tp=8).doubt or "")
    assert row().doubt is None


@pytest.mark.parametrize("text", ["", "x = 1", "[[run", "run = 3", "run = " + "[" * 100_000])
def test_files_without_runs_are_refused(tmp_path, text):
    file = tmp_path / "runs.toml"
    file.write_text(text)
    with pytest.raises(InputError):
        read(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        read(tmp_path / "absent.toml")


def test_a_file_nested_beyond_the_parser_is_no_toml(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(InputError, match="is no TOML"):
        read(tmp_path / "deep.toml")


def test_a_byte_order_mark_is_no_part_of_the_first_table(tmp_path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf" + b'[[run]]\nid = "a"\n')
    assert [run.id for run in read(tmp_path / "bom.toml")] == ["a"]
