"""Token ids of files: read where they lie, checked before they are trained on; made-up ones."""

import numpy as np
import pytest

from jaxplan.errors import InputError
from jaxplan.run.tokens import Tokens, made_up, open_tokens


def saved(tmp_path, array, name="tokens.npy"):
    path = tmp_path / name
    np.save(path, array) if name.endswith(".npy") else np.savez(path, **array)
    return path


def test_windows_follow_each_other_and_overlap_by_what_comes_next(tmp_path):
    tokens = open_tokens(saved(tmp_path, np.arange(21, dtype=np.uint16)))
    assert isinstance(tokens.ids.base, np.memmap) or isinstance(tokens.ids, np.memmap)
    assert tokens.windows(0, 2, 5).tolist() == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 10]]
    assert tokens.windows(3, 2, 5).tolist() == [[15, 16, 17, 18, 19, 20], [0, 1, 2, 3, 4, 5]]     # again from its start
    assert tokens.windows(0, 1, 5).dtype == np.int32


def test_rows_and_archives(tmp_path):
    rows = open_tokens(saved(tmp_path, np.arange(12).reshape(3, 4)))
    assert rows.windows(0, 1, 11).tolist() == [list(range(12))]
    one = open_tokens(saved(tmp_path, {"anything": np.arange(5)}, "one.npz"))
    named = open_tokens(saved(tmp_path, {"tokens": np.arange(7), "mask": np.ones(7)}, "two.npz"))
    assert len(one.ids) == 5 and len(named.ids) == 7


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "none.npy", "No such file"),
        (lambda p: (p / "empty.npy").write_bytes(b"") or p / "empty.npy", "cannot read tokens"),
        (lambda p: (p / "text.npy").write_text("1 2 3") and p / "text.npy", "cannot read tokens"),
        (lambda p: saved(p, np.ones(9, np.float32)), "float32 [9]"),
        (lambda p: saved(p, np.array(3)), "int64 []"),
        (lambda p: saved(p, np.array(["a"])), "<U1 [1]"),
        (lambda p: saved(p, {"a": np.ones(3, int), "b": np.ones(3, int)}, "t.npz"), "holds 2 arrays: a, b"),
        (lambda p: p, "Is a directory"),
    ],
)
def test_files_that_hold_no_tokens(tmp_path, make, words):
    with pytest.raises(InputError) as raised:
        open_tokens(make(tmp_path))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_what_steps_read_is_checked_and_nothing_else():
    ids = np.arange(41) % 10
    assert Tokens(ids, "t").check(4, 10, 10) == ""
    assert "4 sequences of 10 tokens, the steps read 5: it is read again" in Tokens(ids, "t").check(5, 10, 10)
    ids[37] = 10
    assert Tokens(ids, "t").check(3, 10, 10) == ""      # the fourth sequence is not read
    with pytest.raises(InputError, match=r"token 10 at position 37.*ids from 0 to 9"):
        Tokens(ids, "t").check(4, 10, 10)
    ids[3] = -1
    with pytest.raises(InputError, match="token -1 at position 3"):
        Tokens(ids, "t").check(1, 10, 10)
    with pytest.raises(InputError, match=r"has 41 tokens.*at least 42"):
        Tokens(ids, "t").check(1, 41, 10)


def test_made_up_tokens_are_of_the_vocabulary_and_the_same_again():
    found = made_up(7, 16, 100)
    assert set(np.unique(found.ids)) == set(range(7)) and len(found.ids) == 1601
    assert np.array_equal(found.ids, made_up(7, 16, 100).ids)
    assert made_up(100_000, 16, 100).windows(0, 100, 16).max() > 2**16     # beyond what 16 bits hold
