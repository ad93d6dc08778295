"""The drill's verdicts on made-up trainings, its command, its table."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from jaxplan.cli import recover as command
from jaxplan.cli.main import main
from jaxplan.report.recover import grid, last_lines, recover_json
from jaxplan.run.drill.conduct import ORDER, chosen, known
from jaxplan.run.drill.orders import Came, Order, Peers, Session
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import fallen_back, refused, resumed

LOSSES = {step: 6 - step / 8 for step in range(1, 13)}
DIGESTS = {step: f"d{step}" for step in LOSSES}
NAMES = ("fault", "what", "safe")


@pytest.fixture
def stage(tmp_path):
    """A stage whose undisturbed training is made up; nothing runs."""
    made = Stage(None, tmp_path / "drill", 12, 4, "jaxplan")
    made.reference = Came(({"event": "done"},), losses=LOSSES, digests=DIGESTS)
    made.program = {"compute_dtype": "float32", "experts": False}
    return made


def came(first: int, last: int = 12, digest: str = "", **changes) -> Came:
    """A training that was resumed at a step and went on to another."""
    steps = range(first + 1, last + 1)
    events = (
        {"event": "resumed", "step": first, "digest": digest or DIGESTS[first], "seconds": 0.5, "passed_over": []},
        *({"event": "step", "step": step, "loss": LOSSES[step], "at_s": step / 4} for step in steps),
        {"event": "done"},
    )
    found = Came(events, losses={s: LOSSES[s] for s in steps}, digests={s: DIGESTS[s] for s in steps})
    return replace(found, **changes)


def test_a_good_resume_passes(stage):
    found = resumed(stage, *NAMES, came(8), 1.5, reached=10, allowed=4)
    assert (found.passed, found.replayed, found.lost_s) == (True, 2, 1.5)


@pytest.mark.parametrize(
    ("training", "reached"),
    [
        (came(4), 10),                                                      # more than an interval is done again
        (came(8, digest="other"), 10),                                      # another state was restored
        (replace(came(8), losses={9: LOSSES[9] + 1e-7, 10: LOSSES[10]}), 10),      # a loss is not equal to the bit
        (replace(came(8), digests={**DIGESTS, 12: "other"}), 10),           # a later state is not
        (replace(came(8), losses={9: None}), 10),                           # a loss is NaN
        (Came(({"event": "failed", "message": "broken"},)), 10),
        (Came(exit_code=-9), 10),
        (replace(came(8), losses={}, digests={}), 10),                      # nothing to compare
    ],
)
def test_a_bad_resume_fails(stage, training, reached):
    assert resumed(stage, *NAMES, training, 1.5, reached, allowed=4).passed is False


def test_falling_back_must_reach_the_right_step(stage):
    found = fallen_back(stage, *NAMES, came(4))
    # step 8 was there before; it is done again 8/4 s after the order
    assert (found.passed, found.replayed, found.lost_s) == (True, 4, 2.0)
    assert fallen_back(stage, *NAMES, came(4), expected=8).passed is False
    assert fallen_back(stage, *NAMES, came(8)).passed is False
    assert fallen_back(stage, *NAMES, came(8), expected=8).passed is True


def test_a_refusal_is_one_only_before_a_step(stage):
    said = Came(({"event": "refused", "message": "params.w is float32\nmore"},))
    assert refused(stage, *NAMES, said, "cast").happened == "refused: params.w is float32"
    assert refused(stage, *NAMES, came(8), "cast").passed is False


def test_the_last_words_of_a_process():
    stderr = "watchdog: no progress for 6.0 s\nThread 1\n  File x\n"
    assert Came(exit_code=75, stderr=stderr).said == "watchdog: no progress for 6.0 s"
    assert Came(exit_code=1, stderr="a\nValueError: b\n\n").said == "ValueError: b"


def test_orders_and_sessions_survive_json():
    session = Session({"a": 1}, "orbax", "cache", 5.0, Peers("localhost:1", 2, 1))
    assert Session.of(json.loads(json.dumps(session.to_json()))) == session
    order = Order("folder", 12, 4, file_limit=(8, 100))
    assert Order(**json.loads(json.dumps(order.to_json()))) == replace(order, file_limit=[8, 100])


@pytest.mark.parametrize(("steps", "every"), [(11, 4), (12, 1), (0, 0)])
def test_a_training_too_short_for_faults(tmp_path, steps, every):
    with pytest.raises(ValueError, match="steps >= 3 x every"):
        Stage(None, tmp_path, steps, every, "jaxplan")


def test_every_fault_has_its_place():
    assert tuple(known()) == ORDER
    assert [module.NAME for module in chosen("hang, kill-step")] == ["hang", "kill-step"]
    assert len(chosen("all")) == len(ORDER)


OUTCOMES = [
    Outcome("a", "a is done", "safe", "well", True, 1.25, 2),
    Outcome("b", "b is done", "safe", "badly", False),
    Outcome("c", "c is done", "safe", "no other jax", None),
]


def test_the_table_and_the_last_lines():
    assert grid(OUTCOMES).body[0] == ("a is done", "pass", "1.25 s", "2", "well", "safe")
    assert [row[1] for row in grid(OUTCOMES).body] == ["pass", "FAIL", "-"]
    assert last_lines(OUTCOMES, 60)[0] == "1 of 3 faults passed in 60.0 s; failed: b; not played: c"
    document = recover_json({"store": "jaxplan"}, OUTCOMES)
    assert (document["schema"], document["passed"]) == ("jaxplan.recover/1", False)
    assert recover_json({}, [OUTCOMES[0], OUTCOMES[2]])["passed"] is True


@pytest.fixture
def plan_file(monkeypatch, tmp_path):
    """A command whose drill is made up: `outcomes` are what it tells."""
    record = SimpleNamespace(plan=SimpleNamespace(label="fsdp=4"))
    monkeypatch.setattr(command, "read", lambda path: record)
    monkeypatch.setattr(command, "as_it_is_now", lambda record: record)

    def prepare(self):
        self.attached = {"platform": "cpu", "device_kind": "cpu", "devices": 4, "jax": "0"}
        self.program = {"label": "fsdp=4", "words": ["Batch 8 -> 4"]}

    monkeypatch.setattr(Stage, "prepare", prepare)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plan.json"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(["recover", *arguments])
    return done.value.code


@pytest.mark.parametrize(("outcomes", "code"), [(OUTCOMES, 1), (OUTCOMES[:1], 0), (OUTCOMES[::2], 0)])
def test_the_exit_code_and_one_document(plan_file, monkeypatch, capsys, outcomes, code):
    monkeypatch.setattr(command, "play", lambda stage, which: iter(outcomes))
    assert run(str(plan_file), "--json") == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["passed"] == (code == 0) and document["ran_on"]["scaled"] == ["Batch 8 -> 4"]
    assert "Scaled      Batch 8 -> 4" in err
    (written,) = plan_file.parent.glob("jaxplan-runs/*-recover/recover.json")
    assert json.loads(written.read_text())["faults"] == document["faults"]


def test_what_was_found_before_an_interruption_is_kept(plan_file, monkeypatch):
    def interrupted(stage, which):
        yield OUTCOMES[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "play", interrupted)
    assert run(str(plan_file)) == 130
    (written,) = plan_file.parent.glob("jaxplan-runs/*-recover/recover.json")
    assert len(json.loads(written.read_text())["faults"]) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--faults", "fire"], "'fire'"),
        (["--faults", ","], "Expected all, or some of kill-step"),
        (["--steps", "5"], "--steps 5 --every 5"),
        (["--python", "no-such-python"], "no-such-python"),
        (["--dir", "file/runs"], "cannot be written"),
    ],
)
def test_bad_input_is_one_message(plan_file, capsys, flags, said):
    (plan_file.parent / "file").write_text("")
    assert run(str(plan_file), *flags) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and len(error.splitlines()) == 1
    assert not list(plan_file.parent.glob("jaxplan-runs/*"))


def test_no_plan_at_all(tmp_path, capsys):
    assert run(str(tmp_path / "none.json")) == 2
    assert "none.json" in capsys.readouterr().err
