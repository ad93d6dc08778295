"""Fitting: recovers what it should, never sees what it should not."""

import dataclasses

import numpy as np
import pytest
from made_runs import run

from jaxplan.machine import calibration
from jaxplan.machine.reached import SILICON
from jaxplan.validate import fit
from jaxplan.validate.fit import Fitting, calibrated, left_out
from jaxplan.validate.predict import predict_all
from jaxplan.validate.published import read
from jaxplan.validate.split import explains, part_of, series_of, source_of, split

KNOWN = calibration.load()


def retimed(runs, values):
    """The runs with the step times that those values of the parameters predict."""
    rows = predict_all(runs, KNOWN.with_values(values))
    times = {row.id: row.predicted_step_time_s for row in rows}
    return [r.model_copy(update={"step_time_s": times[r.id]}) for r in runs if times[r.id]]


def test_parameters_of_made_up_times_are_found_again():
    """Times made with matmuls 12% slower, attention 20% slower and memory 8% slower than the priors."""
    runs = [r for r in read() if r.framework.startswith("Composer") and not r.oom]
    priors = {p.name: p.prior for p in KNOWN.parameters}
    truth = priors | {"matmul.a100": 0.88, "attention.a100.composer": 0.30, "memory": priors["memory"] * 0.92}
    fitting = Fitting(retimed(runs, truth), KNOWN.parameters)
    everything = np.arange(len(fitting.runs))
    before = np.abs(fitting.errors(everything, {})).mean()
    found = fitting.fit(everything)
    after = np.abs(fitting.errors(everything, found)).mean()
    assert after < 0.015 < 0.05 < before
    values = fitting.values(found)
    for name in ("matmul.a100", "attention.a100.composer"):
        assert abs(values[name] / truth[name] - 1) < 0.5 * abs(priors[name] / truth[name] - 1), name


def only(*names):
    """The parameters, of which only these are fitted, with priors too wide to hold them."""
    free = dict.fromkeys(names, 3.0)
    return tuple(dataclasses.replace(p, width=free.get(p.name, 0.0), value=p.prior) for p in KNOWN.parameters)


def made_of(truth, framework, chip=""):
    """The published runs of a framework, as if their times were those of these values, and a fitting to them."""
    runs = [r for r in read() if r.framework.startswith(framework) and r.chip.startswith(chip) and not r.oom]
    priors = {p.name: p.prior for p in KNOWN.parameters}
    return Fitting(retimed(runs, priors | truth), only(*truth))


def fitted_values(fitting):
    return fitting.values(fitting.fit(np.arange(len(fitting.runs))))


@pytest.mark.parametrize(
    ("framework", "chip", "truth"),
    [
        ("Composer", "a100", {"attention.a100.composer": 0.30, "matmul.a100": 0.88, "state_overlap.composer": 0.50}),
        ("MaxText", "mi355x", {"network.gpu": 0.60, "exchange": 0.60, "grouped.mi355": 0.35, "matmul.mi355": 0.88}),
        ("MaxText", "tpu-v6e", {"attention.tpu": 0.30, "matmul.v6e": 0.85, "state_overlap.xla-tpu": 0.80}),
    ],
)
def test_what_runs_tell_is_found(framework, chip, truth):
    """Times without noise, parameters that hardly a prior holds: what made them comes out."""
    fitting = made_of(truth, framework, chip)
    assert len(fitting.runs) >= 8
    values = fitted_values(fitting)
    assert {name: values[name] for name in truth} == pytest.approx(truth, rel=0.03)
    fixed = {p.name: p.prior for p in fitting.parameters if not p.fitted}
    assert {name: values[name] for name in fixed} == fixed


def test_a_wrong_figure_has_little_say():
    """One run three times too slow: errors beyond 10% count linearly, not squared."""
    fitting = made_of({"matmul.a100": 0.88}, "Composer", "a100")
    fitting.logs[0] += np.log(3)
    weights = fit._weights(fitting.runs) ** 2
    squared = np.exp(-np.log(3) * weights[0] / weights.sum())     # where least squares would end, at the least
    assert squared < 0.99
    assert fitted_values(fitting)["matmul.a100"] / 0.88 > 1 - (1 - squared) / 2


def test_values_stay_within_their_limits():
    """Times as if links were faster than their data sheet: the parameter stops at it."""
    fitting = made_of({"network.gpu": 1.0}, "MaxText", "mi355x")
    fitting.logs -= np.log(2)
    assert fitted_values(fitting)["network.gpu"] == 1.0


