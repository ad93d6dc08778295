"""Published runs made for tests."""

from jaxplan.validate.published import PublishedModel, PublishedRun

LLAMA_8B = PublishedModel(
    name="llama3-8b", layers=32, d_model=4096, d_ff=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256,
    mlp_matrices=3, tied_embeddings=False,
)  # fmt: skip


def run(**changes) -> PublishedRun:
    """Llama 3 8B on 8 H100, fully sharded, with these keys changed."""
    usual = PublishedRun(
        id="made", chip="h100-sxm", n_devices=8, framework="torchtitan (FSDP2)", model=LLAMA_8B, seq_len=8192,
        global_batch=8, dp=1, fsdp=8, tp=1, cp=1, pp=1, micro_batch=1, precision="bf16", remat="full", step_time_s=1.0,
    )  # fmt: skip
    return usual.model_copy(update=changes)
