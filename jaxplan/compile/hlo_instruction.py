"""One instruction of HLO text, with its shapes, and the computation that holds it.

A line is only cut into name, type, opcode, operands and attributes (by hlo.py); everything finer is read
from those texts when it is asked for.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jaxplan.errors import JaxplanError

_TYPES_OF_BITS = {
    0: "token opaque",
    2: "s2 u2",
    4: "s4 u4 f4e2m1fn",
    8: "pred s8 u8 f8e3m4 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0fnu",
    16: "s16 u16 f16 bf16",
    32: "s32 u32 f32",
    64: "s64 u64 f64 c64",
    128: "c128",
}
BITS = {name: bits for bits, names in _TYPES_OF_BITS.items() for name in names.split()}

_SHAPE = re.compile(r"\b([a-z]+[0-9a-z]*)\[([0-9,<=]*)\](\{[^{}]*\})?")
_OPERAND = re.compile(r"%([^\s,(){}]+)")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([^\s,{}]+)"
    r"|\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}"
)
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_DECODER = json.JSONDecoder()


class HloError(JaxplanError):
    """HLO text that is cut off, malformed, or spelled in a way that is not known here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One array: element type, dimensions and layout text (`{1,0:T(8,128)S(1)}`, empty where not printed)."""

    dtype: str
    dims: tuple[int, ...]
    layout: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes without padding; types below 8 bits are packed."""
        if self.dtype not in BITS:
            raise HloError(f"element type {self.dtype!r} is not known: expected one of {', '.join(BITS)}")
        return -(-self.elements * BITS[self.dtype] // 8)

    @property
    def memory_space(self) -> int:
        """XLA's memory space: 0 is HBM; on TPU 1 is VMEM, 2 semaphores, 4 SMEM, 5 host memory."""
        match = _MEMORY_SPACE.search(self.layout)
        return int(match[1]) if match else 0


@lru_cache(maxsize=100_000)
def shapes_of(type_text: str) -> tuple[Shape, ...]:
    """Every array in the text of a type, tuples flattened."""
    return tuple(
        Shape(dtype, tuple(int(size.lstrip("<=")) for size in dims.split(",") if size), layout)
        for dtype, dims, layout in _SHAPE.findall(type_text)
    )


class Instruction:
    """One instruction; its texts are kept and read when needed.

    Attributes:
        name: unique in its computation.
        opcode: HLO opcode (`dot`, `all-gather-start`).
        type_text, operand_text, attribute_text: the three parts of its line.
        is_root: whether it is its computation's result.
        computation: the computation that holds it.
    """

    __slots__ = (
        "_called",
        "_config",
        "_operands",
        "attribute_text",
        "computation",
        "is_root",
        "name",
        "opcode",
        "operand_text",
        "type_text",
    )

    def __init__(
        self,
        name: str,
        is_root: bool,
        type_text: str,
        opcode: str,
        operand_text: str,
        attribute_text: str,
        computation: Computation,
    ) -> None:
        self.name, self.is_root, self.type_text, self.opcode = name, is_root, type_text, opcode
        self.operand_text, self.attribute_text, self.computation = operand_text, attribute_text, computation
        self._operands: tuple[str, ...] | None = None
        self._config: dict[str, Any] | None = None
        self._called: dict[str, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Instruction({self.name}: {self.opcode} in {self.computation.name})"

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result, tuples flattened."""
        return shapes_of(self.type_text)

    @property
    def shape(self) -> Shape:
        """The first array of its result."""
        shapes = self.shapes
        if not shapes:
            raise HloError(f"{self.name} has no array type: got {self.type_text!r}")
        return shapes[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its whole result."""
        return sum(shape.nbytes for shape in self.shapes)

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Names of its operands, in order."""
        if self._operands is None:
            leaf = self.opcode in ("constant", "parameter")
            self._operands = () if leaf else tuple(_OPERAND.findall(self.operand_text))
        return self._operands

    @property
    def operands(self) -> tuple[Instruction, ...]:
        """Its operands, in order."""
        return tuple(self.computation.instruction(name) for name in self.operand_names)

    def operand(self, index: int) -> Instruction:
        """Operand number `index`; HloError where there is none."""
        names = self.operand_names
        if not index < len(names):
            raise HloError(
                f"{self.name} ({self.opcode}) has {len(names)} operands, expected one with index {index}"
            )
        return self.computation.instruction(names[index])

    @property
    def structure(self) -> str:
        """The attributes before frontend attributes, metadata and config: where XLA's own syntax stands."""
        text = self.attribute_text
        ends = [text.find(word) for word in ("frontend_attributes={", "metadata={", "backend_config=")]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    @property
    def called(self) -> dict[str, tuple[str, ...]]:
        """Computations it calls by role: `calls`, `to_apply`, `body`, `condition`, `branches`."""
        if self._called is None:
            found: dict[str, tuple[str, ...]] = {}
            for role, name, many in _CALLED.findall(self.structure):
                if many:
                    found["branches"] = tuple(part.strip().lstrip("%") for part in many.split(","))
                elif role in ("true_computation", "false_computation"):
                    found["branches"] = (*found.get("branches", ()), name)
                else:
                    found[role] = (name,)
            self._called = found
        return self._called

    def attribute(self, key: str) -> str | None:
        """The plain value of `key=value` among its structural attributes, up to a comma or space."""
        match = re.search(rf"\b{key}=([^,\s]+)", self.structure)
        return match[1] if match else None

    def integers(self, key: str) -> tuple[int, ...]:
        """The numbers of `key={1,2}`; empty where absent."""
        match = re.search(rf"\b{key}=\{{([\d,\s]*)\}}", self.structure)
        return tuple(int(part) for part in match[1].split(",") if part.strip()) if match else ()

    def quoted(self, key: str) -> str:
        """The text of `key="..."` anywhere among its attributes; empty where absent."""
        start = self.attribute_text.find(f'{key}="')
        if start < 0:
            return ""
        start += len(key) + 2
        return self.attribute_text[start : self.attribute_text.find('"', start)]

    @property
    def op_name(self) -> str:
        """The JAX name stack it comes from (`jit(step)/jvp()/dot_general`); empty where unknown."""
        return self.quoted("op_name")

    @property
    def custom_call_target(self) -> str:
        """Target of a custom call; empty for everything else."""
        return self.quoted("custom_call_target") if self.opcode == "custom-call" else ""

    @property
    def channel_id(self) -> int | None:
        """Channel of a collective. Not unique: collectives from shard_map may all share one."""
        text = self.attribute("channel_id")
        return int(text) if text else None

    @property
    def config(self) -> dict[str, Any]:
        """The backend config as a dict; empty where there is none or where it is not JSON."""
        if self._config is None:
            start = self.attribute_text.find("backend_config=")
            self._config = (
                _config_at(self.attribute_text, start + len("backend_config=")) if start >= 0 else {}
            )
        return self._config


def _config_at(text: str, start: int) -> dict[str, Any]:
    try:
        value = _DECODER.raw_decode(text, start)[0]
        if isinstance(value, str):  # older printers quote the JSON
            value = json.loads(value)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(slots=True, eq=False)
class Computation:
    """A named list of instructions in schedule order."""

    name: str
    is_entry: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)
    root: Instruction | None = None

    def instruction(self, name: str) -> Instruction:
        """The instruction of that name; HloError where there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise HloError(
                f"computation {self.name} has no instruction {name!r}: is the text cut off?"
            ) from None

    def parameter(self, index: int) -> Instruction:
        """Parameter number `index`; HloError where there is none."""
        for instruction in self.instructions:
            if instruction.opcode == "parameter" and instruction.operand_text.strip() == str(index):
                return instruction
        raise HloError(f"computation {self.name} has no parameter {index}")
