"""Rivals: the published figures, and the runs of ours that stand beside them."""

from dataclasses import replace

import pydantic
import pytest
from made_rows import ROW as MADE

from jaxplan.validate.rivals import Rival, beside, rivals

ROW = replace(
    MADE, chip="a100-80", framework="Megatron-LM", group="Megatron", series="korthikanti-22b", varies=None,
    model_flops=1e14, peak_flops_per_s=312e12, predicted_step_time_s=1.1, high_s=1.2, ledger_s={"matmul": 1.1},
    fits=True,
)  # fmt: skip


def test_published_figures():
    known = {rival.name: rival for rival in rivals()}
    # Isaev et al. 2023 (3.65% mean, 8.87% worst); SimuMax release 1.2 (5.6%); Bang et al. 2024 (14.7% across nodes)
    calculon = known["Calculon"]
    assert (calculon.mean_absolute_error, calculon.worst_absolute_error) == (0.0365, 0.0887)
    assert known["SimuMax 1.2"].mean_absolute_error == 0.056
    assert known["vTrain, up to 512"].mean_absolute_error == 0.147
    assert all(rival.source for rival in known.values())


def test_rows_beside_rivals():
    rows = [ROW, replace(ROW, series="x", devices=64), replace(ROW, series="x", devices=8, chip="h100-sxm")]
    found = {one.rival.name: one.ours for one in beside(rows)}
    assert set(found) == {"Calculon", "vTrain, one node", "vTrain, up to 512"}
    assert all(ours.count == 1 for ours in found.values())
    assert found["Calculon"].mean_absolute_error == pytest.approx(0.1)


def test_a_rival_says_which_runs():
    with pytest.raises(pydantic.ValidationError, match="series or chips"):
        Rival(name="x", source="s", mean_absolute_error=0.1, same_runs=False)
