"""Compiles with the compilers that are installed, in processes of their own."""

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.collectives import by_axes, collectives
from jaxplan.compile.hlo import parse
from jaxplan.compile.hlo_cost import flops

PROGRAMS = Path(__file__).with_name("hlo_programs.py")
SMALL = "layers=2,embed=256,mlp=512,vocab=512,batch=8,seq=256"


def installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that would hold it
        return False


def compiled(target, tmp_path):
    out = tmp_path / "step"
    command = [sys.executable, str(PROGRAMS), target, "fsdp=4,tensor=2", SMALL, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(Path(f"{out}.json").read_text())
    return parse(gzip.decompress(Path(f"{out}.hlo.gz").read_bytes()).decode()), record


def check(module, record, fused):
    model = fixtures.Model(**record["model"])
    forward, backward = model.attention_flops()
    attention = forward + backward if fused else model.plain_attention_flops()
    count = flops(module)
    assert count.total == pytest.approx((model.matmul_flops() + attention) / 8, rel=1e-6)
    assert count.uncovered == {} and count.unknown_trip_counts == 0
    axes = {"data": 1, "fsdp": 1, "tensor": 1, **record["axes"]}
    weights = model.layers * model.embed * (256 * (model.heads + model.kv_heads) + 3 * model.mlp)
    moved = by_axes(collectives(module, axes))
    gathers = moved[("all-gather", ("fsdp",))]
    assert gathers >= 2 * 2 * weights / 2  # bfloat16, forward and backward, half a tensor group each


def test_cpu(tmp_path):
    check(*compiled("cpu", tmp_path), fused=False)


@pytest.mark.compiler
@pytest.mark.skipif(not installed("libtpu"), reason="libtpu is not installed")
def test_tpu(tmp_path):
    check(*compiled("v5p:2x2x2", tmp_path), fused=True)


@pytest.mark.compiler
@pytest.mark.skipif(not installed("jax_plugins.xla_cuda13"), reason="the CUDA plugin is not installed")
def test_gpu(tmp_path):
    check(*compiled("h100:1x8x1", tmp_path), fused=True)
