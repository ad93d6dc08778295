"""Memory of a device by formulas: closed forms of papers and documentation, monotonicity, sums."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jaxplan.estimate.shapes.facts import stack
from jaxplan.estimate.shapes.in_flight import flying
from jaxplan.estimate.shapes.keeping import Kept
from jaxplan.estimate.shapes.memory import memory
from jaxplan.estimate.shapes.stash import kept_bytes
from jaxplan.units import GIB
from jaxplan.validate.capacity import capacity_bytes
from jaxplan.validate.facts import Case, case_of
from jaxplan.validate.footprint import footprints
from jaxplan.validate.framework import profiles
from jaxplan.validate.keeping import NEEDED, habits, keeping_of
from jaxplan.validate.kept import INPUTS
from jaxplan.validate.models import Unpredictable
from jaxplan.validate.published import PublishedModel, PublishedRun, read

GPT_22B = {"layers": 48, "d_model": 6144, "d_ff": 24576, "heads": 64, "kv_heads": 64, "head_dim": 96, "vocab": 51200,
           "mlp_matrices": 2, "tied_embeddings": True}  # fmt: skip
GPT_175B = GPT_22B | {"layers": 96, "d_model": 12288, "d_ff": 49152, "heads": 96, "kv_heads": 96, "head_dim": 128}
LLAMA_8B = {"layers": 32, "d_model": 4096, "d_ff": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 128256,
            "mlp_matrices": 3, "tied_embeddings": False}  # fmt: skip
USUAL = {"id": "x", "chip": "a100-80", "framework": "Megatron-Core", "date": "2025-01", "precision": "bf16", "dp": 1,
         "fsdp": 1, "tp": 1, "cp": 1, "pp": 1, "zero_stage": 1, "remat": "none", "seq_len": 2048,
         "micro_batch": 1}  # fmt: skip
TITAN = {"framework": "torchtitan (FSDP2)", "zero_stage": 3, "n_devices": 8, "fsdp": 8}


def a_case(model: dict, **of_run) -> Case:
    return case_of(PublishedRun(**USUAL | of_run, model=PublishedModel(**model)))


def state_bytes(ledger) -> float:
    return float(ledger["parameters"] + ledger["gradients"] + ledger["optimizer"])


def korthikanti(model: dict, **of_run) -> Case:
    return a_case(model, zero_stage=0, precision="fp16 mixed", date="2022-05", **of_run)


# Korthikanti et al. 2022 (arXiv:2205.05198), figure 1, computed there, GiB of one device
@pytest.mark.parametrize(
    ("model", "layout", "state", "whole", "selective"),
    [
        (GPT_22B, {"n_devices": 8, "tp": 8, "micro_batch": 4, "global_batch": 4}, 45.56, 59.25, 9.56),
        (GPT_175B, {"n_devices": 64, "tp": 8, "pp": 8, "vpp": 3, "global_batch": 64}, 45.56, 66.84, 12.35),
    ],
)
def test_korthikanti_figure_1(model, layout, state, whole, selective):
    plain = korthikanti(model, sequence_parallel=False, **layout)
    split = korthikanti(model, sequence_parallel=True, remat="selective (core attention)", **layout)

    def ledger(case):
        return memory(case.facts, keeping_of(case, kind="max_allocated")).ledger

    lines = ledger(plain)
    # the figure counts the layers' parameters alone, the ledger the embedding's too: 18 bytes of each
    table = 18 * model["vocab"] * model["d_model"] / 8
    assert (state_bytes(lines) - table) / GIB == pytest.approx(state, abs=0.01)
    assert lines["activations"] / GIB == pytest.approx(whole, abs=0.01)
    assert ledger(split)["activations"] / GIB == pytest.approx(selective, abs=0.01)


def test_full_recompute_keeps_the_layers_inputs():
    """2 s b h of each layer (Korthikanti et al. 2022, section 5)."""
    layout = {"n_devices": 8, "tp": 8, "micro_batch": 4, "global_batch": 4, "sequence_parallel": False}
    case = korthikanti(GPT_22B, remat="full", **layout)
    assert kept_bytes(case.facts, keeping_of(case), INPUTS, False) == pytest.approx(2 * 2048 * 4 * 6144)


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_distributed_optimizer_bytes(dp):
    """Megatron-Core docs, "dist_optimizer": bfloat16 parameters, float32 gradients: 6 + 12/d bytes, 18 without."""
    case = a_case(LLAMA_8B, n_devices=dp, dp=dp, global_batch=dp)
    lines = memory(case.facts, keeping_of(case)).ledger
    assert state_bytes(lines) / case.facts.model.parameters == pytest.approx(6 + 12 / dp)


def test_fsdp_keeps_16_bytes_of_every_parameter_over_its_ranks():
    """Float32 parameters, gradients and two moments (Rajbhandari et al. 2020, arXiv:1910.02054, section 3)."""
    case = a_case(LLAMA_8B, **TITAN, global_batch=8)
    lines = memory(case.facts, keeping_of(case)).ledger
    assert state_bytes(lines) == pytest.approx(16 * case.facts.model.parameters / 8)


def test_weights_that_stay_gathered_cost_two_bytes_of_every_parameter():
    """torchtitan-8b on 8 H100: 62.18 - 49.41 = 12.77 GiB published between reshard_after_forward never and always."""
    usual, never = (
        a_case(LLAMA_8B, **TITAN, global_batch=8, seq_len=8192, layout_note=f"reshard_after_forward={which}")
        for which in ("always", "never")
    )
    gathered = [memory(case.facts, keeping_of(case)).ledger["gathered"] for case in (usual, never)]
    more = gathered[1] - gathered[0]
    layers = float(usual.facts.model.parameters - usual.facts.model.embedding_parameters)
    assert more == pytest.approx(2 * layers * (1 - 2 / 32))    # less the layer at work and the next
    assert more / GIB == pytest.approx(12.77, rel=0.05)


def test_lora_has_no_state_of_frozen_weights():
    case = a_case(LLAMA_8B, n_devices=1, global_batch=1, task="lora")
    lines = memory(case.facts, keeping_of(case)).ledger
    assert lines["gradients"] == lines["optimizer"] == 0 < lines["parameters"]


def test_maxtext_state_of_deepseek_v3():
    """amd-agi: "6 bytes per parameter in total: 58.6 GiB per GPU reported for DeepSeek-V3 on 64"."""
    case = named("amd-b200-dsv3-cf1.25-pdb8-oom")
    lines = memory(case.facts, keeping_of(case)).ledger
    assert (lines["parameters"] + lines["optimizer"]) / GIB == pytest.approx(58.6, rel=0.005)


def test_circular_pipeline_of_maxtext_repeats_what_it_does_not_pipeline():
    """253 GiB compiled, 178 temporary: 75 of state, since 2 + 3 of 61 layers and the tables lie on every stage."""
    case = named("amd-mi355x-dsv3-pp8-deepep-pdb7-tuned")
    lines = memory(case.facts, keeping_of(case)).ledger
    assert (lines["parameters"] + lines["optimizer"]) / GIB == pytest.approx(253 - 178, rel=0.01)


@pytest.mark.parametrize(
    ("less", "more", "published_gib"),
    [   # differences of compiled totals: what the second policy keeps beside the first
        ("fsdp8-deepep-pdb7-tuned", "fsdp8-deepep-pdb7-save-qkv-proj-oom", 469.1 - 236),
        ("fsdp8-deepep-pdb7-save-dot-except-mlp-oom", "fsdp8-deepep-pdb7-save-dot-except-mlpwi-oom", 1909.0 - 488.0),
        ("fsdp8-deepep-pdb7-save-dot-except-mlpwi-oom", "fsdp8-deepep-pdb7-minimal-with-context-oom", 2779.8 - 1909.0),
        ("pp8-deepep-pdb7-tuned", "pp8-deepep-pdb7-save-qkv-proj-oom", 513.6 - 253),
    ],
)  # fmt: skip
def test_what_maxtext_policies_keep(less, more, published_gib):
    """Dropless experts have room for the worst case, saved whole; a circular pipeline saves its bubbles too."""
    kept = [
        memory(case.facts, keeping_of(case)).ledger["activations"] / GIB
        for case in (named(f"amd-mi355x-dsv3-{name}") for name in (less, more))
    ]
    assert kept[1] - kept[0] == pytest.approx(published_gib, rel=0.13)


def test_microbatches_in_flight():
    def of(stage, repeats, count, index):
        case = a_case(GPT_22B, n_devices=stage, pp=stage, vpp=repeats, global_batch=count, num_microbatches=count)
        return float(flying(case.facts, index))

    assert [of(4, 1, 16, i) for i in range(4)] == [4, 3, 2, 1]
    assert of(4, 1, 2, 0) == 2
    assert of(8, 3, 64, 0) == pytest.approx(8 * (1 + 7 / 24))    # Korthikanti et al. 2022, section 4.2.3


@pytest.mark.parametrize("field", ["micro_batch", "seq_len"])
def test_more_tokens_never_take_less(field):
    usual = {"micro_batch": 2, "seq_len": 4096}
    small, large = (
        a_case(LLAMA_8B, **TITAN, global_batch=64, **usual | {field: times * usual[field]}) for times in (1, 2)
    )
    assert memory(small.facts, keeping_of(small)).value < memory(large.facts, keeping_of(large)).value


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Kept)])
@pytest.mark.parametrize("moe", [False, True])
def test_keeping_more_never_takes_less(field, moe):
    case = named("amd-b200-dsv3-cf1.25-pdb8-oom")
    keeping = keeping_of(case)
    kept = kept_bytes(case.facts, keeping, INPUTS, moe)
    more = dataclasses.replace(INPUTS, **{field: 1.0})
    assert kept_bytes(case.facts, keeping, more, moe) >= kept


def test_more_ranks_never_take_more():
    sizes = [
        float(memory(case.facts, keeping_of(case)).value)
        for case in (a_case(LLAMA_8B, n_devices=n, dp=n, global_batch=n) for n in (1, 2, 4, 8))
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_eight_bits_keep_fewer_bytes_under_transformer_engine_alone():
    def activations(framework, precision):
        of_run = TITAN | {"chip": "h100-sxm", "framework": framework, "precision": precision}
        case = a_case(LLAMA_8B, **of_run, global_batch=8)
        return memory(case.facts, keeping_of(case)).ledger["activations"]

    assert activations("Megatron-Core", "fp8") < activations("Megatron-Core", "bf16")
    assert activations("torchtitan (FSDP2)", "fp8") == activations("torchtitan (FSDP2)", "bf16")


def test_room_for_the_worst_case_of_dropless_experts():
    """MaxText layers/moe.py: ep * tokens * min(experts of one device, top_k) rows. 64 ranks of 4 experts:
    half of 64 times the mean, so that one sequence on 64 ranks ran, and two on 32 ranks of 8 experts did not.
    """
    wide, narrow = named("amd-mi355x-dsv3-gmm-pdb1-fsdp1-ep64"), named("amd-mi355x-dsv3-gmm-pdb2-fsdp2-ep32-oom")
    assert keeping_of(wide).routed == keeping_of(narrow).routed == 32
    found = footprints([wide, narrow])
    assert found.fits.tolist() == [True, False]


def named(name: str) -> Case:
    return case_of(next(run for run in read() if run.id == name))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = []
    for run in read():
        try:
            found.append(case_of(run))
        except Unpredictable:
            continue
    return found


def test_arrays_are_the_single_runs(cases):
    some = cases[:: len(cases) // 40]
    facts, keepings = stack([case.facts for case in some]), [keeping_of(case) for case in some]
    together = memory(facts, stack(keepings))
    for i, (case, keeping) in enumerate(zip(some, keepings, strict=True)):
        alone = memory(case.facts, keeping)
        assert math.fsum(float(line[i]) for line in together.ledger.values()) == pytest.approx(float(alone.value))
        assert all(float(line) >= 0 for line in alone.ledger.values())


def test_kinds_of_figures_are_ordered(cases):
    """Allocated, reserved, needed in all: each counts more of one and the same run."""
    case = next(case for case in cases if case.run.id == "titan-8b-8g-bs1-ce")
    allocated, reserved, process = (
        float(memory(case.facts, keeping_of(case, kind=kind)).value)
        for kind in ("max_allocated", "max_reserved", "nvidia-smi process total")
    )
    assert allocated < reserved < process
    assert allocated < float(memory(case.facts, keeping_of(case, kind=NEEDED)).value)


def test_every_profile_has_the_same_switches():
    tables = [habits(profile.id) for profile in profiles()]
    assert all(table.keys() == tables[0].keys() for table in tables)


def test_capacity_is_as_the_notes_say():
    assert capacity_bytes(named("amd-b200-dsv3-cf1.25-pdb8-oom")) == pytest.approx(179.1 * 0.93 * GIB)
    assert capacity_bytes(named("amd-mi355x-dsv3-fsdp8-deepep-pdb7-save-out-proj")) == pytest.approx(268 * GIB)


def test_bars_on_published_memory(cases):
    """Under 8% where the kind is stated, 9 of 10 out-of-memory rows, none that ran missed by over 10%."""
    found = footprints(cases)
    stated = [
        abs(float(found.value[i]) / GIB / figure - 1)
        for i, case in enumerate(cases)
        if (figure := case.run.memory_gib or case.run.memory_gb_reported) and case.run.memory_kind and not case.run.oom
    ]
    assert len(stated) > 130 and np.mean(stated) < 0.08
    oom = np.array([case.run.oom for case in cases])
    assert np.sum(~found.fits[oom]) >= 0.9 * np.sum(oom)
    assert np.all(found.needed[~oom] <= 1.1 * found.capacity[~oom])
