"""What compilers complain of, as findings: warnings in captured standard error, refusals, crashes.

The partitioner's warning of an involuntary full rematerialization is C++ logging on descriptor 2, at level
W: it is seen only where that descriptor is captured and TF_CPP_MIN_LOG_LEVEL is 0 or 1. Its wording differs
between XLA releases.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from jaxplan.compile.hlo_instruction import shapes_of
from jaxplan.units import GIB, KIB, MIB, TIB, format_bytes

FULL_REMATERIALIZATION = "full rematerialization"
OUT_OF_MEMORY = "out of memory"
OUT_OF_VMEM = "out of on-chip memory"
LOCKED = "compiler locked"
CRASHED = "compiler crashed"
KILLED = "compiler killed"
REFUSED = "compiler refused"

# Three wordings: "was not able to go from sharding A to B without doing a full rematerialization of the
# tensor for HLO operation: %x = ..." (before 2025), "cannot go from sharding A to B efficiently for HLO
# operation %x = ..." (jax 0.10), and the same with shardings as {mesh['x'=4], [{'x'}, {}]} (jax 0.12).
_REMATERIALIZATION = re.compile(
    r"Involuntary full rematerialization\.? The compiler (?:was not able to|cannot) go from sharding "
    r"(?P<source>\{.*?\}) to (?P<target>\{.*?\}) "
    r"(?:efficiently|without doing a full rematerialization of the tensor)"
    r" for HLO operation:? (?P<operation>.*?)(?:\. As the last resort|\. You probably want|\n|$)"
)
_TILES = re.compile(r"devices=\[([\d,]+)\]")
_MESH = re.compile(r"mesh\[([^\]]*)\]\s*,?\s*\[(.*)\]")
_USED_OF_HAS = r"(?P<used>[\d.]+[KMGT]?){}(?P<has>[\d.]+[KMGT]?)"
_HBM_REFUSALS = tuple(
    re.compile(before + _USED_OF_HAS.format(between))
    for before, between in (
        (r"required for HLO temporaries \(", r"\) exceeds available HBM \("),
        (r"memory space hbm\. Used ", " of "),
    )
)
_VMEM_REFUSAL = re.compile("Scoped allocation with size " + _USED_OF_HAS.format(" and limit "))
_GPU_REFUSAL = re.compile(r"Out of memory while trying to allocate (?P<used>\d+)(?: bytes)?")
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_CHECK_FAILED = re.compile(r"^F\d{4} .*?\] (.*)$", re.M)


@dataclass(frozen=True)
class Finding:
    """One complaint.

    Attributes:
        kind: one of the constants of this module.
        message: one sentence for the user.
        operation: the JAX operation or HLO instruction that it is about; empty where unknown.
        nbytes: of the whole tensor that is rematerialized, or that the program needs.
        available_bytes: what the device has, as the compiler says; None where it does not.
        from_sharding, to_sharding: as printed.
        source: `file:line` where the message names it.
    """

    kind: str
    message: str
    operation: str = ""
    nbytes: int | None = None
    available_bytes: int | None = None
    from_sharding: str = ""
    to_sharding: str = ""
    source: str = ""


def warnings(stderr: str) -> tuple[Finding, ...]:
    """Findings in what a compile wrote to descriptor 2, each once, in order."""
    return tuple(dict.fromkeys(_rematerializations(stderr)))


def _rematerializations(stderr: str) -> Iterator[Finding]:
    for match in _REMATERIALIZATION.finditer(stderr):
        text, source, target = match["operation"], match["source"], match["target"]
        head = re.match(r"%?(\S+) = (\S+)", text)
        instruction, shape = (head[1], head[2]) if head else (text.split(" ")[0].lstrip("%"), "")
        operation = _quoted(text, "op_name") or instruction
        nbytes = _whole_bytes(shape, source)
        size = f" ({format_bytes(nbytes)})" if nbytes else ""
        file, line = _quoted(text, "source_file"), re.search(r"source_line=(\d+)", text)
        yield Finding(
            FULL_REMATERIALIZATION,
            f"the partitioner replicates the whole tensor of {operation}{size} "
            f"to go from {source} to {target}",
            operation,
            nbytes,
            from_sharding=source,
            to_sharding=target,
            source=f"{file}:{line[1]}" if file and line else file,
        )


def _quoted(text: str, key: str) -> str:
    match = re.search(rf'{key}="([^"]*)"', text)
    return match[1] if match else ""


def _whole_bytes(shape: str, sharding: str) -> int | None:
    """Bytes of the whole tensor; the message prints one device's part under `sharding`."""
    arrays = shapes_of(shape)
    tiles = _tiles(sharding)
    return sum(array.nbytes for array in arrays) * tiles if arrays and tiles else None


