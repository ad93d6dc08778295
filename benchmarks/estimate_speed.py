"""How many plans of llama3-405b on 2048x8 H100 the estimate tier prices in a second, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/estimate_speed.py

Every plan's whole ledger is computed: memory by part at the largest moment, time of every operation class by its
roofline, every collective on its links. The space of real plans is priced again and again until a million are.
"""

import time

import numpy as np

from jaxplan.compile.tiers import Tiers
from jaxplan.machine import catalogue
from jaxplan.search.rank import rank
from jaxplan.search.space import enumerate_space
from jaxplan.workload.shape import Workload

PLANS = 1_000_000


def main() -> None:
    machine = catalogue.machine("2048x8", "h100", None)
    workload = Workload(catalogue.model("llama3-405b"), batch=2048 * 64, seq=8192)
    with Tiers(machine, 1) as tiers:
        table = tiers.trace(workload)
    start = time.perf_counter()
    space = enumerate_space(workload, table, machine)
    ranking = rank(space, table, machine)
    print(f"enumerate and price {len(space):,} plans, everything included: {time.perf_counter() - start:.2f} s")
    variables = space.variables()
    done, spent = 0, 0.0
    while done < PLANS:
        for i, estimator in enumerate(ranking.estimators):
            rows = np.flatnonzero(ranking.priced_by == i)
            rows = np.resize(rows, max(len(rows), 50_000))
            x, mesh = variables[rows], space.mesh[rows]
            start = time.process_time()
            estimator.totals(x, mesh, ranking.network)
            spent += time.process_time() - start
            done += len(rows)
    print(f"{done:,} plans in {spent:.2f} s of one core's time: {done / spent:,.0f} plans a second")


if __name__ == "__main__":
    main()
