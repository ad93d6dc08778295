"""Predictions against published runs: what was measured, what we say of it, how far that is off. No JAX here."""