def _tiles(sharding: str) -> int | None:
    """Into how many parts a sharding cuts a tensor; None where its spelling is not known."""
    old = _TILES.search(sharding)
    if old:
        sizes = [int(size) for size in old[1].split(",")]
        # The last dim of a partly replicated sharding counts copies, not parts.
        return math.prod(sizes[:-1] if "last_tile_dim_replicate" in sharding else sizes)
    new = _MESH.search(sharding)
    if new:
        axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", new[1])}
        used = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", new[2])
        return math.prod(int(part) if part else axes.get(name, 1) for name, part in used)
    return 1 if "replicated" in sharding else None


def refusal(message: str) -> Finding:
    """What the exception of a compile means.

    Args:
        message: the exception's text.
    """
    for pattern in _HBM_REFUSALS:
        match = pattern.search(message)
        if match:
            used, has = _size(match["used"]), _size(match["has"])
            said = f"the program needs {format_bytes(used)} of HBM, a device has {format_bytes(has)}"
            return Finding(OUT_OF_MEMORY, said, nbytes=used, available_bytes=has)
    match = _VMEM_REFUSAL.search(message)
    if match or "CompileTimeScopedVmemOom" in message:
        used, has = (_size(match["used"]), _size(match["has"])) if match else (None, None)
        sizes = (
            f" ({format_bytes(used)} of {format_bytes(has)})" if used is not None and has is not None else ""
        )
        return Finding(
            OUT_OF_VMEM,
            f"a kernel needs more on-chip memory than its limit{sizes}: "
            "use smaller blocks or raise xla_tpu_scoped_vmem_limit_kib",
            nbytes=used,
            available_bytes=has,
        )
    match = _GPU_REFUSAL.search(message)
    if match:
        used = int(match["used"])
        return Finding(OUT_OF_MEMORY, f"an allocation of {format_bytes(used)} failed", nbytes=used)
    if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
        return Finding(OUT_OF_MEMORY, f"the program does not fit: {_first_line(message)}")
    if "libtpu" in message and "lockfile" in message:
        return Finding(
            LOCKED,
            "another process holds the TPU compiler's lock: "
            "set ALLOW_MULTIPLE_LIBTPU_LOAD=1 before jax is imported",
        )
    return Finding(REFUSED, _first_line(message))


def crash(returncode: int, stderr: str = "") -> Finding:
    """Why a compiler's process ended without an answer.

    Args:
        returncode: as `subprocess` gives it: minus the signal's number where a signal ended it.
        stderr: what it wrote last.
    """
    if "lockfile" in stderr and "libtpu" in stderr:
        return refusal(stderr)
    failed = _CHECK_FAILED.search(stderr)
    said = f": {failed[1][:200]}" if failed else ""
    if returncode >= 0:
        return Finding(CRASHED, f"the compiler's process ended with exit code {returncode}{said}")
    number = -returncode
    name = (
        signal.Signals(number).name if number in {int(one) for one in signal.Signals} else f"signal {number}"
    )
    if name == "SIGKILL":
        return Finding(
            KILLED, "the compiler was killed (SIGKILL): most likely this machine ran out of memory"
        )
    if name == "SIGFPE":
        said = said or ": a GPU target config without clock or cores makes it divide by zero"
    return Finding(CRASHED, f"the compiler crashed ({name}){said}")


def _size(text: str) -> int:
    unit = text[-1] if text[-1] in _UNITS else ""
    return round(float(text.removesuffix(unit)) * _UNITS[unit])


def _first_line(message: str) -> str:
    return message.strip().split("\n")[0][:300]
