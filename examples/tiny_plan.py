"""The plan that the examples use when they are given none: a tiny decoder on eight chips.

    python examples/tiny_plan.py plan.json

A real plan comes from `jaxplan search`; this one is put together by hand, to show what a plan is made of.
"""

import argparse
import os
import sys
from pathlib import Path

DEVICES = 8


def virtual_devices() -> None:
    """Eight CPU devices in place of eight chips; must come before jax starts."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def write(path: Path) -> Path:
    """Decides a layout, asks the traced program for its arrays, and writes the plan."""
    from jaxplan.machine.catalogue import machine, model
    from jaxplan.plan import files
    from jaxplan.plan.plan import MeshAxis, Plan
    from jaxplan.plan.record import PlanRecord, installed_versions, leaf_specs
    from jaxplan.workload.decoder import loss_function
    from jaxplan.workload.optimizer import optimizer
    from jaxplan.workload.program import trace
    from jaxplan.workload.shape import Workload

    shape = model(str(Path(__file__).parent / "tiny.toml"))
    plan = Plan(
        machine=machine("2x4", "v5e"),
        workload=Workload(shape, batch=16, seq=64),
        axes=tuple(MeshAxis(role, 2, role) for role in ("data", "fsdp", "tensor")),
        remat="full",
        microbatches=2,
        attention="blockwise",
        zero1=True,
    )
    program = loss_function(shape, plan.workload.batch, plan.workload.seq)
    table = trace(
        program.loss,
        program.params,
        program.batch,
        program.parameter_dims,
        program.batch_dims,
        update=optimizer(plan.workload.optimizer),
        name=shape.name,
    )
    parameters, moments, batch = leaf_specs(table, plan.rules, tuple(plan.sizes))
    return files.write(PlanRecord(plan, parameters, moments, batch, versions=installed_versions()), path)


def plan_path(description: str) -> Path:
    """The plan named on the command line, or the tiny one in a temporary folder."""
    import tempfile

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "plan", nargs="?", type=Path, help=f"a plan for {DEVICES} devices; default: a tiny one"
    )
    given = parser.parse_args().plan
    return given if given is not None else write(Path(tempfile.mkdtemp()) / "plan.json")


def check_falls(losses: list[float]) -> None:
    """An example is an example only if it trains."""
    if not losses[-1] < losses[0]:
        sys.exit(f"the loss did not fall: {losses}")


if __name__ == "__main__":
    virtual_devices()
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "plan.json")))
