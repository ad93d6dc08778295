"""Which line of the user's program an HLO instruction comes from.

Older texts say it with the instruction (`source_file="..." source_line=12`), newer ones (jaxlib 0.10) name a stack
frame, whose tables stand before the first computation.
"""

from __future__ import annotations

import re

from jaxplan.compile.hlo import Instruction, Module

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_LINE = re.compile(r"source_line=(\d+)")


class SourceLines:
    """The source lines of one module's instructions."""

    def __init__(self, module: Module) -> None:
        tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
        current: dict[int, str] = {}
        for line in module.preamble:
            if line in tables:
                current = tables[line]
            elif line[:1].isdigit():
                number, _, rest = line.partition(" ")
                current[int(number)] = rest
        self._files = {number: name.strip('"') for number, name in tables["FileNames"].items()}
        self._locations, self._frames = tables["FileLocations"], tables["StackFrames"]

    def of(self, instruction: Instruction) -> str:
        """`path/file.py:12`, or an empty text where it is not known."""
        file, line = instruction.quoted("source_file"), _LINE.search(instruction.attribute_text)
        if file and line:
            return f"{file}:{line[1]}"
        frame = _FRAME.search(instruction.attribute_text)
        if frame is None:
            return ""
        location = self._locations.get(_number(self._frames.get(int(frame[1]), ""), "file_location_id"), "")
        file = self._files.get(_number(location, "file_name_id"), "")
        return f"{file}:{_number(location, 'line')}" if file else ""


def _number(entry: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", entry)
    return int(match[1]) if match else 0
