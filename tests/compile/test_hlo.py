# ruff: noqa: E501  compilers print long lines
import re

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.hlo import HloError, Shape, parse


@pytest.mark.parametrize("name", fixtures.STEPS)
def test_every_instruction_of_a_real_module_is_read(name):
    text, module = fixtures.text(name), fixtures.module(name)
    # Independent count: in HLO text, " = " after a name starts an instruction; kernel metadata has none.
    lines = [line for line in text.splitlines() if re.match(r"  (ROOT )?%[^ ]+ = ", line)]
    assert len(lines) == sum(1 for _ in module.instructions())
    assert module.devices == 8 and module.is_scheduled and module.name == "jit_step"
    assert module.backend == {"c": "cpu", "h": "gpu"}.get(name[0], "tpu")
    for instruction in module.instructions():
        assert len(instruction.operands) == len(instruction.operand_names)
        assert instruction.shapes or instruction.type_text.strip() in ("()", "token[]")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_text_is_an_error(share):
    text = fixtures.text("h100_mixed")
    with pytest.raises(HloError, match=r"cut off|entry"):
        parse(text[: int(len(text) * share)])


@pytest.mark.parametrize(
    "text",
    ["", "not hlo", "HloModule empty\n", "HloModule m\n\nENTRY %e (p: f32[]) -> f32[] {\n  ROOT %x =\n}\n"],
)
def test_what_is_no_module_is_an_error(text):
    with pytest.raises(HloError):
        parse(text)


def test_shapes_with_layouts_and_memory_spaces():
    module = fixtures.program(
        """%p = f32[8]{0} parameter(0)
        %t = (bf16[4,256]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/u32[]{:S(2)}, s4[3]{0}) custom-call(%p), custom_call_target="x"
        ROOT %r = f32[8]{0} get-tuple-element(%t), index=0"""
    )
    call = module.entry.instruction("t")
    assert [(s.dtype, s.dims, s.memory_space) for s in call.shapes] == [
        ("bf16", (4, 256), 1),
        ("u32", (), 2),
        ("s4", (3,), 0),
    ]
    assert call.nbytes == 4 * 256 * 2 + 4 + 2  # three 4-bit numbers fill two bytes
    assert call.custom_call_target == "x"
    with pytest.raises(HloError, match="f7"):
        _ = Shape("f7", (1,)).nbytes


def test_called_computations_by_role():
    module = fixtures.module("cpu_nested")
    loops = [one for one in module.instructions() if one.opcode == "while"]
    assert len(loops) == 2
    for loop in loops:
        assert set(loop.called) == {"condition", "body"}
        assert module.callee(loop, "body").root is not None


def test_metadata_over_several_lines_belongs_to_its_instruction():
    kernels = [
        one
        for one in fixtures.module("v5e_mixed").instructions()
        if one.custom_call_target == "tpu_custom_call"
    ]
    assert len(kernels) == 3
    assert all("splash" in one.op_name and "custom_call_config" in one.config for one in kernels)
