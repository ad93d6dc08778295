"""The pieces of training steps that are timed alone: matmuls, passes over memory, lookups, transposes, loops.

Sizes are of one device. Lists are chosen to span what programs of one device hold, from what fits into a first-level
cache to what fits into none; no entry is taken from a program that a calibration is judged by. Imports JAX when called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Array = Any
KILO, MEGA = 1024, 1024**2
F32, BF16, I32 = "float32", "bfloat16", "int32"
TURN = "turn of the loop"
SHORT = {F32: "f32", BF16: "bf16"}


@dataclass(frozen=True)
class Kernel:
    """One piece.

    Attributes:
        family: `matmul`, `memory`, `elementwise`, `reduction`, `layout`, `lookup`, `loop` or `convolution`.
        function: of arrays to an array or a tuple of arrays.
        arguments: (shape, dtype name) of each; integers index rows of the first argument.
        flops: of its matmuls; 0 where it has none.
    """

    name: str
    family: str
    function: Callable[..., Any]
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    flops: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of its arguments."""
        sizes = {"float32": 4, "bfloat16": 2, "int32": 4}
        return sum(math.prod(shape) * sizes[dtype] for shape, dtype in self.arguments)


def kernels(large: bool, quick: bool) -> tuple[Kernel, ...]:
    """All kernels.

    Args:
        large: sizes of an accelerator's instead of a CPU's.
        quick: about every fourth of them: enough for a rough calibration in seconds.
    """
    found = tuple(_accelerator() if large else _host())
    if quick:
        return tuple(k for k in found if k.name in QUICK) if not large else found[::4]
    return found


QUICK = frozenset((
    "matmul f32 256x256x256", "matmul f32 512x512x512", "matmul f32 64x512x1024", "matmul f32 128x64x128 x16",
    "matmul bf16 128x128x128", "matmul bf16 512x512x512 to f32", "matmul bf16 128x64x128 x16 to f32",
    "add 65536 float32", "add 1048576 float32", "add 262144 bfloat16", "exp 65536", "sine 65536", "softmax 512x256",
    "adam 65536", "layer norm 512x256 float32", "gate 512x256 bfloat16", "sum across rows 512x256",
    "transpose 2048x128", "transpose 1024x256", "transpose 1024x512", "transpose 512x2048", "transpose 200x500",
    "copy 65536",
    "heads 8x128x4x64", "join 512x512", "lookup 1024 of 2048x128", "scatter 256 into 2048x128", "sort 64x256",
    "largest 2 of 512x16", "steps of a loop", "small operations", "convolution 4x16x32x32",
))  # fmt: skip


def _matmul(
    rows: int, inner: int, columns: int, dtype: str, form: str = "mk,kn->mn", batch: int = 0, wide: bool = False
) -> Kernel:
    """A matmul of [rows, inner] by [inner, columns], `batch` of them; `wide`: with a float32 result."""
    import jax.numpy as jnp

    sizes = {"m": rows, "k": inner, "n": columns, "b": batch}
    left, right, result = form.replace("->", ",").split(",")
    spelled = f"b{left},b{right}->b{result}" if batch else form
    name = f"matmul {SHORT[dtype]} {rows}x{inner}x{columns}" + (f" x{batch}" if batch else "")
    name += ("" if form == "mk,kn->mn" else f" {form}") + (" to f32" if wide else "")
    shapes = tuple((tuple(sizes[c] for c in labels), dtype) for labels in spelled.split("->")[0].split(","))

    def function(x: Array, y: Array) -> Array:
        return jnp.einsum(spelled, x, y, preferred_element_type=F32 if wide else None)

    return Kernel(name, "matmul", function, shapes, 2.0 * max(batch, 1) * rows * inner * columns)


def _one(name: str, family: str, function: Callable[..., Any], *arguments: tuple[tuple[int, ...], str]) -> Kernel:
    return Kernel(name, family, function, arguments)


