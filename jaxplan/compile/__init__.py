"""What the compilers say: workers, targets, lowering, and reading optimised HLO."""
