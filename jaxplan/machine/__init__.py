"""Chips, machines, the links under a mesh. No JAX here."""
