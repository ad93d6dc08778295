# ruff: noqa: E501  compilers print long lines
import hlo_fixtures as fixtures
import numpy as np
import pytest

from jaxplan.compile.hlo_cost import FlopCount, flops
from jaxplan.compile.kernels_cost import attention_flops

TOLERANCE = 1e-6


@pytest.mark.parametrize("name", fixtures.STEPS)
def test_flops_of_a_step_are_the_closed_form(name):
    model, count = fixtures.model(name), flops(fixtures.module(name))
    forward, backward = (work / fixtures.DEVICES for work in model.attention_flops())
    matmul = model.matmul_flops() / fixtures.DEVICES
    if name.startswith("cpu"):  # attention written out: matmuls over the whole square
        expected = {"matmul": matmul + model.plain_attention_flops() / fixtures.DEVICES}
    else:
        expected = {"matmul": matmul, "attention_forward": forward, "attention_backward": backward}
    assert count.by_kind == pytest.approx(expected, rel=TOLERANCE)
    assert count.uncovered == {}
    assert count.unknown_trip_counts == 0


@pytest.mark.parametrize("backend", ["cpu", "v5e", "h100"])
def test_nested_loops_multiply(backend):
    # 5 x 3 matmuls of (64, 128) by (128, 128)
    assert flops(fixtures.module(f"{backend}_nested")).total == 15 * 2 * 64 * 128 * 128


@pytest.mark.parametrize("backend", ["cpu", "v5e", "h100"])
def test_unknown_trip_counts_make_a_lower_bound_that_says_so(backend):
    count = flops(fixtures.module(f"{backend}_until"))
    assert count.total == 2 * 256**3
    assert count.unknown_trip_counts == 1


def convolution_pairs(size, kernel, stride, low, out):
    """Pairs of (output, kernel) positions on real input, by trying them all."""
    return sum(0 <= o * stride - low + k < size for o in range(out) for k in range(kernel))


@pytest.mark.parametrize("backend", ["cpu", "v5e"])
def test_strided_grouped_convolution_and_its_gradients(backend):
    # (2, 15, 15, 32) with 64 kernels of (3, 3, 8), stride 2, SAME: 8 x 8 outputs, 1 padding on each side.
    # Forward, gradient of the input and gradient of the kernel touch the same pairs.
    pairs = convolution_pairs(15, 3, 2, 1, 8) ** 2
    assert flops(fixtures.module(f"{backend}_strided")).total == 3 * 2 * pairs * 2 * 64 * 8


def test_convolutions_of_the_gpu_library():
    # As above for forward and the kernel's gradient; the input's gradient runs as a convolution of the zero-filled
    # (17, 17) output gradient, 32 kernels of (3, 3, 16), and computes on the zeros as well.
    pairs = convolution_pairs(15, 3, 2, 1, 8) ** 2
    expected = 2 * 2 * pairs * 2 * 64 * 8 + 2 * (15 * 3) ** 2 * 2 * 32 * 16
    count = flops(fixtures.module("h100_strided"))
    assert count.total == expected and count.uncovered == {}


def convolution(image, kernel, out, window, labels, extra=""):
    return fixtures.program(
        f"""%p = f32[8] parameter(0)
        %x = bf16[{image}] parameter(1)
        %w = bf16[{kernel}] parameter(2)
        %c = bf16[{out}] convolution(%x, %w), window={{{window}}}, dim_labels={labels}{extra}
        ROOT %r = f32[8] copy(%p)"""
    )


