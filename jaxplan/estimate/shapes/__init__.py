"""The step time and memory of workloads that exist only as a shape, in any framework: arrays over runs. No JAX here."""
