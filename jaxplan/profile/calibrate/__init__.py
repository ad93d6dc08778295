"""Measuring the attached machine: kernels, collectives, and the fit of what they cost."""
