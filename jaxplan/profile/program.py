"""The HLO of the program that a profile is about: from the profile itself, or from a text beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jaxplan.compile.hlo import HloError, Module, parse
from jaxplan.compile.wire import fields
from jaxplan.errors import InputError
from jaxplan.profile.trace import Trace

TEXTS = "*.hlo.txt"
_MODULE = 1     # field of HloProto that holds the module (openxla/xla, xla/service/hlo.proto)


def module_of(trace: Trace) -> tuple[Module | None, str]:
    """(the main program's module, why there is none).

    A profile holds the programs of its run as HLO protos; jaxlib turns one into text. That function is not part of
    JAX's public interface: where it is gone, or the proto is another version's, the text must be given.
    """
    program = trace.programs[trace.main]
    if not program.proto:
        return None, f"the profile does not hold the HLO of {program.name or 'its program'}"
    try:
        from jaxlib._hlo import HloModule  # type: ignore[import-not-found]  # not public: see above

        return parse(HloModule.from_serialized_hlo_module_proto(_module(program.proto)).to_string()), ""
    except (ImportError, AttributeError):
        return None, "jaxlib here cannot turn the profile's HLO into text"
    except (HloError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, f"the profile's HLO of {program.name} is not understood here ({first})"


def _module(proto: bytes) -> bytes:
    for number, value in fields(memoryview(proto)):
        if number == _MODULE and not isinstance(value, int):
            return bytes(value)
    raise HloError("the HLO proto holds no module")


def read_text(path: Path) -> Module:
    """The module of a file of HLO text (`jit(step).lower(...).compile().as_text()`).

    Raises:
        InputError: it cannot be read, or is no optimized HLO.
    """
    try:
        return parse(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "a file of HLO text") from error
    except (HloError, UnicodeDecodeError) as error:
        how = "Path(...).write_text(jax.jit(step).lower(...).compile().as_text())"
        raise InputError(f"{path}: {error}", "optimized HLO as text", how) from error


def text_beside(folder: Path, name: str) -> Module | None:
    """The module of that name among the HLO texts of a folder; None where there is none."""
    for path in sorted(folder.glob(TEXTS)) if folder.is_dir() else ():
        try:
            found = read_text(path)
        except InputError:
            continue
        if found.name == name:
            return found
    return None


def on_devices(module: Module, axes: Mapping[str, int]) -> Module:
    """The same with the number of its devices, which a text made of a proto does not say."""
    count = math.prod(axes.values())
    if module.devices != 1 or count == 1:
        return module
    return replace(module, header=f"{module.header}, num_partitions={count}")

