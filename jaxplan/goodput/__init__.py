"""How much of a run's time is useful work: failures, checkpoint interval, spares, days and money. No JAX, no files."""
