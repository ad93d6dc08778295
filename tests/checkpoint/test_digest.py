"""Digests: equal to a sum in Python's integers, equal on every layout, and no single flip is missed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_state import mesh, put

from jaxplan.checkpoint.digest import digests

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
DTYPES += ["int8", "int32", "int4", "uint8", "uint16", "bool", "complex64"]


def odd_hash(i: int) -> int:
    """`lowbias32` in Python's integers, made odd."""
    i ^= i >> 16
    i = i * 0x7FEB352D % 2**32
    i ^= i >> 15
    i = i * 0x846CA68B % 2**32
    return (i ^ i >> 16) | 1


def by_hand(words: np.ndarray) -> int:
    return sum(int(word) * odd_hash(i) for i, word in enumerate(words.ravel())) % 2**32


def one(array) -> int:
    return digests([array])[0][0]


@pytest.mark.parametrize(("dtype", "word"), [("float32", "u4"), ("bfloat16", "u2"), ("int8", "u1"), ("bool", "u1")])
def test_it_is_the_sum_that_the_formula_says(dtype, word):
    array = jax.random.normal(jax.random.key(1), (3, 5, 7)).astype(dtype)
    assert one(array) == by_hand(np.asarray(array).view(word))


def test_elements_of_64_bits_are_two_words():
    array = jax.random.normal(jax.random.key(1), (5, 3)).astype(jnp.complex64)
    assert one(array) == by_hand(np.asarray(array).view("u4"))
    with jax.enable_x64(True):
        assert one(jnp.asarray([1.5, -2.25], jnp.float64)) == by_hand(np.array([1.5, -2.25]).view("u4"))


def test_it_is_the_same_on_every_layout():
    array = jax.random.normal(jax.random.key(2), (16, 32))
    arrays = [array.astype(dtype) for dtype in DTYPES]
    layouts = [(mesh(2, 4), ("a", "b")), (mesh(8, 1), ("a",)), (mesh(2, 2), ("b", "a")), (mesh(2, 4), ())]
    found = [digests([put(a, *layout) for a in arrays]) for layout in layouts]
    assert all(one == digests(arrays) for one in found)


def test_keys_and_scalars_have_digests():
    key = jax.random.key(3)
    assert one(key) == by_hand(np.asarray(jax.random.key_data(key)))
    assert one(jnp.int32(-1)) == (2**32 - 1) * odd_hash(0) % 2**32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_no_single_flip_is_missed(dtype):
    draw = np.random.default_rng(0)
    clean = np.asarray(jax.random.normal(jax.random.key(4), (8, 16)).astype(dtype))
    before = one(put(jnp.asarray(clean), mesh(2, 4)))
    for _ in range(20):
        raw = bytearray(clean.tobytes())
        raw[draw.integers(len(raw))] ^= 1 << int(draw.integers(8))
        damaged = np.frombuffer(bytes(raw), clean.dtype).reshape(clean.shape)
        assert one(put(jnp.asarray(damaged), mesh(2, 4))) != before


def test_exchanged_elements_are_seen():
    array = jnp.arange(64.0)
    assert one(array) != one(array[::-1])


@pytest.mark.parametrize(("value", "finite"), [(np.inf, False), (np.nan, False), (3e38, True)])
def test_what_is_not_finite_is_said(value, finite):
    array = put(jnp.zeros((8, 16)).at[3, 5].set(value), mesh(2, 4))
    assert digests([array, jnp.ones(3, jnp.int32)])[1] == [finite, True]


def test_an_offloaded_array_is_read_where_it_lies():
    array = jax.random.normal(jax.random.key(1), (16, 32))
    there = jax.device_put(array, put(array, mesh(2, 4)).sharding.with_memory_kind("pinned_host"))
    assert there.sharding.memory_kind == "pinned_host"
    assert one(there) == one(array)
