"""Which plans there are, in which order, and why. No JAX."""
