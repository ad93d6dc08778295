import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.trip_count import TripCount, trip_count

COUNTER = """
%condition (t: (s32[], f32[8])) -> pred[] {{
  %t = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %bound = s32[] constant({bound})
  ROOT %less = pred[] compare({sides}), direction={direction}
}}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %t = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8] get-tuple-element(%t), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  ROOT %out = (s32[], f32[8]) tuple(%next, %x)
}}
"""
ENTRY = """%p = f32[8] parameter(0)
%start = s32[] {start}
%state = (s32[], f32[8]) tuple(%start, %p)
%loop = (s32[], f32[8]) while(%state), condition=%condition, body=%body
ROOT %r = f32[8] get-tuple-element(%loop), index=1"""


def loop(start="constant(0)", bound=8, step=1, direction="LT", sides="%i, %bound"):
    others = COUNTER.format(bound=bound, step=step, direction=direction, sides=sides)
    module = fixtures.program(ENTRY.format(start=start), others)
    return trip_count(module, module.entry.instruction("loop")).count


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, 8),
        ({"start": "constant(2)"}, 6),
        ({"step": 3}, 3),  # 0, 3, 6
        ({"direction": "LE"}, 9),
        ({"direction": "NE"}, 8),
        ({"sides": "%bound, %i", "direction": "GT"}, 8),
        ({"start": "constant(7)", "bound": -1, "step": -1, "direction": "GT"}, 8),
        ({"start": "constant(7)", "bound": 0, "step": -1, "direction": "GE"}, 8),
        ({"start": "constant(9)"}, 0),
        ({"start": "parameter(1)"}, None),  # depends on data
        ({"step": -1}, None),  # never ends
    ],
)
def test_counters(case, expected):
    assert loop(**case) == expected


@pytest.mark.parametrize("backend", ["cpu", "v5e", "h100"])
def test_nested_loops_of_five_and_three(backend):
    module = fixtures.module(f"{backend}_nested")
    loops = [one for one in module.instructions() if one.opcode == "while"]
    found = [trip_count(module, one) for one in loops]
    assert sorted(one.count for one in found) == [3, 5]
    assert {one.known_from for one in found} == {"condition" if backend == "v5e" else "recorded"}


@pytest.mark.parametrize("backend", ["cpu", "v5e", "h100"])
def test_a_loop_that_ends_when_the_data_say_so_is_unknown(backend):
    module = fixtures.module(f"{backend}_until")
    loops = [one for one in module.instructions() if one.opcode == "while"]
    assert len(loops) == 1
    assert trip_count(module, loops[0]).count is None


def test_the_record_of_the_compiler_counts_first():
    entry = ENTRY.format(start="parameter(1)").replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"12"}}'
    )
    module = fixtures.program(entry, COUNTER.format(bound=8, step=1, direction="LT", sides="%i, %bound"))
    assert trip_count(module, module.entry.instruction("loop")) == TripCount(12, "recorded")
