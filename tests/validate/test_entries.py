"""Which parameters make up a run's rates, and that the rates are their products."""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.machine import calibration
from jaxplan.machine.reached import matmul_fraction
from jaxplan.validate.entries import Entry, entries
from jaxplan.validate.facts import case_of
from jaxplan.validate.framework import profiles
from jaxplan.validate.predict import FIELDS, Batch, cases_of
from jaxplan.validate.published import read

KNOWN = calibration.load().values
MIXTRAL = LLAMA_8B.model_copy(update={"experts": 8, "top_k": 2, "moe_d_ff": 14336})
TPU = {"chip": "tpu-v5p", "framework": "MaxText (JAX)"}
COMPOSER = {"framework": "Composer / PyTorch FSDP"}
MEGATRON = {"framework": "Megatron-Core", "date": "2025-06"}


def found(**changes) -> dict[str, Entry]:
    return entries(case_of(run(**changes)), KNOWN)


@pytest.mark.parametrize(
    ("field", "changes", "names"),
    [
        ("attention", COMPOSER | {"chip": "a100-80"}, ("attention.a100.composer",)),
        ("attention", COMPOSER, ("attention.h100.composer",)),
        ("attention", MEGATRON, ("attention.h100.megatron",)),
        ("attention", {"chip": "h200"}, ("attention.h100",)),
        ("attention", {"chip": "mi300x"}, ("attention.gpu",)),
        ("attention", TPU, ("attention.tpu",)),
        ("matmul", {}, ("matmul.h100",)),
        ("matmul", {"chip": "h200"}, ("matmul.h100",)),
        ("matmul", {"chip": "h100-96-hbm2e"}, ("matmul.h100-500w",)),
        ("matmul", TPU | {"chip": "tpu-v3"}, ()),               # no published run tells its rate
        ("sustained", {}, ("sustained.gpu",)),
        ("sustained", {"chip": "b200", "source": "MooreThreads/SimuMax docs"}, ()),      # measured on that machine
        ("narrow_matmul", {"precision": "fp8"}, ("narrow.h100",)),
        ("narrow_matmul", {"precision": "mxfp8", "chip": "b200"}, ("narrow.b200", "narrow.blocks")),
        ("narrow_matmul", {"precision": "nvfp4", "chip": "b200"}, ("narrow.float4",)),
        ("narrow_matmul", TPU | {"precision": "int8"}, ("matmul.v5p",)),
        ("passes", {}, ("passes.fsdp",)),
        ("passes", {"compile": True}, ("passes.compiled",)),
        ("passes", COMPOSER, ("passes.composer",)),
        ("tensor_link", {}, ("tensor_link.eager",)),
        ("tensor_link", {"compile": True}, ()),
        ("tensor_link", MEGATRON, ()),
        ("tensor_overlap", {"overlap_note": "async TP"}, ("tensor_overlap.async",)),
        ("tensor_overlap", {}, ("tensor_overlap.gpu",)),
        ("tensor_overlap", TPU, ("tensor_overlap.tpu",)),
        ("expert_overlap", {"overlap_note": "MoE all-to-all overlap"}, ("expert_overlap.scheduled",)),
        ("exchange", {"moe_dispatch": "dropless, ragged all-to-all"}, ("exchange.ragged",)),
        ("grouped", {"chip": "mi355x", "model": MIXTRAL}, ("grouped.mi355",)),
        ("grouped", {"model": MIXTRAL}, ("grouped.gpu",)),
        ("network", {"interconnect": "GCP A3 High: 4x200 Gb/s per node"}, ("network.onload",)),
        ("network", {"interconnect": "4x100 Gb/s Omni-Path per node"}, ("network.onload",)),
        ("network", {"interconnect": "8x400 Gb/s RoCE per node"}, ("network.gpu",)),
        ("network", TPU, ("network.dcn",)),
        ("wave", {"chip": "a100-80"}, ("wave.a100",)),
        ("wave", {}, ("wave",)),
        ("state_overlap", MEGATRON | {"date": "2021-04"}, ("state_overlap.megatron-2021",)),
        ("launches", {}, ()),
    ],
)
def test_parameters_of_a_run(field, changes, names):
    assert found(**changes)[field].names == names


def test_the_best_matmul_is_the_catalogues_or_the_runs_own():
    """794.5 of 989 TFLOP/s on H100 (stas00/ml-engineering); 0.488 on SimuMax's B200, which no other run has."""
    assert found()["matmul"].factor == pytest.approx(794.5 / 989, rel=1e-3)
    own = {"chip": "b200", "source": "MooreThreads/SimuMax docs"}
    assert found(**own)["matmul"].factor == 0.488
    machine = case_of(run(chip="b200")).machine
    assert found(chip="b200")["matmul"].factor == matmul_fraction(machine) != 0.488
    assert found(**own | {"chip": "h100-sxm"})["matmul"].factor == found()["matmul"].factor


def test_rates_are_products():
    cases = [case_of(run()), case_of(run(**TPU)), case_of(run(chip="b200", precision="mxfp8"))]
    batch = Batch.of(cases, list(KNOWN))
    rates = batch.rates(KNOWN)
    for i, case in enumerate(cases):
        for field, entry in entries(case, KNOWN).items():
            product = entry.factor
            for name in entry.names:
                product *= KNOWN[name]
            assert float(getattr(rates, field)[i]) == pytest.approx(product), field
    assert float(batch.part(batch.chosen.any(axis=(0, 2)).nonzero()[0][1:]).rates(KNOWN).matmul[0]) == pytest.approx(
        float(rates.matmul[1])
    )


def test_every_rate_has_an_entry_and_every_profile_its_parameters():
    assert set(found()) == set(FIELDS)
    for profile in profiles():
        for kind in profile.kinds:
            changes = TPU if kind == "tpu" else {}
            name = profile.matches[0] or "fsdp"
            date = str(profile.until) if profile.until else "2025"
            got = found(**changes | {"framework": name, "date": date})
            assert got["passes"].names == (f"passes.{profile.calibrated_as}",), profile.id
            assert got["state_overlap"].names == (f"state_overlap.{profile.calibrated_as}",), profile.id


def test_what_no_run_tells_stays_at_its_prior():
    """A few chips have no published run: their parameters are what is known without any."""
    cases = list(cases_of(read())[0].values())
    used = Batch.of(cases, list(KNOWN)).chosen.any(axis=(0, 1))
    unused = [p for p, is_used in zip(calibration.load().parameters, used, strict=True) if not is_used]
    assert len(unused) <= 5
    assert all(p.value == p.prior for p in unused)
