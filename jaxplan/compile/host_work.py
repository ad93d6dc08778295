"""What one instruction of a CPU program costs, as counts whose prices a calibration knows. No JAX here.

XLA's CPU runtime runs an instruction as a library matmul, as one compiled loop over its result, or as a copy. Its time
is a sum over kinds of work. A loop that XLA cut into parts (`outer_dimension_partitions`) runs on as many cores as the
device has to itself.

What is counted of a fusion is what stands in it: an instruction that a loop evaluates more than once counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from jaxplan.compile.convolution_cost import convolution_flops
from jaxplan.compile.hlo import Computation, Instruction, Module, Shape
from jaxplan.compile.hlo_cost import dot_flops
from jaxplan.compile.kernels_cost import BOOKKEEPING
from jaxplan.compile.matmul_shape import shape_of
from jaxplan.compile.memory_traffic import FREE, memory_traffic
from jaxplan.compile.trip_count import trip_count
from jaxplan.machine.attached import FAR_BYTES

# Functions that compiled loops evaluate by a polynomial in vector registers, and those that they call one by one.
_TRANSCENDENTAL = frozenset(("exponential", "exponential-minus-one", "log", "log-plus-one", "tanh", "logistic", "erf"))
_CALLED = frozenset(("sine", "cosine", "tan", "power", "atan2", "cbrt"))
_DIVISION = frozenset(("divide", "remainder", "sqrt", "rsqrt"))
# Names for values, and what a loop reads or writes elsewhere than where it stands.
_UNCOUNTED = FREE | frozenset((
    "broadcast", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "reshape", "scatter",
    "slice", "transpose", "sort", "fusion", "call", "while", "custom-call", "reduce", "reduce-window",
    "select-and-scatter", "dot", "convolution",
))  # fmt: skip
_REARRANGES = frozenset(("concatenate", "pad", "reverse"))
_RELAYOUTS = frozenset(("copy", "transpose"))
PAGE_BYTES = 4096           # reads that far apart fall into one set of a first-level cache (64 sets of 64 bytes)
LINE_SETS_BYTES = 512       # nearer ones still have eight sets

Work = dict[str, float]     # kind of work to amount
Counts = Counter[str]


def work_of(module: Module, instruction: Instruction, parallel: float) -> Work:
    """The work of one execution of `instruction` on one device; empty for what takes no time.

    Args:
        parallel: cores that a device has to itself, at least 1.
    """
    opcode = instruction.opcode
    if opcode in FREE or instruction.custom_call_target in BOOKKEEPING:
        return {}
    found: Counter[str] = Counter()
    for one in _inside(module, instruction):
        found.update(_of_one(one))
    if not any(name.endswith("FLOPs") for name in found):       # a library's matmul has a price of its own for bytes
        found.update(_traffic(module, instruction))
    shared = min(parallel, _parts(instruction))
    spread = {name: amount if name.startswith("matmul") else amount / shared for name, amount in found.items()}
    return {**spread, "operations": 1.0}


def _traffic(module: Module, instruction: Instruction) -> Counts:
    """Bytes that an instruction moves: copied as they are, or read and written by a loop."""
    nbytes = memory_traffic(module, instruction)
    if instruction.opcode == "copy" and not _relayout(instruction):
        return _staged("bytes copied", nbytes)
    written = min(nbytes, instruction.nbytes)
    return Counter({"bytes read": nbytes - written, "bytes written": written}) + _staged("bytes", nbytes, first=False)


def _staged(name: str, nbytes: int, first: bool = True) -> Counts:
    """The bytes of one instruction, and what of them is beyond what each level of caches holds."""
    found = Counter({f"{name} beyond {limit}": max(0, nbytes - limit) for limit in FAR_BYTES})
    return found + Counter({name: nbytes if first else 0})


def _parts(instruction: Instruction) -> int:
    """Into how many parts XLA cut a loop."""
    parts = instruction.config.get("outer_dimension_partitions") or ["1"]
    return math.prod(int(part) for part in parts)


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """What computes in an instruction: itself, or the body of its fusion."""
    if instruction.opcode != "fusion":
        yield instruction
        return
    for one in module.callee(instruction, "calls").instructions:
        yield from _inside(module, one)


def _of_one(one: Instruction) -> Counts:
    """The work of one instruction that is no fusion, without its bytes."""
    opcode = one.opcode
    if opcode == "dot":
        return _matmul(one, dot_flops(one))
    if opcode == "convolution":
        moved = sum(operand.nbytes for operand in one.operands) + one.nbytes
        return Counter({"convolution FLOPs": round(convolution_flops(one)), "convolution bytes": moved})
    if opcode in ("reduce", "reduce-window", "select-and-scatter"):
        return _reduction(one)
    if opcode == "gather":
        return Counter({"gathered": one.shape.elements})
    if opcode == "scatter":
        return Counter({"scattered": one.operand(2).shape.elements})
    if opcode == "sort":
        value = one.operand(0).shape
        return Counter({"sorted": value.elements * max(value.dims, default=1).bit_length()})
    if opcode == "custom-call":
        return Counter({"chosen": one.operand(0).shape.elements}) if "TopK" in one.custom_call_target else Counter()
    if opcode in _REARRANGES:
        return Counter({"rearranged": one.shape.elements})
    if opcode in _RELAYOUTS:
        return _relayout(one)
    if opcode in _UNCOUNTED or not one.shapes:
        return Counter()
    return Counter({_class(one): one.shape.elements})


def _class(one: Instruction) -> str:
    if one.opcode in _TRANSCENDENTAL:
        return "transcendental"
    if one.opcode in _CALLED:
        return "called functions"
    if one.opcode in _DIVISION:
        return "divisions"
    if one.opcode == "convert" and "bf16" in (one.shape.dtype, one.operand(0).shape.dtype):
        return "narrowings" if one.shape.dtype == "bf16" else "widenings"
    return "arithmetic"


def _reduction(one: Instruction) -> Counts:
    """Elements that are reduced; along the innermost dim a sum waits for the one before it."""
    value = one.operand(0).shape
    inner = _minor(value)
    name = "reduced along rows" if inner in one.integers("dimensions") else "reduced across rows"
    return Counter({name: value.elements})


def _matmul(dot: Instruction, flops: float) -> Counts:
    """FLOPs and bytes of a library's matmul, by the dtype of its operands, and how many matrices it takes."""
    shape = shape_of(dot, flops)
    if shape is None:
        return Counter()
    dtype = "bf16" if dot.operand(0).shape.dtype in ("bf16", "f16") else "f32"
    moved = sum(one.nbytes for one in dot.operands) + dot.nbytes
    return Counter({
        f"matmul {dtype} FLOPs": round(flops),
        f"matmul {dtype} bytes": moved,
        "matmul matrices": round(shape.batch),
    })


