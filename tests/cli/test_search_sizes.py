"""Machine sizes: which are compared, the rows of a small real workload, the document, refusals."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import jaxplan.cli.choice as choice_module
from jaxplan.cli.choice import choose, compare, sizes
from jaxplan.cli.goodput_flags import Flags
from jaxplan.cli.main import main
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.report.choice import ChoiceReport, choice_grid, choice_json, choice_lines
from jaxplan.workload.shape import ModelShape, Workload

SHAPE = ModelShape("small", layers=2, embed=64, mlp=128, heads=2, kv_heads=2, head_dim=32, vocab=256)
WORKLOAD = Workload(SHAPE, batch=2, seq=128)
MACHINE = catalogue.machine("2x2", "v5e", None)
FLAGS = Flags(tokens="1e9", price=2.0)


@pytest.mark.parametrize(
    ("mesh", "chip", "meshes"),
    [
        ("8x16", "v5e", ["4x4", "4x8", "8x8", "8x16", "16x16", "2x(16x16)", "4x(16x16)", "8x(16x16)"]),
        ("2x(8x16)", "v5e", ["4x8", "8x8", "8x16", "2x(8x16)", "4x(8x16)", "8x(8x16)", "16x(8x16)", "32x(8x16)"]),
        ("4x4x8", "v5p", ["2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "4x16x16", "8x16x16"]),
        ("16x8", "h100", ["2x8", "4x8", "8x8", "16x8", "32x8", "64x8", "128x8", "256x8"]),
        ("1x1", "v5e", ["1x1", "2x2", "2x4", "4x4"]),
    ],
)
def test_the_sizes_of_a_family(mesh: str, chip: str, meshes: list[str]) -> None:
    """Halved three times and doubled four, as slices come; past the largest slice several of it."""
    found = [machine.mesh for machine in sizes(catalogue.machine(mesh, chip, None))]
    assert set(meshes) == set(found)
    assert found == sorted(found, key=lambda m: catalogue.machine(m, chip, None).chips)


def test_all_sizes_have_the_calibration_of_the_machine(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(choice_module, "calibrated", lambda machine, known: asked.append(known) or machine)
    known = SimpleNamespace(to_json=dict)
    machine = replace(MACHINE, attached=known)
    assert len(list(sizes(machine))) == len(asked) + 1
    assert all(one is known for one in asked)


@pytest.fixture(scope="module")
def report() -> ChoiceReport:
    from jaxplan.compile.lower import trace_job
    from jaxplan.workload.table import Table

    table = Table.from_json(trace_job(WORKLOAD.to_json()))
    said: list[str] = []
    found = compare(WORKLOAD, table, MACHINE, FLAGS, 3600.0, None, said.append)
    assert len(said) == len(found.choice.options)
    return found


def test_every_size_has_a_row_or_a_reason(report: ChoiceReport) -> None:
    names = {option.name for option in report.choice.options} | {name for name, _ in report.refused}
    assert names == {machine.name for machine in sizes(MACHINE)}
    assert [option.chips for option in report.choice.options] == sorted(o.chips for o in report.choice.options)
    assert all(why for _, why in report.refused)


def test_money_by_hand(report: ChoiceReport) -> None:
    for option in report.choice.options:
        assert option.money == pytest.approx(2.0 * (option.chips + option.spare_chips) * option.total_s / 3600)
        steps = -(-1e9 // WORKLOAD.tokens)
        assert option.total_s >= steps * option.step_s / option.goodput


def test_the_document_and_the_table(report: ChoiceReport) -> None:
    found = json.loads(json.dumps(choice_json(report)))
    assert found["schema"] == "jaxplan.choice/1"
    assert {row["mesh"] for row in found["options"] if row["on_front"]} == {o.mesh for o in report.choice.front}
    assert all(row["days"]["low"] <= row["days"]["value"] <= row["days"]["high"] for row in found["options"])
    grid = choice_grid(report)
    assert len(grid.body) == len(report.choice.options)
    assert grid.head[6] == "money"
    assert any("The batch is 2 sequences on every size" in line for line in choice_lines(report, 200))


@pytest.mark.parametrize(
    ("flags", "deadline", "most", "said"),
    [
        (FLAGS, "soon", None, "--deadline 'soon'"),
        (FLAGS, "0d", None, "--deadline 0d. Expected more than 0 s"),
        (FLAGS, None, -1.0, "--budget -1"),
        (FLAGS, None, float("nan"), "--budget nan"),
        (Flags(tokens="1e9"), None, 5.0, "--budget without a price"),
    ],
)
def test_wrong_figures_are_refused_before_a_trace(monkeypatch, tmp_path, flags, deadline, most, said) -> None:
    monkeypatch.setattr(Tiers, "trace", lambda *_: pytest.fail("traced"))
    with pytest.raises(InputError, match=said):
        choose(WORKLOAD, MACHINE, flags, deadline, most, tmp_path, False)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_keeps_the_sizes_that_are_known(monkeypatch, report: ChoiceReport) -> None:
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(choice_module, "_best", stopped)
    with pytest.raises(KeyboardInterrupt):      # nothing is known yet
        compare(WORKLOAD, None, MACHINE, FLAGS, None, None, lambda _: None)
    pending = iter(report.choice.options)

    def priced(*_):
        return "a record" if next(pending, None) is not None else stopped()

    monkeypatch.setattr(choice_module, "_best", priced)
    monkeypatch.setattr(choice_module, "report_of", lambda *_: None)
    monkeypatch.setattr(choice_module, "_option", lambda *_: report.choice.options[0])
    found = compare(WORKLOAD, None, MACHINE, FLAGS, None, None, lambda _: None)
    assert len(found.choice.options) == len(report.choice.options)
    assert "interrupted" in found.refused[-1][1]


def test_flags_that_need_tokens(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["search", "--mesh", "2x4", "--deadline", "30d"])
    assert left.value.code == 2
    assert "--tokens as well" in capsys.readouterr().err


def test_the_command(monkeypatch, tmp_path, capsys, report: ChoiceReport) -> None:
    """From the flags to the document; the sizes themselves are those of the report above."""
    monkeypatch.setattr(Tiers, "trace", lambda *_: None)
    asked = {}

    def compared(workload, table, machine, flags, deadline_s, most, say):
        asked.update(tokens=flags.tokens, deadline_s=deadline_s, most=most, mesh=machine.mesh)
        return report

    monkeypatch.setattr(choice_module, "compare", compared)
    flags = ("--tokens", "15T", "--deadline", "30d", "--price", "1.5", "--budget", "1e6", "--out", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main(["search", "--mesh", "2x4", *flags, "--json"])
    assert asked == {"tokens": "15T", "deadline_s": 30 * 86400.0, "most": 1e6, "mesh": "2x4"}
    assert json.loads(capsys.readouterr().out) == json.loads(next(tmp_path.glob("*-choice/choice.json")).read_text())
    assert left.value.code == (0 if report.choice.cheapest else 1)