SHAPES = ((128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (64, 512, 1024), (1024, 64, 1024),
          (1024, 512, 96), (32, 256, 256), (384, 640, 896), (2048, 256, 768))  # fmt: skip
BATCHED = ((128, 64, 128, 16), (64, 32, 64, 64), (256, 64, 256, 8), (256, 32, 48, 32), (96, 192, 128, 4))


def _host() -> Iterator[Kernel]:
    yield from _matmuls(F32, False)
    yield from _matmuls(BF16, True)
    yield from (_matmul(*shape, BF16) for shape in SHAPES[::3])
    yield from _passes((16 * KILO, 64 * KILO, 256 * KILO, MEGA, 4 * MEGA))
    yield from _rows(((512, 256), (128, 64), (2048, 512), (64, 4096)))
    yield from _layouts()
    yield from _lookups()
    yield from _loops()
    yield from _convolutions()


def _matmuls(dtype: str, wide: bool) -> Iterator[Kernel]:
    """One by one, in batches, and with operands the other way round."""
    yield from (_matmul(*shape, dtype, wide=wide) for shape in SHAPES)
    for rows, inner, columns, batch in BATCHED:
        yield _matmul(rows, inner, columns, dtype, batch=batch, wide=wide)
    yield _matmul(512, 256, 512, dtype, "km,kn->mn", wide=wide)
    yield _matmul(256, 512, 1024, dtype, "mk,nk->mn", wide=wide)
    yield _matmul(256, 1024, 320, dtype, "mk,nk->nm", wide=wide)
    yield _matmul(128, 64, 128, dtype, "mk,nk->mn", batch=16, wide=wide)


def _passes(sizes: tuple[int, ...]) -> Iterator[Kernel]:
    """Loops over flat arrays."""
    import jax.numpy as jnp

    for n in sizes:
        for dtype in (F32, BF16):
            yield _one(f"add {n} {dtype}", "memory", lambda x, y: x + y, ((n,), dtype), ((n,), dtype))
    for n in sizes[1:4]:
        yield _one(f"exp {n}", "elementwise", jnp.exp, ((n,), F32))
        yield _one(f"tanh {n}", "elementwise", jnp.tanh, ((n,), F32))
        yield _one(f"sine {n}", "elementwise", jnp.sin, ((n // 4,), F32))
        yield _one(f"divide {n}", "elementwise", lambda x, y: x / (y + 2), ((n,), F32), ((n,), F32))
        yield _one(f"narrow {n}", "elementwise", lambda x: x.astype(BF16), ((n,), F32))
        yield _one(f"widen {n}", "elementwise", lambda x: x.astype(F32), ((n,), BF16))
        yield _one(f"adam {n}", "elementwise", _adam, *((((n,), F32),) * 4))
        yield _one(f"polynomial {n}", "elementwise", _polynomial, ((n,), F32))


def _adam(p: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    import jax.numpy as jnp

    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), m, v


def _polynomial(x: Array) -> Array:
    for k in range(16):
        x = x * x - 1.0 / (k + 1)
    return x


def _rows(shapes: tuple[tuple[int, int], ...]) -> Iterator[Kernel]:
    """Passes over rows: normalisations, gates, sums."""
    import jax
    import jax.numpy as jnp

    def norm(x: Array, w: Array) -> Array:
        wide = x.astype(F32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * w

    def centred(x: Array, w: Array) -> Array:
        return (x - jnp.mean(x, axis=-1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-6) * w

    def gate(x: Array, y: Array) -> Array:
        return jax.nn.silu(x) * y

    for rows, width in shapes:
        size = f"{rows}x{width}"
        yield _one(f"softmax {size}", "reduction", jax.nn.softmax, ((rows, width), F32))
        for dtype in (F32, BF16):
            yield _one(f"layer norm {size} {dtype}", "reduction", norm, ((rows, width), dtype), ((width,), dtype))
            yield _one(f"gate {size} {dtype}", "elementwise", gate, *(((rows, width), dtype),) * 2)
        yield _one(f"sum of rows {size}", "reduction", lambda x: x.sum(1), ((rows, width), F32))
        yield _one(f"sum across rows {size}", "reduction", lambda x: x.sum(0), ((rows, width), F32))
        yield _one(f"log sum {size}", "reduction", lambda x: jax.nn.logsumexp(x, axis=-1), ((rows, width), F32))
    yield _one("gate 256x1024 bfloat16", "elementwise", gate, *(((256, 1024), BF16),) * 2)
    yield _one("sum across rows 512x512", "reduction", lambda x: x.sum(0), ((512, 512), F32))
    yield _one("centred 1024x256", "reduction", centred, ((1024, 256), F32), ((256,), F32))


#: Rows a power of two apart, and rows that are not: from 512 bytes to two pages.
TURNED = ((2048, 128), (1024, 256), (1024, 512), (1024, 1024), (512, 2048), (200, 500), (1000, 1000), (96, 3000))


def _layouts() -> Iterator[Kernel]:
    """Transposes, alone and in loops that read several arrays out of order."""
    import jax.numpy as jnp

    def heads(x: Array) -> Array:
        return jnp.transpose(x, (0, 2, 1, 3)).ravel() + x.ravel()

    for rows, columns in TURNED:
        size = f"{rows}x{columns}"
        yield _one(f"transpose {size}", "layout", _turned, ((rows, columns), F32))
        yield _one(f"transpose of products {size}", "layout", lambda x, y, z: _turned(x * y + z) + y.ravel(),
                   *(((rows, columns), F32),) * 3)  # fmt: skip
    yield _one("transpose 512x512 bfloat16", "layout", _turned, ((512, 512), BF16))
    yield _one("transpose 300x700 bfloat16", "layout", _turned, ((300, 700), BF16))
    for n in (64 * KILO, MEGA):
        yield _one(f"copy {n}", "layout", lambda x: x, ((n,), F32))
    yield _one("heads 8x128x4x64", "layout", heads, ((8, 128, 4, 64), F32))
    yield _one("heads 2x256x8x32 bfloat16", "layout", heads, ((2, 256, 8, 32), BF16))
    yield _one("join 512x512", "layout", lambda x, y: jnp.concatenate([x, y], 1), *(((512, 512), F32),) * 2)
    yield _one("pad 500x500", "layout", lambda x: jnp.pad(x, 6), ((500, 500), F32))


def _turned(x: Array) -> Array:
    """Transposed, and added to itself as it was, so that no layout serves both."""
    return x.T.ravel() + x.ravel()


def _lookups() -> Iterator[Kernel]:
    """Rows taken from a table, rows added into one, and choices among few."""
    import jax

    def add(table: Array, rows: Array, values: Array) -> Array:
        return table.at[rows].add(values)

    def largest(x: Array) -> Any:
        return jax.lax.top_k(x, 2)

    for count, rows, width in ((1024, 2048, 128), (256, 512, 512), (4096, 8192, 64)):
        name = f"{count} of {rows}x{width}"
        yield _one(f"lookup {name}", "lookup", lambda t, i: t[i], ((rows, width), F32), ((count,), I32))
    for count, rows, width in ((256, 2048, 128), (1024, 512, 256), (2048, 4096, 32)):
        arguments = (((rows, width), F32), ((count,), I32), ((count, width), F32))
        yield _one(f"scatter {count} into {rows}x{width}", "lookup", add, *arguments)
    for rows, width in ((512, 16), (4096, 8)):
        yield _one(f"largest 2 of {rows}x{width}", "lookup", largest, ((rows, width), F32))
    yield _one("one-hot 1024 of 512", "lookup", lambda t, i: jax.nn.one_hot(i, 512) * t[0, 0], ((8, 8), F32),
               ((1024,), I32))  # fmt: skip
    yield _one("sort 64x256", "lookup", lambda x: jax.numpy.sort(x, axis=-1), ((64, 256), F32))


def _loops() -> Iterator[Kernel]:
    """Loops whose bodies do next to nothing, and loops that read and write one row of a stack."""
    import jax
    import jax.numpy as jnp

    def steps(x: Array) -> Array:
        return jax.lax.scan(lambda c, _: (jnp.roll(c, 1) * 1.5, None), x, length=64)[0]

    def stack(x: Array) -> Array:
        return jax.lax.scan(lambda c, row: (c + row, c * 0.5), x[0], x)[1]

    yield _one("steps of a loop", "loop", steps, ((64,), F32))
    yield _one("stack 32x4096", "loop", stack, ((32, 4096), F32))
    yield _one("stack 8x262144", "loop", stack, ((8, 262144), F32))
    yield _one("small operations", "loop", _small, *(((32,), F32),) * 2)


def _small(x: Array, y: Array) -> Array:
    """A chain of operations too small to take time; sums keep them apart."""
    for _ in range(16):
        x = x * (y * x.sum())
    return x


def _convolutions() -> Iterator[Kernel]:
    import jax

    def convolution(x: Array, w: Array) -> Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    for batch, side, inputs, outputs in ((4, 16, 32, 32), (2, 32, 16, 64), (8, 8, 64, 128)):
        flops = 2.0 * batch * side**2 * 9 * inputs * outputs
        shapes = (((batch, side, side, inputs), F32), ((3, 3, inputs, outputs), F32))
        yield Kernel(f"convolution {batch}x{side}x{inputs}x{outputs}", "convolution", convolution, shapes, flops)


def _accelerator() -> Iterator[Kernel]:
    """Fewer and larger ones: what fills a chip, down to what does not."""
    import jax.numpy as jnp

    for dtype in (BF16, F32):
        for side in (512, 1024, 2048, 4096, 8192):
            yield _matmul(side, side, side, dtype)
        for shape in ((8192, 1024, 4096), (4096, 4096, 14336), (16384, 4096, 1024)):
            yield _matmul(*shape, dtype)
        for n in (MEGA, 16 * MEGA, 256 * MEGA):
            yield _one(f"add {n} {dtype}", "memory", lambda x, y: x + y, ((n,), dtype), ((n,), dtype))
    yield _one("exp 67108864", "elementwise", jnp.exp, ((64 * MEGA,), F32))
    yield _one("adam 67108864", "elementwise", _adam, *((((64 * MEGA,), F32),) * 4))
    for heads, seq, width in ((32, 2048, 128), (32, 4096, 128)):
        flops = 2.0 * 2 * heads * seq * seq * width / 2
        shapes = (((1, seq, heads, width), BF16),) * 3
        yield Kernel(f"attention {heads}x{seq}x{width}", "attention", _attention, shapes, flops)
    yield from _loops()


def turn() -> Kernel:
    """Next to nothing: what one turn of the loop takes, which an accelerator's host decides anew each time."""
    return _one(TURN, "turn", lambda x: x + 1, ((1,), F32))


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention by the kernel of the platform: cuDNN's where there is one, else XLA's."""
    import jax

    kernel = "cudnn" if jax.default_backend() == "gpu" else "xla"
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kernel)