def test_without_runs_that_tell_parameters_stay_at_their_priors():
    tpus = [r for r in read() if r.chip == "tpu-v5p"]
    fitting = Fitting(tpus, KNOWN.parameters)
    values = fitting.values(fitting.fit(np.arange(len(fitting.runs)), tries=3))
    others = [p for p in KNOWN.parameters if any(name in p.name for name in ("a100", "h100", "gpu", "megatron", "v6e"))]
    assert len(others) > 20 and all(values[p.name] == p.prior for p in others)
    assert any(values[p.name] != p.prior for p in KNOWN.parameters)


def test_grades_and_series_weigh():
    """A series counts as the square root of its runs; grade C as 0.3 of grade A."""
    alone, first, second = (run(id=name, series=name[0], grade="A") for name in ("a1", "b1", "b2"))
    weights = fit._weights([alone, first, second, run(id="c1", series="c", grade="C")])
    assert weights == pytest.approx([1, 2**-0.5, 2**-0.5, 0.3])
    assert np.sum(weights[1:3] ** 2) == pytest.approx(1)


def test_parts_share_no_series_and_no_source():
    parts = {"fit": set(), "check": set()}
    for r in read():
        parts[part_of(r)].add(series_of(r))
        assert (source_of(r) in split().sources) <= (part_of(r) == "check")
    assert not parts["fit"] & parts["check"] and min(map(len, parts.values())) > 40
    assert part_of(run(series="nobody knows it")) == "check"


def test_only_the_fitting_set_is_fitted_to(monkeypatch):
    seen = []

    class Watched(Fitting):
        def __init__(self, runs, parameters):
            seen.extend(runs)
            super().__init__(runs, parameters)

        def fit(self, where, start=None, tries=1):
            return {}

    monkeypatch.setattr(fit, "Fitting", Watched)
    calibrated(read(), KNOWN)
    assert seen and all(part_of(r) == "fit" for r in seen)
    assert not any(explains(r) is False for r in Fitting(read(), KNOWN.parameters).runs)


def test_a_source_that_is_left_out_has_no_say():
    """Its published times can be anything: its own predictions stay, and only those."""
    names = ("foundation-model-stack/fms-fsdp", "Korthikanti et al. 2022")
    runs = [r for r in read() if source_of(r) in names]
    falsified = [
        r.model_copy(update={"step_time_s": 99.0, "derived_step_time_s": None}) if source_of(r) == names[0] else r
        for r in runs
    ]
    predicted = [
        {row.id: row.predicted_step_time_s for row in left_out(found, "source", KNOWN)} for found in (runs, falsified)
    ]
    changed = {
        r.id: abs(predicted[1][r.id] / predicted[0][r.id] - 1) for r in runs if predicted[0][r.id] is not None
    }
    own = [changed[r.id] for r in runs if source_of(r) == names[0]]
    others = [changed[r.id] for r in runs if source_of(r) == names[1]]
    assert max(own) < 1e-3 < 1e-2 < max(others)


def test_runs_that_nothing_is_fitted_to_are_predicted_by_those_that_are_known():
    known = [r for r in read() if source_of(r) == "foundation-model-stack/fms-fsdp"]
    strange = [known[0].model_copy(update={"source": "elsewhere", "step_time_s": None, "derived_step_time_s": None})]
    strange += [strange[0].model_copy(update={"unreadable": "no"})]
    found, unknown = left_out(strange, "source", KNOWN, known)
    assert found.predicted and unknown.not_predicted == "no"


def test_every_parameter_has_a_source_and_stays_within_its_limit():
    for p in KNOWN.parameters:
        assert p.source and p.unit and p.value <= p.most
        assert abs(np.log(p.value / p.prior)) <= 4 * p.width + 1e-9, f"{p.name} is far from what is known of it"


def test_no_chip_and_no_framework_has_many_parameters():
    """At most 6 a chip kind and 4 a framework."""
    chips = {*SILICON.values(), "v4", "v5e", "v5p", "v6e", "tpu7x", "gb300"}
    frameworks = ("fsdp", "composer", "megatron", "megatron-2021", "deepspeed", "xla-tpu", "xla-gpu", "compiled")
    named = [p.name.split(".") for p in KNOWN.parameters if p.fitted]
    for chip in chips:
        assert sum(len(n) > 1 and n[1] == chip for n in named) <= 6, chip
    for framework in frameworks:
        assert sum(n[-1] == framework for n in named) <= 4, framework


def test_a_calibration_reads_what_it_writes(tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text(calibration.written(KNOWN))
    again = calibration.load(file)
    assert [p.name for p in again.parameters] == [p.name for p in KNOWN.parameters]
    assert again.values == pytest.approx(dict(KNOWN.values), rel=1e-3)


@pytest.mark.parametrize("change", [{"prior": 0.0}, {"value": -1.0}, {"width": -1.0}, {"most": 0.1}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=KNOWN.parameters[0].name):
        dataclasses.replace(KNOWN.parameters[0], **change)
