"""What a plan costs, by formulas over the table: memory, compute, communication, step time. No JAX."""
