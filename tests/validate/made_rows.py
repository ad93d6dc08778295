"""Predictions made for tests."""

from jaxplan.validate.row import Row

ROW = Row(
    id="a", chip="h100-sxm", framework="torchtitan (FSDP2)", group="FSDP", kind="dense", grade="A", source="s",
    series="layouts", varies="FSDP / TP / batch", devices=8, part="check", tokens_per_step=65536.0,
    model_flops=4e14, peak_flops_per_s=1e15, published_step_time_s=1.0, predicted_step_time_s=1.0, low_s=1.0,
    high_s=1.0, ledger_s={"matmul": 1.0}, published_memory_bytes=None, memory_kind="",
    predicted_memory_bytes=None, capacity_bytes=8e10, fits=None, oom=False, not_predicted=None, doubt=None,
)
