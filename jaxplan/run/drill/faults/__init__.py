"""One fault a module: `NAME`, `WHAT` is done, what a `SAFE` system does, and `run(stage)`, which tells what happened.

A module that is put here is part of the drill: `jaxplan.run.drill.conduct` finds it.
"""
