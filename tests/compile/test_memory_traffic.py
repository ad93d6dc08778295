"""Bytes that fusions move, counted by hand."""

import hlo_fixtures as fixtures

from jaxplan.compile.memory_traffic import memory_traffic

LAYER = 4 * 256 * 2     # one bf16[1,4,256]
INDEX = 4               # an s32
NESTED = """%relaid (x: bf16[80,4,256]) -> bf16[80,4,256] {
  %x = bf16[80,4,256] parameter(0)
  ROOT %c = bf16[80,4,256] copy(%x)
}

"""


def traffic(body, result, operands, inside=""):
    """Of a fusion of `body`, whose parameters have these types."""
    parameters = "\n".join(f"  %p{i} = {kind} parameter({i})" for i, kind in enumerate(operands))
    names = ", ".join(f"%o{i}" for i in range(len(operands)))
    fused = f"%body (p: f32[]) -> f32[] {{\n{parameters}\n{body}\n}}\n\n"
    outer = "\n".join(f"%o{i} = {kind} parameter({i})" for i, kind in enumerate(operands))
    module = fixtures.program(
        f"{outer}\nROOT %f = {result} fusion({names}), kind=kLoop, calls=%body", inside + fused
    )
    return memory_traffic(module, module.entry.instructions[-1])


def test_a_slice_of_a_stack_is_read_alone():
    """Layer by layer out of a stack of 80: one layer in, one layer out, also behind a new layout of the whole stack."""
    stack = ["bf16[80,4,256]", "s32[]"]
    plain = "  ROOT %s = bf16[1,4,256] dynamic-slice(%p0, %p1, %p1, %p1), dynamic_slice_sizes={1,4,256}"
    assert traffic(plain, "bf16[1,4,256]", stack) == 2 * LAYER + INDEX
    relaid = """  %r = bf16[80,4,256] fusion(%p0), kind=kLoop, calls=%relaid
  ROOT %s = bf16[1,4,256] dynamic-slice(%r, %p1, %p1, %p1), dynamic_slice_sizes={1,4,256}"""
    assert traffic(relaid, "bf16[1,4,256]", stack, NESTED) == traffic(plain, "bf16[1,4,256]", stack)


def test_an_update_in_place_writes_the_update():
    operands = ["bf16[80,4,256]", "bf16[1,4,256]", "s32[]"]
    plain = "  ROOT %u = bf16[80,4,256] dynamic-update-slice(%p0, %p1, %p2, %p2, %p2)"
    expected = traffic(plain, "bf16[80,4,256]", operands)
    assert expected == 2 * LAYER + INDEX
    relaid = """  %r = bf16[80,4,256] fusion(%p0), kind=kLoop, calls=%relaid
  ROOT %u = bf16[80,4,256] dynamic-update-slice(%r, %p1, %p2, %p2, %p2)"""
    assert traffic(relaid, "bf16[80,4,256]", operands, NESTED) == expected
    outside = """  %u = bf16[80,4,256] dynamic-update-slice(%p0, %p1, %p2, %p2, %p2)
  ROOT %r = bf16[80,4,256] fusion(%u), kind=kLoop, calls=%relaid"""
    assert traffic(outside, "bf16[80,4,256]", operands, NESTED) == expected


def test_an_elementwise_fusion_reads_and_writes_whole_arrays():
    body = "  ROOT %a = bf16[80,4,256] add(%p0, %p1)"
    assert traffic(body, "bf16[80,4,256]", ["bf16[80,4,256]"] * 2) == 3 * 80 * LAYER