def _relayout(one: Instruction) -> Counts:
    """Elements that a copy or a transpose reads out of order, once for each array that the loop reads so.

    Reads a power of two apart fall into the same few sets of a cache, and push each other out of it.
    """
    source, target = one.operand(0).shape, one.shape
    if _physical(source, one) == order_of(target):
        return Counter()
    nbytes = _stride(source, _read_along(one, source, target)) * source.nbytes // max(1, source.elements)
    reads = source.elements * max(1, _arrays_read(one, source.elements))
    if nbytes <= source.nbytes // max(1, source.elements):
        return Counter({"rearranged": reads})       # runs of the innermost dim stay whole
    apart = math.gcd(nbytes, PAGE_BYTES)
    return Counter({f"read {apart if apart >= LINE_SETS_BYTES else 'any number of'} bytes apart": reads})


def _physical(source: Shape, one: Instruction) -> tuple[int, ...]:
    """The order of the source's dims, in the target's numbers."""
    if one.opcode == "copy":
        return order_of(source)
    dims = one.integers("dimensions")
    return tuple(dims.index(dim) for dim in order_of(source))


def _read_along(one: Instruction, source: Shape, target: Shape) -> int:
    """The source's dim along which a loop over the target reads."""
    inner = _minor(target)
    return one.integers("dimensions")[inner] if one.opcode == "transpose" and target.dims else inner


def order_of(shape: Shape) -> tuple[int, ...]:
    """Dims from the innermost outwards, as the layout has them; row-major where none is printed."""
    text = shape.layout.strip("{}").partition(":")[0]
    return tuple(int(dim) for dim in text.split(",") if dim) or tuple(reversed(range(len(shape.dims))))


def _minor(shape: Shape) -> int:
    """The innermost dim that is longer than 1."""
    return next((dim for dim in order_of(shape) if shape.dims[dim] > 1), 0)


def _stride(shape: Shape, dim: int) -> int:
    """Elements between neighbours along a dim."""
    order = order_of(shape)
    return math.prod(shape.dims[d] for d in order[: order.index(dim)]) if dim in order else 1


def _arrays_read(one: Instruction, elements: int) -> int:
    """Arrays of about that size that the loop reads to make the operand of `one`."""
    computation, seen, pending = one.computation, set(), list(one.operand_names)
    if computation.is_entry:
        return 1
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += computation.instruction(name).operand_names
    values = (computation.instruction(name) for name in seen)
    return sum(v.opcode == "parameter" and bool(v.shapes) and v.shape.elements >= elements for v in values)


def loop_work(module: Module, parallel: float) -> Work:
    """The work of one trip of a program's longest loop."""
    bodies = [module.callee(one, "body") for one in module.entry.instructions if one.opcode == "while"]
    return max((computation_work(module, body, parallel) for body in bodies), key=lambda work: sum(work.values()))


def computation_work(module: Module, computation: Computation, parallel: float) -> Work:
    """The work of one execution of a computation, with the loops and calls in it."""
    found: Work = {}
    for one in computation.instructions:
        times, inner = 1, {}
        if one.opcode == "while":
            times = trip_count(module, one).count or 1
            inner = computation_work(module, module.callee(one, "body"), parallel)
        elif one.opcode == "call":
            inner = computation_work(module, module.callee(one, "to_apply", "calls"), parallel)
        else:
            inner = work_of(module, one, parallel)
        for name, amount in inner.items():
            found[name] = found.get(name, 0.0) + times * amount
    return found