@pytest.mark.parametrize(
    ("image", "kernel", "out", "window", "labels", "expected"),
    [
        # Three ways in which libtpu 0.0.42 writes matmuls of (2048, 512) by (512, 256), seen in v5e_mixed.
        ("4,512,512", "512,256,1", "4,512,256", "size=1", "0bf_io0->0bf", 2 * 2048 * 512 * 256),
        ("4,512,512,1", "512,2,128,1", "4,512,2,128", "size=1x2 pad=0_0x1_1 rhs_reversal=0x1", "0bf1_i1o0->0b1f",
         2 * 2048 * 512 * 256),
        ("4,512,512", "4,512,256", "512,256,1", "size=4", "0fb_0io->bf0", 2 * 512 * 256 * 2048),
    ],
)  # fmt: skip
def test_matmuls_that_a_tpu_writes_as_convolutions(image, kernel, out, window, labels, expected):
    assert flops(convolution(image, kernel, out, window, labels)).total == expected


@pytest.mark.parametrize("seed", range(20))
def test_windows_against_trying_every_position(seed):
    rng = np.random.default_rng(seed)
    size, kernel, stride, low, dilate, kernel_dilate = (
        int(rng.integers(*r)) for r in ((1, 9), (1, 5), (1, 4), (-2, 4), (1, 4), (1, 4))
    )
    out = int(rng.integers(1, 9))
    last = (size - 1) * dilate
    places = [o * stride - low + k * kernel_dilate for o in range(out) for k in range(kernel)]
    pairs = sum(0 <= p <= last and p % dilate == 0 for p in places)
    window = f"size={kernel} stride={stride} pad={low}_0 lhs_dilate={dilate} rhs_dilate={kernel_dilate}"
    assert (
        flops(convolution(f"{size},3,5", f"{kernel},5,7", f"{out},3,7", window, "0bf_0io->0bf")).total
        == 2 * pairs * 3 * 5 * 7
    )


def test_custom_calls_that_are_not_known_are_counted_by_target():
    body = """%condition (t: s32[]) -> pred[] {
  %t = s32[] parameter(0)
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%t, %n), direction=LT
}

%body (t: s32[]) -> s32[] {
  %t = s32[] parameter(0)
  ROOT %c = s32[] custom-call(%t), custom_call_target="mystery"
}
"""
    module = fixtures.program(
        """%p = f32[8] parameter(0)
        %i = s32[] constant(0)
        %w = s32[] while(%i), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
        %b = f32[8] custom-call(%p), custom_call_target="AllocateBuffer"
        ROOT %r = f32[8] copy(%p)""",
        body,
    )
    assert flops(module) == FlopCount({}, {"mystery": 4}, 0)


def test_a_pallas_kernel_counts_what_its_author_estimates():
    module = fixtures.program(
        """%p = f32[8] parameter(0)
        ROOT %k = f32[8] custom-call(%p), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"cost_estimate":{"flops":"1234"}}}"""
    )
    assert flops(module).by_kind == {"kernel": 1234.0}


def test_the_costliest_branch_counts():
    branches = "".join(
        f"""%branch{n} (x: f32[{n},8]) -> f32[{n},{n}] {{
  %x = f32[{n},8] parameter(0)
  ROOT %d = f32[{n},{n}] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
}}

"""
        for n in (4, 16)
    )
    module = fixtures.program(
        """%p = f32[8] parameter(0)
        %i = s32[] parameter(1)
        %c = f32[4,4] conditional(%i, %p, %p), branch_computations={%branch4, %branch16}
        ROOT %r = f32[8] copy(%p)""",
        branches,
    )
    assert flops(module).total == 2 * 16 * 16 * 8


def test_attention_by_the_convention():
    # 2 matmuls of 2 b n s s h, half of the square; 5 backward
    assert attention_flops(3 * 4, 64, 64, 128, 128, (1, 1), causal=True) == 2 * 2 * 3 * 4 * 64 * 64 * 128 / 2
    assert attention_flops(12, 64, 64, 128, 128, (3, 2), causal=True) == 2.5 * attention_flops(
        12, 64, 64, 128, 128, (1, 1), True
    )
    assert attention_flops(12, 64, 32, 192, 128, (1, 1), causal=False) == 2 * 12 * 64 * 32 * (192 + 128)
