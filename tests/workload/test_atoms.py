"""Sequences of atoms: expected values by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxplan.workload.atoms import Atoms


def test_unify_splits_the_larger_atom_everywhere():
    atoms = Atoms()
    query_heads, kv_heads, group = atoms.new(32), atoms.new(8), atoms.new(4)
    assert atoms.unify((query_heads,), (kv_heads, group))
    assert atoms.leaves((query_heads,)) == atoms.leaves((kv_heads, group))
    assert [atoms.size(atom) for atom in atoms.leaves((query_heads,))] == [8, 4]


def test_enemies_are_refused_and_splits_inherit_it():
    atoms = Atoms()
    (a,), (b,) = atoms.fresh((64, 64))
    assert not atoms.unify((a,), (b,))
    major, minor = atoms.split(a, 8)
    assert atoms.are_enemies(major, b) and atoms.are_enemies(minor, b) and atoms.are_enemies(major, minor)


def test_enemies_survive_a_union():
    atoms = Atoms()
    (a,), (b,) = atoms.fresh((16, 16))
    c = atoms.new(16)
    assert atoms.union(c, a)
    assert not atoms.union(c, b)


def test_sizes_that_do_not_divide_are_refused():
    atoms = Atoms()
    assert not atoms.unify((atoms.new(6), atoms.new(4)), (atoms.new(4), atoms.new(6)))


def test_a_repeated_atom_becomes_its_one_copy():
    atoms = Atoms()
    seq = atoms.new(128)
    (first, second), changed = atoms.distinct(((seq,), (seq,)))
    assert changed and first == (seq,) and second != first
    assert atoms.original(second[0]) == seq
    assert atoms.distinct(((seq,), (seq,)))[0] == (first, second), "one copy for the whole program"
    assert atoms.restore((second,)) == (first,), "alone in a tensor, the copy is the original again"
    assert atoms.restore((first, second)) == (first, second)


def test_regroup_cuts_inside_an_atom_and_refuses_what_does_not_divide():
    atoms = Atoms()
    batch, width = atoms.new(4), atoms.new(24)
    cut = atoms.regroup(((batch,), (width,)), (4, 3, 8))
    assert cut is not None and [len(sequence) for sequence in cut] == [1, 1, 1]
    assert [atoms.elements(sequence) for sequence in cut] == [4, 3, 8]
    assert atoms.regroup(((atoms.new(6),),), (4, 2)) is None


def test_size_one_is_the_empty_sequence():
    atoms = Atoms()
    assert atoms.sequence(1) == ()
    with pytest.raises(ValueError, match="at least 2"):
        atoms.new(1)
    with pytest.raises(ValueError, match="cannot cut"):
        atoms.split(atoms.new(6), 4)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.randoms())
def test_unification_keeps_products(sizes: list[int], random) -> None:
    """However a flattened tensor is regrouped, its leaves multiply up to the same number of elements."""
    atoms = Atoms()
    shape = atoms.fresh(sizes)
    elements = atoms.elements(atoms.flat(shape))
    shuffled = sorted(sizes, key=lambda _: random.random())
    regrouped = atoms.regroup(shape, shuffled)
    assert atoms.elements(atoms.flat(shape)) == elements
    if regrouped is not None:
        assert [max(1, atoms.elements(sequence)) for sequence in regrouped] == shuffled
