"""Bytes that a program takes anew, against counts by hand and against XLA's own buffer assignment."""

import hlo_fixtures as fixtures
import jax
import jax.numpy as jnp
import pytest

from jaxplan.compile.hlo import parse
from jaxplan.compile.host_arena import block_bytes, fresh_bytes

ONE = 100 * 20 * 4      # bytes of one array


def test_values_that_live_at_once_add_up_and_names_cost_nothing():
    module = fixtures.program(
        """
        %p = f32[100,20]{1,0} parameter(0)
        %a = f32[100,20]{1,0} negate(%p)
        %b = f32[100,20]{1,0} bitcast(%a)
        %c = f32[100,20]{1,0} add(%a, %b)
        %d = f32[100,20]{1,0} negate(%c)
        ROOT %t = (f32[100,20]{1,0}) tuple(%d)
        """
    )
    assert block_bytes(module) == 2 * ONE       # a and c, then c and d


def test_an_update_in_place_takes_nothing():
    module = fixtures.program(
        """
        %p = f32[100,20]{1,0} parameter(0)
        %i = s32[] parameter(1)
        %a = f32[100,20]{1,0} negate(%p)
        %r = f32[1,20]{1,0} slice(%p), slice={[0:1], [0:20]}
        ROOT %u = f32[100,20]{1,0} dynamic-update-slice(%a, %r, %i, %i)
        """
    )
    assert block_bytes(module) == ONE + 80


DONATED = "is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }"
UPDATE = """%update (x: f32[100,20], y: f32[100,20]) -> (f32[100,20], f32[100,20]) {
  %x = f32[100,20]{1,0} parameter(0)
  %y = f32[100,20]{1,0} parameter(1)
  %m = f32[100,20]{1,0} multiply(%x, %y)
  ROOT %both = (f32[100,20]{1,0}, f32[100,20]{1,0}) tuple(%m, %y)
}

"""


def test_results_that_take_the_place_of_donated_arguments_take_nothing():
    body = """
        %p = f32[100,20]{1,0} parameter(0)
        %q = f32[100,20]{1,0} parameter(1)
        %a = f32[100,20]{1,0} negate(%p)
        %f = (f32[100,20]{1,0}, f32[100,20]{1,0}) fusion(%a, %q), kind=kLoop, calls=%update
        %g = f32[100,20]{1,0} get-tuple-element(%f), index=0
        %h = f32[100,20]{1,0} get-tuple-element(%f), index=1
        %c = f32[100,20]{1,0} negate(%g)
        ROOT %t = (f32[100,20]{1,0}, f32[100,20]{1,0}, f32[100,20]{1,0}) tuple(%g, %h, %c)
        """
    assert block_bytes(fixtures.program(body, UPDATE)) == 3 * ONE           # f and a, then f and c
    assert block_bytes(fixtures.program(body, UPDATE, DONATED)) == ONE      # a, then c


def test_it_is_about_what_xla_assigns():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    params = [jnp.ones((256, 256))] * 4
    compiled = jax.jit(jax.grad(loss)).lower(params, jnp.ones((512, 256))).compile()
    memory = compiled.memory_analysis()
    assigned = memory.temp_size_in_bytes + memory.output_size_in_bytes
    # XLA packs blocks its own way
    assert block_bytes(parse(compiled.as_text())) == pytest.approx(assigned, rel=0.35)


def test_only_large_blocks_are_taken_anew():
    body = "%p = f32[{n}]{{0}} parameter(0)\nROOT %a = f32[{n}]{{0}} negate(%p)"
    assert fresh_bytes(fixtures.program(body.format(n=2**20))) == 0
    assert fresh_bytes(fixtures.program(body.format(n=2**24))) == 4 * 2**24
