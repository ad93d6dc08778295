"""The drill's child: trains as it is ordered and tells every step, until it is killed. Imports JAX when it starts.

    python -m jaxplan.run.drill.trainer PARENT_PID        orders on standard input, events on standard output

Events: `attached` (jax, platform, device_kind, devices, processes), `program` (of a layout), `resumed` (step, digest,
seconds, passed_over, notes, samples, shards), `begin` (step), `step` (step, loss, digest), `saving` and `saved` (step),
`save_failed` (step, message), `rolled_back` (to), and one that ends an order: `done`, `preempted`, `refused` (the
restore failed), `failed` (anything else did).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import sys
import threading
import time
from typing import Any

from jaxplan.compile.job import die_with_parent
from jaxplan.errors import CheckpointError, NotFiniteError
from jaxplan.plan.decisions import plan_from
from jaxplan.run.drill.orders import Order, Session


class Trainer:
    """One process; programs stay compiled from one order to the next."""

    def __init__(self, session: Session, out: Any) -> None:
        self.session, self._out = session, out
        self._programs: dict[tuple[str, str, str], Any] = {}
        self.plan = plan_from(session.decisions)

    def say(self, event: str, **about: Any) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in about.items()}
        self._out.write(json.dumps({"event": event, **finite}) + "\n")
        self._out.flush()

    def start(self) -> None:
        """JAX, alone or with its peers."""
        import jax

        jax.config.update("jax_compilation_cache_dir", self.session.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        peers = self.session.peers
        if peers is not None:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(
                peers.address, peers.processes, peers.process, heartbeat_timeout_seconds=10, initialization_timeout=60
            )
        first = jax.devices()[0]
        self.say(
            "attached", jax=jax.__version__, platform=first.platform, device_kind=first.device_kind,
            devices=jax.device_count(), processes=jax.process_count(),
        )  # fmt: skip

    def do(self, order: Order) -> None:
        """One order, to its last event."""
        from jaxplan.run.drill.stores import keeper

        try:
            program = self._program(order)
            with keeper(self.session.store, self.session, order, program.plan.layer_order) as kept:
                if order.roll_back_to:
                    kept.roll_back(order.roll_back_to)
                event, about = self._train(order, program, kept)
            self.say(event, **about)        # the last save is on disk by now
        except Exception as error:
            self.say("failed", kind=type(error).__name__, message=str(error) or type(error).__name__)
            if self.session.peers is not None:      # leaving in order would wait for a peer that may be dead
                os._exit(1)

    def _program(self, order: Order) -> Any:
        from jaxplan.run.drill.setup import program

        key = order.layout, order.optimizer, order.dtype
        if key not in self._programs:
            self._programs[key] = made = program(self.plan, order)
            self.say("program", **made.facts)
        return self._programs[key]

    def _train(self, order: Order, program: Any, kept: Any) -> tuple[str, dict[str, Any]]:
        """Returns the last event and what is told with it."""
        begin = time.perf_counter()
        try:
            found = kept.restore(program.step.abstract_state, order)
        except Exception as error:
            return "refused", {"kind": type(error).__name__, "message": str(error)}
        state, step = (program.init(), 0) if found is None else (found.state, found.step)
        if found is not None:
            self.say("resumed", step=step, digest=digest(state), seconds=time.perf_counter() - begin, **found.about)
        batch_size, poisoned = program.plan.workload.batch, False
        while step < order.last:
            step += 1
            self._before(order, step)
            state, metrics = program.function(state, program.batch(step))
            loss = float(metrics["loss"])
            if step == order.poison_at and not poisoned:
                state, poisoned = poison(state), True
            self.say("step", step=step, loss=loss, digest=digest(state))
            try:
                if self._after(order, kept, step, state, loss, step * batch_size):
                    return "preempted", {"step": step}
            except NotFiniteError as error:
                self.say("save_failed", step=step, message=str(error))
                found = kept.restore(program.step.abstract_state, order)
                if found is None:
                    raise
                state, step = found.state, found.step
                self.say("rolled_back", to=step)
            except (CheckpointError, ValueError, OSError) as error:
                self.say("save_failed", step=step, message=str(error).strip().partition("\n")[0])
        return "done", {"step": step}

    def _before(self, order: Order, step: int) -> None:
        """What happens to a step: its data take a while, files get a limit for one interval, it hangs."""
        self.say("begin", step=step)
        time.sleep(order.pace_s)
        if order.file_limit is not None:
            first, most = order.file_limit
            limit = most if first <= step < first + order.every else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if step == order.hang_at:
            threading.Event().wait()

    def _after(self, order: Order, kept: Any, step: int, state: Any, loss: float, samples: int) -> bool:
        """Saves where it is time to, or where the process is asked to end: then the answer is yes."""
        from jaxplan.checkpoint import Position

        stop = kept.after(step)
        if stop or step % order.every == 0:
            self.say("saving", step=step)
            kept.save(step, state, loss, Position(samples, order.shards, order.order))
            self.say("saved", step=step)
        return stop


def digest(state: Any) -> str:
    """One text for the bits of a whole state."""
    import jax

    from jaxplan.checkpoint.digest import digests

    return hashlib.sha256(repr(digests(jax.tree.leaves(state))[0]).encode()).hexdigest()[:16]


def poison(state: Any) -> Any:
    """Every float of a state as NaN, where it lies."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda x: x * jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else x, state)


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)       # whatever else prints breaks no line
    trainer = Trainer(Session.of(json.loads(sys.stdin.readline())), out)
    trainer.start()
    for line in sys.stdin:
        trainer.do(Order(**json.loads(line)))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
