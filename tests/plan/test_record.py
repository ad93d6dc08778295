"""Records: leaves, ledgers that add up, evidence that is compared."""

import dataclasses
import importlib.metadata

import pytest

from jaxplan.plan.record import (
    LeafSpec,
    MemoryLedger,
    Part,
    PlanRecord,
    SearchRecord,
    TimeLedger,
    installed_versions,
    show_spec,
)


def specs(leaves: tuple[LeafSpec, ...]) -> dict[str, tuple]:
    return {leaf.path: leaf.spec for leaf in leaves}


def test_parameters_follow_the_rules_and_vectors_stay_whole(record: PlanRecord) -> None:
    assert specs(record.parameters) == {
        "embedding": (("tensor",), ("fsdp",)),
        "final_norm": ((),),
        "layers.up": ((), ("fsdp",), ("tensor",)),
        "layers.mlp_norm": ((), ()),
    }


def test_zero1_shards_the_optimizer_over_data_as_well(record: PlanRecord) -> None:
    found = specs(record.optimizer)
    # (fsdp, data) refines (fsdp,): each device's slice of the moments lies in its slice of the parameter
    assert found["0.mu.layers.up"] == ((), ("fsdp", "data"), ("tensor",))
    assert found["0.count"] == ()


def test_a_batch_is_sharded_along_its_sequences_alone(record: PlanRecord) -> None:
    assert specs(record.batch)["tokens"] == (("data", "fsdp"), ())


def test_local_bytes_are_the_closed_form(record: PlanRecord) -> None:
    up = next(leaf for leaf in record.optimizer if leaf.path == "0.nu.layers.up")
    assert up.nbytes == 4 * 64 * 128 * 4
    assert up.local_bytes(record.plan.sizes) == 4 * 64 * 128 * 4 // 8


def test_a_spec_names_an_axis_once(leaf: LeafSpec) -> None:
    with pytest.raises(ValueError, match=r"leaf w: spec P\('fsdp', 'fsdp'\) has axis fsdp twice"):
        dataclasses.replace(leaf, spec=(("fsdp",), ("fsdp",)))


def test_a_spec_has_an_entry_a_dim(leaf: LeafSpec) -> None:
    with pytest.raises(ValueError, match="2 dims, expected as many entries in dims and spec, got 2 and 3"):
        dataclasses.replace(leaf, spec=((), (), ()))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp": 2}, "names axis tensor, the mesh has fsdp"),
        ({"fsdp": 3, "tensor": 1}, "dim 0 of size 64 is not divisible by fsdp = 3"),
    ],
)
def test_a_spec_must_suit_the_mesh(leaf: LeafSpec, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leaf.check(sizes)


def test_a_record_proves_its_leaves(record: PlanRecord, leaf: LeafSpec) -> None:
    with pytest.raises(ValueError, match="dim 0 of size 63 is not divisible by fsdp = 2"):
        dataclasses.replace(record, parameters=(dataclasses.replace(leaf, shape=(63, 128)),))


def test_ledgers_add_up() -> None:
    tenths = tuple(Part(f"part {i}", 0.1, "estimated") for i in range(10))
    assert MemoryLedger(tenths, 1).total_bytes == 1.0  # the exact sum, unlike sum([0.1] * 10)
    assert MemoryLedger(tenths, 1).fits
    assert TimeLedger(tenths, 0.5, 2.0).value_s == 1.0


def test_a_ledger_says_all_its_sources() -> None:
    parts = (Part("a", 1, "compiled"), Part("b", 1, "estimated"), Part("c", 1, "compiled"))
    assert MemoryLedger(parts, 1).source == "compiled + estimated"


def test_a_step_time_lies_between_its_bounds() -> None:
    with pytest.raises(ValueError, match=r"step time 1.0 s must lie between 1.5 and 2.0"):
        TimeLedger((Part("a", 1.0, "estimated"),), 1.5, 2.0)


def test_sources_and_amounts_are_checked() -> None:
    with pytest.raises(ValueError, match="source must be one of"):
        Part("a", 1.0, "guessed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="amount must be finite"):
        Part("a", float("nan"), "estimated")


def test_more_feasible_than_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match=r"feasible must be in 0..3, got 4"):
        SearchRecord(3, 4)


def test_tiers_are_compared_the_cheapest_first(record: PlanRecord) -> None:
    assert record.compared("step_time_s") == (("estimated", 0.8), ("compiled", 0.9))
    assert record.compared("total_bytes") == (("estimated", 1234.3), ("compiled", 1300.0))
    assert record.compared("nothing") == ()


def test_unknown_tiers_and_axes_are_refused(record: PlanRecord) -> None:
    with pytest.raises(ValueError, match="got 'dreamt'"):
        dataclasses.replace(record, evidence={"dreamt": {}})
    with pytest.raises(ValueError, match="placement names axis stage"):
        dataclasses.replace(record, placement={"stage": "network"})


def test_evidence_of_another_plan_is_stale(record: PlanRecord) -> None:
    changed = dataclasses.replace(record, plan=dataclasses.replace(record.plan, microbatches=2))
    assert not record.stale
    assert changed.stale


def test_specs_print_as_in_jax() -> None:
    assert show_spec(((), ("fsdp",), ("data", "fsdp"))) == "P(None, 'fsdp', ('data', 'fsdp'))"


def test_versions_are_those_of_the_packages() -> None:
    found = installed_versions()
    assert found["jax"] == importlib.metadata.version("jax")
    assert "python" in found
