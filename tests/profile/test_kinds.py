"""Kinds that only names tell: those that profilers and libraries give."""

import pytest

from jaxplan.profile.kinds import Class, by_name


@pytest.mark.parametrize(
    ("name", "hint", "entry"),
    [
        ("fusion.1", "convolution fusion", "matmul"),
        ("fusion.2", "loop fusion", "memory-bound"),
        ("copy.3", "data formatting", "memory-bound"),
        ("all-gather-done.1", "async-done", "exposed all-gather"),
        ("all-reduce-scatter.1", "reduce-scatter", "exposed reduce-scatter"),
        ("ragged-all-to-all.1", "", "exposed ragged-all-to-all"),
        ("copy-start.1", "copy-start", "exposed copies"),
        ("send.1", "host send", "exposed host transfers"),
        ("while.1", "while", "loop control"),
        ("closed_call.1", "custom-call", "kernel"),
        ("splash_mha_fwd", "custom-call", "kernel"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "", "attention"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16>", "", "matmul"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "", "matmul"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x64", "", "matmul"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", "", "exposed reduce-scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "", "exposed collective-permute"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "", "exposed collectives"),
        ("all-gather-start.1", "ncclDevKernel_Generic_4(...)", "exposed all-gather"),
        ("MemcpyH2D", "", "exposed host transfers"),
        ("MemcpyD2D", "", "exposed copies"),
        ("loop_add_fusion", "", "memory-bound"),
    ],
)
def test_names(name, hint, entry) -> None:
    assert by_name(name, hint).entry == entry


def test_a_wait_begins_nothing() -> None:
    assert by_name("all-gather-start.1", "").begins
    assert not by_name("all-gather-done.1", "").begins
    assert by_name("all-gather.1", "").group is Class.COLLECTIVE
