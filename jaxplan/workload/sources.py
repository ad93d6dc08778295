"""Where an operation comes from, in its author's words: the parameter's path, else the name scope. No JAX here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxplan.workload.labels import Array, DraftOperation, Recorder

CARRIES_NAME = ("elementwise", "move")
TRANSFORMS = re.compile(r"\b(jvp|transpose|vmap|while|body|checkpoint|rematted_computation|closed_call)\b|[()]")
REMAT = "remat"


def sources(recorder: Recorder, gradients: Sequence[Array], paths: Sequence[str]) -> list[str]:
    """One text an operation: `layers.query`, `layers.query (remat)`, or the program's own name scope."""
    reads = _forward(recorder)
    writes = _backward(recorder, gradients, paths)
    out = []
    for operation in recorder.operations:
        found = [reads[value] for value, _ in operation.reads if value in reads]
        found += [writes[value] for value in operation.writes if value in writes]
        text = found[0] if found else TRANSFORMS.sub("", operation.source).strip("/").replace("//", "/")
        out.append(f"{text} ({REMAT})".strip() if "rematted" in operation.source else text)
    return out


def _forward(recorder: Recorder) -> dict[int, str]:
    """Values that are a parameter, or one parameter cast, cut or scaled: its path."""
    found = {i: value.path for i, value in enumerate(recorder.values) if value.kind == "parameter"}
    for operation in recorder.operations:
        names = {found.get(value, "") for value, _ in operation.reads}
        if len(names) == 1 and _is_cast(operation):
            name = names.pop()
            if name:
                found.update((value, name) for value in operation.writes)
    return found


def _backward(recorder: Recorder, gradients: Sequence[Array], paths: Sequence[str]) -> dict[int, str]:
    """Values that become one parameter's gradient by casts alone: its path."""
    found: dict[int, str] = {}
    for gradient, path in zip(gradients, paths, strict=True):
        if gradient.value is not None:
            found[gradient.value] = found[recorder.slices.get(gradient.value, gradient.value)] = path
    for operation in reversed(recorder.operations):
        name = next((found[value] for value in operation.writes if value in found), None)
        if name is not None and _is_cast(operation):
            for value, _ in operation.reads:
                found.setdefault(value, name)
    return found


def _is_cast(operation: DraftOperation) -> bool:
    return operation.kind in CARRIES_NAME and len(operation.reads) == 1
